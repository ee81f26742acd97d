//! Where rings' events belong among the kernel's: behind the marks that senders made ([`memlane_core::marks`]).

use super::*;

/// The most marks that one wait goes by. One peer makes at most 8 between two looks; with more, the rest is reported first.
const MOST: usize = 8;

/// A stretch of the kernel's list that begins with a mark.
#[derive(Clone, Copy)]
struct Stretch {
    /// When the mark was made, in `ticks`.
    at: u64,
    /// The program's `data` of the connection that the mark came by.
    data: u64,
    /// How many of the rings' events belong behind the mark, and before the next one.
    behind: usize,
}

/// The marks that one wait goes by, oldest first, and the rings' events that belong behind them.
pub(super) struct Marked {
    stretches: [Stretch; MOST],
    count: usize,
    /// How many marks are older than the last event that was counted.
    passed: usize,
}

impl Marked {
    const NONE: Marked = Marked {
        stretches: [Stretch {
            at: 0,
            data: 0,
            behind: 0,
        }; MOST],
        count: 0,
        passed: 0,
    };

    /// The marks that were made in this set since the kernel was last asked, if there are any. The caller has harvested: so
    /// it finds the mark behind which any ring's news belong.
    pub(super) fn find(ep: &Ep) -> Option<Marked> {
        let asked = ep.asked.load(Ordering::Relaxed);
        board::is_marked_since(asked).then(|| Marked::find_since(ep, asked))
    }

    #[cold]
    fn find_since(ep: &Ep, asked: u64) -> Marked {
        let mut found = Marked::NONE;
        // Not up to when the wait began: a thread that spins without getting the CPU misses what is marked meanwhile.
        board::marks(asked, ticks(), |at, conn| {
            let regs = conn.regs.iter();
            for reg in regs.filter(|reg| belongs_to(reg, ep)) {
                found.insert(at, reg.data.load(Ordering::Relaxed));
            }
        });
        found
    }

    fn insert(&mut self, at: u64, data: u64) {
        if self.count == MOST {
            return;
        }
        let later = self.stretches[..self.count].iter().position(|s| s.at > at);
        let index = later.unwrap_or(self.count);
        self.stretches.copy_within(index..self.count, index + 1);
        self.stretches[index] = Stretch {
            at,
            data,
            behind: 0,
        };
        self.count += 1;
    }

    /// Counts a ring's event. The caller reports events in the order of their news.
    pub(super) fn count(&mut self, conn: &Conn) {
        self.count_news(board::since_of(conn));
    }

    /// The same for news that came at `since`.
    pub(super) fn count_news(&mut self, since: u64) {
        let later = |s: &Stretch| s.at <= since;
        let passed = self.stretches[..self.count]
            .iter()
            .filter(|p| later(p))
            .count();
        self.passed = self.passed.max(passed);
        if let Some(last) = self.passed.checked_sub(1) {
            self.stretches[last].behind += 1;
        }
    }

    /// Puts the rings' events, which are the first `by_rings` ones, behind the kernel's events that mark their place. Events
    /// whose mark the kernel has not reported stay behind the mark before it.
    pub(super) fn put_behind(&self, events: &mut [epoll_event], by_rings: usize) {
        let stretches = &self.stretches[..self.count];
        let mut left: usize = stretches.iter().map(|s| s.behind).sum();
        let mut first = by_rings.saturating_sub(left);
        for stretch in stretches {
            let kernels = events.get(first + left..).unwrap_or_default();
            if let Some(at) = kernels.iter().position(|e| { e.u64 } == stretch.data) {
                events[first..=first + left + at].rotate_left(left);
                first += at + 1;
            }
            first += stretch.behind;
            left -= stretch.behind;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(marks: &[(u64, u64)], news: &[u64]) -> Marked {
        let mut marked = Marked::NONE;
        for (at, data) in marks {
            marked.insert(*at, *data);
        }
        news.iter().for_each(|since| marked.count_news(*since));
        marked
    }

    fn order(marked: &Marked, rings: &[u64], kernel: &[u64]) -> Vec<u64> {
        let all = rings.iter().chain(kernel);
        let mut events: Vec<_> = all
            .map(|data| epoll_event {
                events: IN,
                u64: *data,
            })
            .collect();
        marked.put_behind(&mut events, rings.len());
        events.iter().map(|event| event.u64).collect()
    }

    #[test]
    fn news_are_reported_behind_the_mark_that_is_older() {
        let marked = marked(&[(30, 93), (10, 91)], &[5, 11, 12, 31]);
        let (rings, kernel) = ([1, 2, 3, 4], [80, 91, 81, 82, 93, 83]);
        let order = order(&marked, &rings, &kernel);
        assert_eq!(order, [1, 80, 91, 2, 3, 81, 82, 93, 4, 83]);
    }

    #[test]
    fn news_whose_mark_the_kernel_does_not_report_stay_behind_the_one_before() {
        let marked = marked(&[(10, 91), (20, 92), (30, 93)], &[15, 25, 35]);
        let order = order(&marked, &[1, 2, 3], &[80, 91, 81, 93]);
        assert_eq!(order, [80, 91, 1, 2, 81, 93, 3]);
    }

    #[test]
    fn without_marks_rings_are_reported_first() {
        assert_eq!(order(&marked(&[], &[1, 2]), &[1, 2], &[80]), [1, 2, 80]);
        assert_eq!(
            order(&marked(&[(9, 91)], &[1, 2]), &[1, 2], &[91]),
            [1, 2, 91]
        );
    }

    #[test]
    fn news_out_of_order_and_more_marks_than_stretches_lose_nothing() {
        let many: Vec<_> = (0..20).map(|k| (100 - k, 90 + k)).collect();
        let marked = marked(&many, &[99, 3, 98, 200]);
        let mut all = order(&marked, &[1, 2, 3, 4], &[95, 91, 80]);
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4, 80, 91, 95]);
    }
}
