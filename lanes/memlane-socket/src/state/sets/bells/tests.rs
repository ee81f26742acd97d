//! Tests of the places for bells.

use super::*;
use std::os::fd::AsRawFd as _;

/// The set's bells, as a wait sees them.
fn seen(ep: &Ep) -> Vec<u32> {
    ep.bells.chunks().map(|(name, _)| name).collect()
}

#[test]
fn a_place_that_a_bell_has_left_is_used_again_and_bells_behind_it_are_still_seen() {
    // SAFETY: zeros are valid for all of its fields, which are atomics; nobody else has this set.
    let ep: Box<Ep> = unsafe { Box::new(core::mem::zeroed()) };
    let set = memlane_sys::epoll::create().expect("a set");
    ep.reset(set.raw());
    let ends: Vec<_> = (0..=BELLS)
        .map(|_| std::os::unix::net::UnixStream::pair().expect("a pair"))
        .collect();
    let bell = |chunk: u32| Bell {
        chunk,
        fd: ends[chunk as usize].0.as_raw_fd(),
        sleeper: Sleeper::NOBODY,
    };
    let all = BELLS as u32;
    assert!(seen(&ep).is_empty());
    assert!((0..all).all(|chunk| hang(&ep, &bell(chunk), |_| false)));
    assert!(seen(&ep).into_iter().eq(0..all));
    assert!(!hang(&ep, &bell(all), |_| false), "all places are taken");
    take_down(&ep, &bell(3));
    assert!(seen(&ep).into_iter().eq((0..all).filter(|n| *n != 3)));
    assert!(hang(&ep, &bell(all), |_| false));
    assert_eq!(seen(&ep)[3], all, "the place of the one that has left");
    assert!(hang(&ep, &bell(7), |_| false), "it is there");
    assert_eq!(seen(&ep).len(), BELLS);
    ep.reset(set.raw());
    assert!(seen(&ep).is_empty());
}

#[test]
fn a_bell_in_a_set_is_no_news_of_the_set_until_a_thread_lies_down_and_then_edges_ring() {
    // SAFETY: zeros are valid for all of its fields, which are atomics; nobody else has this set.
    let ep: Box<Ep> = unsafe { Box::new(core::mem::zeroed()) };
    let set = memlane_sys::epoll::create().expect("a set");
    ep.reset(set.raw());
    let is_told = || memlane_sys::epoll::ready(set.raw()).next().is_some();
    let ends = [0, 1].map(|_| memlane_sys::sock::unix_stream().expect("a pair"));
    for (chunk, (ours, _)) in (5..).zip(&ends) {
        let bell = Bell {
            chunk,
            fd: ours.raw(),
            sleeper: Sleeper::NOBODY,
        };
        assert!(hang(&ep, &bell, |_| false));
        assert!(!is_told() && ep.bells.ring_of(chunk) == Ring::Byte);
        hear_edges(&ep);
        assert!(is_told() && ep.bells.ring_of(chunk) == Ring::Edge);
        hear_edges(&ep);
        assert!(!is_told(), "it has been told");
    }
    for (_, theirs) in &ends {
        memlane_sys::sock::make_edge(theirs.raw()).expect("an edge");
        assert!(is_told() && !is_told());
    }
    // The next bell in the place of another one is told of bytes alone at first.
    let bell = |chunk, n: usize| Bell {
        chunk,
        fd: ends[n].0.raw(),
        sleeper: Sleeper::NOBODY,
    };
    take_down(&ep, &bell(5, 0));
    assert!(hang(&ep, &bell(9, 0), |_| false) && !is_told());
    assert!(ep.bells.ring_of(9) == Ring::Byte && ep.bells.ring_of(6) == Ring::Edge);
    hear_edges(&ep);
    assert!(is_told() && ep.bells.ring_of(9) == Ring::Edge);
}
