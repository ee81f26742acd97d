//! The one table of the socket lane's counters.
//!
//! `memlane stats` takes its lines from this table, the Prometheus exporter its metrics, and the documents their lists:
//! `docs/guides/seeing.md` and `docs/formats/stats-page.md` are compared with it by the tests of this module. A new
//! counter gets a variant of [`Counter`], a [`Row`] here, and the lines that the failing test prints.

use memlane_core::stats::Counter;

/// What a counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// TCP connections.
    Connections,
    /// Processes at the other end.
    Peers,
    /// Bytes of streams.
    Bytes,
    /// Calls of the program.
    Calls,
    /// Waits of the program: epoll, poll, select, blocking reads.
    Waits,
    /// Other events.
    Times,
}

impl Unit {
    /// The unit's name in the documents.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Connections => "connections",
            Unit::Peers => "peers",
            Unit::Bytes => "bytes",
            Unit::Calls => "calls",
            Unit::Waits => "waits",
            Unit::Times => "times",
        }
    }
}

/// One counter.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Which counter.
    pub counter: Counter,
    /// Its line in `memlane stats`.
    pub label: &'static str,
    /// Its field in `memlane stats --json`, as a path.
    pub field: &'static str,
    /// Its metric, a name of [`METRICS`]. `None`: the exporter shows only the counters that it is the sum of.
    pub metric: Option<&'static str>,
    /// The labels that tell it from the other counters of its metric.
    pub labels: &'static [(&'static str, &'static str)],
    /// What it counts.
    pub unit: Unit,
    /// What it counts, in words.
    pub help: &'static str,
}

/// One metric of the Prometheus exporter.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name behind `memlane_socket_`, without the `_total` of a counter.
    pub name: &'static str,
    /// Whether it only grows.
    pub is_counter: bool,
    /// The names of its labels, beside `program`.
    pub labels: &'static [&'static str],
    /// What it shows.
    pub help: &'static str,
}

/// Names of the size classes: the largest call of each, in bytes.
pub const SIZES: [&str; memlane_core::stats::SIZE_CLASSES] = [
    "8KiB", "16KiB", "32KiB", "64KiB", "128KiB", "256KiB", "512KiB", "more",
];

/// The row of a counter.
pub fn row(counter: Counter) -> &'static Row {
    let found = ROWS
        .iter()
        .find(|row| row.counter as usize == counter as usize);
    found.unwrap_or(&ROWS[0])
}

/// The metric of this name.
pub fn metric(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

const CLIENT: &[(&str, &str)] = &[("role", "client")];
const SERVER: &[(&str, &str)] = &[("role", "server")];
const SENT: &[(&str, &str)] = &[("direction", "sent")];
const RECEIVED: &[(&str, &str)] = &[("direction", "received")];

/// Every counter, in the order of the page.
#[rustfmt::skip]
pub const ROWS: [Row; 33] = [
    Row { counter: Counter::Conns, label: "Connections handled", field: "connections.handled", metric: None, labels: &[], unit: Unit::Connections, help: "TCP connections that the process made or accepted" },
    Row { counter: Counter::ConnsClient, label: "as client", field: "connections.client", metric: Some("connections"), labels: CLIENT, unit: Unit::Connections, help: "TCP connections that the process made" },
    Row { counter: Counter::ConnsServer, label: "as server", field: "connections.server", metric: Some("connections"), labels: SERVER, unit: Unit::Connections, help: "TCP connections that the process accepted" },
    Row { counter: Counter::Upgraded, label: "Got the memory lane", field: "connections.upgraded", metric: None, labels: &[], unit: Unit::Connections, help: "Connections that got the memory lane" },
    Row { counter: Counter::HandshakeErrors, label: "Handshake errors", field: "connections.handshake_errors", metric: Some("handshake_errors"), labels: &[], unit: Unit::Connections, help: "Upgrades that ended in an error, not in a refusal" },
    Row { counter: Counter::Fallbacks, label: "TCP fallback", field: "fallbacks.total", metric: None, labels: &[], unit: Unit::Connections, help: "Connections that stayed on TCP, or went back to it, for a reason" },
    Row { counter: Counter::Downgrades, label: "and went back to TCP", field: "connections.downgraded", metric: Some("downgrades"), labels: &[], unit: Unit::Connections, help: "Connections that went back from the memory lane to TCP" },
    Row { counter: Counter::TxRingBytes, label: "Bytes through memory", field: "tx.ring_bytes", metric: Some("bytes"), labels: &[("direction", "sent"), ("lane", "memory")], unit: Unit::Bytes, help: "Bytes sent through memory" },
    Row { counter: Counter::TxTcpBytes, label: "Bytes through TCP", field: "tx.tcp_bytes", metric: Some("bytes"), labels: &[("direction", "sent"), ("lane", "tcp")], unit: Unit::Bytes, help: "Bytes sent through TCP" },
    Row { counter: Counter::RxRingBytes, label: "Bytes through memory", field: "rx.ring_bytes", metric: Some("bytes"), labels: &[("direction", "received"), ("lane", "memory")], unit: Unit::Bytes, help: "Bytes received through memory" },
    Row { counter: Counter::RxTcpBytes, label: "Bytes through TCP", field: "rx.tcp_bytes", metric: Some("bytes"), labels: &[("direction", "received"), ("lane", "tcp")], unit: Unit::Bytes, help: "Bytes received through TCP" },
    Row { counter: Counter::TxCalls, label: "Calls", field: "tx.calls", metric: Some("calls"), labels: SENT, unit: Unit::Calls, help: "Send calls" },
    Row { counter: Counter::RxCalls, label: "Calls", field: "rx.calls", metric: Some("calls"), labels: RECEIVED, unit: Unit::Calls, help: "Receive calls" },
    Row { counter: Counter::RingFull, label: "Ring full", field: "waits.ring_full", metric: Some("ring_full"), labels: &[], unit: Unit::Times, help: "Times that a sender found no room in the ring and used TCP" },
    Row { counter: Counter::Parks, label: "Parked (asked to be woken by TCP)", field: "waits.parks", metric: Some("parks"), labels: &[], unit: Unit::Times, help: "Times that a receiver went to sleep until TCP wakes it" },
    Row { counter: Counter::SpinHits, label: "Spun and found something", field: "waits.spin_hits", metric: Some("spins"), labels: &[("found", "yes")], unit: Unit::Waits, help: "Waits that found what they waited for while they spun" },
    Row { counter: Counter::SpinMisses, label: "Spun and found nothing", field: "waits.spin_misses", metric: Some("spins"), labels: &[("found", "no")], unit: Unit::Waits, help: "Waits that spun, found nothing and slept" },
    Row { counter: Counter::WakeupsSent, label: "Wake-ups sent by TCP", field: "waits.wakeups_sent", metric: Some("wakeups_sent"), labels: &[], unit: Unit::Calls, help: "Sends that used TCP in order to wake the peer" },
    Row { counter: Counter::WaitsAvoided, label: "Answered without a system call", field: "waits.waits_avoided", metric: Some("waits"), labels: &[("answered", "rings")], unit: Unit::Waits, help: "Waits that the rings answered, without a system call" },
    Row { counter: Counter::KernelWaits, label: "Went to the kernel", field: "waits.kernel_waits", metric: Some("waits"), labels: &[("answered", "kernel")], unit: Unit::Waits, help: "Waits that went to the kernel" },
    Row { counter: Counter::CtlAvoided, label: "epoll_ctl calls saved", field: "waits.epoll_ctl_avoided", metric: Some("special_calls"), labels: &[("call", "epoll_ctl_saved")], unit: Unit::Calls, help: "Calls of epoll_ctl that did not have to reach the kernel" },
    Row { counter: Counter::PeerMisbehaved, label: "Peers that misbehaved", field: "peers_misbehaved", metric: Some("peers_misbehaved"), labels: &[], unit: Unit::Peers, help: "Peers that were cut off for an impossible value in shared memory" },
    Row { counter: Counter::Sendfile, label: "sendfile", field: "special_calls.sendfile", metric: Some("special_calls"), labels: &[("call", "sendfile")], unit: Unit::Calls, help: "Calls of sendfile that the ring served" },
    Row { counter: Counter::Splice, label: "splice", field: "special_calls.splice", metric: Some("special_calls"), labels: &[("call", "splice")], unit: Unit::Calls, help: "Calls of splice on a connection on the memory lane" },
    Row { counter: Counter::Cork, label: "cork", field: "special_calls.cork", metric: Some("special_calls"), labels: &[("call", "cork")], unit: Unit::Calls, help: "Changes of TCP_CORK" },
    Row { counter: Counter::NoDelay, label: "nodelay", field: "special_calls.nodelay", metric: Some("special_calls"), labels: &[("call", "nodelay")], unit: Unit::Calls, help: "Changes of TCP_NODELAY" },
    Row { counter: Counter::Urgent, label: "urgent data", field: "special_calls.urgent", metric: Some("special_calls"), labels: &[("call", "urgent")], unit: Unit::Times, help: "Times that urgent data was sent or received" },
    Row { counter: Counter::LinkGroups, label: "Link groups (peer processes)", field: "connections.link_groups", metric: Some("link_groups"), labels: &[], unit: Unit::Peers, help: "Peer processes with which memory was shared" },
    Row { counter: Counter::UpgradedClient, label: "as client", field: "connections.upgraded_client", metric: Some("upgrades"), labels: CLIENT, unit: Unit::Connections, help: "Connections that the process made and that got the memory lane" },
    Row { counter: Counter::UpgradedServer, label: "as server", field: "connections.upgraded_server", metric: Some("upgrades"), labels: SERVER, unit: Unit::Connections, help: "Connections that the process accepted and that got the memory lane" },
    Row { counter: Counter::TxBeyondRing, label: "Larger than the ring", field: "tx.calls_beyond_ring", metric: Some("calls_beyond_ring"), labels: &[], unit: Unit::Calls, help: "Send calls that moved more bytes than the ring holds" },
    Row { counter: Counter::Scarce, label: "Too little memory for rings", field: "waits.memory_scarce", metric: Some("memory_scarce"), labels: &[], unit: Unit::Times, help: "Times that memory was too scarce for rings" },
    Row { counter: Counter::BellsRung, label: "Wake-ups sent by a bell", field: "waits.bells_rung", metric: Some("bells_rung"), labels: &[], unit: Unit::Times, help: "Times that it woke a sleeping peer without TCP: by its bell, or out of a nap" },
];

/// Every metric of the socket lane that the exporter shows, in its order.
#[rustfmt::skip]
pub const METRICS: [Metric; 22] = [
    Metric { name: "connections", is_counter: true, labels: &["role"], help: "TCP connections that were made (client) or accepted (server)" },
    Metric { name: "upgrades", is_counter: true, labels: &["role"], help: "Connections that got the memory lane" },
    Metric { name: "downgrades", is_counter: true, labels: &[], help: "Connections that went back from the memory lane to TCP" },
    Metric { name: "handshake_errors", is_counter: true, labels: &[], help: "Upgrades that ended in an error, not in a refusal" },
    Metric { name: "link_groups", is_counter: true, labels: &[], help: "Peer processes with which memory was shared" },
    Metric { name: "bytes", is_counter: true, labels: &["direction", "lane"], help: "Bytes that were sent or received, by lane (memory, tcp)" },
    Metric { name: "calls", is_counter: true, labels: &["direction"], help: "Send and receive calls" },
    Metric { name: "calls_beyond_ring", is_counter: true, labels: &[], help: "Send calls that moved more bytes than the ring holds" },
    Metric { name: "ring_full", is_counter: true, labels: &[], help: "Times that a sender found no room in the ring and used TCP" },
    Metric { name: "memory_scarce", is_counter: true, labels: &[], help: "Times that memory was too scarce for rings" },
    Metric { name: "parks", is_counter: true, labels: &[], help: "Times that a receiver went to sleep until TCP wakes it" },
    Metric { name: "wakeups_sent", is_counter: true, labels: &[], help: "Sends that used TCP in order to wake the peer" },
    Metric { name: "bells_rung", is_counter: true, labels: &[], help: "Times that it woke a sleeping peer without TCP: by its bell, or out of a nap" },
    Metric { name: "waits", is_counter: true, labels: &["answered"], help: "Waits, by what answered them (rings, kernel)" },
    Metric { name: "spins", is_counter: true, labels: &["found"], help: "Waits that spun, by whether they found something (yes, no)" },
    Metric { name: "special_calls", is_counter: true, labels: &["call"], help: "Special socket calls (cork, nodelay, sendfile, splice, urgent, epoll_ctl_saved)" },
    Metric { name: "peers_misbehaved", is_counter: true, labels: &[], help: "Peers that were cut off for an impossible value in shared memory" },
    Metric { name: "fallbacks", is_counter: true, labels: &["reason"], help: "Connections that stayed on TCP, or went back to it, by reason" },
    Metric { name: "calls_by_size", is_counter: true, labels: &["direction", "size"], help: "Calls on the memory lane by size: each class counts the calls larger than the class before it and no larger than its own size in bytes" },
    Metric { name: "processes", is_counter: false, labels: &[], help: "Processes under memlane that run now" },
    Metric { name: "open_connections", is_counter: false, labels: &["lane"], help: "Connections that are open now, by lane (memory, tcp, handshake)" },
    Metric { name: "rings_bytes", is_counter: false, labels: &["direction"], help: "Room in the rings of open connections" },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const GUIDE: &str = include_str!("../../../../docs/guides/seeing.md");
    const FORMAT: &str = include_str!("../../../../docs/formats/stats-page.md");

    #[track_caller]
    fn has(document: &str, wanted: &[String]) {
        let lines: BTreeSet<&str> = document.lines().collect();
        let absent: Vec<&String> = wanted
            .iter()
            .filter(|row| !lines.contains(row.as_str()))
            .collect();
        assert!(absent.is_empty(), "these lines are missing: {absent:#?}");
    }

    #[test]
    fn each_counter_has_one_row_in_the_order_of_the_page() {
        let source = include_str!("../../../../spine/memlane-core/src/stats.rs");
        let (_, variants) = source.split_once("pub enum Counter {").unwrap();
        let (variants, _) = variants.split_once("\n}").unwrap();
        let name = |line: &str| {
            let line = line.trim().strip_suffix(',')?;
            let name = line.split(' ').next().unwrap_or_default();
            (!line.starts_with("//")).then(|| name.to_owned())
        };
        let variants: Vec<String> = variants.lines().filter_map(name).collect();
        let rows: Vec<String> = ROWS
            .iter()
            .map(|row| format!("{:?}", row.counter))
            .collect();
        assert_eq!(rows, variants);
        assert!(ROWS.iter().all(|one| row(one.counter).field == one.field));
        let fields: BTreeSet<&str> = ROWS.iter().map(|row| row.field).collect();
        assert_eq!(fields.len(), ROWS.len());
    }

    #[test]
    fn each_metric_of_a_row_exists_and_has_the_row_s_labels() {
        for row in &ROWS {
            let Some(name) = row.metric else { continue };
            let metric = metric(name).expect(name);
            let labels: Vec<&str> = row.labels.iter().map(|(name, _)| *name).collect();
            assert_eq!(labels, metric.labels, "{name}");
            assert!(metric.is_counter, "{name}");
        }
    }

    #[test]
    fn the_format_of_the_page_lists_the_counters_of_this_table() {
        let rows = ROWS.iter().map(|row| {
            let (index, name) = (row.counter as usize, row.counter);
            format!(
                "| {index} | `{name:?}` | {} | {} |",
                row.unit.name(),
                row.help
            )
        });
        has(FORMAT, &rows.collect::<Vec<_>>());
    }

    #[test]
    fn the_guide_explains_each_line_of_memlane_stats_with_the_words_of_this_table() {
        let rows = ROWS
            .iter()
            .map(|row| format!("| `{}` | {} |", row.label, row.help));
        has(GUIDE, &rows.collect::<Vec<_>>());
    }

    #[test]
    fn the_guide_lists_the_metrics_of_this_table() {
        let rows = METRICS.iter().map(|metric| {
            let total = if metric.is_counter { "_total" } else { "" };
            let labels: Vec<String> = metric
                .labels
                .iter()
                .map(|name| format!("`{name}`"))
                .collect();
            format!(
                "| `{}{total}` | {} | {} |",
                metric.name,
                labels.join(", "),
                metric.help
            )
        });
        has(GUIDE, &rows.collect::<Vec<_>>());
    }
}
