//! A guest's memory, before it is touched: a mapped file that ends too early, or runs out of pages, ends the process
//! that looks at it (`SIGBUS`), and the crate maps whatever it is told.

use memlane_core::access::SharedBytes;
use memlane_wait::mutex::lock;
use std::fmt;
use std::os::fd::AsFd as _;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use vm_memory::{
    GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend as _, GuestMemoryMmap,
    GuestMemoryRegion as _,
};

/// A guest's memory, which its front end may exchange at any time.
pub type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
/// As it was at one moment; mapped as long as it is kept.
pub type Snapshot = <Memory as GuestAddressSpace>::T;

/// `HUGETLBFS_MAGIC` of `include/uapi/linux/magic.h`.
const HUGETLBFS: u32 = 0x9584_58f6;

/// Why memory is not touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryError {
    /// No file, or nobody tells how long it is.
    NoFile,
    /// It ends before the region.
    PastEnd,
    /// Its owner could make it shorter.
    NotSealed,
    /// There may be no page for it when it is touched.
    Huge,
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryError::NoFile => "the guest's memory is no file that can be looked at",
            MemoryError::PastEnd => "the guest's memory reaches over the end of its file",
            MemoryError::NotSealed => {
                "the guest's memory could be made shorter under us: only a memfd sealed against shrinking is taken \
                 (QEMU: memory-backend-memfd with seal=on), unless any memory is allowed"
            }
            MemoryError::Huge => {
                "the guest's memory is of huge pages, of which there may be none left when they are needed: not \
                 taken, unless any memory is allowed"
            }
        })
    }
}

impl std::error::Error for MemoryError {}

/// May this memory be touched? `sealed`: only if its owner cannot take it away.
///
/// # Errors
/// Why not.
pub fn check(memory: &GuestMemoryMmap, sealed: bool) -> Result<(), MemoryError> {
    for region in memory.iter() {
        let offset = region.file_offset().ok_or(MemoryError::NoFile)?;
        let file = offset.file().as_fd();
        let stat = rustix::fs::fstat(file).map_err(|_| MemoryError::NoFile)?;
        let end = offset.start().checked_add(region.len());
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if end.is_none_or(|end| end > size) {
            return Err(MemoryError::PastEnd);
        }
        if sealed {
            check_owner(file)?;
        }
    }
    Ok(())
}

fn check_owner(file: std::os::fd::BorrowedFd<'_>) -> Result<(), MemoryError> {
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| MemoryError::NotSealed)?;
    if !seals.contains(rustix::fs::SealFlags::SHRINK) {
        return Err(MemoryError::NotSealed);
    }
    let place = rustix::fs::fstatfs(file).map_err(|_| MemoryError::NoFile)?;
    if u32::try_from(place.f_type) == Ok(HUGETLBFS) {
        return Err(MemoryError::Huge);
    }
    Ok(())
}

/// Shows `len` bytes from `at` on, in windows, as long as `take` wants; `false` if they are not all there, or `take` did
/// not want them. The windows are for as long as `memory` is kept.
pub fn each_window(
    memory: &GuestMemoryMmap,
    at: GuestAddress,
    len: usize,
    mut take: impl FnMut(SharedBytes) -> bool,
) -> bool {
    for slice in memory.get_slices(at, len) {
        let Ok(slice) = slice else {
            return false;
        };
        let Some(base) = NonNull::new(slice.ptr_guard_mut().as_ptr()) else {
            return false;
        };
        // SAFETY: the slice lies in the guest's memory, which is mapped for both as long as `memory` is; what a guest
        // writes meanwhile is only wrong bytes, as windows are copied from and to.
        if !take(unsafe { SharedBytes::new(base, slice.len()) }) {
            return false;
        }
    }
    true
}

/// Memory of which each snapshot is checked before it is given out.
#[derive(Clone, Debug)]
pub struct Guarded {
    memory: Memory,
    sealed: bool,
    /// Kept, so that no other one comes to lie at its address.
    good: Arc<Mutex<Option<Snapshot>>>,
}

impl Guarded {
    /// Of this memory; `sealed`: see [`check`].
    #[must_use]
    pub fn new(memory: Memory, sealed: bool) -> Guarded {
        Guarded {
            memory,
            sealed,
            good: Arc::default(),
        }
    }

    /// The memory as it is now, if it may be touched.
    #[must_use]
    pub fn now(&self) -> Option<Snapshot> {
        let now = self.memory.memory();
        let mut good = lock(&self.good);
        let same = |good: &Snapshot| std::ptr::eq(&raw const **good, &raw const *now);
        if good.as_ref().is_some_and(same) {
            return Some(now);
        }
        check(&now, self.sealed).ok()?;
        *good = Some(now.clone());
        Some(now)
    }
}
