//! A latency histogram: fixed size, no allocation while measuring, better than 1 % resolution.

const SUB_BITS: u32 = 7;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = SUB * (64 - SUB_BITS as usize);

/// Counts by value, exact below 256 and in steps of 1/128 of a power of two above.
pub(crate) struct Hist {
    counts: Vec<u64>,
    total: u64,
}

impl Hist {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Hist {
            counts: vec![0; BUCKETS],
            total: 0,
        }
    }

    /// Adds one value.
    pub(crate) fn record(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.total += 1;
    }

    /// Number of values.
    pub(crate) fn len(&self) -> u64 {
        self.total
    }

    /// The value below which `percent` of all lie (0 if there is none).
    pub(crate) fn percentile(&self, percent: u32) -> u64 {
        let want = (self.total * u64::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= want {
                return middle(index);
            }
        }
        0
    }
}

fn bucket(value: u64) -> usize {
    let bits = 64 - value.leading_zeros();
    let shift = bits.saturating_sub(SUB_BITS + 1);
    let low = usize::try_from(value >> shift).unwrap_or(usize::MAX);
    (low + shift as usize * SUB).min(BUCKETS - 1)
}

fn middle(index: usize) -> u64 {
    if index < 2 * SUB {
        return index as u64;
    }
    let shift = index / SUB - 1;
    let low = (index - shift * SUB) as u64;
    (low << shift) + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_never_misstates_its_value_by_more_than_one_percent() {
        let mut value = 1u64;
        while value < 1 << 50 {
            let told = middle(bucket(value));
            let error = told.abs_diff(value);
            assert!(error * 100 <= value, "{value} told as {told}");
            value += value / 37 + 1;
        }
    }

    #[test]
    fn percentiles_of_one_to_a_thousand_are_where_they_should_be() {
        let mut hist = Hist::new();
        for value in 1..=1000 {
            hist.record(value);
        }
        assert_eq!(hist.len(), 1000);
        assert!(hist.percentile(50).abs_diff(500) <= 4);
        assert!(hist.percentile(99).abs_diff(990) <= 8);
    }

    #[test]
    fn an_empty_histogram_says_zero_and_a_huge_value_does_not_panic() {
        let mut hist = Hist::new();
        assert_eq!(hist.percentile(50), 0);
        hist.record(u64::MAX);
        assert!(hist.percentile(50) > 1 << 60);
    }
}
