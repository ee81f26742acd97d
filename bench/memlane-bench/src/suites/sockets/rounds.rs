//! Runs the trials, system after system in each round, and gathers what they read.

use super::trial::{Reading, Setting, Side, Trial, Workload, require};
use super::work;
use crate::runner::Record;
use crate::runner::progress::Progress;
use crate::runner::sys;

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
    record: &mut Record,
    progress: &mut Progress,
) {
    workloads.retain(|workload| {
        let rows = wanted(workload.as_ref(), setting);
        let lacks = require(workload.programs()).err();
        if let (false, Some(why)) = (rows.is_empty(), &lacks) {
            record.missing(&rows.join(","), "all", &why.to_string());
        }
        lacks.is_none() && !rows.is_empty()
    });
    for workload in &mut workloads {
        for pinned in plan.pinning(workload.as_ref()) {
            measure(workload.as_mut(), setting, plan, pinned, record, progress);
        }
    }
}

fn measure(
    workload: &mut dyn Workload,
    setting: &Setting,
    plan: &Plan,
    pinned: bool,
    record: &mut Record,
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
                keep(record, workload.pinning(), &trial, round, &reading);
            }
            match outcome {
                Ok(()) => progress.took(cost, &name),
                Err(error) => {
                    progress.took(cost, &format!("{name}: FAILED: {error:#}"));
                    record.failed(workload.group(), side.id(), round, &format!("{error:#}"));
                }
            }
        }
    }
}

/// Keeps the figures of a row, with the way that its bytes took.
fn keep(record: &mut Record, pinning: &[bool], trial: &Trial<'_>, round: usize, reading: &Reading) {
    // A row that knows only one way has no other name for it.
    let free = pinning.len() > 1 && !trial.pinned;
    let row = match free {
        true => work::free(reading.row),
        false => reading.row.to_owned(),
    };
    let system = trial.side.id();
    for (metric, value) in &reading.values {
        record.add(&row, system, round, &[(metric.name, metric.unit, *value)]);
    }
    let lane = &reading.lane;
    if trial.side.mode().is_none() || lane.pages == 0 {
        return;
    }
    let bytes = [("ring_bytes", lane.ring), ("tcp_bytes", lane.tcp)];
    record.add(
        &row,
        system,
        round,
        &bytes.map(|(metric, bytes)| (metric, "B", bytes as f64)),
    );
    for (code, connections) in &lane.reasons {
        let name = memlane_core::reason::Reason(*code).name();
        let metric = format!("fallback.{name}");
        record.named(
            &row,
            system,
            round,
            (metric, "connections", *connections as f64),
        );
    }
}
