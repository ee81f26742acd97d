//! How a wait sleeps in the kernel, and what it does with the awake connections of its set before.
//!
//! A connection that has a bell in the set ([`memlane_core::bell`]) stays awake: its peer rings. All others are parked: TCP
//! wakes the thread. A connection with a bell is parked, too, when it has received nothing for a while, so that its ring can
//! be given back.

use super::nap::nap;
use super::park::{AllParked, ask_again, park_list};
use super::waiter::{Round, Waiter, harvest, translated};
use super::*;

/// How often connections are looked at that have bells, in ms: those that have not been read from [since the last but one
/// look](lane::is_idle) are parked. A thread that relies on bells looks at its rings as often in any case.
const SWEEP_MS: u64 = 500;
/// A peer that always has news keeps a thread awake for so many tries to lie down; then its connections are parked.
const RESTLESS: u32 = 64;

impl Waiter<'_> {
    /// Parks the awake connections that no bell can report, asks for the bells of the others, and counts this thread as
    /// asleep.
    pub(super) fn park_all(&mut self) -> AllParked {
        if self.ep.below.load(Ordering::Relaxed) == 0 {
            return self.park_own();
        }
        let mut parked = self.under.lie_down_below(self.ep);
        if parked == AllParked::Yes {
            harvest(self.ep, false);
            nested::look_below(self.ep);
            parked = self.park_own();
        }
        if parked != AllParked::Yes {
            self.under.get_up();
        }
        parked
    }

    /// The same for this set alone.
    fn park_own(&mut self) -> AllParked {
        let Some(_held) = self.ep.lock.lock() else {
            return AllParked::Stuck;
        };
        let mut is_any_awake = false;
        let parked = park_list(self.ep, &self.ep.hot, |_| true, &mut is_any_awake);
        if parked != AllParked::Yes {
            return parked;
        }
        self.relies = self.may_rely();
        let is_due = self.is_sweep_due();
        if is_due || !self.relies {
            let wanted = |conn: &Conn| !self.relies || lane::is_idle(conn);
            let mut is_any_left = false;
            let parked = park_list(self.ep, &self.ep.belled, wanted, &mut is_any_left);
            is_any_awake |= is_any_left && !self.relies; // otherwise its peer rings
            if parked != AllParked::Yes {
                return parked;
            }
        }
        if !self.ep.ready_head.load(Ordering::Relaxed).is_null() {
            return AllParked::No;
        }
        if self.relies {
            if !board::lie_down(self.ep) {
                self.restless += 1;
                return AllParked::No;
            }
            self.ep.bells.sleepers.fetch_add(1, Ordering::SeqCst);
        }
        self.ep.sleepers.fetch_add(1, Ordering::SeqCst);
        self.under.is_any_awake |= is_any_awake;
        AllParked::Yes
    }

    /// May this thread rely on bells? With a signal mask it sleeps in one piece and would never look by itself.
    pub(super) fn may_rely(&self) -> bool {
        !self.masked && self.restless < RESTLESS && may_have_bells(self.ep)
    }

    /// Is it time to park connections that have been idle? The caller holds the set's lock.
    fn is_sweep_due(&self) -> bool {
        if self.ep.belled.load(Ordering::Relaxed).is_null() {
            return false;
        }
        let every = SWEEP_MS * 1000 * PROCESS.ticks_per_us.load(Ordering::Relaxed);
        let swept = &self.ep.bells.swept;
        let is_due = self.now.wrapping_sub(swept.load(Ordering::Relaxed)) >= every;
        if is_due {
            swept.store(self.now, Ordering::Relaxed);
        }
        is_due
    }

    /// Counts this thread as awake. Its senders need not ring any more, unless other threads still sleep. Returns whether the
    /// kernel may have reported a set below that has nothing.
    fn get_up(&mut self) -> bool {
        self.now = ticks();
        board::looking(self.now);
        let is_perhaps_false = self.under.get_up();
        self.get_up_here();
        is_perhaps_false
    }

    pub(super) fn get_up_here(&self) {
        let held = self.ep.lock.lock();
        self.ep.sleepers.fetch_sub(1, Ordering::SeqCst);
        if !self.relies || held.is_none() {
            return;
        }
        if self.ep.bells.sleepers.fetch_sub(1, Ordering::SeqCst) == 1 {
            board::get_up(self.ep);
        } else {
            ask_again(self.ep);
        }
    }

    /// Sleeps in the kernel. `None`: a bell has rung, so the rings must be looked at, or a look at unused rings is due.
    /// `signals` is the number of handlers that had run when the wait began.
    pub(super) fn sleep_parked(&mut self, deadline: Option<u64>, signals: u32) -> Option<c_int> {
        below::flush(self.ep);
        process::count(Counter::KernelWaits, 1);
        let start = self.now;
        let whole = self.remaining(deadline);
        // With a signal mask, the kernel would let signals in between two pieces: sleep in one piece.
        let nap = if self.masked {
            None
        } else {
            let has_bells = self.relies && !self.ep.belled.load(Ordering::Relaxed).is_null();
            let most = has_bells.then_some(SWEEP_MS);
            self.pieces.first(self.now, u64::try_from(whole).ok(), most)
        };
        let n = (self.sleep)(self.out.as_mut_ptr(), self.max(), nap.unwrap_or(whole));
        let keep = real::errno();
        let is_perhaps_false = self.get_up();
        let now = self.now;
        self.ep.asked.store(now, Ordering::Relaxed);
        if n > 0 {
            spin::slept(now.wrapping_sub(start));
        }
        real::set_errno(keep);
        if n == 0 && nap.is_some() {
            trim::look(now);
            return self.interrupted(signals);
        }
        if n <= 0 {
            return Some(n);
        }
        let mut came = n.cast_unsigned() as usize;
        if is_perhaps_false {
            came = under::drop_false(self.ep, &mut self.out[..came]);
        }
        let came = oneshot::translate(self.ep, &mut self.out[..came]);
        let reported = match came.bell_at {
            Some(at) => self.with_rings(came.left, at),
            None => came.left,
        };
        let is_over = deadline.is_some_and(|d| now >= d);
        (reported > 0 || is_over).then_some(reported as c_int)
    }

    /// Reports the rings where the bell lay among the kernel's `left` events, which is where their first news came. Returns
    /// the number of entries.
    fn with_rings(&mut self, left: usize, bell_at: usize) -> usize {
        harvest(self.ep, false);
        nested::look_below(self.ep);
        let places = self.out.len();
        let mut round = Round::behind_kernel(left);
        self.report_rings(&mut round, places, true);
        if round.filled < places {
            self.ep.turns.forget(); // both sides have reported all they had
        }
        let rings = round.filled - left;
        self.out[bell_at..round.filled].rotate_right(rings);
        round.filled
    }

    /// Sleeps in the kernel for a moment, while connections wait for room in their rings. `None`: nothing has come.
    /// `signals` is the number of handlers that had run when the wait began.
    pub(super) fn nap_parked(
        &mut self,
        deadline: Option<u64>,
        us: u64,
        signals: u32,
    ) -> Option<c_int> {
        below::flush(self.ep);
        process::count(Counter::KernelWaits, 1);
        let per_us = PROCESS.ticks_per_us.load(Ordering::Relaxed).max(1);
        let left = |d: u64| d.saturating_sub(ticks()) / per_us;
        let us = deadline.map_or(us, |d| us.min(left(d)));
        let n = if self.masked {
            (self.sleep)(
                self.out.as_mut_ptr(),
                self.max(),
                us.div_ceil(1000) as c_int,
            )
        } else {
            nap(self.ep, self.out, us)
        };
        let keep = real::errno();
        let is_perhaps_false = self.get_up();
        real::set_errno(keep);
        self.ep.asked.store(self.now, Ordering::Relaxed);
        if n > 0 {
            let mut came = n.cast_unsigned() as usize;
            if is_perhaps_false {
                came = under::drop_false(self.ep, &mut self.out[..came]);
            }
            let left = translated(self.ep, self.out, came as c_int);
            return (left > 0).then_some(left);
        }
        let is_over = deadline.is_some_and(|d| ticks() >= d);
        if n < 0 || is_over {
            return Some(n);
        }
        self.interrupted(signals)
    }
}
