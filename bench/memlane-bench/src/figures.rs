//! The figures of a run by row, system and metric, and the one rule for ratios and aims: two figures of the same round
//! are divided, the median of the rounds decides.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalogue::{Catalogue, Goal, To};
use crate::sample::{Better, Run, metric};
use crate::spread::Spread;

/// Values by round.
type Rounds = BTreeMap<usize, f64>;
/// Row, system, metric.
type Key = (String, String, String);

/// A run, with what is expected of it.
pub(crate) struct Figures<'a> {
    pub(crate) run: &'a Run,
    pub(crate) catalogue: &'a Catalogue,
    values: BTreeMap<Key, Rounds>,
    /// By row and metric.
    units: BTreeMap<(String, String), String>,
}

impl<'a> Figures<'a> {
    pub(crate) fn new(run: &'a Run, catalogue: &'a Catalogue) -> Figures<'a> {
        let mut values: BTreeMap<Key, Rounds> = BTreeMap::new();
        let mut units = BTreeMap::new();
        for one in &run.samples {
            let key = (one.row.clone(), one.system.clone(), one.metric.clone());
            values.entry(key).or_default().insert(one.round, one.value);
            units.insert((one.row.clone(), one.metric.clone()), one.unit.clone());
        }
        Figures {
            run,
            catalogue,
            values,
            units,
        }
    }

    fn rounds(&self, row: &str, system: &str, metric: &str) -> Option<&Rounds> {
        let key = (row.to_owned(), system.to_owned(), metric.to_owned());
        self.values.get(&key)
    }

    /// A figure over the rounds.
    pub(crate) fn spread(&self, row: &str, system: &str, metric: &str) -> Option<Spread> {
        let rounds = self.rounds(row, system, metric)?;
        Spread::of(&rounds.values().copied().collect::<Vec<_>>())
    }

    /// The unit of a row's figures.
    pub(crate) fn unit(&self, row: &str, metric: &str) -> &str {
        let key = (row.to_owned(), metric.to_owned());
        self.units.get(&key).map_or("", String::as_str)
    }

    /// A figure against another one of the same round; against nothing it is the figure itself.
    pub(crate) fn ratio(&self, row: &str, system: &str, metric: &str, to: &To) -> Option<Spread> {
        let of = self.rounds(row, system, metric)?;
        if *to == To::Itself {
            return self.spread(row, system, metric);
        }
        let pairs = of.iter();
        let pairs =
            pairs.map(|(round, value)| (self.other(row, system, metric, to, *round), Some(*value)));
        Spread::of_ratios(&pairs.collect::<Vec<_>>())
    }

    /// What a figure is divided by.
    fn other(&self, row: &str, system: &str, id: &str, to: &To, round: usize) -> Option<f64> {
        let value = |row: &str, system: &str| self.rounds(row, system, id)?.get(&round).copied();
        match to {
            To::System(other) => value(row, other),
            To::Row(other) => value(other, system),
            To::Itself => None,
            To::Best(_, systems) => {
                let all = systems.iter().filter_map(|system| value(row, system));
                all.reduce(better_of(id))
            }
            To::BestMedian(_, systems) => value(row, self.best_median(row, id, systems)?),
        }
    }

    fn best_median(&self, row: &str, id: &str, systems: &[&'static str]) -> Option<&'static str> {
        let medians = systems.iter().filter_map(|system| {
            let spread = self.spread(row, system, id)?;
            Some((*system, spread.median))
        });
        let better = better_of(id);
        let best = medians.reduce(|first, second| {
            if better(first.1, second.1) == first.1 {
                first
            } else {
                second
            }
        });
        best.map(|(system, _)| system)
    }

    /// The percentage of a row's bytes that went through memory, all rounds together. `None`: nobody counted.
    pub(crate) fn memory(&self, row: &str, system: &str) -> Option<f64> {
        let sum = |metric| Some(self.rounds(row, system, metric)?.values().sum::<f64>());
        let (ring, tcp) = (sum("ring_bytes")?, sum("tcp_bytes")?);
        (ring + tcp > 0.0).then(|| ring * 100.0 / (ring + tcp))
    }

    /// Whether memory carried what it should have; `None` where that is not asked.
    pub(crate) fn used_memory(&self, row: &str, system: &str) -> Option<bool> {
        let rule = self.catalogue.memory.as_ref()?;
        let plain = row.split('/').next().unwrap_or(row);
        let asked = rule.systems.contains(&system) && !rule.not_asked.contains(&plain);
        asked.then(|| {
            self.memory(row, system)
                .is_some_and(|share| share >= rule.least)
        })
    }

    /// Whether a goal was reached. `None`: it was not measured, or memory carried too little for a verdict.
    pub(crate) fn met(&self, goal: &Goal) -> Option<bool> {
        if self.used_memory(&goal.row, goal.of) == Some(false) {
            return None;
        }
        let ratio = self.ratio(&goal.row, goal.of, goal.metric, &goal.to)?;
        Some(goal.aim.met(ratio.median))
    }

    /// Rows that have an aim with rounds on both sides of it, and those with which such an aim compares.
    pub(crate) fn open_rows(&self) -> BTreeSet<&'a str> {
        let open = self.goals().filter(|goal| self.is_open(goal));
        let rows = open.flat_map(|goal| match &goal.to {
            To::Row(other) => vec![&goal.row, other],
            _ => vec![&goal.row],
        });
        rows.map(String::as_str).collect()
    }

    fn is_open(&self, goal: &Goal) -> bool {
        let ratio = self.ratio(&goal.row, goal.of, goal.metric, &goal.to);
        ratio.is_some_and(|rounds| goal.aim.met(rounds.min) != goal.aim.met(rounds.max))
    }

    /// The goals of what was measured.
    pub(crate) fn goals(&self) -> impl Iterator<Item = &'a Goal> {
        let goals = self.catalogue.goals.iter();
        goals.filter(|goal| self.rounds(&goal.row, goal.of, goal.metric).is_some())
    }

    /// Rows whose bytes should have gone through memory and did not, and why.
    pub(crate) fn not_by_memory(&self) -> Vec<String> {
        let mut told = BTreeSet::new();
        for (row, system, _) in self.values.keys() {
            if self.used_memory(row, system) == Some(false) {
                told.insert(format!("{row}, {system}: {}", self.why_tcp(row, system)));
            }
        }
        told.into_iter().collect()
    }

    fn why_tcp(&self, row: &str, system: &str) -> String {
        let Some(share) = self.memory(row, system) else {
            return "the servers showed no stats page, or no bytes in it".into();
        };
        let reasons = self.values.iter().filter_map(|((r, s, metric), rounds)| {
            let name = metric.strip_prefix("fallback.")?;
            let same = r == row && s == system;
            same.then(|| format!("{name} × {}", rounds.values().sum::<f64>()))
        });
        let reasons: Vec<String> = reasons.collect();
        let reasons = match reasons.is_empty() {
            true => "none given".to_owned(),
            false => reasons.join(", "),
        };
        format!("{share:.1} % of the bytes by memory; reasons: {reasons}")
    }
}

/// The better one of two values of a metric.
fn better_of(id: &str) -> fn(f64, f64) -> f64 {
    match metric(id) {
        Some((_, Better::Lower)) => f64::min,
        _ => f64::max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Aim;
    use crate::fixtures::run;
    use crate::suites::catalogue;

    const PAGES: &[f64] = &[99_990.0, 99_990.0];
    const LITTLE: &[f64] = &[10.0, 10.0];

    fn goal(figures: &Figures<'_>, row: &str) -> Option<bool> {
        let goal = figures
            .goals()
            .find(|goal| goal.row == row && goal.metric == "rate");
        figures.met(goal.expect("a goal"))
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let run = run(
            "packets",
            &[
                (
                    "tx-64-b32",
                    "persistent",
                    "rate",
                    "frames/s",
                    &[6.0, 8.0, 9.0],
                ),
                ("tx-64-b32", "copy", "rate", "frames/s", &[3.0, 1.0]),
                ("tx-64-b32", "map", "rate", "frames/s", &[1.0, 2.0]),
            ],
        );
        let all = catalogue("packets");
        let figures = Figures::new(&run, &all);
        let ratio = |to: To| {
            figures
                .ratio("tx-64-b32", "persistent", "rate", &to)
                .expect("a ratio")
        };
        assert_eq!(ratio(To::System("copy")).values, [2.0, 8.0]);
        assert_eq!(
            ratio(To::Best("older", &["copy", "map"])).values,
            [2.0, 4.0]
        );
        // Of copy, whose median is 2; map's is 1.5.
        let by_median = To::BestMedian("best", &["map", "copy"]);
        assert_eq!(ratio(by_median).values, [2.0, 8.0]);
        assert_eq!(ratio(To::Itself).values, [6.0, 8.0, 9.0]);
    }

    #[test]
    fn a_goal_counts_only_if_memory_carried_the_bytes() {
        let figures = |ring: &'static [f64], tcp: &'static [f64]| {
            run(
                "sockets",
                &[
                    ("nginx-500", "tcp", "rate", "req/s", &[10.0, 20.0]),
                    ("nginx-500", "nocopy", "rate", "req/s", &[50.0, 90.0]),
                    ("nginx-500", "nocopy", "ring_bytes", "B", ring),
                    ("nginx-500", "nocopy", "tcp_bytes", "B", tcp),
                    (
                        "nginx-500",
                        "nocopy",
                        "fallback.PEER_NO_SMC",
                        "connections",
                        &[2.0],
                    ),
                ],
            )
        };
        let all = catalogue("sockets");
        let run = figures(PAGES, LITTLE);
        let seen = Figures::new(&run, &all);
        assert_eq!(goal(&seen, "nginx-500"), Some(true));
        assert!(seen.not_by_memory().is_empty());
        let run = figures(LITTLE, PAGES);
        let seen = Figures::new(&run, &all);
        assert_eq!(goal(&seen, "nginx-500"), None);
        let told = seen.not_by_memory();
        assert!(
            told[0].contains("0.0 % of the bytes by memory; reasons: PEER_NO_SMC × 2"),
            "{told:?}"
        );
    }

    #[test]
    fn without_a_stats_page_the_lane_counts_as_unused_where_it_is_asked_for() {
        let run = run(
            "sockets",
            &[
                ("nginx-500", "nocopy", "rate", "req/s", &[1.0]),
                ("short", "nocopy", "rate", "conn/s", &[1.0]),
                ("handover-1", "native-lane", "p50", "µs", &[1.0]),
                ("nginx-500", "tcp", "rate", "req/s", &[1.0]),
            ],
        );
        let all = catalogue("sockets");
        let told = Figures::new(&run, &all).not_by_memory();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("nginx-500, nocopy"), "{told:?}");
    }

    #[test]
    fn the_median_decides() {
        assert!(Aim::AtLeast(8.0).met(8.0) && !Aim::AtLeast(8.0).met(7.9));
        assert!(Aim::AtMost(0.6).met(0.6) && !Aim::AtMost(0.6).met(0.61));
        assert_eq!(Aim::AtLeast(3.0).shown(Some(false)), "≥3 -");
        assert_eq!(Aim::AtMost(0.6).shown(None), "≤0.6 ?");
    }
}
