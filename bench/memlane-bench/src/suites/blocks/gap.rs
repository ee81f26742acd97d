//! The time without I/O when a path dies: a generator asks all the while, and says how long its slowest request took.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::ours::serve;
use super::proxy::Link;
use super::rows::{Event, Scenario};
use super::running::{Bench, volume};
use crate::catalogue::{System, system};
use crate::out;
use crate::runner::cables::{self, Cables, Side};
use crate::runner::proc::{Job, Service, confined, free_port, listens};
use crate::runner::record::Figure;
use crate::runner::sys;

/// The port of the server where it has a network of its own.
const PORT: u16 = 1234;
/// Requests that the generator has under way.
const DEPTH: u32 = 4;
/// For the generator to open its volume over all paths.
const BEGIN_LIMIT: Duration = Duration::from_secs(20);
/// Undisturbed, before anything happens.
const BEFORE: Duration = Duration::from_millis(300);
/// How long a cable is out, where there is no other.
const OUTAGE: Duration = Duration::from_secs(2);

/// What was seen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Seen {
    /// Milliseconds that the slowest request took, less those in which there was no path at all.
    pub(super) gap_ms: f64,
    /// Milliseconds in which no request was answered, less the same: other paths may go on.
    pub(super) silence_ms: f64,
    /// How paths were broken.
    pub(super) by: By,
}

/// How paths are broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// Network namespaces (root's), and a cable that is pulled.
    Cable,
    /// A proxy in this process.
    Proxy,
}

pub(super) const CABLE: System = system("cable", "a cable is pulled", true);
pub(super) const PROXY: System = system("proxy", "a proxy breaks", true);

impl By {
    pub(super) fn system(self) -> System {
        match self {
            By::Cable => CABLE,
            By::Proxy => PROXY,
        }
    }
}

impl Seen {
    pub(super) fn figures(&self) -> [Figure; 2] {
        [
            ("gap", "ms", self.gap_ms),
            ("silence", "ms", self.silence_ms),
        ]
    }
}

/// What the generator says.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub(crate) struct Longest {
    /// Requests that were answered.
    pub(crate) requests: u64,
    /// The longest that one took.
    pub(crate) request_ms: f64,
    /// Longest time between two answers.
    pub(crate) without_answer_ms: f64,
    /// How often a path that was up went down.
    pub(crate) paths_lost: u64,
}

/// The paths of a scenario, which can be broken.
enum Paths {
    Cables(Cables),
    Links(Vec<Link>),
}

/// Runs it once.
pub(super) fn measure(bench: &Bench, scenario: &Scenario) -> anyhow::Result<Seen> {
    let (paths, by) = match cables_for(scenario) {
        Some(cables) => (Paths::Cables(cables), By::Cable),
        None => (Paths::Links(Vec::new()), By::Proxy),
    };
    // The server ends before the machine that it runs on.
    let (server, at, paths) = start(bench, scenario.paths, paths)?;
    let sign = bench.scratch.name("begun");
    let mut command = match &paths {
        Paths::Cables(cables) => cables.command(Side::Client, &bench.programs.lanes),
        Paths::Links(_) => confined(&bench.programs.lanes),
    };
    generator(&mut command, scenario, &sign);
    command.args([&at.join(","), &volume(bench.size)]);
    let limit = Duration::from_secs_f64(scenario.seconds) + Duration::from_secs(40);
    let job = begun(Job::start(command, limit, &bench.scratch)?, &sign)?;
    std::thread::sleep(BEFORE);
    let outage = happens(&paths, scenario)?;
    let longest: Longest = job.told()?;
    drop((server, paths));
    seen(&longest, outage, by)
}

/// Cables are pulled where there can be some; the document says `by` what a path was broken.
fn cables_for(scenario: &Scenario) -> Option<Cables> {
    if scenario.event != Event::Cut || !is_root() {
        return None;
    }
    match Cables::new(scenario.paths) {
        Ok(cables) => Some(cables),
        Err(error) => {
            out::stderr(&format!("!! no cables here, a proxy instead: {error:#}\n"));
            None
        }
    }
}

/// A gap is only what was seen when a path did die.
fn seen(longest: &Longest, outage: Duration, by: By) -> anyhow::Result<Seen> {
    anyhow::ensure!(longest.requests > 0, "no request was answered");
    anyhow::ensure!(longest.paths_lost > 0, "no path was lost");
    let beyond = |millis: f64| (millis - outage.as_secs_f64() * 1000.0).max(0.0);
    Ok(Seen {
        gap_ms: beyond(longest.request_ms),
        silence_ms: beyond(longest.without_answer_ms),
        by,
    })
}

fn generator(command: &mut Command, scenario: &Scenario, begun: &Path) {
    command.args(["peer", "load", "--json", "--longest"]);
    command.args(["--depth", &DEPTH.to_string()]);
    command.args(["--seconds", &scenario.seconds.to_string()]);
    command.arg("--begun").arg(begun);
}

/// The server, and the addresses of its paths as the client sees them.
fn start(
    bench: &Bench,
    count: usize,
    paths: Paths,
) -> anyhow::Result<(Service, Vec<String>, Paths)> {
    match paths {
        Paths::Cables(cables) => {
            let at: Vec<String> = (0..count)
                .map(|cable| format!("tcp://{}:{PORT}", cables::address(cable, Side::Server)))
                .collect();
            let command = cables.command(Side::Server, &bench.programs.memlane);
            let ready = |pid| listens(pid, PORT);
            let server = serve(bench, command, &at, &[], ready)?;
            Ok((server, at, Paths::Cables(cables)))
        }
        Paths::Links(_) => {
            let port = free_port()?;
            let at = format!("tcp://127.0.0.1:{port}");
            let ready = |pid| listens(pid, port);
            let server = serve(bench, confined(&bench.programs.memlane), &[at], &[], ready)?;
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            let links: Vec<Link> = (0..count)
                .map(|_| Link::new(to))
                .collect::<anyhow::Result<_>>()?;
            let at = links.iter().map(|link| format!("tcp://{}", link.address()));
            Ok((server, at.collect(), Paths::Links(links)))
        }
    }
}

/// Until the generator has begun; it is ended if it does not, and its own words are the error if it has ended.
fn begun(mut job: Job, sign: &Path) -> anyhow::Result<Job> {
    let begin = Instant::now();
    while !sign.exists() {
        anyhow::ensure!(!sys::interrupted(), "interrupted");
        if job.has_ended()? {
            job.finish()?;
            anyhow::bail!("the generator ended before it began");
        }
        let waited = begin.elapsed();
        anyhow::ensure!(waited < BEGIN_LIMIT, "the generator did not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(job)
}

/// Breaks the first path; how long there was none at all.
fn happens(paths: &Paths, scenario: &Scenario) -> anyhow::Result<Duration> {
    let alone = scenario.paths == 1;
    match (paths, scenario.event) {
        (Paths::Links(links), Event::Reset) => {
            links[0].reset(!alone);
            Ok(Duration::ZERO)
        }
        (Paths::Links(links), Event::Cut) => outage(alone, |out| {
            links[0].silence(out);
            Ok(())
        }),
        (Paths::Cables(cables), _) => outage(alone, |out| cables.pull(0, out)),
    }
}

fn outage(alone: bool, pull: impl Fn(bool) -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    pull(true)?;
    if !alone {
        return Ok(Duration::ZERO);
    }
    let out = Instant::now();
    std::thread::sleep(OUTAGE);
    pull(false)?;
    Ok(out.elapsed())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_counts_only_where_there_is_no_other_path() {
        let told = std::cell::RefCell::new(Vec::new());
        let pull = |out| {
            told.borrow_mut().push(out);
            Ok(())
        };
        let none = outage(false, pull).expect("no outage");
        assert_eq!((none, told.take()), (Duration::ZERO, vec![true]));
        let some = outage(true, pull).expect("an outage");
        assert!(some >= OUTAGE);
        assert_eq!(told.take(), [true, false], "and the cable is back");
    }

    #[test]
    fn a_gap_is_what_is_beyond_the_outage_and_none_if_no_path_was_lost() {
        let longest = Longest {
            requests: 9,
            request_ms: 2300.0,
            without_answer_ms: 1900.0,
            paths_lost: 1,
        };
        let outage = Duration::from_secs(2);
        let told = seen(&longest, outage, By::Proxy).expect("a gap");
        assert_eq!((told.gap_ms, told.silence_ms), (300.0, 0.0));
        for wrong in [
            Longest {
                paths_lost: 0,
                ..longest
            },
            Longest {
                requests: 0,
                ..longest
            },
        ] {
            assert!(seen(&wrong, outage, By::Cable).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_generator_outlives_what_happens() {
        for scenario in super::super::rows::SCENARIOS {
            let alone = scenario.event == Event::Cut && scenario.paths == 1;
            let outage = if alone { OUTAGE } else { Duration::ZERO };
            let aim = Duration::from_secs_f64(scenario.at_most_ms / 1000.0);
            let ends = Duration::from_secs_f64(scenario.seconds);
            assert!(BEFORE + outage + 2 * aim < ends, "{}", scenario.id);
        }
    }
}
