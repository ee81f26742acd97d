//! Trimming: rings that have not been used for a while give their pages back to the kernel.
//!
//! A receiver that is parked with nothing unread is the only user of its ring: a sender that sees `PARKED` goes by TCP
//! and does not touch the ring. So the pages can go while the connection is cold. The pages of a slot that no
//! connection has can go too.
//!
//! A receiver that parks marks its slot here. A *look* happens at most once a second. It gives back the rings that were
//! already marked at the look before and have not been used since, and it notes the others for the next look. So a ring
//! loses its pages after one to two seconds. No thread does this. Calls that happen anyway look when it is time, and a
//! call that is about to sleep past the next look wakes up for it (`nap`). When nothing is marked any more, no call
//! looks, and sleeps are not split.

// Ticks and milliseconds stay far below 2^31 where they are cast.
#![allow(clippy::cast_possible_truncation)]

use crate::faults::{self, Step};
use crate::protocol::board;
use crate::protocol::group::{self, Holder, Locked};
use crate::state::conn::{Conn, LaneView, RxMode, SEEN_GROWN};
use crate::state::guard::try_lock_rx;
use crate::state::idle::{EVERY_MS, IN_VAIN, MARKS, NEXT, arm, mark, per_ms, used};
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use memlane_core::layout::WINDOW_LEAST;
use memlane_core::ring::Rx;
use memlane_sys::{mem, proc};

/// The most rings that one look gives back.
const MOST: u32 = 64;
/// The time in ms until the next look, if rings are left over.
const SOON_MS: u64 = 2;

/// After this many looks that gave nothing back, looking stops until a slot is marked anew: what is left is in use, or
/// waits for a peer.
const IN_VAIN_MOST: u32 = 8;

/// Marks the slot of a connection that has parked. The caller holds `rx_lock`.
pub(super) fn parked(conn: &Conn, rx: &Rx) {
    if conn.given_size.load(Ordering::Relaxed) != 0 {
        return; // the ring belongs to the user of the native interface
    }
    let size = conn.rx_size.load(Ordering::Relaxed) as usize;
    let has_grown = rx.window(size) > WINDOW_LEAST as usize;
    if has_grown && conn.seen.load(Ordering::Relaxed) & SEEN_GROWN == 0 {
        conn.seen.fetch_or(SEEN_GROWN, Ordering::Relaxed);
    }
    let (chunk, slot) = place(conn);
    if board::is_posted(chunk, slot, conn) {
        mark(chunk, slot);
    }
}

/// Unmarks the slot of a connection that is no longer parked.
#[inline]
pub(super) fn woken(conn: &Conn) {
    let (chunk, slot) = place(conn);
    used(chunk, slot);
}

fn place(conn: &Conn) -> (u32, u32) {
    (
        conn.rx_chunk.load(Ordering::Relaxed),
        conn.rx_slot.load(Ordering::Relaxed),
    )
}

/// Looks if it is time, and gives back what has not been used for a while. `now` is in `ticks`.
#[inline]
pub fn look(now: u64) {
    let next = NEXT.load(Ordering::Relaxed);
    if next != 0 && now >= next {
        look_now(next, now);
    }
}

#[cold]
fn look_now(next: u64, now: u64) {
    // From here on, a thread that marks a slot sees that no look is planned, and plans one.
    let mine = NEXT.compare_exchange(next, 0, Ordering::AcqRel, Ordering::Relaxed);
    if mine.is_err() {
        return;
    }
    // A signal handler that interrupted this thread would find the groups locked.
    let mask = proc::block_signals();
    let left = group::lock().map_or(Left::Some, |mut locked| look_at_all(&mut locked));
    proc::restore_signals(mask);
    match left {
        Left::Nothing => {}
        Left::Some => arm(now, EVERY_MS),
        Left::Aged => arm(now, SOON_MS),
    }
}

enum Left {
    Nothing,
    Some,
    Aged,
}

fn look_at_all(locked: &mut Locked<'_>) -> Left {
    let high = board::chunks_in_use();
    let mut budget = MOST;
    for (chunk, marks) in MARKS[..high].iter().enumerate() {
        let mut old = marks.dirty.load(Ordering::Acquire) & marks.aged.load(Ordering::Acquire);
        while old != 0 {
            let slot = old.trailing_zeros();
            old &= old - 1;
            if budget == 0 {
                return Left::Aged;
            }
            budget -= u32::from(give_back(locked, chunk as u32, slot));
        }
    }
    if budget < MOST {
        IN_VAIN.store(0, Ordering::Relaxed);
    } else if IN_VAIN.fetch_add(1, Ordering::Relaxed) >= IN_VAIN_MOST {
        return Left::Nothing;
    }
    let mut left = Left::Nothing;
    for marks in &MARKS[..high] {
        let young = marks.dirty.load(Ordering::Acquire);
        if young != 0 {
            marks.aged.fetch_or(young, Ordering::AcqRel);
            left = Left::Some;
        }
    }
    left
}

/// Gives a slot's ring back, and returns whether it did. If the ring may be needed, the slot stays marked as just used.
fn give_back(locked: &mut Locked<'_>, chunk: u32, slot: u32) -> bool {
    let (marks, bit) = (&MARKS[chunk as usize], 1u64 << slot);
    marks.aged.fetch_and(!bit, Ordering::AcqRel);
    // This comes first: a receiver that parks meanwhile marks the slot anew.
    marks.dirty.fetch_and(!bit, Ordering::AcqRel);
    let gone = match group::holder(locked, chunk, slot) {
        Holder::Somebody => false,
        Holder::Nobody(ring, size) => {
            punch(ring, size);
            true
        }
        Holder::Conn(conn, ring, size) => from_cold(conn, ring, size),
    };
    if !gone {
        marks.dirty.fetch_or(bit, Ordering::AcqRel);
    }
    gone
}

/// Gives back the ring of a cold connection. `conn` stays valid: the groups are locked.
fn from_cold(conn: &Conn, ring: NonNull<u8>, size: usize) -> bool {
    if conn.given_size.load(Ordering::Relaxed) != 0 {
        return true; // the ring belongs to the user of the native interface: the chunk holds nothing
    }
    let Some(mut held) = try_lock_rx(conn) else {
        return false;
    };
    if conn.rx_mode() == RxMode::Ended {
        // For good: nobody reads what a peer may still be writing.
        punch(ring, size);
        return true;
    }
    if conn.rx_mode() != RxMode::Cold {
        return false;
    }
    let Some(LaneView { words, .. }) = held.lane() else {
        return false;
    };
    if !held.owns_ring(words) {
        return false;
    }
    faults::at(Step::Trimming);
    if punch(ring, size) {
        faults::at(Step::Trimmed);
        held.set_trimmed(words);
        faults::at(Step::TrimTold);
        conn.seen.fetch_and(!SEEN_GROWN, Ordering::Relaxed);
    }
    true
}

/// Gives the pages of a ring back. Where the kernel refuses (pages larger than a ring's alignment), the ring stays as
/// it is.
fn punch(ring: NonNull<u8>, size: usize) -> bool {
    // SAFETY: `ring` and `size` are a ring of a chunk of ours, in whole pages; the caller knows that nobody uses it.
    unsafe { mem::punch(ring, size) }.is_ok()
}

/// How long a call that wants to sleep for `left_ms` (`None`: without end) should sleep first, in ms, so that it looks
/// in time. `None`: no need to split the sleep. `now` is in `ticks`.
#[inline]
pub(super) fn nap(now: u64, left_ms: Option<u64>) -> Option<i32> {
    let next = NEXT.load(Ordering::Relaxed);
    if next == 0 {
        return None;
    }
    let ms = next.saturating_sub(now) / per_ms() + 1;
    left_ms
        .is_none_or(|left| left > ms)
        .then(|| i32::try_from(ms).unwrap_or(i32::MAX))
}

/// A sleep that may be split into pieces, and how much of it is left. It counts by the kernel's clock, since the pieces
/// must add up to at least the whole.
#[derive(Debug)]
pub struct Pieces {
    whole_ms: Option<u64>,
    /// When the first piece began, in ns; 0: no piece has been slept yet. Any other number if the sleep has no end.
    began: u64,
}

impl Pieces {
    /// A sleep that has not been split yet.
    pub const WHOLE: Pieces = Pieces {
        whole_ms: None,
        began: 0,
    };

    /// What is left of a split sleep, in ms; `None`: without end.
    pub fn left(&self) -> Option<u64> {
        let whole = self.whole_ms?;
        let passed = memlane_sys::time::now_ns().saturating_sub(self.began);
        Some(
            whole
                .saturating_mul(1_000_000)
                .saturating_sub(passed)
                .div_ceil(1_000_000),
        )
    }

    /// How long to sleep first, in ms: see `nap`. `left_ms` is the whole sleep, before it is split; `most`: no piece is
    /// longer than this. `now` is in `ticks`.
    pub fn first(&mut self, now: u64, left_ms: Option<u64>, most: Option<u64>) -> Option<i32> {
        let left = if self.is_cut() { self.left() } else { left_ms };
        let most = most.filter(|most| left.is_none_or(|left| left > *most));
        let most = most.and_then(|ms| i32::try_from(ms).ok());
        let ms = match (nap(now, left), most) {
            (Some(nap), Some(most)) => nap.min(most),
            (nap, most) => nap.or(most)?,
        };
        if !self.is_cut() {
            self.whole_ms = left_ms;
            self.began = left_ms.map_or(1, |_| memlane_sys::time::now_ns());
        }
        Some(ms)
    }

    /// Has a piece been slept?
    pub fn is_cut(&self) -> bool {
        self.began != 0
    }
}

/// Has this connection's window grown, and is a look planned?
#[inline]
pub(super) fn is_due(conn: &Conn) -> bool {
    conn.seen.load(Ordering::Relaxed) & SEEN_GROWN != 0 && NEXT.load(Ordering::Relaxed) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::calls::io;
    use crate::protocol::lane::looped::{Looped, looped};
    use crate::protocol::lane::{self, Parked};
    use crate::state::guard::{lock_rx, lock_tx};
    use crate::state::process;
    use memlane_core::layout::RINGS_AT;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    /// Does the ring that this connection receives from have pages?
    fn has_pages(l: &Looped) -> bool {
        let ring = l.conn.rx_ring.load(Ordering::Relaxed) as usize;
        let (fd, at) = process::find_file(ring).unwrap();
        let file = std::fs::File::open(format!("/proc/self/fd/{fd}")).unwrap();
        assert!(at >= RINGS_AT && file.metadata().unwrap().blocks() > 0);
        let mut bytes = vec![0; l.conn.rx_size.load(Ordering::Relaxed) as usize];
        file.read_exact_at(&mut bytes, at as u64).unwrap();
        bytes.iter().any(|b| *b != 0) // the test sends no zeroes; pages that were given back hold only zeroes
    }

    fn pass(l: &Looped, n: usize) {
        let sent = vec![7u8; n];
        let mut got = vec![0u8; n];
        let n = n.cast_signed();
        assert_eq!(io::send(l.fd, sent.as_ptr().cast(), sent.len(), 0), n);
        let took = io::recv(l.fd, got.as_mut_ptr().cast(), got.len(), 0);
        assert!(took == n && got == sent);
    }

    fn looks() {
        let mut locked = group::lock().unwrap();
        // Two would do, but connections of other tests are given back too.
        for _ in 0..4 {
            look_at_all(&mut locked);
        }
    }

    fn ends(l: Looped) {
        process::forget(l.fd);
        drop(l.conn);
    }

    #[test]
    fn a_parked_ring_is_given_back_and_the_sender_begins_small_again() {
        let l = looped();
        pass(&l, 100_000);
        let size = l.conn.tx_size.load(Ordering::Relaxed) as usize;
        let window = |l: &Looped| lock_tx(&l.conn).unwrap().window(size);
        assert!(has_pages(&l) && window(&l) >= 100_000);
        looks();
        assert!(has_pages(&l), "an awake ring is in use");
        assert_eq!(
            lane::park(&l.conn, &mut lock_rx(&l.conn).unwrap()),
            Parked::Yes
        );
        looks();
        assert!(!has_pages(&l));
        // These bytes go by TCP, to the other end of this socket; the lane stays as it is.
        assert_eq!(io::send(l.fd, b"x".as_ptr().cast(), 1, 0), 1);
        assert_eq!(window(&l), WINDOW_LEAST as usize);
        ends(l);
    }

    #[test]
    fn a_ring_in_which_somebody_may_be_writing_is_never_given_back() {
        let l = looped();
        pass(&l, 100_000);
        let words = l.conn.rx_lane().unwrap().words;
        words.tx.0.writing.store(1, Ordering::SeqCst);
        let parked = lane::park(&l.conn, &mut lock_rx(&l.conn).unwrap());
        assert_eq!(parked, Parked::Stuck);
        // As if it had been marked nevertheless.
        mark(place(&l.conn).0, place(&l.conn).1);
        looks();
        assert!(has_pages(&l));
        // Looking stops after a while; a receiver that parks starts it again.
        for _ in 0..=2 * IN_VAIN_MOST {
            looks();
        }
        words.tx.0.writing.store(0, Ordering::SeqCst);
        assert_eq!(
            lane::park(&l.conn, &mut lock_rx(&l.conn).unwrap()),
            Parked::Yes
        );
        looks();
        assert!(!has_pages(&l));
        ends(l);
    }

    #[test]
    fn a_ring_whose_bytes_are_in_use_where_they_lie_is_not_given_back() {
        let l = looped();
        let sent = [7u8; 1000];
        assert_eq!(io::send(l.fd, sent.as_ptr().cast(), 1000, 0), 1000);
        let came = lane::place::receive(&l.conn, 1000, &[]).unwrap();
        assert!(matches!(came, lane::place::Came::Ring { len: 1000, .. }));
        let parked = lane::park(&l.conn, &mut lock_rx(&l.conn).unwrap());
        assert_eq!(parked, Parked::Yes);
        looks();
        assert!(has_pages(&l));
        lane::place::release_to(&l.conn, 1000);
        mark(place(&l.conn).0, place(&l.conn).1);
        looks();
        assert!(!has_pages(&l));
        ends(l);
    }

    #[test]
    fn a_slot_that_is_free_again_gives_its_ring_back() {
        let l = looped();
        pass(&l, 100_000);
        let (chunk, slot) = place(&l.conn);
        assert!(has_pages(&l));
        {
            let mut locked = group::lock().unwrap();
            let group = group::find(&mut locked, 1, proc::pid()).unwrap();
            let told = false; // no peer knows of this slot
            group::release_dmb(&mut locked, group, chunk, slot, told, None);
        }
        looks();
        assert!(!has_pages(&l));
        ends(l);
    }

    #[test]
    fn pieces_of_a_sleep_come_to_no_less_than_the_whole() {
        assert!(!Pieces::WHOLE.is_cut());
        let ago = |ns| memlane_sys::time::now_ns() - ns;
        let mut pieces = Pieces {
            whole_ms: Some(5000),
            began: ago(2_000_000_000),
        };
        let left = pieces.left().unwrap();
        assert!(left <= 3000 && pieces.is_cut(), "{left}");
        // A millisecond that has begun counts in full.
        pieces.began = ago(0);
        assert!(pieces.left() > Some(0));
        pieces.began = 1;
        assert_eq!(pieces.left(), Some(0));
        pieces.whole_ms = None;
        assert_eq!(pieces.left(), None);
    }
}
