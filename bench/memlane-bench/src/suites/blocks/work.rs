//! What is asked of each system: rows, and what a generator has seen.

use serde::{Deserialize, Serialize};

/// Which way the data goes, and in which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Pattern {
    /// Random reads.
    Randread,
    /// Random writes.
    Randwrite,
    /// Reads in order.
    Read,
    /// Writes in order.
    Write,
}

impl Pattern {
    /// As fio calls it, and our own generator.
    pub(super) fn word(self) -> &'static str {
        match self {
            Pattern::Randread => "randread",
            Pattern::Randwrite => "randwrite",
            Pattern::Read => "read",
            Pattern::Write => "write",
        }
    }
}

/// A workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// For `--only`.
    pub(super) id: &'static str,
    pub(super) pattern: Pattern,
    pub(super) block: u32,
    pub(super) depth: u32,
    pub(super) jobs: u32,
}

impl Row {
    /// For people.
    pub(super) fn about(&self) -> String {
        let size = match self.block {
            LARGE => "1 MiB",
            _ => "4 KiB",
        };
        let what = match self.pattern {
            Pattern::Randread => "random read",
            Pattern::Randwrite => "random write",
            Pattern::Read => "read",
            Pattern::Write => "write",
        };
        let jobs = match self.jobs {
            1 => String::new(),
            jobs => format!(", {jobs} jobs"),
        };
        format!("{size} {what}, depth {}{jobs}", self.depth)
    }
}

const fn row(id: &'static str, pattern: Pattern, [block, depth, jobs]: [u32; 3]) -> Row {
    Row {
        id,
        pattern,
        block,
        depth,
        jobs,
    }
}

const SMALL: u32 = 4096;
pub(super) const LARGE: u32 = 1 << 20;

const ROWS: [Row; 10] = [
    row("randread-qd1", Pattern::Randread, [SMALL, 1, 1]),
    row("randread-qd32", Pattern::Randread, [SMALL, 32, 1]),
    row("randread-qd1-jobs8", Pattern::Randread, [SMALL, 1, 8]),
    row("randread-qd32-jobs8", Pattern::Randread, [SMALL, 32, 8]),
    row("seqread", Pattern::Read, [LARGE, 8, 1]),
    row("randwrite-qd1", Pattern::Randwrite, [SMALL, 1, 1]),
    row("randwrite-qd32", Pattern::Randwrite, [SMALL, 32, 1]),
    row("randwrite-qd1-jobs8", Pattern::Randwrite, [SMALL, 1, 8]),
    row("randwrite-qd32-jobs8", Pattern::Randwrite, [SMALL, 32, 8]),
    row("seqwrite", Pattern::Write, [LARGE, 8, 1]),
];
const QUICK: [&str; 4] = ["randread-qd1", "randread-qd32", "randwrite-qd32", "seqread"];

/// Requests that each job of the sweep has under way: 64 jobs fill half of a server's queue.
pub(super) const SWEEP_DEPTH: u32 = 4;

const fn sweep(id: &'static str, pattern: Pattern, jobs: u32) -> Row {
    row(id, pattern, [SMALL, SWEEP_DEPTH, jobs])
}

/// One volume, more and more jobs: where mainline's RNBD falls behind. The steps of the seed's tables.
const SWEEP: [Row; 18] = [
    sweep("randread-x1", Pattern::Randread, 1),
    sweep("randread-x8", Pattern::Randread, 8),
    sweep("randread-x16", Pattern::Randread, 16),
    sweep("randread-x24", Pattern::Randread, 24),
    sweep("randread-x32", Pattern::Randread, 32),
    sweep("randread-x40", Pattern::Randread, 40),
    sweep("randread-x48", Pattern::Randread, 48),
    sweep("randread-x56", Pattern::Randread, 56),
    sweep("randread-x64", Pattern::Randread, 64),
    sweep("randwrite-x1", Pattern::Randwrite, 1),
    sweep("randwrite-x8", Pattern::Randwrite, 8),
    sweep("randwrite-x16", Pattern::Randwrite, 16),
    sweep("randwrite-x24", Pattern::Randwrite, 24),
    sweep("randwrite-x32", Pattern::Randwrite, 32),
    sweep("randwrite-x40", Pattern::Randwrite, 40),
    sweep("randwrite-x48", Pattern::Randwrite, 48),
    sweep("randwrite-x56", Pattern::Randwrite, 56),
    sweep("randwrite-x64", Pattern::Randwrite, 64),
];
const QUICK_SWEEP: [u32; 3] = [1, 16, 64];

/// The rows of the table.
pub(super) fn rows() -> &'static [Row] {
    &ROWS
}

/// The rows of the sweep over jobs.
pub(super) fn sweep_rows() -> &'static [Row] {
    &SWEEP
}

/// Belongs to a short run?
pub(super) fn is_quick(row: &Row) -> bool {
    QUICK.contains(&row.id) || (is_sweep(row.id) && QUICK_SWEEP.contains(&row.jobs))
}

/// Is it a row of the sweep?
pub(super) fn is_sweep(id: &str) -> bool {
    SWEEP.iter().any(|row| row.id == id)
}

/// The row of that name.
#[cfg(test)]
pub(super) fn known(id: &str) -> Option<Row> {
    ROWS.iter().chain(&SWEEP).find(|row| row.id == id).copied()
}

/// What a generator has seen.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub(crate) struct Outcome {
    /// Requests that were answered.
    pub(crate) requests: u64,
    /// Requests.
    pub(crate) per_second: f64,
    /// Microseconds.
    pub(crate) p50: f64,
    /// Microseconds.
    pub(crate) p99: f64,
    /// Of the processor, for a million requests, all processes of the system together.
    pub(crate) cpu_seconds_per_million: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_the_sweep_has_a_row_for_each_step() {
        let rows: Vec<Row> = ROWS.iter().chain(&SWEEP).copied().collect();
        for (index, row) in rows.iter().enumerate() {
            let twice = rows[..index].iter().any(|other| other.id == row.id);
            assert!(!twice && known(row.id).is_some(), "{}", row.id);
        }
        for row in SWEEP {
            assert_eq!(row.id, format!("{}-x{}", row.pattern.word(), row.jobs));
        }
        assert!(QUICK.iter().all(|id| known(id).is_some()));
        for pattern in [Pattern::Randread, Pattern::Randwrite] {
            let of = |row: &&Row| row.pattern == pattern && is_quick(row);
            assert_eq!(SWEEP.iter().filter(of).count(), QUICK_SWEEP.len());
        }
    }
}
