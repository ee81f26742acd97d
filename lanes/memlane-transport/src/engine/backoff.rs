//! When to try again: doubling, up to a limit, with jitter over half of it, so that many clients of a server that
//! comes back do not all come at once.

use std::time::Duration;

/// How long to wait between attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// After the first failure: short, as a link that was only reset is there again at once.
    pub first: Duration,
    /// At most.
    pub most: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff {
            first: Duration::from_millis(20),
            most: Duration::from_secs(5),
        }
    }
}

impl Backoff {
    /// The wait after `failures` failures in a row: between half and all of what is due.
    #[must_use]
    pub fn wait(&self, failures: u32, jitter: &mut Jitter) -> Duration {
        let due = self.first.saturating_mul(1 << failures.min(16));
        let half = due.min(self.most) / 2;
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX - 1);
        half + Duration::from_nanos(jitter.next() % (nanos + 1))
    }
}

/// Numbers that are not random, only different for each seed (splitmix64).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Jitter(pub u64);

impl Jitter {
    /// The next number.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator that never ends would only add an unwrap"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let a = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        b ^ (b >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_differ_between_clients() {
        let backoff = Backoff::default();
        let mut different = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let mut jitter = Jitter(seed);
            for failures in [0, 1, 5, 8, 40, u32::MAX] {
                let due = backoff.first.saturating_mul(1 << failures.min(16));
                let due = due.min(backoff.most);
                let wait = backoff.wait(failures, &mut jitter);
                assert!(wait >= due / 2 && wait <= due, "{failures}: {wait:?}");
            }
            different.insert(backoff.wait(8, &mut jitter));
        }
        assert!(different.len() > 90, "{}", different.len());
    }
}
