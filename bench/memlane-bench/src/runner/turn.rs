//! A run: its rounds, the parts of each, and the systems of a part by turns.

use std::ops::Range;
use std::time::Duration;

use super::machine::{self, Asked};
use super::plan::{Part as _, Plan, Row};
use super::programs::Programs;
use super::progress::{Progress, minutes};
use super::record::Record;
use super::strangers::Strangers;
use super::{proc, sys};
use crate::catalogue::{Catalogue, System};
use crate::exit::{Exit, fail};
use crate::figures::Figures;
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
    /// What its tables show, and what should be reached.
    fn catalogue() -> Catalogue;
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
    let first = 0..plan.wish.rounds;
    let mut progress = Progress::new(announce(&plan, &first));
    let _stranger = plan.wish.stranger.then(stranger);
    rounds(suite, &plan, first, &mut record, &mut progress)?;
    let mut run = record.finished(&plan.wish, suite.settings(), machine)?;
    if plan.wish.more_rounds > 0 {
        more_rounds(suite, plan, &mut run, &mut progress)?;
    }
    Ok(run)
}

/// Measures rows again whose rounds lie on both sides of an aim: their median would say little.
///
/// # Errors
/// Somebody wants us to stop.
fn more_rounds<S: Suite>(
    suite: &mut S,
    mut plan: Plan<S::Row>,
    run: &mut Run,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let catalogue = S::catalogue();
    let figures = Figures::new(run, &catalogue);
    let open = figures.open_rows();
    plan.rows.retain(|row| open.contains(row.id().as_str()));
    if plan.rows.is_empty() {
        return Ok(());
    }
    out::stderr("some rounds lie on both sides of an aim: their rows are measured again\n");
    let (first, more) = (plan.wish.rounds, plan.wish.more_rounds);
    let again = first..first + more;
    progress.grows(announce(&plan, &again));
    let mut record = Record::new(S::NAME);
    rounds(suite, &plan, again, &mut record, progress)?;
    run.extend(record, more);
    Ok(())
}

/// One who takes the CPU that receivers run on.
fn stranger() -> Strangers {
    let cpus = sys::allowed_cpus();
    Strangers::start(1, &cpus[cpus.len().min(2) - 1..][..1])
}

/// Says what will happen, and about how long that takes.
fn announce<R: Row>(plan: &Plan<R>, which: &Range<usize>) -> Duration {
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
    let (rounds, parts) = (which.len(), parts.join(", "));
    let time = plan.time(rounds);
    let told = minutes(time.as_secs_f64());
    out::stderr(&format!(
        "{rounds} rounds of {parts}: about {told}; Ctrl-C clears away\n"
    ));
    time
}

/// Some rounds. In each, the systems of a part alternate row by row; or each of them takes all rows at once, where it has
/// to be started for them.
///
/// # Errors
/// Somebody wants us to stop.
pub(crate) fn rounds<S: Suite>(
    suite: &mut S,
    plan: &Plan<S::Row>,
    which: Range<usize>,
    record: &mut Record,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let last = which.end;
    for round in which {
        for part in <S::Row as Row>::Part::ALL {
            let rows = plan.rows_of(*part);
            let at_a_time = if part.at_once() { rows.len() } else { 1 };
            for rows in rows.chunks(at_a_time.max(1)) {
                for system in by_turns(plan.systems_of(*part), round) {
                    let mut turn = Turn {
                        plan,
                        round,
                        last,
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
    /// How many there are until the end.
    last: usize,
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
        format!("round {}/{} ", self.round + 1, self.last)
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
    use crate::catalogue::{Aim, To, goal, system};
    use crate::published::Published;
    use crate::runner::plan::{Part, Wish};

    #[test]
    fn who_was_last_is_first_the_next_time() {
        let both = ["a", "b"];
        let ids = |round| by_turns(&both, round).concat();
        assert_eq!([ids(0), ids(1), ids(2)], ["ab", "ba", "ab"]);
    }

    #[test]
    fn rows_with_rounds_on_both_sides_of_an_aim_are_measured_again_and_no_others() {
        let run = measured(4);
        let rounds = |row: &str| {
            let ours = run.samples.iter().filter(|one| one.system == "ours");
            let of_row = ours.filter(|one| one.row == row);
            of_row.map(|one| one.round).collect::<Vec<_>>()
        };
        assert_eq!(rounds("above"), [0, 1]);
        assert_eq!(rounds("below"), [0, 1]);
        assert_eq!(rounds("no aim"), [0, 1]);
        assert_eq!(rounds("both sides"), [0, 1, 2, 3, 4, 5]);
        // Another row's aim compares with it.
        assert_eq!(rounds("compared with"), [0, 1, 2, 3, 4, 5]);
        let others = run.samples.iter().filter(|one| one.system == "peer");
        assert_eq!(others.count(), run.samples.len() / 2);
        assert_eq!((run.head.rounds, run.head.more_rounds), (2, 4));
        assert_eq!(
            run.head.rounds_shown(),
            "2 rounds (6 where these lie on both sides of an aim)"
        );
    }

    #[test]
    fn no_row_is_measured_again_where_the_number_of_rounds_was_given() {
        let run = measured(0);
        assert_eq!(run.samples.len(), 2 * 2 * Scripted::all().len());
        assert_eq!(run.head.rounds_shown(), "2 rounds");
    }

    fn measured(more_rounds: usize) -> Run {
        let wish = Wish {
            quick: true,
            rest: false,
            stranger: false,
            only: Vec::new(),
            rounds: 2,
            more_rounds,
            seconds: 0.2,
        };
        let plan = Plan::new(wish).expect("nothing is named");
        run(&mut Play, plan).expect("a run")
    }

    /// A suite whose figures are known.
    struct Play;

    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Only;

    impl Part for Only {
        const ALL: &'static [Only] = &[Only];
        fn word(self) -> &'static str {
            "only"
        }
        fn systems(self) -> Vec<System> {
            vec![system("peer", "peer", false), system("ours", "ours", true)]
        }
        fn cost(self, _: f64) -> f64 {
            0.0
        }
    }

    /// A row, and what memlane has in an even round and in an odd one. The peer has 1.
    #[derive(Clone, PartialEq, Debug)]
    struct Scripted(&'static str, [f64; 2]);

    impl Row for Scripted {
        type Part = Only;
        fn all() -> Vec<Scripted> {
            vec![
                Scripted("above", [2.0, 3.0]),
                Scripted("below", [0.5, 0.6]),
                Scripted("no aim", [0.5, 2.0]),
                Scripted("both sides", [0.9, 1.1]),
                Scripted("compared with", [1.0, 1.0]),
            ]
        }
        fn is_quick(&self) -> bool {
            true
        }
        fn part(&self) -> Only {
            Only
        }
        fn id(&self) -> String {
            self.0.to_owned()
        }
    }

    impl Suite for Play {
        type Row = Scripted;
        const NAME: &'static str = "play";
        const PROGRAMS: &'static [Asked] = &[];
        const MINDS_LOAD: bool = false;
        fn catalogue() -> Catalogue {
            let at_least = |row, to| goal(row, "rate", "ours", to, Aim::AtLeast(1.0));
            let peer = || To::System("peer");
            let other = To::Row("compared with".to_owned());
            Catalogue {
                suite: Play::NAME,
                views: Vec::new(),
                goals: vec![
                    at_least("above", peer()),
                    at_least("below", peer()),
                    at_least("both sides", other),
                ],
                memory: None,
                method: &[],
                published: Published::none(),
            }
        }
        fn settings(&self) -> Vec<(&'static str, String)> {
            Vec::new()
        }
        fn lacks(&self, _: Only, _: &System) -> Option<String> {
            None
        }
        fn measure(
            &mut self,
            turn: &mut Turn<'_, Scripted>,
            system: &System,
            rows: &[Scripted],
        ) -> anyhow::Result<()> {
            for row in rows {
                let rate = if system.ours {
                    row.1[turn.round % 2]
                } else {
                    1.0
                };
                turn.keep(row, system, &[("rate", "req/s", rate)]);
            }
            Ok(())
        }
    }
}
