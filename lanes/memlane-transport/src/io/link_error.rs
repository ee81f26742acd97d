//! Why a connection ends.

use super::frame::FrameError;
use crate::error::{PathError, TlsError};
use memlane_sys::Errno;
use std::fmt;

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::io) enum LinkError {
    /// The peer closed it.
    Ended,
    /// The kernel says so.
    Os(Errno),
    /// The peer sent what is no frame, or none for here.
    Frame(FrameError),
    /// The peer does not read what it asks for.
    Clogged,
    /// What both ends share is not as it must be.
    Queue,
    /// There is no encryption, or it has ended.
    Tls(TlsError),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Ended => f.write_str("the peer closed the connection"),
            LinkError::Os(errno) => write!(f, "the connection failed: {errno}"),
            LinkError::Frame(error) => write!(f, "{error}"),
            LinkError::Clogged => f.write_str("the peer does not read"),
            LinkError::Queue => f.write_str("shared queues are not as they must be"),
            LinkError::Tls(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for LinkError {}

impl From<FrameError> for LinkError {
    fn from(error: FrameError) -> Self {
        LinkError::Frame(error)
    }
}

impl LinkError {
    /// How the engines call it.
    #[must_use]
    pub(in crate::io) fn for_path(self) -> PathError {
        match self {
            LinkError::Ended => PathError::Closed,
            LinkError::Os(errno) => PathError::Os(errno.0),
            LinkError::Frame(FrameError::NotGranted) => {
                PathError::Misbehaved("a write to memory that was not granted")
            }
            LinkError::Frame(FrameError::TooLong(_)) => {
                PathError::Misbehaved("a frame that is too long")
            }
            LinkError::Frame(FrameError::Magic | FrameError::Version(_)) => {
                PathError::Misbehaved("another protocol, or another version of it")
            }
            LinkError::Frame(_) => PathError::Misbehaved("bytes that are no frame"),
            LinkError::Clogged => PathError::Misbehaved("it does not read"),
            LinkError::Queue => PathError::Misbehaved("shared queues are not as they must be"),
            LinkError::Tls(error) => PathError::Tls(error),
        }
    }
}
