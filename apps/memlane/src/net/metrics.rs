//! What a process that joins shows to Prometheus.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use prometheus_client::registry::Registry;

use super::documents::{Counts, End, Process, Queue, Table};
use super::watched::Watched;
use crate::metrics::{self, Value, counters, gauges, labels};

/// Listens, as long as the process lives.
pub(super) fn serve(at: SocketAddr, watched: &Arc<Watched>) -> anyhow::Result<()> {
    let watched = Arc::clone(watched);
    metrics::serve(at, move || page(&watched.describe()))
        .with_context(|| format!("metrics at {at}"))
}

fn page(process: &Process) -> Registry {
    let mut registry = Registry::with_prefix("memlane_net");
    let name = [("name", process.name.as_str())];
    let one = |value| std::iter::once((labels(&name, &[]), value));
    let joined = u64::from(process.state == "joined");
    gauges(
        &mut registry,
        "joined",
        "1 if its ends are joined, 0 while it waits for a link",
        one(joined),
    );
    counters(
        &mut registry,
        "attaches",
        "Times that a link was attached",
        one(process.attaches),
    );
    frames(&mut registry, process);
    bells(&mut registry, process);
    tables(&mut registry, process);
    verdict(&mut registry, process);
    registry
}

/// One number of a table.
type OfTable = fn(&Table) -> u64;

/// A value for each queue, with the labels that say which.
fn queues<'a>(
    process: &'a Process,
    of: impl Fn(&'a Queue) -> Vec<(&'static [(&'static str, &'static str)], u64)> + 'a,
) -> impl Iterator<Item = Value> + 'a {
    let all = process.ends.iter().flat_map(|end| {
        end.queues
            .iter()
            .enumerate()
            .map(move |(number, queue)| (end, number, queue))
    });
    all.flat_map(move |(end, number, queue)| {
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

fn frames(registry: &mut Registry, process: &Process) {
    let ways = |of: fn(&Counts) -> [u64; 2]| {
        queues(process, move |queue| {
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
        "Their bytes",
        ways(|counts| [counts.received_bytes, counts.sent_bytes]),
    );
    counters(
        registry,
        "no_room",
        "Times that a frame found no room at once",
        queues(process, |queue| vec![(&[], queue.counts.full)]),
    );
    counters(
        registry,
        "no_use",
        "Frames that an end could not take or understand",
        queues(process, |queue| vec![(&[], queue.counts.failed)]),
    );
}

fn bells(registry: &mut Registry, process: &Process) {
    counters(
        registry,
        "bells",
        "Times that the other side of a link was rung for",
        queues(process, |queue| vec![(&[], queue.bells)]),
    );
    counters(
        registry,
        "bells_avoided",
        "Times that it was shown something and needed no bell",
        queues(process, |queue| vec![(&[], queue.bells_avoided)]),
    );
    counters(
        registry,
        "copied",
        "Fragments that the kernel copied",
        queues(process, |queue| vec![(&[], queue.copied)]),
    );
}

fn tables(registry: &mut Registry, process: &Process) {
    let each = |of: fn(&Table) -> u64| {
        queues(process, move |queue| {
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
fn verdict(registry: &mut Registry, process: &Process) {
    let seen = |end: &End| {
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
    let all = process.ends.iter().filter_map(seen).flatten();
    gauges(registry, "sink_frames", "What a sink has seen", all);
}
