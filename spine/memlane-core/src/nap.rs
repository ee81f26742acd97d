//! A nap: how one end of a DMB sleeps for a moment, until the other end wakes it.
//!
//! A receiver that parks is woken by TCP, so the next bytes go by TCP ([`crate::ring`]). A receiver in a blocking read that
//! expects bytes soon naps first: it leaves the ring in use, and sleeps on a word of the DMB (futex(2)). So does a sender
//! that waits for room.
//!
//! ```text
//! receiver: nap = ASLEEP   ── full fence ──  writing == 0?  published unchanged?  sleep while nap == ASLEEP; nap = AWAKE
//! sender:   writing = 1    ── fence W ──     copy, publish;  nap == ASLEEP?  nap = RUNG, wake
//! ```
//!
//! If the receiver's fence comes first in the single order of the fences, the sender finds `ASLEEP` behind its own and
//! wakes the receiver. If fence W comes first, the receiver sees `writing` or the new `published`, and does not sleep. The
//! kernel compares the word once more before it lets a thread sleep, so no wake-up falls between the last look and the sleep.
//! Only who changes `ASLEEP` to `RUNG` makes the system call.
//!
//! The sleeper cannot be told by TCP meanwhile that its peer has died, and either side can write both words. So a nap is
//! short, whatever the peer does.
//!
//! Checked with loom (`tests/loom_nap.rs`).

use crate::layout::{ASLEEP, AWAKE, RUNG};
use crate::sync::{Exchange, Word, Words};
use core::sync::atomic::Ordering::{Release, SeqCst};

/// The word that one end naps on: `AWAKE`, `ASLEEP` or `RUNG`.
#[repr(transparent)]
pub struct Nap<W: Words>(pub W::U32);

impl<W: Words> Nap<W>
where
    W::U32: Exchange<u32>,
{
    /// For the end that naps. Before it sleeps, a full fence must follow, and then a look at what it waits for.
    #[inline]
    pub fn lie_down(&self) {
        self.0.store(ASLEEP, Release);
    }

    /// For the end that napped: it looks by itself from now on.
    #[inline]
    pub fn get_up(&self) {
        self.0.store(AWAKE, Release);
    }

    /// For the other end, behind a full fence that follows its news: must the caller wake whoever sleeps on the word?
    #[inline(always)]
    pub fn must_wake(&self) -> bool {
        self.0.load(SeqCst) == ASLEEP && self.will_wake()
    }

    /// Of all that find it asleep, one wakes it.
    #[cold]
    fn will_wake(&self) -> bool {
        self.0.compare_exchange(ASLEEP, RUNG).is_ok()
    }
}
