//! Bells that ring without a byte: the kernel tells a set of an edge.
//!
//! A bell is one end of an AF_UNIX stream pair. The set waits, edge-triggered, for the moment in which the end is writable,
//! and it always is. So whatever makes the kernel look at the end again is reported, once. A sender makes it look by
//! `shutdown(SHUT_RD)` of its own end, as often as it likes: that takes no memory, cannot block, and leaves nothing to be
//! taken ([`make_edge`](memlane_sys::sock::make_edge)).
//!
//! Linux has always done so, but promises it nowhere. So each process tries it once, and asks for bytes where it fails.

use super::Ep;
use super::bells::{BYTES, data_of};
use super::kernel::{OUT, ctl};
use core::sync::atomic::{AtomicU32, Ordering};
use memlane_sys::{Result, epoll, sock};

/// Whether the kernel tells of edges: 0: not tried yet, or [`HEARD`] or [`UNHEARD`]. Written by the first threads that sleep
/// on bells, with the same value; nothing is ordered by it.
static EDGES: AtomicU32 = AtomicU32::new(0);
const HEARD: u32 = 1;
const UNHEARD: u32 = 2;

/// Makes the kernel report edges of the bells in the set, the next time that they are asked for. It reports each of these bells
/// at once, for the first time, which wakes a sleeper: to anybody who polled the set, that would be news of it. So this is called
/// where a thread sleeps on the set, or is about to. The caller holds the set's lock.
#[inline]
pub fn hear_edges(ep: &Ep) {
    let all = ep.bells.used.load(Ordering::Relaxed);
    if all != ep.bells.asked.load(Ordering::Relaxed) {
        ask_for_edges(ep, all);
    }
}

/// Asks once for each bell: one that the kernel does not know by this number any more rings by bytes.
#[cold]
fn ask_for_edges(ep: &Ep, all: u32) {
    let asked = ep.bells.asked.swap(all, Ordering::Relaxed);
    if !are_heard() {
        return;
    }
    for (n, place) in ep.bells.places_used() {
        let name = place.chunk.load(Ordering::Relaxed);
        if asked & 1 << n != 0 || name == 0 {
            continue;
        }
        let fd = place.fd.load(Ordering::Relaxed);
        if ctl(ep, libc::EPOLL_CTL_MOD, fd, (BYTES | OUT, data_of(name))).is_ok() {
            ep.bells.edges.fetch_or(1 << n, Ordering::Relaxed);
        }
    }
}

/// Does the kernel tell sets of edges? If a descriptor is missing to find out, it seems not to, for the moment.
pub fn are_heard() -> bool {
    if EDGES.load(Ordering::Relaxed) == 0
        && let Ok(heard) = try_one()
    {
        EDGES.store(if heard { HEARD } else { UNHEARD }, Ordering::Relaxed);
    }
    EDGES.load(Ordering::Relaxed) == HEARD
}

/// Tries a bell in a set of its own.
fn try_one() -> Result<bool> {
    let (ours, theirs) = sock::unix_stream()?;
    let set = epoll::create()?;
    epoll::add_edges(set.raw(), ours.raw(), 0)?;
    let is_told_once =
        || epoll::take_edge(set.raw()).is_some() && epoll::take_edge(set.raw()).is_none();
    let is_told_again = || sock::make_edge(theirs.raw()).is_ok() && is_told_once();
    Ok(is_told_once() && is_told_again() && is_told_again())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_tells_of_edges_again_and_again_and_bytes_still_come() {
        assert!(are_heard());
        let (ours, theirs) = sock::unix_stream().expect("a pair");
        for _ in 0..2 {
            sock::make_edge(theirs.raw()).expect("an edge");
            sock::send_byte(theirs.raw()).expect("a byte");
            assert_eq!(sock::discard(ours.raw()), Ok(1));
        }
    }
}
