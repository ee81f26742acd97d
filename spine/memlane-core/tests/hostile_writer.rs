//! A peer that writes whatever it likes into every shared word and byte: the
//! honest side answers with values in bounds or `Misbehaved`, never with a
//! panic (debug builds check every sum), an endless loop or a stretch outside
//! the ring. Twice: with a thread that scribbles, and step by step (which finds
//! the words that are wrong *together*, and can be replayed).

use hostile::{Dmb, SIZE, Victim, start};
use memlane_core::layout::PARKED;
use memlane_core::ring::{Misbehaved, Next, ParkCheck, Room, Rx, Tx};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

mod hostile;

const ROUNDS: u64 = 200_000;
/// No single call may take longer, on however loaded a machine.
const STUCK: Duration = Duration::from_secs(20);

/// xorshift64*: seeded, so a failure can be run again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Runs `step` at least `ROUNDS` times while another thread scribbles at least
/// as often; returns (in bounds, refused).
fn under_fire(seed: u64, mut step: impl FnMut(&mut Victim<'_>, &mut Random)) -> (u64, u64) {
    let dmb = Dmb::new();
    let (done, progress, scribbled) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut r = Random(seed);
            while !done.load(Relaxed) {
                let (which, how, value) = (r.next(), r.next(), r.next());
                dmb.scribble(which, how, value);
                scribbled.fetch_add(1, Relaxed);
            }
        });
        s.spawn(|| abort_if_stuck(&done, &progress));
        // Whatever happens, the threads above end: else a panic here would wait for them for ever.
        let _ends = Ends(&done);
        let mut victim = Victim::new(&dmb);
        let mut r = Random(seed ^ 0xdead_beef);
        let mut round = 0;
        while round < ROUNDS || scribbled.load(Relaxed) < ROUNDS {
            step(&mut victim, &mut r);
            round += 1;
            progress.store(round, Relaxed);
        }
        (victim.bounded, victim.refused)
    })
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn abort_if_stuck(done: &AtomicBool, progress: &AtomicU64) {
    let (mut last, mut since) = (u64::MAX, Instant::now());
    while !done.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
        let now = progress.load(Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > STUCK {
            eprintln!("a call has not returned for {STUCK:?}: round {now}");
            std::process::abort();
        }
    }
}

// ---- the tests ----

#[test]
fn a_receiver_under_fire_stays_in_bounds() {
    let (bounded, refused) = under_fire(1, |v, r| {
        let (want, at) = (r.next(), r.next());
        v.receive(want, start(at));
    });
    println!("receiver: {bounded} in bounds, {refused} refused");
    assert!(bounded > 1000); // how many are refused is the scheduler's business
}

#[test]
fn a_sender_under_fire_stays_in_bounds() {
    let (bounded, refused) = under_fire(2, |v, r| {
        let (want, how, at) = (r.next(), r.next(), r.next());
        v.send(want, how, start(at));
    });
    println!("sender: {bounded} in bounds, {refused} refused");
    assert!(bounded > 1000); // how many are refused is the scheduler's business
}

#[test]
fn both_sides_see_every_kind_of_lie_in_turn() {
    let dmb = Dmb::new();
    let mut r = Random(3);
    let mut v = Victim::new(&dmb);
    for round in 0..ROUNDS {
        for _ in 0..r.next() % 4 {
            let (which, how, value) = (r.next(), r.next(), r.next());
            dmb.scribble(which, how, value);
        }
        let (want, how, at) = (r.next(), r.next(), r.next());
        if round % 50 < 25 {
            v.receive(want, start(at));
        } else {
            v.send(want, how, start(at));
        }
    }
    println!("in turn: {} in bounds, {} refused", v.bounded, v.refused);
    assert!(v.bounded > ROUNDS / 10 && v.refused > ROUNDS / 100);
}

#[derive(Clone, Debug)]
enum Step {
    Scribble(u64, u64, u64),
    Send(u64, u64, u64),
    Receive(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let n = any::<u64>;
    prop_oneof![
        3 => (n(), n(), n()).prop_map(|(a, b, c)| Step::Scribble(a, b, c)),
        1 => (n(), n(), n()).prop_map(|(a, b, c)| Step::Send(a, b, c)),
        1 => (n(), n()).prop_map(|(a, b)| Step::Receive(a, b)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_hostile_writes_gets_a_step_out_of_bounds(steps in prop::collection::vec(step(), 1..200)) {
        let dmb = Dmb::new();
        let mut victim = Victim::new(&dmb);
        for step in steps {
            match step {
                Step::Scribble(which, how, value) => dmb.scribble(which, how, value),
                Step::Send(want, how, at) => victim.send(want, how, start(at)),
                Step::Receive(want, at) => victim.receive(want, start(at)),
            }
        }
    }
}

#[test]
fn a_receiver_that_acknowledged_unpaid_bytes_does_not_upset_the_way_out() {
    let dmb = Dmb::new();
    let mut tx = Tx::default();
    tx.activate(dmb.words(), 0);
    tx.promise_tcp(dmb.words(), 10);
    tx.paid(3);
    dmb.words().consumed.0.store(10, Relaxed); // more than was ever written
    assert_eq!(tx.drained(dmb.words()), Ok(true)); // within the promise: not yet provably wrong
    tx.go_tcp_only(dmb.words());
    assert_eq!((tx.offset(), tx.in_flight()), (3, 0));
    assert_eq!(tx.drained(dmb.words()), Err(Misbehaved::Consumed));
}

/// A receiver at offset 0 of a lane on which the sender did what `set_up` does.
fn next_after(set_up: impl FnOnce(&Dmb, &mut Rx)) -> Result<Next, Misbehaved> {
    let dmb = Dmb::new();
    let mut rx = Rx::default();
    rx.prepare(dmb.words());
    set_up(&dmb, &mut rx);
    rx.next(dmb.words(), SIZE)
}

fn declare(dmb: &Dmb, runs: &[(u64, u64)]) {
    for (slot, (start, end)) in dmb.words().runs.iter().zip(runs) {
        slot.start.store(*start, Relaxed);
        slot.end.store(*end, Relaxed);
    }
    let declared = u32::try_from(runs.len()).unwrap();
    dmb.words().sent.0.runs_declared.store(declared, Relaxed);
}

#[test]
fn each_impossible_word_of_a_sender_is_refused_by_its_name() {
    let publish = |dmb: &Dmb, n| dmb.words().sent.0.published.store(n, Relaxed);
    let whole_ring = next_after(|dmb, _| publish(dmb, SIZE as u64));
    assert_eq!(whole_ring, Ok(Next::Ring(SIZE)));
    let too_much = next_after(|dmb, _| publish(dmb, SIZE as u64 + 1));
    assert_eq!(too_much, Err(Misbehaved::Published));
    let backwards = next_after(|dmb, rx| {
        publish(dmb, 10);
        rx.next(dmb.words(), SIZE).unwrap();
        publish(dmb, 9);
    });
    assert_eq!(backwards, Err(Misbehaved::Published));

    let too_many = next_after(|dmb, _| dmb.words().sent.0.runs_declared.store(17, Relaxed));
    assert_eq!(too_many, Err(Misbehaved::Run));
    assert_eq!(
        next_after(|dmb, _| declare(dmb, &[(5, 4)])),
        Err(Misbehaved::Run)
    );
    let overlapping = |start| {
        next_after(|dmb, rx| {
            publish(dmb, 10);
            rx.took(dmb.words(), 4);
            declare(dmb, &[(0, 4), (start, 10)]);
        })
    };
    assert_eq!(overlapping(4), Ok(Next::Tcp(6)));
    assert_eq!(overlapping(3), Err(Misbehaved::Run));
    let fewer = next_after(|dmb, rx| {
        publish(dmb, 10);
        declare(dmb, &[(0, 1), (2, 3)]);
        rx.took(dmb.words(), 1);
        rx.next(dmb.words(), SIZE).unwrap();
        rx.took(dmb.words(), 1);
        declare(dmb, &[]);
    });
    assert_eq!(fewer, Err(Misbehaved::Run));
}

#[test]
fn each_impossible_word_of_a_receiver_is_refused_by_its_name() {
    let dmb = Dmb::new();
    let mut tx = Tx::default();
    tx.activate(dmb.words(), 100);
    let mut drained_at = |consumed| {
        dmb.words().consumed.0.store(consumed, Relaxed);
        tx.drained(dmb.words())
    };
    assert_eq!(drained_at(60), Ok(false));
    assert_eq!(drained_at(59), Err(Misbehaved::Consumed));
    assert_eq!(drained_at(101), Err(Misbehaved::Consumed));
    assert_eq!(drained_at(100), Ok(true));
}

/// What a sender leaves behind that is killed between `reserve` and `commit`.
#[test]
fn a_receiver_is_never_told_to_sleep_beside_a_sender_that_died_in_mid_write() {
    let dmb = Dmb::new();
    let w = dmb.words();
    let (mut tx, mut rx) = (Tx::default(), Rx::default());
    rx.prepare(w);
    rx.unpark(w);
    tx.activate(w, 0);
    assert_eq!(tx.reserve(w, SIZE, 3), Ok(Room::Ring(3)));
    tx.commit(w, 3);
    assert_eq!(tx.reserve(w, SIZE, 5), Ok(Room::Ring(5)));
    // No commit: it is dead. What it had published is read, what it had not is not seen …
    assert_eq!(rx.next(w, SIZE), Ok(Next::Ring(3)));
    rx.took(w, 3);
    for _ in 0..1000 {
        assert_eq!(rx.next(w, SIZE), Ok(Next::Empty));
        // … and each try to sleep ends at once, with an answer that says why.
        rx.begin_park(w, PARKED);
        assert_eq!(rx.check_park(w), ParkCheck::WriterBusy);
        rx.unpark(w);
    }
    assert_eq!(rx.offset(), 3);
}
