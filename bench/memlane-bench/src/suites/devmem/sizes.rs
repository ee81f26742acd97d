//! How large fragments were.

use serde::{Deserialize, Serialize};

/// Fragments by size, in powers of two.
#[derive(Clone, Debug, Default)]
pub(super) struct Counting {
    /// Of 2^n to 2^(n+1)-1 bytes.
    by_power: [u64; 32],
    smallest: u32,
    largest: u32,
}

/// What was seen of them.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct Sizes {
    pub(super) count: u64,
    pub(super) smallest: u32,
    pub(super) largest: u32,
    /// A tenth, a half of all are smaller than twice this.
    pub(super) tenth: u32,
    pub(super) half: u32,
    /// A size in bytes, and how many had at least that and less than twice as much. Sizes that none had are left out.
    pub(super) histogram: Vec<(u32, u64)>,
}

impl Counting {
    pub(super) fn count(&mut self, len: u32) {
        let power = len.max(1).ilog2();
        self.by_power[power as usize] += 1;
        self.largest = self.largest.max(len);
        self.smallest = match self.smallest {
            0 => len,
            smallest => smallest.min(len),
        };
    }

    pub(super) fn seen(&self) -> Sizes {
        let count: u64 = self.by_power.iter().sum();
        let powers = self.by_power.iter().enumerate();
        let some = powers.filter(|(_, count)| **count > 0);
        let histogram: Vec<(u32, u64)> = some.map(|(n, count)| (1 << n, *count)).collect();
        let below = |share: u64| {
            let mut seen = 0;
            let reached = |(_, count): &&(u32, u64)| {
                seen += count;
                seen * share >= self.by_power.iter().sum::<u64>()
            };
            histogram.iter().find(reached).map_or(0, |(size, _)| *size)
        };
        Sizes {
            count,
            smallest: self.smallest,
            largest: self.largest,
            tenth: below(10),
            half: below(2),
            histogram: histogram.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_by_powers_of_two_and_quantiles_are_of_fragments() {
        let mut counting = Counting::default();
        assert_eq!(counting.seen(), Sizes::default());
        for len in [
            1, 4095, 4096, 4097, 65536, 65536, 65536, 65536, 65536, 65535,
        ] {
            counting.count(len);
        }
        let seen = counting.seen();
        assert_eq!((seen.count, seen.smallest, seen.largest), (10, 1, 65536));
        let expected = [(1, 1), (2048, 1), (4096, 2), (32768, 1), (65536, 5)];
        assert_eq!(seen.histogram, expected);
        assert_eq!((seen.tenth, seen.half), (1, 32768));
    }
}
