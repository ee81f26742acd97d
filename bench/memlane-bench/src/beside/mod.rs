//! Systems beside each other, row by row: what the benches of that shape have in common.
//!
//! | room | what |
//! |---|---|
//! | `plan` | rows in parts: what was asked for |
//! | `turn` | the rounds of two programs on a CPU each |

pub(super) mod plan;
pub(super) mod turn;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use super::machine::Machine;
use super::published::{self, Aim, Source};
use super::spread::Spread;
use crate::exit::Exit;
use crate::out;

/// Who is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct System {
    pub(super) id: &'static str,
    pub(super) about: &'static str,
    pub(super) ours: bool,
}

pub(super) const fn system(id: &'static str, about: &'static str, ours: bool) -> System {
    System { id, about, ours }
}

/// Every second round begins with the last one: none is always the first one after a pause.
pub(super) fn by_turns(systems: &[System], round: usize) -> Vec<System> {
    let mut systems = systems.to_vec();
    if round % 2 == 1 {
        systems.reverse();
    }
    systems
}

/// A system that cannot be measured here, in a part of a run.
#[derive(Serialize, Clone, Debug)]
pub(super) struct Missing<P> {
    pub(super) part: P,
    pub(super) system: &'static str,
    pub(super) why: String,
}

/// What could not be measured in one round.
#[derive(Serialize, Clone, Debug)]
pub(super) struct Trouble<P> {
    pub(super) part: P,
    pub(super) row: String,
    pub(super) system: &'static str,
    /// From 1.
    pub(super) round: usize,
    pub(super) why: String,
}

impl<P: plan::Part> Trouble<P> {
    /// Not somebody else's.
    pub(super) fn is_ours(&self) -> bool {
        let mut systems = self.part.systems().iter();
        systems.any(|system| system.id == self.system && system.ours)
    }
}

/// What every document begins with.
#[derive(Serialize)]
pub(super) struct Run {
    pub(super) schema: &'static str,
    pub(super) created_unix: u64,
    pub(super) command: Vec<String>,
    pub(super) quick: bool,
    pub(super) rounds: usize,
    /// Of each measurement.
    pub(super) seconds: f64,
}

impl Run {
    /// Now, by this program.
    pub(super) fn new(
        schema: &'static str,
        quick: bool,
        rounds: usize,
        seconds: f64,
    ) -> anyhow::Result<Run> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        Ok(Run {
            schema,
            created_unix: now.as_secs(),
            command: std::env::args().collect(),
            quick,
            rounds,
            seconds,
        })
    }
}

/// Values of one system against another's.
#[derive(Serialize, Debug)]
pub(super) struct Ratio {
    pub(super) of: &'static str,
    pub(super) to: &'static str,
    pub(super) times: Spread,
}

/// The ratio of one to another, if it was told.
pub(super) fn ratio<'a>(ratios: &'a [Ratio], of: &str, to: &str) -> Option<&'a Spread> {
    let mut ratios = ratios.iter();
    let found = ratios.find(|ratio| ratio.of == of && ratio.to == to);
    found.map(|ratio| &ratio.times)
}

/// Of whom, to whom, how much.
pub(super) type Bound = (&'static str, &'static str, Aim);

/// An aim, and whether it was reached.
#[derive(Serialize, Clone, Copy, PartialEq, Debug)]
pub(super) struct Goal {
    /// A system.
    pub(super) of: &'static str,
    /// What it is compared with: a system, or what a bench makes of some.
    pub(super) to: &'static str,
    pub(super) bound: Aim,
    /// By the median; null if it was not measured.
    pub(super) met: Option<bool>,
}

impl Goal {
    pub(super) fn new((of, to, bound): Bound, seen: Option<&Spread>) -> Goal {
        Goal {
            of,
            to,
            bound,
            met: seen.map(|seen| bound.met(seen.median)),
        }
    }

    /// In a table: `copy ≥8 +`; of another system than the `usual` one with its name.
    pub(super) fn shown(&self, usual: &str) -> String {
        let whose = match self.of {
            of if of == usual => String::new(),
            of => format!("{of}/"),
        };
        format!("{whose}{} {}", self.to, self.bound.shown(self.met))
    }
}

/// In a table.
pub(super) fn goals(goals: &[Goal], usual: &str) -> String {
    let goals: Vec<String> = goals.iter().map(|goal| goal.shown(usual)).collect();
    goals.join(", ")
}

/// A table of bench/published that has single figures.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Published {
    /// By key.
    pub(super) sources: BTreeMap<String, Source>,
    pub(super) figures: Vec<Figure>,
}

/// One figure.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Figure {
    /// Key of the source.
    pub(super) source: String,
    /// What was measured: a row of ours; or in words, where none is like it.
    pub(super) row: String,
    /// As it was called.
    pub(super) system: String,
    pub(super) value: f64,
    /// As published.
    pub(super) unit: String,
}

impl Published {
    pub(super) fn parse(table: &str) -> anyhow::Result<Published> {
        Ok(serde_json::from_str(table)?)
    }

    /// For tests: a figure without a source, or a source without one.
    #[cfg(test)]
    pub(super) fn is_loose(&self) -> bool {
        let known = |figure: &Figure| self.sources.contains_key(&figure.source);
        let used = |source: &String| self.figures.iter().any(|f| f.source == *source);
        !self.figures.iter().all(known) || !self.sources.keys().all(used)
    }
}

/// Above all tables: what was run, where; `more` of how.
pub(super) fn head(out: &mut String, what: &str, run: &Run, more: &str, machine: &Machine) {
    let quick = if run.quick { " --quick" } else { "" };
    let (rounds, seconds) = (run.rounds, run.seconds);
    let _ = writeln!(
        out,
        "memlane-bench {what}{quick}: {rounds} rounds × {seconds} s{more}"
    );
    let _ = writeln!(
        out,
        "machine: {}, {} CPUs, {} MiB, Linux {}, tcp congestion control {}, load {}",
        machine.cpu,
        machine.cores,
        machine.memory_mib,
        machine.kernel,
        machine.congestion_control,
        machine.load
    );
    let versions = machine.versions.iter();
    let versions: Vec<String> = versions.map(|(name, is)| format!("{name} {is}")).collect();
    let _ = writeln!(out, "programs: {}", versions.join(", "));
}

/// Below the head: what the tables lack.
pub(super) fn lacking<P: plan::Part>(out: &mut String, missing: &[Missing<P>]) {
    for Missing { part, system, why } in missing {
        let part = part.word();
        let _ = writeln!(out, "NOT MEASURED: {part}, {system}: {why}");
    }
}

/// So many cells of a line that has begun.
pub(super) fn cells(out: &mut String, cells: impl Iterator<Item = impl AsRef<str>>) {
    for cell in cells {
        let _ = write!(out, " {} |", cell.as_ref());
    }
}

/// Figures of others that stand in no line of ours.
pub(super) fn others<'a>(out: &mut String, figures: impl Iterator<Item = &'a Figure>) {
    out.push_str("\n| published by others | what | figure | source |\n|---|---|---:|---|\n");
    for figure in figures {
        let (system, row, source) = (&figure.system, &figure.row, &figure.source);
        let (value, unit) = (figure.value, &figure.unit);
        let _ = writeln!(out, "| {system} | {row} | {value} {unit} | {source} |");
    }
}

/// Below all tables: whose the published figures are, and what went wrong.
pub(super) fn foot<P>(out: &mut String, sources: &BTreeMap<String, Source>, failed: &[Trouble<P>]) {
    for line in published::cited(sources) {
        let _ = writeln!(out, "{line}");
    }
    for trouble in failed {
        let (row, system, round, why) = (&trouble.row, trouble.system, trouble.round, &trouble.why);
        let _ = writeln!(out, "FAILED: {row}, {system}, round {round}: {why}");
    }
}

/// Below a plot.
pub(super) fn caption(machine: &Machine, rounds: usize) -> String {
    format!(
        "Medians of {rounds} rounds, lowest to highest as a thin line. {}, {} CPUs, Linux {}.",
        machine.cpu, machine.cores, machine.kernel
    )
}

/// Says that this machine does something else, too.
pub(super) fn warn_if_busy(machine: &Machine) {
    if machine.is_busy() {
        let load = &machine.load;
        out::warn(&format!(
            "this machine is busy (load {load}): figures will spread"
        ));
    }
}

/// A report in its forms.
pub(super) struct Printed {
    pub(super) text: String,
    pub(super) json: String,
    /// By the names of their files.
    pub(super) pictures: Vec<(String, String)>,
}

impl Printed {
    /// Into a folder, if one is named, and to standard output.
    pub(super) fn conclude(
        &self,
        name: &str,
        folder: Option<&Path>,
        as_json: bool,
    ) -> anyhow::Result<()> {
        if let Some(folder) = folder {
            let shown = || folder.display().to_string();
            std::fs::create_dir_all(folder).with_context(shown)?;
            std::fs::write(folder.join(format!("{name}.md")), &self.text)?;
            std::fs::write(folder.join(format!("{name}.json")), &self.json)?;
            for (name, picture) in &self.pictures {
                std::fs::write(folder.join(name), picture)?;
            }
        }
        out::print(if as_json { &self.json } else { &self.text })
    }
}

/// How a run ends in which `ours_failed`: something of memlane's own could not be measured.
pub(super) fn exit(ours_failed: bool) -> ExitCode {
    let exit = if ours_failed { Exit::Failed } else { Exit::Ok };
    exit.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_decides_and_what_was_not_measured_is_neither() {
        let bound = ("new", "old", Aim::AtLeast(8.0));
        let goal = |values: &[f64]| Goal::new(bound, Spread::of(values).as_ref());
        assert_eq!(goal(&[7.0, 8.0, 9.0]).shown("new"), "old ≥8 +");
        assert_eq!(goal(&[7.0, 7.9, 9.0]).shown("new"), "old ≥8 -");
        assert_eq!(goal(&[]).shown("new"), "old ≥8 ?");
        assert_eq!(goal(&[]).shown("other"), "new/old ≥8 ?");
        let all = [goal(&[8.0]), goal(&[])];
        assert_eq!(goals(&all, "new"), "old ≥8 +, old ≥8 ?");
    }

    #[test]
    fn who_was_last_is_first_the_next_time() {
        let both = [system("a", "", true), system("b", "", false)];
        let ids = |round| {
            by_turns(&both, round)
                .iter()
                .map(|s| s.id)
                .collect::<String>()
        };
        assert_eq!([ids(0), ids(1), ids(2)], ["ab", "ba", "ab"]);
    }
}
