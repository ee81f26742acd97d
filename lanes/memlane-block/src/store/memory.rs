//! A volume in this process's memory: what is done there is done at once.

use crate::volume::{Errno, Op, tell_extents};
use memlane_core::access::SharedBytes;
use memlane_sys::mem;
use std::io;
use std::ptr::NonNull;

/// Nobody else has it, so it is no file, and may have huge pages.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: all access is by `SharedBytes`, which any thread may use.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(size: u64) -> io::Result<Memory> {
        let len = usize::try_from(size).map_err(io::Error::other)?;
        let base = mem::map_anon(len, false);
        let base = base.map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        mem::huge_if_possible(base, len);
        Ok(Memory { base, len })
    }

    fn bytes(&self) -> SharedBytes {
        // SAFETY: the mapping lives as long as `self`, which a request keeps until it is done.
        unsafe { SharedBytes::new(self.base, self.len) }
    }

    /// Carries out `op` on `len` bytes from `at` on; `data` is the request's memory.
    pub(super) fn perform(
        &self,
        op: Op,
        at: u64,
        len: u32,
        data: Option<SharedBytes>,
    ) -> Result<(), Errno> {
        let at = usize::try_from(at).map_err(|_| Errno::INVAL)?;
        let size = len as usize;
        let disk = || self.bytes().part(at, size).ok_or(Errno::INVAL);
        let data = data.ok_or(Errno::INVAL);
        let exactly = || data.and_then(|data| data.part(0, size).ok_or(Errno::INVAL));
        match op {
            Op::Flush => Ok(()),
            Op::Read => copy(disk()?, exactly()?),
            Op::Write => copy(exactly()?, disk()?),
            Op::Trim | Op::WriteZeroes => {
                disk()?;
                self.zero(at, at + size)
            }
            Op::Extents => {
                disk()?;
                tell_extents(&[(len.into(), false)], data?)
            }
        }
    }
}

impl Memory {
    /// Whole pages are given back, the rest is written.
    fn zero(&self, at: usize, end: usize) -> Result<(), Errno> {
        let first = at.next_multiple_of(mem::PAGE).min(end);
        let last = (end / mem::PAGE * mem::PAGE).max(first);
        for (from, to) in [(at, first), (last, end)] {
            let zeroes = [0_u8; mem::PAGE];
            // SAFETY: less than a page of zeroes; the window checks its own bounds.
            unsafe { self.bytes().copy_in(from, zeroes.as_ptr(), to - from) };
        }
        let pages = self.bytes().part(first, last - first).ok_or(Errno::INVAL)?;
        match NonNull::new(pages.as_ptr()).filter(|_| !pages.is_empty()) {
            // SAFETY: whole pages of ours, of which there are no references, only copies in and out.
            Some(addr) => unsafe { mem::give_back(addr, pages.len()) },
            None => Ok(()),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: a whole mapping of ours; no request is under way.
        unsafe { mem::unmap(self.base, self.len) };
    }
}

fn copy(from: SharedBytes, to: SharedBytes) -> Result<(), Errno> {
    // SAFETY: `from` is readable for its whole length.
    let copied = unsafe { to.copy_in(0, from.as_ptr(), from.len()) };
    copied.then_some(()).ok_or(Errno::INVAL)
}
