//! One measurement: a workload, one system, one pinning.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, anyhow};

use crate::runner::proc::{self, Job, Scratch, Service};
use crate::runner::programs::Programs;
use crate::runner::{lane, sys};
use crate::suites::{System, system};

/// Which of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Side {
    /// Plain TCP loopback.
    Tcp,
    /// UNIX domain sockets, where the program has them.
    Unix,
    /// Under `memlane run --mode copy`.
    Copy,
    /// Under `memlane run --mode nocopy`.
    Nocopy,
}

impl Side {
    /// From left to right.
    pub(super) const ALL: [Side; 4] = [Side::Tcp, Side::Unix, Side::Copy, Side::Nocopy];
    /// Of programs that speak TCP only.
    pub(super) const OF_TCP: [Side; 3] = [Side::Tcp, Side::Copy, Side::Nocopy];

    /// Name and description.
    pub(super) const fn system(self) -> System {
        match self {
            Side::Tcp => system("tcp", "TCP", false),
            Side::Unix => system("unix", "UNIX", false),
            Side::Copy => system("copy", "memlane copy", true),
            Side::Nocopy => system("nocopy", "memlane nocopy", true),
        }
    }

    /// `--only`, documents.
    pub(super) const fn id(self) -> &'static str {
        self.system().id
    }

    /// `--mode` of `memlane run`.
    pub(super) fn mode(self) -> Option<&'static str> {
        self.system().ours.then(|| self.id())
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Metric {
    /// rate, throughput, p50, p99, cpu.
    pub(super) name: &'static str,
    /// Its unit.
    pub(super) unit: &'static str,
}

impl Metric {
    /// Something per second.
    pub(super) const fn rate(unit: &'static str) -> Self {
        Metric { name: "rate", unit }
    }

    /// Bytes or bits per second.
    pub(super) const fn throughput(unit: &'static str) -> Self {
        Metric {
            name: "throughput",
            unit,
        }
    }

    /// A percentile of the latency, in µs.
    pub(super) const fn latency(name: &'static str) -> Self {
        Metric { name, unit: "µs" }
    }

    const fn cpu(unit: &'static str) -> Self {
        Metric { name: "cpu", unit }
    }
}

/// So many in a second, and how long one takes, in µs: half of all at most, all but one of a hundred at most.
pub(super) fn of_requests(unit: &'static str, [rate, p50, p99]: [f64; 3]) -> Vec<(Metric, f64)> {
    vec![
        (Metric::rate(unit), rate),
        (Metric::latency("p50"), p50),
        (Metric::latency("p99"), p99),
    ]
}

/// Processor seconds for a million requests; nothing, if there were too few to tell.
pub(super) fn cpu_of_requests(seconds: f64, requests: f64) -> Option<(Metric, f64)> {
    told(Metric::cpu("s/M requests"), seconds, requests / 1e6)
}

/// Processor seconds for a gigabyte, likewise.
pub(super) fn cpu_of_bytes(seconds: f64, bytes: f64) -> Option<(Metric, f64)> {
    told(Metric::cpu("s/GB"), seconds, bytes / 1e9)
}

/// The kernel tells processor time in steps of 10 ms: a few of them must have gone by.
fn told(metric: Metric, seconds: f64, units: f64) -> Option<(Metric, f64)> {
    (seconds >= 0.05 && units > 0.0).then(|| (metric, seconds / units))
}

/// One row's figures of one round.
pub(super) struct Reading {
    /// Id of the row.
    pub(super) row: &'static str,
    /// Its figures.
    pub(super) values: Vec<(Metric, f64)>,
    /// Which lane the servers say that the bytes took.
    pub(super) lane: lane::Usage,
}

/// What is the same in all trials of one bench.
pub(super) struct Setting {
    pub(super) programs: Programs,
    /// `--upgrade` of `memlane run`.
    pub(super) upgrade: String,
    /// Seconds per measurement.
    pub(super) seconds: f64,
    /// For logs and configurations.
    pub(super) scratch: Scratch,
    /// Two CPUs, or one twice where there is only one.
    pub(super) cpus: [usize; 2],
    /// Row ids to measure.
    pub(super) rows: Vec<&'static str>,
}

/// See the module.
pub(super) struct Trial<'a> {
    /// What is the same in all of them.
    pub(super) setting: &'a Setting,
    /// Which column.
    pub(super) side: Side,
    /// Server on one CPU, client on another?
    pub(super) pinned: bool,
}

/// Where a program runs.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// The server's CPU when pinned.
    Server,
    /// The client's CPU when pinned.
    Client,
    /// The two CPUs, whether pinned or not.
    BothCpus,
}

/// Where a server is found.
#[derive(Clone, Debug)]
pub(super) enum Address {
    /// On 127.0.0.1.
    Port(u16),
    /// A socket file.
    File(String),
}

impl Address {
    /// For `memlane-bench peer peer`.
    pub(super) fn text(&self) -> String {
        match self {
            Address::Port(port) => format!("127.0.0.1:{port}"),
            Address::File(path) => format!("unix:{path}"),
        }
    }
}

/// What a client has printed, and what it took.
pub(super) struct Ran {
    /// Standard output.
    pub(super) text: String,
    /// What the server says of the lane meanwhile.
    pub(super) lane: lane::Usage,
    /// Processor seconds of server and client.
    pub(super) cpu: f64,
}

impl Ran {
    /// As figures of a row.
    pub(super) fn reading(self, row: &'static str, values: Vec<(Metric, f64)>) -> Reading {
        Reading {
            row,
            values,
            lane: self.lane,
        }
    }
}

impl Trial<'_> {
    /// Whether the row was asked for.
    pub(super) fn wants(&self, row: &str) -> bool {
        self.setting.rows.contains(&row)
    }

    /// Seconds to measure, as tools with whole seconds take them.
    pub(super) fn whole_seconds(&self) -> String {
        format!("{:.0}", self.setting.seconds.ceil().max(1.0))
    }

    /// A place for a server of this column that nobody has.
    pub(super) fn address(&self) -> anyhow::Result<Address> {
        if self.side != Side::Unix {
            return Ok(Address::Port(proc::free_port()?));
        }
        let path = self.setting.scratch.name("socket");
        let path = path.to_str();
        let path = path.context("the temporary folder's name is not UTF-8")?;
        Ok(Address::File(path.to_owned()))
    }

    /// `program args`, under `memlane run` in memlane's columns.
    pub(super) fn command(
        &self,
        place: Place,
        program: &str,
        args: &[&str],
    ) -> anyhow::Result<Command> {
        let file =
            proc::find_program(program).with_context(|| format!("{program} is not installed"))?;
        let args = args.iter().map(OsString::from);
        Ok(self.wrap(self.side, place, file.into(), args.collect()))
    }

    /// One half of the embedded pair; `side` decides.
    pub(super) fn embedded(&self, side: Side, place: Place, args: &[&str]) -> Command {
        let all = ["peer", "embedded"].iter().chain(args).map(OsString::from);
        let exe = self.setting.programs.bench.clone().into();
        self.wrap(side, place, exe, all.collect())
    }

    fn wrap(&self, side: Side, place: Place, file: OsString, args: Vec<OsString>) -> Command {
        let mut command = match side.mode() {
            None => Command::new(&file),
            Some(mode) => {
                let mut command = Command::new(&self.setting.programs.memlane);
                command.args(["run", "--upgrade", &self.setting.upgrade]);
                command.args(["--mode", mode, "--"]).arg(&file);
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
    pub(super) fn serve(&self, command: Command, at: &Address) -> anyhow::Result<Service> {
        let scratch = &self.setting.scratch;
        match at {
            Address::Port(port) => Service::start(command, *port, scratch),
            Address::File(path) => {
                Service::start_until(command, scratch, |_| proc::listens_at(path))
            }
        }
    }

    /// Starts a client.
    pub(super) fn start(&self, command: Command) -> anyhow::Result<Job> {
        self.start_for(self.setting.seconds, command)
    }

    /// Starts a client that measures for `seconds`.
    pub(super) fn start_for(&self, seconds: f64, command: Command) -> anyhow::Result<Job> {
        let limit = Duration::from_secs_f64(seconds * 4.0 + 20.0);
        Job::start(command, limit, &self.setting.scratch)
    }

    /// Runs a client to its end.
    pub(super) fn run(&self, server: &Service, command: Command) -> anyhow::Result<Ran> {
        self.run_for(self.setting.seconds, server, command)
    }

    /// Runs a client that measures for `seconds` to its end.
    pub(super) fn run_for(
        &self,
        seconds: f64,
        server: &Service,
        command: Command,
    ) -> anyhow::Result<Ran> {
        let before = server.lane();
        let cpu = || server.cpu_seconds() + sys::children_cpu_seconds();
        let begin = cpu();
        let text = self.start_for(seconds, command)?.finish()?;
        Ok(Ran {
            text,
            lane: server.lane().since(&before),
            cpu: cpu() - begin,
        })
    }
}

/// A workload: one or more rows that share a server.
pub(super) trait Workload {
    /// Name for `--only`.
    fn group(&self) -> &'static str;
    /// Its rows.
    fn rows(&self) -> Vec<&'static str>;
    /// Programs that it needs.
    fn programs(&self) -> &'static [&'static str] {
        &[]
    }
    /// In which columns it has figures.
    fn sides(&self) -> &'static [Side] {
        &Side::ALL
    }
    /// Whether it makes sense pinned, and not pinned.
    fn pinning(&self) -> &'static [bool] {
        &[true, false]
    }
    /// About how many seconds a row takes, for one column and pinning.
    fn cost(&self, seconds: f64) -> f64 {
        seconds.ceil() + 0.3
    }
    /// Measures the rows asked for.
    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()>;
}

/// Fails with the programs that are missing.
pub(super) fn require(programs: &[&str]) -> anyhow::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_told_only_where_there_was_enough_of_it() {
        let (metric, value) = cpu_of_requests(2.0, 500_000.0).expect("enough");
        assert_eq!((metric.unit, value), ("s/M requests", 4.0));
        assert_eq!(cpu_of_bytes(0.5, 2e9).expect("enough").1, 0.25);
        assert!(cpu_of_bytes(0.02, 2e9).is_none());
        assert!(cpu_of_requests(1.0, 0.0).is_none());
    }

    #[test]
    fn only_columns_of_memlane_have_a_mode() {
        let modes = Side::ALL.map(Side::mode);
        assert_eq!(modes, [None, None, Some("copy"), Some("nocopy")]);
    }
}
