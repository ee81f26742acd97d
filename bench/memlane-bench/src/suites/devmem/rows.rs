//! What is measured of whom: rows, in three parts, and the systems of each.

use super::sinks::{RECV_COPY, SPLICE};
use crate::catalogue::{System, system};
use crate::runner::plan;

/// A part of the run, with a table of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// One stream between two processes, into a region.
    Stream,
    /// Tokens that are handed back.
    Tokens,
    /// A tensor, received in Python.
    Python,
}

impl plan::Part for Part {
    const ALL: &'static [Self] = &[Part::Stream, Part::Tokens, Part::Python];

    fn word(self) -> &'static str {
        match self {
            Part::Stream => "stream",
            Part::Tokens => "tokens",
            Part::Python => "python",
        }
    }

    fn systems(self) -> Vec<System> {
        match self {
            Part::Stream => STREAM.to_vec(),
            Part::Tokens => TOKENS.to_vec(),
            Part::Python => PYTHON.to_vec(),
        }
    }

    fn cost(self, seconds: f64) -> f64 {
        match self {
            Part::Stream => seconds + 0.3,
            Part::Tokens => 1.0,
            Part::Python => seconds + 2.0,
        }
    }
}

/// A row of a table; bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Row {
    pub(super) part: Part,
    pub(super) row: &'static str,
    pub(super) about: &'static str,
    /// Of one write of the sender.
    pub(super) write: u64,
    /// Of a chunk of the region.
    pub(super) chunk: u64,
    /// That the receiver keeps before it hands them back, or that a program without the lane goes round.
    pub(super) hold: u64,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const fn stream(row: &'static str, about: &'static str, [write, chunk, hold]: [u64; 3]) -> Row {
    Row {
        part: Part::Stream,
        row,
        about,
        write,
        chunk,
        hold,
    }
}

/// All rows.
pub(super) const ROWS: [Row; 7] = [
    stream(
        "kept-1m",
        "handed back after 1 MiB: it stays in caches",
        [MIB, 64 * KIB, MIB],
    ),
    stream(
        "kept-32m",
        "handed back after 32 MiB: it does not",
        [MIB, 64 * KIB, 32 * MIB],
    ),
    stream(
        "writes-4k",
        "writes of 4 KiB, handed back after 1 MiB",
        [4 * KIB, 64 * KIB, MIB],
    ),
    Row {
        part: Part::Tokens,
        ..stream(
            "tokens",
            "4096 fragments of 4 KiB are out",
            [0, 4 * KIB, 16 * MIB],
        )
    },
    Row {
        part: Part::Python,
        ..stream("tensor", "tensors of 1 MiB", [MIB, MIB, MIB])
    },
    stream(
        "chunks-4k",
        "chunks of a page, as the kernel's, handed back after 1 MiB",
        [MIB, 4 * KIB, MIB],
    ),
    stream(
        "chunks-1m",
        "chunks of 1 MiB, handed back after 32 MiB",
        [MIB, MIB, 32 * MIB],
    ),
];

/// What a short run leaves out.
const NOT_QUICK: [&str; 2] = ["chunks-4k", "chunks-1m"];

impl plan::Row for Row {
    type Part = Part;

    fn all() -> Vec<Row> {
        ROWS.to_vec()
    }

    fn is_quick(&self) -> bool {
        !NOT_QUICK.contains(&self.row)
    }

    fn part(&self) -> Part {
        self.part
    }

    fn id(&self) -> String {
        self.row.to_owned()
    }
}

/// Of the region.
pub(super) const REGION: u64 = 64 * MIB;

/// The path whose sender is memlane, too.
pub(super) const LANE: &str = "lane";

pub(super) const STREAM: [System; 5] = [
    system(LANE, "lane", true),
    system("mapped", "mapped", true),
    system("staged", "staged", true),
    system(RECV_COPY, "recv() + copy", false),
    system(SPLICE, "splice", false),
];
pub(super) const TOKENS: [System; 1] = [system("release", "release", true)];
pub(super) const PYTHON: [System; 4] = [
    system("wheel", "Python, memlane", true),
    system("rust", "Rust, memlane", true),
    system("recv-into", "recv_into, one array", false),
    system("recv-into-fresh", "recv_into, a new array each", false),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::plan::Part as _;
    use super::plan::tests::{counts, halves_make_a_whole, planned};
    use super::*;
    use memlane_devmem::io::Path;

    /// Figures of each part.
    fn of(only: &[&str], quick: bool) -> Vec<usize> {
        let counts = counts(&planned::<Row>(only, quick));
        counts
            .iter()
            .map(|(rows, systems)| rows * systems)
            .collect()
    }

    const STREAMS: usize = STREAM.len();

    #[test]
    fn what_a_short_run_leaves_out_is_in_a_run_of_the_rest() {
        halves_make_a_whole::<Row>();
    }

    #[test]
    fn everything_is_measured_when_nothing_is_named_and_a_short_run_is_short() {
        assert_eq!(of(&[], false), [5 * STREAMS, 1, 4]);
        assert_eq!(of(&[], true), [3 * STREAMS, 1, 4]);
        let time = planned::<Row>(&[], true).time(2);
        assert!(time < Duration::from_secs(72), "{time:?} for 2 of 5 rounds");
    }

    #[test]
    fn names_narrow_what_they_name_and_nothing_else() {
        assert_eq!(of(&["stream"], true), [3 * STREAMS, 0, 0]);
        assert_eq!(of(&["kept-1m", "mapped"], true), [1, 0, 0]);
        assert_eq!(of(&["recv-into"], true), [0, 0, 1]);
        // A row that a short run leaves out is there when it is named.
        assert_eq!(of(&["chunks-4k", "splice"], true), [1, 0, 0]);
    }

    #[test]
    fn what_is_missing_is_left_out_and_told_if_it_was_wanted() {
        let lacks = |part, _: &System| (part == Part::Python).then(|| "no wheel".to_owned());
        let mut plan = planned::<Row>(&[], true);
        assert_eq!(plan.without(lacks).len(), 4);
        assert!(plan.systems_of(Part::Python).is_empty());
        assert!(planned::<Row>(&["tokens"], true).without(lacks).is_empty());
    }

    #[test]
    fn no_name_of_a_part_a_row_or_a_system_is_another_one_s() {
        let mut names: Vec<&str> = Part::ALL.iter().map(|part| part.word()).collect();
        names.extend(
            ROWS.iter()
                .map(|row| row.row)
                .filter(|row| *row != "tokens"),
        );
        for part in Part::ALL {
            names.extend(part.systems().iter().map(|system| system.id));
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "{names:?}");
    }

    #[test]
    fn what_is_kept_fits_the_region_with_what_comes_meanwhile() {
        for row in ROWS.iter().filter(|row| row.part == Part::Stream) {
            assert!(row.hold + 2 * MIB <= REGION, "{row:?}");
            assert!(row.hold >= row.chunk, "{row:?}");
        }
    }

    #[test]
    fn whatever_is_ours_in_a_stream_is_a_path() {
        for system in STREAM {
            assert_eq!(system.id.parse::<Path>().is_ok(), system.ours, "{system:?}");
        }
    }
}
