//! What is measured of whom: rows, in three parts, and the systems of each.

use super::sinks::{RECV_COPY, SPLICE};
use crate::runner::plan;
use crate::suites::{System, system};

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

    fn systems(self) -> &'static [System] {
        match self {
            Part::Stream => &STREAM,
            Part::Tokens => &TOKENS,
            Part::Python => &PYTHON,
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

/// The first ones are what a short run has.
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

/// How many rows a short run has.
const QUICK: usize = 5;

impl plan::Row for Row {
    type Part = Part;

    fn all(quick: bool) -> Vec<Row> {
        ROWS[..if quick { QUICK } else { ROWS.len() }].to_vec()
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
    use super::plan::{Part as _, Row as _};
    use super::*;
    use memlane_devmem::io::Path;

    #[test]
    fn rows_have_names_of_their_own_and_a_short_run_has_each_part() {
        let mut names: Vec<&str> = ROWS.iter().map(|row| row.row).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
        for &part in Part::ALL {
            assert!(
                Row::all(true).iter().any(|row| row.part == part),
                "{part:?}"
            );
        }
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
