//! The memory lane of a connection: how it opens, wakes and parks.

mod by_kernel;
#[cfg(test)]
mod copies;
pub mod copying;
mod ending;
#[cfg(test)]
mod exclusive;
#[cfg(test)]
mod full;
#[cfg(test)]
pub(super) mod looped;
pub mod naps;
#[cfg(test)]
mod nested;
mod order;
mod outbox;
pub mod place;
pub mod recv;
mod remains;
pub mod room;
pub mod send;
mod settle;
mod silence;
#[cfg(test)]
mod stuck;
mod swept;
pub mod trim;
pub mod tune;
mod wake_backoff;
mod window;

pub use ending::{closing, detach, end, end_rx, end_tx, misbehaved};
pub use remains::{Patience, holds_bytes};
use settle::settle;
pub use swept::is_idle;

use crate::faults::{self, Step};
use crate::protocol::board;
use crate::protocol::group;
use crate::state::conn::{Conn, LaneView, RxMode, SEEN_BELL, SEEN_WIDENED, TxMode};
use crate::state::gate::Busy;
use crate::state::guard::{RxGuard, TxGuard, lock_rx};
use crate::state::process;
use crate::state::sets;
use core::sync::atomic::Ordering;
use memlane_core::layout::{PARKED, WANT_BELL, WANT_READY};
use memlane_core::ring::{Next, ParkCheck, Rx};
use memlane_core::stats::Counter;

/// Opens the lane in both directions. Both modes are `Moving` on entry.
///
/// `taken` and `written` are the stream offsets that TCP has reached; `rx_count` has counted `taken`, and perhaps more.
/// `least` is the size of the window of the peer's ring to begin with, in bytes; 0 means the whole ring, always.
pub fn open(
    conn: &Conn,
    (rx, tx): (&mut RxGuard<'_>, &mut TxGuard<'_>),
    (chunk, slot): (u32, u32),
    (taken, written): (u64, u64),
    least: u32,
) {
    let shared = conn.shared();
    let Some(words) = group::own_words(chunk, slot) else {
        return;
    };
    conn.rx_chunk.store(chunk, Ordering::Relaxed);
    conn.rx_slot.store(slot, Ordering::Relaxed);
    let size = group::own_ring_size(chunk);
    let (ring, size) = match conn.given_size.load(Ordering::Relaxed) {
        0 => (group::own_ring(chunk, slot, size), size),
        given => (conn.given_ring.load(Ordering::Relaxed), given),
    };
    conn.rx_size.store(size, Ordering::Relaxed);
    conn.rx_ring.store(ring, Ordering::Relaxed);
    board::post(chunk, slot, conn);
    let fd = conn.fd.load(Ordering::Relaxed);
    let nonblock = memlane_sys::fd::status_flags(fd).is_ok_and(|f| f & libc::O_NONBLOCK != 0);
    shared
        .nonblock
        .store(u32::from(nonblock), Ordering::Relaxed);
    tune::tune(conn);
    // A call that is inside may have counted more by now.
    shared.rx_count.fetch_sub(taken, Ordering::AcqRel);
    shared.rx_flight.store(0, Ordering::Relaxed);
    shared.tx_flight.store(0, Ordering::Relaxed);
    **rx = Rx::prepared();
    rx.took(words, taken);
    conn.rx_dmb
        .store(core::ptr::from_ref(words).cast_mut(), Ordering::Release);
    let Some(peers) = conn.tx_lane() else {
        return; // cannot happen: the chunk is attached before the handshake agrees
    };
    tx.activate_window(peers.words, written, least);
    faults::at(Step::Activated);
    crate::state::idle::mark(chunk, slot); // an earlier user of the slot may have left pages
    crate::state::stats::show_rings(conn);
    crate::state::stats::show_window(conn, tx.window(peers.ring.len()));
    shared.tx_gate.set(TxMode::Open);
    shared.rx_gate.set(RxMode::Cold);
}

/// Wakes the lane after bytes came by TCP: later bytes may come by the ring. Does nothing while a thread sleeps in the
/// kernel on this connection.
pub fn wake(conn: &Conn) {
    let shared = conn.shared();
    group::close_if_arrived(conn);
    let Some(mut held) = lock_rx(conn) else {
        return;
    }; // taking the lock also publishes what earlier reads took
    let Some(LaneView { words, .. }) = held.lane() else {
        return;
    };
    if !Rx::sender_active(words) {
        return;
    }
    let gate = &shared.rx_gate;
    if !gate.begin_move(RxMode::Cold, Busy::CallsAndSleepers) {
        return; // already awake, or a thread sleeps in the kernel
    }
    let bell = board::bell_of(conn);
    if !sets::may_wake(&conn.regs, bell.as_ref(), board::hang, board::count_on) {
        gate.set(RxMode::Cold);
        return;
    }
    // Before the sender may write into the ring: a thread that lies down on the set takes its bit for news.
    board::hot(conn.rx_chunk.load(Ordering::Relaxed), true);
    let want = wanted(conn, bell.as_ref());
    faults::at(Step::Waking);
    held.set_flags(words, want);
    trim::woken(conn);
    wake_backoff::woken(conn);
    faults::at(Step::Awake);
    if conn.seen.load(Ordering::Relaxed) & SEEN_WIDENED == 0 {
        tune::widen_window(conn);
    }
    words
        .rx
        .0
        .rx_cpu
        .store(cpu_mark_for(conn), Ordering::Relaxed);
    show_parked(conn, false);
    shared.rx_gate.set(RxMode::Hot);
    naps::tell_sender(words);
}

/// The CPU that this thread runs on, as the peer of a connection is told; 0, "not known", for one on another machine.
fn cpu_mark_for(conn: &Conn) -> u32 {
    if conn.is_across() {
        0
    } else {
        crate::state::spin::cpu_mark()
    }
}

/// What a sender must do after publishing, for who waits for this connection: `WANT_READY`, `WANT_BELL` or nothing.
fn wanted(conn: &Conn, bell: Option<&sets::Bell>) -> u32 {
    let is_own = |bell: &sets::Bell| bell.sleeper == sets::Sleeper::this_thread();
    let (bell, is_known) = (bell.is_some_and(is_own), has_polled_bell(conn));
    if bell && !is_known {
        conn.seen.fetch_or(SEEN_BELL, Ordering::Relaxed);
    } else if is_known && !bell {
        conn.seen.fetch_and(!SEEN_BELL, Ordering::Relaxed);
    }
    let ready = if sets::is_registered(&conn.regs) {
        WANT_READY
    } else {
        0
    };
    if bell { ready | WANT_BELL } else { ready }
}

/// Does the sender ring a bell for a thread that polls?
fn has_polled_bell(conn: &Conn) -> bool {
    conn.seen.load(Ordering::Relaxed) & SEEN_BELL != 0
}

/// The bell that wakes the calling thread for this connection while it is awake.
pub fn polled_bell(conn: &Conn) -> Option<sets::Bell> {
    let is_shared = || conn.shared().procs.load(Ordering::Relaxed) > 1;
    if !has_polled_bell(conn) || conn.rx_mode() != RxMode::Hot || is_shared() {
        return None;
    }
    board::bell_of(conn).filter(|bell| bell.sleeper == sets::Sleeper::this_thread())
}

/// Asks the sender for ready bits: the connection has just been added to an epoll set while it is awake.
pub fn want_ready(conn: &Conn) {
    let Some(mut held) = lock_rx(conn) else {
        return;
    };
    if conn.rx_mode() == RxMode::Hot
        && let Some(lane) = held.lane()
    {
        let flags = held.flags() | WANT_READY;
        held.set_flags(lane.words, flags);
    }
}

/// The result of an attempt to park.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parked {
    /// The mode is `Cold` (or already was): sleep on TCP.
    Yes,
    /// There is data, or a change of lane, to read.
    Data,
    /// The peer stays in the middle of a write: the caller may sleep only for a moment.
    Stuck,
    /// The lane has ended.
    Ended,
}

/// Parks the receiver: `Hot` → `Cold`. The caller holds `rx_lock`.
pub fn park(conn: &Conn, held: &mut RxGuard<'_>) -> Parked {
    let shared = conn.shared();
    match conn.rx_mode() {
        RxMode::Cold => return Parked::Yes,
        RxMode::Hot | RxMode::Drain => {}
        _ => return Parked::Ended,
    }
    let Some(LaneView { words, .. }) = held.lane() else {
        return Parked::Ended;
    };
    if conn.rx_mode() == RxMode::Drain {
        // The peer does not announce what it writes now: the flags already tell it to use TCP.
        return match held.check_park(words) {
            ParkCheck::WriterBusy => Parked::Stuck,
            _ => Parked::Data,
        };
    }
    held.begin_park(words, PARKED);
    faults::at(Step::Parking);
    match settle(held, words) {
        ParkCheck::Parked => {
            board::hot(conn.rx_chunk.load(Ordering::Relaxed), false);
            process::count(Counter::Parks, 1);
            show_parked(conn, true);
            naps::end_own(words);
            trim::parked(conn, held);
            wake_backoff::parked(conn);
            shared.rx_gate.set(RxMode::Cold);
            faults::at(Step::Parked);
            Parked::Yes
        }
        ParkCheck::Data => {
            held.unpark(words);
            Parked::Data
        }
        ParkCheck::WriterBusy => {
            held.unpark(words);
            Parked::Stuck
        }
    }
}

/// The number of unread bytes in the ring up to the next TCP run.
pub fn unread(conn: &Conn) -> u64 {
    if !conn.upgraded() || !conn.rx_mode().is_awake() {
        return 0;
    }
    let Some(mut held) = lock_rx(conn) else {
        return 0;
    };
    let Some(lane) = held.lane() else { return 0 };
    match held.next(lane.words, lane.ring.len()) {
        Ok(Next::Ring(n)) => n as u64,
        Err(_) => 1, // the read that follows ends the connection
        _ => 0,
    }
}

/// The number of unread bytes in the ring, including those behind TCP runs.
pub fn in_ring(conn: &Conn) -> u64 {
    let mut sum = 0;
    walk(conn, |piece| {
        if let Next::Ring(n) = piece {
            sum += n as u64;
        }
        true
    });
    sum
}

/// The number of bytes that reads would get now without waiting. `by_tcp` is the number of bytes that the kernel holds.
/// Ring bytes behind a TCP run that has not fully arrived do not count.
pub fn readable_now(conn: &Conn, by_tcp: u64) -> u64 {
    if !conn.upgraded() || !conn.rx_mode().is_awake() {
        return by_tcp;
    }
    let (mut sum, mut left) = (0, by_tcp);
    let ended = walk(conn, |piece| match piece {
        Next::Ring(n) => {
            sum += n as u64;
            true
        }
        Next::Tcp(k) => {
            let arrived = left.min(k);
            sum += arrived;
            left -= arrived;
            arrived == k
        }
        _ => false,
    });
    // Bytes behind the last run, or after the end of the lane: all that the kernel holds can be read.
    if ended { sum + left } else { sum }
}

/// Does the ring hold bytes behind others that the kernel holds?
pub fn has_bytes_behind_tcp(conn: &Conn) -> bool {
    let mut run_is_first = false;
    let mut has_more = false;
    walk(conn, |piece| {
        match piece {
            Next::Tcp(_) => run_is_first = true,
            _ => has_more = run_is_first,
        }
        !has_more && run_is_first
    });
    has_more && kernel_holds_bytes(conn)
}

fn kernel_holds_bytes(conn: &Conn) -> bool {
    let fd = conn.fd.load(Ordering::Relaxed);
    memlane_sys::sock::queue_len(fd, libc::FIONREAD).is_ok_and(|n| n > 0)
}

/// Shows `look` the unread pieces of the stream in order, until it returns `false`. Returns `true` if the walk reached
/// the end of what has been published.
fn walk(conn: &Conn, mut look: impl FnMut(Next) -> bool) -> bool {
    if !conn.upgraded() || !conn.rx_mode().is_awake() {
        return true;
    }
    let Some(held) = lock_rx(conn) else {
        return false;
    };
    let mut rx: Rx = *held;
    let Some(LaneView { words, ring }) = held.lane() else {
        return true;
    };
    // Bounded: each turn passes a run or reaches the end.
    for _ in 0..2 * memlane_core::layout::RUNS + 2 {
        match rx.next(words, ring.len()) {
            Ok(piece @ (Next::Ring(_) | Next::Tcp(_))) => {
                if !look(piece) {
                    return false;
                }
                match piece {
                    Next::Ring(n) => rx.skip(n as u64),
                    Next::Tcp(k) => rx.skip(k),
                    _ => {}
                }
            }
            _ => return true,
        }
    }
    false
}

/// Does the ring hold something to read? Does not ask the kernel.
#[inline]
pub fn readable(conn: &Conn) -> bool {
    match conn.rx_mode() {
        RxMode::Hot => has_published(conn) && unread(conn) > 0,
        RxMode::Drain => unread(conn) > 0,
        _ => false,
    }
}

/// Has the sender published anything beyond what has been taken? It may be a TCP run. Takes no lock: where another thread is about
/// to take it, the answer is a moment old.
#[inline]
fn has_published(conn: &Conn) -> bool {
    conn.rx_lane().is_some_and(|lane| {
        let published = lane.words.sent.0.published.load(Ordering::Relaxed);
        published != conn.shared().rx_taken.load(Ordering::Relaxed)
    })
}

/// May the ring hold something to read? For spin loops: takes no lock, and may be wrong either way.
#[inline]
pub fn perhaps_readable(conn: &Conn) -> bool {
    match conn.shared().rx_gate.glance() {
        RxMode::Hot => has_published(conn),
        RxMode::Drain => true,
        _ => false,
    }
}

fn show_parked(conn: &Conn, parked: bool) {
    if let Some(e) = process::entry(conn) {
        e.parked.store(u32::from(parked), Ordering::Relaxed);
    }
}
