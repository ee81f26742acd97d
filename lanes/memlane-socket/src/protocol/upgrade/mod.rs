//! The upgrade: from plain TCP to the memory lane, in mid-stream, without a byte of its own in the stream.
//!
//! No thread, no waiting: each side takes a step after some of the program's own calls on the connection, and a step
//! never blocks.
//!
//! ```text
//! accepting side                               connecting side
//! Idle      bind the rendezvous name           Idle
//! Listening ◄──────── Proposal + proof ─────── Proposed
//! Accepted  ───────── Accept + proof + chunk ► Agreed: attach; when nobody is
//!                                              sending: counts right? open
//! Agreed    ◄──────── Confirm + chunk ──────── Open
//! Open      (same rule)
//! ```
//!
//! Each side opens by itself, at any time, because a receiver starts parked: the other side sends by TCP until the
//! receiver's flags say otherwise, and they say so only after both sides have opened. If the handshake fails, the
//! connection stays on plain TCP.

// Indices and descriptor numbers: bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

mod across;
mod channel;
mod introduction;
mod look;
mod mail;
mod messages;
mod names;
mod opening;
mod own_ring;
mod proof;
mod renumbered;
mod standing;
mod version;

pub use look::look;
pub use mail::drain_mailbox;
use mail::{decline_unknown, release_declined};
use messages::{
    Sent, To, mailbox, own_message, peer_of, prefer_line, remember_peer, send, send_with_chunk,
    sender_of, stop_waiting, take_life_line, tell_dmb,
};
use names::Mailed;
pub use names::forget_all;
use proof::{check_peer, common_eid};
pub use renumbered::renumbered;
pub use standing::{Standing, bar, connected, freeze, give_up, hope_again, standing};

use crate::faults::{self, Step};
use crate::protocol::board;
use crate::protocol::group::{self, PeerDmb};
use crate::protocol::lane::copying;
use crate::protocol::wire::{self, Malformed, Message, MessageKind};
use crate::state::conn::{Conn, Handshake, Role, SEEN_ACROSS, SEEN_SELF, SEEN_TUPLE, Stage};
use crate::state::process::ConnRef;
use crate::state::process::{self, PROCESS, memory};
use core::sync::atomic::Ordering;
use memlane_core::peer;
use memlane_core::reason::Reason;
use memlane_core::stats::{ConnState, Counter};
use memlane_sys::sock::{self, Received, Tuple, UnixName};
use memlane_sys::{Errno, time};

/// The number of tries to reach the other side before it counts as a process without memlane …
const TRIES: u32 = 8;
/// … and the least time that they take, in ns.
const TRIES_NS: u64 = 300_000_000;
/// How long a rendezvous name stays open for a peer that may run without memlane, in ns.
const LISTEN_NS: u64 = if faults::ON {
    300_000_000
} else {
    2_000_000_000
};
/// The looks that a listening side takes at least: 64 after a call each, the others after 16 calls each. So it listens for
/// 576 calls, and a client whose handshakes are put off proposes at its 512th (`process::payback`).
const LISTEN_TRIES: u32 = 96;
/// How long a process that is known to serve an address may take for its answer, in ns, before a Proposal goes by name, too;
/// it goes again each time that so long has passed. The accepting side listens for [`LISTEN_NS`].
const ELSEWHERE_NS: u64 = LISTEN_NS / 10;
/// How long a side waits for an answer, in ns: the peer may be inside one long call.
const ANSWER_NS: u64 = if faults::ON {
    300_000_000
} else {
    30_000_000_000
};

/// Takes the handshake's next step, if one is due, after a call of the program on a connection that returned `n`.
/// `errno` stays as it is.
#[inline]
pub fn after_call(conn: &ConnRef, n: isize) {
    if conn.ops() >= conn.hs_due.load(Ordering::Relaxed) && n > 0 {
        let keep = crate::real::errno();
        step(conn);
        crate::real::set_errno(keep);
    }
}

/// Takes the next step of a connection's handshake.
#[cold]
pub fn step(conn: &ConnRef) {
    process::appear();
    if PROCESS.waiting.load(Ordering::Relaxed) != 0
        && let Some(_held) = PROCESS.mail_lock.try_lock()
    {
        drain_mailbox();
    }
    let Some(_held) = conn.hs_lock.try_lock() else {
        return;
    };
    // SAFETY: hs_lock is held.
    let hs = unsafe { &mut *conn.hs.get() };
    if hs.has_not_begun() && process::was_due_to_appear(conn) {
        return;
    }
    if let Err(why) = advance(conn, hs) {
        refuse(conn, hs, why, true);
    }
    let due = if matches!(hs.stage, Stage::Open | Stage::Over) {
        channel::part(hs);
        u64::MAX
    } else {
        hs.next_op
    };
    conn.hs_due.store(due, Ordering::Relaxed);
}

fn advance(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    for why in [&conn.barred, &PROCESS.frozen] {
        let why = why.load(Ordering::Relaxed);
        if why != 0 && !matches!(hs.stage, Stage::Confirming | Stage::Open) {
            return Err(Reason(why));
        }
    }
    hs.next_op = conn.ops() + 1;
    match hs.stage {
        Stage::Idle => begin(conn, hs),
        Stage::Asking if introduction::is_heard(hs) => be_patient(conn, hs, Reason::AGENT),
        Stage::Asking => introduction::not_heard(conn, hs),
        Stage::Listening => listen(conn, hs),
        Stage::Answering => accept(conn, hs),
        Stage::Accepted | Stage::Proposed => wait(conn, hs),
        Stage::Agreed => opening::open(conn, hs),
        Stage::Confirming => opening::confirm(conn, hs),
        _ => Ok(()),
    }
}

// --- first step -----------------------------------------------------------

fn begin(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    if conn.shared().procs.load(Ordering::Acquire) != 1 {
        return later(conn, hs, Reason::SHARED_FD);
    }
    let fd = conn.fd.load(Ordering::Relaxed);
    if fd <= 2 {
        return Err(Reason::UNHOOKED_IO); // stdio writes to the socket without calling a hook
    }
    let tuple = learn_tuple(conn)?;
    if hs.since == 0 {
        hs.since = time::now_ns();
        // If the other end is not reachable, there is nothing to upgrade to.
        match peer::other_end(&tuple, fd) {
            Err(Reason::NOT_SAME_HOST) if introduction::possible() => hs.by_agent = true,
            found => drop(found?),
        }
    }
    if hs.by_agent {
        return introduction::ask(conn, hs);
    }
    if mailbox() < 0 {
        return Err(Reason::NO_DEVICE);
    }
    if conn.role.load(Ordering::Relaxed) == Role::Accepted {
        bind_name(conn, hs, &tuple)
    } else {
        propose(conn, hs, &tuple)
    }
}

/// Puts the next try off: by 1, 1, 2, 4 … 256 calls, until there have been too many tries for too long.
fn later(conn: &ConnRef, hs: &mut Handshake, why: Reason) -> Result<(), Reason> {
    hs.tries += 1;
    if hs.tries > TRIES && time::now_ns().saturating_sub(hs.since) > TRIES_NS {
        return Err(why);
    }
    hs.next_op = conn.ops() + (1 << hs.tries.saturating_sub(2).min(8));
    process::show(conn, ConnState::Tcp, Reason::TOO_YOUNG);
    Ok(())
}

fn learn_tuple(conn: &ConnRef) -> Result<Tuple, Reason> {
    if conn.seen.load(Ordering::Relaxed) & SEEN_TUPLE == 0 {
        let fd = conn.fd.load(Ordering::Relaxed);
        let local = sock::local_addr(fd).map_err(|_| Reason::CLOSING)?;
        let remote = sock::remote_addr(fd).map_err(|_| Reason::CLOSING)?;
        // SAFETY: hs_lock is held; readers check SEEN_TUPLE first.
        unsafe { *conn.tuple.get() = Tuple { local, remote } };
        conn.seen.fetch_or(SEEN_TUPLE, Ordering::Release);
        crate::state::stats::show_tuple(conn, &Tuple { local, remote });
    }
    // SAFETY: written once, before SEEN_TUPLE.
    Ok(unsafe { *conn.tuple.get() })
}

fn bind_name(conn: &ConnRef, hs: &mut Handshake, tuple: &Tuple) -> Result<(), Reason> {
    match names::listen_for(conn, hs, tuple) {
        Ok(()) => {
            faults::at(Step::NameBound);
            process::show(conn, ConnState::Pending, Reason::TOO_YOUNG);
            Ok(())
        }
        Err(e) if e.0 == libc::EADDRINUSE || e.0 == libc::EMFILE => {
            later(conn, hs, Reason::NO_DEVICE)
        }
        Err(_) => Err(Reason::NO_DEVICE),
    }
}

/// Where the accepting side of a connection listens, and the Proposal for it.
fn proposal(conn: &Conn, tuple: &Tuple) -> Result<(To, Message), Reason> {
    let name =
        UnixName::abstract_name(&wire::rendezvous_name(tuple)).map_err(|_| Reason::INTERNAL)?;
    let mut m = own_message(MessageKind::Proposal, conn, tuple);
    m.eids = process::config().eids;
    m.eid_count = u8::try_from(process::config().eid_count).unwrap_or(0);
    Ok((To::Name(name), m))
}

fn propose(conn: &ConnRef, hs: &mut Handshake, tuple: &Tuple) -> Result<(), Reason> {
    let (name, m) = proposal(conn, tuple)?;
    faults::at(Step::Proposing);
    hs.by_mail = false;
    match names::propose(conn, hs, &m) {
        Mailed::Sent => {
            (hs.by_mail, hs.asked_by_name, hs.since) = (true, 0, time::now_ns());
            return proposed(conn, hs);
        }
        Mailed::Full => return await_room(conn, hs),
        Mailed::Nobody => {}
    }
    match send(conn, &name, &m, [None; 3]) {
        Ok(()) => {
            hs.since = time::now_ns();
            proposed(conn, hs)
        }
        Err(Sent::Later) => {
            // A peer that has closed does not answer any more, with or without memlane.
            let fd = conn.fd.load(Ordering::Relaxed);
            peer::other_end(tuple, fd).map_err(|_| Reason::CLOSING)?;
            later(conn, hs, Reason::PEER_NO_MEMLANE)
        }
        Err(Sent::Never(why)) => Err(why),
    }
}

fn proposed(conn: &Conn, hs: &mut Handshake) -> Result<(), Reason> {
    faults::at(Step::Proposed);
    (hs.stage, hs.looks) = (Stage::Proposed, 0);
    PROCESS.waiting.fetch_add(1, Ordering::Relaxed);
    process::show(conn, ConnState::Pending, Reason::TOO_YOUNG);
    Ok(())
}

/// The peer has no room for a Proposal now: tries again after the next call.
fn await_room(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    hs.next_op = conn.ops() + 1;
    process::show(conn, ConnState::Tcp, Reason::TOO_YOUNG);
    match time::now_ns().saturating_sub(hs.since) > ANSWER_NS {
        true => Err(Reason::PEER_NO_MEMLANE),
        false => Ok(()),
    }
}

/// Goes back to `Idle` after a Proposal by mail reached a process that is not, or not yet, the other end.
fn not_there(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    stop_waiting();
    (hs.stage, hs.looks) = (Stage::Idle, 0);
    (hs.by_name, hs.told_too_young) = (true, true);
    later(conn, hs, Reason::PEER_NO_MEMLANE)
}

/// Proposes by name, too: the process that serves the address does not answer, and another one may have the other end. The
/// answer to the first Proposal may still come.
fn ask_by_name(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    // SAFETY: hs_lock is held and the tuple was learnt in `begin`.
    let (name, m) = proposal(conn, unsafe { &*conn.tuple.get() })?;
    hs.asked_by_name += 1;
    match send(conn, &name, &m, [None; 3]) {
        Ok(()) => hs.by_mail = false,
        Err(Sent::Later) => {} // nobody listens there now
        Err(Sent::Never(why)) => return Err(why),
    }
    Ok(())
}

// --- what comes -----------------------------------------------------------

/// The step at which a message of this kind has come.
fn came(kind: MessageKind) -> Step {
    match kind {
        MessageKind::Proposal => Step::ProposalCame,
        MessageKind::Accept => Step::AcceptCame,
        MessageKind::Decline => Step::DeclineCame,
        MessageKind::Confirm => Step::ConfirmCame,
    }
}

/// Hands a message to its connection. `line`: the group over whose life line it has come.
fn deliver(m: &Message, got: Received, line: Option<u32>) {
    faults::at(came(m.kind));
    match m.kind {
        MessageKind::Proposal => return mail::proposed(m, got, line),
        MessageKind::Decline => release_declined(m),
        _ => {}
    }
    let Some(conn) = process::conn_by_id(m.echo) else {
        return decline_unknown(m, &got, line);
    };
    let Some(_held) = conn.hs_lock.lock() else {
        return;
    };
    // SAFETY: hs_lock is held.
    let hs = unsafe { &mut *conn.hs.get() };
    // SAFETY: a connection learns its tuple before it sends its id.
    let tuple = unsafe { *conn.tuple.get() };
    if m.tuple != tuple.mirrored() {
        return decline_unknown(m, &got, line);
    }
    let from = sender_of(&got, line);
    let done = match (m.kind, hs.stage) {
        (MessageKind::Accept, Stage::Proposed) => accepted(&conn, hs, m, got, line),
        (MessageKind::Confirm, Stage::Accepted) => confirmed(&conn, hs, m, got, &tuple),
        (MessageKind::Decline, Stage::Proposed) if m.reason == Reason::TOO_YOUNG.0 => {
            not_there(&conn, hs)
        }
        (MessageKind::Decline, Stage::Proposed | Stage::Accepted | Stage::Agreed) => {
            if let Some(e) = process::entry(&conn) {
                e.peer_reason.store(m.reason, Ordering::Relaxed);
            }
            refuse(&conn, hs, declined(m), false);
            Ok(())
        }
        (MessageKind::Accept, _) if hs.attached && sends_into(&conn, m) => Ok(()), // a second time
        (MessageKind::Accept, _) | (MessageKind::Confirm, Stage::Over) => {
            return decline_unknown(m, &got, line);
        }
        _ => Ok(()),
    };
    if let Err(why) = done {
        refuse(&conn, hs, why, true);
        mail::give_back(m, from.as_ref());
    }
    let due = match hs.stage {
        Stage::Open | Stage::Over => u64::MAX,
        Stage::Idle => hs.next_op,
        _ => 0,
    };
    conn.hs_due.store(due, Ordering::Relaxed);
}

/// Why this side stays on TCP after a Decline.
fn declined(m: &Message) -> Reason {
    match m.reason == Reason::CLOSING.0 {
        true => Reason::CLOSING,
        false => Reason::PEER_DECLINED,
    }
}

/// Does `m` offer the very DMB that this connection has attached? Then the peer must not hear that nobody uses it.
fn sends_into(conn: &Conn, m: &Message) -> bool {
    let dmb = conn.tx_dmb.load(Ordering::Acquire);
    // SAFETY: the caller saw in `hs` that it is attached: it is mapped, and holds only atomics.
    let token = unsafe { &*dmb }.rx.0.token.load(Ordering::Acquire);
    token == m.token && conn.tx_slot.load(Ordering::Relaxed) == u32::from(m.slot)
}

// --- accepting side -------------------------------------------------------

fn listen(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    if hs.by_channel() {
        return match channel::hear(conn, hs)? {
            true => Ok(()),
            false => be_patient(conn, hs, Reason::TIMEOUT_AL),
        };
    }
    if hs.name_fd < 0 {
        if names::wants_name(hs) {
            // SAFETY: hs_lock is held and the tuple was learnt in `begin`.
            let _ = names::take_name(conn, hs, unsafe { &*conn.tuple.get() });
        }
        return be_patient(conn, hs, Reason::PEER_NO_MEMLANE);
    }
    let mut buf = [0u8; wire::LEN + 1];
    match sock::recv_with_fds(hs.name_fd, &mut buf) {
        Ok(got) => {
            faults::at(Step::ProposalCame);
            let bytes = got.len.and_then(|n| buf.get(..n)).unwrap_or(&[]);
            match Message::decode(bytes) {
                Err(Malformed::Version) => Err(version::of_proposal(hs, bytes, &got)),
                m => answer(conn, hs, m, got, None),
            }
        }
        Err(Errno::AGAIN) => be_patient(conn, hs, Reason::PEER_NO_MEMLANE),
        Err(_) => Err(Reason::INTERNAL),
    }
}

/// Nothing has come yet: looks again after the next call, and less often after many looks.
fn be_patient(conn: &ConnRef, hs: &mut Handshake, why: Reason) -> Result<(), Reason> {
    hs.looks += 1;
    if hs.looks < 64 {
        return Ok(());
    }
    hs.next_op = conn.ops() + if hs.looks < 512 { 16 } else { 256 };
    let (limit, least) = match hs.stage {
        Stage::Listening => (LISTEN_NS, LISTEN_TRIES),
        _ => (ANSWER_NS, 0),
    };
    if hs.looks >= least && time::now_ns().saturating_sub(hs.since) > limit {
        Err(why)
    } else {
        Ok(())
    }
}

fn answer(
    conn: &ConnRef,
    hs: &mut Handshake,
    m: Result<Message, Malformed>,
    got: Received,
    line: Option<u32>,
) -> Result<(), Reason> {
    let m = match m {
        Ok(m) if m.kind == MessageKind::Proposal => m,
        // Not a Proposal: whoever sent this, the name stays open for the real peer.
        Ok(_) | Err(_) => return Ok(()),
    };
    remember_peer(hs, &m, &got, line);
    // SAFETY: hs_lock is held and the tuple was learnt in `begin`.
    let tuple = unsafe { *conn.tuple.get() };
    check_peer(conn, hs, &m, &got, &tuple)?;
    hs.eid = common_eid(&m)?;
    offer_dmb(conn, hs, &m)?;
    names::expect_no_more(conn);
    accept(conn, hs)
}

/// Sends the Accept; tries again later if the client's mailbox is full at the moment.
fn accept(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    // SAFETY: hs_lock is held and the tuple was learnt in `begin`.
    let tuple = unsafe { *conn.tuple.get() };
    let mut yes = own_message(MessageKind::Accept, conn, &tuple);
    if let Some(eid) = hs.eid {
        (yes.eids[0], yes.eid_count) = (eid, 1);
    }
    tell_dmb(conn, &mut yes, hs);
    prefer_line(hs);
    let to = peer_of(hs)?;
    faults::at(Step::Accepting);
    match send_with_chunk(conn, hs, &to, &mut yes) {
        Ok(()) => {
            faults::at(Step::Accepted);
            hs.stage = Stage::Accepted;
            hs.looks = 0;
            PROCESS.waiting.fetch_add(1, Ordering::Relaxed);
            names::let_go(conn, hs);
            Ok(())
        }
        Err(Sent::Later) => {
            hs.stage = Stage::Answering;
            be_patient(conn, hs, Reason::TIMEOUT_AL)
        }
        Err(Sent::Never(why)) => Err(why),
    }
}

fn offer_dmb(conn: &Conn, hs: &mut Handshake, m: &Message) -> Result<(), Reason> {
    let has_own_ring = conn.given_size.load(Ordering::Relaxed) != 0;
    if has_own_ring && hs.peer_features & wire::OWN_RINGS == 0 {
        return Err(Reason::RELEASE); // the peer of that release would write into the chunk
    }
    if hs.is_across && (has_own_ring || m.own_ring != 0) {
        return Err(Reason::NO_DEVICE); // no file goes to another machine
    }
    if !memory::allows(memory::BEGINNING) {
        return Err(Reason::MEMORY);
    }
    let mut locked = group::lock().ok_or(Reason::INTERNAL)?;
    let (gid, pid) = channel::peer_process(hs, m);
    let group = group::find(&mut locked, gid, pid)?;
    let dmb = group::take_dmb(&mut locked, group, board::sleeper_for(conn))?;
    hs.group = group + 1;
    hs.rx_chunk = dmb.chunk + 1;
    hs.rx_slot = dmb.slot;
    hs.rx_token = dmb.token.bits();
    faults::at(Step::DmbTaken);
    Ok(())
}

fn confirmed(
    conn: &ConnRef,
    hs: &mut Handshake,
    m: &Message,
    mut got: Received,
    tuple: &Tuple,
) -> Result<(), Reason> {
    check_peer(conn, hs, m, &got, tuple)?;
    attach(conn, hs, m, &mut got)?;
    if let Some(mut locked) = group::lock() {
        group::acked(&mut locked, hs.rx_chunk - 1);
    }
    stop_waiting(); // not earlier: `refuse` calls it too
    hs.stage = Stage::Agreed;
    hs.looks = 0;
    Ok(())
}

// --- connecting side ------------------------------------------------------

fn accepted(
    conn: &ConnRef,
    hs: &mut Handshake,
    m: &Message,
    mut got: Received,
    line: Option<u32>,
) -> Result<(), Reason> {
    // SAFETY: hs_lock is held and the tuple was learnt in `begin`.
    let tuple = unsafe { &*conn.tuple.get() };
    remember_peer(hs, m, &got, line);
    check_peer(conn, hs, m, &got, tuple)?;
    if process::config().eid_count > 0 {
        common_eid(m)?;
    }
    offer_dmb(conn, hs, m)?;
    take_life_line(hs, m, &mut got);
    attach(conn, hs, m, &mut got)?;
    if m.features & wire::TAKES_MAIL != 0
        && !hs.by_channel()
        && hs.line == 0
        && let Some(mut locked) = group::lock()
    {
        let name = &hs.peer_name[..hs.peer_name_len];
        group::learn_mailbox(&mut locked, hs.group - 1, &tuple.remote, name);
    }
    stop_waiting();
    hs.stage = Stage::Agreed;
    hs.looks = 0;
    Ok(())
}

fn attach(conn: &Conn, hs: &mut Handshake, m: &Message, got: &mut Received) -> Result<(), Reason> {
    // After the proof, if there is one: the descriptor of the ring's own file, if it has one, the chunk's, and its bell's.
    let first = usize::from(!hs.by_channel());
    let own = usize::from(m.own_ring != 0);
    let file = got.fds[first + own].take();
    let has_bell = m.features & wire::BELL_COMES != 0;
    let bell = if has_bell {
        got.fds[first + own + 1].take()
    } else {
        None
    };
    let told = PeerDmb {
        chunk: m.chunk,
        slot: u32::from(m.slot),
        ring_size: m.ring_size,
        token: m.token,
    };
    let mut locked = group::lock().ok_or(Reason::INTERNAL)?;
    let a = group::attach(&mut locked, hs.group - 1, &told, [file, bell])?;
    let (ring, ring_size) = match own {
        0 => (a.ring, a.ring_size),
        _ => (own_ring::attach(hs, m, got.fds[first].take())?, m.own_ring),
    };
    conn.tx_ring.store(ring, Ordering::Relaxed);
    conn.tx_size.store(ring_size, Ordering::Relaxed);
    if copying::agreed(hs.peer_features)[0] {
        copying::start(conn, m.token)?;
    }
    if hs.is_across {
        conn.seen.fetch_or(SEEN_ACROSS, Ordering::Relaxed);
    } else if hs.by_channel() {
        conn.cost.begin(hs.group - 1);
    }
    conn.reader.begin(hs.group);
    conn.tx_slot.store(a.slot, Ordering::Relaxed);
    conn.tx_ready.store(a.ready, Ordering::Relaxed);
    conn.tx_bell.store(a.bell, Ordering::Relaxed);
    if hs.peer_pid == PROCESS.pid.load(Ordering::Relaxed) {
        conn.seen.fetch_or(SEEN_SELF, Ordering::Relaxed);
    }
    conn.tx_dmb
        .store(core::ptr::from_ref(a.dmb).cast_mut(), Ordering::Release);
    hs.attached = true;
    faults::at(Step::Attached);
    Ok(())
}

fn wait(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    if hs.by_channel() && channel::hear(conn, hs)? {
        return Ok(());
    }
    let waits_for = time::now_ns().saturating_sub(hs.since);
    let patience = ELSEWHERE_NS * (u64::from(hs.asked_by_name) + 1);
    if hs.stage == Stage::Proposed && hs.by_mail && waits_for > patience {
        ask_by_name(conn, hs)?;
    }
    let why = if hs.stage == Stage::Proposed {
        Reason::TIMEOUT_CL
    } else {
        Reason::TIMEOUT_AL
    };
    be_patient(conn, hs, why)
}

// --- the end --------------------------------------------------------------

/// Stays on TCP, and gives the reason to the stats page and, with `tell`, to the peer.
fn refuse(conn: &Conn, hs: &mut Handshake, why: Reason, tell: bool) {
    // Another thread may have closed the connection meanwhile: then its descriptor is gone, or belongs to another file,
    // and whatever failed has failed for that reason.
    let why = match conn.closing.load(Ordering::Acquire) {
        0 => why,
        _ => Reason::CLOSING,
    };
    if tell
        && matches!(
            hs.stage,
            Stage::Listening | Stage::Answering | Stage::Accepted | Stage::Proposed | Stage::Agreed
        )
        && (hs.peer_name_len > 0 || hs.line != 0 || hs.by_channel())
    {
        // SAFETY: the tuple was learnt in `begin`.
        let mut m = own_message(MessageKind::Decline, conn, unsafe { &*conn.tuple.get() });
        m.reason = why.0;
        m.echo = hs.peer_id;
        faults::at(Step::Declining);
        if let Ok(to) = peer_of(hs) {
            messages::tell(&to, &m);
        }
        faults::at(Step::Declined);
    }
    if matches!(hs.stage, Stage::Asking | Stage::Accepted | Stage::Proposed) {
        stop_waiting();
    }
    // A peer that knows of our DMB may have opened its side already: the DMB must not serve another connection before
    // the peer has let go of it.
    let told = hs.stage == Stage::Accepted
        || hs.stage == Stage::Agreed && conn.role.load(Ordering::Relaxed) == Role::Accepted;
    give_back(conn, hs, told);
    hs.stage = Stage::Over;
    let _ = conn
        .barred
        .compare_exchange(0, why.0, Ordering::AcqRel, Ordering::Relaxed);
    process::show(conn, ConnState::Tcp, why);
    crate::state::stats::count_reason(conn, why);
    process::count(Counter::Fallbacks, 1);
    if matches!(
        why,
        Reason::INTERNAL | Reason::NOT_PROVEN | Reason::PEER_MISBEHAVED | Reason::MEMORY
    ) {
        process::count(Counter::HandshakeErrors, 1);
    }
}

fn give_back(conn: &Conn, hs: &mut Handshake, told: bool) {
    names::let_go(conn, hs);
    names::expect_no_more(conn);
    channel::part(hs);
    if hs.attached {
        let dmb = conn.tx_dmb.load(Ordering::Acquire);
        // SAFETY: it is attached: it is mapped, and holds only atomics.
        group::detach(unsafe { &*dmb });
        conn.cost.end();
        hs.attached = false;
        faults::at(Step::Detached);
    }
    // If the lane has been open, other threads may be in the middle of a send. At `abandon` no thread is.
    if !conn.upgraded() || conn.closing.load(Ordering::Relaxed) == 2 {
        own_ring::detach(hs);
        copying::stop(conn);
    }
    if hs.rx_chunk != 0
        && let Some(mut locked) = group::lock()
    {
        let shared = conn.upgraded().then(|| conn.shared());
        let (group, chunk) = (hs.group - 1, hs.rx_chunk - 1);
        group::release_dmb(&mut locked, group, chunk, hs.rx_slot, told, shared);
        hs.rx_chunk = 0;
        faults::at(Step::Released);
        drop(locked);
        group::let_go_of_the_gone();
    }
}

/// Gives back whatever the handshake holds: the connection is going away.
pub fn abandon(conn: &'static Conn) {
    // SAFETY: the last hold is gone: nobody else looks at `hs` but `deliver`, which takes hs_lock.
    let hs = unsafe { &mut *conn.hs.get() };
    if !hs.has_not_begun() || conn.upgraded() {
        abandon_begun(conn, hs);
    }
}

#[cold]
fn abandon_begun(conn: &Conn, hs: &mut Handshake) {
    if matches!(hs.stage, Stage::Asking | Stage::Accepted | Stage::Proposed) {
        stop_waiting();
    }
    if hs.rx_chunk != 0 {
        faults::at(Step::Abandoning);
    }
    // The connecting side first mentions its DMB in the Confirm.
    let told = match conn.role.load(Ordering::Relaxed) {
        Role::Connected => hs.stage == Stage::Open,
        Role::Accepted => matches!(hs.stage, Stage::Accepted | Stage::Agreed | Stage::Open),
    };
    give_back(conn, hs, told);
    if hs.stage == Stage::Idle
        // A server that puts handshakes off may not have listened before (`process::payback`).
        && hs.tries >= TRIES
        && !hs.told_too_young
        && conn.role.load(Ordering::Relaxed) == Role::Connected
    {
        process::show(conn, ConnState::Tcp, Reason::PEER_NO_MEMLANE);
        crate::state::stats::count_reason(conn, Reason::PEER_NO_MEMLANE);
        process::count(Counter::Fallbacks, 1);
    }
    hs.stage = Stage::Over;
}
