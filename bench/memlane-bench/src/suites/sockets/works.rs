//! A work: rows of a program that share a server. The columns, and what measures a row.

use crate::catalogue::{System, system};

/// Which of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::suites) enum Side {
    /// The programs as they are.
    Tcp,
    /// UNIX domain sockets, where the program has them.
    Unix,
    /// As they are, and the kernel's sockmap between them.
    Sockmap,
    /// As they are, with SMC sockets in the place of TCP's; only on the counted clock, in a guest.
    Smc,
    /// Under `memlane run --mode copy`.
    Copy,
    /// Under `memlane run --mode nocopy`.
    Nocopy,
    /// The same with a ring of a fixed size.
    Ring {
        id: &'static str,
        about: &'static str,
        /// `--ring` of `memlane run`.
        size: &'static str,
    },
}

const fn ring(id: &'static str, about: &'static str, size: &'static str) -> Side {
    Side::Ring { id, about, size }
}

/// A ring that fits itself to its stream, and rings of fixed sizes in steps of four.
pub(in crate::suites) const RINGS: [Side; 7] = [
    Side::Nocopy,
    ring("ring-16k", "ring of 16 KiB", "16K"),
    ring("ring-64k", "64 KiB", "64K"),
    ring("ring-256k", "256 KiB", "256K"),
    ring("ring-1m", "1 MiB", "1M"),
    ring("ring-4m", "4 MiB", "4M"),
    ring("ring-16m", "16 MiB", "16M"),
];

impl Side {
    /// Those of the socket suite, from left to right.
    pub(in crate::suites) const ALL: [Side; 5] = [
        Side::Tcp,
        Side::Unix,
        Side::Sockmap,
        Side::Copy,
        Side::Nocopy,
    ];

    /// Name and description.
    pub(in crate::suites) const fn system(self) -> System {
        match self {
            Side::Tcp => system("tcp", "TCP", false),
            Side::Unix => system("unix", "UNIX", false),
            Side::Sockmap => system("sockmap", "sockmap", false),
            Side::Smc => system("smc", "SMC-D loopback", false),
            Side::Copy => system("copy", "memlane copy", true),
            Side::Nocopy => system("nocopy", "memlane nocopy", true),
            Side::Ring { id, about, .. } => system(id, about, true),
        }
    }

    /// `--only`, documents.
    pub(in crate::suites) const fn id(self) -> &'static str {
        self.system().id
    }

    /// The column of that name.
    pub(in crate::suites) fn of(system: &System) -> Option<Side> {
        let all = Side::ALL.into_iter().chain(RINGS);
        all.into_iter().find(|side| side.id() == system.id)
    }

    /// `--mode` of `memlane run`.
    pub(in crate::suites) fn mode(self) -> Option<&'static str> {
        match self {
            Side::Copy => Some("copy"),
            Side::Nocopy | Side::Ring { .. } => Some("nocopy"),
            Side::Tcp | Side::Unix | Side::Sockmap | Side::Smc => None,
        }
    }

    /// `--ring` of `memlane run`, where the column has one.
    pub(in crate::suites) fn ring(self) -> Option<&'static str> {
        match self {
            Side::Ring { size, .. } => Some(size),
            _ => None,
        }
    }
}

/// Of programs that speak TCP only.
pub(in crate::suites) const OF_TCP: &[Side] = &[Side::Tcp, Side::Sockmap, Side::Copy, Side::Nocopy];

/// What measures a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::suites) enum By {
    /// The embedded pair. Arguments: flags of both ends.
    Pair,
    /// The embedded pair, of which one end is not under `run`.
    OneSided,
    /// Arguments: embedded pairs, threads beside them that compute.
    Oversubscribed,
    /// Arguments: what sockperf does, bytes of a message.
    Sockperf,
    /// Arguments: more of the client's flags.
    Iperf3,
    /// Arguments: wrk's threads, connections, path.
    Nginx,
    /// The same, of an nginx that is linked with musl.
    MuslNginx,
    /// Arguments: command, clients, bytes of a value.
    Redis,
    /// Over as many connections.
    Connections,
    /// Messages of as many bytes, which are answered with as many.
    Echo,
    /// Writes of as many bytes, one way.
    Stream,
    /// The embedded pair, with as many streams at once.
    Crowd,
    /// The embedded pair, with requests that are due at fixed times. Arguments: requests in a second, connections.
    Paced,
    /// Arguments: more of pgbench's flags.
    Pgbench,
    /// Arguments: wrk's threads, connections; haproxy's mode.
    Haproxy,
    /// Arguments: wrk's threads, connections.
    Netty,
    /// Arguments: what the server does; wrk's threads, connections.
    Go,
    /// gRPC's implementation in Go.
    Grpc,
    /// A static program in Go that ends at once.
    GoStart,
    /// Arguments: wrk's threads, connections.
    Caddy,
    /// A shell script. Arguments: the program that it starts again and again.
    Script,
    /// `dd | nc`.
    Netcat,
    /// iperf3 through `ssh -L`.
    Tunnel,
}

/// On which CPUs a server and its client run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(in crate::suites) enum Pinning {
    /// A CPU each.
    Apart,
    /// The same one.
    Together,
    /// Wherever the kernel likes.
    Free,
}

impl Pinning {
    /// In the order in which they are measured.
    pub(in crate::suites) const ALL: [Pinning; 3] =
        [Pinning::Apart, Pinning::Together, Pinning::Free];
}

/// One row of a program.
#[derive(PartialEq, Debug)]
pub(in crate::suites) struct Line {
    pub(in crate::suites) id: &'static str,
    /// For people; nothing, where the number says it all.
    pub(in crate::suites) about: &'static str,
    pub(in crate::suites) args: &'static [&'static str],
    /// What it is a step of, if it is: bytes, or connections.
    pub(in crate::suites) at: Option<u64>,
    /// A short run has it.
    pub(in crate::suites) is_quick: bool,
}

pub(in crate::suites) const fn line(
    id: &'static str,
    about: &'static str,
    args: &'static [&'static str],
) -> Line {
    Line {
        id,
        about,
        args,
        at: None,
        is_quick: true,
    }
}

pub(in crate::suites) const fn step(id: &'static str, at: u64) -> Line {
    Line {
        at: Some(at),
        ..line(id, "", &[])
    }
}

impl Line {
    /// A step with a description of its own.
    pub(in crate::suites) const fn called(self, about: &'static str) -> Line {
        Line { about, ..self }
    }

    pub(in crate::suites) const fn long(self) -> Line {
        Line {
            is_quick: false,
            ..self
        }
    }
}

/// Rows that share a server.
pub(in crate::suites) struct Work {
    /// For `--only`.
    pub(in crate::suites) group: &'static str,
    pub(in crate::suites) by: By,
    /// Programs that it needs, and files by their full path.
    pub(in crate::suites) programs: &'static [&'static str],
    /// In which columns it has figures.
    pub(in crate::suites) sides: &'static [Side],
    /// On which CPUs they are measured.
    pub(in crate::suites) pinning: &'static [Pinning],
    pub(in crate::suites) lines: &'static [Line],
}

pub(in crate::suites) const fn work(group: &'static str, by: By, lines: &'static [Line]) -> Work {
    Work {
        group,
        by,
        programs: &[],
        sides: &Side::ALL,
        pinning: &[Pinning::Apart, Pinning::Free],
        lines,
    }
}

/// Rows of a step each, pinned only.
pub(in crate::suites) const fn swept(group: &'static str, by: By, lines: &'static [Line]) -> Work {
    Work {
        pinning: &[Pinning::Apart],
        ..work(group, by, lines)
    }
}

/// Both ends on one CPU.
pub(in crate::suites) const fn together(by: By, lines: &'static [Line]) -> Work {
    Work {
        pinning: &[Pinning::Together],
        ..work("one-cpu", by, lines)
    }
}

/// Programs of TCP only, on two CPUs: the scheduler places them.
pub(in crate::suites) const fn several(
    group: &'static str,
    by: By,
    programs: &'static [&'static str],
    lines: &'static [Line],
) -> Work {
    Work {
        programs,
        sides: OF_TCP,
        pinning: &[Pinning::Free],
        ..work(group, by, lines)
    }
}

/// Rows by a ring that fits itself to its stream, and by rings of fixed sizes.
pub(in crate::suites) const fn by_ring(
    by: By,
    programs: &'static [&'static str],
    lines: &'static [Line],
) -> Work {
    Work {
        programs,
        sides: &RINGS,
        ..swept("rings", by, lines)
    }
}

/// Always on two CPUs: the scheduler places the programs.
pub(in crate::suites) const fn crowded(lines: &'static [Line]) -> Work {
    Work {
        pinning: &[Pinning::Free],
        ..work("embedded", By::Oversubscribed, lines)
    }
}

impl Work {
    pub(in crate::suites) fn about(&self, line: &Line) -> String {
        let number = grouped(line.at.unwrap_or_default());
        match (line.about, self.group) {
            ("", "rr") => format!("{number} B there and back (one way)"),
            ("", "stream") => format!("stream, writes of {number} B"),
            ("", _) => format!("100 B over {number} connections in turn"),
            (about, _) => about.to_owned(),
        }
    }
}

/// `1,048,576`.
pub(in crate::suites) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut told = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            told.push(',');
        }
        told.push(digit);
    }
    told
}

/// Seconds for each size of messages: there are many.
pub(in crate::suites) fn size_seconds(seconds: f64) -> f64 {
    (seconds / 4.0).clamp(0.05, 1.0)
}
