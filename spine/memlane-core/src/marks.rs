//! Marks in the kernel's list: where news from rings belong among the kernel's events.
//!
//! The kernel reports descriptors in the order in which they became ready, and knows nothing of rings. While a receiver
//! does not look at its rings, a sender now and then sends a message by TCP, although it could go by a ring. The kernel
//! gives that message a place in its list. The sender notes when this was, and for which DMB. News that come by rings in
//! the time behind it need no place of their own: the receiver reports them behind the mark.
//!
//! Both sides can write the words. A lie in them changes the order within one report; no event is lost or added.

use crate::layout::{ReadyWords, SLOTS};
use crate::sync::{Exchange, Word, Words};
use core::sync::atomic::Ordering::Relaxed;

/// The low bits of a mark are the DMB's number; the others are the time. A mark's time is thus at most 63 ticks early.
const SLOT_MASK: u64 = SLOTS as u64 - 1;

/// How the first news of a DMB go to a receiver that does not look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// By the ring: they belong behind a mark that is there already.
    BehindMark,
    /// By TCP: they are the mark.
    IsMark,
    /// By TCP: there is no room for another mark.
    NoRoom,
}

/// A mark that a receiver finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// When the message was sent, in the sender's `ticks`.
    pub at: u64,
    /// The DMB of the connection that it came by.
    pub slot: usize,
}

impl Mark {
    fn of(word: u64) -> Mark {
        Mark {
            at: word & !SLOT_MASK,
            slot: (word & SLOT_MASK) as usize,
        }
    }
}

impl<W: Words> ReadyWords<W>
where
    W::U64: Exchange<u64>,
{
    /// For the sender: where do the first news of DMB `slot` belong, `now`? `looked` is when the receiver last looked, and
    /// `apart` is how long a mark holds, all in `ticks`. Of several senders that need a mark, one makes it.
    pub fn place(&self, slot: usize, now: u64, looked: u64, apart: u64) -> Place {
        let newest = self.marked.load(Relaxed);
        let made = Mark::of(newest).at;
        if made > looked && now.saturating_sub(made) < apart {
            return Place::BehindMark;
        }
        let (mut oldest, mut at) = (u64::MAX, &self.marks.0[0]);
        for word in &self.marks.0 {
            let known = word.load(Relaxed);
            if known < oldest {
                (oldest, at) = (known, word);
            }
        }
        if Mark::of(oldest).at > looked {
            return Place::NoRoom;
        }
        let mark = now & !SLOT_MASK | slot as u64 & SLOT_MASK;
        if self.marked.compare_exchange(newest, mark).is_err() {
            return Place::BehindMark;
        }
        at.store(mark, Relaxed);
        Place::IsMark
    }

    /// For the receiver: was a mark made after `since`?
    #[inline]
    pub fn is_marked_since(&self, since: u64) -> bool {
        self.marked.load(Relaxed) > since
    }

    /// For the receiver: the marks that were made after `since`, in no order. A time that is still to come is a lie.
    pub fn marks_between(&self, since: u64, now: u64) -> impl Iterator<Item = Mark> {
        let marks = self.marks.0.iter().map(|word| Mark::of(word.load(Relaxed)));
        marks.filter(move |mark| mark.at > since && mark.at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{AWAKE, MARKS, Marks};
    use crate::sync::Cpu;
    use core::sync::atomic::{AtomicU32, AtomicU64};

    const APART: u64 = 1000;

    fn none() -> ReadyWords<Cpu> {
        ReadyWords {
            bits: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            asleep: AtomicU32::new(AWAKE),
            rings: AtomicU32::new(0),
            marked: AtomicU64::new(0),
            marks: Marks([const { AtomicU64::new(0) }; MARKS]),
        }
    }

    #[test]
    fn the_first_news_of_each_stretch_are_its_mark() {
        let marks = none();
        assert_eq!(marks.place(5, 64_000, 10_000, APART), Place::IsMark);
        assert_eq!(
            marks.place(6, 64_000 + APART - 1, 10_000, APART),
            Place::BehindMark
        );
        assert_eq!(marks.place(7, 64_000 + APART, 10_000, APART), Place::IsMark);
        assert!(marks.is_marked_since(64_000 + APART - 100) && !marks.is_marked_since(66_000));
        let mut found: Vec<_> = marks.marks_between(10_000, 70_000).collect();
        found.sort_by_key(|mark| mark.at);
        let at = |at, slot| Mark { at, slot };
        assert_eq!(found, [at(64_000, 5), at((64_000 + APART) & !SLOT_MASK, 7)]);
    }

    #[test]
    fn a_mark_from_before_the_receivers_look_marks_nothing() {
        let marks = none();
        assert_eq!(marks.place(1, 64_000, 10_000, APART), Place::IsMark);
        assert_eq!(marks.place(2, 64_500, 64_200, APART), Place::IsMark);
    }

    #[test]
    fn marks_that_are_used_up_are_made_again_after_a_look() {
        let marks = none();
        let at = |k: usize| 64_000 + k as u64 * 2 * APART;
        for k in 0..MARKS {
            assert_eq!(marks.place(k, at(k), 10_000, APART), Place::IsMark, "{k}");
        }
        assert_eq!(marks.place(9, at(MARKS), 10_000, APART), Place::NoRoom);
        assert_eq!(
            marks.place(9, at(MARKS), at(MARKS) - 1, APART),
            Place::IsMark
        );
        assert_eq!(marks.marks_between(10_000, u64::MAX).count(), MARKS);
    }

    #[test]
    fn a_receiver_believes_no_mark_of_a_time_to_come() {
        let marks = none();
        marks.marks.0[3].store(u64::MAX, Relaxed);
        assert_eq!(marks.marks_between(0, 1 << 40).count(), 0);
    }

    #[test]
    fn of_many_senders_at_once_one_makes_the_mark() {
        for round in 1..200_u64 {
            let (marks, looked, now) = (none(), 10_000, 64_000 * round);
            let makes = |slot| marks.place(slot, now, looked, APART) == Place::IsMark;
            let made = std::thread::scope(|scope| {
                let senders = [1, 2, 3].map(|slot| scope.spawn(move || makes(slot)));
                senders.map(|sender| usize::from(sender.join().expect("it ends")))
            });
            assert_eq!(made.iter().sum::<usize>(), 1);
        }
    }
}
