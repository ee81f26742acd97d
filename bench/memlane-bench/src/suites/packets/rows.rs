//! What is measured of whom: rows, in three parts, and the systems of each.

use crate::runner::plan;
use crate::suites::{System, system};

/// A part of the run, with a table of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Frames between two processes, in the three modes.
    Table,
    /// TCP between two network namespaces.
    Bulk,
    /// Beside DPDK's testpmd, over memif.
    Memif,
}

impl plan::Part for Part {
    const ALL: &'static [Self] = &[Part::Table, Part::Bulk, Part::Memif];

    fn word(self) -> &'static str {
        match self {
            Part::Table => "table",
            Part::Bulk => "bulk",
            Part::Memif => "memif",
        }
    }

    fn systems(self) -> &'static [System] {
        match self {
            Part::Table => &MODES,
            Part::Bulk => &BULK,
            Part::Memif => &MEMIF,
        }
    }

    fn cost(self, seconds: f64) -> f64 {
        match self {
            Part::Table => seconds + 0.25,
            Part::Bulk => seconds.ceil() + 0.3,
            Part::Memif => seconds + 1.5,
        }
    }

    fn joining(self) -> f64 {
        match self {
            // Two namespaces, and what joins them.
            Part::Bulk => 0.6,
            Part::Table | Part::Memif => 0.0,
        }
    }
}

/// From the front to the back, or the other way round: as the guest of the seed's tables sees it. Of memif: from the
/// client, which brings the memory, or to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Tx,
    Rx,
}

impl Way {
    pub(super) fn word(self) -> &'static str {
        match self {
            Way::Tx => "tx",
            Way::Rx => "rx",
        }
    }
}

/// A row of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Row {
    pub(super) part: Part,
    pub(super) way: Way,
    /// Of a frame; 0 for TCP, which chooses.
    pub(super) bytes: u32,
    /// Frames that are sent before the other side is shown them; 0 for TCP.
    pub(super) burst: u32,
    pub(super) queues: u16,
    /// Of TCP; 0: it is UDP. For frames 1.
    pub(super) flows: u16,
}

impl plan::Row for Row {
    type Part = Part;

    fn all(quick: bool) -> Vec<Row> {
        rows(quick)
    }

    fn part(&self) -> Part {
        self.part
    }

    fn id(&self) -> String {
        let (way, bytes) = (self.way.word(), self.bytes);
        match self.part {
            Part::Table if self.queues > 1 => {
                format!("{way}-{bytes}-b{}-q{}", self.burst, self.queues)
            }
            Part::Table => format!("{way}-{bytes}-b{}", self.burst),
            Part::Bulk if self.flows == 0 => format!("udp-{way}"),
            Part::Bulk => format!("tcp-{way}-{}", self.flows),
            Part::Memif => format!("memif-{way}-{bytes}"),
        }
    }
}

impl Row {
    /// For people.
    pub(super) fn about(&self) -> String {
        let way = match (self.part, self.way) {
            (Part::Memif, Way::Tx) => "client sends",
            (Part::Memif, Way::Rx) => "server sends",
            (_, Way::Tx) => "TX",
            (_, Way::Rx) => "RX",
        };
        match self.part {
            Part::Table if self.queues > 1 => {
                format!(
                    "{way}, {} bytes, burst {}, {} queues",
                    self.bytes, self.burst, self.queues
                )
            }
            Part::Table => format!("{way}, {} bytes, burst {}", self.bytes, self.burst),
            Part::Bulk if self.flows == 0 => format!("{way}, UDP, {UDP_BYTES} bytes"),
            Part::Bulk => format!("{way}, TCP, {} flow(s)", self.flows),
            Part::Memif => format!("{way}, {} bytes", self.bytes),
        }
    }

    /// Frames of a size and a way, by the number of queues.
    pub(super) fn sweep(&self) -> Option<(String, f64)> {
        let steps = self.part == Part::Table && self.burst == 32;
        let name = format!("{}-{}", self.way.word(), self.bytes);
        steps.then_some((name, f64::from(self.queues)))
    }

    fn is_quick(&self) -> bool {
        match self.part {
            Part::Table => self.queues == 1 || (self.bytes == 64 && self.queues != 3),
            Part::Bulk => matches!((self.way, self.flows), (Way::Tx, 1 | 3) | (Way::Rx, 1)),
            Part::Memif => self.bytes == 64,
        }
    }
}

/// What one UDP datagram of the bulk part carries: a full Ethernet frame.
pub(super) const UDP_BYTES: u32 = 1472;
const SIZES: [u32; 3] = [64, 1496, 65535];
const BURSTS: [u32; 2] = [1, 32];
const QUEUES: u16 = 4;
const FLOWS: u16 = 3;

const fn frames(part: Part, way: Way, [bytes, burst]: [u32; 2], queues: u16) -> Row {
    Row {
        part,
        way,
        bytes,
        burst,
        queues,
        flows: 1,
    }
}

/// All rows, or those of a short run.
pub(super) fn rows(quick: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for way in [Way::Tx, Way::Rx] {
        for bytes in SIZES {
            for burst in BURSTS {
                rows.push(frames(Part::Table, way, [bytes, burst], 1));
            }
        }
    }
    for way in [Way::Tx, Way::Rx] {
        for bytes in SIZES {
            for queues in 2..=QUEUES {
                rows.push(frames(Part::Table, way, [bytes, 32], queues));
            }
        }
    }
    for way in [Way::Tx, Way::Rx] {
        for flows in (1..=FLOWS).chain([0]) {
            rows.push(Row {
                flows,
                ..frames(Part::Bulk, way, [0, 0], 1)
            });
        }
    }
    for way in [Way::Tx, Way::Rx] {
        for bytes in [64, 1496] {
            rows.push(frames(Part::Memif, way, [bytes, 32], 1));
        }
    }
    rows.retain(|row| !quick || row.is_quick());
    rows
}

/// What nobody does: the way that others are compared with.
pub(super) const VETH: &str = "veth";
pub(super) const TESTPMD: &str = "testpmd";

pub(super) const MODES: [System; 3] = [
    system("persistent", "persistent", true),
    system("map", "map", true),
    system("copy", "copy", true),
];
pub(super) const BULK: [System; 5] = [
    system("persistent", "memlane, persistent", true),
    system("map", "memlane, map", true),
    system("copy", "memlane, copy", true),
    system("copier", "TAP-to-TAP copier", false),
    system(VETH, "veth", false),
];
pub(super) const MEMIF: [System; 5] = [
    system(TESTPMD, "testpmd → testpmd", false),
    system("to-testpmd", "memlane → testpmd", true),
    system("from-testpmd", "testpmd → memlane", true),
    system("memlane", "memlane → memlane", true),
    system("lane", "the lane, persistent", true),
];

#[cfg(test)]
mod tests {
    use super::plan::{Part as _, Row as _};
    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_a_short_run_has_some_of_each_part() {
        let all = rows(false);
        let mut ids: Vec<String> = all.iter().map(Row::id).collect();
        assert_eq!(ids.len(), 12 + 18 + 8 + 4);
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), all.len());
        let quick = rows(true);
        let count = |part| quick.iter().filter(|row| row.part == part).count();
        let counts: Vec<usize> = Part::ALL.iter().copied().map(count).collect();
        assert_eq!(counts, [12 + 4, 3, 2]);
        assert!(quick.iter().all(|row| all.contains(row)));
    }

    #[test]
    fn every_way_size_and_burst_of_the_seed_is_there() {
        let ids: Vec<String> = rows(false).iter().map(Row::id).collect();
        for way in ["tx", "rx"] {
            for size in SIZES {
                for burst in BURSTS {
                    assert!(ids.contains(&format!("{way}-{size}-b{burst}")));
                }
                for queues in 2..=4 {
                    assert!(ids.contains(&format!("{way}-{size}-b32-q{queues}")));
                }
            }
            for flows in 1..=3 {
                assert!(ids.contains(&format!("tcp-{way}-{flows}")));
            }
        }
    }
}
