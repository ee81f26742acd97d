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
//! Only the sender that changes `ASLEEP` to `RUNG` rings, so a crowd of senders rings once. A receiver that hears an
//! [edge](Ring::Edge) stores `ASLEEP_AT_EDGE` instead.
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

use crate::layout::{ASLEEP, ASLEEP_AT_EDGE, AWAKE, RUNG, ReadyWords};
use crate::sync::{Bits, Exchange, Word, Words};
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// How the receiver wants its bell to be rung.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ring {
    /// By a byte, which stays until the receiver takes it.
    Byte,
    /// By an edge: something happens to the descriptor, and nothing stays. That costs the kernel less.
    Edge,
}

/// What a sender finds when it tells the receiver of news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// The bit was not set: the receiver has seen all earlier news of this DMB.
    pub first: bool,
    /// The receiver sleeps: the caller must ring the bell, in this way.
    pub ring: Option<Ring>,
}

/// Does this value of `asleep` say that the receiver sleeps until somebody rings?
#[inline(always)]
fn waits_for_ring(asleep: u32) -> bool {
    const { assert!(ASLEEP & ASLEEP_AT_EDGE & 1 == 1 && (AWAKE | RUNG) & 1 == 0) }
    asleep & 1 != 0
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
            ring: self.ring_asked_for(),
        }
    }

    /// For the sender to a receiver that wants no bit: how must the caller ring the bell? It has published before.
    #[inline(always)]
    pub fn ring_due(&self) -> Option<Ring> {
        W::full_fence();
        self.ring_asked_for()
    }

    #[inline(always)]
    fn ring_asked_for(&self) -> Option<Ring> {
        let asleep = self.asleep.load(SeqCst);
        if waits_for_ring(asleep) {
            self.will_ring(asleep)
        } else {
            None
        }
    }

    /// Of all senders that find the receiver asleep, one rings.
    #[cold]
    fn will_ring(&self, asleep: u32) -> Option<Ring> {
        self.asleep.compare_exchange(asleep, RUNG).ok()?;
        Some(if asleep == ASLEEP_AT_EDGE {
            Ring::Edge
        } else {
            Ring::Byte
        })
    }

    /// For the receiver: asks for the bell, to be rung in this way. Before it sleeps, a full fence must follow, and then
    /// [`has_news`](Self::has_news) or a look at each ring.
    #[inline]
    pub fn lie_down(&self, ring: Ring) {
        let asleep = match ring {
            Ring::Byte => ASLEEP,
            Ring::Edge => ASLEEP_AT_EDGE,
        };
        self.asleep.store(asleep, Release);
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
