//! One measurement: a workload, one side, one pinning.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::Serialize;

use super::proc::{self, Job, Scratch, Service};
use super::{lane, sys};

/// Which of the two columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Plain TCP loopback.
    Tcp,
    /// Under `memlane run`.
    Memlane,
}

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    /// Rates.
    Higher,
    /// Times.
    Lower,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    /// rate, throughput, p50, p99.
    pub(crate) name: &'static str,
    /// Its unit.
    pub(crate) unit: &'static str,
    /// Which way is good.
    pub(crate) better: Better,
}

impl Metric {
    /// Something per second.
    pub(crate) const fn rate(unit: &'static str) -> Self {
        Metric {
            name: "rate",
            unit,
            better: Better::Higher,
        }
    }

    /// Bytes or bits per second.
    pub(crate) const fn throughput(unit: &'static str) -> Self {
        Metric {
            name: "throughput",
            unit,
            better: Better::Higher,
        }
    }

    /// A percentile of the latency, in µs.
    pub(crate) const fn latency(name: &'static str) -> Self {
        Metric {
            name,
            unit: "µs",
            better: Better::Lower,
        }
    }
}

/// One row's figures of one round.
pub(crate) struct Reading {
    /// Id of the row.
    pub(crate) row: &'static str,
    /// Its figures.
    pub(crate) values: Vec<(Metric, f64)>,
    /// Which lane the servers say that the bytes took.
    pub(crate) lane: lane::Usage,
}

/// What is the same in all trials of one bench.
pub(crate) struct Setting {
    /// This program.
    pub(crate) exe: PathBuf,
    /// `--upgrade` of `memlane run`.
    pub(crate) upgrade: String,
    /// Seconds per measurement.
    pub(crate) seconds: f64,
    /// For logs and configurations.
    pub(crate) scratch: Scratch,
    /// Two CPUs, or one twice where there is only one.
    pub(crate) cpus: [usize; 2],
    /// Row ids to measure.
    pub(crate) rows: Vec<&'static str>,
}

/// See the module.
pub(crate) struct Trial<'a> {
    /// What is the same in all of them.
    pub(crate) setting: &'a Setting,
    /// Which column.
    pub(crate) side: Side,
    /// Server on one CPU, client on another?
    pub(crate) pinned: bool,
}

/// Where a program runs.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// The server's CPU when pinned.
    Server,
    /// The client's CPU when pinned.
    Client,
    /// The two CPUs, whether pinned or not.
    BothCpus,
}

impl Trial<'_> {
    /// Whether the row was asked for.
    pub(crate) fn wants(&self, row: &str) -> bool {
        self.setting.rows.contains(&row)
    }

    /// Seconds to measure, as tools with whole seconds take them.
    pub(crate) fn whole_seconds(&self) -> String {
        format!("{:.0}", self.setting.seconds.ceil().max(1.0))
    }

    /// `program args`, under `memlane run` on the memlane side.
    pub(crate) fn command(
        &self,
        place: Place,
        program: &str,
        args: &[&str],
    ) -> anyhow::Result<Command> {
        self.command_on(self.side, place, program, args)
    }

    /// Likewise, but `side` decides.
    pub(crate) fn command_on(
        &self,
        side: Side,
        place: Place,
        program: &str,
        args: &[&str],
    ) -> anyhow::Result<Command> {
        let file =
            proc::find_program(program).with_context(|| format!("{program} is not installed"))?;
        let args = args.iter().map(OsString::from);
        Ok(self.wrap(side, place, file.into(), args.collect()))
    }

    /// One half of the embedded pair.
    pub(crate) fn embedded(&self, side: Side, place: Place, args: &[&str]) -> Command {
        let all = ["bench", "peer"].iter().chain(args).map(OsString::from);
        let exe = self.setting.exe.clone().into();
        self.wrap(side, place, exe, all.collect())
    }

    fn wrap(&self, side: Side, place: Place, file: OsString, args: Vec<OsString>) -> Command {
        let mut command = match side {
            Side::Tcp => Command::new(&file),
            Side::Memlane => {
                let mut command = Command::new(&self.setting.exe);
                command.args(["run", "--upgrade", &self.setting.upgrade, "--"]);
                command.arg(&file);
                command
            }
        };
        command
            .args(args)
            .env("LC_ALL", "C")
            .env_remove("LD_PRELOAD");
        let [first, second] = self.setting.cpus;
        let cpus = match (place, self.pinned) {
            (Place::Server, true) => vec![first],
            (Place::Client, true) => vec![second],
            (Place::BothCpus, _) => vec![first, second],
            (_, false) => Vec::new(),
        };
        sys::confine(&mut command, &cpus);
        command
    }

    /// Starts a server.
    pub(crate) fn serve(&self, command: Command, port: u16) -> anyhow::Result<Service> {
        Service::start(command, port, &self.setting.scratch)
    }

    /// Starts a client.
    pub(crate) fn start(&self, command: Command) -> anyhow::Result<Job> {
        let limit = Duration::from_secs_f64(self.setting.seconds * 4.0 + 20.0);
        Job::start(command, limit, &self.setting.scratch)
    }

    /// Runs a client to its end; its output, and what `server` says of the lane meanwhile.
    pub(crate) fn run(
        &self,
        server: &Service,
        command: Command,
    ) -> anyhow::Result<(String, lane::Usage)> {
        let before = server.lane();
        let text = self.start(command)?.finish()?;
        Ok((text, server.lane().since(&before)))
    }
}

/// A workload: one or more rows that share a server.
pub(crate) trait Workload {
    /// Name for `--only`.
    fn group(&self) -> &'static str;
    /// Its rows.
    fn rows(&self) -> Vec<&'static str>;
    /// Programs that it needs.
    fn programs(&self) -> &'static [&'static str];
    /// Whether it makes sense pinned.
    fn can_pin(&self) -> bool {
        true
    }
    /// Measures the rows asked for.
    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()>;
}

/// Fails with the programs that are missing.
pub(crate) fn require(programs: &[&str]) -> anyhow::Result<()> {
    let missing: Vec<_> = programs
        .iter()
        .filter(|name| proc::find_program(name).is_none())
        .copied()
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(anyhow!("not installed: {}", missing.join(", ")))
}
