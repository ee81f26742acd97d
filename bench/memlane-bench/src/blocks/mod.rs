//! `memlane-bench run blocks`: memlane's volumes and others' network block devices, side by side in one run.
//!
//! | room | what |
//! |---|---|
//! | `plan` | what was asked for, and how far it is |
//! | `systems` | who is measured; `ours`, `peers`: how each is started, and what a generator is given |
//! | `work` | what is asked of them; `fio`, `load`: by which generator |
//! | `gap`, `proxy` | the time without I/O when a path dies |
//! | `aims`, `published` | what should be reached; what others reached |
//! | `report`, `text`, `pictures` | the document, its table, its plots |

mod aims;
mod fio;
mod gap;
pub(super) mod load;
mod ours;
mod peers;
mod pictures;
mod plan;
mod proxy;
mod published;
mod report;
mod systems;
mod text;
mod volume;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use super::beside::{self, Printed};
use super::progress::{Progress, minutes};
use super::{machine, proc, sys};
use crate::exit::{Exit, fail};
use crate::out;
use crate::programs::Programs;
use plan::{BESIDES, Plan, START};
use report::Trouble;

/// Measures volumes.
#[derive(clap::Args, Debug)]
pub(super) struct Blocks {
    /// A short run: 2 rounds, the most telling rows, and the gap.
    #[arg(long)]
    quick: bool,
    /// Only these: rows, gap, jobs, memlane, peers, or single rows and systems (an unknown name lists them).
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// How often each is measured [default: 5, or 2 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Length of each measurement.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = super::seconds)]
    seconds: f64,
    /// Size of each volume; there are never two at a time.
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = size)]
    volume: u64,
    /// Only 1 to 64 jobs on one volume, in the shape of the seed's tables.
    #[arg(long)]
    jobs: bool,
    /// Print JSON (schema memlane.bench.blocks/2) instead of the tables.
    #[arg(long)]
    json: bool,
    /// Also write blocks.md, blocks.json and the plots into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Whole requests of 1 MiB, and memory that a machine has.
fn size(text: &str) -> Result<u64, String> {
    match crate::units::size(text) {
        Ok(size) if (1 << 20..=1 << 40).contains(&size) && size % (1 << 20) == 0 => Ok(size),
        Ok(_) => Err("whole MiB, from 1m to 1t".to_owned()),
        Err(error) => Err(error),
    }
}

/// One figure of a row.
type Reading = super::reading::Reading<&'static str, work::Outcome>;

/// One figure of a scenario.
#[derive(Clone, Debug)]
pub(super) struct Gap {
    scenario: &'static str,
    seen: gap::Seen,
}

/// All figures of a run.
#[derive(Default)]
pub(super) struct Results {
    readings: Vec<Reading>,
    gaps: Vec<Gap>,
    trouble: Vec<Trouble>,
    missing: Vec<plan::Missing>,
}

pub(super) fn run(options: &Blocks) -> anyhow::Result<ExitCode> {
    let wish = plan::Wish {
        quick: options.quick,
        jobs: options.jobs,
        only: options.only.clone(),
        rounds: usize::from(options.rounds.unwrap_or(if options.quick { 2 } else { 5 })),
        seconds: options.seconds,
    };
    let mut plan = Plan::new(&wish).map_err(|text| fail(Exit::Usage, text))?;
    sys::watch_for_interrupts();
    let scratch = proc::Scratch::new()?;
    let bench = systems::Bench {
        programs: Programs::find()?,
        fio_cpu: fio::fixed_cost(&scratch)?,
        scratch,
        size: options.volume,
    };
    let machine = machine::Machine::with_blocks();
    let results = Results {
        missing: plan.without(|system| systems::lacks(system, &bench)),
        ..Results::default()
    };
    announce(&plan, &results, &machine);
    let results = measure(&bench, &plan, results)?;
    let report = report::Report::new(results, &plan, &bench, machine, options.quick)?;
    conclude(options, &report)
}

/// What will happen, and what cannot.
fn announce(plan: &Plan, results: &Results, machine: &machine::Machine) {
    for missing in &results.missing {
        let (system, why) = (missing.system, &missing.why);
        out::stderr(&format!("!! NOT MEASURED: {system}: {why}\n"));
    }
    beside::warn_if_busy(machine);
    let parts = [
        (plan.systems.len() * plan.rows.len(), "figures of the table"),
        (plan.swept.len() * plan.sweep.len(), "of many jobs"),
        (plan.gaps.len(), "of the gap"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, of)| format!("{count} {of}")).collect();
    let time = minutes(plan.time().as_secs_f64());
    let rounds = plan.rounds;
    out::stderr(&format!(
        "{} rounds of {}: about {time}; Ctrl-C clears away\n",
        rounds,
        parts.join(", ")
    ));
}

fn measure(bench: &systems::Bench, plan: &Plan, mut results: Results) -> anyhow::Result<Results> {
    let mut progress = Progress::new(plan.time());
    for round in 0..plan.rounds {
        for (systems, rows) in [(&plan.systems, &plan.rows), (&plan.swept, &plan.sweep)] {
            for system in systems.iter().filter(|_| !rows.is_empty()) {
                let turn = Turn {
                    plan,
                    system,
                    rows,
                    round,
                };
                if let Err(error) = turn.take(bench, &mut progress, &mut results.readings) {
                    anyhow::ensure!(!sys::interrupted(), "interrupted");
                    out::stderr(&format!("!! {}: {error:#}\n", system.id));
                    results.trouble.push(Trouble::new(system.id, round, &error));
                }
                anyhow::ensure!(!sys::interrupted(), "interrupted");
            }
        }
        for scenario in &plan.gaps {
            let about = format!("round {}/{} {}", round + 1, plan.rounds, scenario.id);
            progress.begins(&about);
            match gap::measure(bench, scenario) {
                Ok(seen) => {
                    let text = format!("{about}: {:.1} ms", seen.gap_ms);
                    progress.took(plan::gap_cost(scenario), &text);
                    results.gaps.push(Gap {
                        scenario: scenario.id,
                        seen,
                    });
                }
                Err(error) => {
                    anyhow::ensure!(!sys::interrupted(), "interrupted");
                    out::stderr(&format!("!! {about}: {error:#}\n"));
                    results
                        .trouble
                        .push(Trouble::new(scenario.id, round, &error));
                }
            }
        }
    }
    Ok(results)
}

/// One system, all rows, one round.
struct Turn<'a> {
    plan: &'a Plan,
    system: &'a systems::System,
    rows: &'a [work::Row],
    round: usize,
}

impl Turn<'_> {
    fn take(
        &self,
        bench: &systems::Bench,
        progress: &mut Progress,
        readings: &mut Vec<Reading>,
    ) -> anyhow::Result<()> {
        let system = self.system;
        let about = format!(
            "round {}/{} {}",
            self.round + 1,
            self.plan.rounds,
            system.id
        );
        progress.begins(&format!("{about}: starts, volume is filled"));
        let running = (system.start)(bench)?;
        fio::fill(bench, &running).context("filling the volume")?;
        progress.took(START, &format!("{about}: ready"));
        for row in self.rows {
            let result = fio::measure(bench, &running, row, self.plan.seconds)
                .with_context(|| format!("row {}", row.id))?;
            let text = format!("{about} {}: {:.0} per second", row.id, result.per_second);
            progress.took(self.plan.seconds + BESIDES, &text);
            readings.push(Reading {
                row: row.id,
                system: system.id,
                round: self.round,
                seen: result,
            });
        }
        Ok(())
    }
}

fn conclude(options: &Blocks, report: &report::Report) -> anyhow::Result<ExitCode> {
    let printed = Printed {
        text: text::of(report),
        json: out::json(report)?,
        pictures: pictures::of(report),
    };
    printed.conclude("blocks", options.out.as_deref(), options.json)?;
    Ok(beside::exit(report.ours_failed()))
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
