//! Memory between the socket and a region: pages that stay where they are, so that a device can fetch from them.

use crate::region::DeviceRegion;
use memlane_core::access::SharedBytes;
use memlane_sys::{Errno, mem};
use std::ptr::NonNull;

/// Pages of this process, locked into memory if that is allowed (`RLIMIT_MEMLOCK`).
///
/// A stream's thread writes a stretch by the kernel, hands it to an engine by a channel, which orders the two, and does
/// not touch it until the engine has counted it as done.
#[derive(Debug)]
pub struct Stage {
    base: NonNull<u8>,
    len: usize,
    pinned: bool,
    /// The region's device knows of it.
    #[cfg(feature = "cuda")]
    registered: Option<crate::cuda::memory::Registered>,
}

// SAFETY: an address range, which is reached through SharedBytes and system calls only.
unsafe impl Send for Stage {}
// SAFETY: as above.
unsafe impl Sync for Stage {}

impl Stage {
    /// Maps whole pages.
    ///
    /// # Errors
    /// No memory.
    pub fn new(bytes: usize) -> Result<Stage, Errno> {
        let len = bytes.max(1).next_multiple_of(mem::PAGE);
        let base = mem::map_anon(len, false)?;
        mem::huge_if_possible(base, len);
        // SAFETY: a mapping of ours; its contents stay.
        let locked = unsafe { rustix::mm::mlock(base.as_ptr().cast(), len) };
        Ok(Stage {
            base,
            len,
            pinned: locked.is_ok(),
            #[cfg(feature = "cuda")]
            registered: None,
        })
    }

    /// Maps whole pages, and registers them with the region's device if it needs that.
    ///
    /// # Errors
    /// No memory.
    pub fn for_region(bytes: usize, region: &DeviceRegion) -> Result<Stage, Errno> {
        #[cfg_attr(not(feature = "cuda"), allow(unused_mut, reason = "of CUDA"))]
        let mut stage = Stage::new(bytes)?;
        #[cfg(feature = "cuda")]
        if let Some(memory) = region.cuda() {
            // SAFETY: the mapping lives longer: `drop` takes this back first.
            stage.registered = unsafe { memory.register(stage.base, stage.len) };
            stage.pinned |= stage.registered.is_some();
        }
        #[cfg(not(feature = "cuda"))]
        let _ = region;
        Ok(stage)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Does it stay in memory? Copies are right without that, too, but a device's are not asynchronous.
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// All of it.
    pub fn bytes(&self) -> SharedBytes {
        // SAFETY: mapped as long as `self` is; whoever has a window has an `Arc` of it.
        unsafe { SharedBytes::new(self.base, self.len) }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        #[cfg(feature = "cuda")]
        drop(self.registered.take());
        // SAFETY: the whole mapping from `new`; the last one who knew it is gone.
        unsafe { mem::unmap(self.base, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kilobytes of this process that are locked.
    fn locked() -> usize {
        let told = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = told.lines().find_map(|line| line.strip_prefix("VmLck:"));
        let words = line.unwrap().split_whitespace().next();
        words.unwrap().parse().unwrap()
    }

    #[test]
    fn it_is_locked_into_memory_and_no_longer_than_it_lives() {
        let before = locked();
        let stage = Stage::new((1 << 20) - 5).unwrap();
        assert_eq!(stage.len(), 1 << 20, "whole pages");
        if !stage.is_pinned() {
            return eprintln!("SKIPPED: memory may not be locked here (RLIMIT_MEMLOCK)");
        }
        assert_eq!(locked(), before + 1024);
        drop(stage);
        assert_eq!(locked(), before);
    }
}
