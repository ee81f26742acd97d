//! `epoll_ctl` with a set: how a set comes into another one.

use super::ctl::asked;
use super::nested::news;
use super::*;

/// Kinds of nests that are not followed.
const NOT_FOLLOWED: u32 = ONESHOT | EXCLUSIVE | WAKEUP;

/// `epoll_ctl(2)` with a set. `None`: the kernel does the call, and nothing else is to be done.
pub(super) fn ctl(
    ep: &'static Ep,
    op: c_int,
    inner: &'static Ep,
    fd: c_int,
    event: *mut epoll_event,
) -> Option<c_int> {
    if op == libc::EPOLL_CTL_DEL {
        let _held = ep.lock.lock();
        let known = find_nest(ep, inner, fd);
        known.into_iter().for_each(|nest| end_nest(ep, nest));
        return None;
    }
    let asked = asked(event)?;
    let epfd = ep.fd.load(Ordering::Relaxed);
    let done = real!(epoll_ctl(epfd, op, fd, event));
    if done != 0 {
        return Some(done);
    }
    let is_seen = ep.nested.load(Ordering::Relaxed) != UNFOLLOWED;
    if is_seen && asked.0 & NOT_FOLLOWED == 0 && follow(inner) {
        register(ep, inner, fd, asked);
    } else {
        is_waited_for(inner);
    }
    Some(done)
}

/// Notes that from now on poll, select or another set waits on this one. `false`: its connections are on TCP.
pub(in crate::hooks::wait) fn follow(ep: &Ep) -> bool {
    let followed = ep
        .nested
        .compare_exchange(0, FOLLOWED, Ordering::AcqRel, Ordering::Acquire);
    followed.is_ok() || followed == Err(FOLLOWED)
}

/// Notes what the kernel has just registered or changed.
fn register(ep: &'static Ep, inner: &'static Ep, fd: c_int, asked: (u32, u64)) {
    let is_ready = news(inner).is_some();
    let Some(held) = ep.lock.lock() else {
        return is_waited_for(inner);
    };
    let nest = match find_nest(ep, inner, fd) {
        Some(known) => {
            known.reg.events.store(asked.0, Ordering::Relaxed);
            known.reg.data.store(asked.1, Ordering::Relaxed);
            Some(known)
        }
        None => make_nest(ep, inner, fd, asked),
    };
    let Some(nest) = nest else {
        drop(held);
        return is_waited_for(inner);
    };
    mark(&nest.reg, REG_IN_EDGE); // as the kernel does, the next wait reports the set if it is readable
    if is_ready {
        push_ready(ep, &nest.reg);
    }
    if ep.sleepers.load(Ordering::Relaxed) != 0 {
        ring_bell(ep, &process::HIDING);
    }
}
