//! Who drives a session: leader and followers, by one word.
//!
//! A session has one engine and one set of connections, and many threads that want something of them. One thread at a
//! time drives: it is the *leader*. The others are followers: they put requests into the submit queue, sleep, or go on
//! with something else. Any thread that waits may become the leader. All that leadership depends on is in one word:
//!
//! | part of the word | meaning | set by | cleared by |
//! |---|---|---|---|
//! | leading | a thread drives | that thread | the same, when it leaves |
//! | pending | the submit queue has requests that the leader has not taken | a follower | the leader, when it takes them |
//! | parked | what comes makes a socket readable, so that it wakes a sleeper | the leader, when it leaves | the leader, when it leaves without parking |
//! | sleepers | how many threads sleep until a socket or a result wakes them | they | they |
//! | spinners | how many threads wait by leading in turns, again and again | they | they |
//!
//! Each change is one compare-exchange of the whole word, so all changes are in one order. That gives two promises,
//! which `tests/loom_leader.rs` checks:
//!
//! 1. **No request is left behind.** A follower first puts its requests into the queue, then calls [`submit`]: it becomes
//!    the leader, or it sets `pending` while there is one; and a leader cannot [`leave`] while `pending` is set.
//! 2. **No sleeper is left behind.** A thread first counts itself as a sleeper, then leads and parks, or another thread
//!    leads: and that one cannot leave the connections unparked while there are sleepers, unless a thread spins. The last
//!    thread that spins parks them when it [stops](Leadership::stop_spinning).
//!
//! [`submit`]: Leadership::submit
//! [`leave`]: Leadership::leave
//!
//! ```
//! use memlane_transport::engine::leader::{Leadership, Left};
//! use std::sync::atomic::AtomicU64;
//!
//! let session = Leadership::new(AtomicU64::new(0));
//! assert!(session.lead());
//! // Another thread has put a request into the queue. It finds a leader, and goes on with something else.
//! assert!(!session.submit());
//! // The leader is told, and takes the request.
//! assert_eq!(session.leave(Some(false)), Left::Pending);
//! assert_eq!(session.leave(Some(false)), Left::Free);
//! ```

use memlane_core::sync::Exchange;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

const LEADING: u64 = 1;
const PENDING: u64 = 1 << 1;
const PARKED: u64 = 1 << 2;
/// Counts of 24 bits each: more threads than a process may have.
const SLEEPER: u64 = 1 << 8;
const SPINNER: u64 = 1 << 32;
const COUNT: u64 = (1 << 24) - 1;

/// The word. `W` is the CPU's atomic, or loom's in models.
#[derive(Debug)]
pub struct Leadership<W>(W);

/// What became of a leader that wanted to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It leads no more.
    Free,
    /// It still leads: the submit queue has requests, which it takes now.
    Pending,
    /// It still leads: threads sleep, and it must park the connections first.
    MustPark,
}

fn sleepers(state: u64) -> u64 {
    (state / SLEEPER) & COUNT
}

fn spinners(state: u64) -> u64 {
    (state / SPINNER) & COUNT
}

impl<W: Exchange<u64>> Leadership<W> {
    /// Nobody leads, nobody sleeps. `word` is 0.
    pub fn new(word: W) -> Leadership<W> {
        Leadership(word)
    }

    /// Changes the word in one step, and returns what `change` says of it.
    fn update<R>(&self, change: impl Fn(u64) -> (u64, R)) -> R {
        let mut state = self.0.load(Acquire);
        loop {
            let (new, result) = change(state);
            match self.0.compare_exchange(state, new) {
                Ok(_) => return result,
                Err(now) => state = now,
            }
        }
    }

    // ---- leading ----

    /// Becomes the leader, unless there is one.
    #[must_use]
    pub fn lead(&self) -> bool {
        // A look first: a word that many threads read is not taken from them in vain.
        self.0.load(Relaxed) & LEADING == 0
            && self.update(|state| (state | LEADING, state & LEADING == 0))
    }

    /// After requests were put into the submit queue: becomes the leader (`true`), or leaves them to the one there is.
    #[must_use]
    pub fn submit(&self) -> bool {
        self.update(|state| match state & LEADING {
            0 => (state | LEADING, true),
            _ => (state | PENDING, false),
        })
    }

    /// By the leader: has a follower submitted something? A hint; [`leave`](Self::leave) is sure.
    pub fn is_pending(&self) -> bool {
        self.0.load(Relaxed) & PENDING != 0
    }

    /// By the leader: stops to lead, unless it is still needed.
    ///
    /// `parked` says whether it has parked the connections. `None`: it spins, so that it or another thread goes on at
    /// once, and the last one parks them in the end ([`must_park`](Self::must_park)).
    #[must_use]
    pub fn leave(&self, parked: Option<bool>) -> Left {
        self.update(|state| {
            let parks = parked.unwrap_or(false);
            if state & PENDING != 0 {
                return (state & !PENDING, Left::Pending);
            }
            if parked.is_some() && !parks && sleepers(state) > 0 {
                return (state, Left::MustPark);
            }
            let bit = if parks { PARKED } else { 0 };
            (state & !(LEADING | PARKED) | bit, Left::Free)
        })
    }

    /// By the leader, when it has read nothing: as [`leave`](Self::leave), and the connections are as they were before.
    #[must_use]
    pub fn leave_untouched(&self) -> Left {
        self.update(|state| match state {
            _ if state & PENDING != 0 => (state & !PENDING, Left::Pending),
            _ if state & PARKED == 0 && spinners(state) == 0 && sleepers(state) > 0 => {
                (state, Left::MustPark)
            }
            _ => (state & !LEADING, Left::Free),
        })
    }

    /// Threads sleep that nothing would wake: by a thread that has left the connections unparked and goes away now.
    #[must_use]
    pub fn must_park(&self) -> bool {
        let state = self.0.load(Acquire);
        state & PARKED == 0 && sleepers(state) > 0
    }

    // ---- spinning ----

    /// Counts the caller as one that spins; how many spin now?
    pub fn spin(&self) -> u64 {
        spinners(self.0.fetch_add(SPINNER)) + 1
    }

    /// Counts it no more; does nobody spin now? Then the caller parks the connections, if it [must](Self::must_park).
    #[must_use]
    pub fn stop_spinning(&self) -> bool {
        spinners(self.0.fetch_sub(SPINNER)) == 1
    }

    /// How many spin.
    pub fn spinners(&self) -> u64 {
        spinners(self.0.load(Acquire))
    }

    // ---- sleeping, woken by a socket or a result ----

    /// Counts the caller as a sleeper: before it leads for the last time.
    pub fn sleep(&self) {
        self.0.fetch_add(SLEEPER);
    }

    /// Counts it no more.
    pub fn wake(&self) {
        self.0.fetch_sub(SLEEPER);
    }

    /// How many sleep.
    pub fn sleepers(&self) -> u64 {
        sleepers(self.0.load(Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn leadership() -> Leadership<AtomicU64> {
        Leadership::new(AtomicU64::new(0))
    }

    #[test]
    fn one_leads_and_takes_what_others_submit() {
        let state = leadership();
        assert!(state.lead() && !state.lead());
        assert!(!state.submit() && state.is_pending());
        assert_eq!(state.leave(Some(false)), Left::Pending);
        assert_eq!(state.leave(Some(false)), Left::Free);
        assert!(state.submit(), "the leader is gone");
        assert_eq!(state.leave_untouched(), Left::Free);
    }

    #[test]
    fn a_leader_parks_before_it_leaves_sleepers() {
        let state = leadership();
        assert!(state.lead());
        state.sleep();
        assert_eq!(state.leave(Some(false)), Left::MustPark);
        assert_eq!(state.leave_untouched(), Left::MustPark);
        assert_eq!(state.leave(Some(true)), Left::Free);
        assert!(!state.must_park() && state.lead());
        assert_eq!(state.leave_untouched(), Left::Free, "they are parked");
        assert!(state.spin() == 1 && state.spin() == 2 && state.lead());
        assert_eq!(state.leave(None), Left::Free, "it spins");
        assert!(state.must_park() && state.lead());
        assert_eq!(state.leave_untouched(), Left::Free, "the other one spins");
        assert!(!state.stop_spinning() && state.stop_spinning(), "the last");
        assert!(state.lead());
        assert_eq!(state.leave_untouched(), Left::MustPark);
        assert_eq!(state.leave(Some(true)), Left::Free);
        state.wake();
        assert!(!state.must_park() && state.spinners() == 0 && state.sleepers() == 0);
    }
}
