//! What is measured of whom: the rows of each program, those of memory that is handed over by name, and their systems.

use super::works::{
    By, Line, OF_TCP, Side, Work, crowded, grouped, line, size_seconds, step, swept, work,
};
use crate::catalogue::{System, system};
use crate::runner::plan;

/// All of them, in the order of the table.
#[rustfmt::skip]
pub(super) static WORKS: [Work; 13] = [
    work("embedded", By::Pair, &[line("msg100", "100 B request/response (embedded)", &[])]),
    Work {
        programs: &["sockperf"],
        sides: OF_TCP,
        ..work("sockperf", By::Sockperf, &SOCKPERF)
    },
    Work {
        programs: &["iperf3"],
        sides: OF_TCP,
        ..work("iperf3", By::Iperf3, &IPERF3)
    },
    Work {
        programs: &["nginx", "wrk"],
        sides: OF_TCP,
        ..work("nginx", By::Nginx, &NGINX)
    },
    Work {
        programs: &["redis-server", "redis-benchmark"],
        ..work("redis", By::Redis, &REDIS)
    },
    work("embedded", By::Pair, &SHORT),
    Work {
        sides: &[Side::Tcp, Side::Nocopy],
        ..work("embedded", By::OneSided, &[line("one-sided", "client under run, server not (100 B)", &[])])
    },
    crowded(&[line("oversubscribed", "4 ping-pong pairs on 2 CPUs (100 B)", &["4", "0"])]),
    crowded(&[line("oversubscribed-32", "32 ping-pong pairs on 2 CPUs (100 B)", &["32", "0"])]),
    crowded(&[line("strangers", "4 ping-pong pairs beside 2 that compute, on 2 CPUs (100 B)", &["4", "2"])]),
    swept("connections", By::Connections, &CONNECTIONS),
    swept("rr", By::Echo, &RR),
    swept("stream", By::Stream, &STREAM_SIZES),
];

#[rustfmt::skip]
const SOCKPERF: [Line; 2] = [
    line("sockperf-pp", "sockperf ping-pong, 14 B (one way)", &["ping-pong", "14"]),
    line("sockperf-tp", "sockperf throughput, 64,000 B", &["throughput", "64000"]),
];
/// One thread at each end serves all streams.
#[rustfmt::skip]
const IPERF3: [Line; 5] = [
    line("iperf3", "iperf3, one stream", &[]),
    line("iperf3-4", "iperf3, 4 streams", &["-P", "4"]),
    line("iperf3-8", "iperf3, 8 streams", &["-P", "8"]),
    line("iperf3-back", "iperf3, one stream back", &["-R"]).long(),
    line("iperf3-zero", "iperf3, one stream by sendfile", &["-Z"]).long(),
];
/// Storms: a handshake is due after 8 answers, and its lane pays after some dozens.
#[rustfmt::skip]
const SHORT: [Line; 3] = [
    line("short", "short connections (embedded)", &["--answers", "1"]),
    line("short-10", "connections of 10 requests (embedded)", &["--answers", "10"]),
    line("short-30", "connections of 30 requests (embedded)", &["--answers", "30"]).long(),
];
/// 500 and 1000 connections are those of the published tables.
#[rustfmt::skip]
const NGINX: [Line; 9] = [
    line("nginx-1", "nginx/wrk, 1 connection", &["1", "1", "index.html"]),
    line("nginx-16", "nginx/wrk, 16 connections", &["1", "16", "index.html"]).long(),
    line("nginx-64", "nginx/wrk, 64 connections", &["1", "64", "index.html"]).long(),
    line("nginx-128", "nginx/wrk, 128 connections", &["1", "128", "index.html"]),
    line("nginx-500", "nginx/wrk -t 8, 500 connections", &["8", "500", "index.html"]),
    line("nginx-1000", "nginx/wrk -t 8, 1000 connections", &["8", "1000", "index.html"]).long(),
    line("nginx-memory-1", "nginx/wrk, 1 connection, no file", &["1", "1", "memory"]),
    line("nginx-memory-16", "nginx/wrk, 16 connections, no file", &["1", "16", "memory"]).long(),
    line("nginx-memory-128", "nginx/wrk, 128 connections, no file", &["1", "128", "memory"]).long(),
];
/// SET comes first, so that GET finds the key. The last two are those of the published table.
#[rustfmt::skip]
const REDIS: [Line; 6] = [
    line("redis-set-c1", "redis SET -c 1", &["SET", "1", "3"]).long(),
    line("redis-get-c1", "redis GET -c 1", &["GET", "1", "3"]),
    line("redis-set-c50", "redis SET -c 50", &["SET", "50", "3"]),
    line("redis-get-c50", "redis GET -c 50", &["GET", "50", "3"]),
    line("redis-set-c200", "redis SET -c 200 -d 1024", &["SET", "200", "1024"]).long(),
    line("redis-get-c200", "redis GET -c 200 -d 1024", &["GET", "200", "1024"]).long(),
];
const CONNECTIONS: [Line; 5] = [
    step("connections-1", 1),
    step("connections-10", 10),
    step("connections-100", 100),
    step("connections-1000", 1_000),
    step("connections-10000", 10_000),
];
/// 1 byte to 4 MiB in steps of four; a short run has every second step, and the largest.
macro_rules! sizes {
    ($group:literal) => {
        [
            step(concat!($group, "-1"), 1),
            step(concat!($group, "-4"), 4).long(),
            step(concat!($group, "-16"), 16),
            step(concat!($group, "-64"), 64).long(),
            step(concat!($group, "-256"), 256),
            step(concat!($group, "-1k"), 1 << 10).long(),
            step(concat!($group, "-4k"), 1 << 12),
            step(concat!($group, "-16k"), 1 << 14).long(),
            step(concat!($group, "-64k"), 1 << 16),
            step(concat!($group, "-256k"), 1 << 18).long(),
            step(concat!($group, "-1m"), 1 << 20),
            step(concat!($group, "-4m"), 1 << 22),
        ]
    };
}
const RR: [Line; 12] = sizes!("rr");
const STREAM_SIZES: [Line; 12] = sizes!("stream");

/// What is done with memory by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Kind {
    /// So much memory is given to the other end and as much taken back. Nobody writes or reads it, where the way lets
    /// them.
    Handover,
    /// Bytes are copied in at one end and out at the other, one way.
    Carried,
}

pub(super) const LANE: &str = "native-lane";
pub(super) const LANE_SLEEPS: &str = "native-lane-sleeps";
pub(super) const ICE: &str = "iceoryx2";
pub(super) const ICE_SLEEPS: &str = "iceoryx2-event";
pub(super) const BARE: &str = "ring";
/// A UNIX domain socket.
pub(super) const STREAM: &str = "unix-stream";
pub(super) const SEQPACKET: &str = "seqpacket";

/// Who hands memory over.
pub(super) const BY_NAME: [System; 7] = [
    system(LANE, "memlane", true),
    system(ICE, "iceoryx2", false),
    system(LANE_SLEEPS, "memlane, no spinning", true),
    system(ICE_SLEEPS, "iceoryx2, events", false),
    system(STREAM, "UNIX stream", false),
    system(SEQPACKET, "UNIX seqpacket", false),
    system(BARE, "bare ring", false),
];

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Handover => "handover",
            Kind::Carried => "carried",
        }
    }

    /// Who can do it, and has something to say.
    pub(super) fn has(self, system: &System) -> bool {
        match self {
            Kind::Handover => system.id != BARE,
            Kind::Carried => !matches!(system.id, LANE_SLEEPS | ICE_SLEEPS),
        }
    }
}

/// Bytes that are handed over, in steps of four.
pub(super) fn sizes() -> impl Iterator<Item = u64> {
    (0..=11).map(|step| 1 << (2 * step))
}

/// The row of a size.
pub(super) fn by_name(kind: Kind, bytes: u64) -> String {
    format!("{}-{bytes}", kind.word())
}

/// Seconds for each size that is handed over.
pub(super) fn by_name_seconds(seconds: f64) -> f64 {
    (seconds / 8.0).clamp(0.02, 0.5)
}

/// A part of the run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Part {
    /// Of [`WORKS`], by its place.
    Work(usize),
    /// Memory that is handed over by name.
    ByName,
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
        Part::Work(8),
        Part::Work(9),
        Part::Work(10),
        Part::Work(11),
        Part::Work(12),
        Part::ByName,
    ];

    fn word(self) -> &'static str {
        match self {
            Part::Work(place) => WORKS[place].group,
            Part::ByName => "native",
        }
    }

    fn systems(self) -> Vec<System> {
        match self {
            Part::Work(place) => WORKS[place]
                .sides
                .iter()
                .map(|side| side.system())
                .collect(),
            Part::ByName => BY_NAME.to_vec(),
        }
    }

    fn cost(self, seconds: f64) -> f64 {
        match self {
            Part::Work(place) => match WORKS[place].by {
                // Ten thousand connections are opened first, and each is warm.
                By::Connections => seconds + 1.0,
                By::Echo | By::Stream => size_seconds(seconds) + 0.07,
                _ => seconds.ceil() + 0.3,
            },
            Part::ByName => by_name_seconds(seconds) + 0.05,
        }
    }

    fn joining(self) -> f64 {
        match self {
            Part::Work(_) => 0.3,
            Part::ByName => 0.1,
        }
    }

    fn at_once(self) -> bool {
        true
    }

    /// sockmap is root's.
    fn has_by_default(self, system: &System, _quick: bool) -> bool {
        system.id != Side::Sockmap.id()
    }
}

/// A row.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Row {
    Program {
        /// Of [`WORKS`].
        work: usize,
        line: &'static Line,
        /// Whether server and client have a CPU each.
        pinned: bool,
    },
    ByName {
        kind: Kind,
        bytes: u64,
    },
}

impl plan::Row for Row {
    type Part = Part;

    fn all() -> Vec<Row> {
        let mut rows = Vec::new();
        for (work, of) in WORKS.iter().enumerate() {
            for line in of.lines {
                let both = of.pinning.iter();
                rows.extend(both.map(|&pinned| Row::Program { work, line, pinned }));
            }
        }
        for kind in [Kind::Handover, Kind::Carried] {
            rows.extend(sizes().map(|bytes| Row::ByName { kind, bytes }));
        }
        rows
    }

    fn is_quick(&self) -> bool {
        match self {
            Row::Program { line, .. } => line.is_quick && !self.is_free(),
            Row::ByName { bytes, .. } => {
                bytes.trailing_zeros().is_multiple_of(4) || *bytes == 1 << 22
            }
        }
    }

    fn part(&self) -> Part {
        match self {
            Row::Program { work, .. } => Part::Work(*work),
            Row::ByName { .. } => Part::ByName,
        }
    }

    /// A row that knows only one way has no other name for it.
    fn id(&self) -> String {
        match self {
            Row::Program { line, .. } if self.is_free() => format!("{}/free", line.id),
            _ => self.name(),
        }
    }

    fn name(&self) -> String {
        match self {
            Row::Program { line, .. } => line.id.to_owned(),
            Row::ByName { kind, bytes } => by_name(*kind, *bytes),
        }
    }
}

impl Row {
    /// Whether its programs run wherever the kernel likes, where they could also be pinned.
    pub(super) fn is_free(&self) -> bool {
        match self {
            Row::Program { work, pinned, .. } => !pinned && WORKS[*work].pinning.len() > 1,
            Row::ByName { .. } => false,
        }
    }

    /// For people.
    pub(super) fn about(&self) -> String {
        match self {
            Row::Program { work, line, .. } => {
                let free = if self.is_free() { ", free" } else { "" };
                format!("{}{free}", WORKS[*work].about(line))
            }
            Row::ByName { bytes, .. } => format!("{} B", grouped(*bytes)),
        }
    }

    /// Where it lies on the axis of which plot.
    pub(super) fn sweep(&self) -> Option<(String, f64)> {
        match self {
            Row::Program { work, line, .. } => {
                Some((WORKS[*work].group.to_owned(), line.at? as f64))
            }
            Row::ByName { kind, bytes } => Some((kind.word().to_owned(), *bytes as f64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::plan::tests::{counts, planned};
    use super::plan::{Part as _, Row as _};
    use super::*;

    fn lines() -> impl Iterator<Item = (&'static Work, &'static Line)> {
        let works = WORKS.iter();
        works.flat_map(|work| work.lines.iter().map(move |line| (work, line)))
    }

    #[test]
    fn every_row_has_a_name_of_its_own_and_a_description() {
        let (mut ids, mut told) = (Vec::new(), Vec::new());
        for (work, line) in lines() {
            let about = work.about(line);
            assert!(!told.contains(&about), "{about} twice");
            assert!(!ids.contains(&line.id), "{} twice", line.id);
            told.push(about);
            ids.push(line.id);
        }
        assert_eq!(ids.len(), 59);
        assert!(told.contains(&"1,048,576 B there and back (one way)".to_owned()));
        assert_eq!(grouped(100), "100");
    }

    #[test]
    fn a_short_run_keeps_every_step_of_sixteen_and_both_ends() {
        let quick = planned::<Row>(&[], true).rows;
        let has = |name: &str| quick.iter().any(|row| row.name() == name);
        for row in [
            "rr-1",
            "rr-16",
            "rr-4m",
            "stream-64k",
            "nginx-1",
            "nginx-500",
            "carried-16",
        ] {
            assert!(has(row), "{row}");
        }
        for row in ["rr-4", "stream-16k", "nginx-1000", "handover-4"] {
            assert!(!has(row), "{row}");
        }
        let sizes = quick.iter().filter_map(|row| match row {
            Row::ByName {
                kind: Kind::Handover,
                bytes,
            } => Some(*bytes),
            _ => None,
        });
        assert_eq!(
            sizes.collect::<Vec<_>>(),
            [1, 16, 256, 4096, 65536, 1 << 20, 1 << 22]
        );
    }

    /// Rows of programs, columns of programs, systems by name.
    fn of(only: &[&str], quick: bool) -> [usize; 3] {
        let plan = planned::<Row>(only, quick);
        let parts = Part::ALL.iter().zip(counts(&plan));
        let (mut rows, mut columns, mut by_name) = (0, 0, 0);
        for (part, (_, width)) in parts.filter(|(_, (count, _))| *count > 0) {
            match part {
                Part::Work(_) => {
                    rows += plan
                        .rows_of(*part)
                        .iter()
                        .filter(|row| !row.is_free())
                        .count();
                    columns = columns.max(width);
                }
                Part::ByName => by_name = width,
            }
        }
        [rows, columns, by_name]
    }

    #[test]
    fn names_narrow_what_they_name_and_nothing_else() {
        assert_eq!(of(&[], false), [59, 4, 7]);
        assert_eq!(of(&[], true), [59 - 9 - 12, 4, 7]);
        assert_eq!(of(&["nginx"], false), [9, 3, 0]);
        assert_eq!(of(&["nginx-16", "iperf3"], true), [4, 3, 0]);
        assert_eq!(of(&["unix", "tcp"], false), [59, 2, 0]);
        assert_eq!(of(&["native"], true), [0, 0, 7]);
        assert_eq!(of(&["iceoryx2", "native-lane"], true), [0, 0, 2]);
        assert_eq!(of(&["msg100", "native", "ring"], true), [1, 4, 1]);
        // Systems that no named row has bring in their own.
        assert_eq!(of(&["tcp", "msg100", "ring"], true), [1, 1, 1]);
    }

    #[test]
    fn only_columns_of_memlane_have_a_mode() {
        let modes = Side::ALL.map(Side::mode);
        assert_eq!(modes, [None, None, None, Some("copy"), Some("nocopy")]);
    }
}
