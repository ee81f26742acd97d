//! The ring, model-checked: each request gets its answer, nothing is read before it is written, and nobody sleeps over
//! a message.
//!
//! ```text
//! cargo test --release -p memlane-packet --features loom --test loom_ring
//! ```
#![cfg(feature = "loom")]

use loom::sync::atomic::AtomicU32;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use memlane_core::sync::{Loom, Words};
use memlane_packet::layout::RingWords;
use memlane_packet::ring::{self, Back, Front};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const PREEMPTIONS: usize = 3;
const SLOTS: u32 = 2;
const MESSAGES: u32 = 3;
/// What an answer adds to its request.
const ANSWER: u32 = 100;

/// loom's words with a fence that does nothing.
struct NoFence;

impl Words for NoFence {
    type U64 = loom::sync::atomic::AtomicU64;
    type U32 = AtomicU32;
    fn full_fence() {}
    fn pause() {
        Loom::pause();
    }
}

struct Doorbell {
    rung: Mutex<bool>,
    rings: Condvar,
}

impl Doorbell {
    fn new() -> Doorbell {
        Doorbell {
            rung: Mutex::new(false),
            rings: Condvar::new(),
        }
    }

    fn ring(&self) {
        *self.rung.lock().expect("no panic") = true;
        self.rings.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.rung.lock().expect("no panic");
        while !*rung {
            rung = self.rings.wait(rung).expect("no panic");
        }
        *rung = false;
    }
}

struct World<W: Words> {
    words: RingWords<W>,
    slots: Vec<W::U32>,
    to_front: Doorbell,
    to_back: Doorbell,
}

/// Asks for `MESSAGES` answers, as many at a time as there is room for, and takes them in order.
fn front<W: Words<U32 = AtomicU32>>(world: &World<W>) {
    let (mut ring, mut asked, mut answered) = (Front::new(SLOTS), 0, 0);
    while answered < MESSAGES {
        while asked < MESSAGES && ring.free() > 0 {
            asked += 1;
            ring::write::<W, 1, 1>(&world.slots, SLOTS - 1, ring.put(), [asked]);
        }
        if ring.publish(&world.words) {
            world.to_back.ring();
        }
        if ring.sleeps(&world.words, 1).expect("an honest end") {
            world.to_front.sleep();
        }
        for _ in 0..ring.ready(&world.words).expect("an honest end") {
            answered += 1;
            let [word] = ring::read::<W, 1, 1>(&world.slots, SLOTS - 1, ring.take());
            assert_eq!(word, answered + ANSWER);
        }
    }
}

fn back<W: Words<U32 = AtomicU32>>(world: &World<W>) {
    let (mut ring, mut taken) = (Back::new(SLOTS), 0);
    while taken < MESSAGES {
        for _ in 0..ring.ready(&world.words).expect("an honest end") {
            taken += 1;
            let [word] = ring::read::<W, 1, 1>(&world.slots, SLOTS - 1, ring.peek(0));
            assert_eq!(word, taken);
            ring.take(1);
            ring::write::<W, 1, 1>(&world.slots, SLOTS - 1, ring.put(), [word + ANSWER]);
        }
        if ring.publish(&world.words) {
            world.to_front.ring();
        }
        if taken < MESSAGES && ring.sleeps(&world.words, 1).expect("an honest end") {
            world.to_back.sleep();
        }
    }
}

fn model<W: Words<U32 = AtomicU32> + 'static>() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(|| {
        let word = || AtomicU32::new(0);
        let world: Arc<World<W>> = Arc::new(World {
            words: RingWords {
                req_prod: word(),
                req_event: word(),
                rsp_prod: word(),
                rsp_event: word(),
                unused: std::array::from_fn(|_| word()),
            },
            slots: (0..SLOTS).map(|_| word()).collect(),
            to_front: Doorbell::new(),
            to_back: Doorbell::new(),
        });
        ring::init(&world.words);
        let other = Arc::clone(&world);
        let there = thread::spawn(move || back(&other));
        front(&world);
        there.join().expect("no panic");
    });
}

#[test]
fn every_request_is_answered_and_nobody_sleeps_over_a_message() {
    model::<Loom>();
}

#[test]
fn without_the_fences_somebody_sleeps_for_ever() {
    let found = catch_unwind(AssertUnwindSafe(model::<NoFence>));
    assert!(found.is_err(), "the model does not notice");
}
