//! What a server remembers of each permit, so that no request is executed twice.
//!
//! ```text
//!              first copy: Begin                     backend is done
//!   Over(g−1) ──────────────────► Running(g, who waits) ─────────────► Over(g, result)
//!                                   ▲ another copy: Join                 ▲ another copy: Answer
//! ```
//!
//! A settle goes the same way, but where a request would begin it makes it `Over` with `ECANCELED`.

use crate::wire::{REPLAYED, Replay, SETTLE};

/// `ECANCELED`: a settled request had not come and will not be executed.
pub const ECANCELED: u16 = 125;

/// One permit.
#[derive(Clone, Debug)]
pub enum Slot<W> {
    /// The use with this generation is over (0: there was none) and gave this error number.
    Over {
        /// Which use.
        generation: u64,
        /// What it gave.
        errno: u16,
    },
    /// The backend has it.
    Running {
        /// Which use.
        generation: u64,
        /// Who is to be told: who sent the last copy.
        waiter: W,
    },
}

impl<W> Default for Slot<W> {
    fn default() -> Self {
        Slot::Over {
            generation: 0,
            errno: 0,
        }
    }
}

/// What to do with a copy of a request that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Execute it.
    Begin(u64),
    /// The first copy is under way: its result will go to this copy's sender.
    Join,
    /// It is over: this was its result.
    Answer(u16),
    /// It never came, and never will begin: say so.
    Settled,
    /// A copy of a use that is long over: drop it.
    Stale,
    /// The permit was used again while the backend has it: the client is broken.
    Reused,
}

impl<W> Slot<W> {
    /// A copy of a request comes. `None`: from a client that does not count; then only the one thing can be
    /// told that its kind also does not do, to use a permit twice at a time: a second copy is a replay.
    pub fn arrive(&mut self, replay: Option<Replay>, who: W) -> Verdict {
        let (known, running) = match self {
            Slot::Over { generation, .. } => (*generation, false),
            Slot::Running { generation, .. } => (*generation, true),
        };
        let uncounted = known + u64::from(!running);
        let generation = replay.map_or(uncounted, |replay| replay.generation);
        let settle = replay.is_some_and(|replay| replay.flags & SETTLE != 0);
        if generation < known {
            return Verdict::Stale;
        }
        if generation > known {
            if running {
                return Verdict::Reused;
            }
            if settle {
                let errno = ECANCELED;
                *self = Slot::Over { generation, errno };
                return Verdict::Settled;
            }
            *self = Slot::Running {
                generation,
                waiter: who,
            };
            return Verdict::Begin(generation);
        }
        match self {
            Slot::Running { waiter, .. } => {
                *waiter = who;
                Verdict::Join
            }
            Slot::Over { errno, .. } => Verdict::Answer(*errno),
        }
    }

    /// As [`arrive`](Self::arrive), by a server that remembers nothing: every copy begins. For the simulator,
    /// which must notice.
    pub fn forget_and_begin(&mut self, replay: Option<Replay>, who: W) -> Verdict {
        let generation = replay.map_or(1, |replay| replay.generation);
        *self = Slot::Running {
            generation,
            waiter: who,
        };
        Verdict::Begin(generation)
    }

    /// The backend is done with this use: who is to be told?
    pub fn finish(&mut self, done: u64, errno: u16) -> Option<W> {
        match std::mem::take(self) {
            Slot::Running { generation, waiter } if generation == done => {
                *self = Slot::Over { generation, errno };
                Some(waiter)
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// Does the backend have it?
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self, Slot::Running { .. })
    }
}

/// The flags of a copy.
#[must_use]
pub fn flags(again: bool, settle: bool) -> u32 {
    (if again { REPLAYED } else { 0 }) | (if settle { SETTLE } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(generation: u64, settle: bool) -> Option<Replay> {
        let flags = flags(true, settle);
        Some(Replay { generation, flags })
    }

    #[test]
    fn a_replay_joins_the_first_copy_and_then_gets_its_result() {
        let mut slot = Slot::default();
        assert_eq!(slot.arrive(copy(1, false), 'a'), Verdict::Begin(1));
        assert_eq!(slot.arrive(copy(1, false), 'b'), Verdict::Join);
        assert_eq!(slot.finish(1, 5), Some('b'));
        assert_eq!(slot.arrive(copy(1, false), 'c'), Verdict::Answer(5));
        assert_eq!(slot.arrive(copy(2, false), 'c'), Verdict::Begin(2));
        assert_eq!(slot.arrive(copy(1, false), 'a'), Verdict::Stale);
        assert_eq!(slot.arrive(copy(3, false), 'c'), Verdict::Reused);
        assert_eq!(slot.finish(1, 0), None);
    }

    #[test]
    fn a_request_that_was_settled_before_it_came_never_begins() {
        let mut slot = Slot::default();
        assert_eq!(slot.arrive(copy(4, true), 'a'), Verdict::Settled);
        assert_eq!(slot.arrive(copy(4, false), 'b'), Verdict::Answer(ECANCELED));
        assert_eq!(slot.arrive(copy(5, false), 'a'), Verdict::Begin(5));
        assert_eq!(slot.arrive(copy(5, true), 'a'), Verdict::Join);
    }

    #[test]
    fn a_client_that_does_not_count_is_joined_while_its_request_runs() {
        let mut slot = Slot::default();
        assert_eq!(slot.arrive(None, 'a'), Verdict::Begin(1));
        assert_eq!(slot.arrive(None, 'b'), Verdict::Join);
        assert_eq!(slot.finish(1, 0), Some('b'));
        assert_eq!(slot.arrive(None, 'a'), Verdict::Begin(2));
    }
}
