//! A request, done from its first to its last step by plain system calls that wait.

use super::backing::File;
use super::mapped;
use super::request::StoreRequest;
use crate::volume::{EXTENT_LEN, Errno, Flags, Op, tell_extents};
use memlane_core::access::SharedBytes;
use memlane_sys::syscall;
use rustix::fs::{FallocateFlags, SeekFrom};
use std::os::fd::{AsRawFd as _, RawFd};

/// Most records that one question about extents is answered with: each costs two system calls.
const MOST_EXTENTS: usize = 1024;

/// What zeroes are written from, where a file system cannot make them.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Does it all. A request for what is not a file is done already: `EINVAL`.
pub fn perform(request: &StoreRequest) -> Result<(), Errno> {
    let file = request.backing.file().ok_or(Errno::INVAL)?;
    let done = match request.op {
        Op::Read | Op::Write => move_data(file, request),
        Op::Flush => flush(file),
        Op::Trim => trim(file, request),
        Op::WriteZeroes => write_zeroes(file, request),
        Op::Extents => extents(file, request),
    };
    done.map_err(|errno| as_disk(request, errno))
}

/// Does what neither waits for a disk nor takes long: data of a file in memory. `None`: it is for a store.
///
/// A ring would hand each such request to a thread of the kernel, as tmpfs knows no `RWF_NOWAIT`.
pub(super) fn at_once(request: &StoreRequest) -> Option<Result<(), Errno>> {
    let quick = matches!(request.op, Op::Read | Op::Write | Op::Flush);
    let file = request.backing.file()?;
    (quick && file.in_memory).then(|| perform(request))
}

/// What a disk would say. Some errors have a reason that is looked for now.
pub(super) fn as_disk(request: &StoreRequest, errno: Errno) -> Errno {
    match errno.0 {
        libc::ENOSPC => {
            // A device says so of what lies behind its end.
            let file = request.backing.file();
            let end = request.at.saturating_add(request.len.into());
            let device = file.is_some_and(|file| file.device);
            if device {
                request.backing.look();
            }
            let outside = device && end > request.backing.info(0).size;
            Errno(if outside { libc::EIO } else { libc::ENOSPC })
        }
        libc::EDQUOT | libc::EFBIG => Errno(libc::ENOSPC),
        libc::EROFS | libc::EOPNOTSUPP => errno,
        _ => Errno(libc::EIO),
    }
}

/// The memory of a read or a write from its `done`th byte on, and the descriptor that suits it.
pub(super) fn rest(request: &StoreRequest, done: u32) -> Option<(RawFd, SharedBytes, u64)> {
    let file = request.backing.file()?;
    let left = request.len.checked_sub(done)? as usize;
    let bytes = request.data?.part(done as usize, left)?;
    let at = request.at.checked_add(done.into())?;
    Some((file.fd_for(at, left, bytes.as_ptr()), bytes, at))
}

/// `RWF_DSYNC` for a write that is to be durable.
pub(super) fn write_flags(flags: Flags) -> i32 {
    if flags.has(Flags::FUA) {
        libc::RWF_DSYNC
    } else {
        0
    }
}

fn move_data(file: &File, request: &StoreRequest) -> Result<(), Errno> {
    let is_write = request.op == Op::Write;
    if is_write && request.flags.has(Flags::PREFLUSH) {
        flush(file)?;
    }
    let is_done = match is_write {
        true => write_by_mapping(file, request)?,
        false => read_by_mapping(file, request),
    };
    match is_done {
        true => Ok(()),
        false => by_calls(request, 0),
    }
}

fn read_by_mapping(file: &File, request: &StoreRequest) -> bool {
    let whole = rest(request, 0).zip(file.mapped());
    whole.is_some_and(|((_, bytes, at), mapped)| mapped.read(file.fd(), at, bytes))
}

/// The last bytes go first, by the system call: it knows what a writer may, and sets the file's times.
fn write_by_mapping(file: &File, request: &StoreRequest) -> Result<bool, Errno> {
    let Some(((_, bytes, at), mapped)) = rest(request, 0).zip(file.mapped()) else {
        return Ok(false);
    };
    if !mapped.takes(file.fd(), at, bytes.len()) {
        return Ok(false);
    }
    let last = u32::try_from(mapped::LAST).unwrap_or(request.len);
    by_calls(request, request.len.saturating_sub(last))?;
    Ok(mapped.write(file.fd(), at, bytes))
}

/// Moves the data from the `done`th byte on.
fn by_calls(request: &StoreRequest, done: u32) -> Result<(), Errno> {
    let write = request.op == Op::Write;
    let mut done = done;
    while done < request.len {
        let (fd, bytes, at) = rest(request, done).ok_or(Errno::INVAL)?;
        let piece = libc::iovec {
            iov_base: bytes.as_ptr().cast(),
            iov_len: bytes.len(),
        };
        let flags = if write { write_flags(request.flags) } else { 0 };
        // SAFETY: the memory is readable and writable for its length, and stays mapped until the request is done.
        let moved = unsafe {
            let piece = &raw const piece;
            if write {
                syscall!(libc::SYS_pwritev2, fd, piece, 1, at, 0, flags)
            } else {
                syscall!(libc::SYS_preadv2, fd, piece, 1, at, 0, flags)
            }
        };
        match moved {
            Err(Errno::INTR) => {}
            // A read found the end, where there was none before.
            Ok(0) => {
                request.backing.look();
                return Err(Errno(libc::EIO));
            }
            Ok(n) => done = done.saturating_add(u32::try_from(n).unwrap_or(u32::MAX)),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn flush(file: &File) -> Result<(), Errno> {
    rustix::fs::fdatasync(file.fd()).map_err(from_rustix)
}

/// A flush, if asked for.
fn then_flush(file: &File, request: &StoreRequest) -> Result<(), Errno> {
    if request.flags.has(Flags::FUA) {
        return flush(file);
    }
    Ok(())
}

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);

/// Can a file (since Linux 4.9 also a device) do this? `false`: not this way.
fn allocate(file: &File, request: &StoreRequest, how: FallocateFlags) -> Result<bool, Errno> {
    loop {
        match rustix::fs::fallocate(file.fd(), how, request.at, request.len.into()) {
            Ok(()) => return Ok(true),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => return Ok(false),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(from_rustix(error)),
        }
    }
}

fn trim(file: &File, request: &StoreRequest) -> Result<(), Errno> {
    let done = match file.device {
        true => discard(file, request)?,
        false => allocate(file, request, PUNCH)?,
    };
    if !done {
        return Err(Errno::NOTSUP);
    }
    then_flush(file, request)
}

/// `BLKDISCARD` (linux/fs.h).
fn discard(file: &File, request: &StoreRequest) -> Result<bool, Errno> {
    use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
    const BLKDISCARD: Opcode = opcode::none(0x12, 119);
    let mut range = [request.at, u64::from(request.len)];
    // SAFETY: the kernel reads two u64.
    let done = unsafe { ioctl(file.fd(), Updater::<BLKDISCARD, [u64; 2]>::new(&mut range)) };
    match done {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(from_rustix(error)),
    }
}

/// Zeroes a range: by a hole, if one may be left; by allocation; or by writing, unless it must be fast.
fn write_zeroes(file: &File, request: &StoreRequest) -> Result<(), Errno> {
    let fast = request.flags.has(Flags::FAST);
    let hole = !request.flags.has(Flags::NO_HOLE);
    let mut done = hole && allocate(file, request, PUNCH)?;
    // What a device does for ZERO_RANGE may be writing.
    let may_write = !(fast && file.device);
    if !done && may_write {
        done = allocate(file, request, ZERO)?;
    }
    if !done && fast {
        return Err(Errno::NOTSUP);
    }
    if !done {
        by_writing(file, request)?;
    }
    then_flush(file, request)
}

fn by_writing(file: &File, request: &StoreRequest) -> Result<(), Errno> {
    let (mut at, end) = (request.at, request.at.saturating_add(request.len.into()));
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(usize::MAX);
        let zeroes = &ZEROES[..most.min(ZEROES.len())];
        match memlane_sys::fd::write_at(file.fd().as_raw_fd(), zeroes, at) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(n) => at += n as u64,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// What the bytes consist of, as far as the file system tells.
fn extents(file: &File, request: &StoreRequest) -> Result<(), Errno> {
    let room = request.data.ok_or(Errno::INVAL)?;
    let most = (room.len() / EXTENT_LEN).min(MOST_EXTENTS);
    let end = request.at.saturating_add(request.len.into());
    // File systems tell bytes; a block that holds some data is data.
    let block = u64::from(request.backing.info(0).block);
    let (mut at, mut found) = (request.at, Vec::new());
    while at < end && found.len() < most {
        let data = match file.device {
            true => at,
            false => next(file, SeekFrom::Data(at), end)?,
        };
        let data = data - data % block;
        let (until, hole) = match data > at {
            true => (data, true),
            false if file.device => (end, false),
            false => {
                let hole = next(file, SeekFrom::Hole(at), end)?;
                // No hole begins where data does, unless it has changed in between.
                (hole.next_multiple_of(block).max(at + block), false)
            }
        };
        found.push((until - at, hole));
        at = until;
    }
    tell_extents(&found, room)
}

/// Where the next data, or the next hole, begins; `end` if that comes first.
fn next(file: &File, what: SeekFrom, end: u64) -> Result<u64, Errno> {
    match rustix::fs::seek(file.fd(), what) {
        Ok(found) => Ok(found.min(end)),
        // Behind the last.
        Err(rustix::io::Errno::NXIO) => Ok(end),
        Err(error) => Err(from_rustix(error)),
    }
}

fn from_rustix(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}
