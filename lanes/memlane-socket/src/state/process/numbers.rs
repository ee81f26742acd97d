//! A set of descriptors' numbers.

use super::FDS;
use core::sync::atomic::{AtomicU64, Ordering};

/// A bit for each number below [`FDS`]. Any thread adds, removes and looks; nothing is ordered by it.
#[derive(Debug)]
pub(super) struct Numbers([AtomicU64; FDS.div_ceil(64)]);

impl Numbers {
    #[allow(clippy::declare_interior_mutable_const)] // each use makes a value of its own
    pub(super) const NONE: Numbers = Numbers([const { AtomicU64::new(0) }; FDS.div_ceil(64)]);

    /// Adds `n`. `false`: the set has no place for such a number.
    pub(super) fn add(&self, n: i32) -> bool {
        let place = self.place(n);
        let added = place.map(|(word, bit)| word.fetch_or(bit, Ordering::Relaxed));
        added.is_some()
    }

    pub(super) fn remove(&self, n: i32) {
        if let Some((word, bit)) = self.place(n) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn has(&self, n: i32) -> bool {
        let place = self.place(n);
        place.is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// The word that has the bit of `n`, and the bit.
    #[inline]
    fn place(&self, n: i32) -> Option<(&AtomicU64, u64)> {
        let n = usize::try_from(n).ok()?;
        Some((self.0.get(n / 64)?, 1 << (n % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_there_from_when_it_is_added_until_it_is_removed() {
        let numbers = Numbers::NONE;
        let last = i32::try_from(FDS - 1).unwrap();
        for n in [0, 63, 64, last] {
            assert!(!numbers.has(n) && numbers.add(n) && numbers.has(n), "{n}");
        }
        numbers.remove(63);
        let left = [0, 63, 64, last].map(|n| numbers.has(n));
        assert_eq!(left, [true, false, true, true]);
        for nobody in [-1, i32::MIN, i32::MAX] {
            assert!(!numbers.add(nobody) && !numbers.has(nobody));
        }
    }
}
