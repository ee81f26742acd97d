//! `memlane-bench run devmem`: payload into a region over each path, and what a program does without the lane, side by side
//! in one run.
//!
//! | room | what |
//! |---|---|
//! | `rows` | what is measured, of whom; `plan`: what was asked for |
//! | `stream`, `hose`, `sinks` | a stream between two processes; one end of it; whoever receives. `sizes`: of fragments |
//! | `python` | tensors, received in Python |
//! | `tokens` | what it costs to hand them back |
//! | `aims`, `published` | what should be reached; what others reached |
//! | `report`, `text`, `pictures` | the document, its tables, its plots |

mod aims;
pub(super) mod hose;
mod pictures;
mod plan;
mod published;
mod python;
mod report;
mod rows;
mod sinks;
mod sizes;
mod stream;
mod text;
mod tokens;

use std::path::PathBuf;
use std::process::ExitCode;

use super::beside::turn::{self, Bench};
use super::beside::{self, Printed, System};
use super::machine::Machine;
use super::progress::Progress;
use super::sys;
use crate::exit::{Exit, fail};
use crate::out;
use plan::{Plan, Wish};
use rows::{Part, Row};

/// Measures device memory.
#[derive(clap::Args, Debug)]
pub(super) struct Devmem {
    /// A short run: 5 rounds of half a second, the most telling rows.
    #[arg(long)]
    quick: bool,
    /// Only these: stream, tokens, python, or single rows and systems (an unknown name lists them).
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// How often each is measured [default: 9, or 5 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Length of each measurement [default: 1, or 0.5 with --quick].
    #[arg(long, value_name = "S", value_parser = super::seconds)]
    seconds: Option<f64>,
    /// TCP's congestion control, for all [default: cubic, where the kernel has it].
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// The Python that has memlane's wheel.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,
    /// Print JSON (schema memlane.bench.devmem/1) instead of the tables.
    #[arg(long)]
    json: bool,
    /// Also write devmem.md, devmem.json and the plots into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// What was seen of one system in one row.
#[derive(Clone, PartialEq, Debug)]
struct Outcome {
    /// Bytes in a second.
    value: f64,
    /// Seconds of processor time for a gigabyte, both ends.
    cpu: Option<f64>,
    /// Of these, the receiver's.
    receiver_cpu: Option<f64>,
    /// Copies of each byte, both ends.
    copied_by_kernel: Option<f64>,
    copied_by_program: Option<f64>,
    fragments: Option<sizes::Sizes>,
}

/// All figures of a run.
#[derive(Default)]
struct Results {
    seen: turn::Results<Row, Outcome>,
    /// One for each round.
    tokens: Vec<Vec<tokens::Cost>>,
}

pub(super) fn run(options: &Devmem) -> anyhow::Result<ExitCode> {
    let wish = Wish {
        quick: options.quick,
        only: options.only.clone(),
        rounds: usize::from(options.rounds.unwrap_or(if options.quick { 5 } else { 9 })),
        seconds: options
            .seconds
            .unwrap_or(if options.quick { 0.5 } else { 1.0 }),
    };
    let mut plan = Plan::new(&wish).map_err(|text| fail(Exit::Usage, text))?;
    sys::watch_for_interrupts();
    let bench = Bench::new(plan.seconds, options.congestion.as_deref())?;
    let machine = Machine::with_devmem();
    let mut results = Results::default();
    results.seen.missing = plan.without(|part, system| lacks(part, system, &options.python));
    turn::announce(&plan, &results.seen.missing, &bench, &machine);
    measure(&bench, &options.python, &plan, &mut results)?;
    let report = report::Report::new(results, &plan, &bench, machine, options.quick)?;
    conclude(options, &report)
}

fn lacks(part: Part, system: &System, python: &str) -> Option<String> {
    match part {
        Part::Stream | Part::Tokens => None,
        Part::Python => python::lacks(python, system.id),
    }
}

fn measure(bench: &Bench, python: &str, plan: &Plan, results: &mut Results) -> anyhow::Result<()> {
    let mut progress = Progress::new(plan.time());
    for round in 0..plan.rounds {
        let mut turn = turn::Turn {
            plan,
            round,
            progress: &mut progress,
            results: &mut results.seen,
        };
        for row in &plan.rows {
            for system in turn.systems(row.part) {
                let seen = match row.part {
                    Part::Stream => stream::measure(bench, row, system.id),
                    Part::Python => python::measure(bench, python, row, system.id),
                    Part::Tokens => {
                        let costs = stream::tokens(bench);
                        let told = costs.map(|costs| of_tokens(costs, &mut results.tokens));
                        turn.note(*row, &system, told)?;
                        continue;
                    }
                };
                turn.keep(*row, &system, seen, |seen| text::rate(seen.value))?;
            }
        }
    }
    Ok(())
}

fn of_tokens(costs: Vec<tokens::Cost>, all: &mut Vec<Vec<tokens::Cost>>) -> String {
    let first = costs.first().map_or(0.0, |cost| cost.ns_per_token);
    all.push(costs);
    format!("{first:.0} ns for a single one")
}

fn conclude(options: &Devmem, report: &report::Report) -> anyhow::Result<ExitCode> {
    let printed = Printed {
        text: text::of(report),
        json: out::json(report)?,
        pictures: pictures::of(report),
    };
    printed.conclude("devmem", options.out.as_deref(), options.json)?;
    Ok(beside::exit(report.ours_failed()))
}
