//! The bell of a chunk: how a receiver sleeps while its connections stay awake.
//!
//! A receiver that parks a connection is woken by TCP ([`crate::ring`]), and all that comes to a parked connection goes
//! through the kernel. A receiver that waits for many connections at once would park all of them before each sleep. So it
//! leaves them awake and asks for a sign instead, one for the whole chunk:
//!
//! ```text
//! receiver: asleep = ASLEEP   ── full fence ──  bits == 0?  sleep until the bell rings
//! sender:   publish; set the DMB's bit in bits (an exchange);  asleep == ASLEEP?  asleep = RUNG, ring the bell
//! ```
//!
//! The fence and the exchange have a place in the single order of sequentially consistent operations. If the fence comes
//! first, the sender sees `ASLEEP` and rings. If the exchange comes first, the receiver sees the bit and does not sleep.
//! Only the sender that changes `ASLEEP` to `RUNG` rings, so a crowd of senders rings once.
//!
//! A receiver that looks at each ring in any case (`poll`) needs no bits. Its senders find
//! [`WANT_BELL`](crate::layout::WANT_BELL) instead of `WANT_READY`, and a fence takes the place of the exchange:
//!
//! ```text
//! receiver: asleep = ASLEEP   ── full fence ──  nothing published?  sleep until the bell rings
//! sender:   publish           ── full fence ──  asleep == ASLEEP?  asleep = RUNG, ring the bell
//! ```
//!
//! The bell itself is a descriptor that the receiver waits for in the kernel, beside all else that it waits for. Both
//! sides can write both words: a peer that lies in them wakes the receiver in vain, or waits for it in vain, and the
//! receiver looks after a while in any case. Checked with loom (`tests/loom_bell.rs`).

use crate::layout::{ASLEEP, AWAKE, RUNG, ReadyWords};
use crate::sync::{Bits, Exchange, Word, Words};
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// What a sender finds when it tells the receiver of news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// The bit was not set: the receiver has seen all earlier news of this DMB.
    pub first: bool,
    /// The receiver sleeps: the caller must ring the bell.
    pub must_ring: bool,
}

impl<W: Words> ReadyWords<W>
where
    W::U64: Bits<u64>,
    W::U32: Exchange<u32>,
{
    /// For the sender: sets the bit of a DMB into which it has published.
    #[inline(always)]
    pub fn tell(&self, bit: u64) -> Told {
        let was = self.bits.fetch_or(bit);
        W::fence_after_exchange();
        Told {
            first: was & bit == 0,
            must_ring: self.asleep.load(SeqCst) == ASLEEP && self.will_ring(),
        }
    }

    /// For the sender to a receiver that wants no bit: must the caller ring the bell? It has published before.
    #[inline(always)]
    pub fn must_ring(&self) -> bool {
        W::full_fence();
        self.asleep.load(SeqCst) == ASLEEP && self.will_ring()
    }

    /// Of all senders that find the receiver asleep, one rings.
    #[cold]
    fn will_ring(&self) -> bool {
        self.asleep.compare_exchange(ASLEEP, RUNG).is_ok()
    }

    /// For the receiver: asks for the bell. Before it sleeps, a full fence must follow, and then [`has_news`](Self::has_news) or
    /// a look at each ring.
    #[inline]
    pub fn lie_down(&self) {
        self.asleep.store(ASLEEP, Release);
    }

    /// For the receiver: has a sender set a bit that was not taken yet?
    #[inline]
    pub fn has_news(&self) -> bool {
        self.bits.load(Relaxed) != 0
    }

    /// For the receiver: it looks by itself from now on.
    #[inline]
    pub fn get_up(&self) {
        self.asleep.store(AWAKE, Release);
    }

    /// Does the receiver wait for the bell, or has it been rung for a receiver that has not got up yet?
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Relaxed) != AWAKE
    }
}
