//! What was measured, as a document: every figure with its spread, its ratio to the best peer of the same round, its aim.

use serde::Serialize;

use super::aims::{self, FLAT, Goal, Of};
use super::gap::{self, By, Event};
use super::plan::{Missing, Plan};
use super::published::Published;
use super::systems::{self, Bench};
use super::work::{self, Outcome, Pattern, Row};
use super::{Gap, Reading, Results};
use crate::beside::Run;
use crate::machine::Machine;
use crate::published::Aim;
use crate::reading;
use crate::spread::Spread;

/// `schema` of the JSON.
pub(super) const SCHEMA: &str = "memlane.bench.blocks/2";

/// What could not be measured in one round.
#[derive(Serialize, Clone, Debug)]
pub(super) struct Trouble {
    /// A system, or a scenario of the gap.
    pub(super) name: &'static str,
    /// From 1.
    pub(super) round: usize,
    pub(super) why: String,
}

impl Trouble {
    pub(super) fn new(name: &'static str, round: usize, error: &anyhow::Error) -> Trouble {
        Trouble {
            name,
            round: round + 1,
            why: format!("{error:#}"),
        }
    }

    /// Not a peer's.
    fn is_ours(&self) -> bool {
        let scenario = gap::all().iter().any(|known| known.id == self.name);
        scenario || systems::is_ours(self.name)
    }
}

/// What is printed.
#[derive(Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) run: Run,
    pub(super) volume_bytes: u64,
    /// Taken off the processor time of every figure by fio.
    pub(super) fio_fixed_cpu_seconds: f64,
    pub(super) method: [&'static str; 5],
    pub(super) machine: Machine,
    pub(super) rows: Vec<Line>,
    pub(super) jobs: Vec<Sweep>,
    pub(super) gaps: Vec<GapLine>,
    pub(super) published: Published,
    pub(super) missing: Vec<Missing>,
    pub(super) failed: Vec<Trouble>,
}

const METHOD: [&str; 5] = [
    "rounds alternate between the systems, each started anew with a volume that was written once; medians (lowest–highest)",
    "ratios are to the best peer of the same round, over whatever transport it was best",
    "latency is from the call that begins a request to its end, as the generator sees it; the API is measured by fio \
     (its aims are judged by these rows) and by memlane's own generator",
    "CPU is user and system time of all processes of a system (server, map, generator) for a million requests, less what \
     fio takes to begin and end; the kernel's own threads are not in it",
    "the gap is the time of the slowest of 4 requests under way while a path dies, less the time in which there was none",
];

/// One row of one system.
#[derive(Serialize)]
pub(super) struct Line {
    pub(super) row: &'static str,
    pub(super) about: String,
    pub(super) system: &'static str,
    pub(super) system_about: &'static str,
    pub(super) ours: bool,
    pub(super) tool: &'static str,
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// Requests per second, against the best peer's; null for peers, and if there was none.
    pub(super) rate_to_best_peer: Option<Spread>,
    /// Median latency, likewise.
    pub(super) p50_to_best_peer: Option<Spread>,
    pub(super) aim: Option<Goal>,
}

/// What a generator saw, over the rounds.
#[derive(Serialize)]
pub(super) struct Figures {
    pub(super) per_second: Spread,
    pub(super) p50_us: Spread,
    pub(super) p99_us: Spread,
    pub(super) cpu_seconds_per_million: Spread,
}

/// One system, with more and more jobs.
#[derive(Serialize)]
pub(super) struct Sweep {
    pub(super) pattern: Pattern,
    pub(super) system: &'static str,
    pub(super) system_about: &'static str,
    pub(super) ours: bool,
    pub(super) points: Vec<Point>,
    /// Processor time for a request with 64 jobs, against one job in the same round.
    pub(super) cpu_64_to_1: Option<Spread>,
    pub(super) aim: Option<Goal>,
}

/// One number of jobs.
#[derive(Serialize)]
pub(super) struct Point {
    pub(super) jobs: u32,
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// Requests per second, against one job in the same round.
    pub(super) rate_to_one_job: Option<Spread>,
}

/// One scenario of the gap.
#[derive(Serialize)]
pub(super) struct GapLine {
    pub(super) scenario: &'static str,
    pub(super) about: &'static str,
    pub(super) paths: usize,
    pub(super) event: Event,
    pub(super) by: By,
    pub(super) gap_ms: Spread,
    pub(super) silence_ms: Spread,
    pub(super) aim: Goal,
}

impl Report {
    pub(super) fn new(
        results: Results,
        plan: &Plan,
        bench: &Bench,
        machine: Machine,
        quick: bool,
    ) -> anyhow::Result<Report> {
        let readings = &results.readings;
        let rows = work::rows().iter().flat_map(|row| {
            let line = |system: &systems::System| line(readings, row, system);
            systems::all().iter().filter_map(line)
        });
        let patterns = [Pattern::Randread, Pattern::Randwrite];
        let jobs = patterns.iter().flat_map(|&pattern| {
            let sweep = move |system: &systems::System| sweep(readings, pattern, system);
            systems::all().iter().filter_map(sweep)
        });
        let gaps = gap::all().iter();
        let gaps = gaps.filter_map(|scenario| gap_line(&results.gaps, scenario));
        Ok(Report {
            run: Run::new(SCHEMA, quick, plan.rounds, plan.seconds)?,
            volume_bytes: bench.size,
            fio_fixed_cpu_seconds: bench.fio_cpu,
            method: METHOD,
            machine,
            rows: rows.collect(),
            jobs: jobs.collect(),
            gaps: gaps.collect(),
            published: Published::load()?,
            missing: results.missing,
            failed: results.trouble,
        })
    }

    /// Something of memlane's own could not be measured.
    pub(super) fn ours_failed(&self) -> bool {
        self.failed.iter().any(Trouble::is_ours)
    }
}

/// The figures of one row.
type Seen<'a> = reading::Seen<'a, &'static str, Outcome>;

fn figures(seen: &Seen<'_>, system: &str) -> Option<Figures> {
    let all = |get: fn(&Outcome) -> f64| seen.spread(system, |seen| Some(get(seen)));
    Some(Figures {
        per_second: all(|o| o.per_second)?,
        p50_us: all(|o| o.p50)?,
        p99_us: all(|o| o.p99)?,
        cpu_seconds_per_million: all(|o| o.cpu_seconds_per_million)?,
    })
}

fn line(readings: &[Reading], row: &Row, system: &systems::System) -> Option<Line> {
    let seen = Seen::of(readings, &row.id);
    let figures = figures(&seen, system.id)?;
    let ours = systems::is_ours(system.id);
    let ratios = |get: fn(&Outcome) -> f64, better: fn(f64, f64) -> f64| {
        let best = |round| {
            let all = seen.in_round(round);
            let peers = all.filter(|r| !systems::is_ours(r.system));
            peers.map(|r| get(&r.seen)).reduce(better)
        };
        let ratio = seen.ratio(system.id, |seen| Some(get(seen)), best);
        ratio.filter(|_| ours)
    };
    let rate = ratios(|o| o.per_second, f64::max);
    let p50 = ratios(|o| o.p50, f64::min);
    let aim = aims::aim(system.id, row).map(|(of, bound)| {
        let seen = if of == Of::P50 { &p50 } else { &rate };
        Goal::new(of, bound, seen.as_ref())
    });
    Some(Line {
        row: row.id,
        about: row.about(),
        system: system.id,
        system_about: system.about,
        ours,
        tool: system.tool.word(),
        figures,
        rate_to_best_peer: rate,
        p50_to_best_peer: p50,
        aim,
    })
}

fn sweep(readings: &[Reading], pattern: Pattern, system: &systems::System) -> Option<Sweep> {
    let rows: Vec<&Row> = work::sweep_rows()
        .iter()
        .filter(|row| row.pattern == pattern)
        .collect();
    let seen = |jobs: u32| {
        let row = rows.iter().find(|row| row.jobs == jobs);
        Seen::of(readings, &row.map_or("", |row| row.id))
    };
    // Against one job of the same round.
    let to_one = |jobs: u32, get: fn(&Outcome) -> f64| {
        let (one, get) = (seen(1), |seen: &Outcome| Some(get(seen)));
        let other = |round| one.value(system.id, round, get);
        seen(jobs).ratio(system.id, get, other)
    };
    let points = rows.iter().filter_map(|row| {
        Some(Point {
            jobs: row.jobs,
            figures: figures(&seen(row.jobs), system.id)?,
            rate_to_one_job: to_one(row.jobs, |o| o.per_second),
        })
    });
    let points: Vec<Point> = points.collect();
    let ours = systems::is_ours(system.id);
    let cost = to_one(64, |o| o.cpu_seconds_per_million);
    let aim = Goal::new(Of::Cost, Aim::AtMost(FLAT), cost.as_ref());
    (!points.is_empty()).then_some(Sweep {
        pattern,
        system: system.id,
        system_about: system.about,
        ours,
        points,
        cpu_64_to_1: cost,
        aim: ours.then_some(aim),
    })
}

fn gap_line(gaps: &[Gap], scenario: &gap::Scenario) -> Option<GapLine> {
    let seen: Vec<&Gap> = gaps
        .iter()
        .filter(|gap| gap.scenario == scenario.id)
        .collect();
    let all = |get: fn(&gap::Seen) -> f64| {
        let values: Vec<f64> = seen.iter().map(|gap| get(&gap.seen)).collect();
        Spread::of(&values)
    };
    let gap_ms = all(|seen| seen.gap_ms)?;
    let bound = Aim::AtMost(scenario.at_most_ms);
    Some(GapLine {
        scenario: scenario.id,
        about: scenario.about,
        paths: scenario.paths,
        event: scenario.event,
        by: seen.first()?.seen.by,
        aim: Goal::new(Of::Gap, bound, Some(&gap_ms)),
        gap_ms,
        silence_ms: all(|seen| seen.silence_ms)?,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::Wish;
    use super::*;
    use crate::proc::Scratch;
    use crate::shape;

    fn reading(row: &'static str, system: &'static str, round: usize, rate: f64) -> Reading {
        let seen = Outcome {
            requests: 1000,
            per_second: rate,
            p50: 1e6 / rate,
            p99: 2e6 / rate,
            cpu_seconds_per_million: 8e5 / rate,
        };
        Reading {
            row,
            system,
            round,
            seen,
        }
    }

    /// Three rounds: in the second qsd is the best peer, in the others nbdkit.
    pub(in crate::blocks) fn sample() -> Report {
        let mut results = Results::default();
        let rates = [
            ("fio-tcp", [300.0, 800.0, 500.0]),
            ("fio-local", [900.0, 1000.0, 900.0]),
            ("nbd-local", [130.0, 150.0, 110.0]),
            ("nbdkit", [100.0, 90.0, 100.0]),
            ("qsd", [50.0, 200.0, 80.0]),
        ];
        for row in [
            "randread-qd1",
            "randread-qd32",
            "randread-x1",
            "randread-x64",
        ] {
            for (system, rates) in rates {
                for (round, rate) in rates.into_iter().enumerate() {
                    results.readings.push(reading(row, system, round, rate));
                }
            }
        }
        for gap_ms in [80.0, 90.0, 130.0] {
            results.gaps.push(Gap {
                scenario: "gap-reset-2",
                seen: gap::Seen {
                    gap_ms,
                    silence_ms: 3.0,
                    by: By::Proxy,
                },
            });
        }
        results.missing.push(Missing {
            system: "nbd-server",
            why: "not installed".into(),
        });
        let error = anyhow::anyhow!("on purpose");
        results.trouble.push(Trouble::new("nbdkit-tcp", 0, &error));
        report(results)
    }

    fn report(results: Results) -> Report {
        let wish = Wish {
            quick: true,
            jobs: false,
            only: Vec::new(),
            rounds: 2,
            seconds: 1.0,
        };
        let bench = Bench {
            programs: crate::programs::Programs::nowhere(),
            scratch: Scratch::new().expect("a folder"),
            size: 1 << 20,
            fio_cpu: 0.1,
        };
        let plan = Plan::new(&wish).expect("a plan");
        Report::new(results, &plan, &bench, Machine::with_blocks(), true).expect("a report")
    }

    fn found<'a>(report: &'a Report, row: &str, system: &str) -> &'a Line {
        let mut rows = report.rows.iter();
        let found = rows.find(|line| line.row == row && line.system == system);
        found.expect("a line")
    }

    #[test]
    fn ratios_are_to_the_best_peer_of_the_same_round_whoever_that_was() {
        let report = sample();
        let tcp = found(&report, "randread-qd32", "fio-tcp");
        let rate = tcp.rate_to_best_peer.as_ref().expect("peers");
        assert_eq!(rate.values, [3.0, 4.0, 5.0]);
        // For latency the best is the lowest.
        let p50 = tcp.p50_to_best_peer.as_ref().expect("peers");
        let told: Vec<f64> = p50.values.iter().map(|v| (v * 1000.0).round()).collect();
        assert_eq!(told, [333.0, 250.0, 200.0]);
        let aim = tcp.aim.expect("an aim");
        assert_eq!((aim.of, aim.met), (Of::Rate, Some(true)));
        let nbd = found(&report, "randread-qd32", "nbd-local");
        assert_eq!(nbd.aim.expect("an aim").met, Some(false));
        let shallow = found(&report, "randread-qd1", "fio-tcp");
        let aim = shallow.aim.expect("an aim");
        assert_eq!((aim.of, aim.met), (Of::P50, Some(true)));
        let peer = found(&report, "randread-qd1", "nbdkit");
        assert!(peer.rate_to_best_peer.is_none() && peer.aim.is_none());
    }

    #[test]
    fn without_a_peer_there_is_no_ratio_and_no_verdict() {
        let mut results = Results::default();
        let row = reading("randread-qd32", "fio-tcp", 0, 100.0);
        results.readings.push(row);
        let report = report(results);
        let line = found(&report, "randread-qd32", "fio-tcp");
        assert!(line.rate_to_best_peer.is_none());
        assert_eq!(line.aim.expect("an aim").met, None);
    }

    #[test]
    fn the_cost_of_many_jobs_is_told_against_one_job_of_the_same_round() {
        let mut results = Results::default();
        for (round, (one, many)) in [(100.0, 50.0), (100.0, 100.0)].into_iter().enumerate() {
            results
                .readings
                .push(reading("randwrite-x1", "fio-tcp", round, one));
            results
                .readings
                .push(reading("randwrite-x64", "fio-tcp", round, many));
        }
        let report = report(results);
        let [sweep] = &report.jobs[..] else {
            panic!("one sweep")
        };
        let jobs: Vec<u32> = sweep.points.iter().map(|point| point.jobs).collect();
        assert_eq!(jobs, [1, 64]);
        let cost = sweep.cpu_64_to_1.as_ref().expect("both ends");
        assert_eq!(cost.values, [2.0, 1.0]);
        assert_eq!(sweep.aim.expect("an aim").met, Some(false));
        let rate = sweep.points[1].rate_to_one_job.as_ref().expect("one job");
        assert_eq!(rate.values, [0.5, 1.0]);
    }

    #[test]
    fn the_gap_is_judged_by_its_median() {
        let report = sample();
        let [gap] = &report.gaps[..] else {
            panic!("one scenario")
        };
        assert_eq!((gap.gap_ms.median, gap.aim.met), (90.0, Some(true)));
    }

    #[test]
    fn only_what_is_ours_makes_the_run_fail() {
        assert!(!sample().ours_failed(), "nbdkit's trouble is nbdkit's");
        for name in ["fio-tcp", "fuse", "gap-cut-2"] {
            let mut results = Results::default();
            let error = anyhow::anyhow!("on purpose");
            results.trouble.push(Trouble::new(name, 0, &error));
            assert!(report(results).ours_failed(), "{name}");
        }
    }

    #[test]
    fn the_documented_shape_is_the_shape_of_the_document() {
        let documented = shape::documented("blocks", SCHEMA);
        let maps = [
            ".machine.versions",
            ".published.sources",
            ".published.series[].points",
        ];
        let value = serde_json::to_value(sample()).expect("json");
        assert_eq!(shape::of(&value, &maps), documented);
    }
}
