//! `memlane-bench run devmem`: payload into a region over each path, and what a program does without the lane, side by side
//! in one run.
//!
//! | room | what |
//! |---|---|
//! | `rows` | what is measured, of whom |
//! | `catalogue` | what the tables show; what should be reached |
//! | `stream`, `hose`, `sinks` | a stream between two processes; one end of it; whoever receives. `sizes`: of fragments |
//! | `python` | tensors, received in Python |
//! | `tokens` | what it costs to hand them back |
//! | `outcome` | what was seen of a stream |

pub(crate) mod catalogue;
pub(crate) mod hose;
mod outcome;
mod python;
mod rows;
mod sinks;
mod sizes;
mod stream;
mod tokens;

use crate::catalogue::{Catalogue, System};
use crate::runner::machine::Asked;
use crate::runner::options::Options;
use crate::runner::plan::Plan;
use crate::runner::turn::{self, Bench, Suite, Turn, congestion_control};
use crate::sample::Run;
use rows::{Part, REGION, Row};

/// Measures device memory.
#[derive(clap::Args, Debug)]
pub(crate) struct Devmem {
    /// TCP's congestion control, for all [default: cubic, where the kernel has it].
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// The Python that has memlane's wheel.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,
}

struct Measured {
    bench: Bench,
    congestion_control: String,
    python: String,
}

pub(crate) fn run(options: &Options, more: &Devmem) -> anyhow::Result<Run> {
    let plan = Plan::new(options.wish([9, 5], [1.0, 0.5]))?;
    let congestion_control = congestion_control(more.congestion.as_deref())?;
    let bench = Bench::new(options.programs()?, plan.wish.seconds)?;
    let mut measured = Measured {
        bench,
        congestion_control,
        python: more.python.clone(),
    };
    turn::run(&mut measured, plan)
}

impl Suite for Measured {
    type Row = Row;
    const NAME: &'static str = "devmem";
    const PROGRAMS: &'static [Asked] = &[("python3", &["--version"])];

    fn catalogue() -> Catalogue {
        catalogue::catalogue()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("congestion", self.congestion_control.clone()),
            ("region", REGION.to_string()),
        ]
    }

    fn lacks(&self, part: Part, system: &System) -> Option<String> {
        match part {
            Part::Stream | Part::Tokens => None,
            Part::Python => python::lacks(&self.python, system.id),
        }
    }

    fn measure(
        &mut self,
        turn: &mut Turn<'_, Row>,
        system: &System,
        rows: &[Row],
    ) -> anyhow::Result<()> {
        let (bench, congestion) = (&self.bench, self.congestion_control.as_str());
        for row in rows {
            let figures = match row.part {
                Part::Stream => stream::measure(bench, congestion, row, system.id)?,
                Part::Python => {
                    let with = [&self.python, congestion];
                    python::measure(bench, with, row, system.id)?
                }
                Part::Tokens => {
                    // Each way to hand tokens back is a row of its own.
                    for cost in stream::tokens(bench)? {
                        let id = catalogue::token_row((cost.ranges, cost.tokens));
                        let figures = [("token", "ns", cost.ns_per_token)];
                        turn.record.add(&id, system.id, turn.round, &figures);
                    }
                    Vec::new()
                }
            };
            turn.keep(row, system, &figures);
        }
        Ok(())
    }
}
