//! Two machines that share a region of memory. Two network namespaces stand in for the machines, each with an agent of its
//! own, and a file for the region: the agents know nothing of each other but by the file.

use std::path::{Path, PathBuf};

use super::{Agent, Between, Container, Networks};
use crate::blocks::skip;
use crate::harness::{TempDir, plain_only};
use crate::pair::Pair;

/// Two machines, what they share, and what lies between them.
#[derive(Debug)]
pub struct Machines {
    /// What lies between them.
    pub networks: Networks,
    /// The agent of the client's machine, and that of the server's.
    pub agents: [Agent; 2],
    region: PathBuf,
    _dir: TempDir,
}

impl Machines {
    /// With a region of this many bytes. `None`, and a word on standard error, where they cannot be.
    ///
    /// # Panics
    /// If there is no room for the region.
    pub fn new(test: &str, between: Between, bytes: u64) -> Option<Machines> {
        if plain_only() {
            return None;
        }
        let networks = Networks::new(between).map_err(|why| skip(test, &why));
        let dir = TempDir::new(test);
        let region = dir.path().join("region");
        let file = std::fs::File::create(&region).expect("a file");
        file.set_len(bytes).expect("room");
        let start = |end: &str| {
            let agent = Agent::start_sharing(&format!("{test}-{end}"), &region);
            agent.map_err(|why| skip(test, &why)).ok()
        };
        Some(Machines {
            networks: networks.ok()?,
            agents: [start("client")?, start("server")?],
            region,
            _dir: dir,
        })
    }

    /// The file that both have.
    pub fn region(&self) -> &Path {
        &self.region
    }

    /// The two machines, where programs of a story run.
    pub fn containers(&self) -> [Container; 2] {
        let [client, server] = &self.agents;
        [
            self.networks.at_client(client),
            self.networks.at_server(server),
        ]
    }

    /// A client and a server, each on its machine.
    pub fn pair(&self) -> Pair {
        let [client, server] = self.agents.each_ref().map(Agent::directory);
        let flags: [&[&str]; 2] = [&["--domain", &client], &["--domain", &server]];
        Pair::between(&self.networks, flags)
    }
}
