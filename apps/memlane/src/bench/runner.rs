//! Runs the trials, A B A B …, and gathers what they read.

use std::time::Instant;

use super::trial::{Metric, Reading, Setting, Side, Trial, Workload, require};
use super::{lane, sys};

/// One line of the result: a row, a pinning, a metric.
pub(crate) struct Line {
    /// Name for `--only`.
    pub(crate) group: &'static str,
    /// Row id.
    pub(crate) row: &'static str,
    /// Server and client on a CPU each?
    pub(crate) pinned: bool,
    /// What was measured.
    pub(crate) metric: Metric,
    /// TCP and memlane by round.
    pub(crate) rounds: Vec<(Option<f64>, Option<f64>)>,
    /// Lane use of the memlane side, all rounds.
    pub(crate) lane: lane::Usage,
}

/// A workload that could not be measured, or a trial that failed.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Trouble {
    /// Which.
    pub(crate) name: String,
    /// Why.
    pub(crate) why: String,
}

/// Everything.
#[derive(Default)]
pub(crate) struct Results {
    /// In the order of the table.
    pub(crate) lines: Vec<Line>,
    /// Workloads whose programs are missing.
    pub(crate) skipped: Vec<Trouble>,
    /// Trials that failed.
    pub(crate) failed: Vec<Trouble>,
}

/// How much to run.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// Rounds of each pair.
    pub(crate) rounds: usize,
    /// Whether the unpinned half runs as well.
    pub(crate) unpinned: bool,
    /// Whether the pinned half runs.
    pub(crate) pinned: bool,
}

/// Runs all of `workloads` whose rows were asked for.
pub(crate) fn run(
    mut workloads: Vec<Box<dyn Workload>>,
    setting: &Setting,
    plan: Plan,
    say: &mut dyn FnMut(&str),
) -> Results {
    let mut results = Results::default();
    for workload in &mut workloads {
        let wanted: Vec<_> = workload
            .rows()
            .into_iter()
            .filter(|row| setting.rows.contains(row))
            .collect();
        if wanted.is_empty() {
            continue;
        }
        if let Err(error) = require(workload.programs()) {
            say(&format!("skipped {}: {error}", wanted.join(", ")));
            results.skipped.push(Trouble {
                name: wanted.join(","),
                why: error.to_string(),
            });
            continue;
        }
        for pinned in [true, false] {
            let usual = if pinned { plan.pinned } else { plan.unpinned };
            let wanted = if workload.can_pin() { usual } else { !pinned };
            if wanted {
                measure(workload.as_mut(), setting, plan, pinned, &mut results, say);
            }
        }
    }
    results
}

fn measure(
    workload: &mut dyn Workload,
    setting: &Setting,
    plan: Plan,
    pinned: bool,
    results: &mut Results,
    say: &mut dyn FnMut(&str),
) {
    let group = workload.group();
    for round in 0..plan.rounds {
        for side in [Side::Tcp, Side::Memlane] {
            if sys::interrupted() {
                return;
            }
            let trial = Trial {
                setting,
                side,
                pinned,
            };
            let begin = Instant::now();
            let mut readings = Vec::new();
            let outcome = workload.measure(&trial, &mut readings);
            let name = format!(
                "{} {} {} round {}/{}",
                readings.first().map_or(group, |reading| reading.row),
                if pinned { "pinned" } else { "unpinned" },
                if side == Side::Tcp { "tcp" } else { "memlane" },
                round + 1,
                plan.rounds
            );
            for reading in readings {
                record(results, group, &trial, round, reading);
            }
            match outcome {
                Ok(()) => say(&format!("{name}: {:.1} s", begin.elapsed().as_secs_f64())),
                Err(error) => {
                    say(&format!("{name}: FAILED: {error:#}"));
                    results.failed.push(Trouble {
                        name,
                        why: format!("{error:#}"),
                    });
                }
            }
        }
    }
}

fn record(
    results: &mut Results,
    group: &'static str,
    trial: &Trial<'_>,
    round: usize,
    reading: Reading,
) {
    for (metric, value) in reading.values {
        let line = find_or_add(results, group, reading.row, trial.pinned, metric);
        if line.rounds.len() <= round {
            line.rounds.resize(round + 1, (None, None));
        }
        match trial.side {
            Side::Tcp => line.rounds[round].0 = Some(value),
            Side::Memlane => {
                line.rounds[round].1 = Some(value);
                line.lane.add(&reading.lane);
            }
        }
    }
}

fn find_or_add<'a>(
    results: &'a mut Results,
    group: &'static str,
    row: &'static str,
    pinned: bool,
    metric: Metric,
) -> &'a mut Line {
    let same = |line: &Line| line.row == row && line.pinned == pinned && line.metric == metric;
    let at = results.lines.iter().position(same).unwrap_or_else(|| {
        results.lines.push(Line {
            group,
            row,
            pinned,
            metric,
            rounds: Vec::new(),
            lane: lane::Usage::default(),
        });
        results.lines.len() - 1
    });
    &mut results.lines[at]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::proc::Scratch;

    /// Counts its calls; fails on the second round of the memlane side.
    struct Fake(Vec<(Side, bool)>);

    /// Needs what nobody has.
    struct Unavailable;

    impl Workload for Unavailable {
        fn group(&self) -> &'static str {
            "fake"
        }

        fn rows(&self) -> Vec<&'static str> {
            vec!["fake-row"]
        }

        fn programs(&self) -> &'static [&'static str] {
            &["sh", "no-such-program-as-this"]
        }

        fn measure(&mut self, _: &Trial<'_>, _: &mut Vec<Reading>) -> anyhow::Result<()> {
            panic!("measured without its program");
        }
    }

    impl Workload for Fake {
        fn group(&self) -> &'static str {
            "fake"
        }

        fn rows(&self) -> Vec<&'static str> {
            vec!["fake-row"]
        }

        fn programs(&self) -> &'static [&'static str] {
            &[]
        }

        fn measure(
            &mut self,
            trial: &Trial<'_>,
            readings: &mut Vec<Reading>,
        ) -> anyhow::Result<()> {
            self.0.push((trial.side, trial.pinned));
            if trial.side == Side::Memlane && self.0.len() == 4 {
                anyhow::bail!("on purpose");
            }
            let value = if trial.side == Side::Tcp { 10.0 } else { 30.0 };
            let ring = if trial.side == Side::Memlane { 99 } else { 0 };
            readings.push(Reading {
                row: "fake-row",
                values: vec![(Metric::rate("x/s"), value)],
                lane: lane::Usage {
                    ring,
                    tcp: 1,
                    pages: 1,
                    ..Default::default()
                },
            });
            Ok(())
        }
    }

    fn setting() -> Setting {
        Setting {
            exe: "/bin/true".into(),
            upgrade: "auto".into(),
            seconds: 1.0,
            scratch: Scratch::new().expect("a folder"),
            cpus: [0, 0],
            rows: vec!["fake-row"],
        }
    }

    #[test]
    fn sides_alternate_and_a_failed_trial_costs_only_its_own_ratio() {
        let plan = Plan {
            rounds: 3,
            unpinned: false,
            pinned: true,
        };
        let mut said = Vec::new();
        let results = run(
            vec![Box::new(Fake(Vec::new()))],
            &setting(),
            plan,
            &mut |line| {
                said.push(line.to_owned());
            },
        );
        let sides: Vec<_> = said.iter().map(|line| line.contains(" tcp ")).collect();
        assert_eq!(sides, [true, false, true, false, true, false]);
        assert_eq!(results.failed.len(), 1);
        let line = &results.lines[0];
        assert_eq!(line.rounds[0], (Some(10.0), Some(30.0)));
        assert_eq!(line.rounds[1], (Some(10.0), None));
        assert_eq!(line.lane.ring, 198, "only the memlane side's bytes count");
    }

    #[test]
    fn a_missing_program_is_named_and_its_rows_are_skipped() {
        let plan = Plan {
            rounds: 1,
            unpinned: true,
            pinned: true,
        };
        let results = run(vec![Box::new(Unavailable)], &setting(), plan, &mut |_| {});
        assert_eq!(results.skipped[0].name, "fake-row");
        assert_eq!(
            results.skipped[0].why,
            "not installed: no-such-program-as-this"
        );
        assert!(results.lines.is_empty() && results.failed.is_empty());
    }
}
