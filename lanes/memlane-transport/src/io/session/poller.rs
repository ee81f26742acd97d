//! Which sleeping thread the sockets wake: the *poller*.
//!
//! The sockets of a session are in one epoll set, and that set is in the epoll set of one port at most, the poller's.
//! The thread that brings a result wakes the port that sleeps for it. When the poller goes away while others sleep, one
//! of those becomes the poller; but if it usually comes back at once, the background poller only sees to it that it
//! does.

use super::super::address::Interest;
use super::super::port_state::PortState;
use super::inner::{Inner, NOBODY, Poller, nanos};
use memlane_wait::mutex::lock;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// A port that is back after so long was away for a moment only.
const QUICK: Duration = Duration::from_micros(30);

/// Who sees to it that what comes is read while ports sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WatchedBy {
    /// Nobody need: no port sleeps.
    Nobody,
    /// The poller: it sleeps, with the sockets in its epoll set.
    Poller,
    /// The poller is away.
    PollerAway,
}

impl Inner {
    /// A port that spins sees what comes: no other one is to be woken by it.
    pub(in super::super) fn becomes_poller(&self, port: &Arc<PortState>) {
        if self.is_poller(port) {
            return;
        }
        let mut poller = lock(&self.poller);
        if let Some((other, true)) = &poller.port {
            other.epoll.remove(&*self.sockets);
        }
        self.set_poller(&mut poller, port, false);
    }

    /// The port is the poller, or none is.
    fn is_poller(&self, port: &PortState) -> bool {
        [NOBODY, port.number].contains(&self.poller_number.load(Ordering::Acquire))
    }

    fn set_poller(&self, poller: &mut Poller, port: &Arc<PortState>, added: bool) {
        self.poller_number.store(port.number, Ordering::Release);
        poller.port = Some((Arc::clone(port), added));
    }

    /// A port wants something again.
    pub(in super::super) fn is_back(&self, port: &PortState) {
        // It matters only to ports that sleep.
        if self.leadership.sleepers() == 0 {
            return;
        }
        let away = nanos(self.started.elapsed()).saturating_sub(port.left.load(Ordering::Relaxed));
        let quick = away < nanos(QUICK);
        port.is_quick.store(quick, Ordering::Relaxed);
    }

    /// A port is about to sleep. If no poller sleeps, and no thread spins, it becomes the poller.
    pub(in super::super) fn asleep(&self, port: &Arc<PortState>) {
        let mut poller = lock(&self.poller);
        if poller
            .asleep
            .insert(port.number, Arc::clone(port))
            .is_none()
        {
            self.leadership.sleep();
        }
        port.sleeps.store(true, Ordering::Relaxed);
        let watched = poller.port.as_ref().is_some_and(|(other, _)| {
            other.number != port.number && poller.asleep.contains_key(&other.number)
        });
        // The last thread that spins hands over when it stops.
        if !watched && self.leadership.spinners() == 0 {
            self.polls(&mut poller, port);
        }
    }

    fn is_awake(&self, poller: &mut Poller, port: &PortState) {
        port.sleeps.store(false, Ordering::Relaxed);
        if poller.asleep.remove(&port.number).is_some() {
            self.leadership.wake();
        }
    }

    /// A port is awake. If it was the poller, and nobody spins, another one that sleeps becomes the poller; but if it will
    /// be back at once, the background poller sees to it that it is.
    pub(in super::super) fn awake(&self, port: &Arc<PortState>) {
        if port.sleeps.load(Ordering::Relaxed) {
            self.is_awake(&mut lock(&self.poller), port);
        }
        // Orders what this thread has done as a leader before the looks below: see `ticking`.
        fence(Ordering::SeqCst);
        if self.leadership.sleepers() == 0 || self.leadership.spinners() > 0 {
            return;
        }
        port.left
            .store(nanos(self.started.elapsed()), Ordering::Relaxed);
        if !self.is_poller(port) {
            return;
        }
        if port.is_quick.load(Ordering::Relaxed) {
            if !self.ticking.load(Ordering::SeqCst) {
                self.wake.signal();
            }
            return;
        }
        self.hand_over(&mut lock(&self.poller));
    }

    /// The first port that sleeps becomes the poller.
    pub(super) fn hand_over(&self, poller: &mut Poller) {
        if let Some(other) = poller.asleep.values().next().cloned() {
            self.polls(poller, &other);
        }
    }

    fn polls(&self, poller: &mut Poller, port: &Arc<PortState>) {
        match &poller.port {
            Some((other, true)) if other.number == port.number => return,
            Some((other, true)) => other.epoll.remove(&*self.sockets),
            _ => {}
        }
        let added = port.epoll.add(&*self.sockets, 1, Interest::READ).is_ok();
        self.set_poller(poller, port, added);
    }

    /// A port is no more.
    pub(in super::super) fn forget(&self, port: &Arc<PortState>) {
        let mut poller = lock(&self.poller);
        self.is_awake(&mut poller, port);
        self.remove_poller(&mut poller, port);
        drop(poller);
        lock(&self.ports).retain(|other| other.number != port.number);
    }

    fn remove_poller(&self, poller: &mut Poller, port: &Arc<PortState>) {
        if let Some((other, added)) = &poller.port
            && other.number == port.number
        {
            if *added {
                other.epoll.remove(&*self.sockets);
            }
            poller.port = None;
            self.poller_number.store(NOBODY, Ordering::Release);
        }
    }

    /// Who sees to it that what comes is read?
    pub(super) fn watched_by(&self) -> WatchedBy {
        let poller = lock(&self.poller);
        if poller.asleep.is_empty() {
            return WatchedBy::Nobody;
        }
        let sleeps = |(port, added): &(Arc<PortState>, bool)| {
            *added && poller.asleep.contains_key(&port.number)
        };
        match poller.port.as_ref().is_some_and(sleeps) {
            true => WatchedBy::Poller,
            false => WatchedBy::PollerAway,
        }
    }
}
