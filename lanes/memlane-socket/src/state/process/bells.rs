//! The descriptors by which this process rings the bells of its peers' chunks (see [`memlane_core::bell`]).
//!
//! A connection knows its bell by the place in this table, so the descriptor may get another number. A forked child keeps the
//! descriptors, because it may send on the connections that it has inherited.

use super::hidden::{hide, unhide};
use crate::state::thread;
use core::sync::atomic::{AtomicI32, Ordering};
use memlane_core::bell::Ring;
use memlane_sys::Errno;
use memlane_sys::fd::Fd;
use memlane_sys::sock;

/// The most bells: those of 16,384 connections.
const MOST: usize = 256;
/// Bells may take this part of the descriptors that the program may have.
const OF_LIMIT: usize = 16;

/// 0: free. Written under the groups' lock, or when the program wants a number; read without a lock.
static BELLS: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];

/// The most bells that this process may have, of its own chunks or of its peers'.
pub fn most_bells() -> usize {
    MOST.min(usize::try_from(super::fd_limit()).unwrap_or(0) / OF_LIMIT)
}

/// Keeps the descriptor of a peer's bell. Returns its place, +1; 0: there is none, or this is no bell.
pub fn keep_bell(end: Fd) -> u32 {
    let free = |bell: &AtomicI32| bell.load(Ordering::Relaxed) == 0;
    let Some(place) = BELLS[..most_bells()].iter().position(free) else {
        return 0;
    };
    if !sock::is_unix_stream(end.raw()) {
        return 0;
    }
    let n = hide(end);
    if n <= 0 {
        return 0;
    }
    BELLS[place].store(n, Ordering::Release);
    u32::try_from(place + 1).unwrap_or(0)
}

/// Closes the bell in this place, +1; 0: none.
pub fn drop_bell(place: u32) {
    if let Some(bell) = at(place) {
        unhide(bell.swap(0, Ordering::AcqRel));
    }
}

/// Rings the bell in this place, +1, in this way, and notes for the calling thread that it has woken a peer. Returns whether
/// the peer hears it.
pub fn ring(place: u32, ring: Ring) -> bool {
    thread::current().has_rung.store(1, Ordering::Relaxed);
    let Some(bell) = at(place).map(|bell| bell.load(Ordering::Acquire)) else {
        return false;
    };
    if bell > 0 && ring == Ring::Edge && sock::make_edge(bell).is_ok() {
        return true;
    }
    // Without room for another byte, the peer has not taken the bytes of earlier rings, and wakes up by them.
    bell > 0 && matches!(sock::send_byte(bell), Ok(()) | Err(Errno::AGAIN))
}

/// Is hidden descriptor `n` a bell of a peer's?
pub(super) fn is_bell(n: i32) -> bool {
    BELLS.iter().any(|bell| bell.load(Ordering::Relaxed) == n)
}

/// A hidden descriptor has got another number; −1: it is gone.
pub(super) fn renumbered(n: i32, new: i32) {
    for bell in &BELLS {
        let _ = bell.compare_exchange(n, new.max(0), Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn at(place: u32) -> Option<&'static AtomicI32> {
    BELLS.get((place as usize).checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stream_is_kept_as_a_bell_and_it_rings_until_it_is_dropped() {
        thread::tests::set_own_locator();
        let (theirs, ours) = sock::unix_stream().expect("a pair");
        let place = keep_bell(ours);
        let thread = thread::current();
        assert_eq!(thread.has_rung.load(Ordering::Relaxed), 0);
        assert!(place > 0 && ring(place, Ring::Byte));
        assert_eq!(thread.has_rung.load(Ordering::Relaxed), 1);
        assert_eq!(sock::discard(theirs.raw()), Ok(1));
        // An edge leaves nothing.
        assert!(ring(place, Ring::Edge));
        assert_eq!(sock::discard(theirs.raw()), Err(Errno::AGAIN));
        // A peer that takes nothing does not make us wait.
        assert!((0..10_000).all(|_| ring(place, Ring::Byte)));
        drop(theirs);
        assert!(!ring(place, Ring::Byte), "nobody hears it");
        drop_bell(place);
        assert!([place, 0, u32::MAX].iter().all(|n| !ring(*n, Ring::Edge)));
        let (channel, _other) = sock::unix_channel().expect("a pair");
        assert_eq!(keep_bell(channel), 0);
    }
}
