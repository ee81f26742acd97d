//! Whom the bell of a chunk wakes: the threads that sleep on one epoll set, or one thread that polls.
//!
//! A chunk has one sleeper, for as long as it has connections. So a bell wakes nobody who waits for other connections, and
//! nobody stops the senders from ringing while somebody else sleeps.

use super::Ep;
use crate::state::thread;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Sets, and the states of threads, lie at even addresses: this bit tells the address of a thread's state.
const THREAD: usize = 1;

/// A set, a thread, or nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sleeper(usize);

impl Sleeper {
    /// Nobody.
    pub const NOBODY: Sleeper = Sleeper(0);

    /// The threads that sleep on this set.
    pub fn on_set(set: *const Ep) -> Sleeper {
        Sleeper(set as usize)
    }

    /// The calling thread. A thread that begins when this one has ended may count as the same.
    pub fn this_thread() -> Sleeper {
        Sleeper(core::ptr::from_ref(thread::current()) as usize | THREAD)
    }

    /// The set, if it is one.
    pub fn set(self) -> Option<&'static Ep> {
        if self.0 & THREAD != 0 {
            return None;
        }
        // SAFETY: null, or an address in the pool of sets, which is never unmapped.
        unsafe { (self.0 as *const Ep).as_ref() }
    }

    /// This sleeper; nobody, if it is a set that is closed.
    pub fn unless_closed(self) -> Sleeper {
        match self.set() {
            Some(set) if set.refs.load(Ordering::Relaxed) == 0 => Sleeper::NOBODY,
            _ => self,
        }
    }
}

/// The sleeper of a chunk.
#[derive(Debug, Default)]
pub struct SleeperCell(AtomicUsize);

impl SleeperCell {
    /// Nobody's.
    pub const fn new() -> SleeperCell {
        SleeperCell(AtomicUsize::new(0))
    }

    /// Who it is at the moment.
    #[inline]
    pub fn get(&self) -> Sleeper {
        Sleeper(self.0.load(Ordering::Acquire))
    }

    /// Makes it this one, whoever it was.
    pub fn set(&self, sleeper: Sleeper) {
        self.0.store(sleeper.0, Ordering::Release);
    }

    /// Makes it this one if it is nobody. Returns who it is now.
    pub fn claim(&self, sleeper: Sleeper) -> Sleeper {
        let claimed = self
            .0
            .compare_exchange(0, sleeper.0, Ordering::AcqRel, Ordering::Acquire);
        claimed.map_or_else(Sleeper, |_| sleeper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_is_closed_is_nobody() {
        // SAFETY: a set consists of atomics and null pointers, for which zeros are valid.
        let set: Box<Ep> = unsafe { Box::new(core::mem::zeroed()) };
        let set: &'static Ep = Box::leak(set);
        let sleeper = Sleeper::on_set(set);
        assert_eq!(sleeper.unless_closed(), Sleeper::NOBODY);
        set.refs.store(1, Ordering::Relaxed);
        assert_eq!(sleeper.unless_closed(), sleeper);
        thread::tests::set_own_locator();
        let me = Sleeper::this_thread();
        assert_eq!(me.unless_closed(), me);
    }

    #[test]
    fn a_chunk_keeps_the_sleeper_that_claims_it_first() {
        thread::tests::set_own_locator();
        let cell = SleeperCell::new();
        assert_eq!(cell.claim(Sleeper::NOBODY), Sleeper::NOBODY);
        let me = Sleeper::this_thread();
        assert_eq!(cell.claim(me), me);
        assert!(me.set().is_none());
        let other = std::thread::spawn(Sleeper::this_thread).join();
        let other = other.expect("it ends");
        assert_ne!(other, me);
        assert_eq!(cell.claim(other), me);
        cell.set(Sleeper::NOBODY);
        assert_eq!(cell.claim(other), other);
    }
}
