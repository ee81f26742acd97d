//! The other end is in another network namespace: the agent introduces the two processes.
//!
//! Names of this namespace do not reach there, and addresses prove nothing between namespaces. So each side asks the agent
//! who has the other end of its socket. The agent answers both with the two ends of one channel, made for this connection
//! alone. Proposal, Accept and Confirm go over it ([`channel`](super::channel)): that a message comes this way is the proof
//! that its sender holds the other end.
//!
//! Nothing here waits. A question is sent after one of the program's own calls, and the answer is taken after a later one.

use super::messages::stop_waiting;
use crate::faults::{self, Step};
use crate::protocol::agent::{self, Answer, Question};
use crate::protocol::group;
use crate::state::conn::{Handshake, Role, Stage};
use crate::state::process::ConnRef;
use crate::state::process::{self, PROCESS};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memlane_core::reason::Reason;
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
            faults::at(Step::AgentReached);
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
    group::let_go_of_the_gone();
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
    faults::at(Step::Asking);
    match sock::send_to_peer(agent, &question.encode(), &[]) {
        Ok(()) => {
            faults::at(Step::Asked);
            hs.stage = Stage::Asking;
            (hs.looks, hs.since) = (0, time::now_ns());
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

/// Is the connection still there over which this question was asked? If not, no answer comes.
pub(super) fn is_heard(hs: &Handshake) -> bool {
    let same = hs.asked_over == CONNECTED.load(Ordering::Relaxed);
    same && PROCESS.agent.load(Ordering::Acquire) >= 0
}

/// Nobody has heard the question: it does not count, and is asked again.
pub(super) fn not_heard(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    stop_waiting();
    hs.stage = Stage::Idle;
    await_agent(conn, hs)
}

/// Another question: after 1, 2, 4 … calls.
pub(super) fn again(conn: &ConnRef, hs: &mut Handshake, why: Reason) -> Result<(), Reason> {
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

/// The agent's next answer, and what came with it. `None`: there is none now.
pub(super) fn next_answer() -> Option<(Answer, Received)> {
    let agent = PROCESS.agent.load(Ordering::Acquire);
    if agent < 0 {
        return None;
    }
    let mut bytes = [0u8; agent::LONGEST + 1];
    match sock::recv_with_fds(agent, &mut bytes) {
        Ok(got) => {
            faults::at(Step::AnswerCame);
            let answer = got
                .len
                .and_then(|n| bytes.get(..n))
                .and_then(Answer::decode);
            if answer.is_none() {
                lose(agent); // it has ended, or says what no agent says
            }
            answer.map(|answer| (answer, got))
        }
        Err(Errno::AGAIN | Errno::INTR) => None,
        Err(_) => {
            lose(agent);
            None
        }
    }
}
