//! The socket lane, by program.

use memlane_core::reason::Reason;
use memlane_core::stats::Counter;
use memlane_observe::counters::Counters;
use prometheus_client::registry::Registry;

use super::ledger::Program;
use crate::metrics::{Value, counters, gauges, labels};

/// Labels beside the program's name, and the number that they stand for.
type Series<N> = &'static [(&'static [(&'static str, &'static str)], N)];

/// A family of counters: name, help, series.
type Family = (&'static str, &'static str, Series<Counter>);

const SENT: &[(&str, &str)] = &[("direction", "sent")];
const RECEIVED: &[(&str, &str)] = &[("direction", "received")];

const FAMILIES: [Family; 16] = [
    (
        "connections",
        "TCP connections that were made or accepted",
        &[
            (&[("role", "client")], Counter::ConnsClient),
            (&[("role", "server")], Counter::ConnsServer),
        ],
    ),
    (
        "upgrades",
        "Connections that got the memory lane",
        &[
            (&[("role", "client")], Counter::UpgradedClient),
            (&[("role", "server")], Counter::UpgradedServer),
        ],
    ),
    (
        "downgrades",
        "Connections that went back from the memory lane to TCP",
        &[(&[], Counter::Downgrades)],
    ),
    (
        "handshake_errors",
        "Upgrades that ended in an error, not in a refusal",
        &[(&[], Counter::HandshakeErrors)],
    ),
    (
        "link_groups",
        "Peer processes that memory was shared with",
        &[(&[], Counter::LinkGroups)],
    ),
    (
        "bytes",
        "Bytes that were carried, by lane",
        &[
            (
                &[("direction", "sent"), ("lane", "memory")],
                Counter::TxRingBytes,
            ),
            (
                &[("direction", "sent"), ("lane", "tcp")],
                Counter::TxTcpBytes,
            ),
            (
                &[("direction", "received"), ("lane", "memory")],
                Counter::RxRingBytes,
            ),
            (
                &[("direction", "received"), ("lane", "tcp")],
                Counter::RxTcpBytes,
            ),
        ],
    ),
    (
        "calls",
        "Send and receive calls",
        &[(SENT, Counter::TxCalls), (RECEIVED, Counter::RxCalls)],
    ),
    (
        "calls_beyond_ring",
        "Send calls that moved more than the ring holds",
        &[(&[], Counter::TxBeyondRing)],
    ),
    (
        "ring_full",
        "Times that a sender found no room and took TCP",
        &[(&[], Counter::RingFull)],
    ),
    (
        "memory_scarce",
        "Times that memory was found to be too scarce for rings",
        &[(&[], Counter::Scarce)],
    ),
    (
        "parks",
        "Times that a receiver went to sleep",
        &[(&[], Counter::Parks)],
    ),
    (
        "wakeups_sent",
        "Sends that took TCP in order to wake the peer",
        &[(&[], Counter::WakeupsSent)],
    ),
    (
        "waits",
        "Waits, by how they were answered: from the rings, or by the kernel",
        &[
            (&[("answered", "rings")], Counter::WaitsAvoided),
            (&[("answered", "kernel")], Counter::KernelWaits),
        ],
    ),
    (
        "spins",
        "Waits that spun, by whether it was in vain",
        &[
            (&[("found", "yes")], Counter::SpinHits),
            (&[("found", "no")], Counter::SpinMisses),
        ],
    ),
    (
        "special_calls",
        "Socket calls out of the ordinary",
        &[
            (&[("call", "cork")], Counter::Cork),
            (&[("call", "nodelay")], Counter::NoDelay),
            (&[("call", "sendfile")], Counter::Sendfile),
            (&[("call", "splice")], Counter::Splice),
            (&[("call", "urgent")], Counter::Urgent),
            (&[("call", "epoll_ctl_saved")], Counter::CtlAvoided),
        ],
    ),
    (
        "peers_misbehaved",
        "Peers that were cut off for an impossible value in shared memory",
        &[(&[], Counter::PeerMisbehaved)],
    ),
];

/// Names of the size classes: calls of up to so many bytes.
const CLASSES: [&str; 8] = [
    "8KiB", "16KiB", "32KiB", "64KiB", "128KiB", "256KiB", "512KiB", "more",
];

pub(super) fn page(programs: &[Program]) -> Registry {
    let mut registry = Registry::with_prefix("memlane_socket");
    for (name, help, series) in FAMILIES {
        let all = programs.iter().flat_map(|program| {
            series
                .iter()
                .map(|(more, counter)| of(program, more, program.sums.get(*counter)))
        });
        counters(&mut registry, name, help, all);
    }
    reasons(&mut registry, programs);
    sizes(&mut registry, programs);
    open(&mut registry, programs);
    registry
}

fn of(program: &Program, more: &[(&str, &str)], value: u64) -> Value {
    (labels(&[("program", &program.name)], more), value)
}

/// A code that this release does not know is one reason with all others of its kind: a page can name any.
fn reasons(registry: &mut Registry, programs: &[Program]) {
    let mut values: Vec<Value> = Vec::new();
    for program in programs {
        for reason in Reason::ALL.iter().filter(|reason| **reason != Reason::NONE) {
            let times = times(&program.sums, |code| code == reason.0);
            if times > 0 {
                values.push(of(program, &[("reason", reason.name())], times));
            }
        }
        let known = |code| Reason::ALL.iter().any(|reason| reason.0 == code);
        let unknown = times(&program.sums, |code| !known(code));
        if unknown > 0 {
            values.push(of(program, &[("reason", "UNKNOWN")], unknown));
        }
    }
    let help = "Connections that ended, or went on, as TCP, by reason";
    counters(registry, "fallbacks", help, values.into_iter());
}

fn times(sums: &Counters, wanted: impl Fn(u32) -> bool) -> u64 {
    let all = sums.reasons.iter().filter(|(code, _)| wanted(**code));
    all.fold(0, |sum, (_, (client, server))| {
        sum.saturating_add(*client).saturating_add(*server)
    })
}

fn sizes(registry: &mut Registry, programs: &[Program]) {
    let all = programs.iter().flat_map(|program| {
        let ways = [
            ("sent", program.sums.tx_sizes),
            ("received", program.sums.rx_sizes),
        ];
        ways.into_iter().flat_map(move |(way, sizes)| {
            let classes = CLASSES.into_iter().zip(sizes);
            classes.map(move |(size, n)| of(program, &[("direction", way), ("size", size)], n))
        })
    });
    let help =
        "Calls on the memory lane by size: up to so many bytes, and more than the one before";
    counters(registry, "calls_by_size", help, all);
}

fn open(registry: &mut Registry, programs: &[Program]) {
    let processes = programs.iter().map(|one| of(one, &[], one.processes));
    let help = "Processes under memlane that run now";
    gauges(registry, "processes", help, processes);
    let lanes = programs.iter().flat_map(|one| {
        [
            ("memory", one.open.memory),
            ("tcp", one.open.tcp),
            ("handshake", one.open.handshake),
        ]
        .map(|(lane, n)| of(one, &[("lane", lane)], n))
    });
    let help = "Connections that are open now, by lane";
    gauges(registry, "open_connections", help, lanes);
    let rings = programs.iter().flat_map(|one| {
        [
            of(one, SENT, one.open.tx_ring_bytes),
            of(one, RECEIVED, one.open.rx_ring_bytes),
        ]
    });
    let help = "Room in the rings of open connections";
    gauges(registry, "rings_bytes", help, rings);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Format, text};

    #[test]
    fn every_metric_is_explained_in_the_guide() {
        let guide = include_str!("../../../../docs/guides/seeing.md");
        let (_, guide) = guide.split_once("## memlane exporter").unwrap();
        let page = text(&[page(&[Program::default()])], Format::Classic);
        let names = page.lines().filter_map(|line| {
            let (name, _) = line
                .strip_prefix("# TYPE memlane_socket_")?
                .split_once(' ')?;
            Some(name)
        });
        let names: Vec<&str> = names.collect();
        assert!(names.len() > FAMILIES.len(), "{names:?}");
        for name in names {
            assert!(guide.contains(&format!("`{name}`")), "{name}");
        }
    }
}
