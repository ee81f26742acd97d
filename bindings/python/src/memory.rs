//! The bytes of a tensor, and what keeps them where they are.

use crate::pending::{Piece, Stretch};
use memlane_devmem::DeviceRegion;
use memlane_devmem::error::AccessError;
use memlane_devmem::io::Owned;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A fragment that somebody here has. It gives itself back when it is dropped, by any thread, but not by a child of a
/// fork: the tables that it would change there are a copy, and their locks may be held by a thread that is none there.
#[derive(Debug)]
pub(crate) struct Lent {
    owned: ManuallyDrop<Owned>,
    /// Those of its stream that are out.
    out: Arc<AtomicU32>,
    process: u32,
}

impl Lent {
    pub(crate) fn new(owned: Owned, out: &Arc<AtomicU32>) -> Arc<Lent> {
        out.fetch_add(1, Ordering::Relaxed);
        Arc::new(Lent {
            owned: ManuallyDrop::new(owned),
            out: Arc::clone(out),
            process: std::process::id(),
        })
    }

    fn region(&self) -> &DeviceRegion {
        self.owned.binding().region()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: dropped here alone, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.owned) };
            self.out.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Memory of our own, for bytes that do not lie in one piece, and for copies that somebody asked for.
#[derive(Debug)]
pub(crate) struct Own {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: memory that nobody else has; what others do in it they do by its address, as with any tensor.
unsafe impl Send for Own {}
// SAFETY: as above.
unsafe impl Sync for Own {}

impl Own {
    /// Zeros; aligned as the first record of a region is.
    fn new(bytes: usize) -> Option<Own> {
        let layout = Layout::from_size_align(bytes.max(1), 64).ok()?;
        // SAFETY: the size is not 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        let base = base.unwrap_or_else(|| handle_alloc_error(layout));
        Some(Own { base, layout })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Copies what lies in several places into one.
fn gather(stretches: &[Stretch], owners: &[Arc<Lent>], bytes: usize) -> Result<Own, AccessError> {
    let own = Own::new(bytes).ok_or(AccessError::Outside)?;
    let mut at = 0;
    for stretch in stretches {
        let region = owners.first().ok_or(AccessError::Outside)?.region();
        let len = usize::try_from(stretch.len).map_err(|_| AccessError::Outside)?;
        if len > bytes - at {
            return Err(AccessError::Outside);
        }
        // SAFETY: `len` bytes from `at` are within memory that is ours alone, as just looked at.
        let into = unsafe { std::slice::from_raw_parts_mut(own.base.as_ptr().add(at), len) };
        region.read(stretch.offset, into)?;
        at += len;
    }
    Ok(own)
}

/// Where bytes are.
#[derive(Debug)]
enum Place {
    /// In the region, from this offset on; the fragments that they are of.
    Region(u64, Vec<Arc<Lent>>),
    /// Copied.
    Own(Own),
}

/// Bytes that stay where they are as long as this lives.
#[derive(Debug)]
pub(crate) struct Memory {
    place: Place,
    bytes: usize,
}

impl Memory {
    /// A piece of a stream; if it does not lie in one, it is copied, and its fragments go back at once.
    pub(crate) fn of(piece: Piece<Arc<Lent>>, bytes: usize) -> Result<Memory, AccessError> {
        let Piece { stretches, owners } = piece;
        let place = match &stretches[..] {
            [one] if !owners.is_empty() => Place::Region(one.offset, owners),
            _ => Place::Own(gather(&stretches, &owners, bytes)?),
        };
        Ok(Memory { place, bytes })
    }

    /// Another one with the same bytes, from `at` on.
    pub(crate) fn copy(&self, at: usize, bytes: usize) -> Option<Memory> {
        let own = Own::new(bytes)?;
        if at.checked_add(bytes)? > self.bytes {
            return None;
        }
        // SAFETY: both have so many bytes; the new one is nobody else's, so they do not overlap. Who writes to the old
        // one meanwhile gets what any two threads get that share a tensor; the copy is opaque to the compiler.
        unsafe {
            memlane_core::access::copy(own.base.as_ptr(), self.address().add(at), bytes);
        }
        let place = Place::Own(own);
        Some(Memory { place, bytes })
    }

    /// Of the first byte.
    pub(crate) fn address(&self) -> *mut u8 {
        match &self.place {
            Place::Own(own) => own.base.as_ptr(),
            Place::Region(offset, owners) => {
                let at = usize::try_from(*offset).unwrap_or(usize::MAX);
                let window = owners
                    .first()
                    .and_then(|lent| lent.region().bytes().part(at, self.bytes));
                window.map_or(std::ptr::null_mut(), |window| window.as_ptr())
            }
        }
    }

    /// Bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// In the region; `None`: it was copied out of it.
    pub(crate) fn offset(&self) -> Option<u64> {
        match &self.place {
            Place::Region(offset, _) => Some(*offset),
            Place::Own(_) => None,
        }
    }

    /// The fragments that it lies in: offset, length, token.
    pub(crate) fn fragments(&self) -> Vec<(u64, u32, u32)> {
        let Place::Region(_, owners) = &self.place else {
            return Vec::new();
        };
        let fragments = owners.iter().map(|lent| lent.owned.fragment());
        fragments.map(|f| (f.offset, f.len, f.token)).collect()
    }
}
