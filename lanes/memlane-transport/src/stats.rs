//! What a path counts, as RTRS shows it per path, and a latency histogram.

use std::time::Duration;

/// Buckets of [`Histogram`].
pub const BUCKETS: usize = 32;

/// Latencies by powers of two of a microsecond: bucket n has those of at least 2^(n−1) µs and less than 2^n µs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    counts: [u64; BUCKETS],
}

impl Histogram {
    /// Counts one.
    pub fn add(&mut self, latency: Duration) {
        let micros = latency.as_micros();
        let bits = (u128::BITS - micros.leading_zeros()) as usize;
        self.counts[bits.min(BUCKETS - 1)] += 1;
    }

    /// How many are in each bucket.
    #[must_use]
    pub fn counts(&self) -> &[u64; BUCKETS] {
        &self.counts
    }
}

/// One path of a client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PathStats {
    /// Reads that were completed.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes that were completed.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Requests that left this path for another one, or for the queue, as it went down.
    pub failed_over: u64,
    /// Times that the path came up.
    pub connected: u64,
    /// Attempts that failed, and times that it went down.
    pub failed: u64,
    /// From the post to the response.
    pub latency: Histogram,
}

/// A server session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerStats {
    /// Requests that were handed to the backend.
    pub begun: u64,
    /// Replays that found their first copy still running.
    pub joined: u64,
    /// Replays that were given the first copy's result.
    pub answered: u64,
    /// Requests that were settled before they came: they will not be executed.
    pub settled: u64,
    /// Late copies of uses of a permit that are long over: dropped.
    pub stale: u64,
    /// Incarnations of paths that a fence closed.
    pub fenced: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_counted_in_the_bucket_of_its_power_of_two() {
        let mut histogram = Histogram::default();
        let all = [(0, 0), (1, 1), (3, 2), (4, 3), (1 << 40, BUCKETS - 1)];
        for (micros, bucket) in all {
            let before = histogram.counts()[bucket];
            histogram.add(Duration::from_micros(micros));
            assert_eq!(histogram.counts()[bucket], before + 1, "{micros} µs");
        }
    }
}
