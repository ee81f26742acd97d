//! `memlane-bench run sockets`: the socket lane in both modes, TCP and UNIX domain sockets, side by side in one run.
//!
//! | room | what |
//! |---|---|
//! | `work/` | the workloads, one file a program |
//! | `catalogue` | what the tables show; what should be reached |
//! | `trial`, `rounds` | one measurement; all of them, alternating |
//! | `peer/` | the embedded pairs |
//! | `demo` | a few rows, for `./dev demo` |
//! | `native/` | memory handed over by name, beside iceoryx2 and a bare ring |

pub(crate) mod catalogue;
pub(crate) mod demo;
pub(crate) mod native;
pub(crate) mod peer;
mod rounds;
mod trial;
mod work;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use crate::exit::{Exit, fail};
use crate::out;
use crate::runner::machine::Machine;
use crate::runner::programs::Programs;
use crate::runner::progress::{Progress, minutes};
use crate::runner::{self, Made, Options, Record, plan, proc, sys, warn_if_busy};
use crate::suites::System;
use trial::{Side, Workload};

/// What to measure, how often, how long.
#[derive(clap::Args, Debug)]
pub(crate) struct Sockets {
    #[command(flatten)]
    common: Options,
    /// When connections upgrade in memlane's columns.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "eager", "off"])]
    upgrade: String,
    /// The program that does the same with iceoryx2 [default: the one that ./dev bench sockets has built].
    #[arg(long, value_name = "PROGRAM")]
    iceoryx2: Option<PathBuf>,
}

pub(crate) fn run(options: &Sockets) -> anyhow::Result<ExitCode> {
    let common = &options.common;
    let workloads = work::all();
    let chosen = Chosen::new(&workloads, &common.only, common.quick)
        .map_err(|message| fail(Exit::Usage, message))?;
    let setting = setting(options, &chosen)?;
    let rounds = common.rounds([5, 3]);
    let plan = rounds::Plan {
        rounds,
        sides: chosen.sides.clone(),
        pinning: match common.quick {
            true => vec![true],
            false => vec![true, false],
        },
    };
    let native = native::Plan {
        systems: chosen.native.clone(),
        sizes: native::sizes(common.quick),
        rounds,
        seconds: (setting.seconds / 8.0).clamp(0.02, 0.5),
        other: native::find(options.iceoryx2.as_deref(), &setting.programs.bench),
    };
    let machine = Machine::of("sockets");
    warn_if_busy(&machine);
    sys::watch_for_interrupts();
    let time = plan.time(&workloads, &setting) + native.time();
    let (rows, told) = (chosen.rows.len(), minutes(time));
    out::stderr(&format!(
        "{rounds} rounds of {rows} rows in {} columns, and {} of native: about {told}; Ctrl-C clears away\n",
        plan.sides.len(),
        native.systems.len()
    ));
    let mut progress = Progress::new(Duration::from_secs_f64(time));
    let mut record = Record::new("sockets");
    rounds::run(workloads, &setting, &plan, &mut record, &mut progress);
    native::run(native, &setting, &mut record, &mut progress);
    anyhow::ensure!(!sys::interrupted(), "interrupted");
    let made = Made {
        rounds,
        seconds: setting.seconds,
        settings: vec![("upgrade", options.upgrade.clone())],
        machine,
    };
    runner::conclude(common, record, made)
}

/// What is the same in all trials. `Err`: memlane cannot run programs here.
fn setting(options: &Sockets, chosen: &Chosen) -> anyhow::Result<trial::Setting> {
    let mut cpus = sys::allowed_cpus();
    cpus.truncate(2);
    let setting = trial::Setting {
        upgrade: options.upgrade.clone(),
        seconds: options.common.seconds([2.0, 1.0]),
        scratch: proc::Scratch::new()?,
        cpus: [cpus[0], cpus[cpus.len() - 1]],
        rows: chosen.rows.clone(),
        programs: Programs::find()?,
    };
    // Neither what others do nor what is called by name takes a launcher.
    let ours = chosen.sides.iter().any(|side| side.mode().is_some());
    if !setting.rows.is_empty()
        && ours
        && let Err(why) = can_run(&setting)
    {
        let message = format!("`memlane run` does not work here: {why}");
        return Err(fail(Exit::Unsupported, message));
    }
    if cpus.len() < 2 {
        out::warn("one CPU only: \"pinned\" puts both programs on it");
    }
    Ok(setting)
}

/// What `--only` names.
#[derive(Debug)]
struct Chosen {
    rows: Vec<&'static str>,
    sides: Vec<Side>,
    native: Vec<System>,
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
        plan::known(only, &names(&known))?;
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
    plan::distinct(groups.chain(columns).chain(systems).chain(rows))
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
        assert_eq!(native::sizes(false).len(), 12);
        let short = native::sizes(true);
        assert_eq!(short, [1, 16, 256, 4096, 65536, 1 << 20, 1 << 22]);
    }
}
