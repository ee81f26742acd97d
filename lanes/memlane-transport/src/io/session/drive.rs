//! Leading: the passes of the thread that drives the session, and what it hands to others afterwards.
//!
//! [`crate::engine::leader`] says who leads and why nothing is left behind.

use super::super::client::{Core, Delivery, Queued, Reads};
use super::super::port_state::PortState;
use super::inner::{Inner, nanos};
use crate::engine::leader::Left;
use memlane_wait::mutex::lock;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

/// News that nobody listens to: the oldest are dropped.
const MOST_NEWS: usize = 1024;
/// Passes before others have their turn, when there is always something.
const TURNS: u32 = 64;
/// Looks at connections that need no kernel, between two passes of a thread that spins.
const LOOKS: u32 = 32;

/// What a thread does when it has led.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    /// It leads again, at once.
    Again,
    /// Something else: a thread that sleeps must be woken by what comes.
    Away,
    /// It sleeps.
    Sleep,
}

impl Inner {
    /// Sends what a port has submitted: as the leader, or by way of the submit queue, if another thread leads.
    pub(in super::super) fn submit(&self, staged: &mut Vec<Queued>) {
        if !self.leads_with(staged) {
            return;
        }
        let mut core = self.with_submitted(staged);
        loop {
            self.finish(core);
            match self.leadership.leave_untouched() {
                Left::Free => return,
                Left::Pending => core = self.with_queue(),
                Left::MustPark => {
                    self.passes_and(Then::Away, Reads::Busy);
                    return;
                }
            }
        }
    }

    /// One pass, if something has come, by a thread that goes on with something else.
    pub(in super::super) fn drive(&self, reads: Reads) {
        if !self.leadership.lead() {
            return;
        }
        let mut core = lock(&self.core);
        let some = core.is_time_to_pass(reads);
        drop(core);
        let left = match some {
            true => Left::MustPark,
            false => self.leadership.leave_untouched(),
        };
        match left {
            Left::Free => return,
            Left::Pending => drop(self.with_queue()),
            Left::MustPark => {}
        }
        self.passes_and(Then::Away, reads);
    }

    /// Submits, and makes one pass, unless another thread leads. The caller sleeps then.
    pub(in super::super) fn drive_and_sleep(&self, staged: &mut Vec<Queued>) {
        if self.leads_with(staged) {
            drop(self.with_submitted(staged));
            // Others may have been waiting for a while for somebody to read.
            let reads = match self.leadership.sleepers() {
                0 | 1 => Reads::Memory,
                _ => Reads::Busy,
            };
            self.passes_and(Then::Sleep, reads);
        }
    }

    /// One pass, or as many looks as cost no more. The caller leads again at once. Has something come?
    pub(in super::super) fn drive_on(&self) -> bool {
        self.leadership.lead() && self.passes_and(Then::Again, Reads::Busy)
    }

    /// By a thread that was woken: reads whatever woke it, so that it does not wake it again.
    /// `false`: another thread leads, and what woke the caller may still be there.
    pub(in super::super) fn drive_woken(&self) -> bool {
        self.drive_all(Then::Away)
    }

    pub(super) fn drive_all(&self, then: Then) -> bool {
        let leads = self.leadership.lead();
        if leads {
            self.passes_and(then, Reads::Woken);
        }
        leads
    }

    /// By the last thread that has spun, as it goes away: what comes wakes those that sleep.
    pub(in super::super) fn parks_for_all(&self, port: &Arc<PortState>) {
        if self.leadership.sleepers() == 0 {
            return;
        }
        self.becomes_poller(port);
        if self.leadership.must_park() && self.leadership.lead() {
            self.passes_and(Then::Away, Reads::Busy);
        }
    }

    /// Does the caller lead? If not, its requests are in the submit queue.
    fn leads_with(&self, staged: &mut Vec<Queued>) -> bool {
        if self.leadership.lead() {
            return true;
        }
        if staged.is_empty() {
            return false;
        }
        lock(&self.queue).append(staged);
        self.leadership.submit()
    }

    /// The core, with the leader's own requests.
    fn with_submitted(&self, staged: &mut Vec<Queued>) -> MutexGuard<'_, Core> {
        // It may have become the leader only when its requests were in the queue.
        if staged.is_empty() {
            return self.with_queue();
        }
        let mut core = lock(&self.core);
        core.take_in(staged);
        core
    }

    /// The core, with the requests of the submit queue.
    fn with_queue(&self) -> MutexGuard<'_, Core> {
        let mut core = lock(&self.core);
        self.take_queue(&mut core);
        core
    }

    pub(super) fn take_queue(&self, core: &mut Core) {
        let mut queued = std::mem::take(&mut *lock(&self.queue));
        if queued.is_empty() {
            return;
        }
        core.take_in(&mut queued);
        // Its memory is used again.
        let mut queue = lock(&self.queue);
        if queue.is_empty() {
            *queue = queued;
        }
    }

    /// By the leader: passes until it may leave, and leaves. Has something come?
    fn passes_and(&self, then: Then, first: Reads) -> bool {
        let (mut moved, mut reads) = (false, first);
        let mut core = lock(&self.core);
        loop {
            self.passes.fetch_add(1, Ordering::Relaxed);
            if then == Then::Again {
                self.look(&mut core);
            }
            core.pass(reads);
            reads = Reads::Busy;
            let parks = match then {
                Then::Again => None,
                Then::Away => Some(self.leadership.sleepers() > 0),
                Then::Sleep => Some(true),
            };
            // A server that never ends is left to the next pass.
            let mut turns = 0;
            while parks == Some(true) && turns < TURNS && !core.park() {
                core.pass(Reads::Busy);
                turns += 1;
            }
            if std::mem::take(&mut core.has_moved) {
                moved = true;
                self.moves.fetch_add(1, Ordering::Relaxed);
            }
            self.finish(core);
            match self.leadership.leave(parks) {
                Left::Free => return moved,
                Left::Pending => core = self.with_queue(),
                Left::MustPark => core = lock(&self.core),
            }
        }
    }

    /// Looks for a moment, until something has come by a connection or into the submit queue.
    fn look(&self, core: &mut Core) {
        for _ in 0..LOOKS {
            if core.has_ready(Reads::Busy) || self.leadership.is_pending() {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Unlocks the core, and gives other threads their results.
    fn finish(&self, mut core: MutexGuard<'_, Core>) {
        let told = std::mem::take(&mut core.told);
        let deadline = core.deadline().map(|deadline| core.instant(deadline));
        drop(core);
        if let Some(deadline) = deadline {
            let at = nanos(deadline.saturating_duration_since(self.started));
            if at < self.looks_again.load(Ordering::SeqCst) {
                self.looks_again.store(at, Ordering::SeqCst);
                self.wake.signal();
            }
        }
        self.tell(told);
    }

    fn tell(&self, told: Delivery) {
        if let Some(pool) = told.pool {
            // There is one in a session's life.
            let _ = self.pool.set(pool);
            lock(&self.ports).iter().for_each(|port| port.call());
        }
        if !told.news.is_empty() {
            let mut news = lock(&self.news);
            news.extend(told.news);
            let many = news.len().saturating_sub(MOST_NEWS);
            news.drain(..many);
            drop(news);
            self.has_news.signal();
        }
    }

    /// Calls the engine at once, whichever thread leads; then carries out what the engine decides.
    pub(super) fn with<R>(&self, what: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = lock(&self.core);
        let result = what(&mut core);
        let now = core.now();
        core.carry_out(now);
        core.flush(now);
        self.finish(core);
        result
    }
}
