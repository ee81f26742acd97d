//! What a process that joins shows to Prometheus.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use prometheus_client::registry::Registry;

use super::documents::{Counts, End, Process, Queue, Table};
use super::watched::Watched;
use crate::daemon::metrics::{self, Value, counters, gauges, labels};

/// Listens, as long as the process lives.
pub(super) fn serve(at: SocketAddr, watched: &Arc<Watched>) -> anyhow::Result<()> {
    let watched = Arc::clone(watched);
    metrics::serve(at, move || page(&[watched.describe()]))
        .map(drop)
        .with_context(|| format!("metrics at {at}"))
}

/// The metrics of these processes, labelled with their names.
pub(crate) fn page(processes: &[Process]) -> Registry {
    let mut registry = Registry::with_prefix("memlane_net");
    let each = |of: fn(&Process) -> u64| {
        let all = processes.iter();
        all.map(move |one| (labels(&[("name", one.name.as_str())], &[]), of(one)))
    };
    gauges(
        &mut registry,
        "joined",
        "1 if its ends are joined, 0 while it waits for a link",
        each(|process| u64::from(process.state == "joined")),
    );
    counters(
        &mut registry,
        "attaches",
        "Times that a link was attached",
        each(|process| process.attaches),
    );
    frames(&mut registry, processes);
    doorbells(&mut registry, processes);
    tables(&mut registry, processes);
    verdict(&mut registry, processes);
    registry
}

/// One number of a table.
type OfTable = fn(&Table) -> u64;

/// A value for each queue, with its labels.
fn queues<'a>(
    processes: &'a [Process],
    of: impl Fn(&'a Queue) -> Vec<(&'static [(&'static str, &'static str)], u64)> + 'a,
) -> impl Iterator<Item = Value> + 'a {
    let all = processes.iter().flat_map(|process| {
        let ends = process.ends.iter();
        ends.flat_map(move |end| {
            let queues = end.queues.iter().enumerate();
            queues.map(move |(number, queue)| (process, end, number, queue))
        })
    });
    all.flat_map(move |(process, end, number, queue)| {
        let number = number.to_string();
        let which = [
            ("name", process.name.as_str()),
            ("end", end.end.as_str()),
            ("queue", number.as_str()),
        ];
        let values = of(queue).into_iter();
        let labelled: Vec<Value> = values
            .map(|(more, value)| (labels(&which, more), value))
            .collect();
        labelled
    })
}

fn frames(registry: &mut Registry, processes: &[Process]) {
    let ways = |of: fn(&Counts) -> [u64; 2]| {
        queues(processes, move |queue| {
            let [came, went] = of(&queue.counts);
            vec![
                (&[("direction", "received")][..], came),
                (&[("direction", "sent")], went),
            ]
        })
    };
    counters(
        registry,
        "frames",
        "Frames that came from an end, and that went to it",
        ways(|counts| [counts.received, counts.sent]),
    );
    counters(
        registry,
        "bytes",
        "Bytes of these frames",
        ways(|counts| [counts.received_bytes, counts.sent_bytes]),
    );
    counters(
        registry,
        "no_room",
        "Times that a frame found no room at once",
        queues(processes, |queue| vec![(&[], queue.counts.full)]),
    );
    counters(
        registry,
        "failed",
        "Frames that an end could not take or understand",
        queues(processes, |queue| vec![(&[], queue.counts.failed)]),
    );
}

fn doorbells(registry: &mut Registry, processes: &[Process]) {
    counters(
        registry,
        "doorbells",
        "Doorbells sent: system calls that woke the other side of a link",
        queues(processes, |queue| vec![(&[], queue.doorbells)]),
    );
    counters(
        registry,
        "doorbells_avoided",
        "Doorbells saved: times that the other side was already awake",
        queues(processes, |queue| vec![(&[], queue.doorbells_avoided)]),
    );
    counters(
        registry,
        "copied",
        "Fragments that the kernel copied",
        queues(processes, |queue| vec![(&[], queue.copied)]),
    );
}

fn tables(registry: &mut Registry, processes: &[Process]) {
    let each = |of: fn(&Table) -> u64| {
        queues(processes, move |queue| {
            let tables = queue
                .grants
                .as_ref()
                .map(|both| (of(&both.tx), of(&both.rx)));
            let values =
                tables.map(|(tx, rx)| vec![(&[("table", "tx")][..], tx), (&[("table", "rx")], rx)]);
            values.unwrap_or_default()
        })
    };
    gauges(
        registry,
        "grants",
        "Grants that are mapped",
        each(|table| table.count),
    );
    gauges(
        registry,
        "grants_in_use",
        "Those that are lent now",
        each(|table| table.in_use),
    );
    gauges(
        registry,
        "grants_max",
        "Mapped at most",
        each(|table| table.max),
    );
    let look_ups: [(&str, &str, OfTable); 6] = [
        ("grant_hits", "Look-ups that found a mapping", |table| {
            table.hits
        }),
        ("grant_misses", "Look-ups that made one", |table| {
            table.misses
        }),
        (
            "grant_busy",
            "Look-ups that found no room: copied instead",
            |table| table.busy,
        ),
        (
            "grant_evicted",
            "Mappings given up for want of room",
            |table| table.evicted,
        ),
        (
            "grant_idle",
            "Mappings given up as they were idle",
            |table| table.idle,
        ),
        (
            "grant_stale",
            "Mappings given up as the front said something else",
            |table| table.stale,
        ),
    ];
    for (name, help, of) in look_ups {
        counters(registry, name, help, each(of));
    }
}

/// Of a sink. What is missing may still come, so that these are no counters.
fn verdict(registry: &mut Registry, processes: &[Process]) {
    let seen = |(process, end): (&Process, &End)| {
        let seen = end.verdict?;
        let end = [("name", process.name.as_str()), ("end", end.end.as_str())];
        let all = [
            ("good", seen.good),
            ("missing", seen.missing),
            ("late", seen.late),
            ("twice", seen.twice),
            ("changed", seen.changed),
            ("strange", seen.strange),
        ];
        Some(all.map(|(kind, value)| (labels(&end, &[("kind", kind)]), value)))
    };
    let ends = processes.iter().flat_map(|process| {
        let ends = process.ends.iter();
        ends.map(move |end| (process, end))
    });
    let all = ends.filter_map(seen).flatten();
    gauges(registry, "sink_frames", "What a sink has seen", all);
}
