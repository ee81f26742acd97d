//! A wait on a set of which only the kernel can have news, in a process whose connections have all gone by TCP so far.
//!
//! The general wait does the same with twice as many instructions. They matter where each wait sleeps: a process that wakes up
//! finds cold caches, and fetching a line of code takes longer than executing it (docs/decisions/0045).

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
