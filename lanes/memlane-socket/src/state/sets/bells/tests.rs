//! Tests of the places for bells.

use super::*;
use std::os::fd::AsRawFd as _;

/// The set's bells, as a wait sees them.
fn seen(ep: &Ep) -> Vec<u32> {
    ep.bells.chunks().collect()
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
