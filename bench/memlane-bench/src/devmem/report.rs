//! What was measured, as a document: every figure with its spread, ratios of the same round, aims.

use serde::Serialize;

use super::aims::aims;
use super::plan::{Missing, Plan};
use super::published;
use super::rows::{Part, REGION, Row};
use super::sinks::{RECV_COPY, SPLICE};
use super::sizes::Sizes;
use super::tokens::{Cost, WAYS};
use super::{Bench, Outcome, Results};
use crate::beside::plan::Part as _;
use crate::beside::{self, Goal, Published, Ratio, Run, System, Trouble};
use crate::machine::Machine;
use crate::reading;
use crate::spread::Spread;

/// `schema` of the JSON.
pub(super) const SCHEMA: &str = "memlane.bench.devmem/1";

/// What is printed.
#[derive(Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) run: Run,
    /// Of TCP; the machine's may be another.
    pub(super) stream_congestion_control: String,
    pub(super) region_bytes: u64,
    pub(super) method: [&'static str; 7],
    pub(super) machine: Machine,
    pub(super) rows: Vec<Line>,
    pub(super) tokens: Vec<TokenLine>,
    pub(super) published: Published,
    pub(super) missing: Vec<Missing>,
    pub(super) failed: Vec<Trouble<Part>>,
}

const METHOD: [&str; 7] = [
    "rounds alternate between the systems; medians (lowest–highest); ratios are of the same round",
    "two processes, who sends on one CPU, who receives on another one, TCP over 127.0.0.1, one stream; the lane's sender is \
     memlane's, the others' any program; rates by the receiver's clock, after 0.1 s in which every byte is looked at; after that \
     the last byte of what came together is",
    "copies: bytes that were copied for each byte of payload, at both ends, as counted where it happens: by the kernel (what \
     sendmsg, recvmsg and splice have moved between its buffers and memory), and by the programs (what bounced, and what the \
     lane's sender has written into the region)",
    "CPU: user and system time of both processes for a gigabyte; of these, the receiver's. Threads of the kernel are not in it, \
     and soft interrupts count for whoever was running, on one machine the sender",
    "recv() + copy: recv() into 256 KiB, the same again and again, then memcpy() into a mapped memfd; splice: through a pipe of \
     1 MiB into that memfd; both go round as many bytes of it as the lane's receiver keeps before it hands them back",
    "tokens: 4096 fragments of a chunk each are handed back by so many calls as it takes; median of 12 times, of each round",
    "sizes: half of all fragments are of at least so many bytes; powers of two, all of a run",
];

/// One row.
#[derive(Serialize)]
pub(super) struct Line {
    #[serde(flatten)]
    pub(super) of: Row,
    pub(super) systems: Vec<Cell>,
    /// Of throughput.
    pub(super) ratios: Vec<Ratio>,
    /// Of the receiver's processor time for a gigabyte: less is better.
    pub(super) receiver_cpu_ratios: Vec<Ratio>,
    pub(super) aims: Vec<Goal>,
}

/// One system in a row.
#[derive(Serialize)]
pub(super) struct Cell {
    pub(super) system: &'static str,
    pub(super) about: &'static str,
    pub(super) ours: bool,
    pub(super) bytes_per_second: Spread,
    pub(super) cpu_s_per_gb: Option<Spread>,
    pub(super) receiver_cpu_s_per_gb: Option<Spread>,
    pub(super) copied_by_kernel: Option<Spread>,
    pub(super) copied_by_program: Option<Spread>,
    /// Of all rounds; null where there are none.
    pub(super) fragments: Option<Sizes>,
}

/// One way to hand tokens back.
#[derive(Serialize)]
pub(super) struct TokenLine {
    pub(super) ranges: u32,
    pub(super) tokens: u32,
    pub(super) ns_per_token: Spread,
}

impl Line {
    pub(super) fn cell(&self, system: &str) -> Option<&Cell> {
        self.systems.iter().find(|cell| cell.system == system)
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
        let seen = results.seen;
        let rows = plan.rows.iter();
        let rows = rows.filter_map(|row| line(&Seen::of(&seen.readings, row), row));
        Ok(Report {
            run: Run::new(SCHEMA, quick, plan.rounds, plan.seconds)?,
            stream_congestion_control: bench.congestion_control.clone(),
            region_bytes: REGION,
            method: METHOD,
            machine,
            rows: rows.collect(),
            tokens: token_lines(&results.tokens),
            published: published::load()?,
            missing: seen.missing,
            failed: seen.trouble,
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

/// Which ratios a part has: of each of ours, to each of these.
fn compared(part: Part) -> &'static [&'static str] {
    match part {
        Part::Stream => &[RECV_COPY, SPLICE],
        Part::Tokens => &[],
        Part::Python => &["rust", "recv-into", "recv-into-fresh"],
    }
}

/// The figures of one row.
type Seen<'a> = reading::Seen<'a, Row, Outcome>;

fn line(seen: &Seen<'_>, row: &Row) -> Option<Line> {
    let all = row.part.systems().iter();
    let systems: Vec<Cell> = all.clone().filter_map(|of| cell(seen, of)).collect();
    let ratios = |get: fn(&Outcome) -> Option<f64>| -> Vec<Ratio> {
        let ours = all.clone().filter(|system| system.ours);
        let pairs = ours.flat_map(|of| compared(row.part).iter().map(|to| (of.id, *to)));
        let told = pairs.filter(|(of, to)| of != to).filter_map(|(of, to)| {
            let times = seen.ratio(of, get, |round| seen.value(to, round, get))?;
            Some(Ratio { of, to, times })
        });
        told.collect()
    };
    let rates = ratios(|seen| Some(seen.value));
    let goals = aims(row).into_iter().map(|bound| {
        let seen = beside::ratio(&rates, bound.0, bound.1);
        Goal::new(bound, seen)
    });
    let goals: Vec<Goal> = goals.collect();
    (!systems.is_empty()).then(|| Line {
        of: *row,
        aims: goals,
        receiver_cpu_ratios: ratios(|seen| seen.receiver_cpu),
        ratios: rates,
        systems,
    })
}

fn cell(seen: &Seen<'_>, system: &System) -> Option<Cell> {
    let all = |get: fn(&Outcome) -> Option<f64>| seen.spread(system.id, get);
    let ours = seen.by(system.id);
    let fragments = ours.filter_map(|r| r.seen.fragments.clone());
    Some(Cell {
        system: system.id,
        about: system.about,
        ours: system.ours,
        bytes_per_second: all(|seen| Some(seen.value))?,
        cpu_s_per_gb: all(|seen| seen.cpu),
        receiver_cpu_s_per_gb: all(|seen| seen.receiver_cpu),
        copied_by_kernel: all(|seen| seen.copied_by_kernel),
        copied_by_program: all(|seen| seen.copied_by_program),
        fragments: fragments.reduce(|all, more| all.and(&more)),
    })
}

fn token_lines(rounds: &[Vec<Cost>]) -> Vec<TokenLine> {
    let line = |(ranges, tokens): (u32, u32)| {
        let all = rounds.iter().flatten();
        let of = all.filter(|cost| (cost.ranges, cost.tokens) == (ranges, tokens));
        let values: Vec<f64> = of.map(|cost| cost.ns_per_token).collect();
        Some(TokenLine {
            ranges,
            tokens,
            ns_per_token: Spread::of(&values)?,
        })
    };
    WAYS.into_iter().filter_map(line).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::Wish;
    use super::super::rows::ROWS;
    use super::super::sizes::Counting;
    use super::*;
    use crate::reading::Reading;
    use crate::shape;

    fn report(results: Results) -> Report {
        let wish = Wish {
            quick: false,
            only: Vec::new(),
            rounds: 3,
            seconds: 1.0,
        };
        let plan = Plan::new(&wish).expect("a plan");
        Report::new(
            results,
            &plan,
            &Bench::idle(),
            Machine::with_devmem(),
            false,
        )
        .expect("a report")
    }

    fn add(results: &mut Results, row: &str, system: &'static str, rates: [f64; 3]) {
        let row = ROWS.iter().find(|known| known.row == row).expect("a row");
        let mut sizes = Counting::default();
        sizes.count(65536);
        for (round, rate) in rates.into_iter().enumerate() {
            let ours = row.part.systems().iter().any(|s| s.id == system && s.ours);
            results.seen.readings.push(Reading {
                row: *row,
                system,
                round,
                seen: Outcome {
                    value: rate * 1e9,
                    cpu: Some(0.4 / rate),
                    receiver_cpu: Some(0.2 / rate),
                    copied_by_kernel: Some(2.0),
                    copied_by_program: Some(0.0),
                    fragments: ours.then(|| sizes.seen()),
                },
            });
        }
    }

    pub(in crate::devmem) fn sample() -> Report {
        let mut results = Results::default();
        for row in ["kept-1m", "kept-32m"] {
            add(&mut results, row, "mapped", [5.0, 8.0, 6.0]);
            add(&mut results, row, "staged", [4.0, 4.0, 4.0]);
            add(&mut results, row, RECV_COPY, [4.0, 4.0, 5.0]);
            add(&mut results, row, SPLICE, [5.0, 4.0, 3.0]);
        }
        add(&mut results, "tensor", "wheel", [1.0, 1.0, 1.0]);
        add(&mut results, "tensor", "rust", [2.0, 1.0, 1.0]);
        results.tokens = vec![
            vec![Cost {
                ranges: 128,
                tokens: 1,
                ns_per_token: 12.5,
            }];
            3
        ];
        results.seen.missing.push(Missing {
            part: Part::Python,
            system: "recv-into",
            why: "no torch".into(),
        });
        results.seen.trouble.push(Trouble {
            part: Part::Stream,
            row: "kept-1m".into(),
            system: SPLICE,
            round: 1,
            why: "on purpose".into(),
        });
        report(results)
    }

    #[test]
    fn ratios_are_of_the_same_round_and_the_median_decides() {
        let report = sample();
        let line = report.lines(Part::Stream)[0];
        let rates = beside::ratio(&line.ratios, "mapped", RECV_COPY).expect("both");
        assert_eq!(rates.values, [1.25, 2.0, 1.2]);
        let met: Vec<_> = line.aims.iter().map(|aim| aim.met).collect();
        assert_eq!(met, [None, Some(false)], "no lane; 1.25 is not 1.3");
        let cpu = beside::ratio(&line.receiver_cpu_ratios, "mapped", RECV_COPY).expect("both");
        assert_eq!(cpu.values[1], 0.5);
        let python = report.lines(Part::Python)[0];
        assert_eq!(python.aims[0].met, Some(true), "the median of 0.5, 1, 1");
        let cell = line.cell("mapped").expect("a cell");
        assert_eq!(cell.fragments.as_ref().expect("sizes").count, 3);
        assert!(line.cell(SPLICE).expect("a cell").fragments.is_none());
    }

    #[test]
    fn only_what_is_ours_makes_the_run_fail() {
        assert!(!sample().ours_failed(), "splice is the kernel's");
        let mut results = Results::default();
        results.seen.trouble.push(Trouble {
            part: Part::Stream,
            row: "kept-1m".into(),
            system: "staged",
            round: 1,
            why: "on purpose".into(),
        });
        assert!(report(results).ours_failed());
    }

    #[test]
    fn the_documented_shape_is_the_shape_of_the_document() {
        let documented = shape::documented("devmem", SCHEMA);
        let maps = [".machine.versions", ".published.sources"];
        let value = serde_json::to_value(sample()).expect("json");
        assert_eq!(shape::of(&value, &maps), documented);
    }
}
