//! What the block suite's tables and plots show, and what memlane should reach.

use super::rows::{self, Pattern};
use super::{gap, systems};
use crate::catalogue::{Aim, Catalogue, Goal, Layout, Plot, System, To, View, goal, row};
use crate::published::Published;

/// The best of the others, over whatever transport it was best.
const BEST: To = To::Best("best peer", &PEERS);
const PEERS: [&str; 8] = [
    "nbdkit",
    "nbdkit-tcp",
    "nbdkit-file",
    "nbdkit-file-tcp",
    "nbd-server",
    "nbd-server-tcp",
    "qsd",
    "qsd-tcp",
];
/// The best of the others that export what another machine serves, as memlane's export does over its TCP device: the bytes
/// go through two sockets.
const RELAY: To = To::Best("best relay", &RELAYS);
const RELAYS: [&str; 2] = ["nbdkit-relay", "qsd-relay"];
/// The best of the others by TCP, for an export that clients on other machines use.
const BY_TCP: To = To::Best("best peer by TCP", &PEERS_BY_TCP);
const PEERS_BY_TCP: [&str; 4] = ["nbdkit-tcp", "nbdkit-file-tcp", "nbd-server-tcp", "qsd-tcp"];
/// What memory costs that several machines have: the same requests by memory of one host.
const ONE_HOST: To = To::System("api-local");
/// Who else shows a volume as a file.
const FILE: To = To::System("qsd-fuse");
/// By what a path is broken.
const BREAKERS: [System; 2] = [gap::CABLE, gap::PROXY];
/// The cost of a request from 1 to 64 jobs counts as flat up to this.
const FLAT: f64 = 1.2;
/// What many jobs on one volume reach of one job's rate over the loopback device.
const OF_ONE_JOB: f64 = 0.9;

const METHOD: &[&str] = &[
    "Rounds alternate between the systems, each started anew with a volume that was written once; medians (lowest–highest)",
    "Ratios are to the best peer of the same round, over whatever transport it was best; the NBD export over the TCP device, \
     whose volume another machine may serve, is also compared with the best relay: one peer that exports what another exports \
     by TCP; and the export by TCP with the best peer by TCP",
    "Over the loopback device, the server carries out each request (`memlane serve --lend never`); by default it lends a volume in \
     memory to clients that may trace it, as here, and these carry out reads and writes themselves",
    "Latency is from the call that begins a request to its end, as the generator sees it; the API is measured by fio (its \
     aims are judged by these rows) and by memlane's own generator",
    "CPU is user and system time of all processes of a system (server, map, generator) for a million requests, less what fio \
     takes to begin and end; the kernel's own threads are not in it",
    "The gap is the time of the slowest of 4 requests under way while a path dies, less the time in which there was none",
    "Jobs: 4 KiB, depth 4 each; published figures were taken with other sizes and depths: only how they change can be \
     compared",
];

pub(crate) fn catalogue() -> Catalogue {
    Catalogue {
        suite: "blocks",
        views: vec![
            volumes(),
            gaps(),
            jobs(Pattern::Randread),
            jobs(Pattern::Randwrite),
        ],
        goals: goals(),
        memory: None,
        method: METHOD,
        published: Published::parse(include_str!("../../../../published/blocks.json")),
    }
}

fn systems() -> Vec<System> {
    systems::ALL.iter().map(|one| one.system()).collect()
}

fn ours() -> impl Iterator<Item = System> {
    systems().into_iter().filter(|system| system.ours)
}

fn volumes() -> View {
    let ratios = ["rate", "p50"];
    let to_best = ratios
        .iter()
        .flat_map(|metric| ours().map(move |s| (s.id, BEST, *metric)));
    let others = [("nbd-tcp", RELAY), ("nbd-direct-by-tcp", BY_TCP)];
    let to_others = others
        .into_iter()
        .flat_map(|(of, rivals)| ratios.map(|metric| (of, rivals.clone(), metric)));
    View {
        id: "volumes",
        title: "volumes, side by side",
        layout: Layout::Metrics,
        systems: systems(),
        rows: rows::WORKS
            .iter()
            .map(|one| row(one.id(), one.about()))
            .collect(),
        metrics: &["rate", "p50", "p99", "cpu"],
        ratios: to_best.chain(to_others).collect(),
        plots: vec![Plot::bars("rate"), Plot::bars("cpu")],
    }
}

fn gaps() -> View {
    View {
        id: "gap",
        title: "the gap when a path dies",
        layout: Layout::Systems,
        systems: BREAKERS.to_vec(),
        rows: rows::SCENARIOS
            .iter()
            .map(|one| row(one.id, one.about))
            .collect(),
        metrics: &["gap", "silence"],
        ratios: Vec::new(),
        plots: vec![Plot::bars("gap")],
    }
}

/// The first and the last step of a sweep.
fn ends(pattern: Pattern) -> [String; 2] {
    let word = pattern.word();
    [format!("{word}-x1"), format!("{word}-x64")]
}

fn jobs(pattern: Pattern) -> View {
    let steps = rows::sweep().filter(|row| row.pattern == pattern);
    let lines = |metric, scaling| Plot::Lines {
        metric,
        across: "jobs on one volume",
        powers: false,
        scaling,
    };
    let [first, _] = ends(pattern);
    let to_one = |system: System| (system.id, To::Row(first.clone()), "");
    View {
        id: match pattern {
            Pattern::Randread => "jobs-read",
            _ => "jobs-write",
        },
        title: "many jobs on one volume",
        layout: Layout::Systems,
        systems: systems(),
        rows: steps
            .map(|one| crate::catalogue::Row {
                sweep: Some((pattern.word().into(), f64::from(one.jobs))),
                ..row(one.id(), format!("{}, {} jobs", pattern.word(), one.jobs))
            })
            .collect(),
        metrics: &["rate", "cpu"],
        ratios: systems().into_iter().map(to_one).collect(),
        plots: vec![
            lines("rate", false),
            lines("rate", true),
            lines("cpu", false),
        ],
    }
}

fn goals() -> Vec<Goal> {
    let mut goals = Vec::new();
    for one in &rows::WORKS {
        let of = ours().filter_map(|system| aim(system.id, one).map(|aim| (system.id, aim)));
        goals.extend(of.map(|(of, (metric, aim))| {
            let rivals = match of {
                "nbd-tcp" => RELAY,
                "nbd-direct-by-tcp" => BY_TCP,
                "api-region" => ONE_HOST,
                _ => BEST,
            };
            goal(one.id(), metric, of, rivals, aim)
        }));
        let as_good = Aim::AtLeast(1.0);
        goals.extend(["fuse", "fuse-lent"].map(|of| goal(one.id(), "rate", of, FILE, as_good)));
    }
    for one in &rows::SCENARIOS {
        let aim = Aim::AtMost(one.at_most_ms);
        goals.extend(BREAKERS.map(|by| goal(one.id, "gap", by.id, To::Itself, aim)));
    }
    for pattern in [Pattern::Randread, Pattern::Randwrite] {
        let [first, last] = ends(pattern);
        let to = To::Row(first);
        let flat = |of| goal(last.as_str(), "cpu", of, to.clone(), Aim::AtMost(FLAT));
        goals.extend(ours().map(|system| flat(system.id)));
        let many = rows::sweep().filter(|row| row.pattern == pattern && row.jobs > 1);
        goals.extend(many.flat_map(|row| {
            let aim = Aim::AtLeast(OF_ONE_JOB);
            let to = &to;
            ["fio-local", "fio-lent"].map(|of| goal(row.id(), "rate", of, to.clone(), aim))
        }));
    }
    goals
}

/// The aim of a system in a row. The API's rows are judged by fio's, so that both sides of a ratio come from one tool.
fn aim(system: &str, row: &rows::Work) -> Option<(&'static str, Aim)> {
    let sequential = matches!(row.pattern, Pattern::Read | Pattern::Write);
    let depth = row.depth;
    Some(match system {
        "fio-tcp" if sequential => ("rate", Aim::AtLeast(2.0)),
        "fio-tcp" if depth == 1 => ("p50", Aim::AtMost(0.6)),
        "fio-tcp" => ("rate", Aim::AtLeast(3.0)),
        "api-region" => ("rate", Aim::AtLeast(0.91)),
        "fio-local" | "fio-lent" if sequential => return None,
        "fio-local" | "fio-lent" if depth == 1 => ("rate", Aim::AtLeast(20.0)),
        "fio-local" | "fio-lent" => ("rate", Aim::AtLeast(10.0)),
        "nbd-local" | "nbd-lent" | "nbd-direct" | "nbd-direct-by-tcp" | "nbd-tcp" => {
            ("rate", Aim::AtLeast(1.2))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_is_judged_by_fio_and_only_memlane_has_aims() {
        let goals = goals();
        let of = |system: &str, row: &str| {
            let mut goals = goals.iter().filter(|g| g.of == system && g.row == row);
            goals.next().map(|goal| (goal.metric, goal.aim))
        };
        assert_eq!(
            of("fio-tcp", "randread-qd1"),
            Some(("p50", Aim::AtMost(0.6)))
        );
        assert_eq!(of("fio-tcp", "seqwrite"), Some(("rate", Aim::AtLeast(2.0))));
        assert_eq!(
            of("fio-local", "randwrite-qd32"),
            Some(("rate", Aim::AtLeast(10.0)))
        );
        assert_eq!(of("fio-local", "seqread"), None);
        assert_eq!(of("fio-tcp", "randread-x8"), None);
        let judged = [
            "fio-local",
            "fio-lent",
            "fio-tcp",
            "api-region",
            "nbd-local",
            "nbd-lent",
            "nbd-direct",
            "nbd-direct-by-tcp",
            "nbd-tcp",
        ];
        for system in systems() {
            let some = rows::WORKS.iter().any(|row| aim(system.id, row).is_some());
            assert_eq!(some, judged.contains(&system.id), "{}", system.id);
        }
    }

    #[test]
    fn the_best_peer_is_one_of_all_that_are_not_ours_and_serve_more_than_a_file() {
        let peers: Vec<&str> = systems().iter().filter(|s| !s.ours).map(|s| s.id).collect();
        assert_eq!(peers, [&PEERS[..], &["qsd-fuse"], &RELAYS].concat());
    }

    /// The posting prints the change from IBNBD to NVMEoRDMA.
    #[test]
    fn the_published_figures_give_the_percentages_that_the_posting_prints() {
        let table = catalogue().published;
        for (source, row, percent) in [
            ("cx2", "randread-x1", 4.6),
            ("cx2", "randread-x64", -13.4),
            ("cx2", "randwrite-x40", -33.0),
            ("cx3", "randread-x8", 1.2),
            ("cx3", "randwrite-x1", -22.4),
            ("cx3", "randwrite-x64", -6.4),
        ] {
            let rate = |system: &str| {
                let mut found = table.of(row, "rate");
                let found = found.find(|f| f.source == source && f.system == system);
                found.expect("a figure").value
            };
            let told = (rate("NVMEoRDMA") / rate("IBNBD") - 1.0) * 100.0;
            assert!((told - percent).abs() < 0.06, "{told} against {percent}");
        }
        for figure in &table.figures {
            assert!(
                rows::sweep().any(|row| row.id() == figure.row),
                "{}",
                figure.row
            );
        }
    }
}
