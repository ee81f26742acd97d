//! A volume in this process's memory: what is done there is done at once.

use super::{Request, plain};
use crate::volume::{Errno, Op};
use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use std::io;

#[derive(Debug)]
pub(super) struct Memory {
    region: Region,
}

impl Memory {
    pub(super) fn new(size: u64) -> io::Result<Memory> {
        let len = usize::try_from(size).map_err(io::Error::other)?;
        let region = Region::create(c"memlane-volume", len, false);
        let region = region.map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        Ok(Memory { region })
    }

    pub(super) fn perform(&self, request: &Request) -> Result<(), Errno> {
        let at = usize::try_from(request.at).map_err(|_| Errno::INVAL)?;
        let len = request.len as usize;
        let disk = || self.region.bytes().part(at, len).ok_or(Errno::INVAL);
        match request.op {
            Op::Flush => Ok(()),
            Op::Read => copy(disk()?, data(request)?),
            Op::Write => copy(data(request)?, disk()?),
            Op::Trim | Op::WriteZeroes => {
                disk()?;
                // Gives the pages back; the kernel zeroes what is left of the first and the last.
                let fd = self.region.fd().ok_or(Errno(libc::EIO))?;
                memlane_sys::mem::punch_hole(fd, at, len)
            }
            Op::Extents => {
                disk()?;
                let room = request.data.ok_or(Errno::INVAL)?;
                plain::tell_extents(&[(request.len.into(), false)], room)
            }
        }
    }
}

fn data(request: &Request) -> Result<SharedBytes, Errno> {
    let bytes = request
        .data
        .and_then(|data| data.part(0, request.len as usize));
    bytes.ok_or(Errno::INVAL)
}

fn copy(from: SharedBytes, to: SharedBytes) -> Result<(), Errno> {
    // SAFETY: `from` is readable for its whole length.
    let copied = unsafe { to.copy_in(0, from.as_ptr(), from.len()) };
    copied.then_some(()).ok_or(Errno::INVAL)
}
