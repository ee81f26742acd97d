//! What this suite's tables and plots show, and what memlane should reach between two network namespaces.

use super::rows::{
    self, COLUMNS, MEMLANE_CABLE, MEMLANE_NAT, MEMLANE_REGION, MEMLANE_SAME, Opening,
    SOCKMAP_CABLE, SOCKMAP_NAT, TCP_CABLE, TCP_NAT,
};
use crate::catalogue::{
    Aim, Catalogue, Goal, Layout, MemoryRule, Plot, Row, System, To, View, goal, row,
};
use crate::published::Published;
use crate::runner::plan::Row as _;

const METHOD: &[&str] = &[
    "Server and client in a network namespace each, as in two containers: with a veth cable between them; or both at a bridge, \
     where the client connects to the router's address, which becomes the server's (DNAT), and the server sees the router's \
     (masquerade), as with a published port. One namespace: both over 127.0.0.1. Region: the two namespaces stand in for two \
     machines that share a region of memory, with a cable between them",
    "Rounds alternate between the columns in one run, every second round backwards; medians (lowest–highest); ratios are of \
     the same round. Server on one CPU, client on another; the agent wherever the kernel likes",
    "memlane: both programs under memlane run with its defaults; between namespaces with an agent of the bench's own, over a \
     region with one at each end, in one without. sockmap: a BPF program puts what one program sends into the other one's \
     receiving queue, found by addresses and ports",
    "To the lane: from a connection's eighth answer until its own stats page says that it is on the memory lane, while it goes \
     on with 100 bytes there and back; reading the page takes about 10 µs each time. First: of 100 processes. The rate \
     is of connections that were made, got their lane and were closed. Agent's CPU: its run time, by the kernel's scheduler",
];

/// Rows whose bytes may go by TCP, because a connection can end before its lane is up, or whose bytes are not counted.
const NOT_ASKED: &[&str] = &[
    "short",
    "short-100",
    Opening::First.id(),
    Opening::Later.id(),
    Opening::Together.id(),
];

/// Metrics of the programs' rows.
const METRICS: &[&str] = &["rate", "throughput", "p50", "p99"];

pub(crate) fn catalogue() -> Catalogue {
    let views = vec![
        programs(
            "cable",
            "two namespaces, one cable",
            &[
                TCP_CABLE,
                SOCKMAP_CABLE,
                MEMLANE_CABLE,
                MEMLANE_SAME,
                MEMLANE_REGION,
            ],
            vec![
                (SOCKMAP_CABLE, TCP_CABLE),
                (MEMLANE_CABLE, TCP_CABLE),
                (MEMLANE_CABLE, SOCKMAP_CABLE),
                (MEMLANE_CABLE, MEMLANE_SAME),
                (MEMLANE_REGION, TCP_CABLE),
                (MEMLANE_REGION, MEMLANE_CABLE),
            ],
        ),
        programs(
            "nat",
            "two namespaces, a bridge and NAT",
            &[TCP_NAT, SOCKMAP_NAT, MEMLANE_NAT, MEMLANE_SAME],
            vec![(MEMLANE_NAT, TCP_NAT), (MEMLANE_NAT, MEMLANE_SAME)],
        ),
        costs(),
        opening(),
    ];
    Catalogue {
        suite: "containers",
        goals: goals(),
        views,
        memory: Some(MemoryRule {
            least: 50.0,
            systems: &[MEMLANE_CABLE, MEMLANE_NAT, MEMLANE_SAME, MEMLANE_REGION],
            not_asked: NOT_ASKED,
        }),
        method: METHOD,
        published: Published::none(),
    }
}

fn systems(ids: &[&str]) -> Vec<System> {
    let of = COLUMNS.iter().map(|column| column.system);
    of.filter(|system| ids.contains(&system.id)).collect()
}

fn all_rows(opening: bool) -> Vec<Row> {
    let all = rows::Row::all().into_iter();
    let all = all.filter(|row| matches!(row, rows::Row::Opening(_)) == opening);
    all.map(|one| Row {
        sweep: one.sweep(),
        ..row(one.id(), one.about())
    })
    .collect()
}

fn programs(
    id: &'static str,
    title: &'static str,
    ids: &[&str],
    ratios: Vec<(&'static str, &'static str)>,
) -> View {
    let to = ratios[0].1;
    let bars = |metric| Plot::Bars {
        metric,
        to: To::System(to),
    };
    View {
        id,
        title,
        layout: Layout::Systems,
        systems: systems(ids),
        rows: all_rows(false),
        metrics: METRICS,
        plots: vec![bars("rate"), bars("throughput"), bars("p50")],
        ratios: ratios
            .into_iter()
            .map(|(of, to)| (of, To::System(to), ""))
            .collect(),
    }
}

fn costs() -> View {
    View {
        id: "cpu",
        title: "processor time of both programs",
        layout: Layout::Systems,
        systems: COLUMNS.iter().map(|column| column.system).collect(),
        rows: all_rows(false),
        metrics: &["cpu"],
        ratios: [
            (SOCKMAP_CABLE, TCP_CABLE),
            (MEMLANE_CABLE, TCP_CABLE),
            (MEMLANE_NAT, TCP_NAT),
            (MEMLANE_REGION, TCP_CABLE),
        ]
        .map(|(of, to)| (of, To::System(to), "cpu"))
        .to_vec(),
        plots: Vec::new(),
    }
}

fn opening() -> View {
    View {
        id: "opening",
        title: "from TCP to the lane",
        layout: Layout::Systems,
        systems: systems(&[MEMLANE_CABLE, MEMLANE_NAT, MEMLANE_REGION, MEMLANE_SAME]),
        rows: all_rows(true),
        metrics: &["p50", "p99", "rate", "agent_cpu"],
        ratios: Vec::new(),
        plots: vec![Plot::bars("p50")],
    }
}

fn goals() -> Vec<Goal> {
    let mut goals = Vec::new();
    for (of, tcp, ours) in [
        (MEMLANE_CABLE, TCP_CABLE, MEMLANE_SAME),
        (MEMLANE_NAT, TCP_NAT, MEMLANE_SAME),
        (MEMLANE_REGION, TCP_CABLE, MEMLANE_CABLE),
    ] {
        for one in rows::Row::all() {
            for metric in METRICS {
                let id = one.id();
                let against = |to, aim| goal(id.as_str(), metric, of, To::System(to), aim);
                goals.extend(beside_tcp(&id, metric).map(|aim| against(tcp, aim)));
                goals.extend(beside_itself(&id, metric).map(|aim| against(ours, aim)));
            }
        }
    }
    goals
}

/// What memlane should reach against TCP in the same network.
fn beside_tcp(row: &str, metric: &str) -> Option<Aim> {
    let redis = row.starts_with("redis-");
    Some(match (row, metric) {
        ("sockperf-pp", "p50") => Aim::AtMost(0.02),
        (_, "rate") if redis => Aim::AtLeast(5.0),
        ("iperf3", "throughput") => Aim::AtLeast(3.0),
        ("short" | "short-100", "rate") => Aim::AtLeast(0.97),
        _ => return None,
    })
}

/// What memlane should reach against itself, between namespaces as in one, and over a region as between namespaces: at most 1.1
/// times the time, and as much less of all else.
fn beside_itself(row: &str, metric: &str) -> Option<Aim> {
    let latency = row == "sockperf-pp" || row.starts_with("rr-");
    Some(match metric {
        // Between namespaces a connection itself costs more, whatever carries it.
        _ if row.starts_with("short") || row.starts_with("open-") => return None,
        "p50" if latency => Aim::AtMost(1.1),
        "rate" | "throughput" if !latency => Aim::AtLeast(0.91),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_suite_stands_in_a_table() {
        let all = catalogue();
        for row in rows::Row::all() {
            let shown = all
                .views
                .iter()
                .any(|v| v.rows.iter().any(|r| r.id == row.id()));
            assert!(shown, "{row:?}");
        }
    }

    #[test]
    fn aims_are_those_of_both_networks() {
        let goals = goals();
        let of = |row: &str, to: &'static str| {
            let mut of = goals
                .iter()
                .filter(|goal| goal.row == row && goal.to == To::System(to));
            let told = of.next().map(|goal| goal.aim);
            let again = of.next().map(|goal| goal.aim);
            assert!(again.is_none() || again == told, "{row}");
            told
        };
        assert_eq!(of("sockperf-pp", TCP_NAT), Some(Aim::AtMost(0.02)));
        assert_eq!(of("redis-get-c50", TCP_CABLE), Some(Aim::AtLeast(5.0)));
        assert_eq!(of("rr-64k", MEMLANE_SAME), Some(Aim::AtMost(1.1)));
        assert_eq!(of("stream-1m", MEMLANE_SAME), Some(Aim::AtLeast(0.91)));
        assert_eq!(of("rr-64k", MEMLANE_CABLE), Some(Aim::AtMost(1.1)));
        assert_eq!(of("short", MEMLANE_SAME), None);
        assert_eq!(of("nginx-1", TCP_NAT), None);
    }
}
