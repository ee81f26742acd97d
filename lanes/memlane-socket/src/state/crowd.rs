//! How many streams of this process use windows of more than [`MEDIUM`] bytes now, and how large a window each may have if
//! they are a crowd.
//!
//! The windows of a crowd do not stay in the caches together, even if each is small. So a stream of a crowd has a window
//! that one of its writes fills: less would make it wait in the middle of each write.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The largest window that does not count, in bytes.
pub const MEDIUM: usize = 64 * 1024;
/// More streams than this are a crowd: with windows of 256 KiB they would walk through 8 MiB (decision 0042).
const CROWD: u32 = 32;
/// Bits that stand for connections: those whose indices differ by a multiple of it count as one.
const BITS: usize = 1024;

/// Streams that have filled such a window in the current period, and in the one before. Any sender writes all of it; nothing
/// is ordered by it. Senders that meet at the end of a period may count a stream twice, or not at all.
#[derive(Debug)]
pub struct Crowd {
    /// A bit for each stream of the current period.
    seen: [AtomicU64; BITS / 64],
    /// How many bits are set.
    count: AtomicU32,
    /// How many there were in the period before.
    before: AtomicU32,
    /// The `ticks` at which the current period began.
    since: AtomicU64,
}

impl Crowd {
    /// Nobody has joined it.
    pub(super) const fn new() -> Crowd {
        Crowd {
            seen: [const { AtomicU64::new(0) }; BITS / 64],
            count: AtomicU32::new(0),
            before: AtomicU32::new(0),
            since: AtomicU64::new(0),
        }
    }

    /// Counts stream `index`, which has filled its window at `now`, and returns whether the streams that did so are a crowd.
    /// Times are in `ticks`.
    pub fn joins(&self, index: u32, now: u64, period: u64) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        let passed = now.saturating_sub(since);
        if passed > period && self.begins(since, now) {
            let last = self.count.swap(0, Ordering::Relaxed);
            let before = if passed > 2 * period { 0 } else { last };
            self.before.store(before, Ordering::Relaxed);
            self.seen.iter().for_each(|w| w.store(0, Ordering::Relaxed));
        }
        let index = index as usize % BITS;
        let (word, bit) = (&self.seen[index / 64], 1 << (index % 64));
        // Most fill their windows many times in a period.
        if word.load(Ordering::Relaxed) & bit == 0
            && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        self.count
            .load(Ordering::Relaxed)
            .max(self.before.load(Ordering::Relaxed))
            > CROWD
    }

    /// Begins a period, unless another thread has done it.
    fn begins(&self, since: u64, now: u64) -> bool {
        let begun = self
            .since
            .compare_exchange(since, now, Ordering::Relaxed, Ordering::Relaxed);
        begun.is_ok()
    }
}

/// The lengths of a stream's writes, as far as its window follows from them. The sender that holds `tx_lock` writes it.
#[derive(Default, Debug)]
pub struct Writes(AtomicU32);

impl Writes {
    /// Notes a write of `len` bytes, and returns the window that writes such as the last ones fill, in bytes. A longer
    /// write counts at once. Shorter ones count slowly, since some are the rests of writes that did not fit.
    pub fn window(&self, len: usize) -> usize {
        let known = self.0.load(Ordering::Relaxed);
        let len = u32::try_from(len).unwrap_or(1 << 31).min(1 << 31);
        let now = len.max(known - known / 16);
        self.0.store(now, Ordering::Relaxed);
        (now as usize).next_power_of_two().max(MEDIUM)
    }

    /// Forgets all writes, for a new connection.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 100;

    #[test]
    fn streams_are_a_crowd_from_when_one_too_many_joins_until_a_period_without() {
        let crowd = Crowd::new();
        let all_join = |now| (0..=CROWD).map(|i| crowd.joins(i, now, PERIOD)).last();
        for again in 0..3u64 {
            let few = (0..CROWD).any(|i| crowd.joins(i, 1000 + again, PERIOD));
            assert!(!few, "each counts once");
        }
        assert!(crowd.joins(CROWD, 1050, PERIOD));
        assert!(
            crowd.joins(0, 1150, PERIOD),
            "they were in the period before"
        );
        assert!(!crowd.joins(0, 1260, PERIOD), "only one was");
        assert_eq!(all_join(1270), Some(true));
        assert!(!crowd.joins(0, 1270 + 3 * PERIOD, PERIOD), "after a pause");
        // Clocks of two CPUs may differ.
        assert!(!crowd.joins(1, 5, PERIOD));
    }

    #[test]
    fn a_window_holds_a_write_and_follows_shorter_ones_slowly() {
        let writes = Writes::default();
        assert_eq!(writes.window(100), MEDIUM);
        assert_eq!(writes.window(MEDIUM + 1), 2 * MEDIUM);
        assert_eq!(writes.window(4 * MEDIUM), 4 * MEDIUM);
        for _ in 0..8 {
            assert_eq!(writes.window(100), 4 * MEDIUM, "the rest of a write");
        }
        let last = (0..100).map(|_| writes.window(100)).last();
        assert_eq!(last, Some(MEDIUM));
        assert_eq!(writes.window(usize::MAX), 1 << 31);
        writes.reset();
        assert_eq!(writes.window(1), MEDIUM);
    }
}
