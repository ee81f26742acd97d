//! The other end is in another network namespace: the agent introduces the two processes.
//!
//! Names of this namespace do not reach there, and addresses prove nothing between namespaces. So each side asks the agent
//! who has the other end of its socket. The agent answers both with the two ends of one channel, made for this connection
//! alone. Proposal, Accept and Confirm go over it: that a message comes this way is the proof that its sender holds the
//! other end. The channel is closed when the handshake is over.
//!
//! Nothing here waits. A question is sent after one of the program's own calls, and the answer is taken after a later one.

use super::messages::{Sent, To, own_message, send};
use super::{accepted, answer, be_patient, confirmed, mail, proposed, refuse, stop_waiting};
use crate::protocol::agent::{self, Answer, Outcome, Question, Refusal};
use crate::protocol::group;
use crate::protocol::wire::{self, Message, MessageKind};
use crate::state::conn::{Handshake, Role, Stage};
use crate::state::process::ConnRef;
use crate::state::process::{self, PROCESS};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memlane_core::reason::Reason;
use memlane_core::ring::Tx;
use memlane_sys::fd::{self, Fd};
use memlane_sys::sock::{self, Received};
use memlane_sys::{Errno, time};

/// An agent that could not be reached is tried again after this time.
const AGAIN_NS: u64 = 1_000_000_000;
/// A connection waits so long for an agent that is gone, then stays on TCP.
const GONE_NS: u64 = 10 * AGAIN_NS;
/// Questions that a connection asks. The other end asks when it has seen as many exchanges: within one of them, unless it
/// has been slow to begin.
const QUESTIONS: u32 = 6;
/// Answers that are taken at a time.
const AT_ONCE: usize = 64;

/// Counts the connections to an agent: a question dies with the connection over which it was asked.
static CONNECTED: AtomicU32 = AtomicU32::new(0);
/// Monotonic ns before which no agent is tried again.
static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);

/// Is there an agent to ask?
pub(super) fn possible() -> bool {
    connection() >= 0
}

/// The connection to the agent; made when first needed. −1 = there is none.
fn connection() -> i32 {
    let have = PROCESS.agent.load(Ordering::Acquire);
    let domain = &process::config().domain;
    if have >= 0 || domain.path().is_empty() || time::now_ns() < NOT_BEFORE.load(Ordering::Relaxed)
    {
        return have;
    }
    let Some(_held) = group::lock() else {
        return -1;
    };
    let have = PROCESS.agent.load(Ordering::Acquire);
    if have >= 0 {
        return have;
    }
    match connect(domain.path()) {
        Some(own) => {
            let raw = process::hide(own);
            CONNECTED.fetch_add(1, Ordering::Relaxed);
            PROCESS.agent.store(raw, Ordering::Release);
            raw
        }
        None => {
            NOT_BEFORE.store(time::now_ns() + AGAIN_NS, Ordering::Relaxed);
            -1
        }
    }
}

fn connect(directory: &[u8]) -> Option<Fd> {
    let mut path = [0u8; sock::NAME_MAX];
    let file = agent::SOCKET.as_bytes();
    let len = directory.len() + 1 + file.len();
    let place = path.get_mut(..len)?;
    place[..directory.len()].copy_from_slice(directory);
    place[directory.len()] = b'/';
    place[directory.len() + 1..].copy_from_slice(file);
    sock::unix_seqpacket_to(&path[..len]).ok()
}

/// The agent is gone. Open lanes do not notice; questions are asked again.
fn lose(agent: i32) {
    if PROCESS
        .agent
        .compare_exchange(agent, -1, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
    {
        process::unhide(agent);
    }
}

/// Asks who has the other end.
pub(super) fn ask(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    let agent = connection();
    if agent < 0 {
        return await_agent(conn, hs);
    }
    let fd = conn.fd.load(Ordering::Relaxed);
    hs.asked_inode = fd::stat(fd).map_err(|_| Reason::CLOSING)?.ino;
    hs.asked_over = CONNECTED.load(Ordering::Relaxed);
    let question = Question {
        id: process::id_of(conn),
        fd,
        inode: hs.asked_inode,
        role: match conn.role.load(Ordering::Relaxed) {
            Role::Connected => agent::Role::Connected,
            Role::Accepted => agent::Role::Accepted,
        },
    };
    match sock::send_to_peer(agent, &question.encode(), &[]) {
        Ok(()) => {
            hs.stage = Stage::Asking;
            (hs.tries, hs.since) = (0, time::now_ns());
            PROCESS.waiting.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        Err(Errno::AGAIN) => await_agent(conn, hs),
        Err(_) => {
            lose(agent);
            await_agent(conn, hs)
        }
    }
}

/// The agent is gone or has too much to do: it may be restarted, or have time, soon.
fn await_agent(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    hs.next_op = conn.ops() + 16;
    if time::now_ns().saturating_sub(hs.since) > GONE_NS {
        return Err(Reason::AGENT);
    }
    Ok(())
}

/// No answer yet. One that was asked over a connection that is gone does not come any more.
pub(super) fn wait_for_answer(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    let same = hs.asked_over == CONNECTED.load(Ordering::Relaxed);
    if same && PROCESS.agent.load(Ordering::Acquire) >= 0 {
        return be_patient(conn, hs, Reason::AGENT);
    }
    // Not counted: nobody has heard the question.
    stop_waiting();
    hs.stage = Stage::Idle;
    await_agent(conn, hs)
}

/// Another question: after 1, 2, 4 … calls.
fn again(conn: &ConnRef, hs: &mut Handshake, why: Reason) -> Result<(), Reason> {
    stop_waiting();
    hs.stage = Stage::Idle;
    hs.asked += 1;
    hs.next_op = conn.ops() + (1 << hs.asked);
    if hs.asked < QUESTIONS {
        Ok(())
    } else {
        Err(why)
    }
}

/// Takes the agent's answers and hands them to the connections they are for.
pub(super) fn drain() {
    let agent = PROCESS.agent.load(Ordering::Acquire);
    if agent < 0 {
        return;
    }
    for _ in 0..AT_ONCE {
        let mut bytes = [0u8; agent::LEN + 1];
        match sock::recv_with_fds(agent, &mut bytes) {
            Ok(got) if got.len == Some(0) => return lose(agent),
            Ok(got) => {
                let answer = got
                    .len
                    .and_then(|n| bytes.get(..n))
                    .and_then(Answer::decode);
                if let Some(answer) = answer {
                    answered(&answer, got);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => return lose(agent),
        }
    }
}

fn answered(answer: &Answer, mut got: Received) {
    let Some(conn) = process::conn_by_id(answer.id) else {
        return;
    };
    let Some(_held) = conn.hs_lock.lock() else {
        return;
    };
    // SAFETY: hs_lock is held.
    let hs = unsafe { &mut *conn.hs.get() };
    if hs.stage != Stage::Asking {
        return;
    }
    let done = match (answer.outcome, got.fds[0].take()) {
        (Outcome::Meet { peer }, Some(end)) => met(&conn, hs, peer, end),
        (Outcome::Meet { .. }, None) => again(&conn, hs, Reason::AGENT),
        (Outcome::Refuse(Refusal::Nobody), _) => again(&conn, hs, Reason::NO_MATCH),
        (Outcome::Refuse(Refusal::Busy | Refusal::NotSeen), _) => again(&conn, hs, Reason::AGENT),
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
}

/// The channel to the other end is there.
fn met(conn: &ConnRef, hs: &mut Handshake, peer: u64, end: Fd) -> Result<(), Reason> {
    stop_waiting();
    hs.stage = Stage::Idle;
    let own = fd::stat(conn.fd.load(Ordering::Relaxed)).map_err(|_| Reason::CLOSING)?;
    if own.ino != hs.asked_inode || peer == 0 {
        return Err(Reason::CLOSING); // the number has been given to another socket meanwhile
    }
    hs.channel = process::hide(end);
    if hs.channel < 0 {
        return Err(Reason::NO_DEVICE); // no room among our descriptors
    }
    hs.agent_peer = peer;
    hs.since = time::now_ns();
    if conn.role.load(Ordering::Relaxed) == Role::Accepted {
        hs.stage = Stage::Listening;
        return Ok(());
    }
    // SAFETY: hs_lock is held and the tuple was learnt in `begin`.
    let tuple = unsafe { *conn.tuple.get() };
    let mut m = own_message(MessageKind::Proposal, conn, &tuple);
    m.eids = process::config().eids;
    m.eid_count = u8::try_from(process::config().eid_count).unwrap_or(0);
    match send(conn, &To::Channel(hs.channel), &m, [None; 2]) {
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
    // SAFETY: hs_lock is held and the tuple was learnt in `begin`.
    let tuple = unsafe { *conn.tuple.get() };
    let done = match (m.kind, hs.stage) {
        (MessageKind::Proposal, Stage::Listening) => answer(conn, hs, Ok(m), got),
        (MessageKind::Accept, Stage::Proposed) => accepted(conn, hs, &m, got, &tuple),
        (MessageKind::Confirm, Stage::Accepted) => confirmed(conn, hs, &m, got, &tuple),
        (MessageKind::Decline, _) => {
            mail::release_declined(&m);
            if let Some(e) = process::entry(conn) {
                e.peer_reason.store(m.reason, Ordering::Relaxed);
            }
            return Err(Reason::PEER_DECLINED);
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
