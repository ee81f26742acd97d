//! When the reads of a connection nap (see `lane::naps`), and when they park at once.

use crate::state::thread;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use memlane_sys::time;

/// The most naps that a connection skips after naps in vain.
const SKIP_MOST: u32 = 64;

/// The mark of a thread that naps, and for which another one [keeps](ReadNaps::keep) the socket open. Addresses of threads'
/// states are even.
const CLAIMED: usize = 1;

/// How long a thread whose nap is claimed waits for its descriptor, in nanoseconds. The thread that claims makes it at once,
/// unless a handler has jumped out of its close.
const PATIENCE_NS: u64 = 100_000_000;

/// The naps of the reads of one connection. Written relaxed by the threads that read: a lost update costs a nap.
#[derive(Debug, Default)]
pub struct ReadNaps {
    /// The address of the state of the thread that naps, or is about to park after a nap; 0: none does. It stays there if a
    /// handler has jumped out of the nap. A thread that closes the socket adds [`CLAIMED`].
    sleeper: AtomicUsize,
    /// 1: the last nap was ended by news.
    useful: AtomicU32,
    /// The number of naps in vain in a row.
    vain: AtomicU32,
    /// The number of chances to nap that are skipped from now on.
    skip: AtomicU32,
    /// A descriptor of the library for the socket, which another thread is closing under a nap; 0: none yet, −1: there is none
    /// to be had. Written by that thread, behind its claim and before it wakes the one that naps, which takes it.
    kept: AtomicI32,
}

impl ReadNaps {
    /// Resets them for a new connection.
    pub fn reset(&self) {
        self.sleeper.store(0, Ordering::Relaxed);
        for word in [&self.useful, &self.vain, &self.skip] {
            word.store(0, Ordering::Relaxed);
        }
        self.kept.store(0, Ordering::Relaxed);
    }

    /// If another thread naps: promises it a descriptor, which [`Self::keep`] must leave.
    pub fn claim(&self) -> bool {
        let sleeper = self.sleeper.load(Ordering::Relaxed);
        sleeper != 0
            && sleeper & CLAIMED == 0
            && sleeper != this_thread()
            && self
                .sleeper
                .compare_exchange(
                    sleeper,
                    sleeper | CLAIMED,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Is a descriptor left that nobody has taken?
    pub fn has_kept(&self) -> bool {
        self.kept.load(Ordering::Acquire) != 0
    }

    /// Leaves a descriptor for the thread that naps, or −1.
    pub fn keep(&self, fd: i32) {
        self.kept.store(fd, Ordering::Release);
    }

    /// Takes back the descriptor, if the thread that napped has not come for it, and its claim; 0: none.
    pub fn take_back(&self) -> i32 {
        if self.kept.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let kept = self.kept.swap(0, Ordering::AcqRel);
        if kept != 0 {
            self.sleeper.store(0, Ordering::Release);
        }
        kept
    }

    /// Was the last nap of this connection of use?
    pub fn pay(&self) -> bool {
        self.useful.load(Ordering::Relaxed) != 0
    }

    /// Is it time for a nap? If not, this counts as one that is skipped.
    pub fn is_due(&self) -> bool {
        let skip = self.skip.load(Ordering::Relaxed);
        self.skip.store(skip.saturating_sub(1), Ordering::Relaxed);
        skip == 0
    }

    /// Counts a nap: it was in vain, or was ended by news.
    pub fn ended(&self, in_vain: bool) {
        let vain = if in_vain {
            (self.vain.load(Ordering::Relaxed) + 1).min(SKIP_MOST.ilog2() + 1)
        } else {
            0
        };
        self.useful.store(u32::from(!in_vain), Ordering::Relaxed);
        self.vain.store(vain, Ordering::Relaxed);
        self.skip.store((1 << vain) >> 1, Ordering::Relaxed);
    }

    /// Makes this thread the only one that naps. `false`: there is another.
    pub fn take(&self) -> bool {
        let me = this_thread();
        self.sleeper
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            || self.sleeper.load(Ordering::Relaxed) == me
    }

    /// This thread naps no more. Returns the descriptor that another thread, which closes the socket, has kept for it; 0:
    /// none, −1: none could be had.
    pub fn give_back(&self) -> i32 {
        let me = this_thread();
        match self
            .sleeper
            .compare_exchange(me, 0, Ordering::Release, Ordering::Acquire)
        {
            Err(sleeper) if sleeper == me | CLAIMED => self.take_kept(sleeper),
            _ => 0,
        }
    }

    /// Waits for the descriptor that another thread is making, and takes it. 0: one of both has lost its patience.
    #[cold]
    fn take_kept(&self, claimed: usize) -> i32 {
        let until = time::now_ns().saturating_add(PATIENCE_NS);
        loop {
            let kept = self.take_back();
            if kept != 0 || self.sleeper.load(Ordering::Acquire) != claimed {
                return kept;
            }
            if time::now_ns() > until {
                self.sleeper.store(0, Ordering::Release);
                return 0;
            }
            memlane_sys::proc::yield_now();
        }
    }
}

fn this_thread() -> usize {
    core::ptr::from_ref(thread::current()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of chances that pass until a nap is due.
    fn skipped(naps: &ReadNaps) -> usize {
        (0..).take_while(|_| !naps.is_due()).count()
    }

    #[test]
    fn naps_in_vain_become_rare_until_one_is_of_use() {
        let naps = ReadNaps::default();
        assert!(!naps.pay(), "there was none");
        let rarer: Vec<_> = (0..9)
            .map(|_| {
                let skipped = skipped(&naps);
                naps.ended(true);
                skipped
            })
            .collect();
        assert_eq!(rarer, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
        assert!(!naps.pay());
        naps.ended(false);
        assert!(naps.pay() && skipped(&naps) == 0);
    }

    #[test]
    fn one_thread_naps_at_a_time() {
        thread::tests::set_own_locator();
        let naps = ReadNaps::default();
        let another = |can: bool| {
            let took = std::thread::scope(|scope| scope.spawn(|| naps.take()).join());
            assert_eq!(took.expect("it ends"), can);
        };
        assert!(naps.take());
        another(false);
        assert!(naps.take(), "a handler has jumped out of the first nap");
        assert!(!naps.claim(), "it is this thread that naps");
        assert_eq!(naps.give_back(), 0);
        another(true);
        assert!(!naps.take(), "the other thread's name is there");
        assert_eq!(naps.give_back(), 0, "it is another's");
        assert!(naps.claim(), "the other thread naps still");
    }

    #[test]
    fn a_claim_whose_thread_never_keeps_its_promise_is_not_waited_for_for_ever() {
        thread::tests::set_own_locator();
        let naps = ReadNaps::default();
        assert!(naps.take());
        let claimed = std::thread::scope(|scope| scope.spawn(|| naps.claim()).join());
        assert!(claimed.expect("it ends"));
        assert_eq!(naps.give_back(), 0);
        assert!(naps.take(), "nobody naps");
    }

    #[test]
    fn who_claims_a_nap_leaves_its_thread_a_descriptor() {
        thread::tests::set_own_locator();
        let naps = ReadNaps::default();
        for _ in 0..200 {
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| {
                    assert!(naps.take());
                    naps.give_back()
                });
                let mut claimed = naps.claim();
                while !claimed && !sleeper.is_finished() {
                    claimed = naps.claim();
                }
                if claimed {
                    assert!(!naps.claim(), "it is claimed");
                    naps.keep(7);
                }
                let kept = sleeper.join().expect("it ends");
                assert_eq!(kept, if claimed { 7 } else { 0 });
            });
            assert!(!naps.has_kept() && !naps.claim(), "nobody naps");
        }
    }
}
