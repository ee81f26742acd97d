//! When to spin, and for how long.
//!
//! Spinning pays when what is waited for comes sooner than a sleep and a wake-up
//! cost. It hurts when the peer cannot run because we spin on its CPU. So:
//! * the longest spin is about twice the cost of a wake-up (`--spin`);
//! * spins that end in vain make the next waits skip it (1, 2, 4 … 64 waits,
//!   then one trial); a sleep that turned out short enough brings it back;
//! * a gap in the spin loop's own time means that somebody else wanted this CPU:
//!   the machine is full. Then, and for a peer that was last seen on this very
//!   CPU, a thread lets others run (`sched_yield`) instead of spinning: whoever it
//!   waits for gets the CPU, and nobody had to go to sleep;
//! * where others kept the CPU for as long as only strangers do, or the pause brought
//!   nothing, this thread sleeps in the kernel for a while, which wakes it with priority.

use crate::state::process::{PROCESS, config};
use crate::state::thread;
use core::sync::atomic::Ordering;
use memlane_sys::time::ticks;

/// A gap this long between two turns of a spin loop is a CPU lost to another
/// task (a turn takes well under 1 µs; interrupts, and a hypervisor's, tens of µs).
const GAP_US: u64 = 200;
/// A thread that lost its CPU while spinning yields instead for so many times
/// the gap …
const FULL_TIMES: u64 = 8;
/// … but for at most so long.
const FULL_MOST_US: u64 = 50_000;
/// A yield that returns sooner found nobody else on this CPU.
const ALONE_US: u64 = 3;
/// Whoever keeps a CPU for so long that was given to him has work of his own: those
/// that we wait for, and even a hundred pairs like us, are back much sooner.
const STRANGER_US: u64 = 1000;
/// A thread that has lost so much to such in a row …
const LOST_LEAST_US: u64 = 16_000;
/// … with no longer than this in between, and more than half of the time, sleeps.
const LOST_APART_US: u64 = 50_000;
/// Yields in vain before a thread gives up waiting.
const YIELDS: u32 = 8;
/// Where others had the CPU and not for us, a thread sleeps at once for so many times
/// as long as they kept it; among strangers, for at most …
const STRANGERS_TIMES: u64 = 64;
/// … so long.
const STRANGERS_MOST_US: u64 = 1_000_000;

/// What a spin came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spun {
    /// It is there.
    Ready,
    /// Time is up (or spinning was not worth starting).
    Nothing,
    /// A signal handler ran meanwhile.
    Signal,
}

/// The CPU that the calling thread is on, +1.
#[inline]
pub fn cpu_mark() -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let mut aux = 0u32;
        // SAFETY: rdtscp exists on every x86-64 that Linux 6.1 supports in practice
        // (2008+); Linux keeps the CPU number in its low 12 bits.
        unsafe { core::arch::x86_64::__rdtscp(&raw mut aux) };
        (aux & 0xfff) + 1
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        memlane_sys::proc::cpu() + 1
    }
}

/// May this thread spin now? Budget in ticks; 0 = no.
#[inline]
pub fn budget() -> u64 {
    let us = u64::from(config().spin_us);
    if us == 0 {
        return 0;
    }
    let t = thread::current();
    let skip = t.skip.load(Ordering::Relaxed);
    if skip > 0 {
        t.skip.store(skip - 1, Ordering::Relaxed);
        return 0;
    }
    if is_among_strangers() {
        return 0;
    }
    us * PROCESS.ticks_per_us.load(Ordering::Relaxed)
}

/// Spins until `ready` says so, for at most `budget` ticks; keeps the score.
/// `here`: the peer was last seen on this very CPU.
#[inline]
pub fn until(budget: u64, here: bool, ready: impl FnMut() -> bool) -> Spun {
    let spun = turn(budget, here, ready);
    match spun {
        Spun::Ready if budget > 0 => hit(),
        Spun::Nothing if budget > 0 => miss(),
        _ => {}
    }
    spun
}

/// Spins for room in a full ring: a running receiver makes some in a few µs, so
/// the score of waits for data does not count here.
pub fn for_room(here: bool, ready: impl FnMut() -> bool) -> Spun {
    let us = if is_among_strangers() {
        0
    } else {
        u64::from(config().spin_us)
    };
    turn(
        us * PROCESS.ticks_per_us.load(Ordering::Relaxed),
        here,
        ready,
    )
}

#[inline]
fn turn(budget: u64, here: bool, mut ready: impl FnMut() -> bool) -> Spun {
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
    if here || t.no_spin_until.load(Ordering::Relaxed) > start {
        return let_others_run(budget, ready);
    }
    let mut last = start;
    loop {
        for _ in 0..16 {
            core::hint::spin_loop();
            if ready() {
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
            return let_others_run(budget, ready);
        }
        if now.wrapping_sub(start) > budget {
            return Spun::Nothing;
        }
        last = now;
    }
}

/// Waits by yielding. Ends when that is in vain: nobody else is there to run, or
/// those who ran were not those that we wait for.
fn let_others_run(budget: u64, mut ready: impl FnMut() -> bool) -> Spun {
    let t = thread::current();
    let signals = t.signals.load(Ordering::Relaxed);
    let per_us = PROCESS.ticks_per_us.load(Ordering::Relaxed);
    let start = ticks();
    let mut before = start;
    for _ in 0..YIELDS {
        memlane_sys::proc::yield_now();
        let now = ticks();
        let took = now.wrapping_sub(before);
        if took > STRANGER_US * per_us {
            lost_to_strangers(before, now);
        }
        if ready() {
            return Spun::Ready;
        }
        if t.signals.load(Ordering::Relaxed) != signals {
            return Spun::Signal;
        }
        if took > GAP_US * per_us {
            break;
        }
        if took < ALONE_US * per_us {
            // Whoever we wait for may be at work on another CPU.
            for _ in 0..64 {
                core::hint::spin_loop();
                if ready() {
                    return Spun::Ready;
                }
            }
        }
        before = now;
    }
    let now = ticks();
    let lost = now.wrapping_sub(start);
    if lost > budget && lost < STRANGER_US * per_us {
        sleep_until(now + lost * STRANGERS_TIMES);
    }
    Spun::Nothing
}

/// A yield, from `before` to `now`, has given the CPU to strangers. What we wait for
/// may have come meanwhile: but is that how to wait? Where they have little to do, it
/// is (a message costs a third of one by TCP).
#[cold]
fn lost_to_strangers(before: u64, now: u64) {
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

/// Until then this thread neither spins nor yields; then it begins anew.
fn sleep_until(then: u64) {
    let t = thread::current();
    t.skip.store(0, Ordering::Relaxed);
    t.spin_score.store(0, Ordering::Relaxed);
    t.no_yield_until.store(then, Ordering::Relaxed);
}

/// When threads that sleep among strangers try again: all at the same time, in all
/// processes (at multiples of a power of two of ticks, half a second to a second
/// apart). Alone, one that yields among others that sleep would wait for all of them,
/// and take them for strangers.
fn next_date(now: u64) -> u64 {
    let most = STRANGERS_MOST_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    let apart = 1 << most.max(1).ilog2();
    (now / apart + 1) * apart
}

/// Does this thread ever spin or yield, for now?
pub fn is_open_to_us() -> bool {
    config().spin_us != 0 && !is_among_strangers()
}

/// Is this CPU full of strangers, so that only who sleeps gets it back soon?
pub fn is_among_strangers() -> bool {
    thread::current().no_yield_until.load(Ordering::Relaxed) > ticks()
}

/// A spin found what it waited for.
#[inline]
pub fn hit() {
    thread::current().spin_score.store(0, Ordering::Relaxed);
}

/// A spin was in vain.
pub fn miss() {
    let t = thread::current();
    let score = (t.spin_score.load(Ordering::Relaxed) + 1).min(8);
    t.spin_score.store(score, Ordering::Relaxed);
    if score >= 2 {
        t.skip.store(1 << (score - 2), Ordering::Relaxed);
    }
}

/// The next spin of this thread would be for what it has just looked for in vain.
pub fn skip_one() {
    thread::current().skip.fetch_max(1, Ordering::Relaxed);
}

/// A sleep took `took` ticks: would a spin have been better?
pub fn slept(took: u64) {
    let per_us = PROCESS.ticks_per_us.load(Ordering::Relaxed);
    if took < u64::from(config().spin_us) * per_us {
        let t = thread::current();
        t.skip.store(0, Ordering::Relaxed);
        let score = t.spin_score.load(Ordering::Relaxed);
        t.spin_score.store((score - 1).max(0), Ordering::Relaxed);
    }
}
