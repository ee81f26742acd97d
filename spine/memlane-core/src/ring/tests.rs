//! With a look at private words, which the tests beside the crate cannot have.

use super::*;
use crate::layout::DMB_WORDS_LEN;
use crate::region::Region;
use crate::sync::Cpu;

const SIZE: usize = 64;

/// One byte by the ring, then two promises by TCP: they must share one run.
fn ring_then_tcp(tx: &mut Tx, w: &DmbWords<Cpu>) {
    assert_eq!(tx.reserve(w, SIZE, 1), Ok(Room::Ring(1)));
    tx.commit(w, 1);
    let declared = tx.declared;
    for _ in 0..2 {
        tx.promise_tcp(w, 1);
        tx.paid(1);
    }
    assert_eq!(
        tx.declared,
        declared.wrapping_add(1),
        "contiguous runs merge"
    );
}

#[test]
fn what_is_held_is_not_written_over_and_what_comes_behind_it_waits_with_it() {
    let region = Region::create(c"held", DMB_WORDS_LEN, false).unwrap();
    // SAFETY: atomics only; the region outlives the reference.
    let w = unsafe { region.words::<DmbWords<Cpu>>(0).unwrap().as_ref() };
    let (mut tx, mut rx) = (Tx::default(), Rx::default());
    rx.prepare(w);
    rx.unpark(w);
    tx.activate(w, 0);
    assert_eq!(tx.reserve(w, SIZE, SIZE), Ok(Room::Ring(SIZE)));
    tx.commit(w, 40);
    assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(40)));
    rx.took_to_hold(10);
    rx.took_to_hold(30);
    assert_eq!(rx.next(w, SIZE), Ok(Next::Empty));
    assert_eq!(
        tx.reserve(w, SIZE, SIZE),
        Ok(Room::Ring(24)),
        "none of the 40"
    );
    tx.commit(w, 0);
    // Bytes of TCP behind them do not free them.
    tx.promise_tcp(w, 5);
    tx.paid(5);
    assert_eq!(rx.next(w, SIZE), Ok(Next::Tcp(5)));
    rx.took(w, 5);
    assert_eq!(w.consumed.0.load(Relaxed), 0);
    rx.release_to(w, 10);
    assert_eq!(tx.reserve(w, SIZE, SIZE), Ok(Room::Ring(29)));
    tx.commit(w, 29);
    assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(29)));
    rx.release_to(w, 0);
    assert_eq!(w.consumed.0.load(Relaxed), 10, "never back");
    rx.release_to(w, u64::MAX);
    assert_eq!(
        w.consumed.0.load(Relaxed),
        45,
        "never beyond what was taken"
    );
    rx.took(w, 29);
    assert_eq!(tx.drained(w), Ok(true));
}

#[test]
fn a_sender_that_claims_to_have_written_over_what_is_held_misbehaves() {
    let region = Region::create(c"held", DMB_WORDS_LEN, false).unwrap();
    // SAFETY: atomics only; the region outlives the reference.
    let w = unsafe { region.words::<DmbWords<Cpu>>(0).unwrap().as_ref() };
    let (mut tx, mut rx) = (Tx::default(), Rx::default());
    rx.prepare(w);
    rx.unpark(w);
    tx.activate(w, 0);
    assert_eq!(tx.reserve(w, SIZE, 40), Ok(Room::Ring(40)));
    tx.commit(w, 40);
    assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(40)));
    rx.took_to_hold(40);
    w.sent.0.published.store(40 + 24, Release);
    assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(24)));
    w.sent.0.published.store(40 + 25, Release);
    assert_eq!(rx.next(w, SIZE), Err(Misbehaved::Published));
}

#[test]
fn a_window_that_may_not_grow_is_used_as_it_is_and_grows_when_it_may() {
    let region = Region::create(c"scarce", DMB_WORDS_LEN, false).unwrap();
    // SAFETY: atomics only; the region outlives the reference.
    let w = unsafe { region.words::<DmbWords<Cpu>>(0).unwrap().as_ref() };
    let (mut tx, mut rx) = (Tx::default(), Rx::default());
    rx.prepare(w);
    rx.unpark(w);
    tx.activate_window(w, 0, 8);
    let (mut asked, mut declared) = (0, tx.declared);
    let mut room = |tx: &mut Tx, want, yes| {
        let present = tx.window(SIZE);
        let allow = |wanted| {
            asked = wanted - present;
            if yes { wanted } else { present }
        };
        let room = tx.reserve_if(w, SIZE, want, allow);
        if let Ok(Room::Ring(n)) = room {
            tx.commit(w, n);
        }
        (room, core::mem::take(&mut asked))
    };
    assert_eq!(room(&mut tx, 8, false), (Ok(Room::Ring(8)), 0), "it fits");
    assert_eq!(room(&mut tx, 9, false), (Ok(Room::Full), 24));
    assert_eq!(tx.declared, declared, "nothing is told of it");
    assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(8)));
    rx.took(w, 3);
    assert_eq!(room(&mut tx, 9, false), (Ok(Room::Ring(3)), 24));
    assert_eq!(room(&mut tx, 9, true), (Ok(Room::Ring(9)), 24));
    declared += 1;
    assert_eq!((tx.declared, tx.window(SIZE)), (declared, 32));
}

#[test]
fn a_window_that_others_need_begins_at_the_first_byte_again_once_nothing_unread_lies_there() {
    let region = Region::create(c"shrink", DMB_WORDS_LEN, false).unwrap();
    // SAFETY: atomics only; the region outlives the reference.
    let w = unsafe { region.words::<DmbWords<Cpu>>(0).unwrap().as_ref() };
    let (mut tx, mut rx) = (Tx::default(), Rx::default());
    rx.prepare(w);
    rx.unpark(w);
    tx.activate_window(w, 0, 8);
    let put = |tx: &mut Tx, want, allowed: usize| {
        let room = tx.reserve_if(w, SIZE, want, |_| allowed);
        let Ok(Room::Ring(n)) = room else {
            assert_eq!(room, Ok(Room::Full));
            return None;
        };
        let (at, _) = tx.stretches(SIZE, n);
        tx.commit(w, n);
        Some((at.at, n))
    };
    let take = |rx: &mut Rx, n| {
        assert!(matches!(rx.next(w, SIZE), Ok(Next::Ring(len)) if len >= n));
        let (at, _) = rx.stretches(SIZE, n);
        rx.took(w, n as u64);
        at.at
    };
    assert_eq!(put(&mut tx, 40, 64), Some((0, 40)));
    // 40 bytes are unread, more than the smaller window has.
    assert_eq!(put(&mut tx, 30, 16), None);
    assert_eq!(tx.window(SIZE), 16);
    assert_eq!(take(&mut rx, 10), 0);
    assert_eq!(put(&mut tx, 4, 16), None, "30 are unread");
    assert_eq!(take(&mut rx, 18), 10);
    // 12 are unread, from position 28 on: there is room for 4 more, at the beginning.
    assert_eq!(put(&mut tx, 30, 16), Some((0, 4)));
    // The larger window would cover what is unread in the one before.
    assert_eq!(put(&mut tx, 30, 64), None);
    assert_eq!((take(&mut rx, 12), take(&mut rx, 4)), (28, 0));
    assert_eq!(put(&mut tx, 30, 64), Some((0, 30)));
    assert_eq!((take(&mut rx, 30), tx.window(SIZE)), (0, 64));
}

#[test]
fn the_count_of_runs_may_wrap() {
    let region = Region::create(c"wrap", DMB_WORDS_LEN, false).unwrap();
    // SAFETY: atomics only; the region outlives the reference.
    let w = unsafe { region.words::<DmbWords<Cpu>>(0).unwrap().as_ref() };
    let (mut tx, mut rx) = (Tx::default(), Rx::default());
    rx.prepare(w);
    rx.unpark(w);
    tx.activate(w, 0);
    (tx.declared, tx.freed, rx.walked) = (u32::MAX - 5, u32::MAX - 5, u32::MAX - 5);
    w.sent.0.runs_declared.store(tx.declared, Relaxed);
    for _ in 0..20 {
        ring_then_tcp(&mut tx, w);
        assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(1)));
        rx.took(w, 1);
        assert_eq!(rx.next(w, SIZE), Ok(Next::Tcp(2)));
        rx.took(w, 2);
        assert_eq!(rx.next(w, SIZE), Ok(Next::Empty));
    }
    assert_eq!((tx.drained(w), rx.offset()), (Ok(true), 60));
}

#[test]
fn a_place_that_would_wrap_begins_anew_once_nothing_is_unread() {
    let region = Region::create(c"straight", DMB_WORDS_LEN, false).unwrap();
    // SAFETY: atomics only; the region outlives the reference.
    let w = unsafe { region.words::<DmbWords<Cpu>>(0).unwrap().as_ref() };
    let (mut tx, mut rx) = (Tx::default(), Rx::default());
    rx.prepare(w);
    rx.unpark(w);
    tx.activate_window(w, 0, 64);
    assert_eq!(tx.reserve(w, SIZE, 40), Ok(Room::Ring(40)));
    tx.commit(w, 40);
    let whole = Stretch { at: 0, len: 40 };
    let wrapped = Stretch { at: 40, len: 24 };
    // Unread: it stays, and so it does while the receiver sleeps.
    tx.straighten(w, SIZE, 40).unwrap();
    assert_eq!(tx.stretches(SIZE, 40).0, wrapped);
    assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(40)));
    rx.took(w, 40);
    rx.begin_park(w, PARKED);
    tx.straighten(w, SIZE, 40).unwrap();
    assert_eq!(tx.stretches(SIZE, 40).0, wrapped);
    rx.unpark(w);
    tx.straighten(w, SIZE, 24).unwrap();
    assert_eq!(tx.stretches(SIZE, 24).0, wrapped, "it fits as it is");
    tx.straighten(w, SIZE, 40).unwrap();
    assert_eq!(tx.stretches(SIZE, 40).0, whole);
    // The receiver finds it there, and that word cannot be forged into anything else.
    assert_eq!(tx.reserve(w, SIZE, 40), Ok(Room::Ring(40)));
    tx.commit(w, 40);
    assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(40)));
    assert_eq!(rx.stretches(SIZE, 40).0, whole);
    rx.took(w, 40);
    w.consumed.0.store(81, Relaxed);
    let broken = tx.straighten(w, SIZE, 40);
    assert_eq!(broken, Err(Misbehaved::Consumed));
}
