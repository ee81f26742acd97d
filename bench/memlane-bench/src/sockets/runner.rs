//! Runs the trials, system after system in each round, and gathers what they read.

use super::trial::{Metric, Reading, Setting, Side, Trial, Workload, require};
use crate::out;
use crate::progress::Progress;
use crate::{lane, sys};

/// One line of the result: a row, a pinning, a metric.
pub(super) struct Line {
    /// Name for `--only`.
    pub(super) group: &'static str,
    /// Row id.
    pub(super) row: &'static str,
    /// Server and client on a CPU each?
    pub(super) pinned: bool,
    /// What was measured.
    pub(super) metric: Metric,
    /// By round, in the order of [`Side::ALL`].
    pub(super) rounds: Vec<[Option<f64>; 4]>,
    /// Lane use, all rounds, likewise.
    pub(super) lanes: [lane::Usage; 4],
}

/// A workload that could not be measured, or a trial that failed.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Trouble {
    /// Which.
    pub(super) name: String,
    /// Why.
    pub(super) why: String,
}

/// Everything.
#[derive(Default)]
pub(super) struct Results {
    /// In the order of the table.
    pub(super) lines: Vec<Line>,
    /// Workloads whose programs are missing.
    pub(super) skipped: Vec<Trouble>,
    /// Trials that failed.
    pub(super) failed: Vec<Trouble>,
}

/// How much to run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Rounds.
    pub(super) rounds: usize,
    /// The columns.
    pub(super) sides: Vec<Side>,
    /// Pinned, not pinned, or both.
    pub(super) pinning: Vec<bool>,
}

impl Plan {
    fn sides(&self, workload: &dyn Workload) -> Vec<Side> {
        let sides = workload.sides().iter().copied();
        sides.filter(|side| self.sides.contains(side)).collect()
    }

    /// What a workload takes only one way is done that way.
    fn pinning(&self, workload: &dyn Workload) -> Vec<bool> {
        match workload.pinning() {
            [only] => vec![*only],
            _ => self.pinning.clone(),
        }
    }

    /// About how many seconds a workload takes, in one column and pinning of a round.
    fn cost(&self, workload: &dyn Workload, setting: &Setting) -> f64 {
        let rows = wanted(workload, setting).len();
        0.3 + rows as f64 * workload.cost(setting.seconds)
    }

    /// About how many seconds all of them take.
    pub(super) fn time(&self, workloads: &[Box<dyn Workload>], setting: &Setting) -> f64 {
        let asked = workloads.iter().map(AsRef::as_ref);
        let asked = asked.filter(|workload| !wanted(*workload, setting).is_empty());
        let one = asked.map(|workload| {
            let trials = self.sides(workload).len() * self.pinning(workload).len();
            trials as f64 * self.cost(workload, setting)
        });
        one.sum::<f64>() * self.rounds as f64
    }
}

fn wanted(workload: &dyn Workload, setting: &Setting) -> Vec<&'static str> {
    let rows = workload.rows().into_iter();
    rows.filter(|row| setting.rows.contains(row)).collect()
}

/// Runs all of `workloads` whose rows were asked for. Leaves out those whose programs are missing, and says so first.
pub(super) fn run(
    mut workloads: Vec<Box<dyn Workload>>,
    setting: &Setting,
    plan: &Plan,
    progress: &mut Progress,
) -> Results {
    let mut results = Results::default();
    workloads.retain(|workload| {
        let rows = wanted(workload.as_ref(), setting);
        let lacks = require(workload.programs()).err();
        if let (false, Some(why)) = (rows.is_empty(), &lacks) {
            let (name, why) = (rows.join(","), why.to_string());
            out::stderr(&format!("!! NOT MEASURED: {name}: {why}\n"));
            results.skipped.push(Trouble { name, why });
        }
        lacks.is_none() && !rows.is_empty()
    });
    for workload in &mut workloads {
        for pinned in plan.pinning(workload.as_ref()) {
            measure(
                workload.as_mut(),
                setting,
                plan,
                pinned,
                &mut results,
                progress,
            );
        }
    }
    results
}

fn measure(
    workload: &mut dyn Workload,
    setting: &Setting,
    plan: &Plan,
    pinned: bool,
    results: &mut Results,
    progress: &mut Progress,
) {
    let cost = plan.cost(workload, setting);
    for round in 0..plan.rounds {
        let mut sides = plan.sides(workload);
        if round % 2 == 1 {
            sides.reverse();
        }
        for side in sides {
            if sys::interrupted() {
                return;
            }
            let trial = Trial {
                setting,
                side,
                pinned,
            };
            let name = format!(
                "{} {} {} round {}/{}",
                workload.group(),
                if pinned { "pinned" } else { "unpinned" },
                side.id(),
                round + 1,
                plan.rounds
            );
            let mut readings = Vec::new();
            let outcome = workload.measure(&trial, &mut readings);
            for reading in readings {
                record(results, workload.group(), &trial, round, reading);
            }
            match outcome {
                Ok(()) => progress.took(cost, &name),
                Err(error) => {
                    progress.took(cost, &format!("{name}: FAILED: {error:#}"));
                    let why = format!("{error:#}");
                    results.failed.push(Trouble { name, why });
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
            line.rounds.resize(round + 1, [None; 4]);
        }
        let column = trial.side as usize;
        line.rounds[round][column] = Some(value);
        line.lanes[column].add(&reading.lane);
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
            lanes: Default::default(),
        });
        results.lines.len() - 1
    });
    &mut results.lines[at]
}
