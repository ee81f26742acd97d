//! What an end has counted, where others can read it while its thread works.

use memlane_packet::engine::cache::GrantCounts;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What an end counts, whatever it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EndCounts {
    /// Frames that came.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames that went.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that were not sent for want of room; the sender may have tried again.
    pub full: u64,
    /// Frames that it could not use, in either direction.
    pub failed: u64,
}

impl EndCounts {
    /// A frame of `bytes` bytes came.
    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.received += 1;
        self.received_bytes += bytes as u64;
    }

    /// A frame of `bytes` bytes went.
    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.sent += 1;
        self.sent_bytes += bytes as u64;
    }
}

/// What a sink has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Frames of generators that came whole, each for the first time.
    pub good: u64,
    /// Frames that were passed by and have not come yet.
    pub missing: u64,
    /// Frames that came after a later one; they are among the good.
    pub late: u64,
    /// Frames that came again.
    pub twice: u64,
    /// Frames of generators whose bytes are others.
    pub changed: u64,
    /// Frames of other senders.
    pub strange: u64,
}

/// Everything that an end counts. What its kind does not have is `None` or 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Frames and bytes.
    pub counts: EndCounts,
    /// Of a link's queue: times that the other side was rung for.
    pub doorbells: u64,
    /// Times that it was shown something and needed no doorbell, as it was awake.
    pub quiet: u64,
    /// Of a back: fragments that the kernel copied.
    pub copied: u64,
    /// Of a back: its tables of kept mappings, tx and rx.
    pub grants: Option<[GrantCounts; 2]>,
    /// Of a sink: what it has seen.
    pub verdict: Option<Verdict>,
}

impl Tally {
    /// Two of one end: two queues, or the same one before and after it was attached anew.
    #[must_use]
    pub fn plus(&self, other: &Tally) -> Tally {
        let (mine, theirs) = (self.words(), other.words());
        let mut sum: [u64; WORDS] = std::array::from_fn(|n| mine[n].wrapping_add(theirs[n]));
        sum[KIND] = mine[KIND] | theirs[KIND];
        Tally::from_words(&sum)
    }

    /// When its link has ended: what was mapped is not any more.
    #[must_use]
    pub fn ended(mut self) -> Tally {
        for table in self.grants.iter_mut().flatten() {
            (table.mapped, table.in_use, table.max) = (0, 0, 0);
        }
        self
    }

    fn words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        let EndCounts {
            received,
            received_bytes,
            sent,
            sent_bytes,
            full,
            failed,
        } = self.counts;
        words[..VERDICT].copy_from_slice(&[
            0,
            received,
            received_bytes,
            sent,
            sent_bytes,
            full,
            failed,
            self.doorbells,
            self.quiet,
            self.copied,
        ]);
        if let Some(seen) = self.verdict {
            words[KIND] |= HAS_VERDICT;
            words[VERDICT..GRANTS].copy_from_slice(&[
                seen.good,
                seen.missing,
                seen.late,
                seen.twice,
                seen.changed,
                seen.strange,
            ]);
        }
        if let Some(tables) = self.grants {
            words[KIND] |= HAS_GRANTS;
            for (words, table) in words[GRANTS..].chunks_exact_mut(TABLE).zip(tables) {
                words.copy_from_slice(&table_words(&table));
            }
        }
        words
    }

    fn from_words(words: &[u64; WORDS]) -> Tally {
        let [
            _,
            received,
            received_bytes,
            sent,
            sent_bytes,
            full,
            failed,
            ..,
        ] = *words;
        let seen = &words[VERDICT..GRANTS];
        let verdict = Verdict {
            good: seen[0],
            missing: seen[1],
            late: seen[2],
            twice: seen[3],
            changed: seen[4],
            strange: seen[5],
        };
        let grants = [0, 1].map(|n| {
            let words = &words[GRANTS + n * TABLE..][..TABLE];
            GrantCounts {
                mapped: words[0],
                in_use: words[1],
                max: words[2],
                hits: words[3],
                misses: words[4],
                busy: words[5],
                evicted: words[6],
                idle: words[7],
                stale: words[8],
            }
        });
        Tally {
            counts: EndCounts {
                received,
                received_bytes,
                sent,
                sent_bytes,
                full,
                failed,
            },
            doorbells: words[7],
            quiet: words[8],
            copied: words[9],
            grants: (words[KIND] & HAS_GRANTS != 0).then_some(grants),
            verdict: (words[KIND] & HAS_VERDICT != 0).then_some(verdict),
        }
    }
}

fn table_words(table: &GrantCounts) -> [u64; TABLE] {
    let GrantCounts {
        mapped,
        in_use,
        max,
        hits,
        misses,
        busy,
        evicted,
        idle,
        stale,
    } = *table;
    [
        mapped, in_use, max, hits, misses, busy, evicted, idle, stale,
    ]
}

/// Which of the optional parts there are.
const KIND: usize = 0;
const HAS_VERDICT: u64 = 1;
const HAS_GRANTS: u64 = 2;
/// First words of them.
const VERDICT: usize = 10;
const GRANTS: usize = 16;
/// Of one table.
const TABLE: usize = 9;
const WORDS: usize = GRANTS + 2 * TABLE;

/// Where an end's counters can be seen. The thread that joins the end writes all words, some times in a burst of work
/// and before each sleep; anybody reads them. Nothing orders them: each is right by itself, and may be older than its
/// neighbour by one such moment.
#[derive(Debug)]
#[repr(align(128))]
pub struct Board([AtomicU64; WORDS]);

impl Default for Board {
    fn default() -> Board {
        Board(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Board {
    /// Shows it. For one thread: its owner.
    pub fn show(&self, tally: &Tally) {
        let words = tally.words();
        let len = match words[KIND] {
            0 => VERDICT,
            kind if kind & HAS_GRANTS == 0 => GRANTS,
            _ => WORDS,
        };
        for (place, word) in self.0.iter().zip(&words[..len]) {
            place.store(*word, Relaxed);
        }
    }

    /// What was shown last.
    pub fn read(&self) -> Tally {
        Tally::from_words(&std::array::from_fn(|n| self.0[n].load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Tally {
        let mut next = 0;
        let words = std::array::from_fn(|_| {
            next += 1;
            next
        });
        let mut all = Tally::from_words(&words);
        all.grants = all.grants.or_else(|| Tally::from_words(&[3; WORDS]).grants);
        all.verdict = all
            .verdict
            .or_else(|| Tally::from_words(&[3; WORDS]).verdict);
        all
    }

    #[test]
    fn a_board_shows_what_was_put_there_and_no_more() {
        let (board, all) = (Board::default(), full());
        assert_eq!(board.read(), Tally::default());
        board.show(&all);
        assert_eq!(board.read(), all);
        for less in [
            Tally {
                grants: None,
                ..all
            },
            Tally {
                verdict: None,
                ..all
            },
            Tally::default(),
        ] {
            board.show(&less);
            assert_eq!(board.read(), less);
        }
    }

    #[test]
    fn sums_keep_every_counter_apart() {
        let (all, none) = (full(), Tally::default());
        assert_eq!(all.plus(&none), all);
        assert_eq!(none.plus(&all), all);
        let words: Vec<u64> = all.plus(&all).words().to_vec();
        for (twice, once) in words.iter().zip(all.words()).skip(1) {
            assert_eq!(*twice, 2 * once);
        }
    }

    #[test]
    fn what_has_ended_maps_nothing_and_keeps_its_history() {
        let ended = full().ended().grants.unwrap();
        for (table, before) in ended.iter().zip(full().grants.unwrap()) {
            assert_eq!((table.mapped, table.in_use, table.max), (0, 0, 0));
            assert_eq!((table.hits, table.stale), (before.hits, before.stale));
        }
    }
}
