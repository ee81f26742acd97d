//! The lists of a set, guarded by the set's lock (`remove` and `set_of` take it themselves).
//!
//! A registration belongs to one set or to none, and only the lists of its own set link it. It leaves its set with all
//! its links, under that set's lock. So a thread that comes from a connection, and not from a list, must read `Reg::ep`
//! again once it has the lock ([`set_of`] does).

use super::*;
use crate::state::thread::LockGuard;

pub(super) fn ep_ref<'a>(p: *mut Ep) -> Option<&'a Ep> {
    // SAFETY: null, or an address in the pool of sets, which is never unmapped.
    unsafe { p.as_ref() }
}

/// The set that a registration belongs to, with the set's lock.
pub(crate) fn set_of(reg: &Reg) -> Option<(&'static Ep, LockGuard<'static>)> {
    set_by(reg, Lock::lock)
}

/// The set that a registration belongs to, if its lock is free.
pub(crate) fn try_set_of(reg: &Reg) -> Option<(&'static Ep, LockGuard<'static>)> {
    set_by(reg, Lock::try_lock)
}

fn set_by(
    reg: &Reg,
    lock: impl Fn(&'static Lock) -> Option<LockGuard<'static>>,
) -> Option<(&'static Ep, LockGuard<'static>)> {
    let ep: &'static Ep = ep_ref(reg.ep.load(Ordering::Acquire))?;
    let held = lock(&ep.lock)?;
    belongs_to(reg, ep).then_some((ep, held))
}

/// Does the registration belong to this set? The answer is certain only under the set's lock.
pub(crate) fn belongs_to(reg: &Reg, ep: &Ep) -> bool {
    core::ptr::eq(reg.ep.load(Ordering::Acquire), ep)
}

pub(crate) fn marked(reg: &Reg, bit: u32) -> bool {
    reg.marks.load(Ordering::Relaxed) & bit != 0
}

pub(crate) fn mark(reg: &Reg, bits: u32) {
    reg.marks
        .store(reg.marks.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
}

pub(crate) fn unmark(reg: &Reg, bits: u32) {
    reg.marks
        .store(reg.marks.load(Ordering::Relaxed) & !bits, Ordering::Relaxed);
}

/// Counts news, for the sets that this one lies in.
pub(crate) fn count_arrival(ep: &Ep) {
    let arrivals = ep.arrivals.load(Ordering::Relaxed);
    ep.arrivals
        .store(arrivals.wrapping_add(1), Ordering::Relaxed);
}

/// Puts a registration that has news at the end of the ready list, unless it is there.
pub(crate) fn push_ready(ep: &Ep, reg: &Reg) {
    count_arrival(ep);
    look_again_at(ep, reg);
}

/// Puts a registration at the end of the ready list, unless it is there, to look at it again: it has no news.
pub(crate) fn look_again_at(ep: &Ep, reg: &Reg) {
    if marked(reg, REG_READY) {
        return;
    }
    mark(reg, REG_READY);
    ep.ready_len.store(ready_len(ep) + 1, Ordering::Relaxed);
    reg.next_ready
        .store(core::ptr::null_mut(), Ordering::Relaxed);
    match reg_ref(ep.ready_tail.load(Ordering::Relaxed)) {
        Some(last) => last.next_ready.store(ptr(reg), Ordering::Relaxed),
        None => ep.ready_head.store(ptr(reg), Ordering::Relaxed),
    }
    ep.ready_tail.store(ptr(reg), Ordering::Relaxed);
}

pub(crate) fn pop_ready(ep: &Ep) -> Option<&'static Reg> {
    let reg = reg_ref(ep.ready_head.load(Ordering::Relaxed))?;
    let next = reg.next_ready.load(Ordering::Relaxed);
    ep.ready_head.store(next, Ordering::Relaxed);
    if next.is_null() {
        ep.ready_tail
            .store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    unmark(reg, REG_READY);
    ep.ready_len.store(ready_len(ep) - 1, Ordering::Relaxed);
    Some(reg)
}

/// The number of registrations in the ready list.
pub(crate) fn ready_len(ep: &Ep) -> u32 {
    ep.ready_len.load(Ordering::Relaxed)
}

pub(crate) fn push_dirty(ep: &Ep, reg: &Reg) {
    if marked(reg, REG_DIRTY) {
        return;
    }
    mark(reg, REG_DIRTY);
    reg.next_dirty
        .store(ep.dirty.load(Ordering::Relaxed), Ordering::Relaxed);
    ep.dirty.store(ptr(reg), Ordering::Relaxed);
}

/// Takes a registration out of a set, if it still is in this set.
pub(crate) fn remove(ep: &Ep, reg: &Reg) {
    if let Some(_held) = ep.lock.lock()
        && belongs_to(reg, ep)
    {
        take_out(ep, reg);
    }
}

/// Takes a registration out of its set.
pub(crate) fn take_out(ep: &Ep, reg: &Reg) {
    drop_hot(ep, reg);
    drop_linked(&ep.dirty, reg, REG_DIRTY, |r| &r.next_dirty);
    drop_linked(&ep.full, reg, REG_FULL, |r| &r.next_full);
    if marked(reg, REG_READY) {
        drop_linked(&ep.ready_head, reg, REG_READY, |r| &r.next_ready);
        ep.ready_len.store(ready_len(ep) - 1, Ordering::Relaxed);
        // The tail may have been this registration: walk to the new end.
        let mut last = core::ptr::null_mut();
        let mut at = ep.ready_head.load(Ordering::Relaxed);
        while let Some(r) = reg_ref(at) {
            last = at;
            at = r.next_ready.load(Ordering::Relaxed);
        }
        ep.ready_tail.store(last, Ordering::Relaxed);
    }
    reg.fd.store(-1, Ordering::Relaxed);
    reg.ep.store(core::ptr::null_mut(), Ordering::Release);
    ep.regs.fetch_sub(1, Ordering::Relaxed);
}

pub(crate) fn drop_linked(
    head: &AtomicPtr<Reg>,
    reg: &Reg,
    bit: u32,
    next: impl Fn(&Reg) -> &AtomicPtr<Reg>,
) {
    if !marked(reg, bit) {
        return;
    }
    unmark(reg, bit);
    let mut link = head;
    while let Some(r) = reg_ref(link.load(Ordering::Relaxed)) {
        if core::ptr::eq(r, reg) {
            link.store(next(r).load(Ordering::Relaxed), Ordering::Relaxed);
            return;
        }
        link = next(r);
    }
}
