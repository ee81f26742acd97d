//! What the packet suite's tables and plots show, and what memlane should reach.

use super::rows::{ALONE, BULK, LENT, MEMIF, MODES, Part, Row, TESTPMD, VETH, rows};
use crate::catalogue::{Aim, Catalogue, Goal, Layout, Plot, To, View, goal, row};
use crate::published::Published;
use crate::runner::plan::Row as _;

/// The better of both older modes, round by round.
const OLDER: To = To::Best("older", &["copy", "map"]);

const METHOD: &[&str] = &[
    "Rounds alternate between the systems; medians (lowest–highest); ratios are of the same round; older: the better of \
     copy and map",
    "Frames: two processes, the sender on one CPU, the receiver on another; both look for 20 µs before they sleep; rates by \
     the receiver's count and clock, after 50 ms of warm-up; each frame's length, number and last byte are checked",
    "A sender writes each frame in its place, all of it; when a receiver is done with a frame it has one copy of it in memory \
     of its own, in every mode: its own copy, or the kernel's (a back in mode copy, which makes no second one)",
    "TX: the front sends and the back receives, RX: the other way round; burst: frames that are sent before the other side is \
     shown them, and taken at a time",
    "CPU: user and system time of all processes of a row (for TCP: of what joins, and of both iperf3); the kernel's own \
     threads are not in it",
    "One process: `memlane net link` with a device in each of the two namespaces, as the copier has them; a lent device: a \
     process in each namespace, one of which lends the other its device (`memlane net lend`); the other modes: a process in \
     each namespace, and the lane between them",
    "TCP: iperf3 between two network namespaces, client in the front's; TAP devices with vnet headers, TCP in frames of up to \
     64 KiB; UDP: as fast as the sender can, counted is what arrives",
    "memif: testpmd txonly and rxonly, one CPU each, by the receiver's count and clock; the lane is this run's persistent \
     mode, front as client, for comparison",
];

pub(crate) fn catalogue() -> Catalogue {
    let all = rows();
    Catalogue {
        suite: "packets",
        views: vec![frames(&all), tcp(&all), memif(&all)],
        goals: all.iter().flat_map(goals).collect(),
        memory: None,
        method: METHOD,
        published: Published::parse(include_str!("../../../../published/packets.json")),
    }
}

fn of(all: &[Row], part: Part) -> Vec<crate::catalogue::Row> {
    let of = all.iter().filter(|row| row.part == part);
    of.map(|one| crate::catalogue::Row {
        sweep: one.sweep(),
        ..row(one.id(), one.about())
    })
    .collect()
}

fn frames(all: &[Row]) -> View {
    View {
        id: "frames",
        title: "frames between two processes",
        layout: Layout::Systems,
        systems: MODES.to_vec(),
        rows: of(all, Part::Table),
        metrics: &["rate", "cpu"],
        ratios: vec![
            ("persistent", To::System("copy"), "rate"),
            ("persistent", To::System("map"), "rate"),
        ],
        plots: vec![
            Plot::bars("rate"),
            Plot::bars("cpu"),
            Plot::Lines {
                metric: "rate",
                across: "queues",
                powers: false,
                scaling: false,
            },
        ],
    }
}

fn tcp(all: &[Row]) -> View {
    View {
        id: "tcp",
        title: "TCP and UDP between two namespaces",
        layout: Layout::Systems,
        systems: BULK.to_vec(),
        rows: of(all, Part::Bulk),
        metrics: &["throughput", "cpu"],
        ratios: vec![
            ("persistent", To::System(VETH), "throughput"),
            (ALONE, To::System("copier"), "throughput"),
            (LENT, To::System("copier"), "throughput"),
            ("persistent", To::System("copier"), "throughput"),
            ("persistent", OLDER, "throughput"),
        ],
        plots: vec![Plot::bars("throughput"), Plot::bars("cpu")],
    }
}

fn memif(all: &[Row]) -> View {
    let ours = MEMIF.iter().filter(|system| system.ours);
    View {
        id: "memif",
        title: "memif, burst 32",
        layout: Layout::Systems,
        systems: MEMIF.to_vec(),
        rows: of(all, Part::Memif),
        metrics: &["rate"],
        ratios: ours.map(|s| (s.id, To::System(TESTPMD), "rate")).collect(),
        plots: vec![Plot::bars("rate")],
    }
}

/// What memlane should reach in a row.
fn goals(row: &Row) -> Vec<Goal> {
    let goal = |of, metric, to, times| goal(row.id(), metric, of, to, Aim::AtLeast(times));
    let mut goals = Vec::new();
    match row.part {
        Part::Table => {
            let mut add = |to, times| goals.push(goal("persistent", "rate", to, times));
            let single = row.queues == 1;
            if single && row.bytes == 64 && row.burst == 32 {
                add(To::System("copy"), 8.0);
            }
            if single && row.bytes == 64 {
                add(To::System("map"), 50.0);
            }
            if single && row.bytes == 1496 {
                add(To::System("copy"), 3.0);
            }
            add(OLDER, 1.0);
        }
        // A flood of datagrams shows how they are lost; that has no aim.
        Part::Bulk if row.flows == 0 => {}
        Part::Bulk => {
            goals.push(goal("persistent", "throughput", To::System(VETH), 0.8));
            goals.push(goal("persistent", "throughput", OLDER, 1.0));
            for one in [ALONE, LENT] {
                goals.push(goal(one, "throughput", To::System("copier"), 0.95));
            }
        }
        Part::Memif if row.bytes == 64 => {
            let ours = MEMIF.iter().filter(|system| system.ours);
            goals.extend(ours.map(|s| goal(s.id, "rate", To::System(TESTPMD), 1.0)));
        }
        Part::Memif => {}
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(goals: &[Goal], row: &str, to: &To, times: f64) -> bool {
        let mut goals = goals.iter().filter(|goal| goal.row == row);
        goals.any(|goal| goal.to == *to && goal.aim == Aim::AtLeast(times))
    }

    #[test]
    fn aims_are_those_that_the_lane_was_built_for() {
        let goals = catalogue().goals;
        for way in ["tx", "rx"] {
            let copy = To::System("copy");
            assert!(has(&goals, &format!("{way}-64-b32"), &copy, 8.0));
            assert!(has(
                &goals,
                &format!("{way}-64-b1"),
                &To::System("map"),
                50.0
            ));
            assert!(has(&goals, &format!("{way}-1496-b1"), &copy, 3.0));
            assert!(has(&goals, &format!("tcp-{way}-1"), &To::System(VETH), 0.8));
            let copier = To::System("copier");
            assert!(has(&goals, &format!("tcp-{way}-1"), &copier, 0.95));
            let memif = |bytes| format!("memif-{way}-{bytes}");
            let count = |row: String| goals.iter().filter(|goal| goal.row == row).count();
            assert_eq!((count(memif(64)), count(memif(1496))), (4, 0));
        }
    }

    #[test]
    fn in_no_row_of_frames_or_of_tcp_may_persistent_be_worse_than_an_older_mode() {
        let goals = catalogue().goals;
        let all = rows();
        let lane = all
            .iter()
            .filter(|row| row.part != Part::Memif && row.flows > 0);
        for row in lane {
            assert!(has(&goals, &row.id(), &OLDER, 1.0), "{row:?}");
        }
    }

    /// The posting of 2015 prints the gain in per cent.
    #[test]
    fn the_published_figures_give_the_percentages_that_the_posting_prints() {
        let table = catalogue().published;
        for (id, percent) in [
            ("tx-64-b1", 46.0),
            ("rx-64-b1", 109.0),
            ("rx-1496-b1", 60.0),
            ("tcp-tx-1", 48.0),
            ("tcp-rx-1", -15.0),
            ("tcp-rx-3", 40.0),
        ] {
            let mut of = table.figures.iter().filter(|f| f.row == id);
            let figure = of
                .find(|f| f.system == "persistent grants")
                .expect("a figure");
            let told = (table.ratio(figure).expect("a ratio") - 1.0) * 100.0;
            assert!(
                (told - percent).abs() < 1.5,
                "{id}: {told} against {percent}"
            );
        }
        let seed = table
            .figures
            .iter()
            .filter(|f| f.source == "pgnt" && !f.base.is_empty());
        assert_eq!(seed.count(), 12, "6 rows of packets, 6 of TCP");
    }
}
