//! The background poller: a thread that leads when no port does. It keeps paths alive, and does what is due.

use super::super::address::{Epoll, Interest};
use super::drive::Then;
use super::inner::{Inner, nanos};
use super::poller::WatchedBy;
use memlane_wait::mutex::lock;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// While ports lead, it looks this often whether they still do.
const WHILE_PORTS_LEAD: Duration = Duration::from_millis(10);
/// While ports sleep and the poller is away for a moment, it looks this often whether the poller is back.
const TICK: Duration = Duration::from_micros(500);
/// While the poller sleeps, it is woken by what comes. This is for what it leaves then.
const WHILE_POLLED: Duration = Duration::from_millis(100);

impl Inner {
    /// The thread's whole life.
    pub(super) fn background(&self) {
        let Ok(epoll) = Epoll::new() else {
            return;
        };
        if epoll.add(&self.wake, 0, Interest::READ).is_err() {
            return;
        }
        let (mut passes_before, mut with_sockets) = (0, false);
        let mut ready = Vec::new();
        while !self.closed.load(Ordering::Acquire) {
            let _ = self.drive_all(Then::Sleep);
            let passes = self.passes.load(Ordering::Relaxed);
            // Its own pass is one.
            let by_others = passes != passes_before + 1;
            passes_before = passes;
            let mut watched_by = self.watched_by();
            if watched_by == WatchedBy::PollerAway && !by_others {
                self.hand_over(&mut lock(&self.poller));
                watched_by = WatchedBy::Poller;
            }
            let with = !by_others && watched_by == WatchedBy::Nobody;
            if with != with_sockets {
                match with {
                    true => drop(epoll.add(&*self.sockets, 1, Interest::READ)),
                    false => epoll.remove(&*self.sockets),
                }
                with_sockets = with;
            }
            let most = match (watched_by, by_others) {
                (WatchedBy::PollerAway, _) => Some(TICK),
                (WatchedBy::Poller, _) => Some(WHILE_POLLED),
                (WatchedBy::Nobody, true) => Some(WHILE_PORTS_LEAD),
                (WatchedBy::Nobody, false) => None,
            };
            let ticks = watched_by == WatchedBy::PollerAway;
            self.ticking.store(ticks, Ordering::SeqCst);
            let limit = match !ticks && self.poller_went_away() {
                true => Some(Duration::ZERO),
                false => self.until_deadline(most),
            };
            epoll.wait(limit, &mut ready);
            self.wake.drain();
        }
    }

    /// A poller went away before it could see that nobody ticks: it has not signalled.
    fn poller_went_away(&self) -> bool {
        fence(Ordering::SeqCst);
        self.watched_by() == WatchedBy::PollerAway
    }

    /// How long this thread may sleep. A thread that makes a nearer deadline sees this, and wakes it.
    fn until_deadline(&self, most: Option<Duration>) -> Option<Duration> {
        // For ever, until it is known: so no thread that leads meanwhile misses that this one sleeps.
        self.looks_again.store(u64::MAX, Ordering::SeqCst);
        let Ok(core) = self.core.try_lock() else {
            // The thread that has the lock wakes this one, when it unlocks.
            return most;
        };
        let deadline = core.deadline().map(|deadline| core.instant(deadline));
        let now = Instant::now();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let limit = [left, most].into_iter().flatten().min();
        if let Some(limit) = limit {
            let at = now.saturating_duration_since(self.started) + limit;
            self.looks_again.store(nanos(at), Ordering::SeqCst);
        }
        limit
    }
}
