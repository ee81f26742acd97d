//! A volume in memory: what is done there is done at once.

use crate::volume::{Errno, Op, tell_extents};
use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use memlane_sys::fd::Fd;
use memlane_sys::mem;
use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd as _, OwnedFd};
use std::ptr::NonNull;

/// Memory of this process alone may have huge pages. Memory that is shared with others is a memory file whose size is sealed.
#[derive(Debug)]
pub(super) enum Memory {
    Own(Own),
    Shared(Region),
}

/// A mapping that nobody else has.
#[derive(Debug)]
pub(super) struct Own {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: all access is by `SharedBytes`, which any thread may use.
unsafe impl Send for Own {}
// SAFETY: as above.
unsafe impl Sync for Own {}

impl Memory {
    /// Zeroes, for this process alone.
    pub(super) fn new(size: u64) -> io::Result<Memory> {
        let len = usize::try_from(size).map_err(io::Error::other)?;
        let base = mem::map_anon(len, false).map_err(os)?;
        mem::huge_if_possible(base, len);
        Ok(Memory::Own(Own { base, len }))
    }

    /// Zeroes, which can be shared with other processes.
    pub(super) fn to_share(size: u64) -> io::Result<Memory> {
        let len = usize::try_from(size).map_err(io::Error::other)?;
        let region = Region::create(c"memlane-volume", len, false).map_err(os)?;
        Ok(Memory::Shared(region))
    }

    /// What another process shares, if it is a memory file of this size that nobody can shrink.
    pub(super) fn of_another(file: OwnedFd, size: u64, writable: bool) -> io::Result<Memory> {
        let len = usize::try_from(size).map_err(io::Error::other)?;
        // SAFETY: it was owned, and is given away.
        let file = unsafe { Fd::from_raw(file.into_raw_fd()) };
        let region = match writable {
            true => Region::attach(file, len),
            false => Region::attach_read_only(file, len),
        };
        Ok(Memory::Shared(region.map_err(os)?))
    }

    /// The memory file; `None`: no other process can have it.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        let Memory::Shared(region) = self else {
            return None;
        };
        // SAFETY: the region keeps it open.
        region.fd().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn bytes(&self) -> SharedBytes {
        match self {
            // SAFETY: the mapping lives as long as `self`, which a request keeps until it is done.
            Memory::Own(own) => unsafe { SharedBytes::new(own.base, own.len) },
            Memory::Shared(region) => region.bytes(),
        }
    }

    /// `len` bytes from `at` on.
    pub(super) fn part(&self, at: u64, len: u32) -> Option<SharedBytes> {
        self.bytes().part(usize::try_from(at).ok()?, len as usize)
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
            // SAFETY: whole pages of a private or of a writable shared mapping, of which there are no references, only copies in and out.
            Some(addr) => unsafe {
                match self {
                    Memory::Own(_) => mem::give_back(addr, pages.len()),
                    Memory::Shared(_) => mem::punch(addr, pages.len()),
                }
            },
            None => Ok(()),
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: a whole mapping of ours; no request is under way.
        unsafe { mem::unmap(self.base, self.len) };
    }
}

fn os(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

fn copy(from: SharedBytes, to: SharedBytes) -> Result<(), Errno> {
    // SAFETY: `from` is readable for its whole length.
    let copied = unsafe { to.copy_in(0, from.as_ptr(), from.len()) };
    copied.then_some(()).ok_or(Errno::INVAL)
}
