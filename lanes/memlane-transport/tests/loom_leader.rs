//! Leader and followers of a session, model-checked: one thread drives at a time, each request is taken, and nobody
//! sleeps for ever.
//!
//! ```text
//! cargo test --release -p memlane-transport --features loom --test loom_leader
//! ```
#![cfg(feature = "loom")]

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use memlane_core::sync::{Exchange, Word};
use memlane_transport::engine::leader::{Leadership, Left};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PREEMPTIONS: usize = 3;
/// Where two threads spin: with 3 the model takes more than 10 minutes.
const PREEMPTIONS_OF_TWO: usize = 2;

/// A word that is not changed in one step.
struct Torn(AtomicU64);

impl Word<u64> for Torn {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
}

impl Exchange<u64> for Torn {
    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        match self.0.load(Ordering::SeqCst) {
            now if now == old => {
                self.0.store(new, Ordering::SeqCst);
                Ok(now)
            }
            now => Err(now),
        }
    }
    fn fetch_add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::SeqCst)
    }
    fn fetch_sub(&self, n: u64) -> u64 {
        self.0.fetch_sub(n, Ordering::SeqCst)
    }
}

/// What wakes one thread: its own event, and the socket, which is readable until a leader reads it.
#[derive(Default)]
struct Ready {
    signalled: bool,
    readable: bool,
}

struct Event {
    ready: Mutex<Ready>,
    changed: Condvar,
}

impl Event {
    fn new() -> Event {
        Event {
            ready: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn signal(&self) {
        self.ready.lock().expect("no panic").signalled = true;
        self.changed.notify_one();
    }

    fn set_readable(&self, readable: bool) {
        self.ready.lock().expect("no panic").readable = readable;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut ready = self.ready.lock().expect("no panic");
        while !ready.signalled && !ready.readable {
            ready = self.changed.wait(ready).expect("no panic");
        }
        ready.signalled = false;
    }
}

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn is_found_wrong(model: impl Fn()) {
    let found = catch_unwind(AssertUnwindSafe(model));
    assert!(found.is_err(), "the model does not notice");
}

// ---- requests ---------------------------------------------------------------

/// A session that threads submit requests to.
struct Submits<W> {
    leadership: Leadership<W>,
    queue: Mutex<Vec<u32>>,
    /// What leaders have taken. Without a lock: loom notices two leaders at a time.
    taken: UnsafeCell<Vec<u32>>,
}

/// One request, as `session::drive::submit` does it. `late`: it is put into the queue only after it was announced.
fn submit<W: Exchange<u64>>(session: &Submits<W>, request: u32, late: bool) {
    let queue = || session.queue.lock().expect("no panic");
    if session.leadership.lead() {
        // SAFETY: only the leader does this.
        session
            .taken
            .with_mut(|taken| unsafe { (*taken).push(request) });
    } else {
        if !late {
            queue().push(request);
        }
        let leads = session.leadership.submit();
        if late {
            queue().push(request);
        }
        if !leads {
            return;
        }
    }
    loop {
        let queued = std::mem::take(&mut *queue());
        // SAFETY: only the leader does this.
        session
            .taken
            .with_mut(|taken| unsafe { (*taken).extend(queued) });
        match session.leadership.leave_untouched() {
            Left::Free => return,
            Left::Pending => {}
            Left::MustPark => panic!("nobody sleeps"),
        }
    }
}

fn requests<W: Exchange<u64> + 'static>(word: fn() -> W, late: bool) {
    check(PREEMPTIONS, move || {
        let session = Arc::new(Submits {
            leadership: Leadership::new(word()),
            queue: Mutex::new(Vec::new()),
            taken: UnsafeCell::new(Vec::new()),
        });
        let others: Vec<_> = (1..3)
            .map(|request| {
                let session = Arc::clone(&session);
                thread::spawn(move || submit(&session, request, late))
            })
            .collect();
        submit(&session, 0, late);
        others
            .into_iter()
            .for_each(|other| other.join().expect("no panic"));
        // SAFETY: the others are gone.
        let mut taken = session.taken.with(|taken| unsafe { (*taken).clone() });
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2]);
        assert!(session.leadership.lead(), "nobody leads any more");
    });
}

#[test]
fn every_request_is_taken_by_one_leader_at_a_time() {
    requests(|| AtomicU64::new(0), false);
}

#[test]
fn a_request_announced_before_it_is_in_the_queue_is_left_behind() {
    is_found_wrong(|| requests(|| AtomicU64::new(0), true));
}

#[test]
fn a_word_that_changes_in_two_steps_has_two_leaders() {
    is_found_wrong(|| requests(|| Torn(AtomicU64::new(0)), false));
}

// ---- sleepers ---------------------------------------------------------------

/// The connection: what has come by it, and whether it is parked.
#[derive(Default)]
struct Connection {
    has_come: bool,
    parked: bool,
}

/// A session with one thread that waits for a result, and a peer that sends it.
struct Sleeps {
    leadership: Leadership<AtomicU64>,
    connection: Mutex<Connection>,
    /// A leader has read the result.
    done: Mutex<bool>,
    event: Event,
}

/// The mistakes that the model must notice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// A thread counts itself as a sleeper only after it has led for the last time.
    CountsLate,
    /// A thread that has spun goes away without parking.
    NeverParks,
    /// Of two threads that spin, the first one parks when it goes away, not the last one.
    FirstParks,
}

/// By the leader: passes until it may leave, as `session::drive::passes_and`. `parks`: `None` for a thread that spins.
fn passes(session: &Sleeps, parks: impl Fn(&Sleeps) -> Option<bool>) {
    loop {
        let parked = parks(session);
        let mut connection = session.connection.lock().expect("no panic");
        session.event.set_readable(false);
        if std::mem::take(&mut connection.has_come) {
            *session.done.lock().expect("no panic") = true;
            session.event.signal();
        }
        connection.parked = parked == Some(true);
        drop(connection);
        match session.leadership.leave(parked) {
            Left::Free => return,
            Left::Pending => panic!("nobody submits"),
            Left::MustPark => {}
        }
    }
}

fn when_somebody_sleeps(session: &Sleeps) -> Option<bool> {
    Some(session.leadership.sleepers() > 0)
}

/// Waits for the result, asleep.
fn sleeper(session: &Sleeps, mistake: Mistake) {
    loop {
        if mistake != Mistake::CountsLate {
            session.leadership.sleep();
        }
        if session.leadership.lead() {
            passes(session, |_| Some(true));
        }
        if mistake == Mistake::CountsLate {
            session.leadership.sleep();
        }
        if !*session.done.lock().expect("no panic") {
            session.event.wait();
        }
        if session.leadership.lead() {
            passes(session, when_somebody_sleeps);
        } else {
            thread::yield_now();
        }
        session.leadership.wake();
        if *session.done.lock().expect("no panic") {
            return;
        }
    }
}

/// Leads once, and goes on with something else.
fn passer_by(session: &Sleeps, _: Mistake) {
    if session.leadership.lead() {
        passes(session, when_somebody_sleeps);
    }
}

/// Spins in vain for a number of turns, and goes away.
fn spins(session: &Sleeps, turns: usize, mistake: Mistake) {
    let first = session.leadership.spin() == 1;
    for _ in 0..turns {
        if session.leadership.lead() {
            passes(session, |_| None);
        }
    }
    let last = session.leadership.stop_spinning();
    let parks = match mistake {
        Mistake::NeverParks => false,
        Mistake::FirstParks => first,
        _ => last,
    };
    if parks && session.leadership.must_park() && session.leadership.lead() {
        passes(session, when_somebody_sleeps);
    }
}

fn spinner(session: &Sleeps, mistake: Mistake) {
    spins(session, 2, mistake);
}

/// Spins for one turn, in vain, and goes away.
fn spins_once(session: &Sleeps, mistake: Mistake) {
    spins(session, 1, mistake);
}

/// Spins, too, before the peer sends the result.
fn spins_before_the_peer(session: &Sleeps, mistake: Mistake) {
    spins(session, 1, mistake);
    peer(session);
}

fn only_the_peer(session: &Sleeps, _: Mistake) {
    peer(session);
}

fn peer(session: &Sleeps) {
    let mut connection = session.connection.lock().expect("no panic");
    connection.has_come = true;
    if connection.parked {
        session.event.set_readable(true);
    }
}

/// One thread waits asleep, for what the peer sends; what two others do must not leave it asleep.
fn sleepers(others: [fn(&Sleeps, Mistake); 2], preemptions: usize, mistake: Mistake) {
    check(preemptions, move || {
        let session = Arc::new(Sleeps {
            leadership: Leadership::new(AtomicU64::new(0)),
            connection: Mutex::default(),
            done: Mutex::new(false),
            event: Event::new(),
        });
        let start = |other: fn(&Sleeps, Mistake)| {
            let session = Arc::clone(&session);
            thread::spawn(move || other(&session, mistake))
        };
        let others = others.map(start);
        sleeper(&session, mistake);
        for other in others {
            other.join().expect("no panic");
        }
    });
}

#[test]
fn nobody_sleeps_for_ever_while_another_thread_leads_and_goes_away() {
    sleepers([passer_by, only_the_peer], PREEMPTIONS, Mistake::None);
}

#[test]
fn nobody_sleeps_for_ever_after_another_thread_has_spun() {
    sleepers([spinner, only_the_peer], PREEMPTIONS, Mistake::None);
}

#[test]
fn a_sleeper_that_counts_itself_late_sleeps_for_ever() {
    is_found_wrong(|| sleepers([passer_by, only_the_peer], PREEMPTIONS, Mistake::CountsLate));
}

#[test]
fn a_thread_that_spins_and_never_parks_leaves_another_asleep() {
    is_found_wrong(|| sleepers([spinner, only_the_peer], PREEMPTIONS, Mistake::NeverParks));
}

#[test]
fn nobody_sleeps_for_ever_after_two_threads_have_spun_in_turns() {
    sleepers(
        [spins_once, spins_before_the_peer],
        PREEMPTIONS_OF_TWO,
        Mistake::None,
    );
}

#[test]
fn the_first_of_two_threads_that_spin_parks_too_early() {
    is_found_wrong(|| {
        sleepers(
            [spins_once, spins_before_the_peer],
            PREEMPTIONS_OF_TWO,
            Mistake::FirstParks,
        )
    });
}
