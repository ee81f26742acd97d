//! What can go wrong.

use core::ffi::{CStr, c_int};
use core::fmt;
use std::io;

/// Why something could not be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VerbsError {
    /// This machine lacks something; what, and what to do about it.
    Missing(String),
    /// A function failed.
    Failed {
        /// Its name.
        function: &'static str,
        /// Linux's error number.
        errno: i32,
    },
}

impl VerbsError {
    /// For a function that has just set `errno`.
    pub(crate) fn last(function: &'static str) -> VerbsError {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        VerbsError::Failed { function, errno }
    }

    /// Linux's error number; `ENODEV` for what is missing.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            VerbsError::Missing(_) => libc::ENODEV,
            VerbsError::Failed { errno, .. } => *errno,
        }
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VerbsError::Missing(what) => f.write_str(what),
            VerbsError::Failed { function, errno } => {
                write!(f, "{function}: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl core::error::Error for VerbsError {}

impl From<VerbsError> for io::Error {
    fn from(error: VerbsError) -> io::Error {
        match error {
            VerbsError::Missing(_) => io::Error::new(io::ErrorKind::Unsupported, error),
            VerbsError::Failed { errno, .. } => io::Error::from_raw_os_error(errno),
        }
    }
}

/// How a work request ended: `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub(crate) c_int);

impl Status {
    /// `IBV_WC_WR_FLUSH_ERR`: the queue pair was in its error state already.
    pub const FLUSHED: Status = Status(5);
    /// `IBV_WC_REM_ACCESS_ERR`: the peer has no such memory for us.
    pub const REMOTE_ACCESS: Status = Status(10);
    /// `IBV_WC_RETRY_EXC_ERR`: the peer's device does not answer.
    pub const NO_ANSWER: Status = Status(12);
    /// `IBV_WC_RNR_RETRY_EXC_ERR`: the peer has posted no receive for too long.
    pub const NOT_READY: Status = Status(13);

    /// The number.
    #[must_use]
    pub fn number(self) -> i32 {
        self.0
    }

    /// One with this number; 0 is no error.
    #[must_use]
    pub fn of(number: i32) -> Status {
        Status(number)
    }
}

/// In the order of `enum ibv_wc_status`.
const WORDS: [&str; 22] = [
    "success",
    "a message longer than the receive",
    "an operation that this queue pair does not allow",
    "local end-to-end context operation error",
    "memory of this side that is not registered",
    "flushed",
    "memory window bind error",
    "a response that was not expected",
    "local access error",
    "the peer's device refused the request",
    "the peer's device refused the memory's key",
    "the peer's device could not complete the request",
    "the peer's device does not answer",
    "the peer has no receive posted",
    "local reliable datagram domain violation",
    "invalid read request",
    "the peer aborted",
    "invalid end-to-end context number",
    "invalid end-to-end context state",
    "fatal error of the device",
    "response time-out",
    "general error of the device",
];

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = usize::try_from(self.0).ok().and_then(|at| WORDS.get(at));
        match words {
            Some(words) => f.write_str(words),
            None => write!(f, "completion status {}", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A string of the library's.
///
/// # Safety
/// It is null, or ends with a zero byte and is not changed.
pub(crate) unsafe fn text(bytes: *const core::ffi::c_char) -> String {
    if bytes.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(bytes) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_words_for_people() {
        assert_eq!(
            Status::NO_ANSWER.to_string(),
            "the peer's device does not answer"
        );
        assert_eq!(Status(99).to_string(), "completion status 99");
    }

    #[test]
    fn what_is_missing_is_said_as_it_is() {
        let error = VerbsError::Missing("no RDMA: install rdma-core".into());
        assert_eq!(
            io::Error::from(error).to_string(),
            "no RDMA: install rdma-core"
        );
    }
}
