//! The handshake's messages: what this process says about itself, how it sends that, and what it keeps of the peer's.

use crate::faults;
use crate::protocol::group;
use crate::protocol::lane::copying;
use crate::protocol::wire::{Message, MessageKind};
use crate::state::conn::{Conn, Handshake};
use crate::state::process::{self, PROCESS};
use core::sync::atomic::Ordering;
use memlane_core::reason::Reason;
use memlane_sys::sock::{self, Received, Tuple, UnixName};
use memlane_sys::{Errno, fd};

/// The process's mailbox. It is made when it is first needed; −1: it cannot be made.
pub(super) fn mailbox() -> i32 {
    let have = PROCESS.mailbox.load(Ordering::Acquire);
    if have >= 0 {
        return have;
    }
    let Some(_held) = group::lock() else {
        return -1;
    };
    let have = PROCESS.mailbox.load(Ordering::Acquire);
    if have >= 0 {
        return have;
    }
    let Ok(own) = sock::unix_datagram(None) else {
        return -1;
    };
    let raw = process::hide(own);
    PROCESS.mailbox.store(raw, Ordering::Release);
    raw
}

/// Why a message was not sent.
pub(super) enum Sent {
    /// The mailbox is full, or not there at the moment.
    Later,
    /// It can never be sent, for this reason.
    Never(Reason),
}

pub(super) fn own_message(kind: MessageKind, conn: &Conn, tuple: &Tuple) -> Message {
    let mut m = Message::new(kind, *tuple);
    m.gid = PROCESS.gid.load(Ordering::Relaxed);
    m.boot = [
        PROCESS.boot[0].load(Ordering::Relaxed),
        PROCESS.boot[1].load(Ordering::Relaxed),
    ];
    m.id = process::id_of(conn);
    m.features = faults::features(copying::features());
    m
}

/// Sends a message with our proof, and a chunk if there is one.
pub(super) fn send(
    conn: &Conn,
    to: &UnixName,
    m: &Message,
    chunk: Option<i32>,
) -> Result<(), Sent> {
    let proof = fd::open_path_of(conn.fd.load(Ordering::Relaxed))
        .map_err(|_| Sent::Never(Reason::NO_DEVICE))?;
    let mut fds = [proof.raw(), -1, -1];
    let mut count = 1;
    if m.own_ring != 0 {
        fds[count] = conn.given_fd.load(Ordering::Relaxed);
        count += 1;
    }
    if let Some(chunk) = chunk {
        fds[count] = chunk;
        count += 1;
    }
    match sock::send_with_fds(mailbox(), to, &m.encode(), &fds[..count]) {
        Ok(()) => Ok(()),
        Err(Errno(
            libc::ECONNREFUSED | libc::EAGAIN | libc::ENOBUFS | libc::ENOENT | libc::ETOOMANYREFS,
        )) => Err(Sent::Later),
        Err(_) => Err(Sent::Never(Reason::NO_DEVICE)),
    }
}

/// Puts our DMB into a message, and the chunk's descriptor if the peer may not have it yet.
pub(super) fn tell_dmb(conn: &Conn, m: &mut Message, hs: &Handshake) {
    m.token = hs.rx_token;
    m.chunk = hs.rx_chunk - 1;
    m.slot = hs.rx_slot as u16;
    m.ring_size = process::config().ring;
    m.echo = hs.peer_id;
    m.own_ring = conn.given_size.load(Ordering::Relaxed);
    if m.own_ring != 0 {
        m.own_ring_at = conn.given_at.load(Ordering::Relaxed);
    }
}

/// Sends a message about a DMB of ours, with its chunk if the peer may not have it yet. Holds the groups' lock
/// meanwhile: another thread may hear that the peer has the chunk, and would close the descriptor, whose number might
/// then belong to another file.
pub(super) fn send_with_chunk(conn: &Conn, to: &UnixName, m: &Message) -> Result<(), Sent> {
    let mut locked = group::lock();
    let file = locked
        .as_mut()
        .and_then(|locked| group::chunk_fd(locked, m.chunk));
    send(conn, to, m, file)
}

pub(super) fn remember_peer(hs: &mut Handshake, m: &Message, got: &Received) {
    hs.peer_id = m.id;
    hs.peer_pid = got.cred.pid;
    hs.peer_uid = got.cred.uid;
    hs.peer_features = m.features;
    if let Some(from) = &got.from {
        let name = from.as_bytes();
        hs.peer_name[..name.len()].copy_from_slice(name);
        hs.peer_name_len = name.len();
    }
}
