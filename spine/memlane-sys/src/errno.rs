//! Kernel error numbers as a type.

use core::fmt;

/// A kernel error number (positive, as in `errno(3)`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// What every call of this crate returns.
pub type Result<T> = core::result::Result<T, Errno>;

impl Errno {
    /// Would block / try again.
    pub const AGAIN: Errno = Errno(libc::EAGAIN);
    /// Interrupted by a signal handler.
    pub const INTR: Errno = Errno(libc::EINTR);
    /// Invalid argument.
    pub const INVAL: Errno = Errno(libc::EINVAL);
    /// No such file, name or entry.
    pub const NOENT: Errno = Errno(libc::ENOENT);
    /// Not supported here.
    pub const NOTSUP: Errno = Errno(libc::EOPNOTSUPP);
    /// Malformed message from the kernel or a peer.
    pub const PROTO: Errno = Errno(libc::EPROTO);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl core::error::Error for Errno {}

#[cfg(feature = "std")]
impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        std::io::Error::from_raw_os_error(errno.0)
    }
}
