//! The channel that the agent has made for one connection, and what is said over it.

use super::messages::{Sent, To, own_message, send, stop_waiting};
use super::{accepted, across, answer, came, confirmed, introduction, mail, proposed, refuse};
use crate::faults::{self, Step};
use crate::protocol::agent::{Answer, Outcome, Refusal};
use crate::protocol::group;
use crate::protocol::wire::{self, Message, MessageKind};
use crate::state::conn::{Handshake, Role, Stage};
use crate::state::process;
use crate::state::process::ConnRef;
use core::sync::atomic::Ordering;
use memlane_core::reason::Reason;
use memlane_core::ring::Tx;
use memlane_sys::fd::{self, Fd};
use memlane_sys::sock::{self, Received};
use memlane_sys::{Errno, time};

/// Answers that are taken at a time.
const AT_ONCE: usize = 64;

/// Takes the agent's answers and hands them to the connections they are for.
pub(super) fn drain() {
    for _ in 0..AT_ONCE {
        let Some((answer, got)) = introduction::next_answer() else {
            return;
        };
        answered(&answer, got);
    }
}

fn answered(answer: &Answer, mut got: Received) {
    if !take(answer, &mut got) {
        across::missed(&answer.outcome);
    }
}

/// Hands an answer to the connection that it is for. `false`: that does not wait for it any more.
fn take(answer: &Answer, got: &mut Received) -> bool {
    let Some(conn) = process::conn_by_id(answer.id) else {
        return false;
    };
    let Some(_held) = conn.hs_lock.lock() else {
        return false;
    };
    // SAFETY: hs_lock is held.
    let hs = unsafe { &mut *conn.hs.get() };
    if hs.stage != Stage::Asking {
        return false;
    }
    let done = match (answer.outcome, got.fds[0].take()) {
        (Outcome::Meet { peer }, Some(end)) => met(&conn, hs, peer, end),
        (Outcome::Across(told), Some(end)) => across::met(&told, got).and_then(|()| {
            hs.is_across = true;
            met(&conn, hs, told.peer, end)
        }),
        (Outcome::Meet { .. } | Outcome::Across(_), None) => {
            introduction::again(&conn, hs, Reason::AGENT)
        }
        (Outcome::Refuse(Refusal::Nobody), _) => introduction::again(&conn, hs, Reason::NO_MATCH),
        (Outcome::Refuse(Refusal::Busy | Refusal::NotSeen), _) => {
            introduction::again(&conn, hs, Reason::AGENT)
        }
        (Outcome::Refuse(Refusal::NoMemory), _) => introduction::again(&conn, hs, Reason::MEMORY),
        (Outcome::Refuse(Refusal::Untrusted), _) => Err(Reason::NOT_TRUSTED),
        (Outcome::Refuse(Refusal::Forged), _) => Err(Reason::NOT_PROVEN),
    };
    if let Err(why) = done {
        refuse(&conn, hs, why, true);
    }
    let due = match hs.stage {
        Stage::Over => u64::MAX,
        Stage::Idle => hs.next_op,
        _ => 0,
    };
    conn.hs_due.store(due, Ordering::Relaxed);
    true
}

/// The channel to the other end is there.
fn met(conn: &ConnRef, hs: &mut Handshake, peer: u64, end: Fd) -> Result<(), Reason> {
    stop_waiting();
    hs.stage = Stage::Idle;
    let own = fd::stat(conn.fd.load(Ordering::Relaxed)).map_err(|_| Reason::CLOSING)?;
    if own.ino != hs.asked_inode || peer == 0 {
        return Err(Reason::CLOSING); // the number has been given to another socket meanwhile
    }
    if !sock::is_unix_seqpacket(end.raw()) {
        return Err(Reason::AGENT); // who gives that is no agent
    }
    hs.channel = process::hide(end);
    if hs.channel < 0 {
        return Err(Reason::NO_DEVICE); // no room among our descriptors
    }
    hs.agent_peer = peer;
    hs.since = time::now_ns();
    faults::at(Step::Met);
    if conn.role.load(Ordering::Relaxed) == Role::Accepted {
        hs.stage = Stage::Listening;
        return Ok(());
    }
    // SAFETY: hs_lock is held and the tuple was learnt in `begin`.
    let tuple = unsafe { *conn.tuple.get() };
    let mut m = own_message(MessageKind::Proposal, conn, &tuple);
    m.eids = process::config().eids;
    m.eid_count = u8::try_from(process::config().eid_count).unwrap_or(0);
    faults::at(Step::Proposing);
    match send(conn, &To::Channel(hs.channel), &m, [None; 3]) {
        Ok(()) => proposed(conn, hs),
        Err(Sent::Later) => Err(Reason::CLOSING), // it was empty: the other end is gone
        Err(Sent::Never(why)) => Err(why),
    }
}

/// Takes what has come over the channel. `Ok(false)`: nothing.
pub(super) fn hear(conn: &ConnRef, hs: &mut Handshake) -> Result<bool, Reason> {
    let mut bytes = [0u8; wire::LEN + 1];
    let got = match sock::recv_with_fds(hs.channel, &mut bytes) {
        Ok(got) if got.len == Some(0) => return Err(Reason::CLOSING),
        Ok(got) => got,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
        // What we sent last was not read before the other end was closed.
        Err(_) => {
            take_back_dmb(hs);
            return Err(Reason::CLOSING);
        }
    };
    let message = got.len.and_then(|n| bytes.get(..n)).unwrap_or(&[]);
    let m = Message::decode(message).map_err(|malformed| match malformed {
        wire::Malformed::Version => Reason::VERSION,
        _ => Reason::NOT_PROVEN,
    })?;
    faults::at(came(m.kind));
    // SAFETY: hs_lock is held and the tuple was learnt in `begin`.
    let tuple = unsafe { *conn.tuple.get() };
    let done = match (m.kind, hs.stage) {
        (MessageKind::Proposal, Stage::Listening) => answer(conn, hs, Ok(m), got, None),
        (MessageKind::Accept, Stage::Proposed) => accepted(conn, hs, &m, got, None),
        (MessageKind::Confirm, Stage::Accepted) => confirmed(conn, hs, &m, got, &tuple),
        (MessageKind::Decline, _) => {
            mail::release_declined(&m);
            if let Some(e) = process::entry(conn) {
                e.peer_reason.store(m.reason, Ordering::Relaxed);
            }
            return Err(super::declined(&m));
        }
        _ => Ok(()),
    };
    if let Err(why) = done {
        give_back(hs, &m, why);
        return Err(why);
    }
    Ok(true)
}

/// The DMB that `m` offers is not wanted: the peer is told, and why.
fn give_back(hs: &Handshake, m: &Message, why: Reason) {
    let mut no = Message::new(MessageKind::Decline, m.tuple.mirrored());
    (no.echo, no.reason) = (m.id, why.0);
    (no.chunk, no.slot, no.token) = (m.chunk, m.slot, m.token);
    let _ = sock::send_to_peer(hs.channel, &no.encode(), &[]);
}

/// The peer has never read of the DMB that we offered: it serves another connection.
fn take_back_dmb(hs: &Handshake) {
    if hs.stage == Stage::Accepted
        && let Some(words) = group::own_words(hs.rx_chunk - 1, hs.rx_slot)
        && words.rx.0.token.load(Ordering::Acquire) == hs.rx_token
    {
        Tx::detach(words);
    }
}

/// The handshake is over: the channel is of no more use.
pub(super) fn part(hs: &mut Handshake) {
    let channel = core::mem::replace(&mut hs.channel, -1);
    if channel >= 0 {
        process::unhide(channel);
    }
}

/// Who the other end is, for the link group: the agent's name for it, or what it says and the kernel's word.
pub(super) fn peer_process(hs: &Handshake, m: &Message) -> (u64, i32) {
    if hs.by_channel() {
        (hs.agent_peer, group::BY_AGENT)
    } else {
        (m.gid, hs.peer_pid)
    }
}
