//! Marks in the kernel's list: where news from rings belong among the kernel's events.
//!
//! The kernel reports descriptors in the order in which they became ready, and knows nothing of rings. While a receiver
//! does not look at its rings, a sender now and then sends a message by TCP, although it could go by a ring. The kernel
//! gives that message a place in its list. The sender notes when this was, and for which DMB. News that come by rings in
//! the time behind it need no place of their own: the receiver reports them behind the mark.
//!
//! Both sides can write the words. Whoever lies in them moves the reports of its own connections, and no others.

use crate::layout::{Marks, SLOTS};
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

impl<W: Words> Marks<W>
where
    W::U64: Exchange<u64>,
{
    /// For the sender: where do the first news of DMB `slot` belong, `now`? `looked` is when the receiver last looked, and
    /// `apart` is how long a mark holds, all in `ticks`. Of several senders that need a mark, one makes it.
    pub fn place(&self, slot: usize, now: u64, looked: u64, apart: u64) -> Place {
        let (mut newest, mut oldest) = (0, (u64::MAX, &self.0[0]));
        for word in &self.0 {
            let known = word.load(Relaxed);
            newest = newest.max(known);
            if known < oldest.0 {
                oldest = (known, word);
            }
        }
        let newest = Mark::of(newest).at;
        if newest > looked && now.saturating_sub(newest) < apart {
            return Place::BehindMark;
        }
        let (known, word) = oldest;
        if Mark::of(known).at > looked {
            return Place::NoRoom;
        }
        let mark = now & !SLOT_MASK | slot as u64 & SLOT_MASK;
        match word.compare_exchange(known, mark) {
            Ok(_) => Place::IsMark,
            Err(_) => Place::BehindMark,
        }
    }

    /// For the receiver: the marks that were made after `since`, in no order. A time that is still to come is a lie.
    pub fn made_between(&self, since: u64, now: u64) -> impl Iterator<Item = Mark> {
        let marks = self.0.iter().map(|word| Mark::of(word.load(Relaxed)));
        marks.filter(move |mark| mark.at > since && mark.at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::MARKS;
    use crate::sync::Cpu;
    use core::sync::atomic::AtomicU64;

    const APART: u64 = 1000;

    fn none() -> Marks<Cpu> {
        Marks([const { AtomicU64::new(0) }; MARKS])
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
        let mut found: Vec<_> = marks.made_between(10_000, 70_000).collect();
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
        assert_eq!(marks.made_between(10_000, u64::MAX).count(), MARKS);
    }

    #[test]
    fn a_receiver_believes_no_mark_of_a_time_to_come() {
        let marks = none();
        marks.0[3].store(u64::MAX, Relaxed);
        assert_eq!(marks.made_between(0, 1 << 40).count(), 0);
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
