//! Room in a full ring: how a sender waits for it, and when TCP takes over.
//!
//! A full ring holds bytes that the receiver has not read, so the receiver is awake or waits for a CPU. TCP would not
//! make it faster, and what TCP buffers must be read before the ring is of use again. So a sender waits for as long as
//! the receiver reads:
//!
//! * A blocking send spins, lets others run, and then naps: it sleeps for 50 µs, 100 µs … 32 ms at a time, until the
//!   receiver wakes it, and looks at the ring in between.
//! * A non-blocking send says `EAGAIN`; one of at most half the window goes whole or not at all, as mostly on TCP,
//!   which becomes writable when a third of its buffer is free. The connection then counts as **full**: poll, select and
//!   epoll do not report it as writable until a quarter of the window is free, and nap in the same way ([`is_full`]).
//! * poll, select and epoll promise that a send does not block. So they do not report a connection whose sends may block as
//!   writable while less than a quarter of the window is free and the window cannot grow ([`fills`]).
//! * A non-blocking send of a program that calls this library by name waits in the call, for at most [`BY_NAME_US`] in
//!   all.
//!
//! TCP takes over where the receiver has read nothing for [`STALL_US`]: it computes, or it sends to us and waits for
//! room itself. Programs rely on what TCP's buffers hold. A receiver of many streams reads from the others meanwhile
//! ([`crate::state::readers`]): then the sender waits for up to [`TURN_US`], since a stream whose sender fills TCP's
//! buffers in each turn stays on TCP. A receiver whose own bytes wait to be read here may wait for us, and is not waited for.
//!
//! `SharedState::tx_full`, `tx_stalled_at` and `tx_stalled_by` are written and read relaxed by the threads that send or
//! wait. They only say when to look again, and a lost update makes one look too many.

use super::naps;
use super::window::{allowed, show_change};
use crate::state::conn::{Conn, Dmb, LaneView, TxMode};
use crate::state::guard::lock_tx;
use crate::state::process::{self, PROCESS};
use crate::state::sets;
use crate::state::spin::{self, Spun};
use crate::state::thread;
use core::sync::atomic::Ordering;
use memlane_core::layout::{PARKED, TCP_ONLY};
use memlane_core::ring::Room;
use memlane_core::stats::Counter;
use memlane_sys::sock;
use memlane_sys::time::ticks;

/// How long a receiver may read nothing before TCP takes over, in microseconds: a few of the scheduler's slices (2.8
/// ms on Linux 6.18), for which a receiver that wants to read may have to wait.
const STALL_US: u64 = 10_000;
/// How long a receiver that reads from other streams of this process may read nothing from one, in microseconds, before
/// TCP takes over: longer than a turn over 450 streams takes while their senders fill TCP's buffers (decision 0020).
const TURN_US: u64 = 200_000;
/// How long a non-blocking send looks for room, in microseconds: about what `EAGAIN` and a wait cost the program.
const BRIEF_US: u32 = 5;
/// How long sends that must not block wait for room in all, in microseconds, before TCP takes over, in a program that
/// calls this library by name: it may sleep in the kernel, which does not know of the ring.
const BY_NAME_US: u64 = 10_000;
/// A receiver that takes fewer bytes than this …
const LEAST_PROGRESS: u64 = 16 * 1024;
/// … in this many microseconds does more than receive, so such a send does not wait for it.
const PROGRESS_WITHIN_US: u64 = 500;
/// A stream whose window has at least this many bytes is a bulk transfer.
const BULK: usize = 256 * 1024;
/// The bytes that go by TCP to a parked receiver before the sender waits for it.
const PIECE: i64 = 64 * 1024;
/// The bytes that go by TCP to a receiver that reads without waking up, or does not read, before the sender waits again.
const BY_TCP: i64 = 1 << 20;
/// Bit of `SharedState::tx_full`: the sender waits for the receiver to wake up or to read.
const TO_WAKE: u64 = 1 << 63;
/// The shortest nap, in microseconds: the kernel's timer slack, below which naps do not become shorter.
const NAP_LEAST_US: u64 = 50;
/// The longest nap of a thread that nobody wakes, in microseconds: at 1 GB/s, a receiver reads a quarter of a large
/// window meanwhile.
const NAP_MOST_US: u64 = 1_000;
/// The longest first nap of a thread that the receiver wakes, in microseconds: it looks before [`STALL_US`] are over.
const WOKEN_NAP_FIRST_US: u64 = 8_000;
/// The longest nap of such a thread, in microseconds: then 1,000 threads look 30,000 times a second.
const WOKEN_NAP_MOST_US: u64 = 32_000;

/// The result of a wait for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waited {
    /// Look at the ring again: there is room, or a signal handler has run.
    Look,
    /// The send must not block: it ends, and the connection counts as full.
    Full,
    /// The receiver has stopped reading: send by TCP.
    Stalled,
    /// The socket's time limit for sends is over.
    TimeUp,
    /// TCP has something to tell: the peer has ended its side, or is gone.
    News,
}

/// Waits for room in a full ring, as a send of `want` bytes with these flags may. `begun`: some of its bytes have gone.
pub(super) fn wait(conn: &Conn, want: usize, flags: i32, begun: bool) -> Waited {
    let want = if conn.must_not_block(flags) { want } else { 0 };
    let Some((words, target)) = begin(conn, want) else {
        return Waited::Look;
    };
    if !conn.must_not_block(flags) {
        return block(conn, words, target);
    }
    if process::is_by_name() {
        return look_by_name(conn, words, target);
    }
    look(conn, words, target, begun)
}

/// Decides what a send of `want` bytes does about a parked receiver. The first bytes go by TCP, which wakes it. The
/// sender of a bulk transfer then waits for it to wake up: the rest would fill TCP's buffers, and the stream would stay
/// on TCP. A receiver that reads without waking up (its other threads sleep on the same set) gets more by TCP. A send
/// that must not block and has `begun` waits only for a moment: see [`goes_whole`].
pub(super) fn wait_for_wake(conn: &Conn, want: usize, flags: i32, begun: bool) -> Waited {
    let shared = conn.shared();
    let want = i64::try_from(want).map_or(PIECE, |want| want.min(PIECE));
    let waited = if shared.tx_to_parked.fetch_add(want, Ordering::Relaxed) < PIECE {
        Waited::Stalled
    } else {
        wait_to_wake(conn, flags, begun)
    };
    if waited == Waited::Stalled {
        process::count(Counter::WakeupsSent, 1);
    }
    waited
}

fn wait_to_wake(conn: &Conn, flags: i32, begun: bool) -> Waited {
    let Some(words) = conn.tx_lane().map(|lane| lane.words) else {
        return Waited::Look;
    };
    let sent = &conn.shared().tx_to_parked;
    sent.store(0, Ordering::Relaxed);
    let is_awake = || words.rx.0.flags.load(Ordering::Relaxed) & PARKED == 0;
    match bulk_in_flight(conn, words) {
        Some(false) => return Waited::Stalled, // it has read all, and sleeps: only TCP wakes it
        Some(true) if begun && conn.must_not_block(flags) => {
            // The next send waits before it begins.
            sent.store(PIECE, Ordering::Relaxed);
            return spin_to_wake(u32::MAX, words, is_awake);
        }
        Some(true) if !conn.must_not_block(flags) || !process::is_by_name() => {}
        _ => return spin_to_wake(u32::MAX, words, is_awake),
    }
    let before = conn.shared().tx_full.load(Ordering::Relaxed);
    let waited = if before & TO_WAKE != 0 && has_room(words, before) {
        // It has read. If it is about to say that it is awake, it does so at once.
        spin_to_wake(BRIEF_US, words, is_awake)
    } else {
        let target = TO_WAKE | (words.consumed.0.load(Ordering::Relaxed) + 1);
        note(conn, words, target);
        if conn.must_not_block(flags) {
            look(conn, words, target, begun)
        } else {
            block(conn, words, target)
        }
    };
    if waited == Waited::Stalled {
        sent.store(-BY_TCP, Ordering::Relaxed);
    }
    waited
}

fn spin_to_wake(most_us: u32, words: &Dmb, is_awake: impl FnMut() -> bool) -> Waited {
    match spin::for_room(most_us, is_receiver_here(words), is_awake) {
        Spun::Ready => Waited::Look,
        _ => Waited::Stalled,
    }
}

/// Has the receiver of a bulk transfer bytes to read? `None`: this is no bulk transfer.
fn bulk_in_flight(conn: &Conn, words: &Dmb) -> Option<bool> {
    let mut held = lock_tx(conn)?;
    let size = held.lane()?.ring.len();
    if held.window(size) < BULK {
        return None;
    }
    Some(held.drained(words) == Ok(false))
}

/// Notes that the ring is full. Returns its words, and the stream offset up to which the receiver must have read for
/// `want` bytes and a quarter of the window. `None`: the lane has ended.
fn begin(conn: &Conn, want: usize) -> Option<(&Dmb, u64)> {
    let (words, target) = {
        let held = lock_tx(conn)?;
        let lane = held.lane()?;
        (lane.words, held.room_from(lane.ring.len(), want).max(1))
    };
    note(conn, words, target);
    Some((words, target))
}

/// Notes what the sender waits for, and, if it has not waited before, since when.
fn note(conn: &Conn, words: &Dmb, target: u64) {
    let shared = conn.shared();
    if shared.tx_full.load(Ordering::Relaxed) == 0 {
        let consumed = words.consumed.0.load(Ordering::Relaxed);
        shared.tx_stalled_by.store(consumed, Ordering::Relaxed);
        shared.tx_stalled_at.store(ticks(), Ordering::Relaxed);
    }
    shared.tx_full.store(target, Ordering::Relaxed);
}

/// Should a send of `want` bytes that finds room for some of them wait for room for all? Programs are known that lose
/// bytes when a send that usually takes all takes a part (iperf3 3.12 with `-F`).
#[inline]
pub(super) fn goes_whole(conn: &Conn, flags: i32, want: usize, window: usize) -> bool {
    want <= window / 2 && conn.must_not_block(flags) && !process::is_by_name()
}

/// Notes that bytes have gone into the ring.
#[inline(always)]
pub(super) fn end(conn: &Conn) {
    let full = &conn.shared().tx_full;
    if full.load(Ordering::Relaxed) != 0 {
        full.store(0, Ordering::Relaxed);
        conn.reader.has_read(ticks());
    }
}

/// Must the program wait before it sends? Only after a send that did not block has found the ring full. `false` does
/// not mean that TCP has room.
#[inline]
pub fn is_full(conn: &Conn) -> bool {
    let target = conn.shared().tx_full.load(Ordering::Relaxed);
    target != 0 && is_still_full(conn, target)
}

/// Must a program that asks poll, select or epoll wait before it sends? A socket on TCP is writable while a third of its buffer is
/// free, so a program may rely on that a small send returns at once, though its sends block. If one waited for room here, and
/// the peer waited likewise, neither would read (socat).
pub fn fills(conn: &Conn) -> bool {
    if conn.is_nonblock() || conn.shared().tx_full.load(Ordering::Relaxed) != 0 {
        return is_full(conn);
    }
    conn.tx_mode() == TxMode::Open && lacks_room(conn)
}

/// Is less than a quarter of the window free, although it has grown as far as it may? Then the connection counts as full.
#[cold]
fn lacks_room(conn: &Conn) -> bool {
    let target = {
        let Some(mut held) = lock_tx(conn) else {
            return false;
        };
        let Some(LaneView { words, ring }) = held.lane() else {
            return false;
        };
        let target = held.room_from(ring.len(), 0);
        if words.consumed.0.load(Ordering::Relaxed) >= target {
            return false;
        }
        let window = held.window(ring.len());
        let (quarter, now) = (window / 4, ticks());
        let allow = |wanted| allowed(conn, &ring, (window, wanted), quarter, now);
        let reserved = held.reserve_if(words, ring.len(), quarter, allow);
        show_change(conn, window, held.window(ring.len()));
        let has_room = match reserved {
            Ok(Room::Ring(room)) => {
                held.commit(words, 0);
                room >= quarter
            }
            Ok(Room::Full) => false,
            // A send will see to it.
            Ok(Room::Tcp(_)) | Err(_) => true,
        };
        if has_room {
            return false;
        }
        note(conn, words, target);
        target
    };
    is_still_full(conn, target)
}

/// May the library itself say that the program can write, without asking the kernel? A send that may block must then go by the ring:
/// TCP may be full, and would keep it for as long as the peer does not read.
pub fn is_writable(conn: &Conn) -> bool {
    let shared = conn.shared();
    if conn.tx_mode() != TxMode::Open || shared.tx_blocked.load(Ordering::Relaxed) != 0 {
        return false;
    }
    if conn.is_nonblock() {
        return !is_full(conn);
    }
    let target = shared.tx_full.load(Ordering::Relaxed) & !TO_WAKE;
    conn.tx_lane().is_some_and(|lane| {
        let flags = lane.words.rx.0.flags.load(Ordering::Relaxed);
        let has_room = lane.words.consumed.0.load(Ordering::Relaxed) >= target;
        flags & (PARKED | TCP_ONLY) == 0 && has_room
    })
}

/// What a connection that was [full](is_full) is now, as far as an epoll set must know.
pub fn fullness(conn: &Conn) -> sets::Fullness {
    if is_full(conn) {
        sets::Fullness::Full
    } else if conn.is_nonblock() || is_writable(conn) {
        sets::Fullness::Room
    } else {
        sets::Fullness::AskKernel
    }
}

/// After a send that may block: if the next one would find too little room, the sets in which the program waits to write do not call the
/// connection writable.
#[cold]
pub(super) fn tell_sets(conn: &Conn) {
    if sets::is_writable_awaited(&conn.regs) && fills(conn) {
        sets::full(&conn.regs, &process::HIDING);
    }
}

fn is_still_full(conn: &Conn, target: u64) -> bool {
    if conn.tx_mode() != TxMode::Open {
        return false;
    }
    conn.tx_lane()
        .is_some_and(|lane| !has_room(lane.words, target) && !is_stalled(conn, lane.words))
}

/// Has the receiver read up to `target`, or changed the lane by which it wants bytes?
fn has_room(words: &Dmb, target: u64) -> bool {
    let flags = words.rx.0.flags.load(Ordering::Relaxed);
    let was_parked = if target & TO_WAKE == 0 { 0 } else { PARKED };
    words.consumed.0.load(Ordering::Relaxed) >= target & !TO_WAKE
        || flags & TCP_ONLY != 0
        || flags & PARKED != was_parked
}

/// Has the receiver read nothing for a while?
fn is_stalled(conn: &Conn, words: &Dmb) -> bool {
    let shared = conn.shared();
    let consumed = words.consumed.0.load(Ordering::Relaxed);
    let now = ticks();
    if shared.tx_stalled_by.swap(consumed, Ordering::Relaxed) != consumed {
        shared.tx_stalled_at.store(now, Ordering::Relaxed);
        conn.reader.has_read(now);
        return false;
    }
    let per_us = PROCESS.ticks_per_us.load(Ordering::Relaxed);
    let waited = now.saturating_sub(shared.tx_stalled_at.load(Ordering::Relaxed));
    let will_come = || conn.reader.reads(now, STALL_US * per_us) && !may_wait_for_us(conn);
    waited > STALL_US * per_us && (waited > TURN_US * per_us || !will_come())
}

/// Are there bytes of the peer's that this side has not read? Then the peer may read on only when they are.
fn may_wait_for_us(conn: &Conn) -> bool {
    let fd = conn.fd.load(Ordering::Relaxed);
    super::perhaps_readable(conn) || sock::queue_len(fd, libc::FIONREAD).unwrap_or(0) > 0
}

/// Looks for room in a send that must not block; for longer if it has `begun`, and then its rest goes by TCP
/// (see [`goes_whole`]). Returns `Full` if there is none.
fn look(conn: &Conn, words: &Dmb, target: u64, begun: bool) -> Waited {
    let has_room = || has_room(words, target);
    let brief = match (begun, is_receiver_here(words)) {
        (true, _) => u32::MAX,
        (false, true) => 0,
        (false, false) => BRIEF_US,
    };
    if spin::for_room(brief, begun && is_receiver_here(words), has_room) == Spun::Ready {
        return Waited::Look;
    }
    if begun || is_stalled(conn, words) {
        return Waited::Stalled;
    }
    // It is the ring that the program waits for. TCP may have had room for long, and the kernel has said so.
    conn.shared().tx_blocked.store(0, Ordering::Relaxed);
    if !sets::full(&conn.regs, &process::HIDING) {
        return Waited::Stalled;
    }
    Waited::Full
}

/// Looks for room in a send that must not block, of a program that sleeps where nothing hides that TCP has room. It
/// waits for [`BY_NAME_US`] in all until TCP says `EAGAIN`.
fn look_by_name(conn: &Conn, words: &Dmb, target: u64) -> Waited {
    let waited = &conn.shared().tx_waited;
    if waited.load(Ordering::Relaxed) >= BY_NAME_US * PROCESS.ticks_per_us.load(Ordering::Relaxed) {
        return Waited::Stalled;
    }
    let per_us = PROCESS.ticks_per_us.load(Ordering::Relaxed);
    let (start, before) = (ticks(), waited.load(Ordering::Relaxed));
    let mut seen = (start, words.consumed.0.load(Ordering::Relaxed));
    loop {
        let is_here = is_receiver_here(words);
        let spun = spin::for_room(u32::MAX, is_here, || has_room(words, target));
        let now = (ticks(), words.consumed.0.load(Ordering::Relaxed));
        let sum = before + now.0.wrapping_sub(start);
        waited.store(sum, Ordering::Relaxed);
        if spun == Spun::Ready {
            return Waited::Look;
        }
        if now.1.wrapping_sub(seen.1) >= LEAST_PROGRESS {
            seen = now;
        } else if now.0.wrapping_sub(seen.0) > PROGRESS_WITHIN_US * per_us {
            return Waited::Stalled;
        }
        if sum >= BY_NAME_US * per_us {
            return Waited::Stalled;
        }
        memlane_sys::proc::yield_now();
    }
}

/// Was the receiver last seen on this very CPU?
pub(super) fn is_receiver_here(words: &Dmb) -> bool {
    words.rx.0.rx_cpu.load(Ordering::Relaxed) == spin::cpu_mark()
}

/// Was the receiver of this connection last seen on this very CPU?
pub fn is_peer_here(conn: &Conn) -> bool {
    conn.tx_lane()
        .is_some_and(|lane| is_receiver_here(lane.words))
}

/// The naps of a thread that waits for room, each twice as long as the one before.
#[derive(Debug)]
pub struct Naps {
    next_us: u64,
    most_us: u64,
}

impl Naps {
    /// The first nap is the shortest.
    pub const FRESH: Naps = Naps {
        next_us: NAP_LEAST_US,
        most_us: NAP_MOST_US,
    };

    /// For a thread that the receiver wakes, and that had to wait for `last_us` the last time. The first nap is half as long:
    /// each nap ends in a look, and the looks of many threads take a CPU. A wake-up that is missed costs no more than that.
    fn woken(last_us: u64) -> Naps {
        Naps {
            next_us: (last_us / 2).clamp(NAP_LEAST_US, WOKEN_NAP_FIRST_US),
            most_us: WOKEN_NAP_MOST_US,
        }
    }

    /// The length of the next nap, in microseconds.
    pub fn next_us(&mut self) -> u64 {
        let us = self.next_us;
        self.next_us = (2 * us).min(self.most_us);
        us
    }
}

/// Waits in a send that may block.
fn block(conn: &Conn, words: &Dmb, target: u64) -> Waited {
    let has_room = || has_room(words, target);
    match spin::for_room(u32::MAX, is_receiver_here(words), has_room) {
        Spun::Nothing => nap_for_room(conn, words, target),
        Spun::Ready | Spun::Signal => Waited::Look,
    }
}

/// Sleeps and looks, in turns.
#[cold]
fn nap_for_room(conn: &Conn, words: &Dmb, target: u64) -> Waited {
    let fd = conn.fd.load(Ordering::Relaxed);
    let handlers = || thread::current().signals.load(Ordering::Relaxed);
    let (before, start) = (handlers(), ticks());
    let limit = time_limit(fd);
    let last_us = &conn.shared().tx_napped_us;
    let mut lengths = if conn.is_across() {
        Naps::FRESH
    } else {
        Naps::woken(last_us.load(Ordering::Relaxed))
    };
    loop {
        let passed =
            ticks().wrapping_sub(start) / PROCESS.ticks_per_us.load(Ordering::Relaxed).max(1);
        if has_room(words, target) || conn.tx_mode() != TxMode::Open || handlers() != before {
            last_us.store(passed, Ordering::Relaxed);
            return Waited::Look;
        }
        if is_stalled(conn, words) {
            return Waited::Stalled;
        }
        if limit.is_some_and(|limit| passed >= limit) {
            return Waited::TimeUp;
        }
        let look_again = || has_room(words, target) || conn.tx_mode() != TxMode::Open;
        let left = limit.map_or(u64::MAX, |limit| limit - passed);
        let (target, us) = (target & !TO_WAKE, lengths.next_us().min(left));
        if naps::until_room(words, conn.is_across(), target, us, look_again) && has_peer_ended(conn)
        {
            return Waited::News;
        }
    }
}

/// The socket's time limit for sends (`SO_SNDTIMEO`), in microseconds. `None`: no limit.
fn time_limit(fd: i32) -> Option<u64> {
    let [s, us] = sock::option::<[i64; 2]>(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO).ok()?;
    let us = u64::try_from(s).ok()? * 1_000_000 + u64::try_from(us).ok()?;
    (us != 0).then_some(us)
}

/// Has the peer ended its side of TCP, or died?
fn has_peer_ended(conn: &Conn) -> bool {
    sock::has_peer_ended(conn.fd.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::calls::io;
    use crate::protocol::lane::looped::looped;
    use std::io::Write as _;

    #[test]
    fn a_receiver_of_other_streams_is_waited_for_unless_it_may_wait_for_us() {
        let l = looped();
        let words = l.conn.tx_lane().unwrap().words;
        let per_us = PROCESS.ticks_per_us.load(Ordering::Relaxed);
        let stalled_after = |us: u64| {
            let at = &l.conn.shared().tx_stalled_at;
            at.store(ticks() - us * per_us, Ordering::Relaxed);
            is_stalled(&l.conn, words)
        };
        l.conn.reader.begin(700);
        assert!(!stalled_after(STALL_US / 2));
        assert!(stalled_after(2 * STALL_US), "it reads nothing at all");
        // Later than now, however slow this test is.
        l.conn.reader.has_read(ticks() + 60_000_000 * per_us);
        assert!(!stalled_after(2 * STALL_US) && !stalled_after(TURN_US / 2));
        assert!(stalled_after(2 * TURN_US));
        // This connection's ring leads back to it: what it sends waits to be read here.
        let mut bytes = [7u8; 10];
        assert_eq!(io::send(l.fd, bytes.as_ptr().cast(), 10, 0), 10);
        assert!(stalled_after(2 * STALL_US), "bytes in the ring wait here");
        assert_eq!(io::recv(l.fd, bytes.as_mut_ptr().cast(), 10, 0), 10);
        assert!(!is_stalled(&l.conn, words), "it has read");
        assert!(!stalled_after(2 * STALL_US));
        (&l.ends[1]).write_all(&bytes).unwrap();
        assert!(stalled_after(2 * STALL_US), "bytes of TCP wait here");
        process::forget(l.fd);
    }

    #[test]
    fn naps_begin_with_half_of_the_last_wait_and_become_longer_up_to_a_bound() {
        let lengths = |mut naps: Naps, n| -> Vec<u64> { (0..n).map(|_| naps.next_us()).collect() };
        assert_eq!(lengths(Naps::FRESH, 6), [50, 100, 200, 400, 800, 1000]);
        assert_eq!(lengths(Naps::woken(0), 2), [50, 100]);
        assert_eq!(lengths(Naps::woken(1_000), 2), [500, 1000]);
        assert_eq!(
            lengths(Naps::woken(90_000), 4),
            [8_000, 16_000, 32_000, 32_000]
        );
    }
}
