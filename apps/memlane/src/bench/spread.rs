//! Median and spread: never one run, never a mean.

use serde::Serialize;

use super::report::short;

/// Several rounds of one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Middle value.
    pub(crate) median: f64,
    /// Lowest.
    pub(crate) min: f64,
    /// Highest.
    pub(crate) max: f64,
    /// All of them, in the order of the rounds.
    pub(crate) values: Vec<f64>,
}

impl Spread {
    /// Of at least one value.
    pub(crate) fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted[sorted.len() / 2];
        let lower = sorted[(sorted.len() - 1) / 2];
        Some(Spread {
            median: f64::midpoint(lower, upper),
            min,
            max,
            values: values.to_vec(),
        })
    }

    /// Ratios of the two sides of each round; a round that lacks a side, or whose
    /// first side is zero, gives none.
    pub(crate) fn of_ratios(rounds: &[(Option<f64>, Option<f64>)]) -> Option<Spread> {
        let ratios: Vec<f64> = rounds
            .iter()
            .filter_map(|&(tcp, memlane)| Some((tcp.filter(|tcp| *tcp > 0.0)?, memlane?)))
            .map(|(tcp, memlane)| memlane / tcp)
            .collect();
        Spread::of(&ratios)
    }

    /// In a table: the median, and from where to where.
    pub(crate) fn shown(&self) -> String {
        let [median, min, max] = [self.median, self.min, self.max].map(short);
        format!("{median} ({min}–{max})")
    }
}

/// A ratio in a table; nothing, if it could not be told.
pub(crate) fn times(ratio: Option<&Spread>) -> String {
    ratio.map_or(String::new(), |it| {
        let [median, min, max] = [it.median, it.min, it.max].map(short);
        format!("{median}× ({min}–{max})")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_middle_ones() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).expect("four values");
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 2.5, 4.0));
        assert_eq!(spread.values, [4.0, 1.0, 3.0, 2.0]);
        assert_eq!(Spread::of(&[7.0]).expect("one").median, 7.0);
        assert!(Spread::of(&[]).is_none());
    }

    #[test]
    fn ratios_pair_the_two_sides_of_a_round() {
        let rounds = [
            (Some(10.0), Some(20.0)),
            (Some(10.0), None),
            (Some(0.0), Some(5.0)),
            (Some(5.0), Some(5.0)),
        ];
        let spread = Spread::of_ratios(&rounds).expect("two ratios");
        assert_eq!(spread.values, [2.0, 1.0]);
        assert_eq!(spread.median, 1.5);
    }
}
