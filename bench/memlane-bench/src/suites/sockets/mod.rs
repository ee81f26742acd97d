//! `memlane-bench run sockets`: the socket lane in both modes, TCP and UNIX domain sockets, side by side in one run.
//!
//! | room | what |
//! |---|---|
//! | `lines`, `rows`, `works` | what is measured, of whom |
//! | `catalogue` | what the tables show; what should be reached |
//! | `trial` | one column of a program: its commands, and what they took |
//! | `owner` | who runs programs that refuse to be root |
//! | `network` | where server and client are: here, or in two network namespaces |
//! | `work/` | the drivers, one file a program |
//! | `peer/` | the embedded pairs |
//! | `native/` | memory handed over by name, beside iceoryx2 and a bare ring |
//!
//! `containers` measures with the same `works`, `trial`, `work` and `peer`.

pub(crate) mod catalogue;
mod lines;
pub(crate) mod native;
pub(in crate::suites) mod network;
mod owner;
pub(crate) mod peer;
mod rows;
pub(in crate::suites) mod trial;
pub(in crate::suites) mod work;
pub(in crate::suites) mod works;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use crate::catalogue::{Catalogue, System};
use crate::exit::{Exit, fail};
use crate::runner::machine::{Asked, this_machine};
use crate::runner::options::Options;
use crate::runner::plan;
use crate::runner::plan::{Plan, Row as _, Wish};
use crate::runner::proc::find_program;
use crate::runner::programs::Programs;
use crate::runner::progress::Progress;
use crate::runner::record::Record;
use crate::runner::sockmap::Sockmap;
use crate::runner::turn::{self, Bench, Suite, Turn};
use crate::sample::Run;
use lines::WORKS;
use network::Network;
use rows::{Kind, Part, Row};
use trial::{Reading, Trial};
use works::{By, Line, Pinning, Side};

/// Programs whose versions stand in the record.
pub(in crate::suites) const PROGRAMS: &[Asked] = &[
    ("nginx", &["-v"]),
    ("wrk", &["-v"]),
    ("redis-server", &["--version"]),
    ("iperf3", &["--version"]),
    ("sockperf", &["--version"]),
];

/// What to measure besides, and with what.
#[derive(clap::Args, Debug)]
pub(crate) struct Sockets {
    /// When connections upgrade in memlane's columns.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "eager", "off"])]
    upgrade: String,
    /// The program that does the same with iceoryx2 [default: the one that ./dev bench sockets has built].
    #[arg(long, value_name = "PROGRAM")]
    iceoryx2: Option<PathBuf>,
}

struct Measured {
    bench: Bench,
    /// `--upgrade` of `memlane run`.
    upgrade: String,
    /// The program for iceoryx2, if there is one.
    other: Option<PathBuf>,
    kept: work::Kept,
    network: Network,
    /// If a row has that column; else, or if there can be none, why not.
    sockmap: Result<Sockmap, String>,
}

pub(crate) fn run(options: &Options, more: &Sockets) -> anyhow::Result<Run> {
    let plan = planned(options.wish([5, 3], [2.0, 1.0]))?;
    let bench = Bench::new(options.programs()?, plan.wish.seconds)?;
    let other = native::find(more.iceoryx2.as_deref(), &bench.programs.bench);
    let mut measured = Measured::new(bench, &more.upgrade, other, &plan)?;
    turn::run(&mut measured, plan)
}

/// A few rows over TCP and over memlane, without a word on standard error.
pub(crate) fn quietly(rows: &[&str], rounds: usize, seconds: f64) -> anyhow::Result<Run> {
    let only = rows
        .iter()
        .copied()
        .chain([Side::Tcp, Side::Nocopy].map(Side::id));
    let plan = planned(Wish {
        quick: true,
        rest: false,
        stranger: false,
        only: only.map(str::to_owned).collect(),
        rounds,
        more_rounds: 0,
        seconds,
    })?;
    let bench = Bench::new(Programs::find(None)?, seconds)?;
    let mut measured = Measured::new(bench, "auto", None, &plan)?;
    let mut record = Record::new(Measured::NAME);
    turn::rounds(
        &mut measured,
        &plan,
        0..rounds,
        &mut record,
        &mut Progress::silent(),
    )?;
    record.finished(&plan.wish, measured.settings(), this_machine(&[]))
}

/// A short run is of pinned programs only, and so is one of the rows that it leaves out.
fn planned(wish: Wish) -> anyhow::Result<Plan<Row>> {
    let mut plan: Plan<Row> = Plan::new(wish)?;
    let few = plan.wish.quick || plan.wish.rest;
    plan.rows.retain(|row| !few || !row.is_free());
    Ok(plan)
}

impl Measured {
    /// # Errors
    /// memlane is asked for, and cannot run programs here.
    fn new(
        bench: Bench,
        upgrade: &str,
        other: Option<PathBuf>,
        plan: &Plan<Row>,
    ) -> anyhow::Result<Measured> {
        // Neither what others do nor what is called by name takes a launcher.
        if plan.measures(|part, system| part != Part::ByName && system.ours) {
            try_launcher(&bench.programs, upgrade)?;
        }
        Ok(Measured {
            bench,
            upgrade: upgrade.to_owned(),
            other,
            kept: work::Kept::default(),
            network: Network::loopback(),
            sockmap: sockmap(plan),
        })
    }

    /// Rows of a program in one column, by their CPUs.
    fn programs(
        &mut self,
        turn: &mut Turn<'_, Row>,
        system: &System,
        place: usize,
        rows: &[Row],
    ) -> anyhow::Result<()> {
        let Some(side) = Side::of(system) else {
            return Ok(());
        };
        for now in Pinning::ALL {
            let lines = rows.iter().filter_map(|row| match row {
                Row::Program { line, pinning, .. } if *pinning == now => Some(*line),
                _ => None,
            });
            let lines: Vec<&'static Line> = lines.collect();
            if lines.is_empty() {
                continue;
            }
            let trial = Trial {
                bench: &self.bench,
                upgrade: &self.upgrade,
                side,
                pinning: now,
                network: &self.network,
                sockmap: self.sockmap.as_ref().ok(),
                smc: None,
            };
            let mut readings = Vec::new();
            let done = work::measure(&trial, &WORKS[place], &lines, &mut self.kept, &mut readings);
            for reading in readings {
                let row = rows.iter().find(|row| {
                    matches!(row, Row::Program { line, pinning, .. } if line.id == reading.row && *pinning == now)
                });
                if let Some(row) = row {
                    keep(turn, row, system, &reading);
                }
            }
            done?;
        }
        Ok(())
    }

    /// Memory that is handed over, and bytes that are carried.
    fn by_name(
        &self,
        turn: &mut Turn<'_, Row>,
        system: &System,
        rows: &[Row],
    ) -> anyhow::Result<()> {
        for now in [Kind::Handover, Kind::Carried] {
            let of = rows.iter().filter_map(|row| match row {
                Row::ByName { kind, bytes } if *kind == now => Some(*bytes),
                _ => None,
            });
            let sizes: Vec<u64> = of.filter(|_| now.has(system)).collect();
            let told = native::measure(&self.bench, self.other.as_deref(), now, system.id, &sizes)?;
            for told in told {
                let row = Row::ByName {
                    kind: now,
                    bytes: told.bytes,
                };
                turn.keep(&row, system, &native::figures(now, &told));
            }
        }
        Ok(())
    }
}

impl Suite for Measured {
    type Row = Row;
    const NAME: &'static str = "sockets";
    const PROGRAMS: &'static [Asked] = PROGRAMS;

    fn catalogue() -> Catalogue {
        catalogue::catalogue()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("upgrade", self.upgrade.clone())]
    }

    fn lacks(&self, part: Part, system: &System) -> Option<String> {
        let Part::Work(place) = part else {
            return native::lacks(system, self.other.as_deref());
        };
        if Side::of(system) == Some(Side::Sockmap)
            && let Err(why) = &self.sockmap
        {
            return Some(why.clone());
        }
        let work = &WORKS[place];
        if work.by == By::Tunnel && !geteuid().is_root() {
            return Some("not root: another user's sshd lets nobody in".into());
        }
        not_installed(work.programs.iter().copied())
    }

    fn measure(
        &mut self,
        turn: &mut Turn<'_, Row>,
        system: &System,
        rows: &[Row],
    ) -> anyhow::Result<()> {
        match rows[0].part() {
            Part::Work(place) => self.programs(turn, system, place, rows),
            Part::ByName => self.by_name(turn, system, rows),
        }
    }
}

/// Makes a sockmap if a row has that column.
fn sockmap(plan: &Plan<Row>) -> Result<Sockmap, String> {
    match plan.measures(|_, system| Side::of(system) == Some(Side::Sockmap)) {
        true => Sockmap::new().map_err(|why| format!("{why:#}")),
        false => Err("nobody asked for it".into()),
    }
}

/// Which of these programs are not there, if so.
pub(in crate::suites) fn not_installed(
    programs: impl Iterator<Item = &'static str>,
) -> Option<String> {
    let missing: Vec<&str> = programs
        .filter(|name| find_program(name).is_none())
        .collect();
    (!missing.is_empty()).then(|| format!("not installed: {}", missing.join(", ")))
}

/// For tests: all lines of programs.
#[cfg(test)]
pub(in crate::suites) fn all_lines() -> Vec<&'static Line> {
    WORKS.iter().flat_map(|work| work.lines).collect()
}

/// Keeps the figures of a row, with the way that its bytes took.
pub(in crate::suites) fn keep<R: plan::Row>(
    turn: &mut Turn<'_, R>,
    row: &R,
    system: &System,
    reading: &Reading,
) {
    turn.keep(row, system, &figures(reading));
}

/// All figures of a reading, with the way that its bytes took.
pub(in crate::suites) fn figures(reading: &Reading) -> Vec<(String, &'static str, f64)> {
    let lane = &reading.lane;
    let told = lane.pages > 0;
    let bytes = [("ring_bytes", lane.ring), ("tcp_bytes", lane.tcp)];
    let bytes = bytes.into_iter().filter(|_| told);
    let bytes = bytes.chain(reading.carried.map(|bytes| ("wire_bytes", bytes)));
    let bytes = bytes.map(|(metric, bytes)| (metric, "B", bytes as f64));
    let values = reading.values.iter().copied().chain(bytes);
    let values = values.map(|(metric, unit, value)| (metric.to_owned(), unit, value));
    let reasons = lane.reasons.iter().filter(|_| told);
    let reasons = reasons.map(|(code, connections)| {
        let name = memlane_core::reason::Reason(*code).name();
        (
            format!("fallback.{name}"),
            "connections",
            *connections as f64,
        )
    });
    values.chain(reasons).collect()
}

/// Tries the launcher once: better one clear line than a failure in each row.
///
/// # Errors
/// memlane cannot run programs here.
pub(in crate::suites) fn try_launcher(programs: &Programs, upgrade: &str) -> anyhow::Result<()> {
    let output = Command::new(&programs.memlane)
        .args(["run", "--upgrade", upgrade, "--", "true"])
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output();
    let why = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let why = why.trim().trim_start_matches("memlane: ");
    let message = format!("`memlane run` does not work here: {why}");
    Err(fail(Exit::Unsupported, message))
}
