//! `memlane bench`: TCP loopback against memlane, side by side in one run.
//!
//! | room | what |
//! |---|---|
//! | `blocks/` | the block lane: systems side by side instead of two sides |
//! | `packets/` | the packet lane, likewise |
//! | `work/` | the workloads, one file a program |
//! | `trial`, `runner` | one measurement; all of them, alternating |
//! | `proc`, `sys` | programs that are pinned, bounded and always ended |
//! | `peer`, `hist` | the embedded pair and its histogram |
//! | `lane` | which lane the bytes took |
//! | `parse` | what the tools print |
//! | `spread`, `published`, `machine`, `report` | the table |
//! | `devmem/` | the device-memory lane, likewise |
//! | `beside` | what benches of systems side by side have in common |
//! | `plot`, `progress`, `cables` | for several benches: pictures, what is left, two machines of one kernel |

mod beside;
mod blocks;
mod cables;
mod devmem;
mod hist;
mod lane;
mod machine;
mod packets;
mod parse;
mod peer;
mod plot;
mod proc;
mod progress;
mod published;
mod report;
mod runner;
#[cfg(test)]
mod shape;
mod spread;
mod sys;
mod trial;
mod work;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;

use crate::exit::{Exit, fail};
use crate::out;

/// Measures memlane against TCP loopback on this machine.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// The socket lane: stock programs over TCP and over memlane, alternating.
    Sockets(Sockets),
    /// The block lane: volumes, and the network block devices of others.
    Blocks(blocks::Blocks),
    /// The packet lane: three modes, TCP between namespaces, DPDK's testpmd.
    Packets(packets::Packets),
    /// The device-memory lane: paths, copies, tokens, tensors.
    Devmem(devmem::Devmem),
    /// Requests over the API of the block lane.
    #[command(hide = true)]
    Load(blocks::load::Load),
    /// One end of a queue of the packet lane or memif.
    #[command(hide = true)]
    Pump(packets::pump::Pump),
    /// One end of a stream into device memory.
    #[command(hide = true)]
    Hose(devmem::hose::Hose),
    /// Two TAP devices, joined in the simplest way.
    #[command(hide = true)]
    Copier(packets::copier::Copier),
    /// One half of the embedded pair.
    #[command(hide = true)]
    Peer {
        #[command(subcommand)]
        half: peer::Peer,
    },
}

#[derive(clap::Args, Debug)]
struct Sockets {
    /// A short run: 3 rounds of 1 second, pinned only.
    #[arg(long)]
    quick: bool,
    /// Only these: sockperf, iperf3, embedded, nginx, redis, or single rows (nginx-16).
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// How often each pair is measured [default: 5, or 3 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Length of each measurement [default: 2, or 1 with --quick].
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
    /// When connections upgrade on the memlane side.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "eager", "off"])]
    upgrade: String,
    /// Print JSON (schema memlane.bench.sockets/1) instead of the table.
    #[arg(long)]
    json: bool,
    /// Also write sockets.txt, sockets.json and sockets.svg into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The length of a measurement.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.2..=3600.0).contains(&value) => Ok(value),
        _ => Err("a number of seconds from 0.2 to 3600".to_owned()),
    }
}

/// Runs the bench.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Peer { half } => peer::run(&half),
        What::Sockets(options) => sockets(&options),
        What::Blocks(options) => blocks::run(&options),
        What::Packets(options) => packets::run(&options),
        What::Devmem(options) => devmem::run(&options),
        What::Pump(pump) => packets::pump::run(&pump).map(|()| Exit::Ok.into()),
        What::Copier(copier) => packets::copier::run(&copier).map(|()| Exit::Ok.into()),
        What::Hose(hose) => devmem::hose::run(&hose).map(|()| Exit::Ok.into()),
        What::Load(load) => blocks::load::run(&load).map(|()| Exit::Ok.into()),
    }
}

fn sockets(options: &Sockets) -> anyhow::Result<ExitCode> {
    let workloads = work::all();
    let known: Vec<(&str, &'static str)> = workloads
        .iter()
        .flat_map(|workload| {
            workload
                .rows()
                .into_iter()
                .map(|row| (workload.group(), row))
        })
        .collect();
    let rows = chosen(&known, &options.only).map_err(|message| fail(Exit::Usage, message))?;
    let mut cpus = sys::allowed_cpus();
    cpus.truncate(2);
    let one_cpu = cpus.len() < 2;
    let setting = trial::Setting {
        exe: std::env::current_exe().context("where is this program?")?,
        upgrade: options.upgrade.clone(),
        seconds: options
            .seconds
            .unwrap_or(if options.quick { 1.0 } else { 2.0 }),
        scratch: proc::Scratch::new()?,
        cpus: [cpus[0], cpus[cpus.len() - 1]],
        rows,
    };
    if let Err(why) = can_run(&setting) {
        let message = format!("`memlane run` does not work here: {why}");
        return Err(fail(Exit::Unsupported, message));
    }
    if one_cpu {
        out::warn("one CPU only: \"pinned\" puts both programs on it");
    }
    let plan = runner::Plan {
        rounds: usize::from(options.rounds.unwrap_or(if options.quick { 3 } else { 5 })),
        pinned: true,
        unpinned: !options.quick,
    };
    let machine = machine::Machine::here();
    if machine.is_busy() {
        out::warn(&format!(
            "this machine is busy (load {}): figures will spread",
            machine.load
        ));
    }
    sys::watch_for_interrupts();
    let results = runner::run(workloads, &setting, plan, &mut |line| {
        out::stderr(&format!("{line}\n"))
    });
    let how = report::How {
        quick: options.quick,
        rounds: plan.rounds,
        seconds: setting.seconds,
        upgrade: setting.upgrade.clone(),
    };
    conclude(options, &report::Report::new(results, how, machine)?)
}

fn conclude(options: &Sockets, report: &report::Report) -> anyhow::Result<ExitCode> {
    let (text, json) = (report.text(), report.json()?);
    if let Some(folder) = &options.out {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::write(folder.join("sockets.txt"), &text)?;
        fs::write(folder.join("sockets.json"), &json)?;
        fs::write(folder.join("sockets.svg"), report.picture())?;
    }
    out::print(if options.json { &json } else { &text })?;
    let exit = if report.has_failures() {
        Exit::Failed
    } else if report.lane_missed() {
        Exit::FellBack
    } else {
        Exit::Ok
    };
    Ok(exit.into())
}

/// The row ids that `only` names, as groups or rows; all if it names none.
fn chosen(known: &[(&str, &'static str)], only: &[String]) -> Result<Vec<&'static str>, String> {
    for name in only {
        if !known
            .iter()
            .any(|(group, row)| name == group || name == row)
        {
            let mut names: Vec<&str> = known.iter().map(|(group, _)| *group).collect();
            names.dedup();
            names.extend(known.iter().map(|(_, row)| *row));
            let mut seen = Vec::new();
            names.retain(|name| {
                !seen.contains(name) && {
                    seen.push(name);
                    true
                }
            });
            return Err(format!("--only {name}: not one of {}", names.join(", ")));
        }
    }
    let wanted = |group: &str, row: &str| {
        only.is_empty() || only.iter().any(|name| name == group || name == row)
    };
    let rows = known.iter().filter(|(group, row)| wanted(group, row));
    Ok(rows.map(|(_, row)| *row).collect())
}

/// Tries the launcher once: better one clear line than a failure in each row.
fn can_run(setting: &trial::Setting) -> Result<(), String> {
    let output = Command::new(&setting.exe)
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

    const KNOWN: [(&str, &str); 3] = [
        ("nginx", "nginx-1"),
        ("nginx", "nginx-16"),
        ("iperf3", "iperf3"),
    ];

    fn choose(names: &[&str]) -> Result<Vec<&'static str>, String> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        chosen(&KNOWN, &names)
    }

    #[test]
    fn only_takes_groups_and_rows() {
        assert_eq!(choose(&[]).expect("all").len(), 3);
        assert_eq!(choose(&["nginx"]).expect("two"), ["nginx-1", "nginx-16"]);
        assert_eq!(
            choose(&["nginx-16", "iperf3"]).expect("two"),
            ["nginx-16", "iperf3"]
        );
    }

    #[test]
    fn an_unknown_name_is_told_with_the_known_ones() {
        let message = choose(&["apache"]).expect_err("unknown");
        assert!(
            message.contains("apache") && message.contains("nginx-16"),
            "{message}"
        );
    }

    #[test]
    fn seconds_have_bounds() {
        assert!(seconds("0.5").is_ok());
        assert!(seconds("0").is_err() && seconds("-1").is_err() && seconds("NaN").is_err());
    }
}
