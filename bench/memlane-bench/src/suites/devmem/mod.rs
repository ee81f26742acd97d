//! `memlane-bench run devmem`: payload into a region over each path, and what a program does without the lane, side by side
//! in one run.
//!
//! | room | what |
//! |---|---|
//! | `rows` | what is measured, of whom; `plan`: what was asked for |
//! | `catalogue` | what the tables show; what should be reached |
//! | `stream`, `hose`, `sinks` | a stream between two processes; one end of it; whoever receives. `sizes`: of fragments |
//! | `python` | tensors, received in Python |
//! | `tokens` | what it costs to hand them back |

pub(crate) mod catalogue;
pub(crate) mod hose;
mod plan;
mod python;
mod rows;
mod sinks;
mod sizes;
mod stream;
mod tokens;

use std::process::ExitCode;

use crate::exit::{Exit, fail};
use crate::runner::machine::Machine;
use crate::runner::progress::Progress;
use crate::runner::turn::{self, Bench};
use crate::runner::{self, Figure, Made, Options, Record, sys};
use crate::suites::System;
use plan::{Plan, Wish};
use rows::{Part, REGION, Row};

/// Measures device memory.
#[derive(clap::Args, Debug)]
pub(crate) struct Devmem {
    #[command(flatten)]
    common: Options,
    /// TCP's congestion control, for all [default: cubic, where the kernel has it].
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// The Python that has memlane's wheel.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,
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

impl Outcome {
    fn figures(&self) -> Vec<Figure> {
        let some = |metric, unit, value: Option<f64>| value.map(|value| (metric, unit, value));
        let sizes = self.fragments.as_ref();
        let size =
            |metric, of: fn(&sizes::Sizes) -> u32| some(metric, "B", sizes.map(|s| of(s).into()));
        let all = [
            Some(("throughput", "GB/s", self.value / 1e9)),
            some("cpu", "s/GB", self.cpu),
            some("receiver_cpu", "s/GB", self.receiver_cpu),
            some("kernel_copies", "copies", self.copied_by_kernel),
            some("program_copies", "copies", self.copied_by_program),
            some("fragments", "fragments", sizes.map(|s| s.count as f64)),
            size("fragment_smallest", |s| s.smallest),
            size("fragment_tenth", |s| s.tenth),
            size("fragment_half", |s| s.half),
            size("fragment_largest", |s| s.largest),
        ];
        all.into_iter().flatten().collect()
    }
}

pub(crate) fn run(options: &Devmem) -> anyhow::Result<ExitCode> {
    let common = &options.common;
    let wish = Wish {
        quick: common.quick,
        only: common.only.clone(),
        rounds: common.rounds([9, 5]),
        seconds: common.seconds([1.0, 0.5]),
    };
    let mut plan = Plan::new(&wish).map_err(|text| fail(Exit::Usage, text))?;
    sys::watch_for_interrupts();
    let bench = Bench::new(plan.seconds, options.congestion.as_deref())?;
    let machine = Machine::of("devmem");
    let mut record = Record::new("devmem");
    let missing = plan.without(|part, system| lacks(part, system, &options.python));
    turn::announce(&plan, &missing, &mut record, &bench, &machine);
    measure(&bench, &options.python, &plan, &mut record)?;
    let made = Made {
        rounds: plan.rounds,
        seconds: plan.seconds,
        settings: vec![
            ("congestion", bench.congestion_control.clone()),
            ("region", REGION.to_string()),
        ],
        machine,
    };
    runner::conclude(common, record, made)
}

fn lacks(part: Part, system: &System, python: &str) -> Option<String> {
    match part {
        Part::Stream | Part::Tokens => None,
        Part::Python => python::lacks(python, system.id),
    }
}

fn measure(bench: &Bench, python: &str, plan: &Plan, record: &mut Record) -> anyhow::Result<()> {
    let mut progress = Progress::new(plan.time());
    for round in 0..plan.rounds {
        let mut turn = turn::Turn {
            plan,
            round,
            progress: &mut progress,
            record,
        };
        for row in &plan.rows {
            for system in turn.systems(row.part) {
                let seen = match row.part {
                    Part::Stream => stream::measure(bench, row, system.id),
                    Part::Python => python::measure(bench, python, row, system.id),
                    Part::Tokens => {
                        tokens(bench, &mut turn, row, &system)?;
                        continue;
                    }
                };
                turn.keep(row, &system, seen.map(|seen| seen.figures()))?;
            }
        }
    }
    Ok(())
}

/// Each way to hand tokens back is a row of its own.
fn tokens(
    bench: &Bench,
    turn: &mut turn::Turn<'_, Row>,
    row: &Row,
    system: &System,
) -> anyhow::Result<()> {
    let costs = stream::tokens(bench);
    let of = |cost: &tokens::Cost| ("token", "ns", cost.ns_per_token);
    for cost in costs.iter().flatten() {
        let id = catalogue::token_row((cost.ranges, cost.tokens));
        turn.record.add(&id, system.id, turn.round, &[of(cost)]);
    }
    turn.keep(row, system, costs.map(|_| Vec::new()))
}
