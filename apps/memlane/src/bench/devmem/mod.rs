//! `memlane bench devmem`: payload into a region over each path, and what a program does without the lane, side by side
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

use anyhow::Context as _;

use super::beside::{self, Printed, System};
use super::machine::congestion_control;
use super::progress::{Progress, minutes};
use super::{machine, proc, sys};
use crate::exit::{Exit, fail};
use crate::out;
use plan::{Missing, Plan};
use rows::{PARTS, Part, Row};

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

/// What is the same for all measurements.
struct Bench {
    /// This program.
    exe: PathBuf,
    scratch: proc::Scratch,
    /// Who sends is on the first, who receives on the second; they are the same where there is one only.
    cpus: [usize; 2],
    seconds: f64,
    congestion_control: String,
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

/// One figure.
#[derive(Clone, Debug)]
struct Reading {
    row: Row,
    system: &'static str,
    round: usize,
    seen: Outcome,
}

type Trouble = beside::Trouble<Part>;

/// All figures of a run.
#[derive(Default)]
struct Results {
    readings: Vec<Reading>,
    /// One for each round.
    tokens: Vec<Vec<tokens::Cost>>,
    missing: Vec<Missing>,
    trouble: Vec<Trouble>,
}

pub(super) fn run(options: &Devmem) -> anyhow::Result<ExitCode> {
    let wish = plan::Wish {
        quick: options.quick,
        only: options.only.clone(),
        rounds: usize::from(options.rounds.unwrap_or(if options.quick { 5 } else { 9 })),
        seconds: options
            .seconds
            .unwrap_or(if options.quick { 0.5 } else { 1.0 }),
    };
    let mut plan = Plan::new(&wish).map_err(|text| fail(Exit::Usage, text))?;
    sys::watch_for_interrupts();
    let cpus = sys::allowed_cpus();
    let bench = Bench {
        exe: std::env::current_exe().context("where is this program?")?,
        scratch: proc::Scratch::new()?,
        cpus: [cpus[0], cpus[cpus.len().min(2) - 1]],
        seconds: plan.seconds,
        congestion_control: congestion_control(options.congestion.as_deref())
            .map_err(|text| fail(Exit::Usage, text))?,
        python: options.python.clone(),
    };
    let machine = machine::Machine::with_devmem();
    let mut results = Results {
        missing: plan.without(|part, system| lacks(part, system, &bench.python)),
        ..Results::default()
    };
    announce(&plan, &results, &machine, cpus.len());
    measure(&bench, &plan, &mut results)?;
    let report = report::Report::new(results, &plan, &bench, machine, options.quick)?;
    conclude(options, &report)
}

fn lacks(part: Part, system: &System, python: &str) -> Option<String> {
    match part {
        Part::Stream | Part::Tokens => None,
        Part::Python => python::lacks(python, system.id),
    }
}

/// What will happen, and what cannot.
fn announce(plan: &Plan, results: &Results, machine: &machine::Machine, cpus: usize) {
    for Missing { part, system, why } in &results.missing {
        let part = part.word();
        out::stderr(&format!("!! NOT MEASURED: {part}, {system}: {why}\n"));
    }
    if cpus < 2 {
        out::warn("one CPU only: both ends share it");
    }
    beside::warn_if_busy(machine);
    let parts = PARTS.map(|part| format!("{} of {}", plan.figures(part), part.word()));
    let (rounds, time) = (plan.rounds, minutes(plan.time().as_secs_f64()));
    let parts = parts.join(", ");
    out::stderr(&format!(
        "{rounds} rounds of {parts}: about {time}; Ctrl-C clears away\n"
    ));
}

fn measure(bench: &Bench, plan: &Plan, results: &mut Results) -> anyhow::Result<()> {
    let mut progress = Progress::new(plan.time());
    for round in 0..plan.rounds {
        let mut turn = Turn {
            bench,
            plan,
            round,
            progress: &mut progress,
            results,
        };
        for row in &plan.rows {
            for system in beside::by_turns(plan.systems_of(row.part), round) {
                turn.one(*row, &system)?;
            }
        }
    }
    Ok(())
}

/// One round.
struct Turn<'a> {
    bench: &'a Bench,
    plan: &'a Plan,
    round: usize,
    progress: &'a mut Progress,
    results: &'a mut Results,
}

impl Turn<'_> {
    /// `Err`: somebody wants us to stop.
    fn one(&mut self, row: Row, system: &System) -> anyhow::Result<()> {
        let told = match row.part {
            Part::Stream | Part::Python => self.rate(row, system),
            Part::Tokens => self.tokens(),
        };
        anyhow::ensure!(!sys::interrupted(), "interrupted");
        let (round, system) = (self.round + 1, system.id);
        let about = format!("round {round}/{} {} {system}", self.plan.rounds, row.row);
        match told {
            Ok(value) => {
                let cost = self.plan.cost(row.part);
                self.progress.took(cost, &format!("{about}: {value}"));
            }
            Err(error) => {
                out::stderr(&format!("!! {about}: {error:#}\n"));
                self.results.trouble.push(Trouble {
                    part: row.part,
                    row: row.row.to_owned(),
                    system,
                    round,
                    why: format!("{error:#}"),
                });
            }
        }
        Ok(())
    }

    fn rate(&mut self, row: Row, system: &System) -> anyhow::Result<String> {
        let seen = match row.part {
            Part::Python => python::measure(self.bench, &row, system.id),
            _ => stream::measure(self.bench, &row, system.id),
        }?;
        let value = text::rate(seen.value);
        self.results.readings.push(Reading {
            row,
            system: system.id,
            round: self.round,
            seen,
        });
        Ok(value)
    }

    fn tokens(&mut self) -> anyhow::Result<String> {
        let costs = stream::tokens(self.bench)?;
        let first = costs.first().map_or(0.0, |cost| cost.ns_per_token);
        self.results.tokens.push(costs);
        Ok(format!("{first:.0} ns for a single one"))
    }
}

fn conclude(options: &Devmem, report: &report::Report) -> anyhow::Result<ExitCode> {
    let printed = Printed {
        text: text::of(report),
        json: out::json(report)?,
        pictures: pictures::of(report),
    };
    printed.conclude("devmem", options.out.as_deref(), options.json)?;
    let failed = report.ours_failed();
    Ok(if failed { Exit::Failed } else { Exit::Ok }.into())
}
