//! The background poller: a thread that leads when no port does.
//!
//! It keeps paths alive, and does what is due. While several threads wait at a time, it leads for all of them
//! ([`shared`](crate::engine::leader)): passing the lead from each thread to the next costs more than it brings.

use super::super::address::{Epoll, Interest};
use super::drive::Then;
use super::inner::{Inner, nanos};
use super::poller::WatchedBy;
use super::turns::Seen;
use memlane_wait::mutex::lock;
use memlane_wait::spin::{Policy, Spin};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// While ports lead, it looks this often whether they still do.
const WHILE_PORTS_LEAD: Duration = Duration::from_millis(10);
/// While ports sleep and the poller is away for a moment, it looks this often whether the poller is back.
const TICK: Duration = Duration::from_micros(500);
/// While the poller sleeps, it is woken by what comes. This is for what it leaves then.
const WHILE_POLLED: Duration = Duration::from_millis(100);

impl Inner {
    /// Two ports wait at a time.
    pub(in super::super) fn share(&self) {
        if self.leadership.share() {
            self.wake.signal();
        }
    }

    /// A port is about to sleep until a result wakes it; `false`: nobody would lead.
    pub(in super::super) fn follow(&self, port: u64) -> bool {
        if !self.leadership.is_shared() {
            return false;
        }
        self.turns.note(port);
        self.leadership.follow()
    }

    /// Does the background poller lead for all no longer? It stops when only one port waits, and that one is awake.
    fn unshares(&self, seen: &mut Seen) -> bool {
        self.turns.is_alone(seen) && self.leadership.unshare()
    }

    /// Leads for all as long as something comes, and for a while longer, until there is no need any more.
    fn drives_for_all(&self, spin: &mut Spin) {
        let Some(_turn) = self.spins() else {
            return;
        };
        let mut seen = self.turns.seen();
        spin.start(Duration::MAX);
        while !self.closed.load(Ordering::Acquire) {
            let moved = self.drive_on();
            let over = !moved && spin.is_over();
            if self.unshares(&mut seen) || over {
                break;
            }
            if moved {
                spin.found();
                spin.start(Duration::MAX);
            } else {
                spin.pause();
            }
        }
    }

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
        let (mut spin, mut seen) = (Spin::new(Policy::default()), self.turns.seen());
        while !self.closed.load(Ordering::Acquire) {
            let shared = self.leadership.is_shared() && !self.unshares(&mut seen);
            if shared {
                self.drives_for_all(&mut spin);
            }
            self.drive_all(Then::Sleep);
            let passes = self.passes.load(Ordering::Relaxed);
            // Its own pass is one.
            let by_others = passes != passes_before + 1 && !shared;
            passes_before = passes;
            let mut watched_by = self.watched_by();
            if watched_by == WatchedBy::PollerAway && !by_others {
                self.hand_over(&mut lock(&self.poller));
                watched_by = WatchedBy::Poller;
            }
            let with = shared || (!by_others && watched_by == WatchedBy::Nobody);
            if with != with_sockets {
                match with {
                    true => drop(epoll.add(&*self.sockets, 1, Interest::READ)),
                    false => epoll.remove(&*self.sockets),
                }
                with_sockets = with;
            }
            let most = match (watched_by, by_others) {
                _ if shared => Some(WHILE_PORTS_LEAD),
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
