//! One connection over a stream: TCP, or a unix socket of the same host.

use super::frame::FrameError;
use super::inflow::{Granted, Inflow, Received};
use super::outflow::Outflow;
use crate::error::PathError;
use memlane_sys::{Errno, iov};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkError {
    /// The peer closed it.
    Ended,
    /// The kernel says so.
    Os(Errno),
    /// The peer sent what is no frame, or none for here.
    Frame(FrameError),
    /// The peer does not read what it asks for.
    Clogged,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Ended => f.write_str("the peer closed the connection"),
            LinkError::Os(errno) => write!(f, "the connection failed: {errno}"),
            LinkError::Frame(error) => write!(f, "{error}"),
            LinkError::Clogged => f.write_str("the peer does not read"),
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
    pub(super) fn for_path(self) -> PathError {
        match self {
            LinkError::Ended | LinkError::Os(_) => PathError::Closed,
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
        }
    }
}

/// Reads of one link in one go: after that, it is the others' turn.
const TURN: usize = 16;

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    inflow: Inflow,
    /// What is to be sent.
    pub(super) out: Outflow,
    /// The last read left nothing.
    dry: bool,
    /// Reads since [`turn`](Self::turn).
    reads: usize,
}

impl Link {
    /// Over a non-blocking stream socket; takes messages of up to `most` bytes.
    #[must_use]
    pub(super) fn new(socket: OwnedFd, most: usize) -> Link {
        Link {
            socket,
            inflow: Inflow::new(most),
            out: Outflow::default(),
            dry: false,
            reads: 0,
        }
    }

    /// Begins a turn: something may have come.
    pub(super) fn turn(&mut self) {
        self.dry = false;
        self.reads = 0;
    }

    /// The next thing that has come; reads when it must. `None`: nothing more is there, or this turn is over
    /// (what is left makes the socket readable, so nothing is forgotten).
    pub(super) fn next(
        &mut self,
        granted: &mut impl Granted,
    ) -> Result<Option<Received>, LinkError> {
        loop {
            if let Some(received) = self.inflow.next(granted)? {
                return Ok(Some(received));
            }
            if self.dry || self.reads >= TURN {
                return Ok(None);
            }
            let room = self.inflow.room();
            let pieces = if room[0].len == 0 { &room[1..] } else { &room };
            let wanted: usize = pieces.iter().map(|piece| piece.len).sum();
            // SAFETY: the buffer is ours, and the window stays mapped; nothing in either is borrowed.
            match unsafe { iov::receive(self.socket.as_raw_fd(), pieces) } {
                Ok(0) => return Err(LinkError::Ended),
                Ok(count) => {
                    self.reads += 1;
                    // A short read has emptied the socket: to ask again would only cost a call.
                    self.dry = count < wanted;
                    self.inflow.came(count);
                }
                Err(Errno::AGAIN) => self.dry = true,
                Err(errno) => return Err(LinkError::Os(errno)),
            }
        }
    }

    /// Sends what the stream takes. Is everything out?
    pub(super) fn flush(&mut self) -> Result<bool, LinkError> {
        let sent = self.out.flush(self.socket.as_raw_fd());
        sent.map_err(LinkError::Os)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
