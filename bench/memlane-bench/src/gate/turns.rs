//! Both builds in turns: a run of this program for each row, round and build, with the build's folder in `--built`.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::rows::{COUNTED, Figure, Row};
use super::verdict::Pair;
use crate::out;
use crate::runner::proc::{Job, Scratch, confined};
use crate::runner::sys;
use crate::sample::Run;

/// What a row takes beyond its measurements.
const PATIENCE: Duration = Duration::from_secs(120);
/// The same in a guest, which must boot, and is emulated.
const GUEST_PATIENCE: Duration = Duration::from_secs(1200);

/// One of the two builds.
#[derive(Clone, Debug)]
pub(super) struct Build {
    /// For people.
    pub(super) name: String,
    pub(super) folder: PathBuf,
}

/// The two builds, and how they are measured.
pub(super) struct Turns {
    /// The older one, the newer one.
    pub(super) builds: [Build; 2],
    pub(super) seconds: f64,
    pub(super) scratch: Scratch,
}

/// A figure of both builds, round by round.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Series {
    pub(super) figure: Figure,
    pub(super) unit: String,
    pub(super) rounds: Vec<Pair>,
    /// Why the last one that is missing is, of each build.
    pub(super) why: [Option<String>; 2],
}

impl Series {
    fn new(figure: Figure, rounds: usize) -> Series {
        Series {
            figure,
            unit: String::new(),
            rounds: vec![[None; 2]; rounds],
            why: [None, None],
        }
    }
}

impl Turns {
    /// About how many seconds that takes: what a suite takes to begin and to end is as much as a measurement.
    pub(super) fn cost(&self, rows: &[Row], rounds: usize) -> f64 {
        let measurement = self.seconds.ceil();
        let of = |batch: Range<usize>| match rows[batch.start].suite {
            COUNTED => (batch.len() + 1) as f64 * measurement * 9.0,
            _ => rows[batch.start].systems().len() as f64 * (measurement + 1.2),
        };
        let round: f64 = batches(rows).into_iter().map(of).sum();
        round * (2 * rounds) as f64
    }

    /// All rounds of some rows. In each round the builds alternate row by row, or with all rows of a suite that boots a
    /// guest for them; every second round begins with the other build. The result has a list for each row.
    ///
    /// # Errors
    /// Somebody wants us to stop.
    pub(super) fn measure(&self, rows: &[Row], rounds: usize) -> anyhow::Result<Vec<Vec<Series>>> {
        let empty = |row: &Row| {
            let figures = row.figures.iter();
            figures.map(|one| Series::new(*one, rounds)).collect()
        };
        let mut all: Vec<Vec<Series>> = rows.iter().map(empty).collect();
        for round in 0..rounds {
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for batch in batches(rows) {
                let ids: Vec<&str> = rows[batch.clone()].iter().map(|row| &*row.id).collect();
                let suite = rows[batch.start].suite;
                let at = round + 1;
                out::stderr(&format!("round {at}/{rounds} {suite} {}\n", ids.join(" ")));
                for build in order {
                    let run = self.run(&rows[batch.clone()], build);
                    anyhow::ensure!(!sys::interrupted(), "interrupted");
                    for (row, series) in rows[batch.clone()].iter().zip(&mut all[batch.clone()]) {
                        for one in series {
                            keep(one, &row.id, &run, (round, build));
                        }
                    }
                }
            }
        }
        Ok(all)
    }

    /// Rows of one suite and one build, once. `Err`: why there is nothing of it.
    fn run(&self, rows: &[Row], build: usize) -> Result<Run, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = confined(program);
        command.args(["run", rows[0].suite, "--json", "--quick", "--rounds", "1"]);
        command.args([
            "--seconds",
            &self.seconds.to_string(),
            "--only",
            &named(rows),
        ]);
        command.arg("--built").arg(&self.builds[build].folder);
        let patience = match rows[0].suite {
            COUNTED => GUEST_PATIENCE,
            _ => PATIENCE,
        };
        let limit = patience + Duration::from_secs_f64(self.seconds * 10.0);
        let told = Job::start(command, limit, &self.scratch).and_then(Job::printed);
        let (text, said) = told.map_err(|error| format!("{error:#}"))?;
        Run::parse(&text).map_err(|_| said)
    }
}

/// Which rows are measured by one run: where a guest is booted, all of its suite.
fn batches(rows: &[Row]) -> Vec<Range<usize>> {
    let mut batches: Vec<Range<usize>> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        match batches.last_mut() {
            Some(last) if row.suite == COUNTED && rows[last.start].suite == COUNTED => {
                last.end += 1
            }
            _ => batches.push(at..at + 1),
        }
    }
    batches
}

/// For `--only`: rows, and their systems.
fn named(rows: &[Row]) -> String {
    let mut names: Vec<&str> = rows.iter().map(|row| &*row.id).collect();
    for system in rows.iter().flat_map(Row::systems) {
        if !names.contains(&system) {
            names.push(system);
        }
    }
    names.join(",")
}

fn keep(series: &mut Series, row: &str, run: &Result<Run, String>, (round, build): (usize, usize)) {
    match run {
        Ok(run) => match value(run, row, series.figure) {
            Ok((unit, value)) => {
                series.unit = unit;
                series.rounds[round][build] = Some(value);
            }
            Err(why) => series.why[build] = Some(why),
        },
        Err(why) => series.why[build] = Some(why.clone()),
    }
}

/// The unit and the value of a figure in a run of one round. What is absent is so for a row, or for a part of a suite.
fn value(run: &Run, row: &str, figure: Figure) -> Result<(String, f64), String> {
    let mut samples = run.samples.iter().filter(|one| one.row == row);
    let found = samples.find(|one| one.system == figure.system && one.metric == figure.metric);
    if let Some(found) = found {
        return Ok((found.unit.clone(), found.value));
    }
    let mut absent = run.absent.iter().filter(|one| one.system == figure.system);
    let why = absent
        .clone()
        .find(|one| one.row == row)
        .or_else(|| absent.next());
    Err(why.map_or_else(|| "not measured".to_owned(), |one| one.why.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::run;
    use crate::sample::{Absence, Better};

    const FIGURE: Figure = Figure {
        system: "nocopy",
        metric: "rate",
        better: Better::Higher,
    };

    #[test]
    fn a_figure_is_that_of_its_system_and_metric_and_an_absent_one_says_why() {
        let mut there = run(
            "sockets",
            &[
                ("msg100", "tcp", "rate", "req/s", &[1.0]),
                ("msg100", "nocopy", "p50", "µs", &[2.0]),
                ("msg100", "nocopy", "rate", "req/s", &[3.0]),
            ],
        );
        let mut series = Series::new(FIGURE, 1);
        keep(&mut series, "msg100", &Ok(there.clone()), (0, 1));
        assert_eq!(series.rounds, [[None, Some(3.0)]]);
        assert_eq!(series.unit, "req/s");
        there.samples.clear();
        there.absent.push(Absence {
            row: "msg100".into(),
            system: "nocopy".into(),
            round: Some(0),
            why: "no ring".into(),
        });
        keep(&mut series, "msg100", &Ok(there), (0, 0));
        assert_eq!(series.why, [Some("no ring".to_owned()), None]);
        keep(&mut series, "msg100", &Err("exit 3".into()), (0, 1));
        assert_eq!(series.why[1].as_deref(), Some("exit 3"));
    }

    #[test]
    fn rows_of_a_guest_are_measured_together_and_all_others_one_by_one() {
        let row = |suite, id: &str| Row {
            suite,
            id: id.into(),
            figures: vec![FIGURE],
        };
        let rows = [
            row("sockets", "a"),
            row("sockets", "b"),
            row(COUNTED, "c"),
            row(COUNTED, "d"),
        ];
        assert_eq!(batches(&rows), [0..1, 1..2, 2..4]);
        assert_eq!(named(&rows[2..]), "c,d,nocopy");
    }
}
