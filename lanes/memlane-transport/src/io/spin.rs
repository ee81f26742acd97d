//! How long to look for something before sleeping: as long as it pays.
//!
//! A hand-over between two cores that both look costs a fraction of a microsecond; to wake a sleeping one costs tens
//! of them. But whoever looks in vain takes a core from somebody.

use std::time::Duration;

const LEAST: Duration = Duration::from_micros(4);
const MOST: Duration = Duration::from_micros(100);

/// One waiter's experience.
#[derive(Debug)]
pub(super) struct Spin {
    budget: Duration,
    /// There is a core for the other side.
    pays: bool,
}

impl Spin {
    pub(super) fn new() -> Spin {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Spin {
            budget: MOST,
            pays: cores > 1,
        }
    }

    pub(super) fn budget(&self) -> Duration {
        match self.pays {
            true => self.budget,
            false => Duration::ZERO,
        }
    }

    /// Something came after so long, looked for or slept for.
    pub(super) fn learn(&mut self, gap: Duration) {
        self.budget = match gap <= MOST {
            true => self.budget.max(gap * 2).min(MOST),
            false => (self.budget / 2).max(LEAST),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_in_vain_looks_less_and_who_would_have_found_looks_longer() {
        let mut spin = Spin {
            budget: MOST,
            pays: true,
        };
        (0..20).for_each(|_| spin.learn(Duration::from_millis(1)));
        assert_eq!(spin.budget(), LEAST);
        (0..20).for_each(|_| spin.learn(Duration::from_micros(15)));
        assert_eq!(spin.budget(), Duration::from_micros(30));
    }
}
