//! The kernel's side of a set: the events that it is asked for, and the changes that it does not know yet.

use super::*;
use libc::{c_int, epoll_event};

pub(crate) const ET: u32 = libc::EPOLLET as u32;
pub(crate) const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// One of several sets is told of news. The kernel does not change such a registration: it is taken out and added again.
pub(crate) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
pub(crate) const OUT: u32 = libc::EPOLLOUT as u32 | libc::EPOLLWRNORM as u32;

/// Value of `Reg::kernel_events`: an edge-triggered registration was armed anew, so the kernel must get the mask again
/// even if it is the same.
pub(crate) const STALE: u32 = u32::MAX;

/// The base of the `data` that the kernel keeps. It is random, so that a program's own data does not look like it, and
/// is made with the first set, so that forked children have the same.
pub(crate) static BASE: AtomicU64 = AtomicU64::new(0);
/// The number of bits for the use count of a registration.
pub(crate) const GENERATION_BITS: u32 = 16;

pub(crate) fn base() -> u64 {
    let known = BASE.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let fresh = memlane_sys::proc::random_u64().unwrap_or(0) | 1;
    let raced = BASE.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed);
    raced.err().unwrap_or(fresh)
}

pub(crate) fn cookie(reg: &Reg) -> u64 {
    let number = u64::from(reg.number.load(Ordering::Relaxed));
    let generation = u64::from(reg.generation.load(Ordering::Relaxed) & 0xffff);
    base() ^ (number << GENERATION_BITS | generation)
}

/// The `data` that the kernel keeps for a registration.
pub(crate) fn kernel_data(reg: &Reg) -> u64 {
    if reg.events.load(Ordering::Relaxed) & ONESHOT != 0 {
        cookie(reg)
    } else {
        reg.data.load(Ordering::Relaxed)
    }
}

/// The events that the kernel is asked for.
pub(crate) fn for_kernel(reg: &Reg) -> u32 {
    let events = reg.events.load(Ordering::Relaxed);
    if !may_report(reg) {
        return events & (ONESHOT | ET);
    }
    // Of an edge-triggered registration, the kernel has reported already that TCP has room.
    if marked(reg, REG_FULL) && events & ET == 0 {
        return events & !OUT; // TCP has room, but the next bytes go into the ring
    }
    events
}

/// May the registration report events? One with `EPOLLONESHOT` may not after its event.
pub(crate) fn may_report(reg: &Reg) -> bool {
    reg.events.load(Ordering::Relaxed) & ONESHOT == 0 || reg.armed.load(Ordering::Relaxed) != 0
}

/// May the kernel learn of a change later, before a thread next sleeps on the set or asks it? The caller holds the
/// set's lock, so no thread begins or ends a sleep meanwhile.
pub(crate) fn may_wait(ep: &Ep, upgraded: bool) -> bool {
    upgraded
        && ep.sleepers.load(Ordering::Relaxed) == 0
        && ep.inherited.load(Ordering::Relaxed) == 0
        && ep.nested.load(Ordering::Relaxed) != UNFOLLOWED
}

/// Changes the program's view of a registration. The kernel learns of it later.
pub(crate) fn change_later(ep: &Ep, reg: &Reg, events: u32, data: u64) {
    reg.events.store(events, Ordering::Relaxed);
    reg.data.store(data, Ordering::Relaxed);
    reg.armed.store(1, Ordering::Relaxed);
    if events & (ET | ONESHOT) != 0 {
        reg.kernel_events.store(STALE, Ordering::Relaxed);
    }
    unmark(reg, REG_ABSENT);
    mark(reg, REG_IN_EDGE | REG_OUT_EDGE);
    sort_again(ep, reg);
    push_ready(ep, reg);
    push_dirty(ep, reg);
}

pub(crate) fn tell_kernel(ep: &Ep, reg: &Reg, events: u32) {
    // An error means that the program has closed one of the two descriptors: there is nothing to change.
    if reg.events.load(Ordering::Relaxed) & EXCLUSIVE == 0 {
        let _ = kernel_ctl(ep, libc::EPOLL_CTL_MOD, reg, events);
    } else if kernel_ctl(ep, libc::EPOLL_CTL_DEL, reg, 0).is_ok() {
        let _ = kernel_ctl(ep, libc::EPOLL_CTL_ADD, reg, events);
    }
    reg.kernel_events.store(events, Ordering::Relaxed);
    reg.kernel_data
        .store(reg.data.load(Ordering::Relaxed), Ordering::Relaxed);
}

pub(crate) fn kernel_ctl(ep: &Ep, op: c_int, reg: &Reg, events: u32) -> memlane_sys::Result<usize> {
    let fd = reg.fd.load(Ordering::Relaxed);
    ctl(ep, op, fd, (events, kernel_data(reg)))
}

/// Changes the kernel's registration of descriptor `fd` in the set, to these events and this `data`.
pub(super) fn ctl(
    ep: &Ep,
    op: c_int,
    fd: c_int,
    (events, data): (u32, u64),
) -> memlane_sys::Result<usize> {
    let mut e = epoll_event { events, u64: data };
    let epfd = ep.fd.load(Ordering::Relaxed);
    // SAFETY: `e` lives until the call returns.
    unsafe { memlane_sys::syscall!(libc::SYS_epoll_ctl, epfd, op, fd, &raw mut e) }
}

/// Gives the kernel the changes that it does not know yet.
pub(crate) fn flush_dirty(ep: &Ep) {
    if ep.dirty.load(Ordering::Relaxed).is_null() {
        return;
    }
    // One change at a time: other threads get the lock in between.
    while let Some(_held) = ep.lock.lock() {
        let Some(reg) = reg_ref(ep.dirty.load(Ordering::Relaxed)) else {
            return;
        };
        ep.dirty
            .store(reg.next_dirty.load(Ordering::Relaxed), Ordering::Relaxed);
        unmark(reg, REG_DIRTY);
        if marked(reg, REG_ABSENT) {
            let _ = kernel_ctl(ep, libc::EPOLL_CTL_DEL, reg, 0);
            take_out(ep, reg);
            continue;
        }
        let events = for_kernel(reg);
        let same = events == reg.kernel_events.load(Ordering::Relaxed)
            && reg.data.load(Ordering::Relaxed) == reg.kernel_data.load(Ordering::Relaxed);
        if !same {
            tell_kernel(ep, reg, events);
        }
    }
}
