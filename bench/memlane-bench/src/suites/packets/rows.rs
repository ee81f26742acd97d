//! What is measured of whom: rows, in three parts, and the systems of each.

use crate::catalogue::{System, system};
use crate::runner::plan;
use crate::runner::record::Figure;

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
    const ALL: &'static [Self] = &[Part::Table, Part::Memif, Part::Bulk];

    fn word(self) -> &'static str {
        match self {
            Part::Table => "table",
            Part::Bulk => "bulk",
            Part::Memif => "memif",
        }
    }

    fn systems(self) -> Vec<System> {
        match self {
            Part::Table => MODES.to_vec(),
            Part::Bulk => BULK.to_vec(),
            Part::Memif => MEMIF.to_vec(),
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

    fn at_once(self) -> bool {
        self == Part::Bulk
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

/// What was seen of one system in one row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Outcome {
    /// Frames or Gbit in a second.
    pub(super) value: f64,
    /// What a frame costs, in ns; or a gigabyte, in seconds.
    pub(super) cpu: Option<f64>,
}

impl Outcome {
    pub(super) fn figures(&self, part: Part) -> Vec<Figure> {
        let (rate, cpu) = match part {
            Part::Bulk => (("throughput", "Gbit/s"), "s/GB"),
            _ => (("rate", "frames/s"), "ns/frame"),
        };
        let cpu = self.cpu.map(|value| ("cpu", cpu, value));
        [Some((rate.0, rate.1, self.value)), cpu]
            .into_iter()
            .flatten()
            .collect()
    }
}

impl plan::Row for Row {
    type Part = Part;

    fn all() -> Vec<Row> {
        rows()
    }

    fn is_quick(&self) -> bool {
        match self.part {
            Part::Table => self.queues == 1 || (self.bytes == 64 && self.queues != 3),
            Part::Bulk => matches!((self.way, self.flows), (Way::Tx, 1 | 3) | (Way::Rx, 1)),
            Part::Memif => self.bytes == 64,
        }
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

/// All rows.
pub(super) fn rows() -> Vec<Row> {
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
/// One process of memlane that has both devices, as the copier does.
pub(super) const ALONE: &str = "alone";
/// One process of memlane that has its own device, and one that another process lends.
pub(super) const LENT: &str = "lent";
pub(super) const BULK: [System; 7] = [
    system("persistent", "memlane, persistent", true),
    system(ALONE, "memlane, one process", true),
    system(LENT, "memlane, a lent device", true),
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
    use std::time::Duration;

    use super::plan::Row as _;
    use super::plan::tests::{counts, halves_make_a_whole, planned};
    use super::*;

    #[test]
    fn what_a_short_run_leaves_out_is_in_a_run_of_the_rest() {
        halves_make_a_whole::<Row>();
    }

    #[test]
    fn rows_have_names_of_their_own() {
        let all = rows();
        let mut ids: Vec<String> = all.iter().map(Row::id).collect();
        assert_eq!(ids.len(), 12 + 18 + 8 + 4);
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), all.len());
    }

    #[test]
    fn every_way_size_and_burst_of_the_seed_is_there() {
        let ids: Vec<String> = rows().iter().map(Row::id).collect();
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

    /// Rows and systems of frames, of memif, of TCP.
    fn of(only: &[&str], quick: bool) -> Vec<(usize, usize)> {
        counts(&planned::<Row>(only, quick))
    }

    #[test]
    fn everything_is_measured_when_nothing_is_named_and_a_short_run_is_short() {
        assert_eq!(of(&[], false), [(30, 3), (4, 5), (8, 7)]);
        assert_eq!(of(&[], true), [(16, 3), (2, 5), (3, 7)]);
        let time = planned::<Row>(&[], true).time(2);
        assert!(time < Duration::from_secs(240), "{time:?}");
    }

    #[test]
    fn names_narrow_what_they_name_and_nothing_else() {
        assert_eq!(of(&["bulk"], false), [(0, 3), (0, 5), (8, 7)]);
        assert_eq!(
            of(&["table", "persistent"], false),
            [(30, 1), (0, 5), (0, 1)]
        );
        assert_eq!(of(&["veth"], false), [(0, 3), (0, 5), (8, 1)]);
        assert_eq!(
            of(&["tx-64-b1", "memif-rx-64"], false),
            [(1, 3), (1, 5), (0, 7)]
        );
        // A system that no named row has brings in its own.
        assert_eq!(of(&["tx-64-b1", "veth"], false), [(1, 3), (0, 5), (8, 1)]);
        // A row that a short run leaves out is there when it is named.
        assert_eq!(of(&["tx-1496-b32-q3"], true)[0], (1, 3));
    }

    #[test]
    fn what_is_missing_is_left_out_and_told_if_it_was_wanted() {
        let lacks =
            |_: Part, system: &System| (system.id == "testpmd").then(|| "not installed".to_owned());
        let mut plan = planned::<Row>(&[], false);
        assert_eq!(plan.without(lacks).len(), 1);
        assert_eq!(plan.systems_of(Part::Memif).len(), 4);
        assert!(planned::<Row>(&["table"], false).without(lacks).is_empty());
    }
}
