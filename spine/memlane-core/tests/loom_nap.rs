//! Naps, model-checked: a receiver that naps on a ring sleeps over nothing, and a sender wakes it only if it sleeps.
//!
//! ```text
//! cargo test --release -p memlane-core --features loom --test loom_nap
//! ```
#![cfg(feature = "loom")]

mod loom_words;

use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use loom_words::{NoFence, fresh_words};
use memlane_core::layout::{ASLEEP, DmbWords};
use memlane_core::nap::Nap;
use memlane_core::ring::{Next, ParkCheck, Room, Rx, Tx};
use memlane_core::sync::{Loom, Words};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const PREEMPTIONS: usize = 3;
const RING: usize = 2;

/// A DMB, and what the kernel does for futexes.
struct World<W: Words> {
    words: DmbWords<W>,
    kernel: Mutex<()>,
    woken: Condvar,
}

impl<W: Words<U64 = AtomicU64, U32 = AtomicU32>> World<W> {
    /// futex(2), `FUTEX_WAIT`: the word is looked at under the kernel's lock.
    fn sleep_on(&self, nap: &Nap<W>) {
        let mut kernel = self.kernel.lock().expect("no panic");
        while nap.0.load(SeqCst) == ASLEEP {
            kernel = self.woken.wait(kernel).expect("no panic");
        }
    }

    /// futex(2), `FUTEX_WAKE`.
    fn wake(&self) {
        drop(self.kernel.lock().expect("no panic"));
        self.woken.notify_all();
    }
}

fn send<W: Words<U64 = AtomicU64, U32 = AtomicU32>>(world: &World<W>, tx: &mut Tx, messages: u32) {
    let w = &world.words;
    for _ in 0..messages {
        assert_eq!(tx.reserve(w, RING, 1), Ok(Room::Ring(1)));
        tx.commit(w, 1);
        if w.rx.0.nap.must_wake() {
            world.wake();
        }
    }
}

fn receive<W: Words<U64 = AtomicU64, U32 = AtomicU32>>(
    world: &World<W>,
    rx: &mut Rx,
    messages: u32,
    looks_at_writing: bool,
) {
    let w = &world.words;
    let mut left = messages as usize;
    while left > 0 {
        match rx.next(w, RING) {
            Ok(Next::Ring(n)) => {
                rx.took(w, n as u64);
                left -= n;
            }
            Ok(Next::Empty) => {
                Rx::begin_nap(w);
                let is_quiet = match rx.check_park(w) {
                    ParkCheck::Parked => true,
                    ParkCheck::WriterBusy => !looks_at_writing,
                    ParkCheck::Data => false,
                };
                if is_quiet {
                    world.sleep_on(&w.rx.0.nap);
                } else {
                    W::pause();
                }
                w.rx.0.nap.get_up();
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A sender of messages of one byte, and a receiver that naps whenever there is none.
fn model<W>(messages: u32, looks_at_writing: bool)
where
    W: Words<U64 = AtomicU64, U32 = AtomicU32> + 'static,
{
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(move || {
        let world = Arc::new(World::<W> {
            words: fresh_words(),
            kernel: Mutex::new(()),
            woken: Condvar::new(),
        });
        let (mut tx, mut rx) = (Tx::default(), Rx::default());
        rx.prepare(&world.words);
        rx.unpark(&world.words);
        tx.activate(&world.words, 0);
        let sender = {
            let world = Arc::clone(&world);
            thread::spawn(move || send(&world, &mut tx, messages))
        };
        receive(&world, &mut rx, messages, looks_at_writing);
        sender.join().expect("it ends");
    });
}

fn fails(model: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(model)).is_err()
}

#[test]
fn a_receiver_that_naps_gets_every_message() {
    model::<Loom>(2, true);
}

/// Canary: without the fences, it sleeps for ever.
#[test]
fn without_fences_a_receiver_sleeps_over_a_message() {
    assert!(fails(|| model::<NoFence>(1, true)));
}

/// Canary: the sender may have looked at `nap` before the receiver lay down, and not have published yet.
#[test]
fn a_receiver_that_sleeps_beside_a_writer_may_sleep_over_its_message() {
    assert!(fails(|| model::<Loom>(1, false)));
}
