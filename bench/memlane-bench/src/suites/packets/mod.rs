//! `memlane-bench run packets`: the packet lane's three modes, and what else joins two processes or two networks, side by
//! side in one run.
//!
//! | room | what |
//! |---|---|
//! | `rows` | what is measured, of whom; `plan`: what was asked for |
//! | `catalogue` | what the tables show; what should be reached |
//! | `table`, `pump` | frames between two processes, which are pumps |
//! | `bulk`, `copier` | TCP between two namespaces; the simplest program that joins them |
//! | `memif` | beside DPDK's testpmd |

mod bulk;
pub(crate) mod catalogue;
pub(crate) mod copier;
mod memif;
mod plan;
pub(crate) mod pump;
mod rows;
mod table;

use std::process::ExitCode;

use crate::exit::{Exit, fail};
use crate::runner::machine::Machine;
use crate::runner::progress::Progress;
use crate::runner::turn::{self, Bench};
use crate::runner::{self, Figure, Made, Options, Record, sys};
use crate::suites::System;
use plan::{Plan, Wish};
use pump::Does;
use rows::{Part, Row};

/// Measures packets.
#[derive(clap::Args, Debug)]
pub(crate) struct Packets {
    #[command(flatten)]
    common: Options,
    /// TCP's congestion control, for all [default: cubic, where the kernel has it].
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
}

/// Of who does that.
fn cpu(bench: &Bench, does: Does) -> usize {
    bench.cpus[usize::from(does == Does::Receive)]
}

/// What was seen of one system in one row.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Outcome {
    /// Frames or Gbit in a second.
    value: f64,
    /// What a frame costs, in ns; or a gigabyte, in seconds.
    cpu: Option<f64>,
}

type Turn<'a> = turn::Turn<'a, Row>;

pub(crate) fn run(options: &Packets) -> anyhow::Result<ExitCode> {
    let common = &options.common;
    let wish = Wish {
        quick: common.quick,
        only: common.only.clone(),
        rounds: common.rounds([5, 2]),
        seconds: common.seconds([1.0, 0.5]),
    };
    let mut plan = Plan::new(&wish).map_err(|text| fail(Exit::Usage, text))?;
    sys::watch_for_interrupts();
    let bench = Bench::new(plan.seconds, options.congestion.as_deref())?;
    let machine = Machine::of("packets");
    let mut record = Record::new("packets");
    let missing = plan.without(lacks);
    turn::announce(&plan, &missing, &mut record, &bench, &machine);
    measure(&bench, &plan, &mut record)?;
    let made = Made {
        rounds: plan.rounds,
        seconds: plan.seconds,
        settings: vec![("congestion", bench.congestion_control.clone())],
        machine,
    };
    runner::conclude(common, record, made)
}

fn lacks(part: Part, system: &System) -> Option<String> {
    match part {
        Part::Table => None,
        Part::Bulk => bulk::lacks(system.id),
        // The other two are of memlane alone.
        Part::Memif if matches!(system.id, "memlane" | "lane") => None,
        Part::Memif => memif::lacks(),
    }
}

fn measure(bench: &Bench, plan: &Plan, record: &mut Record) -> anyhow::Result<()> {
    let mut progress = Progress::new(plan.time());
    for round in 0..plan.rounds {
        let mut turn = Turn {
            plan,
            round,
            progress: &mut progress,
            record,
        };
        for part in [Part::Table, Part::Memif] {
            rows_of(bench, &mut turn, part)?;
        }
        bulk(bench, &mut turn)?;
    }
    Ok(())
}

/// Row by row, systems alternate.
fn rows_of(bench: &Bench, turn: &mut Turn<'_>, part: Part) -> anyhow::Result<()> {
    for row in turn.plan.rows_of(part) {
        for system in turn.systems(part) {
            let seen = match part {
                Part::Memif => memif::measure(bench, &row, system.id),
                _ => table::measure(bench, &row, system.id),
            };
            keep(turn, row, &system, seen)?;
        }
    }
    Ok(())
}

/// System by system: what joins the namespaces is made once a round.
fn bulk(bench: &Bench, turn: &mut Turn<'_>) -> anyhow::Result<()> {
    let rows = turn.plan.rows_of(Part::Bulk);
    let systems = turn.systems(Part::Bulk);
    for system in systems.iter().filter(|_| !rows.is_empty()) {
        let joined = match bulk::Joined::new(bench, system.id) {
            Ok(joined) => joined,
            Err(error) => {
                keep(turn, rows[0], system, Err(error))?;
                continue;
            }
        };
        for row in &rows {
            let seen = joined.measure(bench, row);
            keep(turn, *row, system, seen)?;
        }
    }
    Ok(())
}

fn keep(
    turn: &mut Turn<'_>,
    row: Row,
    system: &System,
    seen: anyhow::Result<Outcome>,
) -> anyhow::Result<()> {
    turn.keep(&row, system, seen.map(|seen| figures(row.part, &seen)))
}

fn figures(part: Part, seen: &Outcome) -> Vec<Figure> {
    let (rate, cpu) = match part {
        Part::Bulk => (("throughput", "Gbit/s"), "s/GB"),
        _ => (("rate", "frames/s"), "ns/frame"),
    };
    let mut figures = vec![(rate.0, rate.1, seen.value)];
    figures.extend(seen.cpu.map(|value| ("cpu", cpu, value)));
    figures
}
