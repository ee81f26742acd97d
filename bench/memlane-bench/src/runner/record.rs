//! What a run has seen so far.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::plan::Wish;
use crate::out;
use crate::sample::{Absence, Head, Machine, Run, SCHEMA, Sample};

/// Metric, unit, value.
pub(crate) type Figure = (&'static str, &'static str, f64);

/// The figures of a run, and those that are not there.
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
    pub(crate) fn add<M: AsRef<str>, U: AsRef<str>>(
        &mut self,
        row: &str,
        system: &str,
        round: usize,
        figures: &[(M, U, f64)],
    ) {
        let samples = figures.iter().map(|(metric, unit, value)| Sample {
            suite: self.suite.to_owned(),
            row: row.to_owned(),
            system: system.to_owned(),
            metric: metric.as_ref().to_owned(),
            unit: unit.as_ref().to_owned(),
            round,
            value: *value,
        });
        self.samples.extend(samples);
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

    /// The run, with a head.
    ///
    /// # Errors
    /// The clock is before 1970.
    pub(crate) fn finished(
        self,
        wish: &Wish,
        settings: Vec<(&'static str, String)>,
        machine: Machine,
    ) -> anyhow::Result<Run> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let settings = settings.into_iter();
        let settings = settings.map(|(key, is)| (key.to_owned(), is));
        Ok(Run {
            head: Head {
                schema: SCHEMA.to_owned(),
                suite: self.suite.to_owned(),
                created_unix: now.as_secs(),
                command: what_was_run(std::env::args()),
                quick: wish.quick,
                rest: wish.rest,
                stranger: wish.stranger,
                rounds: wish.rounds,
                more_rounds: 0,
                seconds: wish.seconds,
                settings: settings.collect::<BTreeMap<_, _>>(),
                machine,
                note: String::new(),
            },
            samples: self.samples,
            absent: self.absent,
        })
    }
}

impl Run {
    /// Adds the figures of further rounds, whose number is `rounds`.
    pub(crate) fn extend(&mut self, more: Record, rounds: usize) {
        self.head.more_rounds = rounds;
        self.samples.extend(more.samples);
        self.absent.extend(more.absent);
    }
}

/// The command line without what says nothing of the figures: where the program lies, and where the results go.
fn what_was_run(mut args: impl Iterator<Item = String>) -> Vec<String> {
    let program = args.next().map(PathBuf::from);
    let name = program.as_deref().and_then(Path::file_name);
    let name = name.map(|name| name.to_string_lossy().into_owned());
    let mut words: Vec<String> = name.into_iter().collect();
    while let Some(word) = args.next() {
        match word.as_str() {
            "--out" => drop(args.next()),
            other if other.starts_with("--out=") => {}
            _ => words.push(word),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_recorded_without_the_folders_of_this_machine() {
        let run = |line: &str| what_was_run(line.split(' ').map(str::to_owned)).join(" ");
        assert_eq!(
            run("/home/me/memlane-bench run blocks --out /home/me/runs --quick"),
            "memlane-bench run blocks --quick"
        );
        assert_eq!(
            run("./memlane-bench run blocks --out=runs --only qsd"),
            "memlane-bench run blocks --only qsd"
        );
        assert_eq!(
            run("memlane-bench run blocks --out"),
            "memlane-bench run blocks"
        );
    }
}
