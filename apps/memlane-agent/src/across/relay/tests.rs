//! What a machine can make an agent remember that sends what it likes and takes nothing.

use super::*;
use crate::across::mail::Side;
use core::sync::atomic::Ordering;
use rustix::fs::MemfdFlags;
use std::path::Path;

/// An agent, and a machine that does as it likes.
struct Beside {
    relay: Relay,
    pairs: Pairs,
    liar: usize,
    its_mail: Cursor,
    now: Instant,
}

/// How the liar calls itself.
const EPOCH: u64 = 77;

impl Beside {
    fn new() -> Beside {
        let memory = rustix::fs::memfd_create("region", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, 16 << 20).unwrap();
        let region = Region::map(Path::new("region"), memory).unwrap();
        let identity = Identity::of("machine", "boot", Path::new("/x"), "machine".into());
        let now = Instant::now();
        let relay = Relay::join(region, identity, Box::new(|| 5), &|_| {}, now).unwrap();
        let liar = relay.who.place() + 1;
        Beside {
            relay,
            pairs: Pairs::new(64),
            liar,
            its_mail: Cursor::default(),
            now,
        }
    }

    /// For this time, in steps of a millisecond, the liar lives and sends the same as often as there is room.
    fn sends(&mut self, mail: &Mail, ms: u64) {
        for _ in 0..ms {
            self.now += Duration::from_millis(1);
            let own = self.relay.who.place();
            let entry = self.relay.region.participant(self.liar);
            entry.epoch.store(EPOCH, Ordering::Relaxed);
            entry.heartbeat.fetch_add(1, Ordering::Relaxed);
            let runs = Runs {
                from: EPOCH,
                to: self.relay.who.epoch(),
            };
            let ring = self.relay.region.ring(self.liar, own);
            while self.its_mail.send(ring, &mail.encode(runs)) {}
            self.relay.turn(&mut self.pairs, &|_| None, self.now);
        }
    }
}

#[test]
fn a_machine_that_takes_no_answers_is_owed_a_bounded_number() {
    let mut beside = Beside::new();
    let side = Side {
        channel: 1,
        bond: 1,
        other: 0,
        extent: 0,
    };
    beside.sends(&Mail::Meet { channel: 9, side }, 500);
    let owed = beside.relay.outboxes[beside.liar].len();
    assert!((1..=OUTBOX).contains(&owed), "{owed}");
}

#[test]
fn a_machine_that_asks_the_same_again_and_again_is_remembered_once() {
    let mut beside = Beside::new();
    let ask = Mail::Ask {
        key: Key::from_word(7),
        process: 3,
        is_roots: true,
    };
    beside.sends(&ask, 500);
    assert_eq!(beside.relay.foreign.len(), 1);
    let ends = beside.relay.foreign_ends.len();
    assert!(ends <= 2, "{ends}");
    // It is forgotten all the same.
    let other = Mail::Ended { channel: 1 };
    beside.sends(&other, 1500);
    assert_eq!(beside.relay.foreign.len(), 0);
}
