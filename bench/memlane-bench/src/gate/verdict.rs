//! When a figure of the newer build is worse than the older build's: a rule that does not take noise for a loss.
//!
//! Each round gives a pair of values, taken one after the other, and their ratio: how many times as good the newer one is.
//! The *spread* is the older build's against itself: how far its rounds are from their median. From five rounds on, the
//! round that is farthest away is left out, of the spread as of the ratios: one disturbance is no measure of noise, and
//! no loss.

use serde::Serialize;

use crate::sample::Better;
use crate::spread::Spread;

/// The older build's value and the newer one's in a round, where they are there.
pub(super) type Pair = [Option<f64>; 2];

/// With at least this number of rounds, one of them is left out.
const ENOUGH_TO_LEAVE_ONE_OUT: usize = 5;

/// What became of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// Worse by more than the spread.
    Lost,
    /// The newer build gives no figure where the older one does.
    Fails,
    /// The same, within the spread.
    Held,
    /// Better by more than the spread.
    Better,
    /// The older build gives no figure.
    Untold,
}

impl Verdict {
    /// Whether it keeps the gate shut.
    pub(super) fn is_loss(self) -> bool {
        matches!(self, Verdict::Lost | Verdict::Fails)
    }

    /// For people.
    pub(super) fn word(self) -> &'static str {
        match self {
            Verdict::Lost => "LOST",
            Verdict::Fails => "FAILS",
            Verdict::Held => "held",
            Verdict::Better => "better",
            Verdict::Untold => "?",
        }
    }
}

/// A figure of both builds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Judged {
    /// How many times as good the newer build is, by round: above 1 is better, whichever way the metric goes.
    pub(super) ratio: Option<Spread>,
    /// The older build against itself, as a share of its median: 0.03 is 3 %.
    pub(super) spread: f64,
    pub(super) verdict: Verdict,
}

/// Judges a figure. A loss of no more than `least` (0.02 is 2 %) is none, however small the spread.
pub(super) fn judge(better: Better, rounds: &[Pair], least: f64) -> Judged {
    let have = |build: usize| rounds.iter().filter_map(move |pair| pair[build]);
    let spread = spread(&have(0).collect::<Vec<f64>>());
    let pairs: Vec<Pair> = match better {
        Better::Lower => rounds.iter().map(|&[old, new]| [new, old]).collect(),
        _ => rounds.to_vec(),
    };
    let pairs: Vec<(Option<f64>, Option<f64>)> = pairs
        .into_iter()
        .map(|[below, above]| (below, above))
        .collect();
    let ratio = Spread::of_ratios(&pairs);
    // Half of the rounds must be there.
    let enough = |count: usize| count * 2 > rounds.len();
    let [old, new] = [0, 1].map(|build| have(build).count());
    let verdict = match &ratio {
        _ if !enough(old) => Verdict::Untold,
        _ if !enough(new) => Verdict::Fails,
        Some(ratio) if enough(ratio.values.len()) => beyond(ratio, spread.max(least)),
        _ => Verdict::Untold,
    };
    Judged {
        ratio,
        spread,
        verdict,
    }
}

/// Which side of 1 the rounds are on: their median by more than `bound`, and each of them, but for one that is left out.
fn beyond(ratio: &Spread, bound: f64) -> Verdict {
    let agree = |is_such: fn(f64) -> bool| {
        let others = ratio.values.iter().filter(|&&one| !is_such(one)).count();
        others <= left_out(ratio.values.len())
    };
    if ratio.median < 1.0 - bound && agree(|one| one < 1.0) {
        Verdict::Lost
    } else if ratio.median > 1.0 + bound && agree(|one| one > 1.0) {
        Verdict::Better
    } else {
        Verdict::Held
    }
}

/// How far values are from their median, as a share of it, at most; without those that are left out.
fn spread(values: &[f64]) -> f64 {
    let median = Spread::of(values).map_or(0.0, |values| values.median);
    if median <= 0.0 {
        return 0.0;
    }
    let mut far: Vec<f64> = values
        .iter()
        .map(|value| (value / median - 1.0).abs())
        .collect();
    far.sort_by(f64::total_cmp);
    let kept = far.len() - left_out(far.len());
    far[..kept].last().copied().unwrap_or(0.0)
}

fn left_out(rounds: usize) -> usize {
    usize::from(rounds >= ENOUGH_TO_LEAVE_ONE_OUT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(old: &[f64], new: &[f64]) -> Vec<Pair> {
        let pairs = old.iter().zip(new);
        pairs.map(|(&old, &new)| [Some(old), Some(new)]).collect()
    }

    fn higher(old: &[f64], new: &[f64]) -> Verdict {
        judge(Better::Higher, &pairs(old, new), 0.02).verdict
    }

    /// Rounds that are within 3 % of each other, if the worst one is left out.
    const OLD: [f64; 7] = [100.0, 103.0, 97.0, 101.0, 99.0, 100.0, 60.0];

    fn times(factor: f64) -> [f64; 7] {
        OLD.map(|value| value * factor)
    }

    #[test]
    fn a_loss_is_one_only_beyond_the_spread_of_the_older_build_against_itself() {
        assert_eq!(higher(&OLD, &times(0.96)), Verdict::Lost);
        assert_eq!(higher(&OLD, &times(0.98)), Verdict::Held);
        assert_eq!(higher(&OLD, &times(1.02)), Verdict::Held);
        assert_eq!(higher(&OLD, &times(1.05)), Verdict::Better);
        // Noisier: the same loss is within the spread.
        let noisy = [100.0, 110.0, 90.0, 100.0, 93.0, 108.0, 60.0];
        assert_eq!(higher(&noisy, &noisy.map(|v| v * 0.96)), Verdict::Held);
    }

    #[test]
    fn less_is_better_for_a_latency() {
        let lower = |new: &[f64]| judge(Better::Lower, &pairs(&OLD, new), 0.02).verdict;
        assert_eq!(lower(&times(0.9)), Verdict::Better);
        assert_eq!(lower(&times(1.1)), Verdict::Lost);
    }

    #[test]
    fn a_figure_that_repeats_exactly_has_lost_only_beyond_what_is_tolerated() {
        let same = [100.0; 7];
        assert_eq!(higher(&same, &[98.5; 7]), Verdict::Held);
        assert_eq!(higher(&same, &[97.5; 7]), Verdict::Lost);
        let counted = |new: f64| judge(Better::Higher, &pairs(&[100.0], &[new]), 0.01).verdict;
        assert_eq!(
            [counted(99.5), counted(98.5), counted(101.5)],
            [Verdict::Held, Verdict::Lost, Verdict::Better]
        );
    }

    #[test]
    fn rounds_that_do_not_agree_are_no_loss() {
        let old = [100.0; 7];
        let one = [90.0, 90.0, 90.0, 101.0, 90.0, 90.0, 90.0];
        let two = [90.0, 90.0, 90.0, 101.0, 90.0, 90.0, 102.0];
        assert_eq!(higher(&old, &one), Verdict::Lost);
        assert_eq!(higher(&old, &two), Verdict::Held);
        // Of three, each must agree.
        assert_eq!(higher(&old[..3], &one[1..4]), Verdict::Held);
    }

    #[test]
    fn a_figure_that_only_the_older_build_gives_has_failed_and_one_that_it_lacks_is_untold() {
        let of = |rounds: &[Pair]| judge(Better::Higher, rounds, 0.02).verdict;
        assert_eq!(of(&[[Some(1.0), None]; 3]), Verdict::Fails);
        assert_eq!(of(&[[None, Some(1.0)]; 3]), Verdict::Untold);
        assert_eq!(of(&[]), Verdict::Untold);
        // One round of seven may fail.
        let mut rounds = pairs(&OLD, &OLD);
        rounds[2][1] = None;
        assert_eq!(of(&rounds), Verdict::Held);
    }

    proptest! {
        #[test]
        fn the_same_rounds_are_never_a_loss_and_half_of_them_always_is(
            old in proptest::collection::vec(90.0..110.0_f64, 3..12),
        ) {
            prop_assert_eq!(higher(&old, &old), Verdict::Held);
            let half: Vec<f64> = old.iter().map(|value| value / 2.0).collect();
            prop_assert_eq!(higher(&old, &half), Verdict::Lost);
            prop_assert_eq!(higher(&half, &old), Verdict::Better);
        }
    }
}
