//! Naps: a blocking read, or a blocking send into a full ring, sleeps for a moment while its lane stays in use, and the other
//! end wakes it ([`memlane_core::nap`]).
//!
//! A read that parks instead gets the next message by TCP, which costs both ends more than the wake-up does, and a stream
//! goes on by TCP until the receiver has woken up. But only a thread that sleeps on the socket learns at once from the kernel
//! that the peer has died: so a nap lasts [`READ_US`] at most, and then the connection parks. A connection whose naps have
//! been in vain skips the next ones ([`crate::state::read_naps`]).

use super::settle::settle;
use crate::faults::{self, Step};
use crate::state::conn::{Conn, Dmb, RxMode};
use crate::state::guard::lock_rx;
use crate::state::process::{self, PROCESS};
use crate::state::spin;
use core::sync::atomic::{AtomicU32, Ordering};
use memlane_core::layout::{ASLEEP, AWAKE};
use memlane_core::nap::Nap;
use memlane_core::ring::{Next, ParkCheck, Rx};
use memlane_core::stats::Counter;
use memlane_core::sync::{Cpu, Words as _};
use memlane_sys::sock;
use memlane_sys::time::ticks;
use memlane_sys::{fd, futex};

/// The longest nap of a read, in microseconds. So much later than a plain read may it learn that its peer has died.
const READ_US: u64 = 10_000;

/// How long a thread that closes a socket waits for another, whose nap it has ended, in microseconds: it may be long before
/// that one gets a CPU.
const READER_US: u64 = 100_000;

/// Naps until bytes come, in a read that may block and has found none. Returns whether it has napped and the caller should
/// look again; if not, it parks. In both cases, the caller calls [`up`] before anything else may close the socket under it.
#[cold]
pub(super) fn until_bytes(conn: &Conn) -> bool {
    let shared = conn.shared().procs.load(Ordering::Relaxed) > 1;
    let is_hot = conn.rx_mode() == RxMode::Hot;
    if shared || !is_hot || conn.is_across() || !conn.naps.is_due() || has_time_limit(conn) {
        return false;
    }
    let Some(words) = conn.rx_lane().map(|lane| lane.words) else {
        return false;
    };
    if !conn.naps.take() {
        return false;
    }
    let napped = lies_down(conn, words).then(|| sleep(&words.rx.0.nap, READ_US));
    words.rx.0.nap.get_up();
    if let Some(was_woken) = napped {
        conn.naps.ended(!was_woken);
    }
    napped == Some(true)
}

/// The end of a nap, and of parking after it. Returns the library's own descriptor of the socket if another thread closes the
/// program's last one; 0 or less: it does not, or there is none to be had.
pub(super) fn up(conn: &Conn) -> i32 {
    conn.naps.give_back()
}

/// Asks the sender to wake this thread. `false`: there is something to read in the ring or on TCP, or the sender stays in the
/// middle of a write. What it has declared for TCP does not show in what it has published.
fn lies_down(conn: &Conn, words: &Dmb) -> bool {
    let Some(mut held) = lock_rx(conn) else {
        return false;
    };
    if conn.rx_mode() != RxMode::Hot {
        return false;
    }
    let Some(lane) = held.lane() else {
        return false;
    };
    Rx::begin_nap(words);
    faults::at(Step::Napping);
    settle(&held, words) == ParkCheck::Parked
        && held.next(lane.words, lane.ring.len()) == Ok(Next::Empty)
}

/// The kernel must count the whole of a time limit for receives (`SO_RCVTIMEO`).
fn has_time_limit(conn: &Conn) -> bool {
    let fd = conn.fd.load(Ordering::Relaxed);
    let limit: [i64; 2] = sock::option(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO).unwrap_or([0, 0]);
    limit != [0, 0]
}

/// Sleeps on a word for at most `us` microseconds. Returns whether the sleep ended before its time was up.
fn sleep(nap: &Nap<Cpu>, us: u64) -> bool {
    process::count(Counter::KernelWaits, 1);
    let start = ticks();
    let was_woken = futex::wait(&nap.0, ASLEEP, us) != Err(futex::TIME_UP);
    spin::slept(ticks().wrapping_sub(start));
    was_woken
}

/// Wakes the receiver if it naps. The caller has published, behind the ring's own fence.
#[inline(always)]
pub(super) fn wake_receiver(words: &Dmb) {
    if words.rx.0.nap.must_wake() {
        wake(&words.rx.0.nap);
    }
}

/// Wakes the receiver if it naps, after news that no fence of the ring's follows.
pub(super) fn tell_receiver(words: &Dmb) {
    Cpu::full_fence();
    wake_receiver(words);
}

/// Keeps the socket of a connection open for a thread that naps on it, while another closes its last descriptor: the kernel
/// keeps it open for a thread that sleeps in a read.
pub fn keep_for_reader(conn: &Conn) {
    if conn.naps.claim() {
        let kept = fd::duplicate(conn.fd.load(Ordering::Relaxed)).map(process::hide);
        conn.naps.keep(kept.unwrap_or(-1));
    }
}

/// Waits until the thread that naps has taken the descriptor that [`keep_for_reader`] has left, after the nap has been ended.
/// If the thread does not take it in time (a handler has jumped out of it, say), nobody will.
pub fn await_reader(conn: &Conn) {
    let start = ticks();
    let most = READER_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    while conn.naps.has_kept() {
        if ticks().wrapping_sub(start) > most {
            process::unhide(conn.naps.take_back());
            return;
        }
        memlane_sys::proc::yield_now();
    }
}

/// Ends a nap of this side's own reader: what it naps on is not in use any more.
pub(super) fn end_own(words: &Dmb) {
    if words.rx.0.nap.0.load(Ordering::Relaxed) != AWAKE {
        wake_receiver(words);
    }
}

/// Naps until the receiver has read up to `target`, for at most `us` microseconds. `has_room` tells whether it has done so by
/// now. Returns whether time is up. Nobody on another machine (`is_across`) can wake this thread: it sleeps for all of `us`.
pub(super) fn until_room(
    words: &Dmb,
    is_across: bool,
    target: u64,
    us: u64,
    has_room: impl FnOnce() -> bool,
) -> bool {
    if is_across {
        let alone = Nap::<Cpu>(AtomicU32::new(ASLEEP));
        return !has_room() && !sleep(&alone, us);
    }
    let waits = &words.waits.0;
    waits.room_at.store(target, Ordering::Relaxed);
    waits.nap.lie_down();
    Cpu::full_fence();
    let is_up = !has_room() && !sleep(&waits.nap, us);
    waits.nap.get_up();
    is_up
}

/// Wakes the sender if it naps until there is as much room as there is now. No fence follows what was consumed, so a nap that
/// just begins may be missed: it ends by itself.
#[inline(always)]
pub(super) fn wake_sender(words: &Dmb, consumed: u64) {
    let waits = &words.waits.0;
    if waits.nap.0.load(Ordering::Relaxed) == ASLEEP
        && consumed >= waits.room_at.load(Ordering::Relaxed)
        && waits.nap.must_wake()
    {
        wake(&waits.nap);
    }
}

/// Wakes the sender if it naps: the receiver has woken up.
pub(super) fn tell_sender(words: &Dmb) {
    if words.waits.0.nap.must_wake() {
        wake(&words.waits.0.nap);
    }
}

#[cold]
fn wake(nap: &Nap<Cpu>) {
    process::count(Counter::BellsRung, 1);
    let _ = futex::wake(&nap.0); // fails where nothing is mapped, and in memory of a device
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::lane::looped::looped;

    /// Long enough for a test to fail by it.
    const LONG_US: u64 = 30_000_000;

    fn until_asleep(nap: &Nap<Cpu>) {
        while nap.0.load(Ordering::Relaxed) != ASLEEP {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_sender_that_naps_is_woken_when_there_is_as_much_room_as_it_waits_for() {
        let l = looped();
        let words = l.conn.tx_lane().unwrap().words;
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| until_room(words, false, 100, LONG_US, || false));
            until_asleep(&words.waits.0.nap);
            wake_sender(words, 99);
            assert_eq!(words.waits.0.nap.0.load(Ordering::Relaxed), ASLEEP);
            wake_sender(words, 100);
            assert!(!sender.join().unwrap(), "time was not up");
        });
        let (here, across) = (false, true);
        assert!(
            until_room(words, here, 100, 1_000, || false),
            "nobody wakes it"
        );
        assert!(
            !until_room(words, here, 100, LONG_US, || true),
            "there is room"
        );
        assert!(until_room(words, across, 100, 1_000, || false));
        assert!(!until_room(words, across, 100, LONG_US, || true));
        assert_eq!(
            words.waits.0.nap.0.load(Ordering::Relaxed),
            AWAKE,
            "no peer is told"
        );
        process::forget(l.fd);
    }

    #[test]
    fn a_reader_that_naps_is_woken_by_bytes_and_when_its_own_side_ends_the_nap() {
        let l = looped();
        let words = l.conn.rx_lane().unwrap().words;
        let naps_until = |what: &dyn Fn()| {
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| sleep_as_reader(words));
                until_asleep(&words.rx.0.nap);
                what();
                assert!(reader.join().unwrap(), "time was not up");
            });
        };
        naps_until(&|| tell_receiver(words));
        naps_until(&|| end_own(words));
        let sent = [7u8; 10];
        naps_until(&|| {
            let n = crate::hooks::calls::io::send(l.fd, sent.as_ptr().cast(), 10, 0);
            assert_eq!(n, 10);
        });
        // With bytes in the ring, nobody lies down.
        assert!(!lies_down(&l.conn, words));
        process::forget(l.fd);
    }

    /// The sender has said that all else goes by TCP before the receiver lies down: nobody would wake it.
    #[test]
    fn a_reader_whose_peer_has_ended_does_not_lie_down() {
        let l = looped();
        let words = l.conn.rx_lane().unwrap().words;
        assert!(lies_down(&l.conn, words));
        words.rx.0.nap.get_up();
        assert!(crate::protocol::lane::end_tx(&l.conn));
        assert!(!lies_down(&l.conn, words));
        process::forget(l.fd);
    }

    /// What lies in TCP's buffers counts as bytes in the window.
    #[test]
    fn a_sender_that_naps_is_woken_by_a_read_of_tcp_s_bytes() {
        use crate::hooks::calls::io;
        use std::io::{Read as _, Write as _};
        let l = looped();
        let words = l.conn.tx_lane().unwrap().words;
        let parked = crate::protocol::lane::park(&l.conn, &mut lock_rx(&l.conn).unwrap());
        assert_eq!(parked, crate::protocol::lane::Parked::Yes);
        let mut bytes = [7u8; 10];
        assert_eq!(io::send(l.fd, bytes.as_ptr().cast(), 10, 0), 10);
        // The ring leads back to this end, and TCP to the other.
        (&l.ends[1]).read_exact(&mut bytes).unwrap();
        (&l.ends[1]).write_all(&bytes).unwrap();
        crate::protocol::lane::wake(&l.conn);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| until_room(words, false, 10, LONG_US, || false));
            until_asleep(&words.waits.0.nap);
            assert_eq!(io::recv(l.fd, bytes.as_mut_ptr().cast(), 10, 0), 10);
            assert!(!sender.join().unwrap(), "time was not up");
        });
        process::forget(l.fd);
    }

    fn sleep_as_reader(words: &Dmb) -> bool {
        Rx::begin_nap(words);
        let was_woken = sleep(&words.rx.0.nap, LONG_US);
        words.rx.0.nap.get_up();
        was_woken
    }

    /// A handler that jumps out of a nap leaves the thread's name there. The socket must end with its last descriptor.
    #[test]
    fn a_descriptor_that_nobody_takes_is_closed_again() {
        let l = looped();
        std::thread::scope(|scope| {
            let gone = scope.spawn(|| assert!(l.conn.naps.take()));
            gone.join().unwrap();
        });
        keep_for_reader(&l.conn);
        assert!(l.conn.naps.has_kept());
        await_reader(&l.conn);
        assert!(!l.conn.naps.has_kept() && !l.conn.naps.claim());
        process::forget(l.fd);
    }
}
