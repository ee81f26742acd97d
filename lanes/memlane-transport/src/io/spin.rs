//! How long to look for something before sleeping: as long as it pays.
//!
//! A hand-over between two cores that both look costs a fraction of a microsecond; to wake a sleeping one costs tens
//! of them. But whoever looks in vain takes a core from somebody, and that may be the one that is waited for.

use std::time::Duration;

const LEAST: Duration = Duration::from_micros(4);
const MOST: Duration = Duration::from_micros(100);
/// After so many times in vain, one more try for longer: things may have changed.
const PROBE: u32 = 64;
const PROBE_FOR: Duration = Duration::from_micros(50);
/// From then on the core is offered to others, after so many looks each time: whoever is to answer may be one of them.
/// Not before: on another core, an answer is there sooner, and it is there that the scheduler should see both at work.
const ALONE: Duration = Duration::from_micros(3);
const YIELD: u32 = 4;

/// One waiter's experience.
#[derive(Debug)]
pub(super) struct Spin {
    budget: Duration,
    /// Times in vain, in a row.
    vain: u32,
    looks: u32,
    /// There is a core for the other side.
    pays: bool,
}

impl Spin {
    pub(super) fn new() -> Spin {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Spin {
            budget: MOST,
            vain: 0,
            looks: 0,
            pays: cores > 1,
        }
    }

    /// How long to look now.
    pub(super) fn budget(&self) -> Duration {
        match self.pays {
            false => Duration::ZERO,
            true if self.vain % PROBE == PROBE - 1 => self.budget.max(PROBE_FOR),
            true => self.budget,
        }
    }

    /// Between two looks, so long after the first.
    pub(super) fn relax(&mut self, since: Duration) {
        self.looks += 1;
        match since > ALONE && self.looks.is_multiple_of(YIELD) {
            true => std::thread::yield_now(),
            false => std::hint::spin_loop(),
        }
    }

    /// Found after so long.
    pub(super) fn found(&mut self, gap: Duration) {
        self.vain = 0;
        self.budget = self.budget.max(gap * 2).min(MOST);
    }

    /// Had to sleep.
    pub(super) fn in_vain(&mut self) {
        self.vain = self.vain.wrapping_add(1);
        self.budget = (self.budget / 2).max(LEAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_in_vain_looks_less_and_now_and_then_tries_again() {
        let mut spin = Spin::new();
        spin.pays = true;
        let mut probes = 0;
        for _ in 0..3 * PROBE {
            spin.in_vain();
            probes += u32::from(spin.budget == LEAST && spin.budget() == PROBE_FOR);
        }
        assert_eq!((spin.budget, probes), (LEAST, 3));
        spin.found(Duration::from_micros(15));
        assert_eq!(spin.budget(), Duration::from_micros(30));
    }
}
