//! What this suite's table shows, and what memlane should reach beside TCP between machines.

use super::rows::{self, COLUMNS, MEMLANE_GUESTS, MEMLANE_HOST, TCP_GUESTS, TCP_HOST};
use crate::catalogue::{Aim, Catalogue, Goal, Layout, MemoryRule, Plot, To, View, goal, row};
use crate::published::Published;
use crate::runner::plan::Row as _;

const METHOD: &[&str] = &[
    "EMULATED (QEMU's TCG, without KVM): a guest's CPU is many times slower than this machine's, and its virtual network card \
     relatively faster. So only ratios of one row say something, and they need not hold under KVM",
    "Guests have one CPU each, the same kernel, and an ivshmem-plain device with one region of memory. The server is in a guest. \
     Its client is in another guest, at the other end of a virtual network card (virtio-net, datagrams of a UNIX domain socket \
     between the two QEMUs), or on the host, at a TAP device",
    "memlane: both programs under memlane run with its defaults, and an agent on each machine. TCP: the same programs as they are, \
     in the same machines, while the agents run",
    "Rounds alternate between the columns in one run, every second round backwards; medians (lowest–highest); ratios are of the \
     same round. Nothing is pinned: the kernel places the QEMUs",
];

const PAIRS: [(&str, &str); 2] = [(MEMLANE_GUESTS, TCP_GUESTS), (MEMLANE_HOST, TCP_HOST)];

pub(crate) fn catalogue() -> Catalogue {
    let ratios = PAIRS.map(|(of, to)| (of, To::System(to), ""));
    Catalogue {
        suite: "machines",
        views: vec![View {
            id: "programs",
            title: "programs in emulated machines (TCG)",
            layout: Layout::Systems,
            systems: COLUMNS.map(|column| column.system).to_vec(),
            rows: rows::Row::all()
                .into_iter()
                .map(|one| row(one.id(), one.about()))
                .collect(),
            metrics: &["rate", "throughput", "p50", "p99"],
            ratios: ratios.to_vec(),
            plots: vec![Plot::bars("rate"), Plot::bars("throughput")],
        }],
        goals: goals(),
        memory: Some(MemoryRule {
            least: 50.0,
            systems: &[MEMLANE_GUESTS, MEMLANE_HOST],
            not_asked: &[],
        }),
        method: METHOD,
        published: Published::none(),
    }
}

/// No less than TCP brings.
fn goals() -> Vec<Goal> {
    let all = rows::Row::all().into_iter();
    let of = |one: rows::Row| {
        PAIRS.map(|(of, to)| {
            let aim = Aim::AtLeast(1.0);
            goal(one.id(), one.metric(), of, To::System(to), aim)
        })
    };
    all.flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_an_aim_for_both_kinds_of_client() {
        let goals = goals();
        for one in rows::Row::all() {
            let of = goals.iter().filter(|goal| goal.row == one.id());
            let of: Vec<&str> = of.map(|goal| goal.of).collect();
            assert_eq!(of, [MEMLANE_GUESTS, MEMLANE_HOST], "{one:?}");
        }
    }
}
