//! Median and spread: never one run, never a mean.

use serde::Serialize;

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

/// Three significant digits, thousands as k.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 999_500.0 => format!("{:.2}M", value / 1e6),
        size if size >= 99_950.0 => format!("{:.0}k", value / 1e3),
        size if size >= 9_995.0 => format!("{:.1}k", value / 1e3),
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.0995 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.4}"),
    }
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

    #[test]
    fn numbers_keep_three_digits() {
        let told: Vec<_> = [
            0.4,
            0.0063,
            21.977,
            50_549.1,
            240_123.0,
            1_234_567.0,
            9999.9,
        ]
        .into_iter()
        .map(short)
        .collect();
        assert_eq!(
            told,
            ["0.40", "0.0063", "22.0", "50.5k", "240k", "1.23M", "10.0k"]
        );
    }
}
