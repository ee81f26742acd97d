//! Why a connection ends.

use super::frame::FrameError;
use crate::error::{EOPNOTSUPP, PathError, RdmaError, TlsError};
use memlane_sys::Errno;
use memlane_verbs::{Status, VerbsError};
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
    /// The memory that this machine shares is not the server's.
    OtherMemory,
    /// There is no memory that this machine shares.
    NoMemory,
    /// The server shares no memory, though it was asked to.
    NotShared,
    /// There is no encryption, or it has ended.
    Tls(TlsError),
    /// A work request of the RDMA device failed.
    Device(Status),
    /// There is no RDMA device, or it may not have the memory.
    Rdma(RdmaError),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Ended => f.write_str("the peer closed the connection"),
            LinkError::Os(errno) => write!(f, "the connection failed: {errno}"),
            LinkError::Frame(error) => write!(f, "{error}"),
            LinkError::Clogged => f.write_str("the peer does not read"),
            LinkError::Queue => f.write_str("shared queues are not as they must be"),
            LinkError::OtherMemory => f.write_str("the memory is not the server's"),
            LinkError::NoMemory => f.write_str("no memory is shared with other machines"),
            LinkError::NotShared => f.write_str("the server shares no memory"),
            LinkError::Tls(error) => write!(f, "{error}"),
            LinkError::Device(status) => write!(f, "{status}"),
            LinkError::Rdma(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for LinkError {}

impl From<Errno> for LinkError {
    fn from(errno: Errno) -> Self {
        LinkError::Os(errno)
    }
}

impl From<FrameError> for LinkError {
    fn from(error: FrameError) -> Self {
        LinkError::Frame(error)
    }
}

impl From<VerbsError> for LinkError {
    fn from(error: VerbsError) -> Self {
        match error {
            VerbsError::Missing(_) => LinkError::Rdma(RdmaError::Missing),
            VerbsError::Failed {
                function: "ibv_reg_mr_iova",
                errno: libc::ENOMEM | libc::EPERM,
            } => LinkError::Rdma(RdmaError::MemoryLock),
            VerbsError::Failed { errno, .. } => LinkError::Os(Errno(errno)),
        }
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
            LinkError::OtherMemory => PathError::OtherMemory,
            LinkError::NoMemory => PathError::NoSharedMemory,
            LinkError::NotShared => PathError::Refused(EOPNOTSUPP),
            LinkError::Tls(error) => PathError::Tls(error),
            LinkError::Device(status) => PathError::Rdma(RdmaError::Completion(status.number())),
            LinkError::Rdma(error) => PathError::Rdma(error),
        }
    }
}
