//! A run: its rounds, the parts of each, and the systems of a part by turns.

use std::time::Duration;

use super::machine::{self, Asked};
use super::plan::{Part as _, Plan, Row};
use super::programs::Programs;
use super::progress::{Progress, minutes};
use super::record::Record;
use super::strangers::Strangers;
use super::{proc, sys};
use crate::catalogue::System;
use crate::exit::{Exit, fail};
use crate::out;
use crate::sample::{Better, Run, metric};
use crate::spread::short;

/// What is the same for all measurements.
pub(crate) struct Bench {
    pub(crate) programs: Programs,
    /// For sockets and logs.
    pub(crate) scratch: proc::Scratch,
    /// The sender runs on the first, the receiver on the second; they are the same where there is one only.
    pub(crate) cpus: [usize; 2],
    /// The length of each measurement.
    pub(crate) seconds: f64,
}

impl Bench {
    pub(crate) fn new(programs: Programs, seconds: f64) -> anyhow::Result<Bench> {
        let cpus = sys::allowed_cpus();
        Ok(Bench {
            programs,
            scratch: proc::Scratch::new()?,
            cpus: [cpus[0], cpus[cpus.len().min(2) - 1]],
            seconds,
        })
    }
}

/// A suite, ready to be measured.
pub(crate) trait Suite {
    type Row: Row;
    const NAME: &'static str;
    /// Whose versions are told.
    const PROGRAMS: &'static [Asked];
    /// Whether others' load makes its figures spread.
    const MINDS_LOAD: bool = true;
    /// What else it was told, for the head of the run.
    fn settings(&self) -> Vec<(&'static str, String)>;
    /// Why a system cannot be measured here, if so.
    fn lacks(&self, part: <Self::Row as Row>::Part, system: &System) -> Option<String>;
    /// Measures a system with rows of one part, and keeps each row's figures.
    ///
    /// # Errors
    /// What went wrong with the first row that was not kept.
    fn measure(
        &mut self,
        turn: &mut Turn<'_, Self::Row>,
        system: &System,
        rows: &[Self::Row],
    ) -> anyhow::Result<()>;
}

/// Measures all that was asked for.
///
/// # Errors
/// Somebody wants us to stop.
pub(crate) fn run<S: Suite>(suite: &mut S, mut plan: Plan<S::Row>) -> anyhow::Result<Run> {
    let machine = machine::this_machine(S::PROGRAMS);
    let mut record = Record::new(S::NAME);
    for missing in plan.without(|part, system| suite.lacks(part, system)) {
        record.missing(missing.part.word(), missing.system.id, &missing.why);
    }
    if machine.is_busy() && S::MINDS_LOAD {
        let load = &machine.load;
        out::warn(&format!(
            "this machine is busy (load {load}): figures will spread"
        ));
    }
    let time = announce(&plan);
    let mut progress = Progress::new(time);
    let _stranger = plan.wish.stranger.then(stranger);
    rounds(suite, &plan, &mut record, &mut progress)?;
    record.finished(&plan.wish, suite.settings(), machine)
}

/// One who takes the CPU that receivers run on.
fn stranger() -> Strangers {
    let cpus = sys::allowed_cpus();
    Strangers::start(1, &cpus[cpus.len().min(2) - 1..][..1])
}

/// Says what will happen, and about how long that takes.
fn announce<R: Row>(plan: &Plan<R>) -> Duration {
    if sys::allowed_cpus().len() < 2 {
        out::warn("one CPU only: both ends share it");
    }
    let mut parts: Vec<(usize, &str)> = Vec::new();
    for part in R::Part::ALL {
        let (word, count) = (part.word(), plan.figures(*part));
        match parts.iter_mut().find(|(_, known)| *known == word) {
            Some((sum, _)) => *sum += count,
            None => parts.push((count, word)),
        }
    }
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts
        .map(|(count, of)| format!("{count} of {of}"))
        .collect();
    let (time, rounds, parts) = (plan.time(), plan.wish.rounds, parts.join(", "));
    let told = minutes(time.as_secs_f64());
    out::stderr(&format!(
        "{rounds} rounds of {parts}: about {told}; Ctrl-C clears away\n"
    ));
    time
}

/// All rounds. In each, the systems of a part alternate row by row; or each of them takes all rows at once, where it has
/// to be started for them.
///
/// # Errors
/// Somebody wants us to stop.
pub(crate) fn rounds<S: Suite>(
    suite: &mut S,
    plan: &Plan<S::Row>,
    record: &mut Record,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    for round in 0..plan.wish.rounds {
        for part in <S::Row as Row>::Part::ALL {
            let rows = plan.rows_of(*part);
            let at_a_time = if part.at_once() { rows.len() } else { 1 };
            for rows in rows.chunks(at_a_time.max(1)) {
                for system in by_turns(plan.systems_of(*part), round) {
                    let mut turn = Turn {
                        plan,
                        round,
                        kept: 0,
                        progress: &mut *progress,
                        record: &mut *record,
                    };
                    turn.take(suite, &system, rows)?;
                }
            }
        }
    }
    Ok(())
}

/// Every second round begins with the last one: no system is always the first one after a pause.
fn by_turns<T: Clone>(systems: &[T], round: usize) -> Vec<T> {
    let mut systems = systems.to_vec();
    if round % 2 == 1 {
        systems.reverse();
    }
    systems
}

/// One system, some rows, one round.
pub(crate) struct Turn<'a, R: Row> {
    plan: &'a Plan<R>,
    pub(crate) round: usize,
    /// Rows whose figures are there.
    kept: usize,
    progress: &'a mut Progress,
    pub(crate) record: &'a mut Record,
}

impl<R: Row> Turn<'_, R> {
    fn take<S: Suite<Row = R>>(
        &mut self,
        suite: &mut S,
        system: &System,
        rows: &[R],
    ) -> anyhow::Result<()> {
        let part = rows[0].part();
        if part.joining() > 0.0 {
            let about = format!("{}{} {}", self.head(), part.word(), system.id);
            self.progress.took(part.joining(), &format!("{about} …"));
        }
        let done = suite.measure(self, system, rows);
        anyhow::ensure!(!sys::interrupted(), "interrupted");
        if let Err(error) = done {
            let row = &rows[self.kept.min(rows.len() - 1)];
            self.failed(row, system, &error);
        }
        Ok(())
    }

    fn head(&self) -> String {
        format!("round {}/{} ", self.round + 1, self.plan.wish.rounds)
    }

    /// Keeps the figures of a row.
    pub(crate) fn keep<M: AsRef<str>, U: AsRef<str>>(
        &mut self,
        row: &R,
        system: &System,
        figures: &[(M, U, f64)],
    ) {
        let id = row.id();
        let about = format!("{}{id} {}: {}", self.head(), system.id, told(figures));
        let cost = row.part().cost(self.plan.wish.seconds);
        self.progress.took(cost, &about);
        self.record.add(&id, system.id, self.round, figures);
        self.kept += 1;
    }

    /// Keeps what went wrong with a row.
    pub(crate) fn failed(&mut self, row: &R, system: &System, error: &anyhow::Error) {
        let (id, why) = (row.id(), format!("{error:#}"));
        let told = format!("!! {}{id} {}: {why}", self.head(), system.id);
        self.progress.warns(&told);
        self.record.failed(&id, system.id, self.round, &why);
    }
}

/// The first figure that is judged, for people.
fn told<M: AsRef<str>, U: AsRef<str>>(figures: &[(M, U, f64)]) -> String {
    let judged = |id: &str| metric(id).is_some_and(|(_, better)| better != Better::Neither);
    let first = figures.iter().find(|(id, ..)| judged(id.as_ref()));
    first.map_or(String::new(), |(_, unit, value)| {
        format!("{} {}", short(*value), unit.as_ref())
    })
}

/// TCP's congestion control, as `--congestion` asks for it.
///
/// # Errors
/// This kernel has none of that name.
pub(crate) fn congestion_control(asked: Option<&str>) -> anyhow::Result<String> {
    machine::congestion_control(asked).map_err(|text| fail(Exit::Usage, text))
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
}
