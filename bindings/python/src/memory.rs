//! The bytes of a tensor, and what keeps them where they are.

use crate::errors::NO_MEMORY;
use crate::pending::{Piece, Stretch};
use memlane_devmem::DeviceRegion;
use memlane_devmem::cuda;
use memlane_devmem::error::AccessError;
use memlane_devmem::io::Owned;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `kDLCPU` of `dlpack.h`, and the number of its one device.
pub(crate) const CPU: (i32, i32) = (1, 0);
/// `kDLCUDA` of `dlpack.h`.
pub(crate) const CUDA: i32 = 2;

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
    fn new(bytes: usize) -> Result<Own, AccessError> {
        let none = AccessError::Device(NO_MEMORY);
        let layout = Layout::from_size_align(bytes.max(1), 64).map_err(|_| none)?;
        // SAFETY: the size is not 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        let base = base.ok_or(none)?;
        Ok(Own { base, layout })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Copies what lies in several places into one, of the same device.
fn gather(
    stretches: &[Stretch],
    owners: &[Arc<Lent>],
    bytes: usize,
) -> Result<Location, AccessError> {
    let region = owners.first().map(|lent| lent.region());
    let Some(cuda) = region.and_then(DeviceRegion::cuda) else {
        return gather_by_cpu(stretches, owners, bytes).map(Location::Own);
    };
    let places = stretches.iter().map(|stretch| {
        let len = usize::try_from(stretch.len).unwrap_or(usize::MAX);
        (stretch.offset, len)
    });
    cuda.gathered(places).map(Location::Device)
}

/// Copies what lies in several places into one, of host memory.
fn gather_by_cpu(
    stretches: &[Stretch],
    owners: &[Arc<Lent>],
    bytes: usize,
) -> Result<Own, AccessError> {
    let own = Own::new(bytes)?;
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

/// Of bytes of a region: the CPU's address, or the device's.
fn address_in(region: &DeviceRegion, offset: u64, bytes: usize) -> Option<*mut u8> {
    let at = usize::try_from(offset).ok()?;
    let Some(cuda) = region.cuda() else {
        return region.bytes().part(at, bytes).map(|window| window.as_ptr());
    };
    let inside = at.checked_add(bytes)? <= cuda.len();
    inside.then(|| device_address(cuda, at))
}

/// The device's own address, `at` bytes behind the first. Nothing here follows it.
fn device_address(memory: &cuda::Memory, at: usize) -> *mut u8 {
    let address = usize::try_from(memory.address()).unwrap_or(0);
    std::ptr::without_provenance_mut(address + at)
}

/// Where bytes are.
#[derive(Debug)]
enum Location {
    /// In the region, from this offset on; the fragments that they are of.
    Region(u64, Vec<Arc<Lent>>),
    /// Copied into host memory.
    Own(Own),
    /// Copied into memory of the region's device.
    Device(cuda::Memory),
}

/// Bytes that stay where they are as long as this lives.
#[derive(Debug)]
pub(crate) struct Memory {
    place: Location,
    bytes: usize,
}

impl Memory {
    /// A piece of a stream; if it does not lie in one, it is copied, and its fragments go back at once.
    pub(crate) fn of(piece: Piece<Arc<Lent>>, bytes: usize) -> Result<Memory, AccessError> {
        let Piece { stretches, owners } = piece;
        let place = match &stretches[..] {
            [one] if !owners.is_empty() => Location::Region(one.offset, owners),
            _ => gather(&stretches, &owners, bytes)?,
        };
        Ok(Memory { place, bytes })
    }

    /// Another one with the same bytes, in host memory.
    pub(crate) fn copy(&self) -> Result<Memory, AccessError> {
        let bytes = self.bytes;
        let own = match &self.place {
            Location::Region(offset, owners) => {
                let len = bytes as u64;
                let whole = Stretch {
                    offset: *offset,
                    len,
                };
                gather_by_cpu(&[whole], owners, bytes)?
            }
            Location::Device(memory) => {
                let own = Own::new(bytes)?;
                // SAFETY: `bytes` bytes that are ours alone.
                let into = unsafe { std::slice::from_raw_parts_mut(own.base.as_ptr(), bytes) };
                memory.read(0, into)?;
                own
            }
            Location::Own(old) => {
                let own = Own::new(bytes)?;
                // SAFETY: both have `bytes` bytes; the new one is nobody else's, so they do not overlap. Who writes to the
                // old one meanwhile gets what any two threads get that share a tensor: the compiler cannot look into the copy.
                unsafe { memlane_core::access::copy(own.base.as_ptr(), old.base.as_ptr(), bytes) };
                own
            }
        };
        let place = Location::Own(own);
        Ok(Memory { place, bytes })
    }

    /// Of the first byte.
    pub(crate) fn address(&self) -> *mut u8 {
        match &self.place {
            Location::Own(own) => own.base.as_ptr(),
            Location::Device(memory) => device_address(memory, 0),
            Location::Region(offset, owners) => {
                let region = owners.first().map(|lent| lent.region());
                let found = region.and_then(|region| address_in(region, *offset, self.bytes));
                found.unwrap_or(std::ptr::null_mut())
            }
        }
    }

    /// Whose addresses these are, by DLPack's numbers: (1, 0) the CPU's, (2, N) those of a CUDA device.
    pub(crate) fn device(&self) -> (i32, i32) {
        let cuda = match &self.place {
            Location::Own(_) => None,
            Location::Device(memory) => Some(memory),
            Location::Region(_, owners) => owners.first().and_then(|lent| lent.region().cuda()),
        };
        cuda.map_or(CPU, |memory| {
            (CUDA, i32::try_from(memory.number()).unwrap_or(i32::MAX))
        })
    }

    /// Bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// In the region; `None`: it was copied out of it.
    pub(crate) fn offset(&self) -> Option<u64> {
        match &self.place {
            Location::Region(offset, _) => Some(*offset),
            Location::Own(_) | Location::Device(_) => None,
        }
    }

    /// The fragments that it lies in: offset, length, token.
    pub(crate) fn fragments(&self) -> Vec<(u64, u32, u32)> {
        let Location::Region(_, owners) = &self.place else {
            return Vec::new();
        };
        let fragments = owners.iter().map(|lent| lent.owned.fragment());
        fragments.map(|f| (f.offset, f.len, f.token)).collect()
    }
}
