//! memif's socket, once both sides are connected: how each learns that the other is gone, and why.

use super::wire::{LEN, Message, NAME, Text};
use memlane_packet::error::Detach;
use memlane_packet::io::socket::{errno, send_bytes};
use rustix::net::{RecvFlags, recv};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What holds both ends together, beside the queues. Dropping it says goodbye.
#[derive(Debug)]
pub struct MemifLink {
    socket: Arc<OwnedFd>,
    peer: Text<NAME>,
    told: bool,
}

impl MemifLink {
    pub(super) fn new(socket: &Arc<OwnedFd>, peer: Text<NAME>) -> MemifLink {
        MemifLink {
            socket: Arc::clone(socket),
            peer,
            told: false,
        }
    }

    /// What the other side calls its interface.
    pub fn peer(&self) -> String {
        self.peer.to_string()
    }

    /// Has the other side said or shown that it is gone?
    pub fn ended(&self) -> Option<Detach> {
        look(&self.socket).map(|(why, _)| why)
    }

    /// What it said of that.
    pub fn reason(&self) -> Option<String> {
        look(&self.socket)?.1
    }

    /// Tells the other side why this one ends.
    pub fn close(mut self, why: &Detach) {
        self.tell(why);
    }

    fn tell(&mut self, why: &Detach) {
        if !self.told {
            self.told = true;
            disconnect(&self.socket, why.code().into(), &why.to_string());
        }
    }
}

impl AsFd for MemifLink {
    /// Readable when the other side ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for MemifLink {
    fn drop(&mut self) {
        self.tell(&Detach::Closed);
    }
}

pub(super) fn disconnect(socket: &OwnedFd, code: u32, reason: &str) {
    let reason = Text::new(reason);
    let bytes = Message::Disconnect { code, reason }.encode();
    // If it cannot be told, the socket's end tells it.
    let _ = send_bytes(socket, &bytes, &[]);
}

/// Is the other side gone? What it said stays in the socket, for all queues to see.
pub(super) fn look(socket: &OwnedFd) -> Option<(Detach, Option<String>)> {
    let mut buffer = [0; LEN + 1];
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    match recv(socket, &mut buffer[..], flags) {
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
        Err(rustix::io::Errno::CONNRESET) | Ok((0, _)) => Some((Detach::PeerGone, None)),
        Err(error) => Some((Detach::Socket(errno(error)), None)),
        Ok((n, _)) => Some(match buffer.get(..n).map(Message::decode) {
            Some(Ok(Message::Disconnect { code, reason })) => {
                let code = u16::try_from(code).unwrap_or(u16::MAX);
                (Detach::PeerDetached(code), Some(reason.to_string()))
            }
            // Words where silence was agreed on.
            _ => (Detach::PeerGone, None),
        }),
    }
}
