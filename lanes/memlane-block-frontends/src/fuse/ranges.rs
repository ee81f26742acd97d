//! Which bytes are being written, so that a write of part of a block loses nobody's other part.
//!
//! Writes of whole blocks need no order among themselves: a disk gives none either. A **patch** reads blocks, changes
//! some of their bytes and writes them back; nobody else may write these blocks meanwhile.

use memlane_wait::mutex::{lock, wait};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// The writes that are under way on one volume.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// In the order in which they came.
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    start: u64,
    end: u64,
    patch: bool,
}

impl Entry {
    fn excludes(&self, other: &Entry) -> bool {
        (self.patch || other.patch) && self.start < other.end && other.start < self.end
    }
}

/// The right to write these bytes, until dropped.
#[derive(Debug)]
pub(super) struct Hold {
    ranges: Arc<Ranges>,
    id: u64,
}

impl Ranges {
    /// Waits until nobody who came before is in the way.
    pub(super) fn hold(self: &Arc<Self>, start: u64, end: u64, patch: bool) -> Hold {
        let mut table = self.table();
        let id = table.next;
        table.next += 1;
        let mine = Entry {
            id,
            start,
            end,
            patch,
        };
        table.entries.push(mine);
        while table.blocks(&mine) {
            table = wait(&self.changed, table);
        }
        Hold {
            ranges: Arc::clone(self),
            id,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Table {
    fn blocks(&self, mine: &Entry) -> bool {
        let mut before = self.entries.iter().take_while(|entry| entry.id != mine.id);
        before.any(|entry| entry.excludes(mine))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut table = self.ranges.table();
        table.entries.retain(|entry| entry.id != self.id);
        drop(table);
        self.ranges.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn must_wait(first: (u64, u64, bool), second: (u64, u64, bool)) -> bool {
        let entry = |id, (start, end, patch)| Entry {
            id,
            start,
            end,
            patch,
        };
        let table = Table {
            next: 2,
            entries: vec![entry(0, first), entry(1, second)],
        };
        table.blocks(&entry(1, second))
    }

    #[test]
    fn whole_blocks_wait_for_patches_only_and_patches_for_all() {
        assert!(!must_wait((0, 4096, false), (0, 4096, false)));
        assert!(must_wait((0, 512, true), (0, 4096, false)));
        assert!(must_wait((0, 4096, false), (512, 1024, true)));
        assert!(must_wait((0, 512, true), (0, 512, true)));
        assert!(!must_wait((0, 512, true), (512, 1024, true)));
    }

    #[test]
    fn who_waits_goes_on_when_the_other_is_done_and_not_before() {
        let ranges = Arc::new(Ranges::default());
        let first = ranges.hold(0, 512, true);
        let released = Arc::new(AtomicBool::new(false));
        let second = std::thread::spawn({
            let (ranges, released) = (Arc::clone(&ranges), Arc::clone(&released));
            move || {
                let hold = ranges.hold(0, 512, false);
                assert!(released.load(Ordering::SeqCst));
                drop(hold);
            }
        });
        while ranges.table().entries.len() < 2 {
            std::thread::yield_now();
        }
        released.store(true, Ordering::SeqCst);
        drop(first);
        second.join().unwrap();
        assert!(ranges.table().entries.is_empty());
    }
}
