//! One direction's mode, and the count of those who depend on it, in one word.
//!
//! A call that may sleep in the kernel, where only TCP can wake it, must be known to the thread that lets bytes go by
//! the ring. So the call **enters**: in one step it is counted and reads the mode. A thread that changes the mode
//! **moves** it: in one step the mode becomes `Moving`, but only if no call is counted that depends on the old mode. So
//! on neither side is there a moment between a look at the mode and the count.
//!
//! | bits | what | written by |
//! |---|---|---|
//! | 0–23 | calls inside | each call, when it enters and when it leaves |
//! | 24–47 | threads that sleep on the socket by other means (poll, select) | each thread, when it begins and when it
//! ends |
//! | 56–63 | the mode | the thread that holds the direction's lock |
//!
//! An opening **closes** the gate, whoever is inside: no call enters any more. It waits until the calls that send have left.
//! Those that receive may stay, because they may sleep in the mode that follows, too.
//!
//! All steps are sequentially consistent: a thread that moves the mode sees what the calls that have left have done,
//! and a call that enters sees what the move before it has done. Checked with loom (`tests/loom_gate.rs`).

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
    /// A thread is changing the mode: momentary.
    const MOVING: Self;
}

/// What keeps a mode from being moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Busy {
    /// Calls that are inside.
    Calls,
    /// Calls that are inside, and threads that sleep on the socket by other means.
    CallsAndSleepers,
}

/// One direction's mode with its counts: see the module's documentation. All-zero is the mode whose number is 0, with
/// nobody counted.
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
    /// A gate over a word that is 0.
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

    /// The mode, for a guess: nothing that follows is ordered after this load.
    #[inline(always)]
    pub fn glance(&self) -> M {
        mode_of(self.word.load(Ordering::Relaxed))
    }

    /// Counts a call as inside until [`Gate::leave`], and returns the mode. The mode stays while the call is inside, if
    /// it is one that moves only when no call is inside.
    #[inline(always)]
    pub fn enter(&self) -> M {
        mode_of(self.word.fetch_add(CALL))
    }

    /// Counts a call that has entered as gone, and returns the mode.
    #[inline(always)]
    pub fn leave(&self) -> M {
        mode_of(self.word.fetch_sub(CALL))
    }

    /// Counts a thread as asleep on the socket by other means until [`Gate::wakes`], and returns the mode.
    pub fn sleeps(&self) -> M {
        mode_of(self.word.fetch_add(SLEEPER))
    }

    /// Counts a thread that slept by other means as awake.
    pub fn wakes(&self) {
        self.word.fetch_sub(SLEEPER);
    }

    /// Moves the mode from `from` to `Moving` unless `busy` counts somebody, and returns whether it did. [`Gate::set`]
    /// must follow.
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

    /// Moves the mode from `from` to `Moving` whoever is inside, and returns whether it did: a call that enters from now on sees
    /// it, and has to wait. Those inside depend on the old mode until [`Gate::is_quiet`]. [`Gate::set`] must follow.
    pub fn close(&self, from: M) -> bool {
        self.change(M::MOVING, |word| mode_of::<M>(word) == from)
            .is_ok()
    }

    /// Is no call inside? After [`Gate::close`], no call comes in that depends on the old mode.
    pub fn is_quiet(&self) -> bool {
        self.word.load(Ordering::SeqCst) & CALLS == 0
    }

    /// Sets the mode whatever the counts are, and returns the old one. The caller holds the direction's lock, or cuts
    /// the connection.
    pub fn set(&self, to: M) -> M {
        let (Ok(word) | Err(word)) = self.change(to, |_| true);
        mode_of(word)
    }

    /// Is the mode the one with the number 0, and nobody counted?
    #[inline(always)]
    pub fn is_fresh(&self) -> bool {
        self.word.load(Ordering::Relaxed) == 0
    }

    /// Resets the counts and the mode to 0. No other thread may know of the connection.
    pub fn reset(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// Changes the mode if `may` allows it. Returns the word before the change, or the word that `may` refused.
    fn change(&self, to: M, may: impl Fn(u64) -> bool) -> Result<u64, u64> {
        let mut word = self.word.load(Ordering::SeqCst);
        loop {
            if !may(word) {
                return Err(word);
            }
            let new = word & !MODE | u64::from(to.bits()) << MODE_AT;
            match self.word.compare_exchange(word, new) {
                Ok(_) => return Ok(word),
                Err(now) => word = now, // a count has changed
            }
        }
    }
}
