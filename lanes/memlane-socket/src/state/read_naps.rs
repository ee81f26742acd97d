//! When the reads of a connection nap (see `lane::naps`), and when they park at once.

use crate::state::thread;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

/// The most naps that a connection skips after naps in vain.
const SKIP_MOST: u32 = 64;

/// The naps of the reads of one connection. Written relaxed by the threads that read: a lost update costs a nap.
#[derive(Debug, Default)]
pub struct ReadNaps {
    /// The state of the thread that naps; 0: none does. It stays there if a handler has jumped out of the nap.
    sleeper: AtomicUsize,
    /// 1: the last nap was ended by news.
    useful: AtomicU32,
    /// The number of naps in vain in a row.
    vain: AtomicU32,
    /// The number of chances to nap that are skipped from now on.
    skip: AtomicU32,
    /// A descriptor of the library for the socket, which another thread has closed under a nap; 0: none. Written by that
    /// thread before it wakes the one that naps, which takes it.
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

    /// Does another thread nap?
    pub fn is_another_asleep(&self) -> bool {
        let sleeper = self.sleeper.load(Ordering::Acquire);
        sleeper != 0 && sleeper != this_thread()
    }

    /// Is a descriptor left that nobody has taken?
    pub fn has_kept(&self) -> bool {
        self.kept.load(Ordering::Acquire) != 0
    }

    /// Leaves a descriptor for the thread that naps.
    pub fn keep(&self, fd: i32) {
        self.kept.store(fd, Ordering::Release);
    }

    /// Takes the descriptor that another thread has left; 0: none.
    pub fn take_kept(&self) -> i32 {
        self.kept.swap(0, Ordering::AcqRel)
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

    /// This thread naps no more.
    pub fn give_back(&self) {
        self.sleeper.store(0, Ordering::Release);
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
            let other = || (naps.take(), naps.is_another_asleep());
            let took = std::thread::scope(|scope| scope.spawn(other).join());
            assert_eq!(took.expect("it ends"), (can, !can));
        };
        assert!(naps.take());
        another(false);
        assert!(naps.take(), "a handler has jumped out of the first nap");
        assert!(!naps.is_another_asleep());
        naps.give_back();
        another(true);
        assert!(!naps.take() && naps.is_another_asleep());
    }
}
