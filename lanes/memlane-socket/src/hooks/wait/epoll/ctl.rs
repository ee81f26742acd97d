//! `epoll_ctl`: passes what the program asks for to the kernel, at once or, while no thread sleeps on the set, later.

use super::*;
use memlane_core::sync::{Cpu, Words as _};

/// `epoll_ctl(2)`.
pub fn ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    ctl_of_connection(epfd, op, fd, event).unwrap_or_else(|| real!(epoll_ctl(epfd, op, fd, event)))
}

/// `epoll_ctl(2)` of a connection in a set that is followed. `None`: it is the kernel's alone.
pub fn ctl_of_connection(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Option<c_int> {
    let Some(ep) = process::ep_of(epfd) else {
        // A set whose creation was not seen: its waits cannot see rings.
        if op == libc::EPOLL_CTL_ADD {
            is_waited_for_unseen(fd);
        }
        return None;
    };
    if let Some(inner) = process::ep_of(fd) {
        return nest::ctl(ep, op, inner, fd, event);
    }
    let conn = process::conn_of(fd)?;
    crate::hooks::calls::touch(&conn);
    match op {
        libc::EPOLL_CTL_ADD => Some(add(ep, &conn, fd, event)),
        libc::EPOLL_CTL_MOD => Some(modify(ep, &conn, fd, event)),
        libc::EPOLL_CTL_DEL => Some(delete(ep, &conn, fd, event)),
        _ => None,
    }
}

pub(super) fn find<'a>(ep: &Ep, conn: &'a Conn, fd: c_int) -> Option<&'a Reg> {
    conn.regs.iter().find(|r| {
        core::ptr::eq(r.ep.load(Ordering::Acquire), ep) && r.fd.load(Ordering::Relaxed) == fd
    })
}

/// Handles a descriptor that something waits on which cannot see rings.
fn is_waited_for_unseen(fd: c_int) {
    if let Some(ep) = process::ep_of(fd) {
        is_waited_for(ep);
    } else if let Some(conn) = process::conn_of(fd) {
        crate::protocol::upgrade::bar(&conn, Reason::WAIT_KIND);
    }
}

/// Handles a set that something waits on which cannot see rings: its connections, and those of sets in it, stay on TCP.
pub fn is_waited_for(ep: &'static Ep) {
    if ep.nested.swap(UNFOLLOWED, Ordering::AcqRel) != UNFOLLOWED {
        bar_all(ep, Reason::WAIT_KIND);
        flush_dirty(ep);
        tell_of_news(ep);
        nests_in(ep).filter_map(Nest::inner).for_each(is_waited_for);
    }
}

/// Makes the kernel report the set if a ring has something that is still to be read.
fn tell_of_news(ep: &'static Ep) {
    harvest(ep, false);
    if nested::news(ep).is_some()
        && let Some(_held) = ep.lock.lock()
    {
        ring_bell(ep, &process::HIDING);
    }
}

/// Keeps connections in this set on TCP from now on.
pub(super) fn bar_all(ep: &Ep, why: Reason) {
    if ep.regs.load(Ordering::Relaxed) == 0 {
        return;
    }
    process::for_live(|conn| {
        if conn
            .regs
            .iter()
            .any(|r| core::ptr::eq(r.ep.load(Ordering::Relaxed), ep))
        {
            crate::protocol::upgrade::bar(conn, why);
        }
    });
}

pub(super) fn asked(event: *mut epoll_event) -> Option<(u32, u64)> {
    if event.is_null() || crate::iov::is_nowhere(event.cast(), size_of::<epoll_event>()) {
        return None;
    }
    // SAFETY: the program's structure, as it promised its call.
    let e = unsafe { event.read_unaligned() };
    Some((e.events, e.u64))
}

pub(super) fn delete(ep: &'static Ep, conn: &ConnRef, fd: c_int, event: *mut epoll_event) -> c_int {
    // One lock covers the look-up and the change: another thread may be waiting on the set, or changing it, meanwhile.
    let held = ep.lock.lock();
    let Some(reg) = held.as_ref().and_then(|_| find(ep, conn, fd)) else {
        drop(held);
        let epfd = ep.fd.load(Ordering::Relaxed);
        return real!(epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, event));
    };
    if marked(reg, REG_ABSENT) {
        real::set_errno(libc::ENOENT);
        return -1;
    }
    if may_wait(ep, conn.upgraded()) {
        mark(reg, REG_ABSENT);
        push_dirty(ep, reg);
        process::count(Counter::CtlAvoided, 1);
        return 0;
    }
    if let Err(e) = kernel_ctl(ep, libc::EPOLL_CTL_DEL, reg, 0) {
        real::set_errno(e.0);
        return -1;
    }
    take_out(ep, reg);
    0
}

/// Adds what is registered already, or what the program deleted a moment ago without the kernel knowing. The caller
/// holds the set's lock. `None`: there is no such registration (any more).
fn add_again(ep: &Ep, conn: &ConnRef, fd: c_int, events: u32, data: u64) -> Option<c_int> {
    let reg = find(ep, conn, fd)?;
    if !marked(reg, REG_ABSENT) {
        real::set_errno(libc::EEXIST);
        return Some(-1);
    }
    let is_exclusive = (events | reg.events.load(Ordering::Relaxed)) & EXCLUSIVE != 0;
    if events & NOT_OURS == 0 && !is_exclusive && may_wait(ep, conn.upgraded()) {
        change_later(ep, reg, events, data);
        process::count(Counter::CtlAvoided, 1);
        return Some(0);
    }
    let _ = kernel_ctl(ep, libc::EPOLL_CTL_DEL, reg, 0);
    take_out(ep, reg);
    None
}

pub(super) fn add(ep: &'static Ep, conn: &ConnRef, fd: c_int, event: *mut epoll_event) -> c_int {
    let (Some((events, data)), Some(held)) = (asked(event), ep.lock.lock()) else {
        return add_unseen(ep, conn, fd, event);
    };
    note_out(conn, events);
    if let Some(done) = add_again(ep, conn, fd, events, data) {
        return done;
    }
    let follows = events & NOT_OURS == 0 && ep.nested.load(Ordering::Relaxed) != UNFOLLOWED;
    conn.seen.fetch_or(SEEN_IN_SET, Ordering::Relaxed);
    let Some(reg) = follows.then(|| conn.regs.claim(ep)).flatten() else {
        drop(held);
        return add_unseen(ep, conn, fd, event);
    };
    // Complete before the call: another thread may get the event before the call returns.
    reg.fd.store(fd, Ordering::Relaxed);
    reg.data.store(data, Ordering::Relaxed);
    reg.events.store(events, Ordering::Relaxed);
    reg.kernel_events.store(events, Ordering::Relaxed);
    reg.kernel_data.store(data, Ordering::Relaxed);
    reg.armed.store(1, Ordering::Relaxed);
    reg.generation.fetch_add(1, Ordering::Relaxed);
    reg.marks
        .store(REG_IN_EDGE | REG_OUT_EDGE, Ordering::Relaxed);
    if let Err(e) = kernel_ctl(ep, libc::EPOLL_CTL_ADD, reg, events) {
        reg.ep.store(core::ptr::null_mut(), Ordering::Release);
        real::set_errno(e.0);
        return -1;
    }
    ep.regs.fetch_add(1, Ordering::Relaxed);
    conn.last_waiter.set(Sleeper::on_set(ep));
    look_at_ring(ep, conn, reg);
    drop(held);
    join(ep, conn, reg);
    0
}

/// Makes the next wait look whether the ring has something to report for a new registration, or a changed one. Of a connection
/// without a lane, only the kernel can have news: the wait stays a quiet one. The caller holds the set's lock.
fn look_at_ring(ep: &Ep, conn: &Conn, reg: &Reg) {
    if conn.upgraded() {
        push_ready(ep, reg);
    }
}

/// Adds a registration that the readiness of rings cannot follow.
fn add_unseen(ep: &Ep, conn: &ConnRef, fd: c_int, event: *mut epoll_event) -> c_int {
    let epfd = ep.fd.load(Ordering::Relaxed);
    let r = real!(epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, event));
    if r == 0 {
        crate::protocol::upgrade::bar(conn, Reason::WAIT_KIND);
    }
    r
}

/// Handles an awake connection that has come into a set, or for which the program waits again. Where threads sleep on the set, its
/// sender rings for them. If it cannot, this parks the connection. With unread bytes in the ring, it wakes the threads.
pub(super) fn join(ep: &Ep, conn: &ConnRef, reg: &Reg) {
    if !conn.upgraded() {
        return;
    }
    lane::want_ready(conn);
    let bell = board::bell_of(conn);
    let lacks_room = lacks_room(conn, reg.events.load(Ordering::Relaxed));
    let (asleep, stays) = {
        let Some(_held) = ep.lock.lock() else { return };
        if !belongs_to(reg, ep) {
            return; // another thread has deleted it already
        }
        if lacks_room {
            push_full(ep, reg);
            push_dirty(ep, reg);
        }
        let stays = stays_awake_with(ep, conn, reg, bell.as_ref());
        let asleep = ep.sleepers.load(Ordering::Relaxed) != 0;
        if !asleep {
            push_hot(ep, reg);
            push_ready(ep, reg);
        }
        (asleep, stays)
    };
    if stays {
        Cpu::full_fence(); // the sender looks whether to ring after it has published
    }
    if asleep && !stays && conn.rx_mode() == RxMode::Hot {
        let parked = crate::state::guard::lock_rx(conn).map(|mut held| lane::park(conn, &mut held));
        if parked != Some(Parked::Yes) {
            kick(ep, reg);
        }
    } else if asleep && lane::readable(conn) {
        kick(ep, reg);
    }
}

/// Is there too little room for a send? Only a program that waits until it can write, and whose sends may block, is kept from the last
/// quarter of the window.
fn lacks_room(conn: &Conn, events: u32) -> bool {
    match events & OUT != 0 {
        true => room::fills(conn),
        false => room::is_full(conn),
    }
}

/// Notes that the program waits until it can write, if it asks for that.
fn note_out(conn: &Conn, events: u32) {
    if events & OUT != 0 && conn.seen.load(Ordering::Relaxed) & SEEN_OUT == 0 {
        conn.seen.fetch_or(SEEN_OUT, Ordering::Relaxed);
    }
}

/// Keeps an awake connection awake though threads sleep on the set, now or later, if its sender rings this bell for them. The
/// caller holds the set's lock.
fn stays_awake_with(ep: &Ep, conn: &Conn, reg: &Reg, bell: Option<&Bell>) -> bool {
    conn.rx_mode() == RxMode::Hot
        && bell.is_some()
        && be_awake(
            (ep, reg),
            only_set(&conn.regs),
            bell,
            board::hang,
            board::count_on,
        )
}

/// Wakes a thread that sleeps on the set, so that it looks at this registration's ring.
pub(super) fn kick(ep: &Ep, reg: &Reg) {
    let Some(_held) = ep.lock.lock() else { return };
    if belongs_to(reg, ep) {
        push_ready(ep, reg);
        ring_bell(ep, &process::HIDING);
    }
}

/// Why the kernel would not change this registration.
fn not_to_be_modified(reg: &Reg, events: u32) -> Option<c_int> {
    let is_exclusive = |events| events & EXCLUSIVE != 0;
    if is_exclusive(events) {
        return Some(libc::EINVAL);
    }
    if marked(reg, REG_ABSENT) {
        return Some(libc::ENOENT);
    }
    is_exclusive(reg.events.load(Ordering::Relaxed)).then_some(libc::EINVAL)
}

pub(super) fn modify(ep: &'static Ep, conn: &ConnRef, fd: c_int, event: *mut epoll_event) -> c_int {
    let epfd = ep.fd.load(Ordering::Relaxed);
    let asked = asked(event);
    let lacks_room = asked.is_some_and(|(events, _)| {
        note_out(conn, events);
        lacks_room(conn, events)
    });
    let (Some((events, data)), Some(held)) = (asked, ep.lock.lock()) else {
        return real!(epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, event));
    };
    let Some(reg) = find(ep, conn, fd) else {
        drop(held);
        return real!(epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, event));
    };
    if events & NOT_OURS != 0 {
        drop(held);
        crate::protocol::upgrade::bar(conn, Reason::WAIT_KIND);
    } else {
        if let Some(error) = not_to_be_modified(reg, events) {
            real::set_errno(error);
            return -1;
        }
        if may_wait(ep, conn.upgraded()) {
            change_later(ep, reg, events, data);
            if lacks_room {
                push_full(ep, reg);
            }
            process::count(Counter::CtlAvoided, 1);
            return 0;
        }
        if oneshot::modify_now(ep, reg, events, data) < 0 {
            return -1;
        }
        mark(reg, REG_IN_EDGE | REG_OUT_EDGE);
        look_at_ring(ep, conn, reg);
        drop(held);
        join(ep, conn, reg);
        return 0;
    }
    real!(epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, event))
}
