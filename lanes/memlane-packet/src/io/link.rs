//! A link's socket, once both ends are attached: how each learns that the other is gone, and why.

use super::socket::{receive, send};
use crate::engine::grant::Mode;
use crate::error::{AttachError, Detach};
use crate::offload::Offloads;
use crate::wire::Message;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// What holds both ends together, beside the queues. Dropping it says goodbye.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    mode: Mode,
    offloads: Offloads,
    told: bool,
}

impl Link {
    pub(super) fn new(socket: OwnedFd, mode: Mode, offloads: Offloads) -> Link {
        Link {
            socket,
            mode,
            offloads,
            told: false,
        }
    }

    /// How the back gets at packets.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What was agreed on.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Has the other side said or shown that it is gone? A queue that finds it gone can ask here for its reason.
    pub fn ended(&self) -> Option<Detach> {
        match receive(&self.socket, Instant::now()) {
            Ok((Message::Detach(code), _)) => Some(Detach::PeerDetached(code)),
            Err(AttachError::Timeout) => None,
            // Closed, or words where silence was agreed on.
            Ok(_) | Err(_) => Some(Detach::PeerGone),
        }
    }

    /// Tells the other side why this one ends.
    pub fn close(mut self, why: &Detach) {
        self.tell(why.code());
    }

    fn tell(&mut self, code: u16) {
        if !self.told {
            self.told = true;
            // If it cannot be told, the socket's end tells it.
            let _ = send(&self.socket, &Message::Detach(code), &[]);
        }
    }
}

impl AsFd for Link {
    /// Readable when the other side ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tell(Detach::Closed.code());
    }
}
