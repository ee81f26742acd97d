//! What this suite's tables show, and what memlane should reach on the counted clock.

use super::rows::{self, COLUMNS, MEMLANE, SMC, TCP};
use crate::catalogue::{Aim, Catalogue, Goal, Layout, MemoryRule, Plot, Row, To, View, goal, row};
use crate::published::Published;
use crate::runner::plan::Row as _;
use crate::suites::sockets::works::Side;

const METHOD: &[&str] = &[
    "Server and client on the one CPU of an emulated machine (QEMU without KVM), whose clock counts instructions: each takes \
     1 ns, whatever it is. So figures say how many instructions a row takes, in programs and kernel together, and do not \
     depend on what this machine does besides. They repeat within 1 %, but for rows in which some of the bytes take the lane \
     and others do not: which ones do is not the same each time. They are no speeds: caches, misses, waits for memory and a \
     second CPU do not exist there",
    "TCP: the programs as they are, over 127.0.0.1. SMC-D loopback: the same with SMC sockets, over the kernel's own device, \
     buffers of 1 MiB as in its postings. memlane: both programs under memlane run with its defaults",
    "Bulk rows say above all how a copy is coded. The CPU has neither ERMS nor FSRM: with them the kernel copies by \
     `rep movsb`, which counts an instruction a byte; without them it takes about 20 instructions for 64 bytes, memlane's own \
     copies 13",
    "Bytes by memory: memlane's by its servers' stats pages, SMC-D's by the kernel's statistics of it",
];

/// As many times as good as TCP, and as SMC-D.
const TIMES: [(&str, f64); 2] = [(TCP, 1.5), (SMC, 1.0)];

pub(crate) fn catalogue() -> Catalogue {
    Catalogue {
        suite: "counted",
        views: vec![
            view(
                "programs",
                "programs, by instructions",
                |one| !one.is_bulk() && !one.is_paced(),
                &["rate", "p50", "p99"],
            ),
            view(
                "bulk",
                "bulk: how copies are coded",
                rows::Row::is_bulk,
                &["throughput"],
            ),
            view(
                "paced",
                "requests at fixed times, by instructions",
                rows::Row::is_paced,
                &["cpu", "p50", "p99"],
            ),
        ],
        goals: goals(),
        memory: Some(MemoryRule {
            least: 50.0,
            systems: &[MEMLANE, SMC],
            // They end before their lane is due.
            not_asked: &["short", "short-10", "short-30"],
        }),
        method: METHOD,
        published: Published::none(),
    }
}

fn view(
    id: &'static str,
    title: &'static str,
    shows: fn(&rows::Row) -> bool,
    metrics: &'static [&'static str],
) -> View {
    let rows = rows::Row::all().into_iter();
    let rows: Vec<Row> = rows
        .filter(shows)
        .map(|one| row(one.id(), one.about()))
        .collect();
    let ratios = [(SMC, TCP), (MEMLANE, TCP), (MEMLANE, SMC)];
    let bars = |metric: &&'static str| Plot::Bars {
        metric,
        to: To::System(TCP),
    };
    View {
        id,
        title,
        layout: Layout::Systems,
        systems: COLUMNS.map(Side::system).to_vec(),
        rows,
        metrics,
        ratios: ratios.map(|(of, to)| (of, To::System(to), "")).to_vec(),
        plots: metrics[..metrics.len().min(2)].iter().map(bars).collect(),
    }
}

fn goals() -> Vec<Goal> {
    let of = |one: rows::Row| {
        TIMES.map(|(to, times)| {
            let aim = match one.metric() {
                // They end before the lane could pay, so it may not cost anything.
                _ if one.is_short() && to == TCP => Aim::AtLeast(0.97),
                // The programs sleep most of the time, whatever carries their bytes.
                "cpu" => Aim::AtMost(1.02),
                "p50" => Aim::AtMost((100.0 / times).round() / 100.0),
                _ => Aim::AtLeast(times),
            };
            goal(one.id(), one.metric(), MEMLANE, To::System(to), aim)
        })
    };
    rows::Row::all().into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_an_aim_against_both_and_stands_in_one_table() {
        let all = catalogue();
        for one in rows::Row::all() {
            let aims = all.goals.iter().filter(|goal| goal.row == one.id());
            assert_eq!(aims.count(), 2, "{one:?}");
            let views = all.views.iter();
            let shown = views.filter(|view| view.rows.iter().any(|row| row.id == one.id()));
            let shown: Vec<&View> = shown.collect();
            assert_eq!(shown.len(), 1, "{one:?}");
            assert!(shown[0].metrics.contains(&one.metric()), "{one:?}");
        }
    }

    #[test]
    fn latency_is_aimed_at_from_above_and_everything_else_from_below() {
        let of = |row: &str| -> Vec<Aim> {
            let goals = goals().into_iter();
            goals
                .filter(|goal| goal.row == row)
                .map(|goal| goal.aim)
                .collect()
        };
        assert_eq!(of("sockperf-pp"), [Aim::AtMost(0.67), Aim::AtMost(1.0)]);
        assert_eq!(of("iperf3-p4"), [Aim::AtLeast(1.5), Aim::AtLeast(1.0)]);
        assert_eq!(of("paced-1k-c50"), [Aim::AtMost(1.02); 2]);
        assert_eq!(of("short"), [Aim::AtLeast(0.97), Aim::AtLeast(1.0)]);
    }
}
