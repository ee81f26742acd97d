//! How the lane of a connection ends: by this side, by the peer, or because its bytes cannot be believed.

use super::settle::settle;
use super::{naps, outbox, tune, unread};
use crate::faults::{self, Step};
use crate::protocol::board;
use crate::state::conn::{Conn, LaneView, RxMode, TxMode};
use crate::state::guard::{lock_rx, lock_tx};
use crate::state::process;
use core::sync::atomic::Ordering;
use memlane_core::layout::{PARKED, TCP_ONLY};
use memlane_core::reason::Reason;
use memlane_core::ring::{Misbehaved, ParkCheck, Rx};
use memlane_core::stats::{ConnState, Counter};
use memlane_sys::sock;

/// Ends the memory lane. What lies in the ring is still read; everything later comes and goes by TCP.
pub fn end(conn: &Conn, why: Reason) {
    if !conn.upgraded() {
        return;
    }
    let ended_tx = end_tx(conn);
    let ended_rx = end_rx(conn);
    if ended_tx || ended_rx {
        process::show(conn, ConnState::Downgraded, why);
        crate::state::stats::count_reason(conn, why);
        process::count(Counter::Downgrades, 1);
    }
}

/// The peer has ended one direction. If the other direction had ended before and the connection lives on, the peer
/// wants TCP, and the reason says so. A peer that just closes ends both directions too, but then the connection does
/// not live on.
#[cold]
pub(super) fn ended_by_peer(conn: &Conn) {
    let over =
        conn.tx_mode() == TxMode::Ended && matches!(conn.rx_mode(), RxMode::Drain | RxMode::Ended);
    let goes_on = || {
        let counts = sock::tcp_counts(conn.fd.load(Ordering::Relaxed));
        counts.is_ok_and(|counts| counts.state == sock::TCP_ESTABLISHED)
    };
    let why = Reason::PEER_TCP_ONLY;
    if over
        && conn.barred.load(Ordering::Relaxed) == 0
        && goes_on()
        && conn
            .barred
            .compare_exchange(0, why.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    {
        process::show(conn, ConnState::Downgraded, why);
        crate::state::stats::count_reason(conn, why);
        process::count(Counter::Downgrades, 1);
    }
}

/// Has the peer announced the end that TCP shows? A peer that shuts down or closes does; one that dies cannot.
pub(super) fn is_announced(conn: &Conn) -> bool {
    let (Some(from), Some(to)) = (conn.rx_lane(), conn.tx_lane()) else {
        return true;
    };
    Rx::sender_ended(from.words) || to.words.rx.0.flags.load(Ordering::Acquire) & TCP_ONLY != 0
}

/// The peer's side of TCP has ended: sends everything by TCP from here on. The kernel answers a death with unread bytes
/// by RST, but does not know of unread bytes in the ring, so this makes that answer.
#[cold]
pub(super) fn peer_ended(conn: &Conn) {
    let died = conn.tx_mode() == TxMode::Open && !is_announced(conn);
    let unread = || {
        let lane = conn.tx_lane()?;
        Some(lock_tx(conn)?.ring_unread(lane.words) == Ok(true))
    };
    let is_reset = died && unread() == Some(true);
    if !end_tx(conn) || !is_reset {
        return;
    }
    conn.shared()
        .pending_error
        .store(libc::ECONNRESET, Ordering::Relaxed);
    // SAFETY: no pointers are passed. On the socket of a reset connection, later sends fail with EPIPE.
    let _ = unsafe {
        memlane_sys::syscall!(
            libc::SYS_shutdown,
            conn.fd.load(Ordering::Relaxed),
            libc::SHUT_RDWR
        )
    };
}

/// Sends everything by TCP from here on. Returns whether the lane was open.
pub fn end_tx(conn: &Conn) -> bool {
    let Some(mut held) = lock_tx(conn) else {
        return false;
    };
    let Some(lane) = held.lane().filter(|_| conn.tx_mode() == TxMode::Open) else {
        return false;
    };
    faults::at(Step::EndingTx);
    held.go_tcp_only(lane.words);
    naps::tell_receiver(lane.words);
    faults::at(Step::EndedTx);
    tune::tx_ended(conn);
    drop(held);
    outbox::send(conn);
    true
}

/// Makes the peer send everything by TCP from here on. What is in the ring stays readable. Returns whether the lane was
/// open.
pub fn end_rx(conn: &Conn) -> bool {
    let Some(mut held) = lock_rx(conn) else {
        return false;
    };
    let was = conn.rx_mode();
    let open = was == RxMode::Hot || was == RxMode::Cold;
    let Some(LaneView { words, .. }) = held.lane().filter(|_| open) else {
        return false;
    };
    held.begin_park(words, PARKED | TCP_ONLY);
    faults::at(Step::EndingRx);
    let state = settle(&held, words);
    naps::end_own(words);
    if was == RxMode::Hot && conn.inherited.load(Ordering::Relaxed) == 0 {
        board::hot(conn.rx_chunk.load(Ordering::Relaxed), false);
    }
    let empty = was == RxMode::Cold || state == ParkCheck::Parked;
    tune::rx_ended(conn, if empty { RxMode::Ended } else { RxMode::Drain });
    faults::at(Step::EndedRx);
    true
}

/// Ends the lane before this process closes its last descriptor, so that the peer learns of the close from TCP, as it
/// would without memlane.
pub fn closing(conn: &Conn) {
    if !conn.upgraded() || conn.shared().procs.load(Ordering::Acquire) > 1 {
        return;
    }
    faults::at(Step::Closing);
    end_rx(conn);
    end_tx(conn);
    faults::at(Step::ClosingTold);
    if unread(conn) > 0 {
        // The kernel answers a close with unread data by RST. It does not know of unread bytes in the ring, so a zero
        // linger time asks it for the same.
        let linger = [1i32, 0i32];
        let _ = sock::set_option(
            conn.fd.load(Ordering::Relaxed),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            linger,
        );
    }
}

/// Takes the connection off its chunk's count of awake connections: it is gone from this process.
pub fn detach(conn: &Conn) {
    if conn.upgraded()
        && conn.rx_mode() == RxMode::Hot
        && conn.inherited.load(Ordering::Relaxed) == 0
    {
        board::hot(conn.rx_chunk.load(Ordering::Relaxed), false);
    }
}

/// Ends a connection whose peer wrote values that the protocol does not allow. Nothing else ends.
#[cold]
pub fn misbehaved(conn: &Conn, _what: Misbehaved) {
    process::count(Counter::PeerMisbehaved, 1);
    cut(conn, Reason::PEER_MISBEHAVED);
}

/// Ends a connection whose bytes are lost or cannot be believed.
#[cold]
pub(super) fn cut(conn: &Conn, why: Reason) {
    let shared = conn.shared();
    shared.rx_gate.set(RxMode::Ended);
    shared.tx_gate.set(TxMode::Ended);
    process::show(conn, ConnState::Downgraded, why);
    crate::state::stats::count_reason(conn, why);
    // SAFETY: no pointers are passed. The stream cannot be made whole again, so the socket is shut down.
    let _ = unsafe {
        memlane_sys::syscall!(
            libc::SYS_shutdown,
            conn.fd.load(Ordering::Relaxed),
            libc::SHUT_RDWR
        )
    };
}
