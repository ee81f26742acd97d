//! A wait on a set of which only the kernel can have news, in a process whose connections have all gone by TCP so far.
//!
//! The general wait does the same with more instructions. They matter where each wait sleeps: a process that wakes up finds cold
//! caches, and to fetch a line of code takes longer than to execute it (docs/decisions/0045).

use super::park::AllParked;
use super::waiter::{Waiter, translated};
use super::*;
use crate::state::idle;

/// Can only the kernel have news for the set, and is nothing to be done before a sleep?
#[inline]
pub(super) fn is_quiet(ep: &Ep) -> bool {
    let is_none =
        |list: &core::sync::atomic::AtomicPtr<Reg>| list.load(Ordering::Relaxed).is_null();
    !board::any_hot()
        && idle::NEXT.load(Ordering::Relaxed) == 0
        && ep.below.load(Ordering::Relaxed) == 0
        && [&ep.ready_head, &ep.hot, &ep.belled, &ep.dirty, &ep.full]
            .into_iter()
            .all(is_none)
}

impl Waiter<'_> {
    /// Asks the kernel, or sleeps in it, on a set that [is quiet](is_quiet). `None`: that must be looked at again.
    #[inline(never)]
    pub(super) fn wait_quietly(&mut self, start: u64) -> Option<c_int> {
        let ep = self.ep;
        crate::protocol::upgrade::look(start);
        if self.timeout != 0 {
            if self.park_all() != AllParked::Yes {
                return None;
            }
            // Another thread may have put a change off, or woken a connection, before this one counted as asleep. From here on it
            // would tell the kernel at once, and ring.
            if !is_quiet(ep) {
                self.get_up_here();
                return None;
            }
            process::count(Counter::KernelWaits, 1);
        }
        let n = (self.sleep)(self.out.as_mut_ptr(), self.max(), self.timeout);
        if self.timeout != 0 {
            let keep = real::errno();
            self.get_up_here();
            real::set_errno(keep);
        }
        ep.asked.store(ticks(), Ordering::Relaxed);
        if n <= 0 {
            return Some(n);
        }
        // If only a bell has rung, a connection has woken up meanwhile.
        let left = translated(ep, self.out, n);
        (left > 0).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn a_change_that_another_thread_has_put_off_until_a_sleep_is_not_slept_over() {
        crate::state::thread::tests::set_own_locator();
        let set = memlane_sys::epoll::create().expect("a set");
        // SAFETY: zeros are valid for all of its fields, which are atomics; nobody else has this set.
        let ep: &'static Ep = Box::leak(unsafe { Box::new(core::mem::zeroed()) });
        ep.reset(set.raw());
        // Put off between the look whether the set is quiet and the moment in which this thread counts as asleep.
        // SAFETY: zeros are valid for all of its fields, which are atomics.
        let reg: &mut Reg = Box::leak(unsafe { Box::new(core::mem::zeroed()) });
        ep.dirty.store(reg, Ordering::Relaxed);
        let has_slept = Cell::new(false);
        let sleep = |_: *mut epoll_event, _, _| {
            has_slept.set(true);
            0
        };
        let mut out = [epoll_event { events: 0, u64: 0 }; 1];
        let mut waiter = Waiter::new(ep, &mut out, -1, false, &sleep);
        assert_eq!(waiter.wait_quietly(ticks()), None);
        assert!(!has_slept.get());
        assert_eq!(ep.sleepers.load(Ordering::Relaxed), 0);
        assert_eq!(ep.bells.sleepers.load(Ordering::Relaxed), 0);
    }
}
