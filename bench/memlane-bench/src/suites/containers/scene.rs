//! What the columns need: networks, an agent with a domain of its own, two agents that share a region, and a sockmap.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};

use super::rows::{COLUMNS, Column, Place};
use crate::runner::proc::{Service, confined};
use crate::runner::sockmap::Sockmap;
use crate::runner::turn::Bench;
use crate::suites::sockets::network::Network;
use crate::suites::sockets::works::Side;

/// Why sockmap has no column behind NAT.
const NO_MATCH: &str = "it finds the other end by its addresses and ports, and NAT lets the two ends see different ones";
/// What the agent says when it is ready.
const READY: &str = "serves ";

/// Bytes of the region: the least that has the largest rings (256 KiB).
const REGION: u64 = 1 << 30;

/// What is there, or why it is not.
type Made<T> = Result<T, String>;

/// Two machines: the server's agent and the client's, which share a region. Its file has no name any more.
struct Machines {
    network: Network,
    agents: [Service; 2],
}

/// A file in memory, whose name is gone when dropped: whoever has opened it keeps it.
struct Region(PathBuf);

impl Region {
    fn new() -> anyhow::Result<Region> {
        let path = format!("/dev/shm/memlane-bench-{}", std::process::id());
        let file = File::create_new(&path).with_context(|| path.clone())?;
        let region = Region(path.into());
        file.set_len(REGION)?;
        Ok(region)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Machines {
    fn new(bench: &Bench) -> anyhow::Result<Machines> {
        let region = Region::new()?;
        let domains = ["server", "client"].map(|end| bench.scratch.name(end));
        let agent = |domain: &PathBuf| {
            let mut command = confined(&bench.programs.memlane);
            command.arg("agent").arg(domain).env_remove("LD_PRELOAD");
            command.arg(format!("--device=ivshmem:{}", region.0.display()));
            Service::start_saying(command, &bench.scratch, READY)
        };
        let agents = [agent(&domains[0])?, agent(&domains[1])?];
        let domains = domains.map(|domain| domain.display().to_string());
        Ok(Machines {
            network: Network::cable()?.with_domains(domains),
            agents,
        })
    }
}

/// All of it; gone when dropped.
pub(super) struct Scene {
    agent: Made<Service>,
    machines: Made<Machines>,
    sockmap: Made<Sockmap>,
    same: Network,
    cable: Made<Network>,
    nat: Made<Network>,
}

impl Scene {
    /// Makes what the columns that are wanted need.
    pub(super) fn new(bench: &Bench, wanted: impl Fn(&Column) -> bool) -> Scene {
        let needs = |what: &dyn Fn(&Column) -> bool| {
            COLUMNS.iter().any(|column| what(column) && wanted(column))
        };
        let domain = bench.scratch.name("domain");
        let with = |network: Network| network.with_domain(domain.display().to_string());
        let agent = || {
            let mut command = confined(&bench.programs.memlane);
            command.arg("agent").arg(&domain).env_remove("LD_PRELOAD");
            Service::start_saying(command, &bench.scratch, READY)
        };
        Scene {
            agent: made(needs(&asks), agent),
            machines: made(needs(&|column| column.place == Place::Machines), || {
                Machines::new(bench)
            }),
            sockmap: made(needs(&|column| column.side == Side::Sockmap), Sockmap::new),
            same: Network::loopback().with_domain("off"),
            cable: made(needs(&|column| column.place == Place::Cable), || {
                Network::cable().map(with)
            }),
            nat: made(needs(&|column| column.place == Place::Nat), || {
                Network::behind_nat().map(with)
            }),
        }
    }

    /// Why a column cannot be measured here, if so.
    pub(super) fn lacks(&self, column: &Column) -> Option<String> {
        if (column.place, column.side) == (Place::Nat, Side::Sockmap) {
            return Some(NO_MATCH.into());
        }
        let network = self.network(column.place).err();
        let network = network.map(|why| match column.place {
            Place::Machines => format!("nothing to stand in for machines here: {why}"),
            _ => format!("no network namespaces here: {why}"),
        });
        let agent = self.agent.as_ref().err().filter(|_| asks(column));
        let agent = agent.map(|why| format!("no agent here: {why}"));
        let sockmap = self.sockmap.as_ref().err();
        let sockmap = sockmap.filter(|_| column.side == Side::Sockmap).cloned();
        network.or(agent).or(sockmap)
    }

    pub(super) fn network(&self, place: Place) -> anyhow::Result<&Network> {
        let network = match place {
            Place::Same => return Ok(&self.same),
            Place::Cable => &self.cable,
            Place::Nat => &self.nat,
            Place::Machines => {
                let machines = self.machines.as_ref().map_err(|why| anyhow!("{why}"))?;
                return Ok(&machines.network);
            }
        };
        network.as_ref().map_err(|why| anyhow!("{why}"))
    }

    pub(super) fn sockmap(&self) -> Option<&Sockmap> {
        self.sockmap.as_ref().ok()
    }

    /// The agent that a column's server asks, if it asks one.
    pub(super) fn agent_pid(&self, place: Place) -> Option<u32> {
        let agent = match place {
            Place::Same => None,
            Place::Cable | Place::Nat => self.agent.as_ref().ok(),
            Place::Machines => self.machines.as_ref().ok().map(|both| &both.agents[0]),
        };
        agent.map(Service::pid)
    }
}

/// Whether its programs ask the agent of containers.
fn asks(column: &Column) -> bool {
    column.system.ours && matches!(column.place, Place::Cable | Place::Nat)
}

fn made<T>(needed: bool, make: impl FnOnce() -> anyhow::Result<T>) -> Made<T> {
    if !needed {
        return Err("no column needs it".into());
    }
    make().map_err(|why| format!("{why:#}"))
}
