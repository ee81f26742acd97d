//! What is measured of whom: a selection of the socket suite's rows, and three columns.

use crate::catalogue::System;
use crate::runner::plan;
use crate::suites::sockets::works::{By, Line, Side, Work, line, swept};

pub(in crate::suites) const TCP: &str = Side::Tcp.id();
pub(in crate::suites) const SMC: &str = Side::Smc.id();
pub(in crate::suites) const MEMLANE: &str = Side::Nocopy.id();

/// The columns, from left to right.
pub(in crate::suites) const COLUMNS: [Side; 3] = [Side::Tcp, Side::Smc, Side::Nocopy];

/// The column of that name.
pub(in crate::suites) fn column(system: &str) -> Option<Side> {
    COLUMNS.into_iter().find(|side| side.id() == system)
}

const fn program(
    group: &'static str,
    by: By,
    programs: &'static [&'static str],
    lines: &'static [Line],
) -> Work {
    Work {
        programs,
        sides: &COLUMNS,
        ..swept(group, by, lines)
    }
}

/// From this one of [`WORKS`] on, programs do not ask for all that the transport can do: they sleep most of the time, or
/// end their connections early.
pub(in crate::suites) const NOT_ALL_OUT: usize = 5;

/// Rows of programs, in the order of the tables. Names are those of the socket suite's rows; a test compares them.
#[rustfmt::skip]
pub(in crate::suites) static WORKS: [Work; 7] = [
    program("sockperf", By::Sockperf, &["sockperf"], &[
        line("sockperf-pp", "sockperf ping-pong, 14 B (one way)", &["ping-pong", "14"]),
    ]),
    program("nginx", By::Nginx, &["nginx", "wrk"], &[
        line("nginx-1", "nginx/wrk, 1 connection", &["1", "1", "index.html"]),
        line("nginx-16", "nginx/wrk, 16 connections", &["1", "16", "index.html"]).long(),
        line("nginx-128", "nginx/wrk, 128 connections", &["1", "128", "index.html"]),
    ]),
    program("redis", By::Redis, &["redis-server", "redis-benchmark"], &[
        line("redis-set-c50", "redis SET -c 50", &["SET", "50", "3"]),
        line("redis-get-c50", "redis GET -c 50", &["GET", "50", "3"]),
    ]),
    program("bulk", By::Sockperf, &["sockperf"], &[
        line("sockperf-tp", "sockperf throughput, 64,000 B", &["throughput", "64000"]).long(),
    ]),
    program("bulk", By::Iperf3, &["iperf3"], &[
        line("iperf3", "iperf3, one stream", &[]),
        line("iperf3-p4", "iperf3 -P 4, four streams of one process", &["-P", "4"]),
    ]),
    program("paced", By::Paced, &[], &[
        line("paced-100-c50", "100 requests a second, 50 connections", &["100", "50"]),
        line("paced-1k-c50", "1,000 requests a second, 50 connections", &["1000", "50"]),
        line("paced-10k-c50", "10,000 requests a second, 50 connections", &["10000", "50"]),
    ]),
    program("short", By::Pair, &[], &[
        line("short", "short connections (embedded)", &["--answers", "1"]),
        line("short-10", "connections of 10 requests (embedded)", &["--answers", "10"]),
        line("short-30", "connections of 30 requests (embedded)", &["--answers", "30"]),
    ]),
];

/// A part of the run: one of [`WORKS`], by its place.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::suites) struct Part(pub(in crate::suites) usize);

impl plan::Part for Part {
    const ALL: &'static [Self] = &[
        Part(0),
        Part(1),
        Part(2),
        Part(3),
        Part(4),
        Part(5),
        Part(6),
    ];

    fn word(self) -> &'static str {
        WORKS[self.0].group
    }

    fn systems(self) -> Vec<System> {
        COLUMNS.map(Side::system).to_vec()
    }

    /// A second of the guest takes about eight of ours, and a server has to start there, too.
    fn cost(self, seconds: f64) -> f64 {
        seconds.ceil() * 8.0 + 2.0
    }

    fn joining(self) -> f64 {
        2.0
    }

    fn at_once(self) -> bool {
        true
    }
}

/// A row.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::suites) struct Row {
    /// Of [`WORKS`].
    pub(in crate::suites) work: usize,
    pub(in crate::suites) line: &'static Line,
}

impl plan::Row for Row {
    type Part = Part;

    fn all() -> Vec<Row> {
        let of = |(work, of): (usize, &'static Work)| {
            of.lines.iter().map(move |line| Row { work, line })
        };
        WORKS.iter().enumerate().flat_map(of).collect()
    }

    fn is_quick(&self) -> bool {
        self.line.is_quick
    }

    fn part(&self) -> Part {
        Part(self.work)
    }

    fn id(&self) -> String {
        self.line.id.to_owned()
    }
}

impl Row {
    /// For people.
    pub(in crate::suites) fn about(&self) -> String {
        WORKS[self.work].about(self.line)
    }

    /// Whether the row says above all how a copy is coded.
    pub(in crate::suites) fn is_bulk(&self) -> bool {
        WORKS[self.work].group == "bulk"
    }

    /// Whether the programs sleep most of the time.
    pub(in crate::suites) fn is_paced(&self) -> bool {
        WORKS[self.work].group == "paced"
    }

    /// Whether connections end before a lane pays.
    pub(in crate::suites) fn is_short(&self) -> bool {
        WORKS[self.work].group == "short"
    }

    /// What is aimed at.
    pub(in crate::suites) fn metric(&self) -> &'static str {
        match self.line.id {
            "sockperf-pp" => "p50",
            _ if self.is_paced() => "cpu",
            _ if self.is_bulk() => "throughput",
            _ => "rate",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::plan::tests::{counts, planned};
    use super::*;
    use crate::suites::sockets;

    #[test]
    fn names_narrow_what_they_name_and_nothing_else() {
        let of = |only: &[&str], quick| {
            let counts = counts(&planned::<Row>(only, quick));
            let some = counts.iter().filter(|(rows, _)| *rows > 0);
            let rows: usize = some.clone().map(|(rows, _)| rows).sum();
            (rows, some.map(|(_, systems)| *systems).max().unwrap_or(0))
        };
        assert_eq!(of(&[], false), (15, 3));
        assert_eq!(of(&[], true), (13, 3));
        assert_eq!(of(&["bulk", "tcp", "nocopy"], false), (3, 2));
        assert_eq!(of(&["nginx-16"], true), (1, 3));
    }

    #[test]
    fn a_row_that_the_socket_suite_has_too_is_the_same_there() {
        let there = sockets::all_lines();
        for line in WORKS.iter().flat_map(|work| work.lines) {
            if let Some(same) = there.iter().find(|known| known.id == line.id) {
                assert_eq!(same.args, line.args, "{}", line.id);
            }
        }
    }

    #[test]
    fn a_column_is_found_by_its_name() {
        assert_eq!([TCP, SMC, MEMLANE].map(column), COLUMNS.map(Some));
        assert_eq!(column("unix"), None);
    }
}
