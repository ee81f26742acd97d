//! The two lists of awake connections: *belled* are those that stay awake while a thread sleeps on the set, *hot* the others. The
//! set's lock guards both.

use super::*;

/// Notes that the connection is awake: in the list of those that stay awake while a thread sleeps, or in that of the others.
pub(crate) fn push_hot(ep: &Ep, reg: &Reg) {
    if marked(reg, REG_HOT) {
        if marked(reg, REG_BELLED) == stays_awake(reg) {
            return;
        }
        drop_hot(ep, reg);
    }
    mark(reg, REG_HOT);
    if stays_awake(reg) {
        mark(reg, REG_BELLED);
    }
    let head = awake_list(ep, reg);
    let first = head.load(Ordering::Relaxed);
    reg.next_hot.store(first, Ordering::Relaxed);
    reg.prev_hot.store(core::ptr::null_mut(), Ordering::Relaxed);
    if let Some(first) = reg_ref(first) {
        first.prev_hot.store(ptr(reg), Ordering::Relaxed);
    }
    head.store(ptr(reg), Ordering::Relaxed);
}

/// The list of awake connections that this registration is in.
fn awake_list<'a>(ep: &'a Ep, reg: &Reg) -> &'a AtomicPtr<Reg> {
    if marked(reg, REG_BELLED) {
        &ep.belled
    } else {
        &ep.hot
    }
}

pub(crate) fn drop_hot(ep: &Ep, reg: &Reg) {
    if !marked(reg, REG_HOT) {
        return;
    }
    let (prev, next) = (
        reg.prev_hot.load(Ordering::Relaxed),
        reg.next_hot.load(Ordering::Relaxed),
    );
    match reg_ref(prev) {
        Some(prev) => prev.next_hot.store(next, Ordering::Relaxed),
        None => awake_list(ep, reg).store(next, Ordering::Relaxed),
    }
    if let Some(next) = reg_ref(next) {
        next.prev_hot.store(prev, Ordering::Relaxed);
    }
    unmark(reg, REG_HOT | REG_BELLED);
}

/// A connection of the set that is awake, probably the one that woke last.
pub(crate) fn first_awake(ep: &Ep) -> Option<&'static Reg> {
    let first = |list: &AtomicPtr<Reg>| reg_ref(list.load(Ordering::Relaxed));
    first(&ep.hot).or_else(|| first(&ep.belled))
}

/// Puts an awake connection into the other list if its registration has changed so.
pub(crate) fn sort_again(ep: &Ep, reg: &Reg) {
    if marked(reg, REG_HOT) {
        push_hot(ep, reg);
    }
}

/// May the connection of this registration stay awake while a thread sleeps on the set?
pub(crate) fn stays_awake(reg: &Reg) -> bool {
    marked(reg, REG_BELL)
        && !marked(reg, REG_ABSENT)
        && waits_for_input(reg)
        && reg.events.load(Ordering::Relaxed) & ONESHOT == 0
}

/// Does the program wait for bytes of the connection? A pool whose threads read takes the interest away while one of them does.
pub(crate) fn waits_for_input(reg: &Reg) -> bool {
    const INPUT: u32 = libc::EPOLLIN as u32 | libc::EPOLLRDNORM as u32;
    reg.events.load(Ordering::Relaxed) & INPUT != 0
}
