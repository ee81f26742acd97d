//! The bell of a chunk, model-checked: nobody sleeps over news, and a crowd of senders rings once.
//!
//! ```text
//! cargo test --release -p memlane-core --features loom --test loom_bell
//! ```
#![cfg(feature = "loom")]

mod loom_words;

use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use loom_words::NoFence;
use memlane_core::bell::Ring;
use memlane_core::layout::{AWAKE, Marks, ReadyWords};
use memlane_core::sync::{Loom, Words};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

const PREEMPTIONS: usize = 3;
/// The messages of each sender.
const MESSAGES: u32 = 2;

struct World<W: Words> {
    ready: ReadyWords<W>,
    published: [AtomicU32; 2],
    bell: Mutex<u32>,
    rings: Condvar,
}

fn send<W: Words<U64 = AtomicU64, U32 = AtomicU32>>(world: &World<W>, slot: usize) {
    for message in 1..=MESSAGES {
        world.published[slot].store(message, Release);
        if world.ready.tell(1 << slot).ring.is_some() {
            *world.bell.lock().expect("no panic") += 1;
            world.rings.notify_one();
        }
    }
}

/// Takes what the bits show, and returns how many messages have come in all.
fn harvest<W: Words<U64 = AtomicU64, U32 = AtomicU32>>(world: &World<W>, seen: &mut [u32]) -> u32 {
    let bits = world.ready.bits.swap(0, AcqRel);
    for (slot, seen) in seen.iter_mut().enumerate() {
        if bits & 1 << slot != 0 {
            *seen = world.published[slot].load(Acquire);
        }
    }
    seen.iter().sum()
}

fn receive<W: Words<U64 = AtomicU64, U32 = AtomicU32>>(world: &World<W>, senders: usize) {
    let mut seen = vec![0; senders];
    let all = MESSAGES * u32::try_from(senders).expect("few");
    let (mut rests, mut heard) = (0, 0);
    while harvest(world, &mut seen) < all {
        rests += 1;
        world.ready.lie_down(Ring::Edge);
        W::full_fence();
        if !world.ready.has_news() {
            let mut rung = world.bell.lock().expect("no panic");
            while *rung == 0 {
                rung = world.rings.wait(rung).expect("no panic");
            }
            heard += core::mem::take(&mut *rung);
        }
        world.ready.get_up();
    }
    // Also if the receiver found the news by itself. loom lets two exchanges read the same store if a third thread has
    // stored meanwhile, so this is asked of one sender only.
    assert!(
        senders > 1 || heard <= rests,
        "{heard} rings, but it lay down {rests} times"
    );
}

fn send_without_bits<W: Words<U64 = AtomicU64, U32 = AtomicU32>>(world: &World<W>, slot: usize) {
    for message in 1..=MESSAGES {
        world.published[slot].store(message, Release);
        if world.ready.ring_due().is_some() {
            *world.bell.lock().expect("no panic") += 1;
            world.rings.notify_one();
        }
    }
}

/// A receiver that polls: it looks at what its senders have published, not at bits.
fn poll<W: Words<U64 = AtomicU64, U32 = AtomicU32>>(world: &World<W>, senders: usize) {
    let come = || -> u32 {
        let all = world.published[..senders].iter();
        all.map(|published| published.load(Acquire)).sum()
    };
    let mut seen = 0;
    while seen < MESSAGES * u32::try_from(senders).expect("few") {
        world.ready.lie_down(Ring::Byte);
        W::full_fence();
        if come() == seen {
            let mut rung = world.bell.lock().expect("no panic");
            while *rung == 0 {
                rung = world.rings.wait(rung).expect("no panic");
            }
            *rung = 0;
        }
        world.ready.get_up();
        seen = come();
    }
}

fn model<W>(senders: usize)
where
    W: Words<U64 = AtomicU64, U32 = AtomicU32> + 'static,
{
    model_of::<W>(senders, send, receive);
}

fn model_of<W>(senders: usize, send: fn(&World<W>, usize), receive: fn(&World<W>, usize))
where
    W: Words<U64 = AtomicU64, U32 = AtomicU32> + 'static,
{
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(move || {
        let world: Arc<World<W>> = Arc::new(World {
            ready: ReadyWords {
                bits: AtomicU64::new(0),
                looked: AtomicU64::new(0),
                asleep: AtomicU32::new(AWAKE),
                rings: AtomicU32::new(1),
                marked: AtomicU64::new(0),
                marks: Marks(core::array::from_fn(|_| AtomicU64::new(0))),
            },
            published: [AtomicU32::new(0), AtomicU32::new(0)],
            bell: Mutex::new(0),
            rings: Condvar::new(),
        });
        let all: Vec<_> = (0..senders)
            .map(|slot| {
                let world = Arc::clone(&world);
                thread::spawn(move || send(&world, slot))
            })
            .collect();
        receive(&world, senders);
        for sender in all {
            sender.join().expect("no panic");
        }
    });
}

#[test]
fn nobody_sleeps_over_the_news_of_one_sender() {
    model::<Loom>(1);
}

#[test]
fn nobody_sleeps_over_the_news_of_two_senders() {
    model::<Loom>(2);
}

#[test]
fn nobody_who_polls_sleeps_over_the_news_of_one_sender() {
    model_of::<Loom>(1, send_without_bits, poll);
}

#[test]
fn nobody_who_polls_sleeps_over_the_news_of_two_senders() {
    model_of::<Loom>(2, send_without_bits, poll);
}

#[test]
fn without_the_fences_a_poll_sleeps_for_ever() {
    let polled = || model_of::<NoFence>(1, send_without_bits, poll);
    let found = catch_unwind(AssertUnwindSafe(polled));
    assert!(found.is_err(), "the model does not notice");
}

#[test]
fn without_the_fences_somebody_sleeps_for_ever() {
    let found = catch_unwind(AssertUnwindSafe(|| model::<NoFence>(1)));
    assert!(found.is_err(), "the model does not notice");
}
