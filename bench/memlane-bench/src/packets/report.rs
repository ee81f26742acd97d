//! What was measured, as a document: every figure with its spread, ratios of the same round, aims.

use serde::Serialize;

use super::aims::aims;
use super::plan::{Missing, Plan};
use super::published;
use super::rows::{OLDER, Part, Row, TESTPMD, VETH};
use super::{Bench, Outcome, Results};
use crate::beside::plan::{Part as _, Row as _};
use crate::beside::{self, Goal, Published, Ratio, Run, System, Trouble};
use crate::machine::Machine;
use crate::reading;
use crate::spread::Spread;

/// `schema` of the JSON.
pub(super) const SCHEMA: &str = "memlane.bench.packets/1";

/// What is printed.
#[derive(Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) run: Run,
    /// Of the bulk part; the machine's may be another.
    pub(super) bulk_congestion_control: String,
    pub(super) method: [&'static str; 7],
    pub(super) machine: Machine,
    pub(super) rows: Vec<Line>,
    pub(super) published: Published,
    pub(super) missing: Vec<Missing>,
    pub(super) failed: Vec<Trouble<Part>>,
}

const METHOD: [&str; 7] = [
    "rounds alternate between the systems; medians (lowest–highest); ratios are of the same round; × older: to the better of \
     copy and map",
    "frames: two processes, who sends on one CPU, who receives on another one; both look for 20 µs before they sleep; rates by \
     the receiver's count and clock, after 50 ms of warm-up; each frame's length, number and last byte are checked",
    "a sender writes each frame in its place, all of it; when a receiver is done with a frame it has one copy of it in memory of \
     its own, in every mode: its own copy, or the kernel's (a back in mode copy, which makes no second one)",
    "TX: the front sends and the back receives, RX: the other way round; burst: frames that are sent before the other side is \
     shown them, and taken at a time",
    "CPU: user and system time of all processes of a row (for TCP: of what joins, and of both iperf3); the kernel's own threads \
     are not in it",
    "TCP: iperf3 between two network namespaces, client in the front's; TAP devices with vnet headers, TCP in frames of up to \
     64 KiB; UDP: as fast as the sender can, counted is what arrives",
    "memif: testpmd txonly and rxonly, one CPU each, by the receiver's count and clock; the lane is this run's persistent mode, \
     front as client, for comparison",
];

/// One row.
#[derive(Serialize)]
pub(super) struct Line {
    pub(super) row: String,
    pub(super) about: String,
    #[serde(flatten)]
    pub(super) of: Row,
    /// Of values.
    pub(super) unit: &'static str,
    /// Of CPU.
    pub(super) cpu_unit: &'static str,
    pub(super) systems: Vec<Cell>,
    pub(super) ratios: Vec<Ratio>,
    pub(super) aims: Vec<Goal>,
}

/// One system in a row.
#[derive(Serialize)]
pub(super) struct Cell {
    pub(super) system: &'static str,
    pub(super) about: &'static str,
    pub(super) ours: bool,
    pub(super) value: Spread,
    /// Null where it says nothing, as an end never sleeps.
    pub(super) cpu: Option<Spread>,
}

impl Line {
    pub(super) fn cell(&self, system: &str) -> Option<&Cell> {
        self.systems.iter().find(|cell| cell.system == system)
    }

    pub(super) fn ratio(&self, of: &str, to: &str) -> Option<&Spread> {
        beside::ratio(&self.ratios, of, to)
    }
}

impl Report {
    pub(super) fn new(
        results: Results,
        plan: &Plan,
        bench: &Bench,
        machine: Machine,
        quick: bool,
    ) -> anyhow::Result<Report> {
        let rows = plan.rows.iter();
        let rows = rows.filter_map(|row| line(&Seen::of(&results.readings, row), row));
        Ok(Report {
            run: Run::new(SCHEMA, quick, plan.rounds, plan.seconds)?,
            bulk_congestion_control: bench.congestion_control.clone(),
            method: METHOD,
            machine,
            rows: rows.collect(),
            published: published::load()?,
            missing: results.missing,
            failed: results.trouble,
        })
    }

    pub(super) fn lines(&self, part: Part) -> Vec<&Line> {
        let lines = self.rows.iter();
        lines.filter(|line| line.of.part == part).collect()
    }

    /// Something of memlane's own could not be measured.
    pub(super) fn ours_failed(&self) -> bool {
        self.failed.iter().any(Trouble::is_ours)
    }
}

/// Which ratios a part has.
fn compared(part: Part) -> &'static [(&'static str, &'static str)] {
    match part {
        Part::Table => &[
            ("persistent", "copy"),
            ("persistent", "map"),
            ("persistent", OLDER),
        ],
        Part::Bulk => &[
            ("persistent", VETH),
            ("map", VETH),
            ("copy", VETH),
            ("copier", VETH),
            ("persistent", "copier"),
            ("persistent", OLDER),
        ],
        Part::Memif => &[
            ("to-testpmd", TESTPMD),
            ("from-testpmd", TESTPMD),
            ("memlane", TESTPMD),
            ("lane", TESTPMD),
        ],
    }
}

/// The figures of one row.
type Seen<'a> = reading::Seen<'a, Row, Outcome>;

fn line(seen: &Seen<'_>, row: &Row) -> Option<Line> {
    let all = row.part.systems().iter();
    let systems: Vec<Cell> = all.filter_map(|system| cell(seen, system)).collect();
    let pairs = compared(row.part).iter();
    let ratios = pairs.filter_map(|&(of, to)| {
        let times = ratio(seen, of, to)?;
        Some(Ratio { of, to, times })
    });
    let goals = aims(row)
        .into_iter()
        .map(|bound| Goal::new(bound, ratio(seen, bound.0, bound.1).as_ref()));
    let [unit, cpu_unit] = match row.part {
        Part::Bulk => ["Gbit/s", "s/GB"],
        _ => ["frames/s", "ns/frame"],
    };
    (!systems.is_empty()).then(|| Line {
        row: row.id(),
        about: row.about(),
        of: *row,
        unit,
        cpu_unit,
        ratios: ratios.collect(),
        aims: goals.collect(),
        systems,
    })
}

fn value(seen: &Outcome) -> Option<f64> {
    Some(seen.value)
}

fn cell(seen: &Seen<'_>, system: &System) -> Option<Cell> {
    Some(Cell {
        system: system.id,
        about: system.about,
        ours: system.ours,
        value: seen.spread(system.id, value)?,
        cpu: seen.spread(system.id, |seen| seen.cpu),
    })
}

fn ratio(seen: &Seen<'_>, of: &str, to: &str) -> Option<Spread> {
    let in_round = |system, round| seen.value(system, round, value);
    seen.ratio(of, value, |round| match to {
        // Both must be there: which one is better is the question.
        OLDER => Some(in_round("copy", round)?.max(in_round("map", round)?)),
        to => in_round(to, round),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::Wish;
    use super::*;
    use crate::reading::Reading;
    use crate::shape;

    fn plan() -> Plan {
        let wish = Wish {
            quick: false,
            only: Vec::new(),
            rounds: 3,
            seconds: 1.0,
        };
        Plan::new(&wish).expect("a plan")
    }

    fn row(id: &str) -> Row {
        let plan = plan();
        let found = plan.rows.iter().find(|row| row.id() == id);
        *found.expect("a row")
    }

    fn report(results: Results) -> Report {
        let machine = Machine::with_packets();
        Report::new(results, &plan(), &Bench::idle(), machine, false).expect("a report")
    }

    fn add(results: &mut Results, id: &str, system: &'static str, values: &[f64]) {
        for (round, &value) in values.iter().enumerate() {
            results.readings.push(Reading {
                row: row(id),
                system,
                round,
                seen: Outcome {
                    value,
                    cpu: (row(id).part != Part::Memif).then_some(1e9 / value),
                },
            });
        }
    }

    pub(in crate::packets) fn sample() -> Report {
        let mut results = Results::default();
        for id in ["tx-64-b1", "tx-64-b32", "tx-64-b32-q2", "rx-65535-b1"] {
            add(&mut results, id, "persistent", &[10e6, 12e6, 9e6]);
            add(&mut results, id, "map", &[1e5, 1e5, 1e5]);
            add(&mut results, id, "copy", &[1e6, 2e6, 1e6]);
        }
        for id in ["tcp-tx-1", "udp-rx"] {
            for (system, rate) in [("persistent", 9.0), ("map", 4.0), ("copy", 5.0)] {
                add(&mut results, id, system, &[rate, rate, rate]);
            }
            add(&mut results, id, "copier", &[6.0, 6.0, 6.0]);
            add(&mut results, id, VETH, &[10.0, 20.0, 10.0]);
        }
        add(&mut results, "memif-tx-64", TESTPMD, &[5e6, 5e6, 5e6]);
        add(&mut results, "memif-tx-64", "lane", &[6e6, 4e6, 5.5e6]);
        results.missing.push(Missing {
            part: Part::Memif,
            system: "to-testpmd",
            why: "not installed".into(),
        });
        results.trouble.push(trouble(Part::Bulk, "copier"));
        report(results)
    }

    fn trouble(part: Part, system: &'static str) -> Trouble<Part> {
        Trouble {
            part,
            row: "tcp-tx-1".into(),
            system,
            round: 1,
            why: "on purpose".into(),
        }
    }

    fn found<'a>(report: &'a Report, id: &str) -> &'a Line {
        let found = report.rows.iter().find(|line| line.row == id);
        found.expect("a line")
    }

    #[test]
    fn ratios_are_of_the_same_round_and_the_older_mode_is_the_better_one() {
        let report = sample();
        let line = found(&report, "tx-64-b32");
        let copy = line.ratio("persistent", "copy").expect("both");
        assert_eq!(copy.values, [10.0, 6.0, 9.0]);
        let older = line.ratio("persistent", OLDER).expect("all");
        assert_eq!(older.values, copy.values, "map is worse");
        let met: Vec<_> = line.aims.iter().map(|aim| (aim.to, aim.met)).collect();
        assert_eq!(
            met,
            [
                ("copy", Some(true)),
                ("map", Some(true)),
                (OLDER, Some(true))
            ]
        );
        let tcp = found(&report, "tcp-tx-1");
        let veth = tcp.ratio("persistent", VETH).expect("both");
        assert_eq!((veth.median, veth.min), (0.9, 0.45));
        let memif = found(&report, "memif-tx-64");
        let lane = memif.ratio("lane", TESTPMD).expect("both");
        assert_eq!(lane.median, 1.1);
        assert!(memif.ratio("memlane", TESTPMD).is_none());
        let met: Vec<_> = memif.aims.iter().map(|aim| aim.met).collect();
        assert_eq!(met, [None, None, None, Some(true)]);
    }

    #[test]
    fn without_both_older_modes_nobody_is_better_than_the_better_one() {
        let mut results = Results::default();
        add(&mut results, "tx-64-b1", "persistent", &[10e6]);
        add(&mut results, "tx-64-b1", "map", &[1e5]);
        let report = report(results);
        let line = found(&report, "tx-64-b1");
        assert!(line.ratio("persistent", OLDER).is_none());
        assert!(line.ratio("persistent", "map").is_some());
    }

    #[test]
    fn only_what_is_ours_makes_the_run_fail() {
        assert!(!sample().ours_failed(), "the copier is nobody's");
        for (part, system) in [(Part::Bulk, "map"), (Part::Memif, "to-testpmd")] {
            let mut results = Results::default();
            results.trouble.push(trouble(part, system));
            assert!(report(results).ours_failed(), "{system}");
        }
    }

    #[test]
    fn the_documented_shape_is_the_shape_of_the_document() {
        let documented = shape::documented("packets", SCHEMA);
        let maps = [".machine.versions", ".published.sources"];
        let value = serde_json::to_value(sample()).expect("json");
        assert_eq!(shape::of(&value, &maps), documented);
    }
}
