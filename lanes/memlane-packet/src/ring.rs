//! A ring with requests one way and responses the other, in the same slots (`io/ring.h`).
//!
//! The front puts requests in and takes responses out; the back the other way round. Producer indices run freely over
//! 32 bits. Each end keeps its own indices for itself and takes the other's as a hint that is checked against them:
//! never more responses than requests are under way, never more requests than slots, never backwards.
//!
//! **Who rings.** A consumer that is about to sleep stores the number of the message that is to wake it in its *event*
//! word, then, after a full fence, looks at the producer index once more. A producer publishes its index, then, after a
//! full fence, looks at the event word: if that number is among what it has just published, the doorbell is to be rung.
//! So either the consumer sees the message or the producer sees the wish. A consumer that polls leaves the event word
//! behind, and is never rung for.

use crate::layout::RingWords;
use memlane_core::sync::{Word, Words};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The other end has published an index that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misbehaved {
    /// What it said.
    pub index: u32,
    /// What was under way: from the first of these …
    pub from: u32,
    /// … to below this one.
    pub to: u32,
}

/// Writes the words of a slot. `words` may be fewer than a slot has.
#[inline]
pub fn write<W: Words, const SLOT: usize, const N: usize>(
    slots: &[W::U32],
    mask: u32,
    index: u32,
    words: [u32; N],
) {
    let at = (index & mask) as usize * SLOT;
    for (slot, word) in slots[at..at + SLOT].iter().zip(words) {
        slot.store(word, Relaxed);
    }
}

/// Copies the words of a slot, each once.
#[inline]
pub fn read<W: Words, const SLOT: usize, const N: usize>(
    slots: &[W::U32],
    mask: u32,
    index: u32,
) -> [u32; N] {
    let at = (index & mask) as usize * SLOT;
    let slot = &slots[at..at + SLOT];
    std::array::from_fn(|n| slot[n].load(Relaxed))
}

/// Sets a ring up (`SHARED_RING_INIT`): the front does, before the back knows of it.
pub fn init<W: Words>(words: &RingWords<W>) {
    words.req_prod.store(0, Relaxed);
    words.rsp_prod.store(0, Relaxed);
    words.req_event.store(1, Relaxed);
    words.rsp_event.store(1, Release);
}

/// Was `event` among what was published, from after `old` to `new`?
#[inline]
fn is_due(old: u32, new: u32, event: u32) -> bool {
    new.wrapping_sub(event) < new.wrapping_sub(old)
}

/// The front's own indices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Front {
    slots: u32,
    /// Requests put in.
    put: u32,
    /// Requests published.
    published: u32,
    /// Responses taken out.
    taken: u32,
    /// Responses that are there, as it was seen last.
    seen: u32,
    quiet: u64,
}

impl Front {
    /// The state of a new ring with this many slots, a power of two.
    pub fn new(slots: u32) -> Front {
        Front {
            slots,
            put: 0,
            published: 0,
            taken: 0,
            seen: 0,
            quiet: 0,
        }
    }

    /// Slots that a request can be put into.
    #[inline]
    pub fn free(&self) -> u32 {
        self.slots - self.put.wrapping_sub(self.taken)
    }

    /// Requests without a response that was taken out.
    #[inline]
    pub fn under_way(&self) -> u32 {
        self.put.wrapping_sub(self.taken)
    }

    /// The index of the next request; it must be free. Counted at once, seen after [`publish`](Self::publish).
    #[inline]
    pub fn put(&mut self) -> u32 {
        debug_assert!(self.free() > 0);
        let index = self.put;
        self.put = index.wrapping_add(1);
        index
    }

    /// What was put in can be seen. Is the doorbell to be rung?
    #[inline]
    #[must_use]
    pub fn publish<W: Words>(&mut self, words: &RingWords<W>) -> bool {
        if self.published == self.put {
            return false;
        }
        let old = self.published;
        words.req_prod.store(self.put, Release);
        self.published = self.put;
        W::full_fence();
        let due = is_due(old, self.put, words.req_event.load(Relaxed));
        self.quiet += u64::from(!due);
        due
    }

    /// Times that something was published and no doorbell was due.
    pub fn quiet(&self) -> u64 {
        self.quiet
    }

    /// Responses that can be taken out now: at least what was known, more if there are none of those.
    ///
    /// # Errors
    /// [`Misbehaved`].
    #[inline]
    pub fn ready<W: Words>(&mut self, words: &RingWords<W>) -> Result<u32, Misbehaved> {
        if self.seen == self.taken {
            self.look(words)?;
        }
        Ok(self.seen.wrapping_sub(self.taken))
    }

    /// Looks at the other's index.
    ///
    /// # Errors
    /// [`Misbehaved`]: backwards, or more than was asked for.
    #[inline]
    pub fn look<W: Words>(&mut self, words: &RingWords<W>) -> Result<(), Misbehaved> {
        let index = words.rsp_prod.load(Acquire);
        self.seen = within(index, self.seen, self.published)?;
        Ok(())
    }

    /// The index of the next response, of those that are [`ready`](Self::ready).
    #[inline]
    pub fn take(&mut self) -> u32 {
        debug_assert!(self.seen != self.taken);
        let index = self.taken;
        self.taken = index.wrapping_add(1);
        index
    }

    /// About to sleep until `more` responses have come (one at least). `false`: do not, they are there.
    ///
    /// # Errors
    /// [`Misbehaved`].
    pub fn sleeps<W: Words>(
        &mut self,
        words: &RingWords<W>,
        more: u32,
    ) -> Result<bool, Misbehaved> {
        let event = self.taken.wrapping_add(more.max(1));
        words.rsp_event.store(event, Relaxed);
        W::full_fence();
        self.look(words)?;
        Ok(self.seen.wrapping_sub(self.taken) < more.max(1))
    }
}

/// The back's own indices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Back {
    slots: u32,
    /// Requests taken out.
    taken: u32,
    /// Requests that are there, as it was seen last.
    seen: u32,
    /// Responses put in.
    put: u32,
    /// Responses published.
    published: u32,
    quiet: u64,
}

impl Back {
    /// The state of a new ring with this many slots, a power of two.
    pub fn new(slots: u32) -> Back {
        Back {
            slots,
            taken: 0,
            seen: 0,
            put: 0,
            published: 0,
            quiet: 0,
        }
    }

    /// Requests that can be taken out now, as it was seen last.
    #[inline]
    pub fn known(&self) -> u32 {
        self.seen.wrapping_sub(self.taken)
    }

    /// Requests that can be taken out now: at least what was known, more if there are none of those.
    ///
    /// # Errors
    /// [`Misbehaved`].
    #[inline]
    pub fn ready<W: Words>(&mut self, words: &RingWords<W>) -> Result<u32, Misbehaved> {
        if self.seen == self.taken {
            self.look(words)?;
        }
        Ok(self.known())
    }

    /// Looks at the other's index.
    ///
    /// # Errors
    /// [`Misbehaved`]: backwards, or more than there are slots without a response (`RING_REQUEST_PROD_OVERFLOW`).
    #[inline]
    pub fn look<W: Words>(&mut self, words: &RingWords<W>) -> Result<(), Misbehaved> {
        let index = words.req_prod.load(Acquire);
        let end = self.published.wrapping_add(self.slots);
        self.seen = within(index, self.seen, end)?;
        Ok(())
    }

    /// The index of the `n`th request of those that are known.
    #[inline]
    pub fn peek(&self, n: u32) -> u32 {
        debug_assert!(n < self.known());
        self.taken.wrapping_add(n)
    }

    /// Takes this many of the known requests out.
    #[inline]
    pub fn take(&mut self, n: u32) {
        debug_assert!(n <= self.known());
        self.taken = self.taken.wrapping_add(n);
    }

    /// The index of the next response: that of the oldest request without one, which must have been taken out.
    #[inline]
    pub fn put(&mut self) -> u32 {
        debug_assert!(self.put != self.taken);
        let index = self.put;
        self.put = index.wrapping_add(1);
        index
    }

    /// Requests that were taken out, and whose responses cannot be seen yet.
    #[inline]
    pub fn unanswered(&self) -> u32 {
        self.taken.wrapping_sub(self.published)
    }

    /// What was put in can be seen. Is the doorbell to be rung?
    #[inline]
    #[must_use]
    pub fn publish<W: Words>(&mut self, words: &RingWords<W>) -> bool {
        if self.published == self.put {
            return false;
        }
        let old = self.published;
        words.rsp_prod.store(self.put, Release);
        self.published = self.put;
        W::full_fence();
        let due = is_due(old, self.put, words.rsp_event.load(Relaxed));
        self.quiet += u64::from(!due);
        due
    }

    /// Times that something was published and no doorbell was due.
    pub fn quiet(&self) -> u64 {
        self.quiet
    }

    /// About to sleep until `more` requests have come (one at least). `false`: do not, they are there.
    ///
    /// # Errors
    /// [`Misbehaved`].
    pub fn sleeps<W: Words>(
        &mut self,
        words: &RingWords<W>,
        more: u32,
    ) -> Result<bool, Misbehaved> {
        let event = self.taken.wrapping_add(more.max(1));
        words.req_event.store(event, Relaxed);
        W::full_fence();
        self.look(words)?;
        Ok(self.known() < more.max(1))
    }
}

/// `index`, if it lies in `from..=to`.
#[inline]
fn within(index: u32, from: u32, to: u32) -> Result<u32, Misbehaved> {
    if index.wrapping_sub(from) > to.wrapping_sub(from) {
        return Err(Misbehaved { index, from, to });
    }
    Ok(index)
}
