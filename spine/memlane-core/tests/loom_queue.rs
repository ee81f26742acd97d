//! The queue of words, model-checked: nothing is lost, and nobody sleeps over a word.
//!
//! ```text
//! cargo test --release -p memlane-core --features loom --test loom_queue
//! ```
#![cfg(feature = "loom")]

mod loom_words;

use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use loom_words::NoFence;
use memlane_core::layout::Aligned;
use memlane_core::queue::{Consumer, Producer, QueueWords};
use memlane_core::sync::{Loom, Words};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const PREEMPTIONS: usize = 3;
const SLOTS: usize = 2;
const WORDS: u32 = 3;

struct World<W: Words> {
    words: QueueWords<W>,
    slots: [W::U32; SLOTS],
    bell: Mutex<bool>,
    rings: Condvar,
}

fn produce<W: Words<U64 = AtomicU64, U32 = AtomicU32>>(world: &World<W>) {
    let mut producer = Producer::default();
    for word in 1..=WORDS {
        while !producer
            .put(&world.words, &world.slots, word)
            .expect("an honest end")
        {
            thread::yield_now();
        }
        if producer.publish(&world.words) {
            *world.bell.lock().expect("no panic") = true;
            world.rings.notify_one();
        }
    }
}

fn consume<W: Words<U64 = AtomicU64, U32 = AtomicU32>>(world: &World<W>) {
    let mut consumer = Consumer::default();
    let mut next = 1;
    while next <= WORDS {
        match consumer
            .take(&world.words, &world.slots)
            .expect("an honest end")
        {
            Some(word) => {
                assert_eq!(word, next);
                next += 1;
            }
            None if consumer.naps(&world.words) => {
                let mut rung = world.bell.lock().expect("no panic");
                while !*rung {
                    rung = world.rings.wait(rung).expect("no panic");
                }
                *rung = false;
                consumer.wakes(&world.words);
            }
            None => {}
        }
    }
}

fn model<W>()
where
    W: Words<U64 = AtomicU64, U32 = AtomicU32> + 'static,
{
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(|| {
        let world: Arc<World<W>> = Arc::new(World {
            words: QueueWords {
                published: Aligned(AtomicU64::new(0)),
                consumed: Aligned(AtomicU64::new(0)),
                naps: Aligned(AtomicU32::new(0)),
            },
            slots: [AtomicU32::new(0), AtomicU32::new(0)],
            bell: Mutex::new(false),
            rings: Condvar::new(),
        });
        let other = Arc::clone(&world);
        let producer = thread::spawn(move || produce(&other));
        consume(&world);
        producer.join().expect("no panic");
    });
}

#[test]
fn every_word_arrives_and_nobody_sleeps_over_one() {
    model::<Loom>();
}

#[test]
fn without_the_fences_somebody_sleeps_for_ever() {
    let found = catch_unwind(AssertUnwindSafe(model::<NoFence>));
    assert!(found.is_err(), "the model does not notice");
}
