//! `memlane-bench run packets`: the packet lane's three modes, and what else joins two processes or two networks, side by
//! side in one run.
//!
//! | room | what |
//! |---|---|
//! | `rows` | what is measured, of whom; `plan`: what was asked for |
//! | `table`, `pump` | frames between two processes, which are pumps |
//! | `bulk`, `copier` | TCP between two namespaces; the simplest program that joins them |
//! | `memif` | beside DPDK's testpmd |
//! | `aims`, `published` | what should be reached; what others reached |
//! | `report`, `text`, `pictures` | the document, its tables, its plots |

mod aims;
mod bulk;
pub(super) mod copier;
mod memif;
mod pictures;
mod plan;
mod published;
pub(super) mod pump;
mod report;
mod rows;
mod table;
mod text;

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
use pump::Does;
use rows::{Part, Row};

/// Measures packets.
#[derive(clap::Args, Debug)]
pub(super) struct Packets {
    /// A short run: 2 rounds of half a second, the most telling rows.
    #[arg(long)]
    quick: bool,
    /// Only these: table, bulk, memif, or single rows and systems (an unknown name lists them).
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// How often each is measured [default: 5, or 2 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Length of each measurement; iperf3's in whole seconds [default: 1, or 0.5 with --quick].
    #[arg(long, value_name = "S", value_parser = super::seconds)]
    seconds: Option<f64>,
    /// TCP's congestion control, for all [default: cubic, where the kernel has it].
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Print JSON (schema memlane.bench.packets/1) instead of the tables.
    #[arg(long)]
    json: bool,
    /// Also write packets.md, packets.json and the plots into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
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

type Results = turn::Results<Row, Outcome>;
type Turn<'a> = turn::Turn<'a, Row, Outcome>;

pub(super) fn run(options: &Packets) -> anyhow::Result<ExitCode> {
    let wish = Wish {
        quick: options.quick,
        only: options.only.clone(),
        rounds: usize::from(options.rounds.unwrap_or(if options.quick { 2 } else { 5 })),
        seconds: options
            .seconds
            .unwrap_or(if options.quick { 0.5 } else { 1.0 }),
    };
    let mut plan = Plan::new(&wish).map_err(|text| fail(Exit::Usage, text))?;
    sys::watch_for_interrupts();
    let bench = Bench::new(plan.seconds, options.congestion.as_deref())?;
    let machine = Machine::with_packets();
    let mut results = Results {
        missing: plan.without(lacks),
        ..Results::default()
    };
    turn::announce(&plan, &results.missing, &bench, &machine);
    measure(&bench, &plan, &mut results)?;
    let report = report::Report::new(results, &plan, &bench, machine, options.quick)?;
    conclude(options, &report)
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

fn measure(bench: &Bench, plan: &Plan, results: &mut Results) -> anyhow::Result<()> {
    let mut progress = Progress::new(plan.time());
    for round in 0..plan.rounds {
        let mut turn = Turn {
            plan,
            round,
            progress: &mut progress,
            results,
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
    turn.keep(row, system, seen, |seen| text::value(&row, seen.value))
}

fn conclude(options: &Packets, report: &report::Report) -> anyhow::Result<ExitCode> {
    let printed = Printed {
        text: text::of(report),
        json: out::json(report)?,
        pictures: pictures::of(report),
    };
    printed.conclude("packets", options.out.as_deref(), options.json)?;
    Ok(beside::exit(report.ours_failed()))
}
