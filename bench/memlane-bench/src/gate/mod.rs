//! `memlane-bench gate`: an older build and this one by turns, in one run; which figures have lost.
//!
//! | room | what |
//! |---|---|
//! | `rows` | what is compared: figures that have an aim |
//! | `turns` | runs of both builds, one after the other |
//! | `verdict` | when a figure has lost |
//! | `report` | the table, and the JSON document |

mod report;
mod rows;
mod turns;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::catalogue::Catalogue;
use crate::exit::{self, Exit, fail};
use crate::out;
use crate::runner::machine::this_machine;
use crate::runner::options::seconds;
use crate::runner::proc::Scratch;
use crate::runner::progress::minutes;
use report::{Report, SCHEMA, Told};
use rows::Row;
use turns::{Build, Turns};
use verdict::judge;

/// A loss of no more than this is none, on the clock on the wall and on the counted one: what two builds of the same
/// source differ by, which nobody's change has made.
const LEAST: [f64; 2] = [0.02, 0.01];
/// Rounds on either clock. The counted one nearly repeats.
const ROUNDS: [u16; 2] = [7, 3];
/// With fewer rounds the clock on the wall tells no spread.
const FEWEST: u16 = 3;

/// Compares this build with an older one, by turns in one run. Ends with 0 if no figure has lost, with 1 if one has.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The folder of the older build.
    #[arg(value_name = "FOLDER")]
    base: PathBuf,
    /// What the older build is called.
    #[arg(long, value_name = "NAME", default_value = "BASE")]
    base_name: String,
    /// The folder of the newer build [default: that of this program].
    #[arg(long, value_name = "FOLDER")]
    built: Option<PathBuf>,
    /// Only these rows: SUITE, ROW or SUITE/ROW; an unknown name lists all of them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// How often each build is measured [default: 7, or 3 with --counted].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// The length of each measurement.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
    seconds: f64,
    /// Compare on the counted clock, in a guest.
    #[arg(long)]
    counted: bool,
    /// Print a JSON document (schema memlane.gate/1) instead of the table.
    #[arg(long)]
    json: bool,
}

/// Holds the gate. What is not about arguments or the machine ends without a verdict.
pub(crate) fn run(args: &Args, catalogues: &[Catalogue]) -> anyhow::Result<ExitCode> {
    held(args, catalogues)
        .map(ExitCode::from)
        .map_err(|error| exit::or(error, Exit::NoVerdict))
}

fn held(args: &Args, catalogues: &[Catalogue]) -> anyhow::Result<Exit> {
    let clock = usize::from(args.counted);
    let rounds = args.rounds.unwrap_or(ROUNDS[clock]);
    if !args.counted && rounds < FEWEST {
        let text = format!("--rounds {rounds}: {FEWEST} at least, or there is no spread");
        return Err(fail(Exit::Usage, text));
    }
    let rows = rows::chosen(catalogues, &args.only, args.counted);
    let rows = rows.map_err(|text| fail(Exit::Usage, text))?;
    let turns = Turns {
        builds: builds(args)?,
        seconds: args.seconds,
        scratch: Scratch::new()?,
    };
    let machine = this_machine(&[]);
    if machine.is_busy() && !args.counted {
        let load = &machine.load;
        out::warn(&format!(
            "this machine is busy (load {load}): small losses will not be seen"
        ));
    }
    let rounds = usize::from(rounds);
    let time = minutes(turns.cost(&rows, rounds));
    let count = rows.len();
    out::stderr(&format!(
        "{rounds} rounds of {count} rows, of both builds: about {time}; Ctrl-C clears away\n"
    ));
    let figures = compared(&turns, &rows, rounds, LEAST[clock])?;
    let [base, new] = turns.builds.map(|build| build.name);
    let report = Report {
        schema: SCHEMA,
        base,
        new,
        rounds,
        seconds: args.seconds,
        counted: args.counted,
        least: LEAST[clock],
        machine,
        lost: figures
            .iter()
            .filter(|told| told.verdict().is_loss())
            .count(),
        figures,
    };
    out::print(&match args.json {
        true => out::json(&report)?,
        false => report.text(),
    })?;
    let untold = |told: &Told| told.verdict() == verdict::Verdict::Untold;
    Ok(match report.lost {
        0 if report.figures.iter().all(untold) => Exit::NoVerdict,
        0 => Exit::Ok,
        _ => Exit::Failed,
    })
}

fn builds(args: &Args) -> anyhow::Result<[Build; 2]> {
    let own = || Some(std::env::current_exe().ok()?.parent()?.to_owned());
    let new = args.built.clone().or_else(own).unwrap_or_default();
    let build = |name: String, folder: &Path| {
        if folder.join("memlane").is_file() {
            let folder = folder.canonicalize()?;
            return Ok(Build { name, folder });
        }
        let text = format!("{}: no build: it has no memlane", folder.display());
        Err(fail(Exit::Usage, text))
    };
    let named = new.display().to_string();
    Ok([
        build(args.base_name.clone(), &args.base)?,
        build(named, &new)?,
    ])
}

/// Measures and judges all figures; those of rows with a loss a second time.
fn compared(turns: &Turns, rows: &[Row], rounds: usize, least: f64) -> anyhow::Result<Vec<Told>> {
    let judged = |rows: &[Row]| -> anyhow::Result<Vec<Vec<Told>>> {
        let measured = turns.measure(rows, rounds)?;
        let told = rows.iter().zip(measured).map(|(row, all)| {
            let all = all.into_iter().map(|series| {
                let judged = judge(series.figure.better, &series.rounds, least);
                Told::new(row, series, judged)
            });
            all.collect()
        });
        Ok(told.collect())
    };
    let mut first = judged(rows)?;
    let has_lost = |all: &[Told]| all.iter().any(|told| told.verdict().is_loss());
    let doubtful = rows.iter().zip(&first).filter(|(_, all)| has_lost(all));
    let doubtful: Vec<Row> = doubtful.map(|(row, _)| row.clone()).collect();
    if !doubtful.is_empty() {
        out::stderr("once more, what has lost:\n");
    }
    let again = judged(&doubtful)?;
    let lost = first.iter_mut().filter(|all| has_lost(all));
    for (all, again) in lost.zip(again) {
        for (told, again) in all.iter_mut().zip(again) {
            told.again = told.verdict().is_loss().then_some(again.judged);
        }
    }
    Ok(first.into_iter().flatten().collect())
}
