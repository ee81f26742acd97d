//! Descriptors: owning, duplicating, asking what one is.

use crate::errno::Result;
use crate::syscall;

/// A descriptor that is closed when dropped.
#[derive(Debug)]
pub struct Fd(i32);

impl Fd {
    /// Takes ownership of `raw`.
    ///
    /// # Safety
    /// Nobody else closes `raw`.
    pub unsafe fn from_raw(raw: i32) -> Fd {
        Fd(raw)
    }

    /// The number, still owned by `self`.
    pub fn raw(&self) -> i32 {
        self.0
    }

    /// The number, no longer owned.
    pub fn into_raw(self) -> i32 {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// Closes `fd`; errors are of no use to anybody.
pub fn close(fd: i32) {
    // SAFETY: no pointers are passed.
    let _ = unsafe { syscall!(libc::SYS_close, fd) };
}

/// Moves `fd` to a number of at least `min`, close-on-exec, so that the low
/// numbers stay the program's. On failure the old number is kept.
pub fn move_high(fd: Fd, min: i32) -> Fd {
    // SAFETY: no pointers are passed.
    match unsafe { syscall!(libc::SYS_fcntl, fd.0, libc::F_DUPFD_CLOEXEC, min) } {
        // SAFETY: the kernel just made this number for us.
        Ok(new) => unsafe { Fd::from_raw(as_fd(new)) },
        Err(_) => fd,
    }
}

/// The descriptor's `FD_CLOEXEC` flag.
pub fn is_cloexec(fd: i32) -> Result<bool> {
    // SAFETY: no pointers are passed.
    let flags = unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_GETFD, 0) }?;
    Ok(flags & libc::FD_CLOEXEC as usize != 0)
}

/// The file status flags (`O_NONBLOCK`, `O_ASYNC`, …).
pub fn status_flags(fd: i32) -> Result<i32> {
    // SAFETY: no pointers are passed.
    let flags = unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_GETFL, 0) }?;
    Ok(as_fd(flags))
}

/// What `fstat` says: (device, inode, mode, size).
pub fn stat(fd: i32) -> Result<Stat> {
    // SAFETY: an all-zero `stat` is a valid value.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `st` is writable and of the size that the kernel fills.
    unsafe { syscall!(libc::SYS_fstat, fd, &raw mut st) }?;
    Ok(Stat {
        dev: st.st_dev,
        ino: st.st_ino,
        mode: st.st_mode,
        size: u64::try_from(st.st_size).unwrap_or(0),
    })
}

/// The few `stat` fields that memlane looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// File type and mode bits.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
}

/// Opens `/proc/self/fd/N` as a path only: a handle that proves the holder has
/// the socket (same inode) and yet keeps nothing of the socket alive: a close
/// by the program still sends its FIN (checked on 6.18).
pub fn open_path_of(fd: i32) -> Result<Fd> {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    write_decimal(
        &mut path[14..25],
        u32::try_from(fd).map_err(|_| crate::Errno::INVAL)?,
    );
    // SAFETY: `path` is NUL-terminated and lives over the call.
    let n = unsafe {
        syscall!(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::O_PATH | libc::O_CLOEXEC,
            0
        )
    }?;
    // SAFETY: the kernel just made this number for us.
    Ok(unsafe { Fd::from_raw(as_fd(n)) })
}

/// Opens `path` read-only, close-on-exec.
pub fn open_read(path: &core::ffi::CStr) -> Result<Fd> {
    open(path, libc::O_RDONLY)
}

/// Opens `path` write-only, close-on-exec.
pub fn open_write(path: &core::ffi::CStr) -> Result<Fd> {
    open(path, libc::O_WRONLY)
}

fn open(path: &core::ffi::CStr, how: i32) -> Result<Fd> {
    // SAFETY: `path` is NUL-terminated and lives over the call.
    let n = unsafe {
        syscall!(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            how | libc::O_CLOEXEC | libc::O_NONBLOCK,
            0
        )
    }?;
    // SAFETY: the kernel just made this number for us.
    Ok(unsafe { Fd::from_raw(as_fd(n)) })
}

/// Opens `path` read-only and fills `buf`; returns the bytes read.
pub fn read_file(path: &core::ffi::CStr, buf: &mut [u8]) -> Result<usize> {
    let fd = open_read(path)?;
    // SAFETY: `buf` is writable for its length.
    unsafe { syscall!(libc::SYS_read, fd.0, buf.as_mut_ptr(), buf.len()) }
}

/// Fills `buf` from offset `at` of a file; returns the bytes read.
pub fn read_at(fd: i32, buf: &mut [u8], at: u64) -> Result<usize> {
    // SAFETY: `buf` is writable for its length.
    unsafe { syscall!(libc::SYS_pread64, fd, buf.as_mut_ptr(), buf.len(), at) }
}

/// Writes `buf` at offset `at` of a file; returns the bytes written.
pub fn write_at(fd: i32, buf: &[u8], at: u64) -> Result<usize> {
    // SAFETY: `buf` is readable for its length.
    unsafe { syscall!(libc::SYS_pwrite64, fd, buf.as_ptr(), buf.len(), at) }
}

/// Another number for the same file, close-on-exec.
pub fn duplicate(fd: i32) -> Result<Fd> {
    // SAFETY: no pointers are passed.
    let n = unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 3) }?;
    // SAFETY: the kernel just made this number for us.
    Ok(unsafe { Fd::from_raw(as_fd(n)) })
}

/// A fresh epoll set, close-on-exec.
pub fn epoll() -> Result<Fd> {
    // SAFETY: no pointers are passed.
    let n = unsafe { syscall!(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) }?;
    // SAFETY: the kernel just made this number for us.
    Ok(unsafe { Fd::from_raw(as_fd(n)) })
}

/// A fresh eventfd: non-blocking, close-on-exec.
pub fn event() -> Result<Fd> {
    // SAFETY: no pointers are passed.
    let n = unsafe {
        syscall!(
            libc::SYS_eventfd2,
            0,
            libc::EFD_NONBLOCK | libc::EFD_CLOEXEC
        )
    }?;
    // SAFETY: the kernel just made this number for us.
    Ok(unsafe { Fd::from_raw(as_fd(n)) })
}

/// Takes the lock of an open file (`flock`) if nobody else has it. It goes with the last descriptor of this opening.
pub fn try_lock(fd: i32) -> Result<()> {
    // SAFETY: no pointers are passed.
    unsafe { syscall!(libc::SYS_flock, fd, libc::LOCK_EX | libc::LOCK_NB) }.map(|_| ())
}

/// Gives it back.
pub fn unlock(fd: i32) {
    // SAFETY: no pointers are passed.
    let _ = unsafe { syscall!(libc::SYS_flock, fd, libc::LOCK_UN) };
}

/// Gives the memory of a file's stretch back; it reads as zero afterwards.
pub fn punch(fd: i32, at: u64, len: u64) -> Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no pointers are passed.
    unsafe { syscall!(libc::SYS_fallocate, fd, mode, at, len) }.map(|_| ())
}

/// Has the file an extended attribute of this name?
pub fn has_attribute(fd: i32, name: &core::ffi::CStr) -> bool {
    // SAFETY: `name` is NUL-terminated; no value is asked for.
    unsafe { syscall!(libc::SYS_fgetxattr, fd, name.as_ptr(), 0, 0) }.is_ok()
}

/// A kernel answer that is a descriptor or a flag word.
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // fits by the kernel's contract
pub fn as_fd(n: usize) -> i32 {
    n as i32
}

/// Writes `n` in decimal at the start of `out` (which must be long enough).
pub fn write_decimal(out: &mut [u8], n: u32) -> usize {
    let mut digits = [0u8; 10];
    let mut rest = n;
    let mut len = 0;
    loop {
        digits[len] = b'0' + (rest % 10) as u8;
        rest /= 10;
        len += 1;
        if rest == 0 {
            break;
        }
    }
    for i in 0..len.min(out.len()) {
        out[i] = digits[len - 1 - i];
    }
    len
}
