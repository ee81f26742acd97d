//! Many ports that wait at a time. To pass the driving on from each to the next costs more than it brings: while there
//! is a crowd, the background thread drives for all, and ports sleep on their bells alone.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// So long nobody but one port has waited: it is no crowd any more.
const ALONE: Duration = Duration::from_millis(20);

/// All words are read by ports and the background thread.
#[derive(Debug)]
pub(super) struct Crowd {
    /// Ports do not drive. Set by ports, taken back by the background thread. Who sets or reads it with the count of
    /// sleepers does both in one order with the others (`SeqCst`); otherwise it is a hint.
    on: AtomicBool,
    /// Ports that sleep, or are about to. Written by them.
    sleepers: AtomicUsize,
    /// The port that waited last, and how often that was another one than before. Written by ports; only told.
    last: AtomicU64,
    turns: AtomicU64,
}

/// What the background thread has seen of it.
#[derive(Debug)]
pub(super) struct Seen {
    turns: u64,
    at: Instant,
}

impl Crowd {
    pub(super) fn new() -> Crowd {
        Crowd {
            on: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            last: AtomicU64::new(u64::MAX),
            turns: AtomicU64::new(0),
        }
    }

    /// Two ports wait at a time. Is that new?
    pub(super) fn gathers(&self) -> bool {
        !self.is_there() && !self.on.swap(true, Ordering::SeqCst)
    }

    pub(super) fn is_there(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// A port is about to sleep on its bell. `false`: there is no crowd, and nobody would ring.
    pub(super) fn joins(&self, port: u64) -> bool {
        if !self.is_there() {
            return false;
        }
        if self.last.swap(port, Ordering::Relaxed) != port {
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Either this sees that it is over, or who says so sees this one.
        let there = self.on.load(Ordering::SeqCst);
        if !there {
            self.leaves();
        }
        there
    }

    /// A port that had joined is awake.
    pub(super) fn leaves(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn seen(&self) -> Seen {
        Seen {
            turns: self.turns.load(Ordering::Relaxed),
            at: Instant::now(),
        }
    }

    /// By the background thread, now and then: is it over? Nobody sleeps then who counts on that thread.
    pub(super) fn dissolves(&self, seen: &mut Seen) -> bool {
        let now = self.seen();
        if now.turns != seen.turns {
            *seen = now;
            return false;
        }
        if now.at - seen.at < ALONE {
            return false;
        }
        *seen = now;
        self.on.store(false, Ordering::SeqCst);
        let over = self.sleepers.load(Ordering::SeqCst) == 0;
        self.on.store(!over, Ordering::SeqCst);
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_one_port_was_alone_for_a_while_and_nobody_sleeps() {
        let crowd = Crowd::new();
        assert!(!crowd.joins(1), "there is none");
        assert!(crowd.gathers() && !crowd.gathers());
        assert!(crowd.joins(1) && crowd.joins(2));
        crowd.leaves();
        let mut seen = crowd.seen();
        let later = |seen: &mut Seen| seen.at = seen.at.checked_sub(ALONE).expect("a time");
        assert!(!crowd.dissolves(&mut seen), "too soon");
        later(&mut seen);
        assert!(!crowd.dissolves(&mut seen), "one sleeps");
        assert!(crowd.is_there());
        crowd.leaves();
        assert!(crowd.joins(1));
        crowd.leaves();
        later(&mut seen);
        assert!(!crowd.dissolves(&mut seen), "another one than before");
        assert!(crowd.joins(1));
        crowd.leaves();
        later(&mut seen);
        assert!(crowd.dissolves(&mut seen));
        assert!(!crowd.is_there() && !crowd.joins(1));
    }

    #[test]
    fn whoever_sleeps_is_seen_by_who_ends_it() {
        let (crowd, asleep) = (Crowd::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let port = scope.spawn(|| {
                for _ in 0..500_000 {
                    if crowd.joins(1) {
                        asleep.store(true, Ordering::SeqCst);
                        std::hint::spin_loop();
                        asleep.store(false, Ordering::SeqCst);
                        crowd.leaves();
                    }
                }
            });
            while !port.is_finished() {
                crowd.gathers();
                let mut seen = crowd.seen();
                seen.at = seen.at.checked_sub(ALONE).expect("a time");
                // While it makes up its mind, it may look as if it were over.
                let over = crowd.dissolves(&mut seen);
                let sleeps = asleep.load(Ordering::SeqCst);
                assert!(!(over && sleeps), "ended while somebody slept");
            }
        });
    }
}
