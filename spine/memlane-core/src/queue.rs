//! A queue of 32-bit words from one process to another, and a way to sleep until there is one.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `published`: words put in, ever | producer, release | consumer, acquire |
//! | `consumed`: words taken out, ever | consumer, release | producer, acquire |
//! | `naps`: odd while the consumer sleeps, or is about to | consumer | producer |
//! | slots | producer, before `published` | consumer, before `consumed` |
//!
//! Whoever publishes looks at `naps` after a full fence; whoever sleeps looks at `published` after one. So either the
//! consumer sees the word, or the producer sees that a bell must be rung. A nap is rung for once.
//!
//! Both ends can write all of it, and neither believes its own words back: what it has put in or taken out, it keeps
//! for itself. A number that cannot be is [`Misbehaved`].

use crate::layout::Aligned;
use crate::sync::{Word, Words};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The words beside the slots.
#[repr(C)]
pub struct QueueWords<W: Words> {
    /// Words put in, ever.
    pub published: Aligned<W::U64>,
    /// Words taken out, ever.
    pub consumed: Aligned<W::U64>,
    /// Odd: the consumer sleeps.
    pub naps: Aligned<W::U32>,
}

/// The other end has written what cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misbehaved;

/// Who puts words in.
#[derive(Debug, Default)]
pub struct Producer {
    put: u64,
    /// Put in, and published.
    published: u64,
    /// As it was seen last.
    consumed: u64,
    /// The nap that the bell was rung for.
    rung: u32,
}

impl Producer {
    /// Puts a word in; `false` if the queue is full. It is seen after [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`Misbehaved`].
    #[inline]
    pub fn put<W: Words>(
        &mut self,
        words: &QueueWords<W>,
        slots: &[W::U32],
        word: u32,
    ) -> Result<bool, Misbehaved> {
        let len = slots.len() as u64;
        if self.put.wrapping_sub(self.consumed) >= len {
            let consumed = words.consumed.0.load(Acquire);
            // Taken out: not more than was published, and not less than was seen before.
            if self.published.wrapping_sub(consumed) > self.published.wrapping_sub(self.consumed) {
                return Err(Misbehaved);
            }
            self.consumed = consumed;
            if self.put.wrapping_sub(consumed) >= len {
                return Ok(false);
            }
        }
        slot::<W>(slots, self.put).store(word, Relaxed);
        self.put = self.put.wrapping_add(1);
        Ok(true)
    }

    /// What was put in can be seen. Is the bell to be rung?
    #[inline]
    #[must_use]
    pub fn publish<W: Words>(&mut self, words: &QueueWords<W>) -> bool {
        if self.published == self.put {
            return false;
        }
        words.published.0.store(self.put, Release);
        self.published = self.put;
        W::full_fence();
        let naps = words.naps.0.load(Relaxed);
        let rings = naps % 2 == 1 && naps != self.rung;
        if rings {
            self.rung = naps;
        }
        rings
    }
}

/// Who takes words out.
#[derive(Debug, Default)]
pub struct Consumer {
    taken: u64,
    /// Taken out, and told.
    told: u64,
    /// As it was seen last.
    published: u64,
    naps: u32,
}

impl Consumer {
    /// The next word. `None`: there is none now, and what was taken has been told.
    ///
    /// # Errors
    /// [`Misbehaved`].
    #[inline]
    pub fn take<W: Words>(
        &mut self,
        words: &QueueWords<W>,
        slots: &[W::U32],
    ) -> Result<Option<u32>, Misbehaved> {
        if self.taken == self.published {
            if self.told != self.taken {
                words.consumed.0.store(self.taken, Release);
                self.told = self.taken;
            }
            let published = words.published.0.load(Acquire);
            if published.wrapping_sub(self.taken) > slots.len() as u64 {
                return Err(Misbehaved);
            }
            self.published = published;
            if self.taken == published {
                return Ok(None);
            }
        }
        let word = slot::<W>(slots, self.taken).load(Relaxed);
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(word))
    }

    /// Is there something to take? A look that changes nothing.
    #[inline]
    #[must_use]
    pub fn has_some<W: Words>(&self, words: &QueueWords<W>) -> bool {
        self.taken != self.published || words.published.0.load(Relaxed) != self.taken
    }

    /// About to sleep. `false`: do not, there is something.
    #[must_use]
    pub fn naps<W: Words>(&mut self, words: &QueueWords<W>) -> bool {
        self.naps |= 1;
        words.naps.0.store(self.naps, Relaxed);
        W::full_fence();
        let quiet = words.published.0.load(Relaxed) == self.taken;
        if !quiet {
            self.wakes(words);
        }
        quiet
    }

    /// Awake: no bell is needed.
    pub fn wakes<W: Words>(&mut self, words: &QueueWords<W>) {
        if self.naps % 2 == 1 {
            self.naps = self.naps.wrapping_add(1);
            words.naps.0.store(self.naps, Relaxed);
        }
    }

    /// Does it sleep?
    #[must_use]
    pub fn is_napping(&self) -> bool {
        self.naps % 2 == 1
    }
}

/// The slots are a power of two; if there is none, the caller has made a mistake that only ends this queue's use.
#[inline]
fn slot<W: Words>(slots: &[W::U32], count: u64) -> &W::U32 {
    let mask = slots.len() as u64 - 1;
    // Less than the slots' length, which is a usize.
    #[allow(clippy::cast_possible_truncation)]
    let at = (count & mask) as usize;
    &slots[at]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Cpu;
    use core::sync::atomic::{AtomicU32, AtomicU64};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn words() -> QueueWords<Cpu> {
        QueueWords {
            published: Aligned(AtomicU64::new(0)),
            consumed: Aligned(AtomicU64::new(0)),
            naps: Aligned(AtomicU32::new(0)),
        }
    }

    fn slots() -> Vec<AtomicU32> {
        (0..8).map(|_| AtomicU32::new(0)).collect()
    }

    proptest! {
        #[test]
        fn words_come_out_as_they_went_in(ops in proptest::collection::vec(0..4_u8, 0..300)) {
            let (words, slots) = (words(), slots());
            let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
            let (mut oracle, mut unseen, mut next) = (VecDeque::new(), Vec::new(), 0);
            // What was taken is told when nothing more is found.
            let mut told = true;
            for op in ops {
                match op {
                    0 | 1 => {
                        if producer.put(&words, &slots, next).unwrap() {
                            unseen.push(next);
                            next += 1;
                        } else {
                            prop_assert!(!told || oracle.len() + unseen.len() > 0);
                        }
                        prop_assert!(oracle.len() + unseen.len() <= 8);
                    }
                    2 => {
                        let new = !unseen.is_empty();
                        oracle.extend(unseen.drain(..));
                        let rings = producer.publish(&words);
                        prop_assert_eq!(rings, new && consumer.is_napping());
                        if rings {
                            consumer.wakes(&words);
                        }
                    }
                    _ => {
                        let taken = consumer.take(&words, &slots).unwrap();
                        prop_assert_eq!(taken, oracle.pop_front());
                        told = taken.is_none();
                        if told {
                            prop_assert!(consumer.naps(&words));
                        }
                    }
                }
            }
        }

        #[test]
        fn whatever_the_other_end_writes_nothing_is_read_beside_the_slots(
            numbers in proptest::collection::vec(any::<u64>(), 1..40),
        ) {
            let (words, slots) = (words(), slots());
            let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
            for number in numbers {
                let number = if number % 3 == 0 { number % 20 } else { number };
                words.published.0.store(number, Relaxed);
                words.consumed.0.store(number.rotate_left(7), Relaxed);
                let mut taken = 0;
                while let Ok(Some(_)) = consumer.take(&words, &slots) {
                    taken += 1;
                }
                prop_assert!(taken <= 8);
                let mut put = 0;
                while let Ok(true) = producer.put(&words, &slots, 1) {
                    put += 1;
                }
                prop_assert!(put <= 8);
                let _ = producer.publish(&words);
            }
        }
    }

    #[test]
    fn a_nap_is_rung_for_once() {
        let (words, slots) = (words(), slots());
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        assert!(consumer.naps(&words));
        assert_eq!(producer.put(&words, &slots, 1), Ok(true));
        assert!(producer.publish(&words));
        assert_eq!(producer.put(&words, &slots, 2), Ok(true));
        assert!(!producer.publish(&words));
        assert!(!consumer.naps(&words), "there is something");
        assert!(!consumer.is_napping());
    }
}
