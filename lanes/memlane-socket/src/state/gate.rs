//! One direction's mode, and who depends on it, in one word.
//!
//! A call that may sleep in the kernel, where only TCP can wake it, must be known to whoever lets bytes go by the ring.
//! So it **enters**: it is counted and told the mode in the same step. Whoever changes the mode **moves** it: the mode
//! becomes `Moving`, in one step, only if nobody is counted who would be left behind. There is no moment between a look
//! and a count, on either side.
//!
//! | bits | what | written by |
//! |---|---|---|
//! | 0–23 | calls inside | each call, when it enters and when it leaves |
//! | 24–47 | threads that sleep on the socket by other means (poll, select) | each of them, when it begins and when it ends |
//! | 56–63 | the mode | whoever holds the direction's lock |
//!
//! All steps are sequentially consistent: who moves sees what those who have left have done, and who enters sees what
//! the move before has done. Checked with loom (`tests/loom_gate.rs`).

use crate::state::typed::Bits;
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use memlane_core::sync::{Exchange, Word as _, Words};

const CALL: u64 = 1;
const SLEEPER: u64 = 1 << 24;
const CALLS: u64 = SLEEPER - 1;
const SLEEPERS: u64 = (1 << 48) - SLEEPER;
const MODE_AT: u32 = 56;
const MODE: u64 = !0 << MODE_AT;

/// A mode that a [`Gate`] can hold.
pub trait Mode: Bits + PartialEq {
    /// Somebody is changing it: momentary.
    const MOVING: Self;
}

/// Who keeps a mode from being moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Busy {
    /// Calls that are inside.
    Calls,
    /// Calls that are inside, and threads that sleep on the socket by other means.
    CallsAndSleepers,
}

/// See the module's head. All-zero: the mode that 0 stands for, and nobody counted.
#[derive(Debug)]
#[repr(transparent)]
pub struct Gate<W: Words, M> {
    word: W::U64,
    mode: PhantomData<M>,
}

#[inline(always)]
fn mode_of<M: Bits>(word: u64) -> M {
    #[allow(clippy::cast_possible_truncation)] // eight bits
    M::from_bits((word >> MODE_AT) as u32)
}

impl<W: Words, M: Mode> Gate<W, M>
where
    W::U64: Exchange<u64>,
{
    /// Over a word that is 0.
    pub fn over(word: W::U64) -> Gate<W, M> {
        Gate {
            word,
            mode: PhantomData,
        }
    }

    /// The mode.
    #[inline(always)]
    pub fn mode(&self) -> M {
        mode_of(self.word.load(Ordering::SeqCst))
    }

    /// The mode, for a guess: nothing that follows is ordered after it.
    #[inline(always)]
    pub fn glance(&self) -> M {
        mode_of(self.word.load(Ordering::Relaxed))
    }

    /// One more call is inside, until [`Gate::leave`]; the mode that it has come into, and which stays as long as it
    /// is one that moves only if nobody is inside.
    #[inline(always)]
    pub fn enter(&self) -> M {
        mode_of(self.word.fetch_add(CALL))
    }

    /// A call that has entered leaves.
    #[inline(always)]
    pub fn leave(&self) {
        self.word.fetch_sub(CALL);
    }

    /// One more thread sleeps on the socket by other means, until [`Gate::wakes`]; the mode.
    pub fn sleeps(&self) -> M {
        mode_of(self.word.fetch_add(SLEEPER))
    }

    /// A thread that slept does so no more.
    pub fn wakes(&self) {
        self.word.fetch_sub(SLEEPER);
    }

    /// Moves the mode from `from` to `Moving`, unless somebody of `busy` is counted: did it? [`Gate::set`] must follow.
    pub fn begin_move(&self, from: M, busy: Busy) -> bool {
        let counted = match busy {
            Busy::Calls => CALLS,
            Busy::CallsAndSleepers => CALLS | SLEEPERS,
        };
        self.change(M::MOVING, |word| {
            mode_of::<M>(word) == from && word & counted == 0
        })
        .is_ok()
    }

    /// Sets the mode, whoever is counted; what it was. The direction's lock is held, or the connection is being cut.
    pub fn set(&self, to: M) -> M {
        let (Ok(word) | Err(word)) = self.change(to, |_| true);
        mode_of(word)
    }

    /// Nobody is counted, and the mode is the one that 0 stands for. Nobody else knows of the connection.
    pub fn reset(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// The word before the change, or the one on account of which there was none.
    fn change(&self, to: M, may: impl Fn(u64) -> bool) -> Result<u64, u64> {
        let mut word = self.word.load(Ordering::SeqCst);
        loop {
            if !may(word) {
                return Err(word);
            }
            let new = word & !MODE | u64::from(to.bits()) << MODE_AT;
            match self.word.compare_exchange(word, new) {
                Ok(_) => return Ok(word),
                Err(now) => word = now, // somebody has come or gone
            }
        }
    }
}
