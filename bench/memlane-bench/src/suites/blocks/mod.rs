//! `memlane-bench run blocks`: memlane's volumes and others' network block devices, side by side in one run.
//!
//! | room | what |
//! |---|---|
//! | `rows` | what is measured, of whom |
//! | `catalogue` | what the tables show; what should be reached |
//! | `systems` | who is measured; `ours` (`volume`), `peers`: how each is started; `door`: where exports listen; `running`: what a generator is given |
//! | `fio`, `load` | the generators |
//! | `gap`, `proxy` | the time without I/O when a path dies |

pub(crate) mod catalogue;
mod door;
pub(in crate::suites) mod fio;
mod gap;
pub(crate) mod load;
pub(in crate::suites) mod ours;
mod peers;
mod proxy;
pub(in crate::suites) mod rows;
pub(in crate::suites) mod running;
mod systems;
mod volume;

use anyhow::Context as _;

use crate::catalogue::{Catalogue, System};
use crate::runner::machine::Asked;
use crate::runner::options::{self, Options};
use crate::runner::plan::Plan;
use crate::runner::turn::{self, Suite, Turn};
use crate::sample::Run;
use rows::{Part, Row};
use running::Bench;

/// Measures volumes.
#[derive(clap::Args, Debug)]
pub(crate) struct Blocks {
    /// Size of each volume; there are never two at a time.
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = size)]
    volume: u64,
    /// Only 1 to 64 jobs on one volume.
    #[arg(long)]
    jobs: bool,
}

/// Whole requests of 1 MiB, and memory that a machine has.
fn size(text: &str) -> Result<u64, String> {
    match options::size(text) {
        Ok(size) if (1 << 20..=1 << 40).contains(&size) && size % (1 << 20) == 0 => Ok(size),
        Ok(_) => Err("whole MiB, from 1m to 1t".to_owned()),
        Err(error) => Err(error),
    }
}

pub(crate) fn run(options: &Options, more: &Blocks) -> anyhow::Result<Run> {
    let mut wish = options.wish([5, 2], [1.0, 1.0]);
    wish.only.extend(more.jobs.then(|| "jobs".to_owned()));
    let plan = Plan::new(wish)?;
    let common = turn::Bench::new(options.programs()?, plan.wish.seconds)?;
    let mut bench = Bench {
        fio_cpu: fio::fixed_cost(&common.scratch)?,
        programs: common.programs,
        scratch: common.scratch,
        seconds: common.seconds,
        size: more.volume,
    };
    turn::run(&mut bench, plan)
}

impl Suite for Bench {
    type Row = Row;
    const NAME: &'static str = "blocks";
    const PROGRAMS: &'static [Asked] = &[
        ("fio", &["--version"]),
        ("nbdkit", &["--version"]),
        ("nbd-server", &["-V"]),
        ("qemu-storage-daemon", &["--version"]),
    ];

    fn catalogue() -> Catalogue {
        catalogue::catalogue()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("volume", format!("{} MiB", self.size >> 20)),
            ("fio's own CPU", format!("{:.3} s", self.fio_cpu)),
        ]
    }

    fn lacks(&self, _: Part, system: &System) -> Option<String> {
        systems::known(system.id).and_then(|served| served.lacks(self))
    }

    fn measure(
        &mut self,
        turn: &mut Turn<'_, Row>,
        system: &System,
        rows: &[Row],
    ) -> anyhow::Result<()> {
        if let [row @ Row::Gap(scenario)] = rows {
            match gap::measure(self, scenario) {
                Ok(seen) => turn.keep(row, &seen.by.system(), &seen.figures()),
                Err(error) => turn.failed(row, &gap::PROXY, &error),
            }
            return Ok(());
        }
        let served = systems::known(system.id).context("a system of the suite")?;
        let running = served.start(self)?;
        fio::fill(self, &running).context("filling the volume")?;
        for row in rows {
            if let Row::Work(work) = row {
                let seen = fio::measure(self, &running, work)?;
                turn.keep(row, system, &seen.figures());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_whole_mebibytes() {
        assert_eq!(size("256m"), Ok(256 << 20));
        for wrong in ["0", "4k", "1025k", "2t", "-1", "x"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
