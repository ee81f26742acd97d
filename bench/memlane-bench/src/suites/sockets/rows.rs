//! What is measured of whom: the programs' rows, those of memory that is handed over by name, and their systems.

use super::lines::{WORKS, WORKS_COUNT};
use super::works::{By, Line, Pinning, Side, grouped, size_seconds};
use crate::catalogue::{System, system};
use crate::runner::plan;

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

/// The works, then what is called by name.
const PARTS: [Part; WORKS_COUNT + 1] = {
    let mut parts = [Part::ByName; WORKS_COUNT + 1];
    let mut place = 0;
    while place < WORKS_COUNT {
        parts[place] = Part::Work(place);
        place += 1;
    }
    parts
};

impl plan::Part for Part {
    const ALL: &'static [Self] = &PARTS;

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
                // A third of the rows last four times as long.
                By::Paced => seconds * 2.0 + 0.7,
                // The Java machine is warm first.
                By::Netty => seconds.ceil() + 4.0,
                By::Pgbench | By::Haproxy | By::Caddy | By::Tunnel => seconds.ceil() + 1.0,
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
        /// On which CPUs.
        pinning: Pinning,
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
                rows.extend(both.map(|&pinning| Row::Program {
                    work,
                    line,
                    pinning,
                }));
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
            Row::Program { work, pinning, .. } => {
                *pinning == Pinning::Free && WORKS[*work].pinning.len() > 1
            }
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
    use crate::suites::sockets::works::{RINGS, Work};

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
        assert_eq!(ids.len(), 104);
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
        assert_eq!(of(&[], false), [104, 7, 7]);
        assert_eq!(of(&[], true), [104 - 16 - 12 - 14, 4, 7]);
        assert_eq!(of(&["nginx"], false), [11, 3, 0]);
        assert_eq!(of(&["nginx-16", "iperf3"], true), [6, 3, 0]);
        assert_eq!(of(&["unix", "tcp"], false), [104 - 8, 2, 0]);
        assert_eq!(of(&["rings"], false), [8, 7, 0]);
        assert_eq!(of(&["one-cpu", "paced"], true), [3 + 6, 4, 0]);
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

    #[test]
    fn a_ring_of_a_fixed_size_is_a_column_of_its_own() {
        for side in RINGS {
            assert_eq!(Side::of(&side.system()), Some(side));
            assert_eq!(side.mode(), Some("nocopy"));
        }
        let sizes = RINGS.map(Side::ring);
        assert_eq!(
            (sizes[0], sizes[1], sizes[6]),
            (None, Some("16K"), Some("16M"))
        );
    }

    #[test]
    fn rows_of_one_cpu_have_no_other_pinning_and_no_free_ones() {
        let all = Row::all();
        let together = all.iter().filter(
            |row| matches!(row, Row::Program { pinning, .. } if *pinning == Pinning::Together),
        );
        let names: Vec<String> = together.map(Row::id).collect();
        assert_eq!(
            names,
            ["one-cpu-msg100", "one-cpu-iperf3", "one-cpu-nginx-128"]
        );
        assert!(!all.iter().any(|row| row.id() == "pgbench/free"));
    }
}
