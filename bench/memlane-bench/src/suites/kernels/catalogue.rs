//! What this suite's tables show, and what memlane should reach beside the kernel's own.

use super::rows::{self, GAP, NVME_TCP, RDMA, RNBD, TCP, UBLK, VOLUMES};
use crate::catalogue::{
    Aim, Catalogue, Goal, Layout, MemoryRule, Plot, Row, System, To, View, goal, row,
};
use crate::published::Published;
use crate::runner::plan::Row as _;
use crate::suites::blocks::rows::Work;
use crate::suites::counted::rows as counted;
use crate::suites::sockets::works::Side;

const METHOD: &[&str] = &[
    "All of it on the one CPU of an emulated machine (QEMU without KVM), whose clock counts instructions: each takes 1 ns, \
     whatever it is. So figures say how many instructions a row takes, in programs and kernel together. They are no speeds: \
     caches, misses, waits for memory and a second CPU do not exist there. Where nobody has anything to do, the clock jumps to \
     the next timer, so times in which everybody waits for a time-out are told as they would be elsewhere",
    "Client and server of a volume are at the two ends of a veth pair, the second path at those of another one. Both ends are in \
     one network namespace, as rxe knows no other, and rules of routing send all packets by the pair. The store is the same RAM \
     disk of 16 MiB (brd) for all",
    "fio loads all of them: those of the kernel, and memlane's by ublk, as block devices by libaio with direct=1; memlane itself \
     by its own engine, without a block device between, as a program does that uses the API",
    "CPU is the time in which the machine was not idle (/proc/stat), the kernel's threads and interrupts among it, for a \
     million requests",
    "rxe computes check sums by the kernel's generic code, some 20 instructions a byte for both ends together: in rows of 1 MiB \
     nearly all that is counted over RDMA",
    "The gap is the time of the slowest request while one of two paths loses all packets. RNBD's has two lengths, 60 times apart: \
     Missed aims has more rounds",
    "Sockets: rows, columns and method of the suite `counted`, in the same machine",
];

/// Of mainline's gap.
const OF_ITS_GAP: f64 = 0.1;
const LANE: &str = counted::MEMLANE;
const SMC: &str = counted::SMC;

pub(crate) fn catalogue() -> Catalogue {
    Catalogue {
        suite: "kernels",
        views: vec![
            volumes("volumes", "volumes over one path", one_path()),
            volumes("two-paths", "volumes over two paths", two_paths()),
            gap(),
            sockets(
                "sockets",
                "programs over sockets",
                |one| !one.is_bulk(),
                &["rate", "p50", "p99"],
            ),
            sockets(
                "bulk",
                "bulk over sockets: how copies are coded",
                counted::Row::is_bulk,
                &["throughput"],
            ),
        ],
        goals: goals(),
        memory: Some(MemoryRule {
            least: 50.0,
            systems: &[LANE, SMC],
            not_asked: &[],
        }),
        method: METHOD,
        published: Published::none(),
    }
}

fn one_path() -> Vec<Work> {
    rows::ONE_PATH.into_iter().chain(rows::sweep()).collect()
}

fn two_paths() -> Vec<Work> {
    rows::TWO_PATHS.to_vec()
}

/// Which of memlane's is compared with which of the kernel's: the same network, or as near as there is.
fn rivals() -> [(System, System); 3] {
    [(RDMA, RNBD), (UBLK, RNBD), (TCP, NVME_TCP)]
}

fn ratios(metric: &'static str) -> impl Iterator<Item = (&'static str, To, &'static str)> {
    let of = move |(ours, theirs): (System, System)| (ours.id, To::System(theirs.id), metric);
    rivals().into_iter().map(of)
}

fn volumes(id: &'static str, title: &'static str, works: Vec<Work>) -> View {
    View {
        id,
        title,
        layout: Layout::Metrics,
        systems: VOLUMES.to_vec(),
        rows: works.iter().map(|one| row(one.id(), one.about())).collect(),
        metrics: &["rate", "p50", "p99", "cpu"],
        ratios: ratios("rate").chain(ratios("cpu")).collect(),
        plots: vec![Plot::bars("cpu")],
    }
}

fn gap() -> View {
    View {
        id: "gap",
        title: "the gap when a path falls silent",
        layout: Layout::Systems,
        systems: VOLUMES.to_vec(),
        rows: vec![row(GAP, rows::GAP_ABOUT)],
        metrics: &["gap"],
        ratios: vec![(RDMA.id, To::System(RNBD.id), "gap")],
        plots: vec![Plot::bars("gap")],
    }
}

fn socket_rows() -> impl Iterator<Item = counted::Row> {
    counted::Row::all()
        .into_iter()
        .filter(|one| !one.is_paced())
}

fn sockets(
    id: &'static str,
    title: &'static str,
    shows: fn(&counted::Row) -> bool,
    metrics: &'static [&'static str],
) -> View {
    let rows: Vec<Row> = socket_rows()
        .filter(shows)
        .map(|one| row(one.id(), one.about()))
        .collect();
    let ratios = [(SMC, counted::TCP), (LANE, counted::TCP), (LANE, SMC)];
    View {
        id,
        title,
        layout: Layout::Systems,
        systems: counted::COLUMNS.map(Side::system).to_vec(),
        rows,
        metrics,
        ratios: ratios.map(|(of, to)| (of, To::System(to), "")).to_vec(),
        plots: vec![Plot::Bars {
            metric: metrics[0],
            to: To::System(counted::TCP),
        }],
    }
}

fn goals() -> Vec<Goal> {
    let mut goals = Vec::new();
    for work in one_path().into_iter().chain(two_paths()) {
        let no_more = Aim::AtMost(1.0);
        let of = |(ours, theirs): (System, System)| {
            goal(work.id(), "cpu", ours.id, To::System(theirs.id), no_more)
        };
        goals.extend(rivals().map(of));
    }
    for ours in [RDMA, UBLK] {
        let aim = Aim::AtMost(OF_ITS_GAP);
        goals.push(goal(GAP, "gap", ours.id, To::System(RNBD.id), aim));
    }
    goals.extend(socket_rows().map(|one| {
        let aim = match one.metric() {
            "p50" => Aim::AtMost(0.33),
            "rate" => Aim::AtLeast(3.0),
            _ => Aim::AtLeast(1.0),
        };
        goal(one.id(), one.metric(), LANE, To::System(SMC), aim)
    }));
    goals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_stands_in_one_table_and_has_an_aim() {
        let all = catalogue();
        for one in rows::Row::all() {
            let id = one.id();
            assert!(all.goals.iter().any(|goal| goal.row == id), "{id}");
            let views = all.views.iter();
            let shown = views.filter(|view| view.rows.iter().any(|row| row.id == id));
            assert_eq!(shown.count(), 1, "{id}");
        }
    }

    #[test]
    fn memlane_over_rxe_is_judged_by_what_mainline_costs_over_rxe() {
        let goals = goals();
        let of = |row: &str, of: &str| {
            let mut found = goals.iter().filter(|goal| goal.row == row && goal.of == of);
            found
                .next()
                .map(|goal| (goal.metric, goal.to.clone(), goal.aim))
        };
        let to_rnbd = Some(("cpu", To::System("rnbd"), Aim::AtMost(1.0)));
        assert_eq!(of("randread-qd1", "memlane-rdma"), to_rnbd);
        assert_eq!(of("two-seqwrite", "memlane-ublk"), to_rnbd);
        assert_eq!(
            of(GAP, "memlane-rdma"),
            Some(("gap", To::System("rnbd"), Aim::AtMost(0.1)))
        );
        let smc = |metric, aim| Some((metric, To::System(SMC), aim));
        assert_eq!(of("sockperf-pp", LANE), smc("p50", Aim::AtMost(0.33)));
        assert_eq!(of("iperf3", LANE), smc("throughput", Aim::AtLeast(1.0)));
    }
}
