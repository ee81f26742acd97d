//! How long to look for something before sleeping: as long as it pays.
//!
//! A hand-over between two cores that both look costs a fraction of a microsecond; to wake a sleeping one costs tens
//! of them. But whoever looks in vain takes a core from somebody, and that may be the one that is waited for.

use std::time::{Duration, Instant};

const LEAST: Duration = Duration::from_micros(4);
const MOST: Duration = Duration::from_micros(100);
/// After so many times in vain, one more try for longer: things may have changed.
const PROBE: u32 = 64;
const PROBE_FOR: Duration = Duration::from_micros(50);
/// From then on the core is offered to others, after so many looks each time: whoever is to answer may be one of them.
/// Not before: on another core, an answer is there sooner, and it is there that the scheduler should see both at work.
const ALONE: Duration = Duration::from_micros(3);
const YIELD: u32 = 4;
/// So often in a row there was something only when the core had been offered: the other side runs on this one, so it
/// is offered at once. Each so-manieth time it is looked longer again: the other side may have moved.
const SAME_CORE: u32 = 4;
const MOVED: u32 = 64;

/// Whoever looks so seldom was not running: others want this core, who do not give it back at once. To offer it to them
/// costs a slice of theirs each time, while who sleeps and is woken is let in. So for as many times as long as that
/// took, nothing is offered, and sleep comes soon.
const SLICE: Duration = Duration::from_micros(200);
const PAUSE: u32 = 64;

/// One waiter's experience.
#[derive(Debug)]
pub(super) struct Spin {
    budget: Duration,
    /// Times in vain, in a row.
    vain: u32,
    looks: u32,
    /// The core was offered, since something was found last.
    offered: bool,
    /// How often in a row that was needed.
    late: u32,
    /// The last look, after so long.
    last: Duration,
    /// Others want this core, until then.
    crowded: Option<Instant>,
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
            offered: false,
            late: 0,
            last: Duration::ZERO,
            crowded: None,
            pays: cores > 1,
        }
    }

    /// How long to look now.
    pub(super) fn budget(&mut self) -> Duration {
        if self.crowded.is_some_and(|until| Instant::now() >= until) {
            self.crowded = None;
        }
        match self.pays {
            false => Duration::ZERO,
            true if self.crowded.is_some() => LEAST,
            true if self.vain % PROBE == PROBE - 1 => self.budget.max(PROBE_FOR),
            true => self.budget,
        }
    }

    /// Between two looks, so long after the first.
    pub(super) fn relax(&mut self, since: Duration) {
        self.looks = self.looks.wrapping_add(1);
        self.looked(since);
        let offers = self.shares_its_core() || (since > ALONE && self.looks.is_multiple_of(YIELD));
        match offers && self.crowded.is_none() {
            true => {
                self.offered = true;
                std::thread::yield_now();
            }
            false => std::hint::spin_loop(),
        }
    }

    fn looked(&mut self, since: Duration) {
        let gap = since.saturating_sub(self.last);
        self.last = since;
        if gap >= SLICE {
            self.crowded = Instant::now().checked_add(gap * PAUSE);
        }
    }

    /// Was the core offered since something was found last? Then it may have been taken for long.
    pub(super) fn was_offered(&self) -> bool {
        self.offered
    }

    /// Does the other side run on this core, for all that is known?
    fn shares_its_core(&self) -> bool {
        self.late >= SAME_CORE && !self.late.is_multiple_of(MOVED)
    }

    /// Found after so long.
    pub(super) fn found(&mut self, gap: Duration) {
        self.vain = 0;
        self.looked(gap);
        self.last = Duration::ZERO;
        self.late = match std::mem::take(&mut self.offered) {
            true => self.late.wrapping_add(1),
            false => 0,
        };
        self.budget = self.budget.max(gap * 2).min(MOST);
    }

    /// Had to sleep.
    pub(super) fn in_vain(&mut self) {
        self.vain = self.vain.wrapping_add(1);
        self.offered = false;
        self.last = Duration::ZERO;
        self.budget = (self.budget / 2).max(LEAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_a_core_with_the_other_side_offers_it_at_once() {
        let mut spin = Spin::new();
        let (soon, later) = (Duration::from_micros(1), ALONE * 2);
        let round = |spin: &mut Spin, there: bool| {
            spin.relax(soon);
            let at_once = std::mem::take(&mut spin.offered);
            if !there {
                (0..YIELD).for_each(|_| spin.relax(later));
            }
            spin.offered |= at_once;
            spin.found(later);
            at_once
        };
        let offers: Vec<_> = (0..200).map(|_| round(&mut spin, false)).collect();
        assert_eq!(offers[..=4], [false, false, false, false, true]);
        assert_eq!(offers.iter().filter(|offer| !**offer).count(), 7);
        // It has moved: what is there before the core is offered shows that.
        let mut left = 0;
        while spin.late > 0 && left < 2 * MOVED {
            round(&mut spin, true);
            left += 1;
        }
        assert!(left <= MOVED && spin.late == 0, "{left}");
        assert!(!round(&mut spin, true));
    }

    #[test]
    fn who_loses_its_core_for_long_offers_it_no_more_for_a_while() {
        let mut spin = Spin::new();
        spin.pays = true;
        spin.relax(ALONE * 2);
        spin.relax(ALONE * 2 + SLICE);
        assert_eq!(spin.budget(), LEAST);
        for _ in 0..3 * YIELD {
            spin.relax(ALONE * 2 + SLICE);
        }
        assert!(!spin.was_offered());
        spin.found(ALONE * 2 + SLICE);
        assert_eq!(spin.budget(), LEAST);
        std::thread::sleep(SLICE * (PAUSE + 1));
        assert_eq!(spin.budget(), MOST);
        // Found at once, after the core was away.
        spin.found(SLICE);
        assert_eq!(spin.budget(), LEAST);
    }

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
