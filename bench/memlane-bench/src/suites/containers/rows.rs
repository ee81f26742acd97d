//! What is measured of whom: a selection of the socket suite's rows, those about opening a lane, and their columns.

use crate::catalogue::{System, system};
use crate::runner::plan;
use crate::suites::sockets::works::{By, Line, Side, Work, line, size_seconds, step, swept, work};

/// Where server and client are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In one network namespace.
    Same,
    /// In one each, with a veth cable between them.
    Cable,
    /// In one each, both at a bridge, and NAT between them.
    Nat,
    /// In one each, with a cable between them, as on two machines: each has an agent of its own, and both a region of memory.
    Machines,
}

/// A column of the tables.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Column {
    pub(super) system: System,
    pub(super) place: Place,
    pub(super) side: Side,
}

const fn column(id: &'static str, about: &'static str, place: Place, side: Side) -> Column {
    Column {
        system: system(id, about, matches!(side, Side::Nocopy)),
        place,
        side,
    }
}

pub(super) const TCP_CABLE: &str = "tcp-cable";
pub(super) const SOCKMAP_CABLE: &str = "sockmap-cable";
pub(super) const MEMLANE_CABLE: &str = "memlane-cable";
pub(super) const TCP_NAT: &str = "tcp-nat";
pub(super) const SOCKMAP_NAT: &str = "sockmap-nat";
pub(super) const MEMLANE_NAT: &str = "memlane-nat";
pub(super) const MEMLANE_SAME: &str = "memlane-same";
pub(super) const MEMLANE_REGION: &str = "memlane-region";

/// All of them.
#[rustfmt::skip]
pub(super) const COLUMNS: [Column; 8] = [
    column(TCP_CABLE, "TCP, cable", Place::Cable, Side::Tcp),
    column(SOCKMAP_CABLE, "sockmap, cable", Place::Cable, Side::Sockmap),
    column(MEMLANE_CABLE, "memlane, cable", Place::Cable, Side::Nocopy),
    column(TCP_NAT, "TCP, bridge and NAT", Place::Nat, Side::Tcp),
    column(SOCKMAP_NAT, "sockmap, bridge and NAT", Place::Nat, Side::Sockmap),
    column(MEMLANE_NAT, "memlane, bridge and NAT", Place::Nat, Side::Nocopy),
    column(MEMLANE_SAME, "memlane, one namespace", Place::Same, Side::Nocopy),
    column(MEMLANE_REGION, "memlane, region", Place::Machines, Side::Nocopy),
];

impl Column {
    /// The column of that name.
    pub(super) fn of(system: &System) -> Option<&'static Column> {
        COLUMNS.iter().find(|column| column.system.id == system.id)
    }

    /// Whether that row has this column. Over a region, two processes have 64 lanes at most, and this one has memory for 31
    /// pairs of processes.
    pub(super) fn opens(&self, how: Opening) -> bool {
        self.place != Place::Machines || how == Opening::Later
    }
}

/// Rows of programs, in the order of the tables. Names are those of the socket suite's rows; a test compares them.
#[rustfmt::skip]
pub(super) static WORKS: [Work; 8] = [
    work("embedded", By::Pair, &[line("msg100", "100 B request/response (embedded)", &[])]),
    Work {
        programs: &["sockperf"],
        ..work("sockperf", By::Sockperf, &[
            line("sockperf-pp", "sockperf ping-pong, 14 B (one way)", &["ping-pong", "14"]),
            line("sockperf-tp", "sockperf throughput, 64,000 B", &["throughput", "64000"]),
        ])
    },
    Work {
        programs: &["iperf3"],
        ..work("iperf3", By::Iperf3, &[line("iperf3", "iperf3, one stream", &[])])
    },
    Work {
        programs: &["nginx", "wrk"],
        ..work("nginx", By::Nginx, &[
            line("nginx-1", "nginx/wrk, 1 connection", &["1", "1", "index.html"]),
            line("nginx-16", "nginx/wrk, 16 connections", &["1", "16", "index.html"]),
            line("nginx-128", "nginx/wrk, 128 connections", &["1", "128", "index.html"]),
        ])
    },
    Work {
        programs: &["redis-server", "redis-benchmark"],
        ..work("redis", By::Redis, &[
            line("redis-set-c1", "redis SET -c 1", &["SET", "1", "3"]).long(),
            line("redis-get-c1", "redis GET -c 1", &["GET", "1", "3"]),
            line("redis-set-c50", "redis SET -c 50", &["SET", "50", "3"]),
            line("redis-get-c50", "redis GET -c 50", &["GET", "50", "3"]),
        ])
    },
    work("short", By::Pair, &[
        line("short", "short connections (embedded)", &["--answers", "1"]),
        line("short-100", "connections of 100 requests (embedded)", &["--answers", "100"]),
    ]),
    swept("rr", By::Echo, &[
        step("rr-1", 1).long(),
        step("rr-64", 64),
        step("rr-1k", 1 << 10).long(),
        step("rr-16k", 1 << 14).long(),
        step("rr-64k", 1 << 16),
        step("rr-1m", 1 << 20).long(),
    ]),
    swept("stream", By::Stream, &[
        step("stream-64", 64).long(),
        step("stream-1k", 1 << 10).long(),
        step("stream-4k", 1 << 12),
        step("stream-64k", 1 << 16),
        step("stream-1m", 1 << 20).long(),
    ]),
];

/// Which connections are watched while their lane opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Opening {
    /// The first one of each of many processes.
    First,
    /// One after the other, of one process.
    Later,
    /// Many at a time, of one process.
    Together,
}

impl Opening {
    pub(super) const ALL: [Opening; 3] = [Opening::First, Opening::Later, Opening::Together];

    pub(super) const fn id(self) -> &'static str {
        match self {
            Opening::First => "open-first",
            Opening::Later => "open-later",
            Opening::Together => "open-64",
        }
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Opening::First => "to the lane: a process's first connection",
            Opening::Later => "to the lane: later connections",
            Opening::Together => "to the lane: 64 connections at a time",
        }
    }
}

/// A part of the run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Part {
    /// Of [`WORKS`], by its place.
    Work(usize),
    /// How long connections go on by TCP.
    Opening,
}

impl plan::Part for Part {
    const ALL: &'static [Self] = &[
        Part::Work(0),
        Part::Work(1),
        Part::Work(2),
        Part::Work(3),
        Part::Work(4),
        Part::Work(5),
        Part::Work(6),
        Part::Work(7),
        Part::Opening,
    ];

    fn word(self) -> &'static str {
        match self {
            Part::Work(place) => WORKS[place].group,
            Part::Opening => "opening",
        }
    }

    fn systems(self) -> Vec<System> {
        let has = |column: &&Column| self != Part::Opening || column.system.ours;
        COLUMNS
            .iter()
            .filter(has)
            .map(|column| column.system)
            .collect()
    }

    fn cost(self, seconds: f64) -> f64 {
        match self {
            Part::Work(place) => match WORKS[place].by {
                By::Echo | By::Stream => size_seconds(seconds) + 0.1,
                _ => seconds.ceil() + 0.4,
            },
            Part::Opening => seconds + 0.7,
        }
    }

    fn joining(self) -> f64 {
        0.3
    }

    fn at_once(self) -> bool {
        true
    }
}

/// A row.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Row {
    Program {
        /// Of [`WORKS`].
        work: usize,
        line: &'static Line,
    },
    Opening(Opening),
}

impl plan::Row for Row {
    type Part = Part;

    fn all() -> Vec<Row> {
        let of = |(work, of): (usize, &'static Work)| {
            of.lines.iter().map(move |line| Row::Program { work, line })
        };
        let programs = WORKS.iter().enumerate().flat_map(of);
        programs.chain(Opening::ALL.map(Row::Opening)).collect()
    }

    fn is_quick(&self) -> bool {
        match self {
            Row::Program { line, .. } => line.is_quick,
            Row::Opening(_) => true,
        }
    }

    fn part(&self) -> Part {
        match self {
            Row::Program { work, .. } => Part::Work(*work),
            Row::Opening(_) => Part::Opening,
        }
    }

    fn id(&self) -> String {
        match self {
            Row::Program { line, .. } => line.id.to_owned(),
            Row::Opening(how) => how.id().to_owned(),
        }
    }
}

impl Row {
    /// For people.
    pub(super) fn about(&self) -> String {
        match self {
            Row::Program { work, line } => WORKS[*work].about(line),
            Row::Opening(how) => how.about().to_owned(),
        }
    }

    /// Where it lies on the axis of which plot.
    pub(super) fn sweep(&self) -> Option<(String, f64)> {
        match self {
            Row::Program { work, line } => Some((WORKS[*work].group.to_owned(), line.at? as f64)),
            Row::Opening(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::plan::tests::{counts, planned};
    use super::*;

    #[test]
    fn names_narrow_what_they_name_and_nothing_else() {
        let of = |only: &[&str], quick| {
            let counts = counts(&planned::<Row>(only, quick));
            let some = counts.iter().filter(|(rows, _)| *rows > 0);
            let rows: usize = some.clone().map(|(rows, _)| rows).sum();
            (rows, some.map(|(_, systems)| *systems).max().unwrap_or(0))
        };
        assert_eq!(of(&[], false), (27, 8));
        assert_eq!(of(&[], true), (19, 8));
        assert_eq!(of(&["nginx", "tcp-nat"], true), (3, 1));
        assert_eq!(of(&["opening"], true), (3, 4));
        assert_eq!(
            of(&["rr-1m", "memlane-cable", "memlane-same"], true),
            (1, 2)
        );
    }
}
