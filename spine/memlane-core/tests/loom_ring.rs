//! One direction of a stream, model-checked: a sender and a receiver over the
//! real [`Tx`] and [`Rx`], on loom's words, with TCP as a locked queue.
//!
//! ```text
//! cargo test --release -p memlane-core --features loom --test loom_ring
//! ```
//!
//! Every model is explored with at most [`PREEMPTIONS`] forced switches (two
//! of them with fewer) between the threads (the canaries below are found within that bound). Ring
//! bytes are loom cells: a read or overwrite that is not ordered after its
//! counterpart fails the model, as do wrong bytes and a receiver that sleeps
//! for ever (loom calls that a deadlock).
#![cfg(feature = "loom")]

mod loom_words;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use loom_words::{NoFence, fresh_words};
use memlane_core::layout::{DmbWords, PARKED, TCP_ONLY};
use memlane_core::ring::{MustTcp, Next, ParkCheck, Room, Rx, Stretch, Tx};
use memlane_core::sync::{Loom, Word, Words};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PREEMPTIONS: usize = 3;

// ---- the words: loom's own, and broken ones for the canaries ----

/// loom's words on which every store is relaxed (the fences stay).
struct NoRelease;

impl Words for NoRelease {
    type U64 = RelaxedStore<AtomicU64>;
    type U32 = RelaxedStore<AtomicU32>;
    fn full_fence() {
        Loom::full_fence();
    }
    fn pause() {
        Loom::pause();
    }
}

#[repr(transparent)]
struct RelaxedStore<A>(A);

impl<T, A: Word<T>> Word<T> for RelaxedStore<A> {
    fn load(&self, order: Ordering) -> T {
        self.0.load(order)
    }
    fn store(&self, value: T, _order: Ordering) {
        self.0.store(value, Ordering::Relaxed);
    }
}

// ---- what the two threads share ----

struct Lanes {
    words: DmbWords<Loom>,
    ring: Vec<UnsafeCell<u8>>,
    tcp: Mutex<VecDeque<u8>>,
    arrived: Condvar,
}

// SAFETY: the ring cells are what the model checks: loom reports every unordered access.
unsafe impl Sync for Lanes {}
// SAFETY: as above.
unsafe impl Send for Lanes {}

impl Lanes {
    fn new(size: usize) -> Lanes {
        Lanes {
            words: fresh_words(),
            ring: (0..size).map(|_| UnsafeCell::new(0)).collect(),
            tcp: Mutex::new(VecDeque::new()),
            arrived: Condvar::new(),
        }
    }

    /// The same words, seen through another set of fences and orderings.
    fn as_seen_by<W: Words>(&self) -> &DmbWords<W> {
        assert_eq!(size_of::<DmbWords<W>>(), size_of::<DmbWords<Loom>>());
        // SAFETY: repr(C), and W's words are loom's, at most in a transparent wrapper.
        unsafe { &*(&raw const self.words).cast::<DmbWords<W>>() }
    }

    fn push(&self, bytes: &[u8]) {
        self.tcp.lock().unwrap().extend(bytes);
        self.arrived.notify_one();
    }

    /// Sleeps until TCP has something.
    fn sleep(&self) {
        let mut queue = self.tcp.lock().unwrap();
        while queue.is_empty() {
            queue = self.arrived.wait(queue).unwrap();
        }
    }

    /// A blocking read of up to `max` bytes.
    fn pop(&self, max: usize) -> Vec<u8> {
        let mut queue = self.tcp.lock().unwrap();
        while queue.is_empty() {
            queue = self.arrived.wait(queue).unwrap();
        }
        let n = max.min(queue.len());
        queue.drain(..n).collect()
    }

    fn cells(&self, (a, b): (Stretch, Stretch)) -> impl Iterator<Item = &UnsafeCell<u8>> {
        self.ring[a.at..a.at + a.len]
            .iter()
            .chain(&self.ring[b.at..b.at + b.len])
    }
}

/// What a model does.
#[derive(Clone, Copy)]
struct Plan {
    ring: usize,
    /// The application's sends.
    sends: &'static [usize],
    /// How many bytes the kernel takes of each write to TCP (then all).
    accepts: &'static [usize],
    /// Bytes sent by TCP before the sender opens the lane (concurrently with the receiver).
    before: usize,
    /// The receiver asks for TCP only once it has this many bytes.
    tcp_only_after: usize,
    /// The receiver starts parked, as `Rx::prepare` leaves it.
    parked: bool,
    /// A broken receiver: it sleeps although the sender may be writing.
    sleeps_on_busy: bool,
    /// The window of the ring to begin with; 0 = all, always.
    least: u32,
    /// The receiver gives the ring's bytes back whenever it is parked.
    sheds: bool,
    /// The sender asks for one stretch each time.
    straightens: bool,
    /// The sender publishes the first half of each write before it writes the second.
    in_pieces: bool,
    preemptions: usize,
}

const PLAN: Plan = Plan {
    ring: 2,
    sends: &[],
    accepts: &[],
    before: 0,
    tcp_only_after: usize::MAX,
    parked: false,
    sleeps_on_busy: false,
    least: 0,
    sheds: false,
    straightens: false,
    in_pieces: false,
    preemptions: PREEMPTIONS,
};

impl Plan {
    fn total(&self) -> usize {
        self.before + self.sends.iter().sum::<usize>()
    }
}

/// Byte `offset` of the stream.
#[allow(clippy::cast_possible_truncation)] // a handful of bytes
fn byte(offset: usize) -> u8 {
    offset as u8 + 1
}

/// What all executions of one model went through, to show that it covers what it claims.
#[derive(Default)]
struct Seen {
    executions: AtomicUsize,
    slept: AtomicUsize,
    slept_twice: AtomicUsize,
    found_data: AtomicUsize,
    found_busy: AtomicUsize,
    ring_bytes: AtomicUsize,
    tcp_bytes: AtomicUsize,
    full: AtomicUsize,
    debts: AtomicUsize,
    ended: AtomicUsize,
    grown: AtomicUsize,
    shrunk: AtomicUsize,
    shed: AtomicUsize,
    straightened: AtomicUsize,
}

fn count(n: &AtomicUsize) {
    n.fetch_add(1, Ordering::Relaxed);
}

fn get(n: &AtomicUsize) -> usize {
    n.load(Ordering::Relaxed)
}

// ---- the two threads ----

struct Sender<'a, W: Words> {
    lanes: &'a Lanes,
    w: &'a DmbWords<W>,
    tx: Tx,
    accepts: std::slice::Iter<'static, usize>,
    sent: usize,
    in_pieces: bool,
    seen: &'a Seen,
}

impl<W: Words> Sender<'_, W> {
    fn run(mut self, plan: Plan) {
        if plan.before > 0 {
            let bytes: Vec<u8> = (0..plan.before).map(byte).collect();
            self.lanes.push(&bytes);
            self.sent = plan.before;
            self.tx
                .activate_window(self.w, plan.before as u64, plan.least);
        }
        for &n in plan.sends {
            let end = self.sent + n;
            while self.sent < end {
                if plan.straightens {
                    self.straighten(end - self.sent);
                }
                self.send(end - self.sent);
            }
        }
        assert_eq!(self.tx.offset(), self.sent as u64);
    }

    fn straighten(&mut self, want: usize) {
        let size = self.lanes.ring.len();
        let wraps = |tx: &Tx| tx.stretches(size, want).1.len > 0;
        let before = wraps(&self.tx);
        self.tx.straighten(self.w, size, want).unwrap();
        if before && !wraps(&self.tx) {
            count(&self.seen.straightened);
        }
    }

    fn send(&mut self, want: usize) {
        let size = self.lanes.ring.len();
        let window = self.tx.window(size);
        let answer = self.tx.reserve(self.w, size, want).unwrap();
        if self.tx.window(size) > window {
            count(&self.seen.grown);
        }
        match answer {
            Room::Ring(n) => self.by_ring(n),
            Room::Full => {
                count(&self.seen.full);
                self.by_tcp(want);
            }
            Room::Tcp(MustTcp::TcpOnly) => {
                count(&self.seen.ended);
                self.tx.go_tcp_only(self.w);
            }
            Room::Tcp(why) => {
                if why == MustTcp::Debt {
                    count(&self.seen.debts);
                }
                self.by_tcp(want);
            }
        }
    }

    fn by_ring(&mut self, n: usize) {
        let first = if self.in_pieces { n / 2 } else { 0 };
        if first > 0 {
            self.write(first);
            self.tx.commit_part(self.w, first);
            self.sent += first;
        }
        let rest = n - first;
        self.write(rest);
        self.tx.commit(self.w, rest);
        self.sent += rest;
    }

    fn write(&mut self, n: usize) {
        for (i, cell) in self
            .lanes
            .cells(self.tx.stretches(self.lanes.ring.len(), n))
            .enumerate()
        {
            // SAFETY: the cell is loom's own and lives on; ordering is what is checked.
            cell.with_mut(|p| unsafe { *p = byte(self.sent + i) });
        }
    }

    fn by_tcp(&mut self, want: usize) {
        let window = self.tx.window(self.lanes.ring.len());
        self.tx.promise_tcp(self.w, want);
        if self.tx.window(self.lanes.ring.len()) < window {
            count(&self.seen.shrunk);
        }
        let taken = self.accepts.next().map_or(want, |n| want.min(*n));
        let bytes: Vec<u8> = (self.sent..self.sent + taken).map(byte).collect();
        self.lanes.push(&bytes);
        self.tx.paid(taken);
        self.sent += taken;
    }
}

struct Receiver<'a, W: Words> {
    lanes: &'a Lanes,
    w: &'a DmbWords<W>,
    rx: Rx,
    got: Vec<u8>,
    sleeps: usize,
    seen: &'a Seen,
}

impl<W: Words> Receiver<'_, W> {
    fn run(mut self, plan: Plan) {
        while self.got.len() < plan.total() {
            if self.got.len() >= plan.tcp_only_after && self.rx.flags() & TCP_ONLY == 0 {
                self.rx.begin_park(self.w, TCP_ONLY);
            }
            if plan.before > 0 && !Rx::sender_active(self.w) {
                let bytes = self.lanes.pop(usize::MAX);
                self.rx.skip(bytes.len() as u64);
                self.got.extend(bytes);
                continue;
            }
            match self.rx.next(self.w, self.lanes.ring.len()).unwrap() {
                Next::Ring(n) => self.take_ring(n),
                Next::Tcp(n) => self.take_tcp(usize::try_from(n).unwrap()),
                Next::TcpForever => self.take_tcp(usize::MAX),
                Next::Empty => self.park(&plan),
            }
        }
        let want: Vec<u8> = (0..plan.total()).map(byte).collect();
        assert_eq!(self.got, want, "the bytes, each once, in order");
        assert_eq!(self.rx.offset(), plan.total() as u64);
        if self.sleeps > 1 {
            count(&self.seen.slept_twice);
        }
    }

    fn take_ring(&mut self, n: usize) {
        for cell in self
            .lanes
            .cells(self.rx.stretches(self.lanes.ring.len(), n))
        {
            // SAFETY: the cell is loom's own and lives on; ordering is what is checked.
            self.got.push(cell.with(|p| unsafe { *p }));
        }
        self.rx.took(self.w, n as u64);
        self.seen.ring_bytes.fetch_add(n, Ordering::Relaxed);
    }

    fn take_tcp(&mut self, max: usize) {
        let bytes = self.lanes.pop(max);
        self.rx.took(self.w, bytes.len() as u64);
        self.seen
            .tcp_bytes
            .fetch_add(bytes.len(), Ordering::Relaxed);
        self.got.extend(bytes);
    }

    /// What the kernel does when pages are given back: every byte is zero.
    fn trim(&mut self, in_any_case: bool) {
        if !in_any_case && !self.rx.owns_ring(self.w) {
            return;
        }
        for cell in &self.lanes.ring {
            // SAFETY: the cell is loom's own and lives on; ordering is what is checked.
            cell.with_mut(|p| unsafe { *p = 0 });
        }
        self.rx.set_trimmed(self.w);
        count(&self.seen.shed);
    }

    /// An honest writer always finishes, so waiting it out needs no bound here.
    fn park(&mut self, plan: &Plan) {
        self.rx.begin_park(self.w, PARKED);
        loop {
            match self.rx.check_park(self.w) {
                ParkCheck::WriterBusy if !plan.sleeps_on_busy => {
                    count(&self.seen.found_busy);
                    W::pause();
                }
                ParkCheck::Data => {
                    count(&self.seen.found_data);
                    break;
                }
                ParkCheck::Parked | ParkCheck::WriterBusy => {
                    if plan.sheds {
                        self.trim(plan.sleeps_on_busy);
                    }
                    count(&self.seen.slept);
                    self.sleeps += 1;
                    self.lanes.sleep();
                    break;
                }
            }
        }
        self.rx.unpark(self.w);
    }
}

fn explore<WTx: Words + 'static, WRx: Words + 'static>(plan: Plan) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let seen_in = seen.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(plan.preemptions);
    builder.max_branches = 10_000;
    builder.check(move || {
        count(&seen_in.executions);
        let lanes = Arc::new(Lanes::new(plan.ring));
        let (mut tx, mut rx) = (Tx::default(), Rx::default());
        rx.prepare(&lanes.words);
        if !plan.parked {
            rx.unpark(&lanes.words);
        }
        if plan.before == 0 {
            tx.activate_window(&lanes.words, 0, plan.least);
        }
        let (lanes2, seen2) = (lanes.clone(), seen_in.clone());
        let sender = thread::spawn(move || {
            let w = lanes2.as_seen_by::<WTx>();
            let accepts = plan.accepts.iter();
            Sender {
                lanes: &lanes2,
                w,
                tx,
                accepts,
                sent: 0,
                in_pieces: plan.in_pieces,
                seen: &seen2,
            }
            .run(plan);
        });
        let w = lanes.as_seen_by::<WRx>();
        Receiver {
            lanes: &lanes,
            w,
            rx,
            got: Vec::new(),
            sleeps: 0,
            seen: &seen_in,
        }
        .run(plan);
        sender.join().unwrap();
    });
    println!("{} executions explored", get(&seen.executions));
    seen
}

// ---- the models ----

#[test]
fn a_receiver_that_sleeps_whenever_the_ring_is_empty_gets_every_byte() {
    let seen = explore::<Loom, Loom>(Plan {
        sends: &[1, 1],
        ..PLAN
    });
    assert!(get(&seen.slept) > 0 && get(&seen.found_data) > 0 && get(&seen.found_busy) > 0);
    assert!(get(&seen.ring_bytes) > 0 && get(&seen.tcp_bytes) > 0);
}

#[test]
fn a_receiver_parks_twice_and_is_woken_twice() {
    let seen = explore::<Loom, Loom>(Plan {
        sends: &[1, 1, 1],
        ..PLAN
    });
    assert!(get(&seen.slept_twice) > 0);
}

#[test]
fn a_ring_that_is_full_is_never_overwritten() {
    let seen = explore::<Loom, Loom>(Plan {
        sends: &[2, 2, 1],
        ..PLAN
    });
    assert!(get(&seen.full) > 0);
}

#[test]
fn a_write_that_is_published_in_pieces_loses_nothing_beside_a_receiver_that_sleeps() {
    let seen = explore::<Loom, Loom>(Plan {
        ring: 4,
        sends: &[2, 2],
        in_pieces: true,
        preemptions: 2,
        ..PLAN
    });
    assert!(get(&seen.ring_bytes) > 0);
}

#[test]
fn a_ring_that_wraps_keeps_the_order() {
    let seen = explore::<Loom, Loom>(Plan {
        ring: 4,
        sends: &[3, 2, 2],
        ..PLAN
    });
    assert!(get(&seen.ring_bytes) > 0);
}

#[test]
fn what_the_kernel_did_not_take_is_paid_by_tcp_before_anything_else() {
    let seen = explore::<Loom, Loom>(Plan {
        sends: &[3, 1],
        accepts: &[1, 1],
        parked: true,
        ..PLAN
    });
    assert!(get(&seen.debts) > 0 && get(&seen.slept) > 0);
}

#[test]
fn a_receiver_that_asks_for_tcp_only_in_mid_stream_loses_nothing() {
    let seen = explore::<Loom, Loom>(Plan {
        sends: &[1, 1, 1],
        tcp_only_after: 1,
        ..PLAN
    });
    assert!(get(&seen.ended) > 0 && get(&seen.slept) > 0);
}

#[test]
fn tcp_only_with_a_debt_outstanding_loses_nothing() {
    let plan = Plan {
        sends: &[2, 1],
        accepts: &[1, 0],
        tcp_only_after: 0,
        parked: true,
        ..PLAN
    };
    let seen = explore::<Loom, Loom>(plan);
    assert!(get(&seen.ended) > 0);
}

#[test]
fn a_lane_that_opens_while_the_receiver_reads_plain_tcp_loses_nothing() {
    let seen = explore::<Loom, Loom>(Plan {
        before: 1,
        sends: &[1, 1],
        parked: true,
        ..PLAN
    });
    assert!(get(&seen.tcp_bytes) > 0);
}

#[test]
fn a_ring_that_grows_under_load_is_never_overwritten() {
    let seen = explore::<Loom, Loom>(Plan {
        ring: 4,
        sends: &[1, 1, 1, 2],
        least: 1,
        preemptions: 2,
        ..PLAN
    });
    assert!(get(&seen.grown) > 0 && get(&seen.full) > 0);
}

#[test]
fn a_write_that_does_not_fit_into_the_window_in_use_gets_a_larger_one() {
    let seen = explore::<Loom, Loom>(Plan {
        ring: 4,
        sends: &[1, 3, 2],
        least: 1,
        ..PLAN
    });
    assert!(get(&seen.grown) > 0);
}

#[test]
fn a_window_that_begins_anew_where_nothing_is_unread_loses_nothing() {
    let seen = explore::<Loom, Loom>(Plan {
        ring: 2,
        sends: &[1, 2, 1],
        least: 2,
        straightens: true,
        preemptions: 2,
        ..PLAN
    });
    assert!(get(&seen.straightened) > 0 && get(&seen.ring_bytes) > 0);
}

#[test]
fn a_parked_receiver_gives_the_ring_back_and_the_sender_begins_small_again() {
    let seen = explore::<Loom, Loom>(Plan {
        ring: 4,
        sends: &[2, 2, 1],
        least: 1,
        sheds: true,
        preemptions: 2,
        ..PLAN
    });
    assert!(get(&seen.shed) > 0 && get(&seen.grown) > 0 && get(&seen.shrunk) > 0);
}

// ---- canaries: broken protocols that the models must find ----

/// Explores a broken protocol; the message loom (or an assertion) ends with.
fn finds<WTx: Words + 'static, WRx: Words + 'static>(plan: Plan) -> String {
    let outcome = catch_unwind(AssertUnwindSafe(|| explore::<WTx, WRx>(plan)));
    let panic = outcome.err().expect("the broken protocol went undetected");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => (*panic.downcast::<&str>().expect("a message")).to_string(),
    }
}

fn assert_lost_wake_up(message: &str) {
    assert!(
        message.contains("deadlock"),
        "another failure than a lost wake-up: {message}"
    );
}

const CANARY: Plan = Plan {
    sends: &[1],
    ..PLAN
};

#[test]
fn canary_without_any_fence_a_wake_up_is_lost() {
    assert_lost_wake_up(&finds::<NoFence, NoFence>(CANARY));
}

#[test]
fn canary_without_the_senders_fence_a_wake_up_is_lost() {
    assert_lost_wake_up(&finds::<NoFence, Loom>(CANARY));
}

#[test]
fn canary_without_the_receivers_fence_a_wake_up_is_lost() {
    assert_lost_wake_up(&finds::<Loom, NoFence>(CANARY));
}

#[test]
fn canary_a_receiver_that_sleeps_on_a_busy_writer_is_never_woken() {
    assert_lost_wake_up(&finds::<Loom, Loom>(Plan {
        sleeps_on_busy: true,
        ..CANARY
    }));
}

#[test]
fn canary_a_ring_that_is_given_back_beside_a_busy_writer_is_caught() {
    let message = finds::<Loom, Loom>(Plan {
        sleeps_on_busy: true,
        sheds: true,
        ..CANARY
    });
    assert!(!message.contains("deadlock"), "{message}");
}

#[test]
fn canary_without_any_fence_a_ring_is_given_back_beside_a_writer() {
    let message = finds::<NoFence, NoFence>(Plan {
        sheds: true,
        ..CANARY
    });
    assert!(!message.contains("deadlock"), "{message}");
}

#[test]
fn canary_a_sender_that_publishes_without_release_is_caught() {
    let message = finds::<NoRelease, Loom>(CANARY);
    assert!(!message.contains("deadlock"), "{message}");
}

#[test]
fn canary_a_receiver_that_frees_the_ring_without_release_is_caught() {
    let message = finds::<Loom, NoRelease>(Plan {
        sends: &[2, 2],
        ..PLAN
    });
    assert!(!message.contains("deadlock"), "{message}");
}
