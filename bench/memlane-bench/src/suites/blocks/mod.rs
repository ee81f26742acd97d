//! `memlane-bench run blocks`: memlane's volumes and others' network block devices, side by side in one run.
//!
//! | room | what |
//! |---|---|
//! | `plan` | what was asked for, and how far it is |
//! | `catalogue` | what the tables show; what should be reached |
//! | `systems` | who is measured; `ours` (`volume`), `peers`: how each is started, and what a generator is given |
//! | `work` | what is asked of them; `fio`, `load`: by which generator |
//! | `gap`, `proxy` | the time without I/O when a path dies |

pub(crate) mod catalogue;
mod fio;
mod gap;
pub(crate) mod load;
mod ours;
mod peers;
mod plan;
mod proxy;
mod systems;
mod volume;
mod work;

use std::process::ExitCode;

use anyhow::Context as _;

use crate::exit::{Exit, fail};
use crate::out;
use crate::runner::machine::Machine;
use crate::runner::programs::Programs;
use crate::runner::progress::{Progress, minutes};
use crate::runner::{self, Figure, Made, Options, Record, proc, sys, warn_if_busy};
use plan::{BESIDES, Plan, START};

/// Measures volumes.
#[derive(clap::Args, Debug)]
pub(crate) struct Blocks {
    #[command(flatten)]
    common: Options,
    /// Size of each volume; there are never two at a time.
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = size)]
    volume: u64,
    /// Only 1 to 64 jobs on one volume.
    #[arg(long)]
    jobs: bool,
}

/// Whole requests of 1 MiB, and memory that a machine has.
fn size(text: &str) -> Result<u64, String> {
    match crate::units::size(text) {
        Ok(size) if (1 << 20..=1 << 40).contains(&size) && size % (1 << 20) == 0 => Ok(size),
        Ok(_) => Err("whole MiB, from 1m to 1t".to_owned()),
        Err(error) => Err(error),
    }
}

pub(crate) fn run(options: &Blocks) -> anyhow::Result<ExitCode> {
    let common = &options.common;
    let wish = plan::Wish {
        quick: common.quick,
        jobs: options.jobs,
        only: common.only.clone(),
        rounds: common.rounds([5, 2]),
        seconds: common.seconds([1.0, 1.0]),
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
    let machine = Machine::of("blocks");
    let mut record = Record::new("blocks");
    for missing in plan.without(|system| systems::lacks(system, &bench)) {
        record.missing("volumes", missing.system, &missing.why);
    }
    warn_if_busy(&machine);
    announce(&plan);
    measure(&bench, &plan, &mut record)?;
    let made = Made {
        rounds: plan.rounds,
        seconds: plan.seconds,
        settings: vec![
            ("volume", format!("{} MiB", options.volume >> 20)),
            ("fio's own CPU", format!("{:.3} s", bench.fio_cpu)),
        ],
        machine,
    };
    runner::conclude(common, record, made)
}

/// Says what will happen.
fn announce(plan: &Plan) {
    let parts = [
        (plan.systems.len() * plan.rows.len(), "figures of the table"),
        (plan.swept.len() * plan.sweep.len(), "of many jobs"),
        (plan.gaps.len(), "of the gap"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, of)| format!("{count} {of}")).collect();
    let time = minutes(plan.time().as_secs_f64());
    let (rounds, parts) = (plan.rounds, parts.join(", "));
    out::stderr(&format!(
        "{rounds} rounds of {parts}: about {time}; Ctrl-C clears away\n"
    ));
}

fn measure(bench: &systems::Bench, plan: &Plan, record: &mut Record) -> anyhow::Result<()> {
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
                let done = turn.take(bench, &mut progress, record);
                failed(record, "volumes", system.id, round, done)?;
            }
        }
        for scenario in &plan.gaps {
            let about = format!("round {}/{} {}", round + 1, plan.rounds, scenario.id);
            progress.begins(&about);
            let done = gap::measure(bench, scenario).map(|seen| {
                let text = format!("{about}: {:.1} ms", seen.gap_ms);
                progress.took(plan::gap_cost(scenario), &text);
                let figures = [
                    ("gap", "ms", seen.gap_ms),
                    ("silence", "ms", seen.silence_ms),
                ];
                record.add(scenario.id, seen.by.word(), round, &figures);
            });
            failed(record, scenario.id, "proxy", round, done)?;
        }
    }
    Ok(())
}

/// Keeps what went wrong. `Err`: somebody wants us to stop.
fn failed(
    record: &mut Record,
    row: &str,
    system: &str,
    round: usize,
    done: anyhow::Result<()>,
) -> anyhow::Result<()> {
    anyhow::ensure!(!sys::interrupted(), "interrupted");
    if let Err(error) = done {
        out::stderr(&format!(
            "!! round {} {row} {system}: {error:#}\n",
            round + 1
        ));
        record.failed(row, system, round, &format!("{error:#}"));
    }
    Ok(())
}

fn figures(seen: &work::Outcome) -> [Figure; 4] {
    [
        ("rate", "req/s", seen.per_second),
        ("p50", "µs", seen.p50),
        ("p99", "µs", seen.p99),
        ("cpu", "s/M requests", seen.cpu_seconds_per_million),
    ]
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
        record: &mut Record,
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
            record.add(row.id, system.id, self.round, &figures(&result));
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
