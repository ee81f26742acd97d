//! The block and packet lanes, and the agent: asks this user's processes for their counters.

use std::time::{Duration, Instant};

use memlane_observe::control::{self, Role};
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;

use crate::agent;
use crate::blocks;
use crate::daemon::describe::Look;
use crate::net;

/// Longest time for all answers together. Prometheus gives up after ten seconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The answers, and the number of processes without a usable answer.
pub(super) struct Answers {
    pub(super) registries: [Registry; 4],
    pub(super) silent: u64,
}

pub(super) fn ask() -> Answers {
    let until = Instant::now() + PATIENCE;
    let mut silent = 0;
    let registries = [
        net::metrics_of(&describe::<net::Process>(Role::Net, until, &mut silent)),
        blocks::of_sessions(&describe::<blocks::Session>(
            Role::Session,
            until,
            &mut silent,
        )),
        blocks::of_servers(&describe::<blocks::Server>(
            Role::Server,
            until,
            &mut silent,
        )),
        agent::metrics_of(&describe::<agent::Told>(Role::Agent, until, &mut silent)),
    ];
    Answers { registries, silent }
}

fn describe<T: DeserializeOwned>(role: Role, until: Instant, silent: &mut u64) -> Vec<T> {
    let mut found = Vec::new();
    for name in control::list(role).unwrap_or_default() {
        let told = match Instant::now() < until {
            true => control::ask(role, &name, &Look::Describe).map_err(anyhow::Error::from),
            false => Err(anyhow::anyhow!("no time left")),
        };
        match told.and_then(|told| Ok(told.map(serde_json::from_value).transpose()?)) {
            Ok(told) => found.extend(told),
            Err(_) => *silent += 1,
        }
    }
    found
}
