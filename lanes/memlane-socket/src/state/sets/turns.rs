//! Turns of rings and kernel, where both have more to report than the program takes at a time.
//!
//! The kernel goes round robin over all descriptors that are ready. It cannot see rings, and the library cannot see how
//! many descriptors are ready in the kernel. So the two sides take turns. The rings' turn ends when each ready ring has
//! been reported. The kernel's turn ends when it reports again the descriptor that it began with; that also shows how
//! long its next turn is.
//!
//! Threads that wait on one set at the same time share these words without a lock: a lost update costs one turn.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// No side has to wait: the kernel is asked now and then.
const NOBODYS: u32 = 0;
const RINGS: u32 = 1;
const KERNELS: u32 = 2;

/// The most events in one turn of the kernel, while the number of its ready descriptors is not known.
const LONGEST_TURN: u32 = 64;

/// The turns of one set. All-zero is a set on which no side has to wait.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    whose: AtomicU32,
    /// The number of events that rings have reported in their turn.
    by_rings: AtomicU32,
    /// The number of events that the kernel has reported in its turn, plus those by which its last turn was too long.
    by_kernel: AtomicU32,
    /// The number of ready descriptors in the kernel; 0: not known.
    kernel_has: AtomicU32,
    /// The program's `data` of the descriptor that the kernel began with; `since_first` counts the events since then.
    first: AtomicU64,
    since_first: AtomicU32,
}

impl Turns {
    /// Forgets the turns.
    pub(crate) fn forget(&self) {
        self.whose.store(NOBODYS, Ordering::Relaxed);
        for word in [
            &self.by_rings,
            &self.by_kernel,
            &self.kernel_has,
            &self.since_first,
        ] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Are turns kept, because the kernel had more to report than the program took?
    pub(crate) fn are_kept(&self) -> bool {
        self.whose.load(Ordering::Relaxed) != NOBODYS
    }

    /// Is it the kernel's turn, while `rings_ready` rings are ready?
    pub(crate) fn is_kernels(&self, rings_ready: u32) -> bool {
        match self.whose.load(Ordering::Relaxed) {
            KERNELS => true,
            RINGS if self.by_rings.load(Ordering::Relaxed) >= rings_ready => {
                self.by_rings.store(0, Ordering::Relaxed);
                self.begin_kernels()
            }
            _ => false,
        }
    }

    /// Begins the kernel's turn, unless the kernel has had it already.
    fn begin_kernels(&self) -> bool {
        let had = self.by_kernel.load(Ordering::Relaxed);
        let has = self.kernel_has.load(Ordering::Relaxed);
        if has != 0 && had >= has {
            self.by_kernel.store(had - has, Ordering::Relaxed);
            return false;
        }
        self.whose.store(KERNELS, Ordering::Relaxed);
        true
    }

    /// Gives the next turn to the kernel: it was due to be asked, but the rings filled the program's array.
    pub(crate) fn kernel_is_next(&self) {
        self.whose.store(KERNELS, Ordering::Relaxed);
    }

    /// Counts events that rings have reported.
    pub(crate) fn rings_reported(&self, events: usize) {
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        let sum = self.by_rings.load(Ordering::Relaxed).saturating_add(events);
        self.by_rings.store(sum, Ordering::Relaxed);
    }

    /// Counts events that the kernel has reported, by the program's `data`; they fill the program's array. `is_all`:
    /// the kernel has no more.
    pub(crate) fn kernel_reported(&self, events: impl Iterator<Item = u64>, is_all: bool) {
        events.for_each(|data| self.count(data));
        let told = self.by_kernel.load(Ordering::Relaxed);
        if is_all {
            self.kernel_has.store(told, Ordering::Relaxed);
        }
        let has = self.kernel_has.load(Ordering::Relaxed);
        if (has == 0 || told < has) && told < LONGEST_TURN {
            self.whose.store(KERNELS, Ordering::Relaxed);
            return;
        }
        let too_many = if has == 0 {
            0
        } else {
            told.saturating_sub(has)
        };
        self.by_kernel.store(too_many, Ordering::Relaxed);
        self.by_rings.store(0, Ordering::Relaxed);
        self.whose.store(RINGS, Ordering::Relaxed);
    }

    fn count(&self, data: u64) {
        let add = |word: &AtomicU32| {
            let sum = word.load(Ordering::Relaxed).saturating_add(1);
            word.store(sum, Ordering::Relaxed);
            sum
        };
        let round = self.since_first.load(Ordering::Relaxed);
        if round > 0 && self.first.load(Ordering::Relaxed) == data {
            self.kernel_has.store(round, Ordering::Relaxed);
            self.since_first.store(0, Ordering::Relaxed);
        }
        if self.since_first.load(Ordering::Relaxed) == 0 {
            self.first.store(data, Ordering::Relaxed);
        }
        let since = add(&self.since_first);
        let has = self.kernel_has.load(Ordering::Relaxed);
        if has != 0 && since > has {
            self.kernel_has.store(since, Ordering::Relaxed);
        }
        add(&self.by_kernel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Rings, and descriptors of the kernel, that stay ready, and a program that takes `places` events at a time. They
    /// are reported as the wait of an epoll set does it.
    struct Set {
        turns: Turns,
        rings: VecDeque<u64>,
        kernel: VecDeque<u64>,
        reports: Vec<u32>,
    }

    impl Set {
        fn new(rings: u64, kernel: u64) -> Set {
            Set {
                turns: Turns::default(),
                rings: (0..rings).collect(),
                kernel: (rings..rings + kernel).collect(),
                reports: vec![0; usize::try_from(rings + kernel).unwrap()],
            }
        }

        fn take(queue: &mut VecDeque<u64>, most: usize, reports: &mut [u32]) -> Vec<u64> {
            let most = most.min(queue.len());
            let taken: Vec<u64> = queue.drain(..most).collect();
            for who in &taken {
                reports[usize::try_from(*who).unwrap()] += 1;
            }
            queue.extend(&taken);
            taken
        }

        fn wait(&mut self, places: usize, is_due: bool) {
            let rings = u32::try_from(self.rings.len()).unwrap();
            let kernels = self.turns.is_kernels(rings);
            let share = if kernels {
                places
            } else if is_due {
                places / 2
            } else {
                0
            };
            let first = Self::take(&mut self.rings, places - share, &mut self.reports).len();
            self.turns.rings_reported(first);
            if !kernels && !is_due {
                return;
            }
            if first == places {
                return self.turns.kernel_is_next();
            }
            let room = places - first;
            let got = Self::take(&mut self.kernel, room, &mut self.reports);
            let left = room - got.len();
            let unreported = self.rings.len() - first;
            let rest = Self::take(&mut self.rings, left.min(unreported), &mut self.reports);
            if got.is_empty() || first + got.len() + rest.len() < places {
                self.turns.forget();
            } else {
                self.turns
                    .kernel_reported(got.iter().copied(), got.len() < room);
            }
        }
    }

    #[test]
    fn one_event_at_a_time_goes_round_robin_from_the_first_round_on() {
        for (rings, kernel) in [(2, 1), (1, 2)] {
            let mut set = Set::new(rings, kernel);
            (0..9).for_each(|wait| set.wait(1, wait == 0));
            assert_eq!(
                set.reports,
                [3, 3, 3],
                "{rings} rings, {kernel} of the kernel's"
            );
        }
    }

    #[test]
    fn every_descriptor_has_its_share_whatever_the_program_takes() {
        for (rings, kernel) in [(1, 1), (3, 9), (9, 3), (16, 40), (40, 2)] {
            for places in [1, 2, 5, 8] {
                let mut set = Set::new(rings, kernel);
                let waits = 4000;
                (0..waits).for_each(|wait| set.wait(places, wait % 64 == 0));
                if u64::try_from(places).unwrap() >= rings + kernel {
                    continue; // the program's array has room for all
                }
                let all: u32 = set.reports.iter().sum();
                let fair = all / u32::try_from(rings + kernel).unwrap();
                for (who, reports) in set.reports.iter().enumerate() {
                    assert!(
                        *reports * 3 >= fair,
                        "{rings}+{kernel}, {places} at a time: {who} was reported {reports} times of {fair}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_kernel_that_has_nothing_more_leaves_all_turns_to_the_rings() {
        let mut set = Set::new(3, 1);
        (0..12).for_each(|wait| set.wait(1, wait == 0));
        set.kernel.clear();
        set.reports = vec![0; 4];
        (0..30).for_each(|_| set.wait(1, false));
        assert!(
            set.reports[..3].iter().all(|reports| *reports >= 9),
            "{:?}",
            set.reports
        );
    }
}
