//! Opening: the moment from which bytes may go by the ring. Until then, all calls count their bytes, and at this moment the
//! kernel's counts and our own must agree. So no thread may be inside a call that sends. Threads may be inside calls that
//! receive, and may sleep there for ever: the lane opens parked, and wakes up only when they have left.

use super::be_patient;
use super::messages::{Sent, own_message, peer_of, prefer_line, send_with_chunk, tell_dmb};
use crate::faults::{self, Step};
use crate::protocol::lane::copying;
use crate::protocol::wire::MessageKind;
use crate::state::conn::{Conn, Handshake, Role, RxMode, SharedState, Stage, TxMode};
use crate::state::gate::Busy;
use crate::state::guard::{RxGuard, TxGuard, lock_rx, lock_tx};
use crate::state::process::{self, ConnRef, PROCESS};
use core::sync::atomic::Ordering;
use memlane_core::layout::WINDOW_LEAST;
use memlane_core::reason::Reason;
use memlane_core::stats::ConnState;
use memlane_sys::sock::{self, TCP_ESTABLISHED};
use memlane_sys::time::ticks;
use memlane_sys::{proc, syscall};

/// How many looks fail before an opening waits for threads that send. Most connections open at the first.
const PATIENT_FROM: u32 = 8;
/// How long it waits, in µs. A thread that sends a stream is always inside a call, each of which takes some 50 µs; on a full
/// machine, it needs a CPU for it.
const PATIENCE_US: u64 = 1000;

/// Opens this side's lane with signals blocked. A handler that interrupted this and used the connection would wait for
/// its own thread.
pub(super) fn open(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    let mask = proc::block_signals();
    let opened = open_undisturbed(conn, hs);
    proc::restore_signals(mask);
    opened
}

/// Opens this side's lane once both sides agree, when no thread is inside a call that sends.
fn open_undisturbed(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    let shared = conn.shared();
    if shared.procs.load(Ordering::Acquire) != 1 {
        return Err(Reason::SHARED_FD);
    }
    let (Some(mut rx), Some(mut tx)) = (lock_rx(conn), lock_tx(conn)) else {
        return Ok(());
    };
    let began = match is_patient(hs.looks) {
        true => begin_move_patiently(shared),
        false => begin_move(shared),
    };
    if !began {
        return be_patient(conn, hs, Reason::COUNTS); // a thread is inside a call that sends
    }
    faults::at(Step::Opening);
    let opened = open_quiet(conn, hs, (&mut rx, &mut tx));
    if !matches!(opened, Ok(true)) {
        shared.rx_gate.set(RxMode::Plain);
        shared.tx_gate.set(TxMode::Plain);
        opened?;
        return be_patient(conn, hs, Reason::COUNTS);
    }
    faults::at(Step::Opened);
    process::show(conn, ConnState::Memlane, Reason::NONE);
    crate::state::stats::upgraded(conn);
    crate::state::stats::show_peer(conn, hs.peer_pid, hs.peer_uid, name_of_lane(conn, hs));
    crate::state::stats::show_copied(conn, copying::agreed(hs.peer_features));
    if conn.role.load(Ordering::Relaxed) == Role::Connected {
        hs.stage = Stage::Confirming;
        return confirm(conn, hs);
    }
    hs.stage = Stage::Open;
    Ok(())
}

/// What the lane is called at both ends.
fn name_of_lane(conn: &Conn, hs: &Handshake) -> u64 {
    let dmb = conn.tx_dmb.load(Ordering::Acquire);
    // SAFETY: attached: mapped, atomics only.
    let theirs = unsafe { &*dmb }.rx.0.token.load(Ordering::Relaxed);
    theirs ^ hs.rx_token
}

/// Sets both modes to `Moving`, unless a thread is inside a call that sends. The caller holds both locks.
fn begin_move(shared: &SharedState) -> bool {
    if !shared.rx_gate.close(RxMode::Plain) {
        return false;
    }
    let both = shared.tx_gate.begin_move(TxMode::Plain, Busy::Calls);
    if !both {
        shared.rx_gate.set(RxMode::Plain);
    }
    both
}

/// Does an opening wait at this look for threads that send? It does so at each power of two: seldom, if that is in vain.
fn is_patient(looks: u32) -> bool {
    looks >= PATIENT_FROM && looks.is_power_of_two()
}

/// Sets both modes to `Moving` at once, so that new calls wait. Then it gives threads that are sending a little time to finish.
/// The caller holds both locks.
fn begin_move_patiently(shared: &SharedState) -> bool {
    let (rx, tx) = (&shared.rx_gate, &shared.tx_gate);
    if !rx.close(RxMode::Plain) {
        return false;
    }
    let closed = tx.close(TxMode::Plain);
    let begin = ticks();
    let patience = PATIENCE_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    while closed && ticks().wrapping_sub(begin) < patience {
        if tx.is_quiet() {
            return true;
        }
        // SAFETY: no memory is concerned.
        let _ = unsafe { syscall!(libc::SYS_sched_yield) };
    }
    rx.set(RxMode::Plain);
    if closed {
        tx.set(TxMode::Plain);
    }
    false
}

/// Opens the lane if the kernel's byte counts equal our own. Both modes are `Moving`, and the caller holds both locks.
/// `Ok(false)`: not now.
fn open_quiet(
    conn: &Conn,
    hs: &Handshake,
    guards: (&mut RxGuard<'_>, &mut TxGuard<'_>),
) -> Result<bool, Reason> {
    let shared = conn.shared();
    let fd = conn.fd.load(Ordering::Relaxed);
    // A thread that is inside may have taken bytes that it has not counted yet.
    let is_quiet = shared.rx_gate.is_quiet();
    let Ok(counts) = sock::tcp_counts(fd) else {
        return Ok(false);
    };
    if counts.state != TCP_ESTABLISHED {
        return Err(Reason::CLOSING);
    }
    let (taken, written) = (
        shared.rx_count.load(Ordering::Relaxed),
        shared.tx_count.load(Ordering::Relaxed),
    );
    if counts.taken != taken || counts.written != written {
        return if hs.looks < 4 || !is_quiet {
            Ok(false)
        } else {
            Err(Reason::COUNTS)
        };
    }
    // A ring that a user gave is as large as the user wants it; the window of a ring in a chunk grows with the need.
    let least = hs.tx_map.map_or(WINDOW_LEAST, |_| 0);
    let dmb = (hs.rx_chunk - 1, hs.rx_slot);
    crate::protocol::lane::open(conn, guards, dmb, (taken, written), least);
    Ok(true)
}

pub(super) fn confirm(conn: &ConnRef, hs: &mut Handshake) -> Result<(), Reason> {
    // SAFETY: the tuple was learnt in `begin`.
    let tuple = unsafe { *conn.tuple.get() };
    let mut m = own_message(MessageKind::Confirm, conn, &tuple);
    tell_dmb(conn, &mut m, hs);
    prefer_line(hs);
    let to = peer_of(hs)?;
    faults::at(Step::Confirming);
    match send_with_chunk(conn, hs, &to, &mut m) {
        Ok(()) => {
            hs.stage = Stage::Open;
            faults::at(Step::Confirmed);
        }
        Err(Sent::Later) => hs.next_op = conn.ops() + 1,
        Err(Sent::Never(_)) => hs.stage = Stage::Over,
    }
    Ok(())
}
