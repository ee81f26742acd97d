//! What the columns need: two networks, an agent with a domain of its own, and a sockmap.

use anyhow::anyhow;

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

/// What is there, or why it is not.
type Made<T> = Result<T, String>;

/// All of it; gone when dropped.
pub(super) struct Scene {
    agent: Made<Service>,
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
        let network = network.map(|why| format!("no network namespaces here: {why}"));
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
        };
        network.as_ref().map_err(|why| anyhow!("{why}"))
    }

    pub(super) fn sockmap(&self) -> Option<&Sockmap> {
        self.sockmap.as_ref().ok()
    }

    pub(super) fn agent_pid(&self) -> Option<u32> {
        self.agent.as_ref().ok().map(Service::pid)
    }
}

/// Whether its programs ask the agent.
fn asks(column: &Column) -> bool {
    column.system.ours && column.place != Place::Same
}

fn made<T>(needed: bool, make: impl FnOnce() -> anyhow::Result<T>) -> Made<T> {
    if !needed {
        return Err("no column needs it".into());
    }
    make().map_err(|why| format!("{why:#}"))
}
