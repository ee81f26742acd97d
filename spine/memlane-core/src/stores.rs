//! The stores by which a sender copies into a peer's memory, chosen by how long they take.
//!
//! An ordinary store takes its cache line over from the CPU that has read it. How long that takes depends on how far that CPU
//! is: two CPUs that share a cache hand over 10 to 40 GB/s, two that do not may hand over 2. A non-temporal store goes past
//! the caches to memory: always at the speed of memory, and the receiver fetches the line from there. On a virtual machine,
//! the host may move a CPU away from another at any time, so a sender measures now and then what each kind of store costs.

use core::sync::atomic::{AtomicU32, Ordering};
use memlane_sys::time::ticks;

/// The kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Into the caches.
    Cached,
    /// Past the caches, by the CPU's non-temporal stores.
    NonTemporal,
}

impl Stores {
    fn other(self) -> Stores {
        match self {
            Stores::Cached => Stores::NonTemporal,
            Stores::NonTemporal => Stores::Cached,
        }
    }
}

/// The least bytes of a piece for which there is a choice: below that, an ordinary copy takes hardly longer than the look
/// at the clock.
pub const CHOICE_FROM: usize = 4096;

/// One piece in this many is timed.
const TIMED_EVERY: u32 = 8;
/// The least of this many samples counts: a thread that loses its CPU in the middle of a copy spoils one.
const SAMPLES: u32 = 4;
/// Of this many pieces, [`SAMPLES`] go by the other stores, to learn what those cost now. Where they take eight times as
/// long, this costs 6 %.
const ROUND: u32 = 512;
/// The first of them in each round: after the stores in use have been timed as often.
const PROBES_AT: u32 = SAMPLES * TIMED_EVERY;

/// Non-temporal stores are chosen where ordinary ones take this many times as long. Not where they take merely longer:
/// the receiver must fetch the bytes from memory, which takes twice as long as to store them there (measured on Zen 5:
/// stores at 27 GB/s, a stream of them at 13).
const WORTH: u64 = 3;
/// Ordinary stores are chosen again where they take less than this many times as long. Below [`WORTH`], so that a ratio
/// between the two does not go to and fro.
const NOT_WORTH: u64 = 2;

/// What one kind of stores costs.
#[derive(Debug)]
struct Cost {
    /// The least of the last [`SAMPLES`] samples, in ticks per MiB; 0: unknown.
    known: AtomicU32,
    /// The least of the samples that are being taken.
    least: AtomicU32,
    /// How many have been taken.
    taken: AtomicU32,
}

impl Cost {
    const fn new() -> Cost {
        Cost {
            known: AtomicU32::new(0),
            least: AtomicU32::new(0),
            taken: AtomicU32::new(0),
        }
    }

    fn reset(&self) {
        self.known.store(0, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
    }

    /// Notes a sample. Returns whether the cost is known anew.
    fn note(&self, bytes: usize, ticks: u64) -> bool {
        let per_mib = (ticks.min(u64::from(u32::MAX)) << 20) / bytes.max(1) as u64;
        let sample = u32::try_from(per_mib).unwrap_or(u32::MAX).max(1);
        let taken = self.taken.load(Ordering::Relaxed);
        let least = match taken {
            0 => sample,
            _ => sample.min(self.least.load(Ordering::Relaxed)),
        };
        self.least.store(least, Ordering::Relaxed);
        let all = taken + 1 >= SAMPLES;
        if all {
            self.known.store(least, Ordering::Relaxed);
        }
        self.taken
            .store(if all { 0 } else { taken + 1 }, Ordering::Relaxed);
        all
    }
}

/// A sender's choice of stores for one receiver.
///
/// Private to the sender. Its words are atomics only so that it can lie beside what threads share: one thread at a time
/// uses it, by the lock that orders its copies. Two at once would spoil samples, no bytes.
#[derive(Debug)]
pub struct StoreChoice {
    /// Pieces so far, modulo 2³².
    pieces: AtomicU32,
    /// Are non-temporal stores in use? 0 or 1.
    non_temporal: AtomicU32,
    cached_cost: Cost,
    non_temporal_cost: Cost,
}

impl Default for StoreChoice {
    fn default() -> StoreChoice {
        StoreChoice::new()
    }
}

impl StoreChoice {
    /// One that has measured nothing yet, and begins with ordinary stores.
    pub const fn new() -> StoreChoice {
        StoreChoice {
            pieces: AtomicU32::new(0),
            non_temporal: AtomicU32::new(0),
            cached_cost: Cost::new(),
            non_temporal_cost: Cost::new(),
        }
    }

    /// Forgets what it has measured.
    pub fn reset(&self) {
        self.pieces.store(0, Ordering::Relaxed);
        self.non_temporal.store(0, Ordering::Relaxed);
        self.cached_cost.reset();
        self.non_temporal_cost.reset();
    }

    /// Makes `copy` copy a piece of `bytes` bytes by the stores that it is told.
    #[inline]
    pub fn copy<R>(&self, bytes: usize, copy: impl FnOnce(Stores) -> R) -> R {
        let (stores, timed) = self.next();
        if !timed {
            return copy(stores);
        }
        let began = ticks();
        let result = copy(stores);
        self.note(stores, bytes, ticks().wrapping_sub(began));
        result
    }

    /// The stores in use.
    pub fn chosen(&self) -> Stores {
        match self.non_temporal.load(Ordering::Relaxed) {
            0 => Stores::Cached,
            _ => Stores::NonTemporal,
        }
    }

    /// The stores for the next piece, and whether it is timed.
    fn next(&self) -> (Stores, bool) {
        let piece = self.pieces.load(Ordering::Relaxed);
        self.pieces.store(piece.wrapping_add(1), Ordering::Relaxed);
        let chosen = self.chosen();
        let in_round = piece % ROUND;
        if (PROBES_AT..PROBES_AT + SAMPLES).contains(&in_round) {
            return (chosen.other(), true);
        }
        (chosen, in_round.is_multiple_of(TIMED_EVERY))
    }

    fn note(&self, stores: Stores, bytes: usize, ticks: u64) {
        let cost = match stores {
            Stores::Cached => &self.cached_cost,
            Stores::NonTemporal => &self.non_temporal_cost,
        };
        if cost.note(bytes, ticks) {
            self.choose();
        }
    }

    fn choose(&self) {
        let cached = u64::from(self.cached_cost.known.load(Ordering::Relaxed));
        let past = u64::from(self.non_temporal_cost.known.load(Ordering::Relaxed));
        if cached == 0 || past == 0 {
            return;
        }
        let worth = match self.chosen() {
            Stores::Cached => cached > past * WORTH,
            Stores::NonTemporal => cached >= past * NOT_WORTH,
        };
        self.non_temporal.store(u32::from(worth), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a sender copy pieces of 64 KiB at these speeds, in ticks for each. Returns how many went by non-temporal stores.
    fn run(choice: &StoreChoice, pieces: u32, cached: u64, past: u64) -> u32 {
        let mut went = 0;
        for _ in 0..pieces {
            let (stores, timed) = choice.next();
            let cost = match stores {
                Stores::Cached => cached,
                Stores::NonTemporal => past,
            };
            went += u32::from(stores == Stores::NonTemporal);
            if timed {
                choice.note(stores, 64 << 10, cost);
            }
        }
        went
    }

    #[test]
    fn a_sender_whose_receiver_is_near_keeps_its_stores_and_tries_others_once_in_a_hundred_pieces()
    {
        let choice = StoreChoice::new();
        assert_eq!(run(&choice, 4 * ROUND, 6_000, 8_000), 4 * SAMPLES);
        assert_eq!(choice.chosen(), Stores::Cached);
    }

    #[test]
    fn a_sender_whose_receiver_moves_away_changes_within_two_rounds_and_back_as_soon() {
        let choice = StoreChoice::new();
        for _ in 0..3 {
            run(&choice, 2 * ROUND, 90_000, 8_000);
            assert_eq!(choice.chosen(), Stores::NonTemporal);
            let cached = ROUND - run(&choice, ROUND, 90_000, 8_000);
            assert_eq!(cached, SAMPLES);
            run(&choice, 2 * ROUND, 6_000, 8_000);
            assert_eq!(choice.chosen(), Stores::Cached);
        }
    }

    #[test]
    fn a_ratio_between_the_two_limits_changes_nothing() {
        let choice = StoreChoice::new();
        run(&choice, 4 * ROUND, 20_000, 8_000);
        assert_eq!(choice.chosen(), Stores::Cached);
        run(&choice, 2 * ROUND, 25_000, 8_000);
        assert_eq!(choice.chosen(), Stores::NonTemporal);
        run(&choice, 4 * ROUND, 20_000, 8_000);
        assert_eq!(choice.chosen(), Stores::NonTemporal);
    }

    #[test]
    fn samples_spoilt_by_lost_cpu_time_change_nothing() {
        let choice = StoreChoice::new();
        for n in 0..4 * ROUND {
            let (stores, timed) = choice.next();
            if timed {
                let lost = if n % 3 == 0 { 50_000_000 } else { 0 };
                choice.note(stores, 64 << 10, 6_000 + lost);
            }
        }
        assert_eq!(choice.chosen(), Stores::Cached);
        // A clock that goes backwards makes a huge sample, and an empty piece is no division by zero.
        choice.note(Stores::Cached, 0, u64::MAX);
        choice.note(Stores::NonTemporal, usize::MAX, 0);
    }
}
