//! What a running agent tells about itself over its control socket, to the exporter and to `memlane info`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use memlane_agent::across::relay::Tally;
use memlane_agent::server::{Agent, Counts};
use memlane_observe::control::{self, Listener, NameGuard, Reply, Role};
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};

use super::device::ToldRegion;
use crate::daemon::describe::Look;
use crate::daemon::metrics::{Value, counters, gauges, labels};

/// What an agent tells.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Told {
    /// Its process id, as it sees it.
    pub(crate) pid: u32,
    /// The directories that it serves.
    pub(crate) domains: Vec<PathBuf>,
    /// The folder of which each directory is a domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) folder: Option<PathBuf>,
    /// What it has done since it began.
    pub(crate) counts: Counts,
    /// The memory that it shares with other machines …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<ToldRegion>,
    /// … and what it has done there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) across: Option<Tally>,
}

/// The agent's side: the counts that it tells next.
pub(super) struct Teller {
    told: Arc<Mutex<Told>>,
    _name: NameGuard,
}

impl Teller {
    /// Answers in the background from now on. Other users are not answered.
    pub(super) fn start(
        domains: Vec<PathBuf>,
        folder: Option<PathBuf>,
        region: Option<ToldRegion>,
    ) -> std::io::Result<Teller> {
        let pid = std::process::id();
        let told = Arc::new(Mutex::new(Told {
            pid,
            domains,
            folder,
            counts: Counts::default(),
            region,
            across: None,
        }));
        let listener = Listener::bind(Role::Agent, &pid.to_string())?;
        let shown = Arc::clone(&told);
        let name = listener.in_background(move |Look::Describe| {
            let told = shown.lock().unwrap_or_else(PoisonError::into_inner);
            Reply::Done(serde_json::to_value(&*told).unwrap_or_default())
        })?;
        Ok(Teller { told, _name: name })
    }

    /// Tells what the agent has done up to now, and which domains it serves, if they have changed.
    pub(super) fn tell(&self, agent: &Agent, are_domains_changed: bool) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.counts = agent.counts();
        told.across = agent.tally();
        if are_domains_changed {
            told.domains = agent.domains();
        }
    }
}

/// What the agent of this domain tells. `None`: this user runs none, or it does not answer.
pub(crate) fn of_domain(domain: &Path) -> Option<Told> {
    let names = control::list(Role::Agent).unwrap_or_default();
    let told = |name: String| {
        let told = control::ask(Role::Agent, &name, &Look::Describe).ok()??;
        serde_json::from_value::<Told>(told).ok()
    };
    names
        .into_iter()
        .filter_map(told)
        .find(|told| told.domains.iter().any(|served| served == domain))
}

/// The metrics of these agents, labelled with the folder of domains or the first domain of each.
pub(crate) fn metrics_of(agents: &[Told]) -> Registry {
    let mut registry = Registry::with_prefix("memlane_agent");
    let each = |of: fn(&Counts) -> u64| -> Vec<Value> {
        let labelled = |told: &Told| {
            let domain = domain_label(told);
            (labels(&[("domain", &domain)], &[]), of(&told.counts))
        };
        agents.iter().map(labelled).collect()
    };
    gauges(
        &mut registry,
        "processes",
        "Processes that are connected to the agent",
        each(|counts| counts.processes).into_iter(),
    );
    gauges(
        &mut registry,
        "remembered_connections",
        "Connections that the agent was asked about within the last second",
        each(|counts| counts.remembered).into_iter(),
    );
    counters(
        &mut registry,
        "questions",
        "Questions that the agent was asked",
        each(|counts| counts.questions).into_iter(),
    );
    counters(
        &mut registry,
        "introductions",
        "Connections whose two ends were introduced",
        each(|counts| counts.met).into_iter(),
    );
    counters(
        &mut registry,
        "refusals",
        "Questions that the agent refused, by reason",
        agents.iter().flat_map(refusals),
    );
    counters(
        &mut registry,
        "sent_away",
        "Processes that the agent sent away: too many of one container, or messages that are none",
        each(|counts| counts.sent_away).into_iter(),
    );
    across(&mut registry, agents);
    registry
}

/// What agents that share memory with other machines have done there.
fn across(registry: &mut Registry, agents: &[Told]) {
    let each = |of: fn(&Tally) -> u64| -> Vec<Value> {
        let labelled = |told: &Told| {
            let tally = told.across.as_ref()?;
            Some((labels(&[("domain", &domain_label(told))], &[]), of(tally)))
        };
        agents.iter().filter_map(labelled).collect()
    };
    if agents.iter().all(|told| told.across.is_none()) {
        return;
    }
    gauges(
        registry,
        "machines",
        "Other machines that share memory with this one and whose agents run",
        each(|tally| tally.machines).into_iter(),
    );
    counters(
        registry,
        "introductions_across",
        "Connections whose ends were introduced to a program of another machine",
        each(|tally| tally.met).into_iter(),
    );
    gauges(
        registry,
        "pairs_across",
        "Pairs of programs of two machines that share memory",
        each(|tally| tally.bonds).into_iter(),
    );
    gauges(
        registry,
        "extents_used",
        "Extents of the shared memory in which programs of this machine receive",
        each(|tally| tally.extents).into_iter(),
    );
    gauges(
        registry,
        "extents",
        "Extents of the shared memory, for all machines",
        each(|tally| tally.extents_of_region).into_iter(),
    );
}

/// Empty: the agent serves none.
fn domain_label(told: &Told) -> String {
    let first = told.folder.as_ref().or(told.domains.first());
    first.map_or_else(String::new, |first| first.display().to_string())
}

fn refusals(told: &Told) -> Vec<Value> {
    let (counts, domain) = (&told.counts, domain_label(told));
    [
        ("nobody", counts.nobody),
        ("not_seen", counts.not_seen),
        ("untrusted", counts.untrusted),
        ("forged", counts.forged),
        ("busy", counts.busy),
        ("no_memory", counts.no_memory),
    ]
    .map(|(why, n)| (labels(&[("domain", &domain), ("reason", why)], &[]), n))
    .into()
}
