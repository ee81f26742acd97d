//! `memlane-bench run packets`: the packet lane's three modes, and what else joins two processes or two networks, side by
//! side in one run.
//!
//! | room | what |
//! |---|---|
//! | `rows` | what is measured, of whom |
//! | `catalogue` | what the tables show; what should be reached |
//! | `table`, `pump` | frames between two processes, which are pumps |
//! | `bulk`, `copier` | TCP between two namespaces; the simplest program that joins them |
//! | `memif` | beside DPDK's testpmd |

mod bulk;
pub(crate) mod catalogue;
pub(crate) mod copier;
mod memif;
pub(crate) mod pump;
mod rows;
mod table;

use crate::catalogue::{Catalogue, System};
use crate::runner::machine::Asked;
use crate::runner::options::Options;
use crate::runner::plan::Plan;
use crate::runner::turn::{self, Bench, Suite, Turn, congestion_control};
use crate::sample::Run;
use rows::{Part, Row};

/// Measures packets.
#[derive(clap::Args, Debug)]
pub(crate) struct Packets {
    /// TCP's congestion control, for all [default: cubic, where the kernel has it].
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
}

struct Measured {
    bench: Bench,
    congestion_control: String,
}

pub(crate) fn run(options: &Options, more: &Packets) -> anyhow::Result<Run> {
    let plan = Plan::new(options.wish([5, 2], [1.0, 0.5]))?;
    let congestion_control = congestion_control(more.congestion.as_deref())?;
    let bench = Bench::new(options.programs()?, plan.wish.seconds)?;
    let mut measured = Measured {
        bench,
        congestion_control,
    };
    turn::run(&mut measured, plan)
}

impl Suite for Measured {
    type Row = Row;
    const NAME: &'static str = "packets";
    const PROGRAMS: &'static [Asked] = &[
        ("iperf3", &["--version"]),
        // It begins nothing, as there is no such program to run.
        (
            "dpdk-testpmd",
            &[
                "-v",
                "--no-huge",
                "--no-pci",
                "--no-telemetry",
                "--no-shconf",
                "-m",
                "16",
                "--",
                "--help",
            ],
        ),
    ];

    fn catalogue() -> Catalogue {
        catalogue::catalogue()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("congestion", self.congestion_control.clone())]
    }

    fn lacks(&self, part: Part, system: &System) -> Option<String> {
        match part {
            Part::Table => None,
            Part::Bulk => bulk::lacks(system.id),
            // The other two are of memlane alone.
            Part::Memif if matches!(system.id, "memlane" | "lane") => None,
            Part::Memif => memif::lacks(),
        }
    }

    fn measure(
        &mut self,
        turn: &mut Turn<'_, Row>,
        system: &System,
        rows: &[Row],
    ) -> anyhow::Result<()> {
        let bench = &self.bench;
        let joined = match rows[0].part {
            Part::Bulk => Some(bulk::Joined::new(bench, system.id)?),
            _ => None,
        };
        for row in rows {
            let seen = match &joined {
                Some(joined) => joined.measure(bench, row, &self.congestion_control)?,
                None if row.part == Part::Memif => memif::measure(bench, row, system.id)?,
                None => table::measure(bench, row, system.id)?,
            };
            turn.keep(row, system, &seen.figures(row.part));
        }
        Ok(())
    }
}
