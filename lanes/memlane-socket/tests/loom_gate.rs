//! The gates of a connection, model-checked: calls that enter, against an opening, a wake-up and an end of the lane.
//!
//! ```text
//! cargo test --release -p memlane-socket --features loom --test loom_gate
//! ```
//!
//! The gates are the real ones, on loom's words. Around them stands what they guard: counts and state that only an order
//! through the gate makes safe to read (loom reports any other access), and a kernel in which a receiver sleeps until
//! TCP brings something (loom reports a sleep that nobody ends). How ring and parking work is `memlane-core`'s to check
//! (`loom_ring`): here they are one step. The canaries are protocols that must fail, and do.
#![cfg(feature = "loom")]

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use memlane_core::sync::{Exchange, Loom, Word, Words};
use memlane_socket::state::conn::{RxMode, TxMode};
use memlane_socket::state::gate::{Busy, Gate, Mode};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

// ---- the words: loom's own, and broken ones for the canaries ----

trait Fresh: Words<U64: Exchange<u64>> + 'static {
    fn fresh() -> Self::U64;
}

impl Fresh for Loom {
    fn fresh() -> AtomicU64 {
        AtomicU64::new(0)
    }
}

/// A change is a look and a store: others come in between.
struct Torn;
struct TornWord(AtomicU64);

/// Each change is one step, but orders nothing.
struct Unordered;
struct UnorderedWord(AtomicU64);

macro_rules! broken_words {
    ($words:ty, $word:ident) => {
        impl Words for $words {
            type U64 = $word;
            type U32 = loom::sync::atomic::AtomicU32;
            fn full_fence() {
                Loom::full_fence();
            }
            fn pause() {
                Loom::pause();
            }
        }
        impl Fresh for $words {
            fn fresh() -> $word {
                $word(AtomicU64::new(0))
            }
        }
    };
}
broken_words!(Torn, TornWord);
broken_words!(Unordered, UnorderedWord);

impl Word<u64> for TornWord {
    fn load(&self, order: Ordering) -> u64 {
        Word::load(&self.0, order)
    }
    fn store(&self, value: u64, order: Ordering) {
        Word::store(&self.0, value, order);
    }
}

impl TornWord {
    fn change(&self, to: impl Fn(u64) -> u64) -> u64 {
        let was = self.0.load(Ordering::SeqCst);
        self.0.store(to(was), Ordering::SeqCst);
        was
    }
}

impl Exchange<u64> for TornWord {
    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        let was = self.change(|was| if was == old { new } else { was });
        if was == old { Ok(was) } else { Err(was) }
    }
    fn fetch_add(&self, n: u64) -> u64 {
        self.change(|was| was.wrapping_add(n))
    }
    fn fetch_sub(&self, n: u64) -> u64 {
        self.change(|was| was.wrapping_sub(n))
    }
}

impl Word<u64> for UnorderedWord {
    fn load(&self, _: Ordering) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn store(&self, value: u64, _: Ordering) {
        self.0.store(value, Ordering::Relaxed);
    }
}

impl Exchange<u64> for UnorderedWord {
    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        self.0
            .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
    }
    fn fetch_add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::Relaxed)
    }
    fn fetch_sub(&self, n: u64) -> u64 {
        self.0.fetch_sub(n, Ordering::Relaxed)
    }
}

// ---- what the protocols can get wrong ----

/// How the parties behave.
#[derive(Clone, Copy)]
struct Plan {
    /// Who enters looks at the mode first, and believes that.
    looks_first: bool,
    /// Who moves does not look who is inside.
    hasty: bool,
    /// Who opens a lane keeps new calls out, and looks twice whether those inside have left.
    patient: bool,
    /// Who keeps a connection from waking up.
    busy: Busy,
    /// The receiver sleeps in poll, not in a receive.
    polls: bool,
    /// Who wakes the connection up looks at the mode before it has the lock.
    wakes_unlocked: bool,
    preemptions: usize,
}

const PLAN: Plan = Plan {
    looks_first: false,
    hasty: false,
    patient: false,
    busy: Busy::CallsAndSleepers,
    polls: false,
    wakes_unlocked: false,
    preemptions: 3,
};

/// What all executions of one model went through, to show that it covers what it claims.
#[derive(Default)]
struct Seen {
    executions: AtomicUsize,
    plain: AtomicUsize,
    by_lane: AtomicUsize,
    opened: AtomicUsize,
    not_now: AtomicUsize,
    by_ring: AtomicUsize,
    by_tcp: AtomicUsize,
    drained: AtomicUsize,
}

fn count(n: &AtomicUsize) {
    n.fetch_add(1, Ordering::Relaxed);
}

fn any(n: &AtomicUsize) -> bool {
    n.load(Ordering::Relaxed) > 0
}

fn explore(plan: Plan, model: impl Fn(&Arc<Seen>) + Sync + Send + 'static) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let inner = seen.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(plan.preemptions);
    builder.max_branches = 10_000;
    builder.check(move || {
        count(&inner.executions);
        model(&inner);
    });
    println!(
        "{} executions explored",
        seen.executions.load(Ordering::Relaxed)
    );
    seen
}

fn enter<W: Fresh, M: Mode>(gate: &Gate<W, M>, plan: Plan) -> M {
    if plan.looks_first {
        let mode = gate.mode();
        gate.enter();
        return mode;
    }
    gate.enter()
}

fn begin_move<W: Fresh, M: Mode>(gate: &Gate<W, M>, from: M, busy: Busy, plan: Plan) -> bool {
    if plan.hasty {
        let is_from = gate.mode() == from;
        if is_from {
            gate.set(M::MOVING);
        }
        return is_from;
    }
    if plan.patient {
        let began = gate.close(from) && [(); 2].into_iter().any(|()| gate.is_quiet());
        if !began {
            gate.set(from);
        }
        return began;
    }
    gate.begin_move(from, busy)
}

// ---- opening, against calls by the kernel ----

/// One direction that is not open yet.
struct Direction<W: Words> {
    gate: Gate<W, TxMode>,
    /// Bytes that the kernel has counted.
    kernel: AtomicU64,
    /// Bytes that the library has counted: written by calls that are inside, read by an opening that is alone.
    counted: UnsafeCell<u64>,
    /// What the opening makes of it: read by calls that find it open.
    lane: UnsafeCell<u64>,
}

// SAFETY: the cells are what the model checks: loom reports every unordered access.
unsafe impl<W: Words<U64: Sync>> Sync for Direction<W> {}
// SAFETY: as for `Sync`.
unsafe impl<W: Words<U64: Send>> Send for Direction<W> {}

impl<W: Fresh> Direction<W> {
    fn new() -> Direction<W> {
        Direction {
            gate: Gate::over(W::fresh()),
            kernel: AtomicU64::new(0),
            counted: UnsafeCell::new(0),
            lane: UnsafeCell::new(0),
        }
    }

    /// A call of the program, of one byte.
    fn call(&self, plan: Plan, seen: &Seen) {
        if enter(&self.gate, plan) == TxMode::Plain {
            self.kernel.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the cell is loom's own and lives on; ordering is what is checked.
            self.counted.with_mut(|n| unsafe { *n += 1 });
            self.gate.leave();
            count(&seen.plain);
            return;
        }
        self.gate.leave();
        if self.gate.mode() == TxMode::Open {
            // SAFETY: as in the other branch.
            let made = self.lane.with(|n| unsafe { *n });
            assert_ne!(made, 0, "what the opening made");
            count(&seen.by_lane);
        }
    }

    /// The mode is `Moving`: the counts must agree, and the lane begins there.
    fn open(&self) {
        // SAFETY: the cell is loom's own and lives on; ordering is what is checked.
        let counted = self.counted.with(|n| unsafe { *n });
        assert_eq!(counted, self.kernel.load(Ordering::Relaxed), "counts");
        // SAFETY: as for `counted`.
        self.lane.with_mut(|n| unsafe { *n = counted + 1 });
        self.gate.set(TxMode::Open);
    }
}

fn opening<W: Fresh>(plan: Plan) -> Arc<Seen>
where
    W::U64: Send + Sync,
{
    explore(plan, move |seen| {
        let one = Arc::new(Direction::<W>::new());
        let (theirs, told) = (one.clone(), seen.clone());
        let caller = thread::spawn(move || {
            for _ in 0..2 {
                theirs.call(plan, &told);
            }
        });
        if begin_move(&one.gate, TxMode::Plain, Busy::Calls, plan) {
            one.open();
            count(&seen.opened);
        } else {
            count(&seen.not_now);
        }
        caller.join().unwrap();
    })
}

fn opening_of_both<W: Fresh>(plan: Plan) -> Arc<Seen>
where
    W::U64: Send + Sync,
{
    explore(plan, move |seen| {
        let both = [(); 2].map(|()| Arc::new(Direction::<W>::new()));
        let callers = both.clone().map(|one| {
            let told = seen.clone();
            thread::spawn(move || one.call(plan, &told))
        });
        let [rx, tx] = &both;
        let moves = |one: &Direction<W>| begin_move(&one.gate, TxMode::Plain, Busy::Calls, plan);
        if moves(rx) {
            if moves(tx) {
                rx.open();
                tx.open();
                count(&seen.opened);
            } else {
                rx.gate.set(TxMode::Plain);
                count(&seen.not_now);
            }
        }
        for caller in callers {
            caller.join().unwrap();
        }
    })
}

#[test]
fn a_lane_opens_only_while_nobody_is_inside_a_call_and_every_byte_is_counted() {
    let seen = opening::<Loom>(PLAN);
    assert!(any(&seen.opened) && any(&seen.not_now));
    assert!(any(&seen.plain) && any(&seen.by_lane));
}

#[test]
fn an_opening_that_waits_for_those_inside_finds_every_byte_counted() {
    let plan = Plan {
        patient: true,
        ..PLAN
    };
    let seen = opening::<Loom>(plan);
    assert!(any(&seen.opened) && any(&seen.not_now));
    assert!(any(&seen.plain) && any(&seen.by_lane));
}

/// What comes, while a receiver may be inside: bytes that the kernel has handed out, that the library has counted since, and
/// that it had counted when the lane opened.
struct Incoming<W: Words> {
    gate: Gate<W, RxMode>,
    kernel: AtomicU64,
    counted: AtomicU64,
    base: AtomicU64,
}

/// An opening that leaves receivers inside.
fn opening_around_receivers<W: Fresh>(plan: Plan) -> Arc<Seen>
where
    W::U64: Send + Sync,
{
    explore(plan, move |seen| {
        let one = Arc::new(Incoming::<W> {
            gate: Gate::over(W::fresh()),
            kernel: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            base: AtomicU64::new(0),
        });
        let callers = [(); 2].map(|()| {
            let (one, told) = (one.clone(), seen.clone());
            thread::spawn(move || {
                if matches!(enter(&one.gate, plan), RxMode::Plain | RxMode::Cold) {
                    one.kernel.fetch_add(1, Ordering::SeqCst);
                    one.counted.fetch_add(1, Ordering::AcqRel);
                    count(&told.plain);
                }
                one.gate.leave();
            })
        });
        assert!(one.gate.close(RxMode::Plain));
        let is_quiet = one.gate.is_quiet();
        let taken = one.kernel.load(Ordering::SeqCst);
        let agree = one.counted.load(Ordering::Relaxed) == taken;
        assert!(
            agree || !is_quiet,
            "nobody is inside, and bytes are missing"
        );
        if agree {
            match plan.hasty {
                true => one.counted.store(0, Ordering::Release),
                false => {
                    one.counted.fetch_sub(taken, Ordering::AcqRel);
                }
            }
            one.base.store(taken, Ordering::Relaxed);
            count(if is_quiet {
                &seen.opened
            } else {
                &seen.by_lane
            });
        } else {
            count(&seen.not_now);
        }
        one.gate
            .set(if agree { RxMode::Cold } else { RxMode::Plain });
        for caller in callers {
            caller.join().unwrap();
        }
        let all = [&one.base, &one.counted].map(|n| n.load(Ordering::Relaxed));
        assert_eq!(all.iter().sum::<u64>(), one.kernel.load(Ordering::Relaxed));
    })
}

#[test]
fn an_opening_that_leaves_receivers_inside_loses_none_of_their_bytes() {
    let seen = opening_around_receivers::<Loom>(PLAN);
    assert!(any(&seen.opened) && any(&seen.by_lane) && any(&seen.not_now));
}

#[test]
fn both_directions_open_or_none_does() {
    let seen = opening_of_both::<Loom>(Plan {
        preemptions: 2,
        ..PLAN
    });
    assert!(any(&seen.opened) && any(&seen.not_now));
}

// ---- waking up and ending, against a receiver that sleeps ----

/// What the peer and the kernel know; parking is one step here.
#[derive(Default)]
struct Outside {
    /// The receiver has said that the ring is fine.
    awake: bool,
    ring: usize,
    tcp: usize,
}

struct Receiving<W: Words> {
    gate: Gate<W, RxMode>,
    rx_lock: Mutex<()>,
    outside: Mutex<Outside>,
    arrived: Condvar,
}

impl<W: Fresh> Receiving<W> {
    /// Open, and parked.
    fn new() -> Receiving<W> {
        let gate = Gate::over(W::fresh());
        gate.set(RxMode::Cold);
        Receiving {
            gate,
            rx_lock: Mutex::new(()),
            outside: Mutex::new(Outside::default()),
            arrived: Condvar::new(),
        }
    }

    /// The peer sends a byte.
    fn peer_sends(&self) {
        let mut outside = self.outside.lock().unwrap();
        if outside.awake {
            outside.ring += 1;
        } else {
            outside.tcp += 1;
            self.arrived.notify_all();
        }
    }

    /// Sleeps in the kernel until TCP has something.
    fn kernel(&self, takes: bool) {
        let mut outside = self.outside.lock().unwrap();
        while outside.tcp == 0 {
            outside = self.arrived.wait(outside).unwrap();
        }
        outside.tcp -= usize::from(takes);
    }

    /// Another thread has just received by TCP: from now on the ring, if nobody sleeps in the kernel.
    fn wake(&self, plan: Plan, seen: &Seen) {
        let unlocked = plan.wakes_unlocked && self.gate.mode() == RxMode::Cold;
        let _held = self.rx_lock.lock().unwrap();
        let moves = if plan.wakes_unlocked {
            if unlocked {
                self.gate.set(RxMode::Moving);
            }
            unlocked
        } else {
            begin_move(&self.gate, RxMode::Cold, plan.busy, plan)
        };
        if !moves {
            count(&seen.not_now);
            return;
        }
        self.outside.lock().unwrap().awake = true;
        self.gate.set(RxMode::Hot);
        count(&seen.opened);
    }

    /// From here on everything comes by TCP, but for what lies in the ring.
    fn end(&self) {
        let _held = self.rx_lock.lock().unwrap();
        let mut outside = self.outside.lock().unwrap();
        outside.awake = false;
        let left = outside.ring > 0;
        drop(outside);
        self.gate
            .set(if left { RxMode::Drain } else { RxMode::Ended });
    }

    /// Receives one byte, and may sleep for it.
    fn receive(&self, plan: Plan, seen: &Seen) {
        loop {
            let mode = enter(&self.gate, plan);
            if matches!(mode, RxMode::Plain | RxMode::Cold) {
                self.kernel(true);
                self.gate.leave();
                return count(&seen.by_tcp);
            }
            self.gate.leave();
            match mode {
                RxMode::Ended => {
                    self.kernel(true);
                    return count(&seen.by_tcp);
                }
                RxMode::Hot | RxMode::Drain if self.takes_or_parks(seen) => return,
                _ => thread::yield_now(),
            }
        }
    }

    /// Polls, and then receives.
    fn poll(&self, seen: &Seen) {
        let mode = self.gate.sleeps();
        if mode != RxMode::Cold && self.takes_or_parks(seen) {
            return self.gate.wakes();
        }
        self.kernel(false);
        self.gate.wakes();
        self.receive(PLAN, seen);
    }

    /// A byte of the ring; or, if there is none, parked, or at the ring's end.
    fn takes_or_parks(&self, seen: &Seen) -> bool {
        let _held = self.rx_lock.lock().unwrap();
        let mode = self.gate.mode();
        if !matches!(mode, RxMode::Hot | RxMode::Drain) {
            return false;
        }
        let mut outside = self.outside.lock().unwrap();
        if outside.ring > 0 {
            outside.ring -= 1;
            count(&seen.by_ring);
            return true;
        }
        outside.awake = false;
        drop(outside);
        if mode == RxMode::Drain {
            count(&seen.drained);
            self.gate.set(RxMode::Ended);
        } else {
            self.gate.set(RxMode::Cold);
        }
        false
    }
}

fn waking<W: Fresh>(plan: Plan) -> Arc<Seen>
where
    W::U64: Send + Sync,
{
    explore(plan, move |seen| {
        let one = Arc::new(Receiving::<W>::new());
        let (theirs, told) = (one.clone(), seen.clone());
        let waker = thread::spawn(move || theirs.wake(plan, &told));
        let theirs = one.clone();
        let peer = thread::spawn(move || theirs.peer_sends());
        if plan.polls {
            one.poll(seen);
        } else {
            one.receive(plan, seen);
        }
        waker.join().unwrap();
        peer.join().unwrap();
    })
}

fn ending<W: Fresh>(plan: Plan) -> Arc<Seen>
where
    W::U64: Send + Sync,
{
    explore(plan, move |seen| {
        let one = Arc::new(Receiving::<W>::new());
        let (theirs, told) = (one.clone(), seen.clone());
        let waker = thread::spawn(move || theirs.wake(plan, &told));
        let theirs = one.clone();
        let ends = thread::spawn(move || {
            theirs.peer_sends();
            theirs.end();
        });
        one.receive(plan, seen);
        waker.join().unwrap();
        ends.join().unwrap();
        let mode = one.gate.mode();
        assert!(
            matches!(mode, RxMode::Ended | RxMode::Drain),
            "it has ended, and is {mode:?}"
        );
    })
}

#[test]
fn nobody_sleeps_in_a_receive_while_bytes_come_by_the_ring() {
    let seen = waking::<Loom>(PLAN);
    assert!(any(&seen.opened) && any(&seen.not_now));
    assert!(any(&seen.by_tcp) && any(&seen.by_ring));
}

#[test]
fn nobody_sleeps_in_poll_while_bytes_come_by_the_ring() {
    let seen = waking::<Loom>(Plan {
        polls: true,
        ..PLAN
    });
    assert!(any(&seen.opened) && any(&seen.not_now));
    assert!(any(&seen.by_tcp) && any(&seen.by_ring));
}

#[test]
fn a_lane_that_ends_is_never_woken_again_and_what_lies_in_the_ring_is_read() {
    let seen = ending::<Loom>(Plan {
        preemptions: 2,
        ..PLAN
    });
    assert!(any(&seen.opened) && any(&seen.not_now));
    assert!(any(&seen.by_tcp) && any(&seen.by_ring));
}

// ---- the canaries ----

fn must_fail(model: impl FnOnce() -> Arc<Seen>, why: &str) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(model)) else {
        panic!("not found: {why}");
    };
    let said = panic.downcast_ref::<String>().map_or("", String::as_str);
    assert!(!said.contains("maximum number of branches"), "{said}");
}

#[test]
fn canary_a_call_that_looks_before_it_is_counted_is_caught() {
    let plan = Plan {
        looks_first: true,
        ..PLAN
    };
    must_fail(|| opening::<Loom>(plan), "a byte behind the opening's back");
    must_fail(
        || opening_around_receivers::<Loom>(plan),
        "a byte that nobody has counted",
    );
    must_fail(|| waking::<Loom>(plan), "a sleep beside the ring");
}

#[test]
fn canary_a_move_that_does_not_look_who_is_inside_is_caught() {
    let plan = Plan {
        hasty: true,
        ..PLAN
    };
    must_fail(|| opening::<Loom>(plan), "a byte behind the opening's back");
    must_fail(
        || opening_around_receivers::<Loom>(plan),
        "a byte that nobody has counted",
    );
    must_fail(|| waking::<Loom>(plan), "a sleep beside the ring");
}

#[test]
fn canary_a_wake_up_that_does_not_count_those_in_poll_is_caught() {
    let plan = Plan {
        busy: Busy::Calls,
        polls: true,
        ..PLAN
    };
    must_fail(|| waking::<Loom>(plan), "a poll beside the ring");
}

#[test]
fn canary_a_wake_up_that_looks_before_it_has_the_lock_is_caught() {
    let plan = Plan {
        wakes_unlocked: true,
        preemptions: 2,
        ..PLAN
    };
    must_fail(
        || ending::<Loom>(plan),
        "a lane that is awake after its end",
    );
}

#[test]
fn canary_changes_that_are_not_one_step_are_caught() {
    must_fail(|| opening::<Torn>(PLAN), "a count that is lost");
    must_fail(|| waking::<Torn>(PLAN), "a sleep beside the ring");
}

#[test]
fn canary_changes_that_order_nothing_are_caught() {
    must_fail(|| opening::<Unordered>(PLAN), "counts read too early");
    let plan = Plan {
        patient: true,
        ..PLAN
    };
    must_fail(|| opening::<Unordered>(plan), "counts read too early");
}
