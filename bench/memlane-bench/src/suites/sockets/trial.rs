//! One measurement: a workload, one system, one pinning.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::network::{End, Network};
use super::owner::Owner;
use super::works::{Pinning, Side};
use crate::runner::proc::{self, Job, Service};
use crate::runner::record::Figure;
use crate::runner::smc::Smc;
use crate::runner::sockmap::Sockmap;
use crate::runner::turn::Bench;
use crate::runner::{lane, sys};

/// Requests in a second, and the time that one takes, in µs: the median, and the 99th percentile.
pub(in crate::suites) fn of_requests(
    unit: &'static str,
    [rate, p50, p99]: [f64; 3],
) -> Vec<Figure> {
    vec![("rate", unit, rate), ("p50", "µs", p50), ("p99", "µs", p99)]
}

/// Processor seconds for a million requests; nothing, if there were too few to tell.
pub(in crate::suites) fn cpu_of_requests(seconds: f64, requests: f64) -> Option<Figure> {
    told("s/M requests", seconds, requests / 1e6)
}

/// Processor seconds for a gigabyte; nothing, if there were too few to tell.
pub(in crate::suites) fn cpu_of_bytes(seconds: f64, bytes: f64) -> Option<Figure> {
    told("s/GB", seconds, bytes / 1e9)
}

/// The kernel tells processor time in steps of 10 ms: a few of them must have gone by.
fn told(unit: &'static str, seconds: f64, units: f64) -> Option<Figure> {
    (seconds >= 0.05 && units > 0.0).then(|| ("cpu", unit, seconds / units))
}

/// One row's figures of one round.
pub(in crate::suites) struct Reading {
    /// Id of the row.
    pub(in crate::suites) row: &'static str,
    /// Its figures.
    pub(in crate::suites) values: Vec<Figure>,
    /// Which lane the servers say that the bytes took.
    pub(in crate::suites) lane: lane::Usage,
    /// Bytes that the cable between the two has carried, if there is one.
    pub(in crate::suites) carried: Option<u64>,
}

/// One column, and where its programs run.
pub(in crate::suites) struct Trial<'a> {
    pub(in crate::suites) bench: &'a Bench,
    /// `--upgrade` of `memlane run`.
    pub(in crate::suites) upgrade: &'a str,
    /// Which column.
    pub(in crate::suites) side: Side,
    /// On which CPUs.
    pub(in crate::suites) pinning: Pinning,
    pub(in crate::suites) network: &'a Network,
    /// In the column of that name.
    pub(in crate::suites) sockmap: Option<&'a Sockmap>,
    /// In the column of that name.
    pub(in crate::suites) smc: Option<&'a Smc>,
}

/// Where a program runs.
#[derive(Clone, Copy)]
pub(in crate::suites) struct Place {
    end: End,
    cpus: Cpus,
}

#[derive(Clone, Copy)]
enum Cpus {
    /// That of its end when pinned.
    Own,
    /// The two, whether pinned or not.
    Both,
}

impl Place {
    /// In the server's network, on its CPU when pinned.
    pub(in crate::suites) const SERVER: Place = Place {
        end: End::Server,
        cpus: Cpus::Own,
    };
    /// In the client's network, on its CPU when pinned.
    pub(in crate::suites) const CLIENT: Place = Place {
        end: End::Client,
        cpus: Cpus::Own,
    };

    /// The same on the two CPUs, whether pinned or not.
    pub(in crate::suites) const fn on_both_cpus(self) -> Place {
        Place {
            cpus: Cpus::Both,
            ..self
        }
    }
}

/// Where a server is found.
#[derive(Clone, Debug)]
pub(in crate::suites) enum Address {
    /// At the server's address.
    Port(u16),
    /// A socket file.
    File(String),
}

/// What a client has printed, and what it took.
pub(in crate::suites) struct Ran {
    /// Standard output.
    pub(in crate::suites) text: String,
    /// What the server says of the lane meanwhile.
    pub(in crate::suites) lane: lane::Usage,
    /// Processor seconds of server and client.
    pub(in crate::suites) cpu: f64,
    /// Bytes that the cable between the two has carried meanwhile, if there is one.
    carried: Option<u64>,
}

impl Ran {
    /// As figures of a row.
    pub(in crate::suites) fn reading(self, row: &'static str, values: Vec<Figure>) -> Reading {
        Reading {
            row,
            values,
            lane: self.lane,
            carried: self.carried,
        }
    }
}

impl Trial<'_> {
    /// Seconds to measure, as tools with whole seconds take them.
    pub(in crate::suites) fn whole_seconds(&self) -> String {
        format!("{:.0}", self.bench.seconds.ceil().max(1.0))
    }

    /// A place for a server of this column that nobody has.
    pub(in crate::suites) fn address(&self) -> anyhow::Result<Address> {
        if self.side != Side::Unix {
            return Ok(Address::Port(proc::free_port()?));
        }
        let path = self.bench.scratch.name("socket");
        let path = path.to_str();
        let path = path.context("the temporary folder's name is not UTF-8")?;
        Ok(Address::File(path.to_owned()))
    }

    /// Where the server listens, for `memlane-bench peer embedded`.
    pub(in crate::suites) fn listens(&self, at: &Address) -> String {
        told_of(self.network.listens(), at)
    }

    /// Where the client finds it, likewise.
    pub(in crate::suites) fn reached(&self, at: &Address) -> String {
        told_of(self.network.reached(), at)
    }

    /// `program args`, under `memlane run` in memlane's columns.
    pub(in crate::suites) fn command(
        &self,
        place: Place,
        program: &str,
        args: &[&str],
    ) -> anyhow::Result<Command> {
        let file =
            proc::find_program(program).with_context(|| format!("{program} is not installed"))?;
        let args = args.iter().map(OsString::from);
        let memlane = &self.bench.programs.memlane;
        Ok(self.wrap(self.side, place, memlane, file.into(), args.collect()))
    }

    /// The same, run by `owner`.
    pub(in crate::suites) fn command_of(
        &self,
        owner: &Owner,
        place: Place,
        program: &str,
        args: &[&str],
    ) -> anyhow::Result<Command> {
        let file =
            proc::find_program(program).with_context(|| format!("{program} is not installed"))?;
        let args = args.iter().map(OsString::from);
        let mut command = self.wrap(
            self.side,
            place,
            &owner.memlane,
            file.into(),
            args.collect(),
        );
        owner.runs(&mut command);
        Ok(command)
    }

    /// One half of the embedded pair; `side` decides.
    pub(in crate::suites) fn embedded(&self, side: Side, place: Place, args: &[&str]) -> Command {
        let all = ["peer", "embedded"].iter().chain(args).map(OsString::from);
        let exe = self.bench.programs.bench.clone().into();
        let memlane = &self.bench.programs.memlane;
        self.wrap(side, place, memlane, exe, all.collect())
    }

    fn wrap(
        &self,
        side: Side,
        place: Place,
        memlane: &Path,
        file: OsString,
        args: Vec<OsString>,
    ) -> Command {
        let mut command = match side.mode() {
            None => self.network.command(place.end, &file),
            Some(mode) => {
                let mut command = self.network.command(place.end, &memlane.into());
                command.args(["run", "--upgrade", self.upgrade]);
                command.args(
                    self.network
                        .domain(place.end)
                        .map(|folder| format!("--domain={folder}")),
                );
                command.args(side.ring().map(|size| format!("--ring={size}")));
                command.args(["--mode", mode, "--"]).arg(&file);
                command
            }
        };
        command
            .args(args)
            .env("LC_ALL", "C")
            .env_remove("LD_PRELOAD");
        let [first, second] = self.bench.cpus;
        let cpus = match (place.cpus, self.pinning, place.end) {
            (Cpus::Both, ..) => vec![first, second],
            (Cpus::Own, Pinning::Apart, End::Client) => vec![second],
            (Cpus::Own, Pinning::Apart, End::Server) | (Cpus::Own, Pinning::Together, _) => {
                vec![first]
            }
            (Cpus::Own, Pinning::Free, _) => Vec::new(),
        };
        sys::confine(&mut command, &cpus);
        if let (Side::Sockmap, Some(sockmap)) = (side, self.sockmap) {
            sockmap.confine(&mut command);
        }
        if let (Side::Smc, Some(smc)) = (side, self.smc) {
            smc.gives_sockets(&mut command);
        }
        command
    }

    /// Starts a server.
    pub(in crate::suites) fn serve(
        &self,
        command: Command,
        at: &Address,
    ) -> anyhow::Result<Service> {
        let scratch = &self.bench.scratch;
        match at {
            Address::Port(port) => Service::start(command, *port, scratch),
            Address::File(path) => {
                Service::start_until(command, scratch, |_| proc::listens_at(path))
            }
        }
    }

    /// Starts a client.
    pub(in crate::suites) fn start(&self, command: Command) -> anyhow::Result<Job> {
        self.start_for(self.bench.seconds, command)
    }

    /// Starts a client that measures for `seconds`.
    pub(in crate::suites) fn start_for(
        &self,
        seconds: f64,
        command: Command,
    ) -> anyhow::Result<Job> {
        let limit = Duration::from_secs_f64(seconds * 4.0 + 20.0);
        Job::start(command, limit, &self.bench.scratch)
    }

    /// Runs a client to its end.
    pub(in crate::suites) fn run(&self, server: &Service, command: Command) -> anyhow::Result<Ran> {
        self.run_for(self.bench.seconds, server, command)
    }

    /// Which way bytes have taken until now.
    fn lane(&self, server: &Service) -> lane::Usage {
        match self.side {
            Side::Smc => Smc::usage(),
            _ => server.lane(),
        }
    }

    /// Starts the embedded server of this name on its CPU. Returns where its client reaches it, too.
    pub(in crate::suites) fn serve_embedded(
        &self,
        name: &str,
    ) -> anyhow::Result<(Service, String)> {
        let at = self.address()?;
        let args = [name, "--at", &self.listens(&at)];
        let server = self.embedded(self.side, Place::SERVER, &args);
        Ok((self.serve(server, &at)?, self.reached(&at)))
    }

    /// Runs a client that measures for `seconds` to its end.
    pub(in crate::suites) fn run_for(
        &self,
        seconds: f64,
        server: &Service,
        command: Command,
    ) -> anyhow::Result<Ran> {
        let servers = [server];
        let watch = Watch::begin(self, &servers);
        let text = self.start_for(seconds, command)?.finish()?;
        Ok(watch.end(text))
    }

    /// Runs a client of the first of some servers, behind which the others are. It is the first one that tells the lane.
    pub(in crate::suites) fn run_through(
        &self,
        servers: &[&Service],
        command: Command,
    ) -> anyhow::Result<Ran> {
        let watch = Watch::begin(self, servers);
        let text = self.start(command)?.finish()?;
        Ok(watch.end(text))
    }

    /// Runs a client of a server whose processes end with their connections: what they say of the lane is read while the
    /// client is still busy.
    pub(in crate::suites) fn run_and_look(
        &self,
        server: &Service,
        command: Command,
    ) -> anyhow::Result<Ran> {
        let servers = [server];
        let watch = Watch::begin(self, &servers);
        let mut job = self.start(command)?;
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < self.bench.seconds * LOOK && !job.has_ended()? {
            sleep(Duration::from_millis(10));
        }
        let lane = watch.lane();
        let text = job.finish()?;
        Ok(Ran {
            lane,
            ..watch.end(text)
        })
    }
}

/// The share of a measurement after which the lane is read, where it cannot be read at the end.
const LOOK: f64 = 0.75;

/// What some servers had done when a client began.
struct Watch<'a> {
    trial: &'a Trial<'a>,
    servers: &'a [&'a Service],
    lane: lane::Usage,
    wire: Option<u64>,
    cpu: f64,
}

impl<'a> Watch<'a> {
    fn begin(trial: &'a Trial<'_>, servers: &'a [&'a Service]) -> Watch<'a> {
        Watch {
            trial,
            servers,
            lane: trial.lane(servers[0]),
            wire: trial.network.carried(),
            cpu: cpu_of(servers),
        }
    }

    /// Which way bytes have taken since then.
    fn lane(&self) -> lane::Usage {
        self.trial.lane(self.servers[0]).since(&self.lane)
    }

    /// The client has ended.
    fn end(&self, text: String) -> Ran {
        let carried = self.trial.network.carried().zip(self.wire);
        Ran {
            text,
            lane: self.lane(),
            cpu: cpu_of(self.servers) - self.cpu,
            carried: carried.map(|(now, then)| now - then),
        }
    }
}

/// Processor seconds of servers, and of clients that have ended.
fn cpu_of(servers: &[&Service]) -> f64 {
    let servers = servers.iter().map(|server| server.cpu_seconds());
    servers.sum::<f64>() + sys::children_cpu_seconds()
}

fn told_of(host: &str, at: &Address) -> String {
    match at {
        Address::Port(port) => format!("{host}:{port}"),
        Address::File(path) => format!("unix:{path}"),
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
