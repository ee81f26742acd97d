//! Why a volume is not open, in words that say what to do next.

use crate::wire::{Busy, WireError};
use core::fmt;
use memlane_transport::error::RequestError;

/// Why a volume could not be opened, or not be opened again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// The server has no such volume.
    NotFound,
    /// Another client writes to the volume.
    InUse,
    /// Another client writes it, and the server tells which one.
    Held(Busy),
    /// It was taken from a client, whose last requests are not over: soon.
    Ending,
    /// Another client has taken it from this one, or the server's owner has.
    Taken,
    /// The server cannot take a volume from a client.
    CannotTakeOver,
    /// The server does not let this client.
    NotPermitted,
    /// It can only be read.
    ReadOnly,
    /// The name is none that a volume may have.
    RefusedName,
    /// There is something of this name, but not a volume.
    NotAVolume,
    /// The server speaks another version of the protocol.
    OtherVersion(u8),
    /// No answer within the limit.
    TimedOut,
    /// There is no path to the server, and the session is set not to wait for one.
    NoPath,
    /// The session or the client is closed.
    Closed,
    /// This client has it open already.
    AlreadyOpen,
    /// The server's answer means nothing.
    Nonsense(WireError),
    /// The volume that was opened again is not as it was.
    Changed(Change),
    /// The server has an error of its own: its number.
    Server(u16),
}

/// What must not change while a volume is open, because its user relies on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It has fewer bytes.
    Smaller {
        /// Before.
        was: u64,
        /// Now.
        is: u64,
    },
    /// Other blocks.
    Block {
        /// Before.
        was: u32,
        /// Now.
        is: u32,
    },
    /// Requests must be shorter than before.
    MaxIo {
        /// Before.
        was: u32,
        /// Now.
        is: u32,
    },
    /// Now it can only be read.
    ReadOnly,
    /// The volume has a volatile cache now, and its user knows it as one without.
    Cached,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Smaller { was, is } => write!(f, "it has {is} bytes and had {was}"),
            Change::Block { was, is } => write!(f, "its blocks have {is} bytes and had {was}"),
            Change::MaxIo { was, is } => {
                write!(f, "requests may have {is} bytes, and had up to {was}")
            }
            Change::ReadOnly => f.write_str("it can only be read now"),
            Change::Cached => f.write_str("it has a volatile cache now, and had none"),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NotFound => f.write_str(
                "the server has no such volume: check the name (a path under the server's root)",
            ),
            OpenError::InUse => f.write_str(
                "somebody else writes to it: end that mapping, or open it with access ro or migration",
            ),
            OpenError::Held(busy) => held(f, busy),
            OpenError::Ending => f.write_str(
                "it was taken from another client, whose last requests are not over: try again soon",
            ),
            OpenError::Taken => f.write_str(
                "another client has taken it over while this one was not heard of, or the server's owner has released \
                 it: what was not written before is lost; unmap it, and map it anew when nobody else uses it",
            ),
            OpenError::CannotTakeOver => f.write_str(
                "the server cannot take it from another client: there, `memlane vol release` does",
            ),
            OpenError::NotPermitted => f.write_str(
                "the server does not permit it: check its file's owner and mode, what the server was \
                 started with, and (a mainline server says it so) that nobody else writes to it",
            ),
            OpenError::ReadOnly => f.write_str("it can only be read: open it with access ro"),
            OpenError::RefusedName => f.write_str(
                "the name is refused: 1 to 254 bytes of text, no '..', nothing outside the server's root",
            ),
            OpenError::NotAVolume => f.write_str(
                "it is not a volume: name a regular file, or a block device if the server serves devices",
            ),
            OpenError::OtherVersion(version) => write!(
                f,
                "the server speaks version {version} of RNBD, this client {}: update the older one",
                crate::wire::VERSION
            ),
            OpenError::TimedOut => f.write_str(
                "the server did not answer in time: check that it runs and that a path to it is up",
            ),
            OpenError::NoPath => f.write_str(
                "no path to the server: check its address, or tell the session to queue while there is none",
            ),
            OpenError::Closed => f.write_str("the session is closed: open a new one"),
            OpenError::AlreadyOpen => {
                f.write_str("this client has it open already: use that one, or close it first")
            }
            OpenError::Nonsense(what) => write!(
                f,
                "the server's answer means nothing ({what}): is that a memlane server of this version?"
            ),
            OpenError::Changed(what) => write!(
                f,
                "it is not the volume that it was: {what}; put it right at the server, or unmap it and map it anew"
            ),
            OpenError::Server(errno) => write!(
                f,
                "the server failed: {} ; see its log",
                std::io::Error::from_raw_os_error(i32::from(*errno))
            ),
        }
    }
}

/// The session that writes the volume, and what the user can do about it.
fn held(f: &mut fmt::Formatter<'_>, busy: &Busy) -> fmt::Result {
    write!(f, "somebody else writes to it: session {}, ", busy.name())?;
    match busy.alive {
        true => {
            f.write_str("which is there: end that mapping, or open it with access ro or migration")
        }
        false => write!(
            f,
            "not heard of for {} s: if that client is gone for good, take the volume over (`memlane map --take-over`)",
            busy.silent
        ),
    }
}

impl core::error::Error for OpenError {}

impl From<WireError> for OpenError {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Version(version) => OpenError::OtherVersion(version),
            WireError::Name => OpenError::RefusedName,
            other => OpenError::Nonsense(other),
        }
    }
}

/// Why a question to the server has no answer.
pub(super) fn of_request(error: RequestError) -> OpenError {
    match error {
        RequestError::Remote(errno) => of_errno(errno),
        RequestError::TimedOut | RequestError::OutcomeUnknown | RequestError::Aborted => {
            OpenError::TimedOut
        }
        RequestError::NoPath => OpenError::NoPath,
        // A name is refused before; these chunks take nothing.
        RequestError::TooLong | RequestError::BeyondCpu => {
            OpenError::Nonsense(WireError::Field("max_io_size"))
        }
        RequestError::Closed => OpenError::Closed,
    }
}

fn of_errno(errno: u16) -> OpenError {
    match i32::from(errno) {
        libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::ENOMEDIUM => OpenError::NotFound,
        libc::EBUSY | libc::ETXTBSY => OpenError::InUse,
        libc::EACCES | libc::EPERM => OpenError::NotPermitted,
        libc::EROFS => OpenError::ReadOnly,
        libc::EINVAL | libc::ENAMETOOLONG | libc::EILSEQ | libc::EXDEV | libc::ELOOP => {
            OpenError::RefusedName
        }
        libc::EISDIR | libc::ENOTBLK | libc::ENOTDIR | libc::EMEDIUMTYPE => OpenError::NotAVolume,
        libc::EAGAIN => OpenError::Ending,
        libc::ESTALE => OpenError::Taken,
        libc::ETIMEDOUT => OpenError::TimedOut,
        _ => OpenError::Server(errno),
    }
}
