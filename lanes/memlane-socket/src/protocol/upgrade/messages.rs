//! The handshake's messages: what this process says about itself, how it sends that, and what it keeps of the peer's.

use crate::faults;
use crate::protocol::board;
use crate::protocol::group;
use crate::protocol::lane::copying;
use crate::protocol::wire::{self, Message, MessageKind};
use crate::state::conn::{Conn, Handshake};
use crate::state::process::{self, PROCESS};
use core::sync::atomic::Ordering;
use memlane_core::reason::Reason;
use memlane_sys::Errno;
use memlane_sys::fd::{self, Fd};
use memlane_sys::sock::{self, Received, Tuple, UnixName};

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

/// A connection waits for mail or an answer no more.
pub(super) fn stop_waiting() {
    PROCESS.waiting.fetch_sub(1, Ordering::Relaxed);
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
    m.features =
        faults::features(copying::features() | wire::KEEPS_LIFE_LINE | wire::HEARS_LIFE_LINE);
    m
}

/// Where a message goes.
pub(super) enum To {
    /// A rendezvous name or a mailbox; our proof goes with it.
    Name(UnixName),
    /// The life line of this link group; our proof goes with it.
    Line(u32),
    /// The channel that the agent made for this connection, which is the proof.
    Channel(i32),
}

/// Where the peer of this handshake is reached.
pub(super) fn peer_of(hs: &Handshake) -> Result<To, Reason> {
    if hs.by_channel() {
        return Ok(To::Channel(hs.channel));
    }
    if hs.line != 0 {
        return Ok(To::Line(hs.line - 1));
    }
    UnixName::abstract_name(&hs.peer_name[..hs.peer_name_len])
        .map(To::Name)
        .map_err(|_| Reason::INTERNAL)
}

/// Sends a message, with our proof if it needs one, and a chunk, its bell and a life line if there are any.
pub(super) fn send(conn: &Conn, to: &To, m: &Message, more: [Option<i32>; 3]) -> Result<(), Sent> {
    let mut locked = match to {
        To::Line(_) => group::lock(),
        To::Name(_) | To::Channel(_) => None,
    };
    send_locked(conn, to, m, more, locked.as_mut())
}

/// [`send`], with the groups' lock held if the message goes over a life line.
fn send_locked(
    conn: &Conn,
    to: &To,
    m: &Message,
    [chunk, bell, life_line]: [Option<i32>; 3],
    mut locked: Option<&mut group::Locked<'_>>,
) -> Result<(), Sent> {
    if let (To::Line(group), Some(locked)) = (to, &mut locked)
        && !group::line(locked, *group).has_room()
    {
        return Err(Sent::Later);
    }
    let proof = match to {
        To::Name(_) | To::Line(_) => Some(
            fd::open_path_of(conn.fd.load(Ordering::Relaxed))
                .map_err(|_| Sent::Never(Reason::NO_DEVICE))?,
        ),
        To::Channel(_) => None,
    };
    let own_ring = (m.own_ring != 0).then(|| conn.given_fd.load(Ordering::Relaxed));
    let proof = proof.as_ref().map(Fd::raw);
    let all = [proof, own_ring, chunk, bell, life_line];
    let (mut fds, mut count) = ([-1; sock::MAX_FDS], 0);
    for fd in all.into_iter().flatten() {
        fds[count] = fd;
        count += 1;
    }
    let sent = match (to, locked) {
        (To::Name(name), _) => sock::send_with_fds(mailbox(), name, &m.encode(), &fds[..count]),
        (To::Channel(fd), _) => sock::send_to_peer(*fd, &m.encode(), &fds[..count]),
        (To::Line(group), Some(locked)) => {
            group::line(locked, *group).say(&m.encode(), &fds[..count])
        }
        (To::Line(_), None) => Err(Errno::AGAIN), // a signal handler has interrupted this thread
    };
    match sent {
        Ok(()) => Ok(()),
        Err(Errno(
            libc::ECONNREFUSED | libc::EAGAIN | libc::ENOBUFS | libc::ENOENT | libc::ETOOMANYREFS,
        )) => Err(Sent::Later),
        // The other end of the channel, or of the life line, is closed: the peer has closed the connection.
        Err(Errno(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN)) => {
            Err(Sent::Never(Reason::CLOSING))
        }
        Err(_) => Err(Sent::Never(Reason::NO_DEVICE)),
    }
}

/// Puts our DMB into a message, and the chunk's descriptor if the peer may not have it yet.
pub(super) fn tell_dmb(conn: &Conn, m: &mut Message, hs: &Handshake) {
    m.token = hs.rx_token;
    m.chunk = board::name_of(hs.rx_chunk - 1);
    m.slot = hs.rx_slot as u16;
    m.ring_size = group::own_ring_size(hs.rx_chunk - 1);
    m.echo = hs.peer_id;
    m.own_ring = conn.given_size.load(Ordering::Relaxed);
    if m.own_ring != 0 {
        m.own_ring_at = conn.given_at.load(Ordering::Relaxed);
    }
}

/// Sends a message about a DMB of ours, with its chunk if the peer may not have it yet, and a life line to the peer if there
/// is none. Holds the groups' lock meanwhile: another thread may hear that the peer has the chunk, and would close the
/// descriptor, whose number might then belong to another file.
pub(super) fn send_with_chunk(
    conn: &Conn,
    hs: &Handshake,
    to: &To,
    m: &mut Message,
) -> Result<(), Sent> {
    let mut locked = group::lock();
    let [chunk, bell] = locked.as_mut().map_or([None; 2], |locked| {
        group::chunk_fds(locked, hs.rx_chunk - 1)
    });
    if bell.is_some() {
        m.features |= wire::BELL_COMES;
    }
    // A process that talks to itself needs none.
    let keeps = m.kind == MessageKind::Accept
        && hs.peer_features & wire::KEEPS_LIFE_LINE != 0
        && hs.peer_gid != m.gid;
    let line = locked
        .as_mut()
        .filter(|_| keeps)
        .and_then(|locked| group::new_life_line(locked, hs.group - 1));
    let Some((ours, theirs)) = line else {
        return send_locked(conn, to, m, [chunk, bell, None], locked.as_mut());
    };
    m.features |= wire::LIFE_LINE_COMES;
    let more = [chunk, bell, Some(theirs.raw())];
    send_locked(conn, to, m, more, locked.as_mut())?;
    if let Some(locked) = &mut locked {
        let lower = [true, m.gid < hs.peer_gid];
        group::keep_life_line(locked, hs.group - 1, ours, lower, speaks_with(hs));
    }
    Ok(())
}

/// Keeps the life line that an Accept brings.
pub(super) fn take_life_line(hs: &Handshake, m: &Message, got: &mut Received) {
    if m.features & wire::LIFE_LINE_COMES == 0 {
        return;
    }
    let last = got.fds.iter_mut().rev().find_map(Option::take);
    if let (Some(end), Some(mut locked)) = (last, group::lock()) {
        let own = PROCESS.gid.load(Ordering::Relaxed);
        let lower = [false, m.gid < own];
        group::keep_life_line(&mut locked, hs.group - 1, end, lower, speaks_with(hs));
    }
}

/// What the peer says that it can do over a life line; `None`: the agent has introduced it, and its proofs are channels.
fn speaks_with(hs: &Handshake) -> Option<u8> {
    (!hs.by_channel()).then_some(hs.peer_features)
}

/// From now on the handshake goes over the life line, if there is one that the peer hears for certain.
pub(super) fn prefer_line(hs: &mut Handshake) {
    if hs.line != 0 || hs.by_channel() {
        return;
    }
    let is_settled = |mut locked| group::line(&mut locked, hs.group - 1).is_settled();
    if group::lock().is_some_and(is_settled) {
        hs.line = hs.group;
    }
}

/// Sends a message that proves nothing and brings nothing. It may get lost.
pub(super) fn tell(to: &To, m: &Message) {
    let bytes = m.encode();
    let _ = match to {
        To::Name(to) => sock::send_with_fds(mailbox(), to, &bytes, &[]),
        To::Channel(to) => sock::send_to_peer(*to, &bytes, &[]),
        To::Line(group) => group::lock().map_or(Ok(()), |mut locked| {
            group::line(&mut locked, *group).say(&bytes, &[])
        }),
    };
}

/// Where a message has come from, to answer to.
pub(super) fn sender_of(got: &Received, line: Option<u32>) -> Option<To> {
    line.map(To::Line).or(got.from.map(To::Name))
}

/// Keeps who the peer is and where it is reached. `line`: the group over whose life line the message has come.
pub(super) fn remember_peer(hs: &mut Handshake, m: &Message, got: &Received, line: Option<u32>) {
    hs.peer_id = m.id;
    hs.peer_gid = m.gid;
    hs.peer_pid = got.cred.pid;
    hs.peer_uid = got.cred.uid;
    if hs.is_across {
        hs.peer_pid = 0; // the agent's, which has passed the message on
    }
    hs.peer_features = m.features;
    hs.line = line.map_or(0, |group| group + 1);
    if let Some(from) = &got.from {
        let name = from.as_bytes();
        hs.peer_name[..name.len()].copy_from_slice(name);
        hs.peer_name_len = name.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::lane::looped::looped;

    #[test]
    fn a_peer_that_closes_its_channel_is_closing() {
        let l = looped();
        let fd = l.conn.fd.load(Ordering::Relaxed);
        let (local, remote) = (
            sock::local_addr(fd).unwrap(),
            sock::remote_addr(fd).unwrap(),
        );
        let proposal = own_message(MessageKind::Proposal, &l.conn, &Tuple { local, remote });
        let (ours, theirs) = sock::unix_channel().unwrap();
        let to = To::Channel(ours.raw());
        assert!(send(&l.conn, &to, &proposal, [None; 3]).is_ok());
        drop(theirs);
        // The first error says that the message was not read, the second that nobody is there.
        for _ in 0..2 {
            let sent = send(&l.conn, &to, &proposal, [None; 3]);
            assert!(matches!(sent, Err(Sent::Never(Reason::CLOSING))));
        }
        process::forget(l.fd);
        drop(l.conn);
    }
}
