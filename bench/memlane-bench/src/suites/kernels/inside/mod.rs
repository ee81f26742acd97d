//! The half in the guest: volumes, attached over one path or two, loaded by fio.
//!
//! | room | what |
//! |---|---|
//! | `network` | the paths: veth pairs with RDMA devices, and how one is cut |
//! | `attached` | how each system's volume is attached, and detached |
//! | `idle` | how much of the machine's time was spent |

mod attached;
mod idle;
mod network;

use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::rows::{GAP, Row, VOLUMES};
use crate::catalogue::System;
use crate::runner::plan::Row as _;
use crate::runner::proc::Job;
use crate::runner::record::Figure;
use crate::runner::turn::Bench;
use crate::suites::blocks::fio;
use crate::suites::blocks::rows::{Pattern, SMALL, Work, work};
use crate::suites::blocks::running::Target;
use crate::suites::guest::Told;
use attached::Attached;
use idle::Idle;
use network::Network;

/// Where fio finds memlane's engine.
pub(super) const ENGINE: &str = "/bin/libmemlane_fio.so";
/// Programs in `/opt`: busybox has other ones of that name.
pub(super) const TOOLS: [&str; 3] = ["ip", "rdma", "tc"];
/// What all systems serve.
const STORE: &str = "/dev/ram0";
/// Bytes of it, as `brd` makes it.
const SIZE: u64 = 16 << 20;
/// What a volume's measurement takes of a socket row's time: figures repeat, and are many.
const SHARE: f64 = 0.5;
/// fio's, beyond its measurement, and for a request that waits for a path.
const PATIENCE: Duration = Duration::from_secs(120);

/// The gap: four requests at a time, then nothing for 20 ms, for 2 s and for as long as one of them takes.
const BURSTS: Work = work(GAP, Pattern::Randread, [SMALL, 4, 1]);
const PAUSES: [&str; 2] = ["--thinktime=20ms", "--thinktime_blocks=4"];
const GAP_SECONDS: f64 = 2.0;
/// From fio's start until a path is cut.
const BEFORE: Duration = Duration::from_millis(1000);

/// What is asked for: rows of one system, and over how many paths.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(in crate::suites) struct Request {
    pub(in crate::suites) system: String,
    pub(in crate::suites) paths: usize,
    pub(in crate::suites) rows: Vec<String>,
}

/// What stays from one request to the next.
pub(in crate::suites) struct Volumes<'a> {
    bench: &'a Bench,
    /// Made when it is first needed.
    network: Option<Network>,
}

impl<'a> Volumes<'a> {
    pub(in crate::suites) fn new(bench: &'a Bench) -> Self {
        Volumes {
            bench,
            network: None,
        }
    }

    /// Measures rows; `keep` is given each one's figures.
    ///
    /// # Errors
    /// What went wrong with the first row that was not kept.
    pub(in crate::suites) fn measure(
        &mut self,
        request: &Request,
        keep: &mut dyn FnMut(&str, Vec<Told>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let network = match self.network.take() {
            Some(network) => network,
            None => prepare()?,
        };
        let network = &*self.network.insert(network);
        let system = system(&request.system)?;
        let paths = network.paths(request.paths)?;
        let attached = Attached::new(self.bench, &system, paths)
            .with_context(|| format!("attaching {}", system.id))?;
        let done = (request.rows.iter())
            .try_for_each(|id| keep(id, row_of(self.bench, &attached.target, network, id)?));
        let gone = attached.detach();
        done.and(gone)
    }
}

/// The figures of one row.
fn row_of(
    bench: &Bench,
    target: &Target,
    network: &Network,
    id: &str,
) -> anyhow::Result<Vec<Told>> {
    let row = Row::all().into_iter().find(|row| row.id() == id);
    let figures = match row.context("an unknown row")? {
        Row::Volume(_, work) => load(bench, target, &work)?,
        Row::Gap => gap(bench, target, network)?,
        Row::Sockets(_) => anyhow::bail!("no row of volumes"),
    };
    let told = figures.into_iter();
    let told = told.map(|(metric, unit, value)| (metric.to_owned(), unit.to_owned(), value));
    Ok(told.collect())
}

/// Loads a volume with a row.
fn load(bench: &Bench, target: &Target, work: &Work) -> anyhow::Result<Vec<Figure>> {
    let seconds = bench.seconds * SHARE;
    let command = fio::by_fio(target, work, (SIZE, seconds))?;
    let idle = Idle::watch();
    let text = Job::start(command, PATIENCE, &bench.scratch)?.finish()?;
    let busy = idle.busy(seconds)?;
    let mut outcome = fio::fio_outcome(&text)?;
    outcome.cpu_seconds_per_million = busy * 1e6 / outcome.per_second;
    Ok(outcome.figures().to_vec())
}

/// How long the slowest request takes while the first path passes nothing on.
fn gap(bench: &Bench, target: &Target, network: &Network) -> anyhow::Result<Vec<Figure>> {
    let mut command = fio::by_fio(target, &BURSTS, (SIZE, GAP_SECONDS))?;
    command.args(PAUSES);
    let job = Job::start(command, PATIENCE, &bench.scratch)?;
    std::thread::sleep(BEFORE);
    network.silence(0, true)?;
    let text = job.finish();
    network.silence(0, false)?;
    Ok(vec![("gap", "ms", fio::slowest_ms(&text?)?)])
}

fn system(id: &str) -> anyhow::Result<System> {
    let mut all = VOLUMES.into_iter();
    all.find(|system| system.id == id)
        .context("an unknown system")
}

/// The network, and a store that has all its pages.
fn prepare() -> anyhow::Result<Network> {
    std::fs::write(STORE, vec![0x5a; usize::try_from(SIZE)?]).context(STORE)?;
    Network::new()
}
