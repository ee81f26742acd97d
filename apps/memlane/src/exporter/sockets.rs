//! The socket lane's metrics, by program, or by program and container.

use memlane_core::reason::Reason;
use memlane_observe::counters::Counters;
use memlane_observe::counters::table::{METRICS, ROWS, SIZES, metric};
use prometheus_client::registry::Registry;

use super::ledger::Program;
use crate::daemon::metrics::{Value, counters, gauges, labels};

pub(super) fn page(programs: &[Program]) -> Registry {
    let mut registry = Registry::with_prefix("memlane_socket");
    for metric in &METRICS {
        let rows = || ROWS.iter().filter(|row| row.metric == Some(metric.name));
        if rows().next().is_some() {
            let all = programs.iter().flat_map(|program| {
                rows().map(|row| of(program, row.labels, program.sums.get(row.counter)))
            });
            counters(&mut registry, metric.name, metric.help, all);
        }
    }
    reasons(&mut registry, programs);
    sizes(&mut registry, programs);
    open(&mut registry, programs);
    registry
}

/// The help of a metric that is not made from counters alone.
fn help(name: &str) -> &'static str {
    metric(name).map_or("", |metric| metric.help)
}

/// A value of a program, with the labels that it has beside the program's name and place.
fn of(program: &Program, more: &[(&str, &str)], value: u64) -> Value {
    (labels(&program.name.labels(), more), value)
}

/// Counts fallbacks by reason. All codes that this release does not know share one name, because a hostile page can
/// contain any code.
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
    counters(registry, "fallbacks", help("fallbacks"), values.into_iter());
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
            let classes = SIZES.into_iter().zip(sizes);
            classes.map(move |(size, n)| of(program, &[("direction", way), ("size", size)], n))
        })
    });
    counters(registry, "calls_by_size", help("calls_by_size"), all);
}

fn open(registry: &mut Registry, programs: &[Program]) {
    let processes = programs.iter().map(|one| of(one, &[], one.processes));
    gauges(registry, "processes", help("processes"), processes);
    let lanes = programs.iter().flat_map(|one| {
        [
            ("memory", one.open.memory),
            ("tcp", one.open.tcp),
            ("handshake", one.open.handshake),
        ]
        .map(|(lane, n)| of(one, &[("lane", lane)], n))
    });
    gauges(
        registry,
        "open_connections",
        help("open_connections"),
        lanes,
    );
    let rings = programs.iter().flat_map(|one| {
        [
            of(one, &[("direction", "sent")], one.open.tx_ring_bytes),
            of(one, &[("direction", "received")], one.open.rx_ring_bytes),
        ]
    });
    gauges(registry, "rings_bytes", help("rings_bytes"), rings);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::daemon::metrics::{Format, text};

    #[test]
    fn the_page_has_the_metrics_of_the_table_and_no_others() {
        let mut program = Program::default();
        program.sums.reasons.insert(1, (1, 0));
        let programs = [program];
        let page = text(&[page(&programs)], Format::Classic);
        let names = page.lines().filter_map(|line| {
            let rest = line.strip_prefix("# TYPE memlane_socket_")?;
            Some(
                rest.split_once(' ')?
                    .0
                    .trim_end_matches("_total")
                    .to_owned(),
            )
        });
        let shown: BTreeSet<String> = names.collect();
        let table: BTreeSet<String> = METRICS.iter().map(|m| m.name.to_owned()).collect();
        assert_eq!(shown, table);
        for metric in &METRICS {
            assert!(page.contains(metric.help), "{}", metric.name);
        }
    }
}
