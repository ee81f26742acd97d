//! The random numbers of a world, all from its seed.

use memlane_transport::engine::Time;
use memlane_transport::engine::backoff::Jitter;

/// The same seed gives the same numbers.
#[derive(Clone, Copy, Debug)]
pub struct Rng(Jitter);

impl Rng {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Rng(Jitter(seed))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0.next()
    }

    /// Less than `most`.
    pub fn below(&mut self, most: u64) -> u64 {
        self.any() % most.max(1)
    }

    /// True with this probability, in percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Some microseconds.
    pub fn micros(&mut self, least: u64, most: u64) -> Time {
        Time::from_micros(least + self.below(most - least + 1))
    }
}
