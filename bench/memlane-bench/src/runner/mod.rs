//! What all suites run with: flags, rounds, processes, and the record of what was seen.
//!
//! | room | what |
//! |---|---|
//! | `plan` | which rows and systems were asked for |
//! | `turn` | rounds of two programs on a CPU each |
//! | `programs`, `proc`, `sys` | where programs are; processes that are pinned, bounded and always ended; kernel calls |
//! | `cables` | two network namespaces as two machines |
//! | `lane` | which way the bytes of a process took |
//! | `parse` | what programs of others print |
//! | `machine` | where the figures were taken |
//! | `progress` | how far a run is |

pub(crate) mod cables;
pub(crate) mod lane;
pub(crate) mod machine;
pub(crate) mod parse;
pub(crate) mod plan;
pub(crate) mod proc;
pub(crate) mod programs;
pub(crate) mod progress;
pub(crate) mod sys;
pub(crate) mod turn;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::out;
use crate::render::{self, figures::Figures};
use crate::sample::{Absence, Head, Run, SCHEMA, Sample};
use crate::suites::System;
use machine::Machine;

/// The flags of every suite.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// A short run: fewer rounds, the most telling rows.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only these parts, rows or systems; an unknown name lists all of them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// How often each figure is taken.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// The length of each measurement.
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
    /// Print the figures as lines of JSON (schema memlane.bench/1) instead of tables.
    #[arg(long)]
    json: bool,
    /// Also write one HTML page with all of it into this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write SUITE.md, SUITE.jsonl, SUITE.html and the plots into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The length of a measurement.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.2..=3600.0).contains(&value) => Ok(value),
        _ => Err("a number of seconds from 0.2 to 3600".to_owned()),
    }
}

impl Options {
    /// As asked for; else as in a full, or in a short run.
    pub(crate) fn rounds(&self, [full, quick]: [usize; 2]) -> usize {
        let usual = if self.quick { quick } else { full };
        self.rounds.map_or(usual, usize::from)
    }

    /// As asked for; else as in a full, or in a short run.
    pub(crate) fn seconds(&self, [full, quick]: [f64; 2]) -> f64 {
        self.seconds
            .unwrap_or(if self.quick { quick } else { full })
    }
}

/// Metric, unit, value.
pub(crate) type Figure = (&'static str, &'static str, f64);

/// What a run has seen so far.
#[derive(Debug)]
pub(crate) struct Record {
    suite: &'static str,
    samples: Vec<Sample>,
    absent: Vec<Absence>,
}

impl Record {
    pub(crate) fn new(suite: &'static str) -> Record {
        Record {
            suite,
            samples: Vec::new(),
            absent: Vec::new(),
        }
    }

    /// Keeps the figures of one system in one row and round.
    pub(crate) fn add(&mut self, row: &str, system: &str, round: usize, figures: &[Figure]) {
        for (metric, unit, value) in figures {
            self.named(row, system, round, ((*metric).to_owned(), unit, *value));
        }
    }

    /// Keeps a figure whose metric has a part after a point.
    pub(crate) fn named(
        &mut self,
        row: &str,
        system: &str,
        round: usize,
        (metric, unit, value): (String, &str, f64),
    ) {
        self.samples.push(Sample {
            suite: self.suite.to_owned(),
            row: row.to_owned(),
            system: system.to_owned(),
            metric,
            unit: unit.to_owned(),
            round,
            value,
        });
    }

    /// Says that something cannot be measured here, and keeps that.
    pub(crate) fn missing(&mut self, row: &str, system: &str, why: &str) {
        out::stderr(&format!("!! NOT MEASURED: {row}, {system}: {why}\n"));
        self.absent(row, system, None, why);
    }

    /// Keeps what went wrong in a round.
    pub(crate) fn failed(&mut self, row: &str, system: &str, round: usize, why: &str) {
        self.absent(row, system, Some(round), why);
    }

    fn absent(&mut self, row: &str, system: &str, round: Option<usize>, why: &str) {
        self.absent.push(Absence {
            row: row.to_owned(),
            system: system.to_owned(),
            round,
            why: why.to_owned(),
        });
    }
}

/// How a run was made.
pub(crate) struct Made {
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) settings: Vec<(&'static str, String)>,
    pub(crate) machine: Machine,
}

/// What a run has seen, with a head.
pub(crate) fn finished(record: Record, made: Made, quick: bool) -> anyhow::Result<Run> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let settings = made.settings.into_iter();
    let settings = settings.map(|(key, is)| (key.to_owned(), is));
    Ok(Run {
        head: Head {
            schema: SCHEMA.to_owned(),
            suite: record.suite.to_owned(),
            created_unix: now.as_secs(),
            command: std::env::args().collect(),
            quick,
            rounds: made.rounds,
            seconds: made.seconds,
            settings: settings.collect::<BTreeMap<_, _>>(),
            machine: made.machine,
            note: String::new(),
        },
        samples: record.samples,
        absent: record.absent,
    })
}

/// Prints and writes what a run has seen, as it was asked for.
pub(crate) fn conclude(options: &Options, record: Record, made: Made) -> anyhow::Result<ExitCode> {
    let run = finished(record, made, options.quick)?;
    let catalogue = crate::suites::catalogue(&run.head.suite).expect("a suite has a catalogue");
    let figures = Figures::new(&run, &catalogue);
    if let Some(file) = &options.html {
        render::html(file, &figures)?;
    }
    if let Some(folder) = &options.out {
        render::into(folder, &figures)?;
    }
    out::print(&match options.json {
        true => run.text()?,
        false => render::markdown(&figures),
    })?;
    Ok(render::verdict(&catalogue, &figures).into())
}

/// Every second round begins with the last one: no system is always the first one after a pause.
pub(crate) fn by_turns<T: Clone>(systems: &[T], round: usize) -> Vec<T> {
    let mut systems = systems.to_vec();
    if round % 2 == 1 {
        systems.reverse();
    }
    systems
}

/// Says that this machine does something else, too.
pub(crate) fn warn_if_busy(machine: &Machine) {
    if machine.is_busy() {
        let load = &machine.load;
        out::warn(&format!(
            "this machine is busy (load {load}): figures will spread"
        ));
    }
}

/// A system that cannot be measured here, in a part of a run.
#[derive(Clone, Debug)]
pub(crate) struct Missing<P> {
    pub(crate) part: P,
    pub(crate) system: System,
    pub(crate) why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_last_is_first_the_next_time() {
        let both = ["a", "b"];
        let ids = |round| by_turns(&both, round).concat();
        assert_eq!([ids(0), ids(1), ids(2)], ["ab", "ba", "ab"]);
    }

    #[test]
    fn seconds_have_bounds() {
        assert!(seconds("0.5").is_ok());
        assert!(seconds("0").is_err() && seconds("-1").is_err() && seconds("NaN").is_err());
    }
}
