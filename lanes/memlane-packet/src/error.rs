//! Why a link ends, and why none comes to be.

use crate::engine::grant::GrantError;
use crate::ring;
use crate::wire::WireError;
use core::fmt;
use memlane_sys::Errno;

/// One of a queue's two rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ring {
    /// From front to back.
    Tx,
    /// From back to front.
    Rx,
}

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ring::Tx => "tx",
            Ring::Rx => "rx",
        })
    }
}

/// Why a link, or one of its queues, has ended. It is never taken up again: a new link is a new attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detach {
    /// The other side published an index that cannot be.
    Index(Ring, ring::Misbehaved),
    /// A request or response has a value that it must not have.
    Slot(Ring, &'static str),
    /// A packet's slots are not all there, or too many.
    Chain(Ring, &'static str),
    /// A grant that cannot be used.
    Grant(u32, GrantError),
    /// Granted memory could not be mapped, read or written by the kernel's word.
    Memory(Errno),
    /// The other process is gone, or has closed its socket.
    PeerGone,
    /// The other side said that it detaches; its reason's number.
    PeerDetached(u16),
    /// We closed.
    Closed,
    /// The socket or a doorbell failed.
    Socket(Errno),
}

impl Detach {
    /// For `map_err`: what is wrong with the grant `gref`.
    pub(crate) fn of_grant(gref: u32) -> impl Fn(GrantError) -> Detach {
        move |why| Detach::Grant(gref, why)
    }

    /// The number that is told to the other side: 0 an ordinary end, 1 its bytes, 2 our own trouble.
    pub fn code(&self) -> u16 {
        match self {
            Detach::Closed | Detach::PeerGone | Detach::PeerDetached(_) => 0,
            Detach::Index(..) | Detach::Slot(..) | Detach::Chain(..) | Detach::Grant(..) => 1,
            Detach::Memory(_) | Detach::Socket(_) => 2,
        }
    }

    /// Did the other side do what it must not?
    pub fn is_hostile(&self) -> bool {
        self.code() == 1
    }
}

impl fmt::Display for Detach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Detach::Index(ring, wrong) => write!(
                f,
                "{ring} ring: the other side says {}, which is not in {}..={}",
                wrong.index, wrong.from, wrong.to
            ),
            Detach::Slot(ring, what) => write!(f, "{ring} ring: {what}"),
            Detach::Chain(ring, what) => write!(f, "{ring} ring: {what}"),
            Detach::Grant(gref, why) => write!(f, "grant {gref}: {why}"),
            Detach::Memory(errno) => write!(f, "granted memory: {errno}"),
            Detach::PeerGone => f.write_str("the other process is gone"),
            Detach::PeerDetached(0) => f.write_str("the other side has closed"),
            Detach::PeerDetached(1) => {
                f.write_str("the other side detached because of what we wrote")
            }
            Detach::PeerDetached(code) => {
                write!(f, "the other side detached, for its reason {code}")
            }
            Detach::Closed => f.write_str("closed"),
            Detach::Socket(errno) => write!(f, "socket: {errno}"),
        }
    }
}

impl core::error::Error for Detach {}

/// Why no link came to be.
#[derive(Debug)]
pub enum AttachError {
    /// The socket: nobody listens, no permission, closed in the middle.
    Socket(Errno),
    /// No answer in time.
    Timeout,
    /// What the other side said.
    Wire(WireError),
    /// Descriptors are missing, too many, or not what they must be.
    Descriptors(&'static str),
    /// Memory: ours could not be made, or theirs not be taken.
    Memory(Errno),
    /// The back does not do what was asked for.
    Refused(u16),
    /// What we ask for is not among what the back offers.
    NotOffered(&'static str),
    /// The other end of a name that anybody could take belongs to this user, who is neither ours nor root.
    Stranger(u32),
    /// Our own settings.
    Config(&'static str),
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Socket(errno) => {
                write!(f, "socket: {errno}: does the back run, and listen there?")
            }
            AttachError::Timeout => f.write_str("the other side does not answer"),
            AttachError::Wire(error) => write!(f, "{error}"),
            AttachError::Descriptors(what) => write!(f, "descriptors: {what}"),
            AttachError::Memory(errno) => write!(f, "memory: {errno}"),
            AttachError::Refused(4) => f.write_str(
                "the back has more queues: start both sides with the same number of them",
            ),
            AttachError::Refused(3) => f.write_str("the back could not map our memory"),
            AttachError::Refused(code) => write!(f, "the back refused (code {code})"),
            AttachError::NotOffered(what) => write!(f, "the back does not offer {what}"),
            AttachError::Stranger(uid) => write!(
                f,
                "the other side is user {uid}: use a path, whose permissions say who may, or run both as one user"
            ),
            AttachError::Config(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for AttachError {}

impl From<WireError> for AttachError {
    fn from(error: WireError) -> Self {
        AttachError::Wire(error)
    }
}
