//! Two programs on two machines that share a region of memory. Two network namespaces with an agent each stand in for the
//! machines, and a file for the region: the agents know nothing of each other but by the file.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for the agents.

use std::path::PathBuf;

use memlane_system::blocks::skip;
use memlane_system::containers::{Agent, Between, Networks};
use memlane_system::harness::{TempDir, plain_only};
use memlane_system::pair::Pair;

/// Two machines, what they share, and what lies between them.
struct Machines {
    networks: Networks,
    at_client: Agent,
    at_server: Agent,
    _dir: TempDir,
    _region: PathBuf,
}

impl Machines {
    /// `None`, and a word on standard error, where they cannot be.
    fn new(test: &'static str, between: Between) -> Option<Machines> {
        if plain_only() {
            return None;
        }
        let networks = Networks::new(between).map_err(|why| skip(test, &why));
        let dir = TempDir::new(test);
        let region = dir.path().join("region");
        let file = std::fs::File::create(&region).expect("a file");
        file.set_len(64 << 20).expect("room");
        let start = |end: &str| {
            let agent = Agent::start_sharing(&format!("{test}-{end}"), &region);
            agent.map_err(|why| skip(test, &why)).ok()
        };
        Some(Machines {
            networks: networks.ok()?,
            at_client: start("client")?,
            at_server: start("server")?,
            _dir: dir,
            _region: region,
        })
    }

    fn pair(&self) -> Pair {
        let [client, server] = [&self.at_client, &self.at_server].map(Agent::directory);
        let flags: [&[&str]; 2] = [&["--domain", &client], &["--domain", &server]];
        Pair::between(&self.networks, flags)
    }
}

/// The lane opens, and carries a lot in both directions at once.
fn opens(pair: &mut Pair) {
    pair.open();
    for _ in 0..20 {
        pair.flood(4 << 20);
        let by_ring = [&pair.server, &pair.client].map(|end| end.conn().expect("a page").bytes);
        if by_ring.iter().all(|bytes| bytes[0] > 0 && bytes[1] > 0) {
            return;
        }
    }
    panic!("{}", pair.describe());
}

#[test]
fn the_lane_opens_between_two_machines() {
    let Some(machines) = Machines::new("two-machines", Between::Cable) else {
        return;
    };
    opens(&mut machines.pair());
}

#[test]
fn the_lane_opens_where_addresses_are_translated_between_them() {
    let Some(machines) = Machines::new("two-machines-nat", Between::Nat) else {
        return;
    };
    opens(&mut machines.pair());
}
