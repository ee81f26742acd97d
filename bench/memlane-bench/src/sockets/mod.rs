//! `memlane-bench run sockets`: the socket lane in both modes, TCP and UNIX domain sockets, side by side in one run.
//!
//! | room | what |
//! |---|---|
//! | `work/` | the workloads, one file a program |
//! | `trial`, `runner` | one measurement; all of them, alternating |
//! | `peer/` | the embedded pairs |
//! | `native/` | memory handed over by name, beside iceoryx2 and a bare ring |
//! | `published` | what others measured; what should be reached |
//! | `report`, `text` (`table`), `pictures`, `page` | the document, its tables, its plots, all of it as one page |

pub(super) mod native;
mod page;
pub(super) mod peer;
mod pictures;
mod published;
mod report;
mod runner;
mod table;
mod text;
mod trial;
mod work;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context;

use super::beside::{self, Printed, Run};
use super::progress::{Progress, minutes};
use super::{machine, proc, sys};
use crate::exit::{Exit, fail};
use crate::out;
use crate::programs::Programs;
use trial::{Side, Workload};

/// What to measure, how often, how long.
#[derive(clap::Args, Debug)]
pub(super) struct Sockets {
    /// A short run: 3 rounds of 1 second, pinned only, and not all rows.
    #[arg(long)]
    quick: bool,
    /// Only these: groups (sockperf, nginx, connections, rr, stream, native …), rows (nginx-16) or columns (unix, iceoryx2).
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// How often everything is measured [default: 5, or 3 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Length of each measurement; a quarter for each size of a sweep [default: 2, or 1 with --quick].
    #[arg(long, value_name = "S", value_parser = super::seconds)]
    seconds: Option<f64>,
    /// When connections upgrade in memlane's columns.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "eager", "off"])]
    upgrade: String,
    /// The program that does the same with iceoryx2 [default: the one that ./dev bench sockets has built].
    #[arg(long, value_name = "PROGRAM")]
    iceoryx2: Option<PathBuf>,
    /// Print JSON (schema memlane.bench.sockets/2) instead of the tables.
    #[arg(long)]
    json: bool,
    /// Also write one page with all of it into this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write sockets.md, sockets.json, sockets.html and the plots into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn run(options: &Sockets) -> anyhow::Result<ExitCode> {
    let workloads = work::all();
    let chosen = Chosen::new(&workloads, &options.only, options.quick)
        .map_err(|message| fail(Exit::Usage, message))?;
    let mut cpus = sys::allowed_cpus();
    cpus.truncate(2);
    let setting = trial::Setting {
        upgrade: options.upgrade.clone(),
        seconds: options
            .seconds
            .unwrap_or(if options.quick { 1.0 } else { 2.0 }),
        scratch: proc::Scratch::new()?,
        cpus: [cpus[0], cpus[cpus.len() - 1]],
        rows: chosen.rows.clone(),
        programs: Programs::find()?,
    };
    // Neither what others do nor what is called by name takes a launcher.
    if !setting.rows.is_empty()
        && chosen.sides.iter().any(|side| side.mode().is_some())
        && let Err(why) = can_run(&setting)
    {
        let message = format!("`memlane run` does not work here: {why}");
        return Err(fail(Exit::Unsupported, message));
    }
    if cpus.len() < 2 {
        out::warn("one CPU only: \"pinned\" puts both programs on it");
    }
    let rounds = usize::from(options.rounds.unwrap_or(if options.quick { 3 } else { 5 }));
    let plan = runner::Plan {
        rounds,
        sides: chosen.sides.clone(),
        pinning: if options.quick {
            vec![true]
        } else {
            vec![true, false]
        },
    };
    let hand = native::Plan {
        systems: chosen.native.clone(),
        sizes: native_sizes(options.quick),
        rounds,
        seconds: (setting.seconds / 8.0).clamp(0.02, 0.5),
        other: native::find(options.iceoryx2.as_deref(), &setting.programs.memlane),
    };
    let machine = machine::Machine::here();
    beside::warn_if_busy(&machine);
    sys::watch_for_interrupts();
    let time = plan.time(&workloads, &setting) + hand.time();
    let (rows, told) = (chosen.rows.len(), minutes(time));
    out::stderr(&format!(
        "{rounds} rounds of {rows} rows in {} columns, and {} of native: about {told}; Ctrl-C clears away\n",
        plan.sides.len(),
        hand.systems.len()
    ));
    let mut progress = Progress::new(Duration::from_secs_f64(time));
    let results = runner::run(workloads, &setting, &plan, &mut progress);
    let (hand, handed) = native::run(hand, &setting, &mut progress);
    anyhow::ensure!(!sys::interrupted(), "interrupted");
    let run = Run::new(report::SCHEMA, options.quick, rounds, setting.seconds)?;
    let native = native::Report::new(&hand, &handed);
    let upgrade = options.upgrade.clone();
    conclude(
        options,
        &report::Report::new(results, native, run, upgrade, machine)?,
    )
}

/// Bytes, in steps of four, or of sixteen and the largest.
fn native_sizes(quick: bool) -> Vec<u64> {
    let all = (0..=11).map(|step| 1u64 << (2 * step));
    let wanted = |size: &u64| !quick || size.trailing_zeros().is_multiple_of(4) || *size == 1 << 22;
    all.filter(wanted).collect()
}

fn conclude(options: &Sockets, report: &report::Report) -> anyhow::Result<ExitCode> {
    let (json, pictures) = (out::json(report)?, pictures::of(report));
    let page = page::of(report, &pictures, &json);
    if let Some(file) = &options.html {
        std::fs::write(file, &page).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let mut pictures = pictures;
    pictures.push(("sockets.html".to_owned(), page));
    let printed = Printed {
        text: text::of(report),
        json,
        pictures,
    };
    printed.conclude("sockets", options.out.as_deref(), options.json)?;
    let exit = if report.has_failures() {
        Exit::Failed
    } else if report.lane_missed() {
        Exit::FellBack
    } else {
        Exit::Ok
    };
    Ok(exit.into())
}

/// What `--only` names.
#[derive(Debug)]
struct Chosen {
    rows: Vec<&'static str>,
    sides: Vec<Side>,
    native: Vec<beside::System>,
}

impl Chosen {
    /// Groups and rows narrow the rows, columns the columns; all where none is named.
    fn new(
        workloads: &[Box<dyn Workload>],
        only: &[String],
        quick: bool,
    ) -> Result<Chosen, String> {
        let known: Vec<(&str, &'static str)> = workloads
            .iter()
            .flat_map(|workload| {
                let rows = workload.rows().into_iter();
                rows.map(|row| (workload.group(), row))
            })
            .collect();
        beside::plan::known(only, &names(&known))?;
        let named = |id: &str| only.iter().any(|name| name == id);
        let native_named = named(native::GROUP) || native::SYSTEMS.iter().any(|s| named(s.id));
        let any_side = Side::ALL.iter().any(|side| named(side.id()));
        let any_row = known.iter().any(|(group, row)| named(group) || named(row));
        let all_rows = !any_row && (any_side || !native_named);
        let usual = |row: &str| !quick || !work::takes_long(row);
        let rows = known
            .iter()
            .filter(|(group, row)| named(row) || usual(row) && (all_rows || named(group)));
        let sides = Side::ALL.into_iter();
        let any_native = native::SYSTEMS.iter().any(|system| named(system.id));
        let native = native::SYSTEMS.iter().filter(|system| {
            let whole = named(native::GROUP) || !any_row && !any_side;
            named(system.id) || whole && !any_native
        });
        Ok(Chosen {
            rows: rows.map(|(_, row)| *row).collect(),
            sides: sides.filter(|side| !any_side || named(side.id())).collect(),
            native: native.copied().collect(),
        })
    }
}

/// Whatever `--only` takes.
fn names(known: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    let groups = known.iter().map(|(group, _)| *group).chain([native::GROUP]);
    let columns = Side::ALL.iter().map(|side| side.id());
    let systems = native::SYSTEMS.iter().map(|system| system.id);
    let rows = known.iter().map(|(_, row)| *row);
    beside::plan::distinct(groups.chain(columns).chain(systems).chain(rows))
}

/// Tries the launcher once: better one clear line than a failure in each row.
fn can_run(setting: &trial::Setting) -> Result<(), String> {
    let output = Command::new(&setting.programs.memlane)
        .args(["run", "--upgrade", &setting.upgrade, "--", "true"])
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.trim().trim_start_matches("memlane: ").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(names: &[&str], quick: bool) -> Result<Chosen, String> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        Chosen::new(&work::all(), &names, quick)
    }

    fn counts(names: &[&str], quick: bool) -> [usize; 3] {
        let chosen = choose(names, quick).expect("known names");
        [chosen.rows.len(), chosen.sides.len(), chosen.native.len()]
    }

    #[test]
    fn names_narrow_what_they_name_and_nothing_else() {
        assert_eq!(counts(&[], false), [53, 4, 7]);
        assert_eq!(counts(&[], true), [53 - 8 - 10, 4, 7]);
        assert_eq!(counts(&["nginx"], false), [9, 4, 0]);
        assert_eq!(counts(&["nginx-16", "iperf3"], true), [2, 4, 0]);
        assert_eq!(counts(&["unix", "tcp"], false), [53, 2, 0]);
        assert_eq!(counts(&["native"], true), [0, 4, 7]);
        assert_eq!(counts(&["iceoryx2", "native-lane"], true), [0, 4, 2]);
        assert_eq!(counts(&["msg100", "native", "ring"], true), [1, 4, 1]);
    }

    #[test]
    fn an_unknown_name_is_told_with_the_known_ones() {
        let message = choose(&["apache"], false).expect_err("unknown");
        for name in ["apache", "nginx-16", "nocopy", "iceoryx2", "native"] {
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn a_short_run_has_both_ends_of_the_sizes() {
        assert_eq!(native_sizes(false).len(), 12);
        let short = native_sizes(true);
        assert_eq!(short, [1, 16, 256, 4096, 65536, 1 << 20, 1 << 22]);
    }
}
