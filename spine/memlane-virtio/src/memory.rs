//! Checks of a guest's memory before it is touched. `vm-memory` maps any file that a front end sends. A touch behind the
//! file's end, or of a page that the kernel cannot provide, kills the process (`SIGBUS`).

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

/// A guest's memory, which its front end may replace at any time.
pub type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
/// The memory at one moment. It stays mapped while this value is kept.
pub type Snapshot = <Memory as GuestAddressSpace>::T;

/// `HUGETLBFS_MAGIC` of `include/uapi/linux/magic.h`.
const HUGETLBFS: u32 = 0x9584_58f6;

/// Why a guest's memory must not be touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryError {
    /// It is not a file, or the length of the file is unknown.
    NoFile,
    /// The file ends before the region.
    PastEnd,
    /// The owner could make the file shorter.
    NotSealed,
    /// The pages are huge pages, and none may be free when one is touched.
    Huge,
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryError::NoFile => "the guest's memory is not a file whose length can be read",
            MemoryError::PastEnd => "the guest's memory extends past the end of its file",
            MemoryError::NotSealed => {
                "the guest could shorten its memory: use a memfd that is sealed against shrinking (QEMU: \
                 memory-backend-memfd with seal=on), or allow any memory"
            }
            MemoryError::Huge => {
                "the guest's memory has huge pages, and none may be left when one is needed: use plain pages, or allow \
                 any memory"
            }
        })
    }
}

impl std::error::Error for MemoryError {}

/// Checks that this memory may be touched. `sealed`: its owner must not be able to take it away.
///
/// # Errors
/// The reason why it may not.
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

/// Calls `take` with views of `len` bytes from `at` on, until it returns `false`. Returns `false` if it did, or if not all
/// of these bytes exist. The views are valid while `memory` is kept.
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
        // writes meanwhile only makes wrong bytes, because views are only copied from and to.
        if !take(unsafe { SharedBytes::new(base, slice.len()) }) {
            return false;
        }
    }
    true
}

/// A guest's memory that checks each snapshot before it returns it.
#[derive(Clone, Debug)]
pub struct Guarded {
    memory: Memory,
    sealed: bool,
    /// The last good snapshot. It is kept so that no other one gets its address.
    good: Arc<Mutex<Option<Snapshot>>>,
}

impl Guarded {
    /// Guards this memory; `sealed`: see [`check`].
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
