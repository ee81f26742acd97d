//! What is measured of whom: rows, in three parts, and the systems of each.

use serde::{Deserialize, Serialize};

use super::systems;
use crate::catalogue::{System, system};
use crate::runner::plan;
use crate::runner::record::Figure;

/// Which way the data goes, and in which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Pattern {
    /// Random reads.
    Randread,
    /// Random writes.
    Randwrite,
    /// Reads in order.
    Read,
    /// Writes in order.
    Write,
}

impl Pattern {
    /// As fio calls it, and our own generator.
    pub(in crate::suites) fn word(self) -> &'static str {
        match self {
            Pattern::Randread => "randread",
            Pattern::Randwrite => "randwrite",
            Pattern::Read => "read",
            Pattern::Write => "write",
        }
    }
}

/// A part of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Requests of several kinds.
    Rows,
    /// More and more jobs on one volume.
    Jobs,
    /// The time without I/O when a path dies.
    Gap,
}

/// Whoever breaks the path: the row decides.
const GAP: System = system("gap", "", true);

impl plan::Part for Part {
    const ALL: &'static [Self] = &[Part::Rows, Part::Jobs, Part::Gap];

    fn word(self) -> &'static str {
        match self {
            Part::Rows => "rows",
            Part::Jobs => "jobs",
            Part::Gap => GAP.id,
        }
    }

    fn systems(self) -> Vec<System> {
        match self {
            Part::Rows | Part::Jobs => systems::ALL.iter().map(|one| one.system()).collect(),
            Part::Gap => vec![GAP],
        }
    }

    fn cost(self, seconds: f64) -> f64 {
        match self {
            // A generator takes a little beyond its measurement.
            Part::Rows | Part::Jobs => seconds + 0.6,
            Part::Gap => SCENARIOS.iter().map(|one| one.seconds + 1.0).sum::<f64>() / 4.0,
        }
    }

    fn joining(self) -> f64 {
        match self {
            // A system is started, and its volume is filled.
            Part::Rows | Part::Jobs => 1.6,
            Part::Gap => 0.0,
        }
    }

    fn at_once(self) -> bool {
        self != Part::Gap
    }

    fn group(system: &System) -> Option<&'static str> {
        match (*system == GAP, system.ours) {
            (true, _) => None,
            (_, true) => Some("memlane"),
            (_, false) => Some("peers"),
        }
    }

    fn has_by_default(self, system: &System, quick: bool) -> bool {
        let Some(served) = systems::known(system.id) else {
            return true;
        };
        (!quick || served.is_quick) && (self != Part::Jobs || served.in_sweep)
    }

    fn is_default(self, quick: bool, some_system: bool) -> bool {
        self != Part::Jobs || !quick && !some_system
    }
}

/// A row.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Row {
    Work(Work),
    Gap(Scenario),
}

impl plan::Row for Row {
    type Part = Part;

    fn all() -> Vec<Row> {
        let works = WORKS.into_iter().chain(sweep()).map(Row::Work);
        works.chain(SCENARIOS.map(Row::Gap)).collect()
    }

    fn is_quick(&self) -> bool {
        match self {
            Row::Work(work) if work.is_sweep() => QUICK_SWEEP.contains(&work.jobs),
            Row::Work(work) => QUICK.contains(&work.name),
            Row::Gap(_) => true,
        }
    }

    fn part(&self) -> Part {
        match self {
            Row::Work(work) if work.is_sweep() => Part::Jobs,
            Row::Work(_) => Part::Rows,
            Row::Gap(_) => Part::Gap,
        }
    }

    fn id(&self) -> String {
        match self {
            Row::Work(work) => work.id(),
            Row::Gap(scenario) => scenario.id.to_owned(),
        }
    }
}

/// A workload.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::suites) struct Work {
    /// None, if it is a step of the sweep.
    name: &'static str,
    pub(in crate::suites) pattern: Pattern,
    pub(in crate::suites) block: u32,
    pub(in crate::suites) depth: u32,
    pub(in crate::suites) jobs: u32,
}

impl Work {
    /// For `--only`.
    pub(in crate::suites) fn id(&self) -> String {
        match self.name {
            "" => format!("{}-x{}", self.pattern.word(), self.jobs),
            name => name.to_owned(),
        }
    }

    fn is_sweep(&self) -> bool {
        self.name.is_empty()
    }

    /// For people.
    pub(in crate::suites) fn about(&self) -> String {
        let size = match self.block {
            LARGE => "1 MiB",
            _ => "4 KiB",
        };
        let what = match self.pattern {
            Pattern::Randread => "random read",
            Pattern::Randwrite => "random write",
            Pattern::Read => "read",
            Pattern::Write => "write",
        };
        let jobs = match self.jobs {
            1 => String::new(),
            jobs => format!(", {jobs} jobs"),
        };
        format!("{size} {what}, depth {}{jobs}", self.depth)
    }
}

/// A workload of that name; without one, a step of the sweep over jobs.
pub(in crate::suites) const fn work(
    name: &'static str,
    pattern: Pattern,
    [block, depth, jobs]: [u32; 3],
) -> Work {
    Work {
        name,
        pattern,
        block,
        depth,
        jobs,
    }
}

pub(in crate::suites) const SMALL: u32 = 4096;
pub(in crate::suites) const LARGE: u32 = 1 << 20;

pub(super) const WORKS: [Work; 10] = [
    work("randread-qd1", Pattern::Randread, [SMALL, 1, 1]),
    work("randread-qd32", Pattern::Randread, [SMALL, 32, 1]),
    work("randread-qd1-jobs8", Pattern::Randread, [SMALL, 1, 8]),
    work("randread-qd32-jobs8", Pattern::Randread, [SMALL, 32, 8]),
    work("seqread", Pattern::Read, [LARGE, 8, 1]),
    work("randwrite-qd1", Pattern::Randwrite, [SMALL, 1, 1]),
    work("randwrite-qd32", Pattern::Randwrite, [SMALL, 32, 1]),
    work("randwrite-qd1-jobs8", Pattern::Randwrite, [SMALL, 1, 8]),
    work("randwrite-qd32-jobs8", Pattern::Randwrite, [SMALL, 32, 8]),
    work("seqwrite", Pattern::Write, [LARGE, 8, 1]),
];
const QUICK: [&str; 4] = ["randread-qd1", "randread-qd32", "randwrite-qd32", "seqread"];

/// Writes the whole volume once.
pub(super) const FILL: Work = work("fill", Pattern::Write, [LARGE, 8, 1]);

/// Requests that each job of the sweep has under way: 64 jobs fill half of a server's queue.
pub(in crate::suites) const SWEEP_DEPTH: u32 = 4;
/// One volume, more and more jobs: where mainline's RNBD falls behind. The steps of the seed's tables.
const JOBS: [u32; 9] = [1, 8, 16, 24, 32, 40, 48, 56, 64];
const QUICK_SWEEP: [u32; 3] = [1, 16, 64];

/// The sweep over jobs.
pub(super) fn sweep() -> impl Iterator<Item = Work> {
    let patterns = [Pattern::Randread, Pattern::Randwrite].into_iter();
    patterns.flat_map(|pattern| JOBS.map(|jobs| work("", pattern, [SMALL, SWEEP_DEPTH, jobs])))
}

/// What happens to a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// Its connections are reset.
    Reset,
    /// Nothing arrives any more, and nobody is told.
    Cut,
}

/// One thing that happens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Scenario {
    /// For `--only`.
    pub(super) id: &'static str,
    pub(super) about: &'static str,
    pub(super) paths: usize,
    pub(super) event: Event,
    /// The aim: milliseconds, at most.
    pub(super) at_most_ms: f64,
    /// How long the generator runs, in seconds.
    pub(super) seconds: f64,
}

pub(super) const SCENARIOS: [Scenario; 4] = [
    Scenario {
        id: "gap-reset-2",
        about: "one of 2 paths is reset and stays away",
        paths: 2,
        event: Event::Reset,
        at_most_ms: 100.0,
        seconds: 1.5,
    },
    Scenario {
        id: "gap-reset-1",
        about: "the only path is reset and can be taken again",
        paths: 1,
        event: Event::Reset,
        at_most_ms: 100.0,
        seconds: 1.5,
    },
    Scenario {
        id: "gap-cut-2",
        about: "one of 2 paths falls silent",
        paths: 2,
        event: Event::Cut,
        at_most_ms: 1000.0,
        seconds: 3.5,
    },
    Scenario {
        id: "gap-cut-1",
        about: "the only path is silent for 2 s; counted from when it is back",
        paths: 1,
        event: Event::Cut,
        at_most_ms: 1000.0,
        seconds: 6.0,
    },
];

/// What a generator has seen.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub(crate) struct Outcome {
    /// Requests that were answered.
    pub(crate) requests: u64,
    /// Requests.
    pub(crate) per_second: f64,
    /// Microseconds.
    pub(crate) p50: f64,
    /// Microseconds.
    pub(crate) p99: f64,
    /// Of the processor, for a million requests, all processes of the system together.
    pub(crate) cpu_seconds_per_million: f64,
}

impl Outcome {
    pub(in crate::suites) fn figures(&self) -> [Figure; 4] {
        [
            ("rate", "req/s", self.per_second),
            ("p50", "µs", self.p50),
            ("p99", "µs", self.p99),
            ("cpu", "s/M requests", self.cpu_seconds_per_million),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::plan::tests::{counts, halves_make_a_whole, planned};
    use super::plan::{Plan, Row as _};
    use super::*;

    /// Rows and systems: of the table, of the sweep, of the gap.
    fn of(only: &[&str], quick: bool) -> Vec<(usize, usize)> {
        counts(&planned::<Row>(only, quick))
    }

    fn ids(plan: &Plan<Row>, part: Part) -> Vec<&str> {
        let systems = plan.systems_of(part).iter();
        systems.map(|system| system.id).collect()
    }

    #[test]
    fn what_a_short_run_leaves_out_is_in_a_run_of_the_rest() {
        halves_make_a_whole::<Row>();
    }

    #[test]
    fn rows_have_names_of_their_own() {
        let rows = Row::all();
        for (index, row) in rows.iter().enumerate() {
            let twice = rows[..index].iter().any(|other| other.id() == row.id());
            assert!(!twice, "{}", row.id());
        }
        assert!(
            QUICK
                .iter()
                .all(|id| WORKS.iter().any(|row| row.id() == *id))
        );
        assert!(QUICK_SWEEP.iter().all(|jobs| JOBS.contains(jobs)));
    }

    #[test]
    fn everything_is_measured_when_nothing_is_named() {
        assert_eq!(of(&[], false), [(10, 24), (18, 8), (4, 1)]);
    }

    #[test]
    fn a_short_run_has_the_telling_rows_and_the_gap_and_takes_less_than_five_minutes() {
        assert_eq!(of(&[], true), [(4, 20), (0, 8), (4, 1)]);
        let time = planned::<Row>(&[], true).time(2);
        assert!(time < Duration::from_secs(300), "{time:?}");
        let plan = planned::<Row>(&["qsd-tcp"], true);
        assert_eq!(
            ids(&plan, Part::Rows),
            ["qsd-tcp"],
            "asked for, it is there"
        );
        let rows = of(&["jobs"], true).into_iter().map(|(rows, _)| rows);
        assert_eq!(rows.collect::<Vec<_>>(), [0, 6, 0]);
    }

    #[test]
    fn names_narrow_what_they_name_and_nothing_else() {
        let rows = |only: &[&str]| -> Vec<usize> {
            of(only, false).into_iter().map(|(rows, _)| rows).collect()
        };
        let plan = planned::<Row>(&["nbdkit", "seqread"], false);
        assert_eq!(ids(&plan, Part::Rows), ["nbdkit"]);
        assert_eq!(rows(&["nbdkit", "seqread"]), [1, 0, 0]);
        assert_eq!(rows(&["peers"]), [10, 0, 0]);
        assert_eq!(of(&["peers"], false)[0], (10, 11));
        assert_eq!(rows(&["gap"]), [0, 0, 4]);
        assert_eq!(rows(&["gap-cut-1", "rows", "fuse"]), [10, 0, 1]);
        // A system that is not swept by itself is, when it is named.
        let plan = planned::<Row>(&["jobs", "fuse"], false);
        assert_eq!(ids(&plan, Part::Jobs), ["fuse"]);
        assert_eq!(rows(&["jobs", "fuse"]), [0, 18, 0]);
    }

    #[test]
    fn what_is_missing_is_left_out_and_named_once() {
        let lacks = |_, system: &System| (system.id == "qsd").then(|| "not installed".to_owned());
        let mut plan = planned::<Row>(&[], false);
        assert_eq!(plan.without(lacks).len(), 1);
        let left = [Part::Rows, Part::Jobs].map(|part| plan.systems_of(part).len());
        assert_eq!(left, [23, 7]);
        // Nobody asked for it.
        assert!(planned::<Row>(&["nbdkit"], false).without(lacks).is_empty());
    }
}
