//! When to spin, and for how long.
//!
//! Spinning pays when the awaited bytes come sooner than a sleep and a wake-up take. It hurts when the peer cannot run
//! because this thread spins on the peer's CPU. So:
//! * The longest spin is about twice the cost of a wake-up (`--spin`).
//! * After spins in vain, the next waits do not spin (1, 2, 4 … 64 waits, then one trial). A sleep that turns out short
//!   enough ends this.
//! * Each thread keeps two records: one of waits that follow a bell that it has rung, so that an answer is likely, and
//!   one of all others. A client that sends when a timer says so, waits for the answer, and then for the timer, spins for
//!   its answers only.
//! * A gap in the spin loop's own time means that another task wanted this CPU: the machine is full. Then, and for a
//!   peer that was last seen on this very CPU, or on a machine with only one CPU, a thread yields (`sched_yield`)
//!   instead of spinning: the awaited peer gets the CPU, and neither side has to sleep.
//! * A thread whose waits are mostly longer than two tenths of that sleeps, even where CPUs are free: at 10,000 requests a
//!   second, it would spin all the time.
//! * Where the machine has more runnable threads than CPUs, the time that a spin takes is missing elsewhere: at a thread
//!   that holds a lock, say. There a spin must save more CPU time than it costs. If the mean of the last spins did not,
//!   the score forgives a wait in vain only after two that were not, and up to a thousand waits do not spin.
//! * Where other tasks keep the CPU for longer than a peer would, or the yield brings nothing, the thread sleeps in the
//!   kernel for a while. The kernel wakes a sleeper with priority. The receiver of a stream naps a few times first,
//!   awake: parked, it would get the next bytes by TCP.
//! * The receiver of a stream is a thread that reads much at once and sends no small messages in between: a client
//!   with large answers is none.

use crate::state::process::{PROCESS, config};
use crate::state::runnable;
use crate::state::thread;
use core::sync::atomic::Ordering;
use memlane_sys::time::ticks;

/// A gap of this many microseconds between two turns of a spin loop means that another task had the CPU. A turn takes
/// well under 1 µs; interrupts, also a hypervisor's, take tens of µs.
const GAP_US: u64 = 200;
/// How long a thread spins before it asks for the first time whether the machine is full, in microseconds. Asking costs as
/// much as that; the peers of most threads that spin answer sooner.
const ASK_AFTER_US: u64 = 2;
/// What `SpinRecord::hits` is if all spins find what they wait for.
const HITS_ALL: u32 = 1024;
/// How often a thread that spins asks that again, in microseconds.
const ASK_EVERY_US: u64 = 20;
/// A thread that lost its CPU while spinning yields instead for this many times the gap …
const FULL_TIMES: u64 = 8;
/// … but for at most this many microseconds.
const FULL_MOST_US: u64 = 50_000;
/// The CPU time that a spin saves if it finds what it waits for, in microseconds: about what a sleep and a wake-up cost both
/// ends.
const SAVES_US: u64 = 12;
/// For how long the score forgives less after a spin that did not pay on a full machine, in microseconds.
const DEAR_US: u64 = 1_000_000;
/// A yield that returns within this many microseconds found no other task on this CPU.
const ALONE_US: u64 = 3;
/// A task that keeps a yielded CPU for this many microseconds has work of its own, unrelated to memlane. The peers of
/// this thread, and even a hundred such pairs, give it back much sooner.
const UNRELATED_US: u64 = 1000;
/// What a peer takes for an answer at most, in microseconds: about a request of nginx's by TCP.
const SERVICE_US: u64 = 50;
/// A thread that has lost this many microseconds to unrelated tasks in a row …
const LOST_LEAST_US: u64 = 16_000;
/// … with at most this many microseconds between two losses, and more than half of the time, sleeps.
const LOST_APART_US: u64 = 50_000;
/// The number of waits that do not spin after spins in vain, at most …
const SKIP_MOST: u32 = 64;
/// … and where they were dear.
const SKIP_MOST_DEAR: u32 = 1024;
/// The number of yields in vain before a thread stops waiting.
const YIELDS: u32 = 8;
/// Where other tasks had the CPU and the awaited bytes did not come, a thread sleeps for this many times as long as
/// they kept it …
const SLEEP_TIMES: u64 = 64;
/// … and at most for this many microseconds.
const SLEEP_MOST_US: u64 = 1_000_000;

/// A read of this many bytes is part of a stream.
const BULK: isize = 8 * 1024;
/// A thread that has made such a read receives a stream until it has spun this many times in vain.
const VAIN_IN_A_STREAM: u32 = 8;
/// The number of naps that a receiver takes at most for each such read …
const NAPS: u32 = 4;
/// … and their length, in microseconds: the kernel's timer slack, below which naps do not become shorter.
const NAP_US: u64 = 50;

/// The result of a spin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spun {
    /// What the thread waits for is there.
    Ready,
    /// Time is up, or spinning was not worth starting.
    Nothing,
    /// A signal handler has run meanwhile.
    Signal,
}

/// The number of the CPU that the calling thread runs on, plus 1.
#[inline]
pub fn cpu_mark() -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let mut aux = 0u32;
        // SAFETY: every x86-64 CPU from 2008 on has rdtscp, and Linux 6.1 supports in practice no older one; Linux
        // keeps the CPU number in its low 12 bits.
        unsafe { core::arch::x86_64::__rdtscp(&raw mut aux) };
        (aux & 0xfff) + 1
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        memlane_sys::proc::cpu() + 1
    }
}

/// How long this thread may spin now, in ticks; 0: not at all.
#[inline]
pub fn budget() -> u64 {
    let us = u64::from(config().spin_us);
    if us == 0 {
        return 0;
    }
    let t = thread::current();
    t.begin_wait();
    let skip = t.record().skip.load(Ordering::Relaxed);
    if skip > 0 {
        let left = if are_spins_dear(t) {
            skip - 1
        } else {
            (skip - 1).min(SKIP_MOST)
        };
        t.record().skip.store(left, Ordering::Relaxed);
        return 0;
    }
    if is_cpu_crowded() {
        return 0;
    }
    us * PROCESS.ticks_per_us.load(Ordering::Relaxed)
}

/// How long this thread may spin for room in a full ring, in ticks, whatever it has found lately: a receiver that runs
/// makes room soon.
pub fn budget_for_room() -> u64 {
    if is_cpu_crowded() {
        return 0;
    }
    u64::from(config().spin_us) * PROCESS.ticks_per_us.load(Ordering::Relaxed)
}

/// Spins until `ready` returns `true`, for at most `budget` ticks, and keeps the thread's score. `here`: the peer was
/// last seen on this very CPU. `served` says, after a long yield, how many of this thread's peers have answered: they
/// took some of that time.
#[inline]
pub fn until(
    budget: u64,
    here: bool,
    ready: impl FnMut() -> bool,
    served: impl Fn() -> u64,
) -> Spun {
    let spun = turn(budget, here, ready, || served() * SERVICE_US);
    match spun {
        Spun::Ready if budget > 0 => hit(),
        Spun::Nothing if budget > 0 => miss(),
        _ => {}
    }
    spun
}

/// Spins for room in a full ring, for at most `most_us` microseconds. A running receiver makes room within a few µs, so
/// the score of waits for data does not count here.
pub fn for_room(most_us: u32, here: bool, ready: impl FnMut() -> bool) -> Spun {
    let most = u64::from(most_us).saturating_mul(PROCESS.ticks_per_us.load(Ordering::Relaxed));
    turn(budget_for_room().min(most), here, ready, || 0)
}

#[inline]
fn turn(
    budget: u64,
    here: bool,
    mut ready: impl FnMut() -> bool,
    peers_us: impl Fn() -> u64,
) -> Spun {
    if ready() {
        return Spun::Ready;
    }
    if budget == 0 {
        return Spun::Nothing;
    }
    let t = thread::current();
    let signals = t.signals.load(Ordering::Relaxed);
    let per_us = PROCESS.ticks_per_us.load(Ordering::Relaxed);
    let start = ticks();
    if here || runnable::is_cpu_the_only_one() || t.no_spin_until.load(Ordering::Relaxed) > start {
        return let_others_run(budget, ready, peers_us);
    }
    let (mut last, mut ask_at) = (start, start + ASK_AFTER_US * per_us);
    loop {
        for _ in 0..16 {
            core::hint::spin_loop();
            if ready() {
                note_cost(t, last.wrapping_sub(start), true);
                return Spun::Ready;
            }
        }
        if t.signals.load(Ordering::Relaxed) != signals {
            return Spun::Signal;
        }
        let now = ticks();
        let gap = now.wrapping_sub(last);
        if gap > GAP_US * per_us {
            let pause = (gap * FULL_TIMES).min(FULL_MOST_US * per_us);
            t.no_spin_until.store(now + pause, Ordering::Relaxed);
            return let_others_run(budget, ready, peers_us);
        }
        if now.wrapping_sub(start) > budget {
            note_cost(t, now.wrapping_sub(start), false);
            return Spun::Nothing;
        }
        last = now;
        if now > ask_at {
            let spent = now.wrapping_sub(start);
            if spent > long_us() * per_us && !do_spins_pay(t, long_us(), per_us) && !is_stream(t) {
                note_cost(t, spent, false);
                return Spun::Nothing;
            }
            if are_others_kept_in_vain(t, now, per_us) {
                note_cost(t, spent, false);
                return Spun::Nothing;
            }
            last = ticks();
            let long_at = start + long_us() * per_us;
            ask_at = if last < long_at {
                long_at
            } else {
                last + ASK_EVERY_US * per_us
            };
        }
    }
}

/// Waits by yielding. Ends when that is in vain: there is no other task to run, or the tasks that ran were not those
/// that this thread waits for.
fn let_others_run(
    budget: u64,
    mut ready: impl FnMut() -> bool,
    peers_us: impl Fn() -> u64,
) -> Spun {
    let t = thread::current();
    let signals = t.signals.load(Ordering::Relaxed);
    let per_us = PROCESS.ticks_per_us.load(Ordering::Relaxed);
    let start = ticks();
    let mut before = start;
    let mut own = 0;
    for _ in 0..YIELDS {
        memlane_sys::proc::yield_now();
        let now = ticks();
        let took = now.wrapping_sub(before);
        let is_ready = ready();
        if took > UNRELATED_US * per_us {
            let peers = if is_ready { peers_us() * per_us } else { 0 };
            if took > UNRELATED_US * per_us + peers {
                lost_to_unrelated(before + peers, now);
            }
        }
        if is_ready {
            return Spun::Ready;
        }
        if t.signals.load(Ordering::Relaxed) != signals {
            return Spun::Signal;
        }
        if took > GAP_US * per_us {
            break;
        }
        if took < ALONE_US * per_us {
            if runnable::is_cpu_the_only_one() {
                break; // nobody else runs, so nobody sends
            }
            if are_others_kept_in_vain(t, now, per_us) {
                break;
            }
            // The awaited peer may be at work on another CPU.
            for _ in 0..64 {
                core::hint::spin_loop();
                if ready() {
                    note_cost(t, own + ticks().wrapping_sub(before), true);
                    return Spun::Ready;
                }
            }
            own += ticks().wrapping_sub(before);
        }
        before = ticks();
    }
    if own > 0 {
        note_cost(t, own, false);
    }
    let now = ticks();
    let lost = now.wrapping_sub(start);
    if lost > budget && lost < UNRELATED_US * per_us {
        sleep_until(now + lost * SLEEP_TIMES);
    }
    Spun::Nothing
}

/// Counts a yield, from `before` to `now`, that gave the CPU to unrelated tasks. The awaited bytes may have come
/// meanwhile, and where these tasks have little to do, yielding still pays (a message costs a third of one by TCP).
/// Where they have much to do, this thread sleeps for a while.
#[cold]
fn lost_to_unrelated(before: u64, now: u64) {
    let t = thread::current();
    let per_us = PROCESS.ticks_per_us.load(Ordering::Relaxed);
    if before.wrapping_sub(t.lost_at.load(Ordering::Relaxed)) > LOST_APART_US * per_us {
        t.lost_since.store(before, Ordering::Relaxed);
        t.lost.store(0, Ordering::Relaxed);
    }
    let lost = t.lost.load(Ordering::Relaxed) + now.wrapping_sub(before);
    t.lost.store(lost, Ordering::Relaxed);
    t.lost_at.store(now, Ordering::Relaxed);
    let all = now.wrapping_sub(t.lost_since.load(Ordering::Relaxed));
    if lost > LOST_LEAST_US * per_us && lost > all / 2 {
        t.lost_at.store(0, Ordering::Relaxed);
        sleep_until(next_date(now));
    }
}

/// Makes this thread neither spin nor yield until `then`. After that its score begins anew.
fn sleep_until(then: u64) {
    let t = thread::current();
    for record in &t.records {
        record.skip.store(0, Ordering::Relaxed);
        record.score.store(0, Ordering::Relaxed);
    }
    t.no_yield_until.store(then, Ordering::Relaxed);
}

/// The time at which threads that sleep because of unrelated tasks try again. It is the same for all processes:
/// multiples of a power of two of ticks, half a second to a second apart. A thread that yielded alone, among others
/// that sleep, would wait for all of them and take them for unrelated tasks.
fn next_date(now: u64) -> u64 {
    let most = SLEEP_MOST_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    let apart = 1 << most.max(1).ilog2();
    (now / apart + 1) * apart
}

/// Will this thread spin, or yield, when it next waits? If it will not because its last spins were in vain, this counts as
/// one of the waits that it leaves out.
pub fn will_spin() -> bool {
    if config().spin_us == 0 || is_cpu_crowded() {
        return false;
    }
    let t = thread::current();
    let skips = &t.next_record().skip;
    let skip = skips.load(Ordering::Relaxed);
    skips.store(skip.saturating_sub(1), Ordering::Relaxed);
    skip == 0
}

/// Does the next [`budget`] allow a spin?
pub fn may_spin() -> bool {
    let skips = thread::current().next_record().skip.load(Ordering::Relaxed) > 0;
    config().spin_us != 0 && !skips && !is_cpu_crowded()
}

/// Is this CPU full of unrelated tasks, so that only a thread that sleeps gets it back soon?
pub fn is_cpu_crowded() -> bool {
    thread::current().no_yield_until.load(Ordering::Relaxed) > ticks()
}

/// Counts a spin that found what it waited for.
#[inline]
pub fn hit() {
    let t = thread::current();
    let score = t.record().score.load(Ordering::Relaxed);
    if score != 0 {
        let score = if are_spins_dear(t) { score - 1 } else { 0 };
        t.record().score.store(score, Ordering::Relaxed);
    }
}

/// Counts a spin in vain.
pub fn miss() {
    let t = thread::current();
    let left = t.stream.load(Ordering::Relaxed);
    t.stream.store(left.saturating_sub(1), Ordering::Relaxed);
    let (step, skip_most) = if are_spins_dear(t) {
        (2, SKIP_MOST_DEAR)
    } else {
        (1, SKIP_MOST)
    };
    let score = t.record().score.load(Ordering::Relaxed) + step;
    if score >= 2 {
        let skip = 1 << (score - 2).min(skip_most.ilog2().cast_signed());
        t.record().skip.store(skip, Ordering::Relaxed);
    }
    t.record().score.store(
        score.min(2 + skip_most.ilog2().cast_signed()),
        Ordering::Relaxed,
    );
}

/// Do the spins of this thread save more than they cost, if each that finds something saves so many microseconds?
fn do_spins_pay(t: &thread::Thread, saves_us: u64, per_us: u64) -> bool {
    let hits = u64::from(t.record().hits.load(Ordering::Relaxed));
    t.record().cost.load(Ordering::Relaxed) * u64::from(HITS_ALL) <= hits * saves_us * 8 * per_us
}

/// Do spins that do not pay keep other threads from the CPUs? From then on, this thread's spins are dear.
fn are_others_kept_in_vain(t: &thread::Thread, now: u64, per_us: u64) -> bool {
    let in_vain = !do_spins_pay(t, SAVES_US, per_us);
    let kept = in_vain && runnable::are_more_than_cpus();
    if kept {
        let until = now + DEAR_US * per_us;
        t.dear_until.store(until, Ordering::Relaxed);
    }
    kept
}

/// A wait of so many microseconds is long: a thread whose waits mostly are sleeps, even where CPUs are free. It would use
/// several times the CPU time for an answer that comes hardly sooner.
fn long_us() -> u64 {
    u64::from(config().spin_us) / 5
}

/// Has this thread received a part of a stream lately? Its waits may be long where CPUs are free: what comes is large.
fn is_stream(t: &thread::Thread) -> bool {
    t.stream.load(Ordering::Relaxed) != 0
}

/// Notes what a spin has cost, in ticks, for the mean of about the last eight.
#[inline]
fn note_cost(t: &thread::Thread, cost: u64, is_hit: bool) {
    let mean = t.record().cost.load(Ordering::Relaxed);
    t.record()
        .cost
        .store(mean - mean / 8 + cost, Ordering::Relaxed);
    let hits = t.record().hits.load(Ordering::Relaxed);
    let hit = if is_hit { HITS_ALL / 8 } else { 0 };
    t.record()
        .hits
        .store(hits - hits / 8 + hit, Ordering::Relaxed);
}

/// Has a spin of this thread not paid lately, on a full machine?
fn are_spins_dear(t: &thread::Thread) -> bool {
    t.dear_until.load(Ordering::Relaxed) > ticks()
}

/// Notes that this thread has received `n` bytes.
#[inline(always)]
pub fn received(n: isize) {
    if n >= BULK {
        let t = thread::current();
        t.naps.store(NAPS, Ordering::Relaxed);
        t.stream.store(VAIN_IN_A_STREAM, Ordering::Relaxed);
    }
}

/// Notes that this thread has sent `n` bytes. A receiver that sends little in between waits for answers, not for a stream.
#[inline(always)]
pub fn sent(n: isize) {
    if (1..BULK).contains(&n) {
        let stream = &thread::current().stream;
        if stream.load(Ordering::Relaxed) != 0 {
            stream.store(0, Ordering::Relaxed);
        }
    }
}

/// How long a receiver that found nothing should nap, in microseconds, before it looks at its rings once more; `None`:
/// it should park. Only the receiver of a stream naps, and only among unrelated tasks: a sender that gets the CPU finds
/// it awake, and can fill the ring.
pub fn nap_instead() -> Option<u64> {
    let naps = &thread::current().naps;
    let left = naps.load(Ordering::Relaxed);
    if left == 0 || !is_cpu_crowded() {
        return None;
    }
    naps.store(left - 1, Ordering::Relaxed);
    Some(NAP_US)
}

/// Makes the thread's next wait skip its spin: the thread has just looked for the same thing in vain.
pub fn skip_one() {
    thread::current()
        .next_record()
        .skip
        .fetch_max(1, Ordering::Relaxed);
}

/// Counts a sleep of `took` ticks: a spin might have been better.
pub fn slept(took: u64) {
    let per_us = PROCESS.ticks_per_us.load(Ordering::Relaxed);
    if took < long_us() * per_us {
        let t = thread::current();
        if are_spins_dear(t) {
            return;
        }
        t.record().skip.store(0, Ordering::Relaxed);
        let score = t.record().score.load(Ordering::Relaxed);
        t.record()
            .score
            .store((score - 1).max(0), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const PER_US: u64 = 1000;

    fn fresh() -> thread::Thread {
        // SAFETY: all-zero bytes are a valid `Thread`, as the preload library's own begin.
        unsafe { core::mem::zeroed() }
    }

    /// Notes the same spins again and again: of every ten, `hits` find something after `us`, the others nothing after 100 µs.
    fn after_spins(hits: u32, us: u64) -> thread::Thread {
        let t = fresh();
        for n in 0..200 {
            let is_hit = n % 10 < hits;
            note_cost(&t, if is_hit { us } else { 100 } * PER_US, is_hit);
        }
        t
    }

    #[test]
    fn a_spin_pays_if_it_saves_more_cpu_time_than_it_costs() {
        assert!(
            do_spins_pay(&fresh(), SAVES_US, PER_US),
            "nothing is known yet"
        );
        assert!(do_spins_pay(&after_spins(10, 2), SAVES_US, PER_US));
        assert!(!do_spins_pay(&after_spins(10, 30), SAVES_US, PER_US));
        assert!(!do_spins_pay(&after_spins(5, 2), SAVES_US, PER_US));
        assert!(!do_spins_pay(&after_spins(0, 0), SAVES_US, PER_US));
    }

    #[test]
    fn a_thread_whose_peers_answer_soon_again_spins_again() {
        let t = after_spins(0, 0);
        for _ in 0..64 {
            note_cost(&t, 2 * PER_US, true);
        }
        assert!(do_spins_pay(&t, SAVES_US, PER_US));
    }

    #[test]
    fn a_client_of_a_timer_spins_for_its_answers_and_not_for_the_timer() {
        let _alone = PRETENDS.lock();
        thread::tests::set_own_locator();
        let t = thread::current();
        let mut spins_for_timer = 0;
        for _ in 0..1000 {
            t.has_rung.store(1, Ordering::Relaxed);
            assert!(may_spin(), "the answer always came soon");
            assert!(budget() > 0);
            hit();
            if budget() > 0 {
                spins_for_timer += 1;
                miss();
            }
        }
        assert!(spins_for_timer < 30, "{spins_for_timer}");
        assert!(spins_for_timer > 10, "it tries again now and then");
    }

    #[test]
    fn answers_that_do_not_come_soon_end_the_spins_that_follow_a_bell() {
        let _alone = PRETENDS.lock();
        thread::tests::set_own_locator();
        let t = thread::current();
        let mut spins = [0, 0];
        for _ in 0..1000 {
            for (rings, spins) in [1, 0].into_iter().zip(&mut spins) {
                t.has_rung.store(rings, Ordering::Relaxed);
                if budget() > 0 {
                    *spins += 1;
                    if rings == 1 { miss() } else { hit() }
                }
            }
        }
        assert!(spins[0] < 30, "{spins:?}");
        assert_eq!(spins[1], 1000);
    }

    /// What the machine is pretended to be, one test at a time.
    static PRETENDS: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn a_thread_whose_waits_are_long_ends_its_spins_early_where_cpus_are_free_too() {
        let _alone = PRETENDS.lock();
        thread::tests::set_own_locator();
        let t = thread::current();
        let per_us = PROCESS.ticks_per_us.load(Ordering::Relaxed);
        runnable::PRETENDED.store(1, Ordering::Relaxed);
        let budget = 20 * long_us() * per_us;
        let spins = |hits, us, stream| {
            let spins = (0..40).map(|_| {
                for n in 0..200 {
                    note_cost(t, us * per_us, n % 10 < hits);
                }
                t.no_spin_until.store(0, Ordering::Relaxed);
                t.stream.store(stream, Ordering::Relaxed);
                let start = ticks();
                assert_eq!(turn(budget, false, || false, || 0), Spun::Nothing);
                ticks().wrapping_sub(start)
            });
            spins.collect::<Vec<_>>()
        };
        // A thread that loses its CPU takes longer, or ends its spin early: of many, some are as they should be.
        let long = 2 * long_us();
        let is_early = |took: &u64| *took < budget / 2;
        assert!(spins(10, long, 0).iter().any(is_early));
        let all_early = |spins: Vec<u64>| spins.iter().all(is_early);
        assert!(!all_early(spins(10, 1, 0)), "its peers answer soon");
        assert!(
            !all_early(spins(10, long, VAIN_IN_A_STREAM)),
            "it receives a stream"
        );
        t.stream.store(0, Ordering::Relaxed);
        runnable::PRETENDED.store(0, Ordering::Relaxed);
    }

    /// How many looks a wait takes where the peer was last seen on this CPU, and `running` threads are runnable: the least and the
    /// most of many waits. Other programs want this CPU, too: a yield may take a wait's whole time, or none at all.
    fn looks_here(t: &thread::Thread, running: u32, stream: u32) -> (u32, u32) {
        runnable::PRETENDED.store(running, Ordering::Relaxed);
        runnable::PRETENDED_CPUS.store(2, Ordering::Relaxed);
        let per_us = PROCESS.ticks_per_us.load(Ordering::Relaxed);
        let looks = |_| {
            for _ in 0..100 {
                note_cost(t, 2 * SAVES_US * per_us, true);
            }
            t.stream.store(stream, Ordering::Relaxed);
            let mut looks = 0;
            let never = || {
                looks += 1;
                false
            };
            assert_eq!(turn(10_000 * per_us, true, never, || 0), Spun::Nothing);
            looks
        };
        let looks: Vec<u32> = (0..500).map(looks).collect();
        runnable::PRETENDED_CPUS.store(0, Ordering::Relaxed);
        runnable::PRETENDED.store(0, Ordering::Relaxed);
        t.stream.store(0, Ordering::Relaxed);
        t.dear_until.store(0, Ordering::Relaxed);
        let most = looks.iter().copied().max().expect("500 waits");
        let least = looks.into_iter().min().expect("500 waits");
        (least, most)
    }

    #[test]
    fn a_thread_that_yields_to_nobody_on_a_full_machine_looks_no_further_where_that_has_not_paid() {
        let _alone = PRETENDS.lock();
        thread::tests::set_own_locator();
        let t = thread::current();
        for stream in [0, VAIN_IN_A_STREAM] {
            let (least, _) = looks_here(t, 9, stream);
            assert_eq!(least, 2, "before the yield and behind it");
            let (_, most) = looks_here(t, 1, stream);
            assert!(most > 2, "CPUs are free");
        }
    }

    #[test]
    fn looks_between_yields_that_find_nothing_cost_what_they_take() {
        let _alone = PRETENDS.lock();
        thread::tests::set_own_locator();
        let t = thread::current();
        let cost = || t.record().cost.load(Ordering::Relaxed);
        t.record().cost.store(0, Ordering::Relaxed);
        runnable::PRETENDED_CPUS.store(2, Ordering::Relaxed);
        runnable::PRETENDED.store(1, Ordering::Relaxed);
        // A wait beside others, who take the CPU, costs nothing. They leave it alone for one wait in ten seconds.
        let budget = 10_000 * PROCESS.ticks_per_us.load(Ordering::Relaxed);
        let begin = Instant::now();
        while cost() == 0 && begin.elapsed() < Duration::from_secs(10) {
            assert_eq!(turn(budget, true, || false, || 0), Spun::Nothing);
        }
        runnable::PRETENDED_CPUS.store(0, Ordering::Relaxed);
        runnable::PRETENDED.store(0, Ordering::Relaxed);
        assert!(cost() > 0);
    }

    #[test]
    fn a_receiver_that_sends_little_in_between_waits_for_answers_and_not_for_a_stream() {
        let _alone = PRETENDS.lock();
        thread::tests::set_own_locator();
        let t = thread::current();
        received(BULK);
        assert!(is_stream(t));
        sent(BULK);
        assert!(is_stream(t), "what it received goes on to somebody");
        sent(-1);
        assert!(is_stream(t), "there was no room");
        sent(BULK - 1);
        assert!(!is_stream(t));
    }

    #[test]
    fn on_the_only_cpu_a_wait_ends_when_nobody_else_wants_to_run() {
        let _alone = PRETENDS.lock();
        thread::tests::set_own_locator();
        runnable::PRETENDED_CPUS.store(1, Ordering::Relaxed);
        let budget = 10_000 * PROCESS.ticks_per_us.load(Ordering::Relaxed);
        let looks_of_a_wait = || {
            let mut looks = 0;
            let never = || {
                looks += 1;
                false
            };
            assert_eq!(turn(budget, false, never, || 0), Spun::Nothing);
            assert!(looks >= 2, "one look before the yield, one behind it");
            looks
        };
        // Others want this CPU, too. They leave it alone for one wait in ten seconds.
        let begin = Instant::now();
        let ends_soon = |looks| looks == 2 || begin.elapsed() >= Duration::from_secs(10);
        while !ends_soon(looks_of_a_wait()) {}
        assert!(begin.elapsed() < Duration::from_secs(10));
        runnable::PRETENDED_CPUS.store(0, Ordering::Relaxed);
    }

    #[test]
    fn a_spin_that_does_not_pay_ends_soon_on_a_full_machine_and_only_there() {
        let _alone = PRETENDS.lock();
        thread::tests::set_own_locator();
        let t = thread::current();
        let budget = 10_000 * PROCESS.ticks_per_us.load(Ordering::Relaxed);
        let is_dear_after_a_spin = |running| {
            runnable::PRETENDED.store(running, Ordering::Relaxed);
            t.dear_until.store(0, Ordering::Relaxed);
            t.no_spin_until.store(0, Ordering::Relaxed);
            for _ in 0..64 {
                note_cost(t, budget, false);
            }
            assert_eq!(turn(budget, false, || false, || 0), Spun::Nothing);
            are_spins_dear(t)
        };
        // A spin that loses its CPU at once yields, and does not ask.
        assert!((0..100).any(|_| is_dear_after_a_spin(u32::MAX)));
        assert!(!is_dear_after_a_spin(1));
        // Nor does the receiver of a stream keep others from the CPUs.
        received(BULK);
        assert!((0..100).any(|_| is_dear_after_a_spin(u32::MAX)));
        // On the only CPU, nothing can come while a thread spins: it yields, and the peer's time is no cost of the spin.
        runnable::PRETENDED_CPUS.store(1, Ordering::Relaxed);
        assert!((0..100).all(|_| !is_dear_after_a_spin(u32::MAX)));
        runnable::PRETENDED_CPUS.store(0, Ordering::Relaxed);
        runnable::PRETENDED.store(0, Ordering::Relaxed);
    }
}
