//! What the socket suite's tables and plots show, and what memlane should reach.

use super::lines::WORKS;
use super::rows::{self, BARE, ICE, ICE_SLEEPS, Kind, LANE, LANE_SLEEPS, STREAM};
use super::works::{RINGS, Side};
use crate::catalogue::{Aim, Catalogue, Goal, Layout, MemoryRule, Plot, Row, To, View, goal, row};
use crate::published::Published;
use crate::runner::plan::Row as _;

const TCP: To = To::System(Side::Tcp.id());
/// The columns under `memlane run`.
const OURS: [&str; 2] = [Side::Copy.id(), Side::Nocopy.id()];
/// Groups of the programs' rows.
const PROGRAMS: [&str; 14] = [
    "embedded", "sockperf", "iperf3", "nginx", "redis", "pgbench", "haproxy", "netty", "go",
    "script", "musl", "nc", "ssh", "one-cpu",
];
/// Rings of fixed sizes.
const FIXED: [&str; 6] = {
    let mut ids = [""; 6];
    let mut at = 0;
    while at < ids.len() {
        ids[at] = RINGS[at + 1].id();
        at += 1;
    }
    ids
};
/// The best of them by the median.
const BEST_FIXED: To = To::BestMedian("best fixed", &FIXED);

const METHOD: &[&str] = &[
    "Rounds alternate between the columns in one run, every second round backwards; medians (lowest–highest); ratios are of \
     the same round",
    "memlane copy and nocopy: both programs under memlane run with that --mode; UNIX: the same programs over UNIX domain \
     sockets, where they can",
    "Server on one CPU, client on another; free: wherever the kernel likes; the pairs that share CPUs have two, all of them",
    "CPU: user and system time of server and client, warm-up included where its requests are counted; told where it was 50 ms \
     or more",
    "Embedded: our own plain programs with sockets of the standard library, blocking; for many connections: one thread with \
     epoll at each end, requests over all of them in turn, up to 64 at a time",
    "Paced: requests of 100 bytes are due at fixed times, whatever the answers do; latency counts from when a request was \
     due; one connection: a thread that sends, and blocking receives; 50: one thread with epoll at each end; after 0.2 s with \
     that pace which do not count. At 100 requests a second a round is four times as long",
    "By ring: both programs under memlane run with --ring SIZE, beside the ring that fits itself to its stream; best fixed: \
     that whose median is best",
    "Handed over by name: half of a round trip between two processes on a CPU each. Each way hands over memory of the row's \
     size, whatever is in it. memlane: reserve and commit, peek and consume. iceoryx2: a sample is loaned and sent, received \
     and dropped. UNIX sockets have to write and read the bytes. The clock is read once for as many turns as take about \
     20 µs, at most 64, so percentiles are of means of these turns",
    "Carried by name: bytes are copied into the memory at one end and out of it at the other, one way; the bare ring does the \
     same by memcpy, with indices and nothing else, never sleeping, as large as memlane's ring is by default; both take a \
     quarter of it at a time, at most; memlane spins for up to 100 µs and then sleeps on its TCP socket; no spinning: it \
     sleeps each time; iceoryx2 looks without pause; events: it sleeps on its event service each time",
];

pub(crate) fn catalogue() -> Catalogue {
    let views = vec![
        programs(),
        swept(
            "connections",
            "100 bytes over many connections in turn",
            &["rate", "p50", "p99"],
            &["rate"],
            "connections",
        ),
        swept(
            "rr",
            "there and back, by size",
            &["p50", "p99", "rate"],
            &["p50", "p99"],
            "bytes",
        ),
        swept(
            "stream",
            "one way, by size",
            &["throughput"],
            &["throughput"],
            "bytes",
        ),
        paced(),
        costs(),
        by_ring(),
        by_name(Kind::Handover),
        by_name(Kind::Carried),
    ];
    Catalogue {
        suite: "sockets",
        goals: goals(&views),
        views,
        memory: Some(MemoryRule {
            least: 50.0,
            systems: &OURS,
            // With more programs than CPUs, and where receivers sleep, the lane may leave bytes to TCP: whether that pays is
            // what these rows tell.
            not_asked: &[
                "short",
                "short-10",
                "short-30",
                "one-sided",
                "pgbench",
                "pgbench-rows",
                "pgbench-connect",
                "nginx-close",
                "haproxy",
                "haproxy-tcp",
                "netty",
                "go-proxy",
                "caddy",
                "go-start",
                "script-curl",
                "script-go",
                "script-true",
                "ssh",
                "one-cpu-msg100",
                "one-cpu-iperf3",
                "one-cpu-nginx-128",
                "paced-100-c1",
                "paced-1k-c1",
                "paced-10k-c1",
                "paced-100-c50",
                "paced-1k-c50",
                "paced-10k-c50",
            ],
        }),
        method: METHOD,
        published: Published::parse(include_str!("../../../../published/sockets.json")),
    }
}

/// Rows of some groups, pinned and then free where they can be both.
fn rows(groups: &[&str]) -> Vec<Row> {
    let wanted = |row: &rows::Row| match row {
        rows::Row::Program { work, .. } => groups.contains(&WORKS[*work].group),
        rows::Row::ByName { .. } => false,
    };
    rows::Row::all()
        .iter()
        .filter(|row| wanted(row))
        .map(shown)
        .collect()
}

fn shown(one: &rows::Row) -> Row {
    Row {
        sweep: one.sweep(),
        ..row(one.id(), one.about())
    }
}

fn against_tcp() -> Vec<(&'static str, To, &'static str)> {
    let others = [Side::Unix, Side::Sockmap, Side::Copy, Side::Nocopy];
    others.map(|side| (side.id(), TCP, "")).to_vec()
}

fn view(
    id: &'static str,
    title: &'static str,
    groups: &[&str],
    metrics: &'static [&'static str],
) -> View {
    View {
        id,
        title,
        layout: Layout::Systems,
        systems: Side::ALL.map(Side::system).to_vec(),
        rows: rows(groups),
        metrics,
        ratios: against_tcp(),
        plots: Vec::new(),
    }
}

fn programs() -> View {
    let bars = |metric| Plot::Bars { metric, to: TCP };
    View {
        plots: vec![bars("rate"), bars("throughput"), bars("p50"), bars("p99")],
        ..view(
            "programs",
            "programs",
            &PROGRAMS,
            &["rate", "throughput", "p50", "p99"],
        )
    }
}

fn swept(
    group: &'static str,
    title: &'static str,
    metrics: &'static [&'static str],
    plotted: &[&'static str],
    across: &'static str,
) -> View {
    let lines = |metric: &&'static str| Plot::Lines {
        metric,
        across,
        powers: true,
        scaling: false,
    };
    View {
        plots: plotted.iter().map(lines).collect(),
        ..view(group, title, &[group], metrics)
    }
}

fn paced() -> View {
    let bars = |metric| Plot::Bars { metric, to: TCP };
    View {
        plots: vec![bars("p50"), bars("p99"), bars("cpu")],
        ..view(
            "paced",
            "100 bytes at fixed times",
            &["paced"],
            &["p50", "p99", "cpu"],
        )
    }
}

fn by_ring() -> View {
    let default = Side::Nocopy.id();
    let fixed = FIXED.iter().map(|id| (*id, To::System(default), ""));
    View {
        systems: RINGS.map(Side::system).to_vec(),
        ratios: [(default, BEST_FIXED, "")]
            .into_iter()
            .chain(fixed)
            .collect(),
        ..view(
            "rings",
            "rings of fixed sizes",
            &["rings"],
            &["throughput", "rate"],
        )
    }
}

fn costs() -> View {
    let groups = [&PROGRAMS[..], &["connections", "rr", "stream"]].concat();
    View {
        plots: vec![
            Plot::Bars {
                metric: "cpu",
                to: TCP,
            },
            Plot::Lines {
                metric: "cpu",
                across: "bytes, or connections",
                powers: true,
                scaling: false,
            },
        ],
        ..view("cpu", "processor time", &groups, &["cpu"])
    }
}

fn by_name(kind: Kind) -> View {
    let systems = rows::BY_NAME.iter().filter(|system| kind.has(system));
    let rows = rows::sizes().map(|bytes| shown(&rows::Row::ByName { kind, bytes }));
    let (metric, title, metrics): (_, _, &'static [&'static str]) = match kind {
        Kind::Handover => ("p50", "memory handed over by name", &["p50", "p99"]),
        Kind::Carried => ("throughput", "bytes carried by name", &["throughput"]),
    };
    let to = |of, to| (of, To::System(to), metric);
    View {
        id: kind.word(),
        title,
        layout: Layout::Systems,
        systems: systems.copied().collect(),
        rows: rows.collect(),
        metrics,
        ratios: match kind {
            Kind::Handover => vec![to(LANE, ICE), to(LANE_SLEEPS, ICE_SLEEPS), to(LANE, STREAM)],
            Kind::Carried => vec![to(LANE, BARE), to(LANE, ICE)],
        },
        plots: vec![Plot::Lines {
            metric,
            across: "bytes",
            powers: true,
            scaling: false,
        }],
    }
}

fn goals(views: &[View]) -> Vec<Goal> {
    let mut goals = Vec::new();
    for view in views {
        let to = match view.id {
            "rings" => BEST_FIXED,
            _ => TCP,
        };
        for one in &view.rows {
            for metric in view.metrics {
                let (id, aim) = (one.id.as_str(), aim(&one.id, metric));
                goals.extend(aim.map(|aim| goal(id, metric, Side::Nocopy.id(), to.clone(), aim)));
            }
        }
    }
    let id = |kind, bytes| rows::by_name(kind, bytes);
    for bytes in rows::sizes() {
        let (ice, bare) = (To::System(ICE), To::System(BARE));
        let over = id(Kind::Handover, bytes);
        goals.push(goal(over, "p50", LANE, ice, Aim::AtMost(1.0)));
        if bytes >= BULK {
            let carried = id(Kind::Carried, bytes);
            goals.push(goal(carried, "throughput", LANE, bare, Aim::AtLeast(0.8)));
        }
    }
    let sizes: Vec<u64> = rows::sizes().collect();
    let [first, last] = [sizes[0], sizes[sizes.len() - 1]].map(|bytes| id(Kind::Handover, bytes));
    goals.push(goal(last, "p50", LANE, To::Row(first), Aim::AtMost(1.2)));
    goals
}

/// Where bytes are carried the aim is for bulk: smaller messages than this are about calls.
const BULK: u64 = 64 * 1024;

/// What nocopy should reach against TCP; the row of a ring, against the best fixed one.
fn aim(id: &str, metric: &str) -> Option<Aim> {
    use Aim::{AtLeast, AtMost};
    let (row, pinned) = match id.split_once('/') {
        Some((row, _)) => (row, false),
        None => (id, true),
    };
    let (group, _) = row.rsplit_once('-').unwrap_or((row, ""));
    Some(match (row, group, metric) {
        (_, "paced-100" | "paced-1k" | "paced-10k", _) => AtMost(1.02),
        ("one-cpu-msg100" | "one-cpu-iperf3" | "one-cpu-nginx-128", _, "rate" | "throughput") => {
            AtLeast(1.5)
        }
        (ring, _, "rate" | "throughput") if ring.starts_with("rings-") => AtLeast(0.9),
        ("pgbench-connect" | "nginx-close" | "script-curl" | "script-go", _, "rate") => {
            AtLeast(0.97)
        }
        ("iperf3-bidir" | "nginx-16m" | "nc", _, "throughput")
        | ("redis-set-1m" | "redis-get-1m", _, "rate") => AtLeast(2.0),
        // The program, its pipes or the encryption take most of the time.
        ("ssh" | "socat", _, "throughput")
        | (
            "pgbench" | "pgbench-rows" | "haproxy" | "haproxy-tcp" | "netty" | "go-proxy" | "caddy",
            _,
            "rate",
        ) => AtLeast(1.0),
        ("go-echo" | "go-http" | "go-proxy" | "grpc-unary" | "caddy", _, "cpu")
        | (_, "musl-nginx", "cpu") => AtMost(1.0),
        ("grpc-unary", _, "rate") => AtLeast(1.2),
        ("go-echo", _, "rate") if pinned => AtLeast(5.0),
        ("go-http", _, "rate") => AtLeast(1.3),
        ("sockperf-pp", _, "p50" | "p99") if pinned => AtMost(0.01),
        ("sockperf-tp" | "iperf3", _, "throughput") => AtLeast(3.0),
        (
            "iperf3-4" | "iperf3-8" | "iperf3-100" | "iperf3-back" | "iperf3-zero",
            _,
            "throughput",
        ) => AtLeast(2.0),
        ("msg100", _, "rate") if pinned => AtLeast(50.0),
        ("nginx-1" | "musl-nginx-1" | "connections-1", _, "rate") => AtLeast(20.0),
        // Whatever their number.
        (_, "nginx" | "musl-nginx" | "connections", "rate") => AtLeast(4.0),
        (_, "redis-get" | "redis-set", "rate") => AtLeast(3.0),
        (_, "redis-get" | "redis-set", "p99") => AtMost(1.0),
        ("short" | "short-10" | "short-30", _, "rate") => AtLeast(0.97),
        ("one-sided", _, "rate") => AtLeast(0.98),
        (_, "crowd", "throughput") => AtLeast(1.0),
        ("strangers", _, "rate")
        | (_, "oversubscribed", "rate")
        | ("oversubscribed", _, "rate") => AtLeast(1.0),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_suite_stands_in_a_table() {
        let all = catalogue();
        let shown = |id: &str| {
            let views = all.views.iter().filter(|view| view.id != "cpu");
            views.into_iter().any(|v| v.rows.iter().any(|r| r.id == id))
        };
        let rows = rows::Row::all();
        let programs = rows
            .iter()
            .filter(|row| matches!(row, rows::Row::Program { .. }));
        for row in programs {
            assert!(shown(&row.id()), "{row:?}");
        }
        assert!(shown("nginx-1/free") && !shown("rr-1/free") && !shown("strangers/free"));
    }

    #[test]
    fn aims_for_latency_are_upper_bounds_and_some_are_for_pinned_runs_only() {
        assert!(aim("sockperf-pp", "p50").expect("an aim").met(0.009));
        assert!(!aim("sockperf-pp", "p99").expect("an aim").met(0.02));
        assert_eq!(aim("sockperf-pp/free", "p50"), None);
        assert_eq!(aim("connections-10000", "rate"), aim("nginx-128", "rate"));
        assert_eq!(aim("nginx-memory-1", "rate"), None);
        for metric in ["p50", "p99", "cpu"] {
            assert_eq!(aim("paced-10k-c50", metric), Some(Aim::AtMost(1.02)));
        }
        assert_eq!(aim("redis-get-1m", "rate"), Some(Aim::AtLeast(2.0)));
        assert_eq!(aim("one-cpu-iperf3", "throughput"), Some(Aim::AtLeast(1.5)));
        assert_eq!(aim("pgbench", "rate"), Some(Aim::AtLeast(1.0)));
        assert!(aim("short/free", "rate").expect("an aim").met(0.97));
        assert_eq!(
            aim("oversubscribed", "rate"),
            aim("oversubscribed-32", "rate")
        );
    }

    #[test]
    fn a_ring_that_fits_itself_is_compared_with_the_best_fixed_one() {
        let goals = catalogue().goals;
        let of = |row: &str| {
            let mut goals = goals.iter().filter(|goal| goal.row == row);
            let first = goals.next().expect("a goal");
            (first.metric, first.of, first.to.clone())
        };
        let to = || To::BestMedian("best fixed", &FIXED);
        assert_eq!(of("rings-iperf3-8"), ("throughput", "nocopy", to()));
        assert!(goals.iter().any(|goal| goal.row == "rings-redis-get-1m"
            && goal.metric == "rate"
            && goal.aim == Aim::AtLeast(0.9)));
        assert_eq!((FIXED[0], FIXED[5]), ("ring-16k", "ring-16m"));
    }

    #[test]
    fn published_ratios_are_the_percentages_that_the_mails_print() {
        let table = catalogue().published;
        for (row, metric, source, system, percent) in [
            ("msg100", "rate", "rfc-v2", "SMC-lo", 102.64),
            ("sockperf-tp", "throughput", "rfc-v2", "SMC-lo-nocpy", 66.68),
            ("sockperf-pp", "p50", "rfc-v4", "SMC-lo-nocpy", -46.81),
            ("iperf3", "throughput", "rfc-v2", "SMC-lo-nocpy", 88.64),
            ("msg100", "rate", "rfc-v4", "domain", 46.45),
            ("nginx-500", "rate", "rfc-v4", "SMC-lo", 37.53),
            ("nginx-1000", "rate", "lo-v3", "SMC-lo-nocpy", 51.10),
            ("redis-get-c200", "rate", "lo-v3", "SMC-lo-nocpy", 32.31),
            ("redis-set-c200", "rate", "lo-v3", "SMC-lo-nocpy", 35.56),
        ] {
            let mut of = table.of(row, metric);
            let figure = of
                .find(|f| f.source == source && f.system == system)
                .expect("a figure");
            let told = (table.ratio(figure).expect("a ratio") - 1.0) * 100.0;
            assert!(
                (told - percent).abs() < 0.02,
                "{row}: {told} against {percent}"
            );
        }
    }
}
