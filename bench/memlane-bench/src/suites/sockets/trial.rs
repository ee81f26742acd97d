//! One measurement: a workload, one system, one pinning.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::rows::Side;
use crate::runner::proc::{self, Job, Service};
use crate::runner::record::Figure;
use crate::runner::turn::Bench;
use crate::runner::{lane, sys};

/// So many in a second, and how long one takes, in µs: half of all at most, all but one of a hundred at most.
pub(super) fn of_requests(unit: &'static str, [rate, p50, p99]: [f64; 3]) -> Vec<Figure> {
    vec![("rate", unit, rate), ("p50", "µs", p50), ("p99", "µs", p99)]
}

/// Processor seconds for a million requests; nothing, if there were too few to tell.
pub(super) fn cpu_of_requests(seconds: f64, requests: f64) -> Option<Figure> {
    told("s/M requests", seconds, requests / 1e6)
}

/// Processor seconds for a gigabyte; nothing, if there were too few to tell.
pub(super) fn cpu_of_bytes(seconds: f64, bytes: f64) -> Option<Figure> {
    told("s/GB", seconds, bytes / 1e9)
}

/// The kernel tells processor time in steps of 10 ms: a few of them must have gone by.
fn told(unit: &'static str, seconds: f64, units: f64) -> Option<Figure> {
    (seconds >= 0.05 && units > 0.0).then(|| ("cpu", unit, seconds / units))
}

/// One row's figures of one round.
pub(super) struct Reading {
    /// Id of the row.
    pub(super) row: &'static str,
    /// Its figures.
    pub(super) values: Vec<Figure>,
    /// Which lane the servers say that the bytes took.
    pub(super) lane: lane::Usage,
}

/// One column, and where its programs run.
pub(super) struct Trial<'a> {
    pub(super) bench: &'a Bench,
    /// `--upgrade` of `memlane run`.
    pub(super) upgrade: &'a str,
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
    /// For `memlane-bench peer embedded`.
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
    pub(super) fn reading(self, row: &'static str, values: Vec<Figure>) -> Reading {
        Reading {
            row,
            values,
            lane: self.lane,
        }
    }
}

impl Trial<'_> {
    /// Seconds to measure, as tools with whole seconds take them.
    pub(super) fn whole_seconds(&self) -> String {
        format!("{:.0}", self.bench.seconds.ceil().max(1.0))
    }

    /// A place for a server of this column that nobody has.
    pub(super) fn address(&self) -> anyhow::Result<Address> {
        if self.side != Side::Unix {
            return Ok(Address::Port(proc::free_port()?));
        }
        let path = self.bench.scratch.name("socket");
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
        let exe = self.bench.programs.bench.clone().into();
        self.wrap(side, place, exe, all.collect())
    }

    fn wrap(&self, side: Side, place: Place, file: OsString, args: Vec<OsString>) -> Command {
        let mut command = match side.mode() {
            None => Command::new(&file),
            Some(mode) => {
                let mut command = Command::new(&self.bench.programs.memlane);
                command.args(["run", "--upgrade", self.upgrade]);
                command.args(["--mode", mode, "--"]).arg(&file);
                command
            }
        };
        command
            .args(args)
            .env("LC_ALL", "C")
            .env_remove("LD_PRELOAD");
        let [first, second] = self.bench.cpus;
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
        let scratch = &self.bench.scratch;
        match at {
            Address::Port(port) => Service::start(command, *port, scratch),
            Address::File(path) => {
                Service::start_until(command, scratch, |_| proc::listens_at(path))
            }
        }
    }

    /// Starts a client.
    pub(super) fn start(&self, command: Command) -> anyhow::Result<Job> {
        self.start_for(self.bench.seconds, command)
    }

    /// Starts a client that measures for `seconds`.
    pub(super) fn start_for(&self, seconds: f64, command: Command) -> anyhow::Result<Job> {
        let limit = Duration::from_secs_f64(seconds * 4.0 + 20.0);
        Job::start(command, limit, &self.bench.scratch)
    }

    /// Runs a client to its end.
    pub(super) fn run(&self, server: &Service, command: Command) -> anyhow::Result<Ran> {
        self.run_for(self.bench.seconds, server, command)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_told_only_where_there_was_enough_of_it() {
        let told = cpu_of_requests(2.0, 500_000.0);
        assert_eq!(told, Some(("cpu", "s/M requests", 4.0)));
        assert_eq!(cpu_of_bytes(0.5, 2e9), Some(("cpu", "s/GB", 0.25)));
        assert!(cpu_of_bytes(0.02, 2e9).is_none());
        assert!(cpu_of_requests(1.0, 0.0).is_none());
    }
}
