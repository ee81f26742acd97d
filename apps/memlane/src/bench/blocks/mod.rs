//! `memlane bench blocks`: memlane's volumes and others' network block devices, side by side in one run.
//!
//! | room | what |
//! |---|---|
//! | `systems` | who is measured: how each is started, and what a load generator is given |
//! | `work` | what is asked of them, and by which generator: fio, or (for the API) `load` |
//! | `report` | the table and the document |

pub(super) mod load;
mod report;
mod systems;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use super::{machine, proc, sys};
use crate::exit::{Exit, fail};
use crate::out;

/// Measures volumes.
#[derive(clap::Args, Debug)]
pub(super) struct Blocks {
    /// A short run: 2 rounds of 1 second, the most telling rows.
    #[arg(long)]
    quick: bool,
    /// Only these rows or systems (see the table).
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// How often each is measured [default: 5, or 2 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Length of each measurement.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seconds: u32,
    /// Jobs from 1 to 64 on one volume instead, in the shape of the seed's tables.
    #[arg(long)]
    jobs: bool,
    /// Print JSON (schema memlane.bench.blocks/1) instead of the table.
    #[arg(long)]
    json: bool,
    /// Also write blocks.txt and blocks.json into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// One figure.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    row: &'static str,
    system: &'static str,
    round: usize,
    result: work::Outcome,
}

pub(super) fn run(options: &Blocks) -> anyhow::Result<ExitCode> {
    let rows = work::rows(options.quick, options.jobs);
    let systems = systems::all();
    check_names(options, &rows, &systems).map_err(|text| fail(Exit::Usage, text))?;
    let rounds = options.rounds.unwrap_or(if options.quick { 2 } else { 5 });
    let bench = systems::Bench {
        exe: std::env::current_exe().context("where is this program?")?,
        scratch: proc::Scratch::new()?,
    };
    sys::watch_for_interrupts();
    let machine = machine::Machine::here();
    if machine.is_busy() {
        out::warn(&format!(
            "this machine is busy (load {}): figures will spread",
            machine.load
        ));
    }
    let named = |name: &str, all: bool| options.only.iter().any(|only| only == name) || all;
    let any_row = !rows.iter().any(|row| named(row.id, false));
    let any_system = !systems.iter().any(|system| named(system.id, false));
    let rows: Vec<_> = rows
        .into_iter()
        .filter(|row| named(row.id, any_row))
        .collect();
    let systems: Vec<_> = systems
        .into_iter()
        .filter(|s| named(s.id, any_system))
        .collect();

    let (mut readings, mut trouble) = (Vec::new(), Vec::new());
    for round in 0..usize::from(rounds) {
        for system in &systems {
            if let Err(error) =
                measure(&bench, system, &rows, round, options.seconds, &mut readings)
            {
                out::stderr(&format!("{} round {}: {error:#}\n", system.id, round + 1));
                trouble.push(report::Trouble::new(system.id, &error));
            }
            if sys::interrupted() {
                anyhow::bail!("interrupted");
            }
        }
    }
    let report = report::Report::new(&readings, &trouble, machine, options.seconds);
    let (text, json) = (report.text(), out::json(&report)?);
    if let Some(folder) = &options.out {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        std::fs::write(folder.join("blocks.txt"), &text)?;
        std::fs::write(folder.join("blocks.json"), &json)?;
    }
    out::print(if options.json { &json } else { &text })?;
    let ours_failed = trouble.iter().any(report::Trouble::is_ours);
    Ok(if ours_failed { Exit::Failed } else { Exit::Ok }.into())
}

/// One system, all rows, one round.
fn measure(
    bench: &systems::Bench,
    system: &systems::System,
    rows: &[work::Row],
    round: usize,
    seconds: u32,
    readings: &mut Vec<Reading>,
) -> anyhow::Result<()> {
    let running = (system.start)(bench)?;
    work::fill(bench, &running).context("filling the volume")?;
    for row in rows {
        let result = work::measure(bench, &running, row, seconds)
            .with_context(|| format!("row {}", row.id))?;
        out::stderr(&format!(
            "{} {} round {}: {:.0} per second\n",
            system.id,
            row.id,
            round + 1,
            result.per_second
        ));
        readings.push(Reading {
            row: row.id,
            system: system.id,
            round,
            result,
        });
    }
    Ok(())
}

fn check_names(
    options: &Blocks,
    rows: &[work::Row],
    systems: &[systems::System],
) -> Result<(), String> {
    let known: Vec<&str> = rows
        .iter()
        .map(|r| r.id)
        .chain(systems.iter().map(|s| s.id))
        .collect();
    match options
        .only
        .iter()
        .find(|name| !known.contains(&name.as_str()))
    {
        Some(name) => Err(format!("--only {name}: not one of {}", known.join(", "))),
        None => Ok(()),
    }
}
