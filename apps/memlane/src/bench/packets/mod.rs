//! `memlane bench packets`: the packet lane's three modes, and what else joins two processes or two networks, side by
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

use anyhow::Context as _;

use super::beside::{self, Printed, System};

use super::progress::{Progress, minutes};
use super::{machine, proc, sys};
use crate::exit::{Exit, fail};
use crate::out;
use plan::{Missing, Plan};
use pump::Does;
use rows::{PARTS, Part, Row};

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

/// What is the same for all measurements.
struct Bench {
    /// This program.
    exe: PathBuf,
    /// For sockets and logs.
    scratch: proc::Scratch,
    /// Who sends is on the first, who receives on the second; they are the same where there is one only.
    cpus: [usize; 2],
    seconds: f64,
    /// Of the bulk part.
    congestion_control: String,
}

impl Bench {
    fn cpu(&self, does: Does) -> usize {
        self.cpus[usize::from(does == Does::Receive)]
    }
}

/// What was seen of one system in one row.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Outcome {
    /// Frames or Gbit in a second.
    value: f64,
    /// What a frame costs, in ns; or a gigabyte, in seconds.
    cpu: Option<f64>,
}

/// One figure.
#[derive(Clone, Copy, Debug)]
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
    missing: Vec<Missing>,
    trouble: Vec<Trouble>,
}

pub(super) fn run(options: &Packets) -> anyhow::Result<ExitCode> {
    let wish = plan::Wish {
        quick: options.quick,
        only: options.only.clone(),
        rounds: usize::from(options.rounds.unwrap_or(if options.quick { 2 } else { 5 })),
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
        congestion_control: machine::congestion_control(options.congestion.as_deref())
            .map_err(|text| fail(Exit::Usage, text))?,
    };
    let machine = machine::Machine::with_packets();
    let mut results = Results {
        missing: plan.without(lacks),
        ..Results::default()
    };
    announce(&plan, &results, &machine, cpus.len());
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
    let parts = PARTS.iter().map(|&part| {
        let figures = plan.rows_of(part).len() * plan.systems_of(part).len();
        format!("{figures} of {}", part.word())
    });
    let parts: Vec<String> = parts.collect();
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
        for part in [Part::Table, Part::Memif] {
            turn.rows_of(part)?;
        }
        turn.bulk()?;
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
    fn systems(&self, part: Part) -> Vec<System> {
        beside::by_turns(self.plan.systems_of(part), self.round)
    }

    /// Row by row, systems alternate.
    fn rows_of(&mut self, part: Part) -> anyhow::Result<()> {
        for row in self.plan.rows_of(part) {
            for system in self.systems(part) {
                let seen = match part {
                    Part::Memif => memif::measure(self.bench, &row, system.id),
                    _ => table::measure(self.bench, &row, system.id),
                };
                self.note(row, &system, seen)?;
            }
        }
        Ok(())
    }

    /// System by system: what joins the namespaces is made once a round.
    fn bulk(&mut self) -> anyhow::Result<()> {
        let rows = self.plan.rows_of(Part::Bulk);
        let systems = self.systems(Part::Bulk);
        for system in systems.iter().filter(|_| !rows.is_empty()) {
            let joined = match bulk::Joined::new(self.bench, system.id) {
                Ok(joined) => joined,
                Err(error) => {
                    self.note(rows[0], system, Err(error))?;
                    continue;
                }
            };
            for row in &rows {
                let seen = joined.measure(self.bench, row);
                self.note(*row, system, seen)?;
            }
        }
        Ok(())
    }

    /// `Err`: somebody wants us to stop.
    fn note(
        &mut self,
        row: Row,
        system: &System,
        seen: anyhow::Result<Outcome>,
    ) -> anyhow::Result<()> {
        anyhow::ensure!(!sys::interrupted(), "interrupted");
        let (round, system) = (self.round, system.id);
        let about = format!(
            "round {}/{} {} {system}",
            round + 1,
            self.plan.rounds,
            row.id()
        );
        match seen {
            Ok(seen) => {
                let value = text::value(&row, seen.value);
                let cost = self.plan.cost(row.part);
                self.progress.took(cost, &format!("{about}: {value}"));
                self.results.readings.push(Reading {
                    row,
                    system,
                    round,
                    seen,
                });
            }
            Err(error) => {
                out::stderr(&format!("!! {about}: {error:#}\n"));
                self.results.trouble.push(Trouble {
                    part: row.part,
                    row: row.id(),
                    system,
                    round: round + 1,
                    why: format!("{error:#}"),
                });
            }
        }
        Ok(())
    }
}

fn conclude(options: &Packets, report: &report::Report) -> anyhow::Result<ExitCode> {
    let printed = Printed {
        text: text::of(report),
        json: out::json(report)?,
        pictures: pictures::of(report),
    };
    printed.conclude("packets", options.out.as_deref(), options.json)?;
    let failed = report.ours_failed();
    Ok(if failed { Exit::Failed } else { Exit::Ok }.into())
}
