//! epoll over two lanes.
//!
//! The program's epoll set is the kernel's own, always. Beside it, an [`Ep`]
//! keeps for each *registered connection* what the program asked for. A wait
//! looks at the connections whose peers have set a ready bit (not at all of
//! them), spins a little, then parks every awake connection of the set and
//! sleeps in the kernel, where TCP wakes it.
//!
//! Two intrusive lists per set, guarded by its lock: *ready* (may have
//! something to report) and *hot* (awake: to be parked before a sleep); and
//! *dirty*: registrations whose `EPOLL_CTL_MOD` the kernel has not been told,
//! because nobody has slept since.
//!
//! Lock order: a connection's `rx_lock` is never waited for while … it is:
//! parking takes `rx_lock` under the set's lock, so whoever holds `rx_lock`
//! only *tries* a set's lock (`may_wake`).

use crate::conn::{
    Conn, REG_ABSENT, REG_DIRTY, REG_HOT, REG_IN_EDGE, REG_OUT_EDGE, REG_READY, Reg, Use, mode,
};
use crate::group;
use crate::lane::{self, Parked};
use crate::process::{self, PROCESS};
use crate::real;
use crate::spin::{self, Spun};
use crate::thread::Lock;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use libc::{c_int, epoll_event};
use memlane_core::reason::Reason;
use memlane_core::stats::Counter;
use memlane_sys::time::ticks;

const IN: u32 = libc::EPOLLIN as u32 | libc::EPOLLRDNORM as u32;
const OUT: u32 = libc::EPOLLOUT as u32 | libc::EPOLLWRNORM as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
const WAKEUP: u32 = libc::EPOLLWAKEUP as u32;

/// `Reg::kernel_events`: an edge-triggered registration was armed anew, so the
/// kernel must be told even if the mask is the same.
const STALE: u32 = u32::MAX;

/// While the rings keep a wait busy, the kernel's side of the set (listeners,
/// timers, plain sockets, ends of streams) is looked at this often.
const KERNEL_EVERY_US: u64 = 50;
/// … and at least every so many waits.
const KERNEL_EVERY_WAITS: u32 = 64;

/// One epoll set.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Ep {
    /// Descriptors that refer to it; 0 = free.
    pub refs: AtomicU32,
    /// Guards the lists and `sleepers`.
    pub lock: Lock,
    /// Its descriptor.
    pub fd: AtomicI32,
    /// Threads asleep in the kernel on it.
    pub sleepers: AtomicU32,
    /// 1 = a fork has given it to two processes.
    pub inherited: AtomicU32,
    /// 1 = it is itself in another set.
    pub nested: AtomicU32,
    /// Registrations of connections.
    pub regs: AtomicU32,
    /// `ticks` at which the kernel was last asked.
    asked: AtomicU64,
    /// Waits answered from the rings since.
    unasked: AtomicU32,
    ready_head: AtomicPtr<Reg>,
    ready_tail: AtomicPtr<Reg>,
    hot: AtomicPtr<Reg>,
    dirty: AtomicPtr<Reg>,
}

impl Ep {
    /// Makes a slot ready for descriptor `fd`.
    pub fn reset(&self, fd: i32) {
        self.lock.reset();
        self.fd.store(fd, Ordering::Relaxed);
        for word in [
            &self.sleepers,
            &self.inherited,
            &self.nested,
            &self.regs,
            &self.unasked,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for list in [&self.ready_head, &self.ready_tail, &self.hot, &self.dirty] {
            list.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
    }

    /// The last descriptor is closed: its registrations are void.
    pub fn release(&self) {
        process::for_live(|conn| {
            for reg in &conn.regs {
                if core::ptr::eq(reg.ep.load(Ordering::Relaxed), self) {
                    remove(self, reg);
                }
            }
        });
    }
}

fn reg_ref<'a>(p: *mut Reg) -> Option<&'a Reg> {
    // SAFETY: null, or a Reg inside the pool of connections, which is never unmapped.
    unsafe { p.as_ref() }
}

fn reg_conn(reg: &Reg) -> Option<&'static Conn> {
    // SAFETY: set when the connection was made; the pool is never unmapped.
    unsafe { reg.conn.load(Ordering::Relaxed).as_ref() }
}

fn ptr(reg: &Reg) -> *mut Reg {
    core::ptr::from_ref(reg).cast_mut()
}

// --- lists (the set's lock is held) -----------------------------------------

fn marked(reg: &Reg, bit: u32) -> bool {
    reg.marks.load(Ordering::Relaxed) & bit != 0
}

fn mark(reg: &Reg, bits: u32) {
    reg.marks
        .store(reg.marks.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
}

fn unmark(reg: &Reg, bits: u32) {
    reg.marks
        .store(reg.marks.load(Ordering::Relaxed) & !bits, Ordering::Relaxed);
}

fn push_ready(ep: &Ep, reg: &Reg) {
    if marked(reg, REG_READY) {
        return;
    }
    mark(reg, REG_READY);
    reg.next_ready
        .store(core::ptr::null_mut(), Ordering::Relaxed);
    match reg_ref(ep.ready_tail.load(Ordering::Relaxed)) {
        Some(last) => last.next_ready.store(ptr(reg), Ordering::Relaxed),
        None => ep.ready_head.store(ptr(reg), Ordering::Relaxed),
    }
    ep.ready_tail.store(ptr(reg), Ordering::Relaxed);
}

fn pop_ready(ep: &Ep) -> Option<&'static Reg> {
    let reg = reg_ref(ep.ready_head.load(Ordering::Relaxed))?;
    let next = reg.next_ready.load(Ordering::Relaxed);
    ep.ready_head.store(next, Ordering::Relaxed);
    if next.is_null() {
        ep.ready_tail
            .store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    unmark(reg, REG_READY);
    Some(reg)
}

fn push_hot(ep: &Ep, reg: &Reg) {
    if marked(reg, REG_HOT) {
        return;
    }
    mark(reg, REG_HOT);
    let first = ep.hot.load(Ordering::Relaxed);
    reg.next_hot.store(first, Ordering::Relaxed);
    reg.prev_hot.store(core::ptr::null_mut(), Ordering::Relaxed);
    if let Some(first) = reg_ref(first) {
        first.prev_hot.store(ptr(reg), Ordering::Relaxed);
    }
    ep.hot.store(ptr(reg), Ordering::Relaxed);
}

fn drop_hot(ep: &Ep, reg: &Reg) {
    if !marked(reg, REG_HOT) {
        return;
    }
    unmark(reg, REG_HOT);
    let (prev, next) = (
        reg.prev_hot.load(Ordering::Relaxed),
        reg.next_hot.load(Ordering::Relaxed),
    );
    match reg_ref(prev) {
        Some(prev) => prev.next_hot.store(next, Ordering::Relaxed),
        None => ep.hot.store(next, Ordering::Relaxed),
    }
    if let Some(next) = reg_ref(next) {
        next.prev_hot.store(prev, Ordering::Relaxed);
    }
}

fn push_dirty(ep: &Ep, reg: &Reg) {
    if marked(reg, REG_DIRTY) {
        return;
    }
    mark(reg, REG_DIRTY);
    reg.next_dirty
        .store(ep.dirty.load(Ordering::Relaxed), Ordering::Relaxed);
    ep.dirty.store(ptr(reg), Ordering::Relaxed);
}

/// Takes a registration out of a set.
fn remove(ep: &Ep, reg: &Reg) {
    let Some(_held) = ep.lock.lock() else { return };
    drop_hot(ep, reg);
    drop_linked(&ep.dirty, reg, REG_DIRTY, |r| &r.next_dirty);
    if marked(reg, REG_READY) {
        drop_linked(&ep.ready_head, reg, REG_READY, |r| &r.next_ready);
        // The tail may have been this one: walk to the new end.
        let mut last = core::ptr::null_mut();
        let mut at = ep.ready_head.load(Ordering::Relaxed);
        while let Some(r) = reg_ref(at) {
            last = at;
            at = r.next_ready.load(Ordering::Relaxed);
        }
        ep.ready_tail.store(last, Ordering::Relaxed);
    }
    reg.ep.store(core::ptr::null_mut(), Ordering::Release);
    ep.regs.fetch_sub(1, Ordering::Relaxed);
}

fn drop_linked(head: &AtomicPtr<Reg>, reg: &Reg, bit: u32, next: impl Fn(&Reg) -> &AtomicPtr<Reg>) {
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

// --- what lanes ask ----------------------------------------------------------

/// Is the connection in any epoll set?
pub fn is_registered(conn: &Conn) -> bool {
    conn.regs
        .iter()
        .any(|r| !r.ep.load(Ordering::Relaxed).is_null())
}

/// The next wait on a set with this connection looks at it again. No lane lock is held.
pub fn look_again(conn: &Conn) {
    for reg in &conn.regs {
        // SAFETY: null, or an address in the pool of sets, which is never unmapped.
        if let Some(ep) = unsafe { reg.ep.load(Ordering::Acquire).as_ref() }
            && let Some(_held) = ep.lock.lock()
        {
            push_ready(ep, reg);
        }
    }
}

/// May the connection wake up (`COLD` → `HOT`)? Not while a thread sleeps on a
/// set that it is in. If so it is put on the sets' hot lists. `rx_lock` is held:
/// the sets' locks are only tried.
pub fn may_wake(conn: &Conn) -> bool {
    for reg in &conn.regs {
        // SAFETY: null, or an address in the pool of sets, which is never unmapped.
        let Some(ep) = (unsafe { reg.ep.load(Ordering::Acquire).as_ref() }) else {
            continue;
        };
        let ok = match ep.lock.try_lock() {
            Some(_held)
                if ep.sleepers.load(Ordering::Relaxed) == 0
                    && ep.inherited.load(Ordering::Relaxed) == 0 =>
            {
                push_hot(ep, reg);
                mark(reg, REG_IN_EDGE);
                push_ready(ep, reg);
                true
            }
            _ => false,
        };
        if !ok {
            return false; // those already on a hot list are found cold when that set parks
        }
    }
    true
}

/// Descriptor `n` of `conn` is being closed: the kernel drops its registrations
/// when the last descriptor goes; a number that goes while others stay keeps
/// them (but not those that the program has deleted before).
pub fn drop_fd(conn: &Conn, n: i32) {
    let last = conn.refs.load(Ordering::Acquire) <= 1;
    for reg in &conn.regs {
        // SAFETY: null, or an address in the pool of sets, which is never unmapped.
        let Some(ep) = (unsafe { reg.ep.load(Ordering::Acquire).as_ref() }) else {
            continue;
        };
        if last {
            remove(ep, reg);
        } else if reg.fd.load(Ordering::Relaxed) == n && marked(reg, REG_ABSENT) {
            kernel_ctl(ep, libc::EPOLL_CTL_DEL, reg, 0);
            remove(ep, reg);
        }
    }
}

/// Before a fork: the kernel's sets are as the program believes them to be.
pub fn flush(ep: &Ep) {
    flush_dirty(ep);
}

// --- epoll_ctl -----------------------------------------------------------------

/// `epoll_ctl(2)`.
pub fn ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let Some(ep) = process::ep_of(epfd) else {
        // A set that we did not see being made: its waits cannot see rings.
        if op == libc::EPOLL_CTL_ADD
            && let Some(conn) = process::conn_of(fd)
        {
            crate::upgrade::bar(&conn, Reason::WAIT_KIND);
        }
        return real!(epoll_ctl(epfd, op, fd, event));
    };
    if let Some(inner) = process::ep_of(fd) {
        is_waited_for(inner);
        return real!(epoll_ctl(epfd, op, fd, event));
    }
    let Some(conn) = process::conn_of(fd) else {
        return real!(epoll_ctl(epfd, op, fd, event));
    };
    crate::calls::touch(&conn);
    match op {
        libc::EPOLL_CTL_ADD => add(ep, &conn, fd, event),
        libc::EPOLL_CTL_MOD => modify(ep, &conn, fd, event),
        libc::EPOLL_CTL_DEL => delete(ep, &conn, fd, event),
        _ => real!(epoll_ctl(epfd, op, fd, event)),
    }
}

fn find<'a>(ep: &Ep, conn: &'a Conn, fd: c_int) -> Option<&'a Reg> {
    conn.regs.iter().find(|r| {
        core::ptr::eq(r.ep.load(Ordering::Acquire), ep) && r.fd.load(Ordering::Relaxed) == fd
    })
}

/// The set is itself waited for, by something that cannot look into it.
pub fn is_waited_for(ep: &Ep) {
    if ep.nested.swap(1, Ordering::Relaxed) == 0 {
        bar_all(ep, Reason::WAIT_KIND);
    }
}

/// Connections in this set stay on TCP from now on.
fn bar_all(ep: &Ep, why: Reason) {
    if ep.regs.load(Ordering::Relaxed) == 0 {
        return;
    }
    process::for_live(|conn| {
        if conn
            .regs
            .iter()
            .any(|r| core::ptr::eq(r.ep.load(Ordering::Relaxed), ep))
        {
            crate::upgrade::bar(conn, why);
        }
    });
}

fn asked(event: *mut epoll_event) -> Option<(u32, u64)> {
    if event.is_null() {
        return None;
    }
    // SAFETY: the program passed it to a call that has just read it without EFAULT.
    let e = unsafe { event.read_unaligned() };
    Some((e.events, e.u64))
}

/// May the kernel hear of a change later, before somebody next sleeps on (or
/// asks) the set? The set's lock is held: sleepers come and go under it only.
fn may_wait(ep: &Ep, conn: &Conn) -> bool {
    conn.upgraded()
        && ep.sleepers.load(Ordering::Relaxed) == 0
        && ep.inherited.load(Ordering::Relaxed) == 0
}

/// The program's view of a registration changes; the kernel is told later.
fn change_later(ep: &Ep, reg: &Reg, events: u32, data: u64) {
    reg.events.store(events, Ordering::Relaxed);
    reg.data.store(data, Ordering::Relaxed);
    if events & ET != 0 {
        reg.kernel_events.store(STALE, Ordering::Relaxed);
    }
    unmark(reg, REG_ABSENT);
    mark(reg, REG_IN_EDGE | REG_OUT_EDGE);
    push_ready(ep, reg);
    push_dirty(ep, reg);
    process::count(Counter::CtlAvoided, 1);
}

fn delete(ep: &'static Ep, conn: &Use, fd: c_int, event: *mut epoll_event) -> c_int {
    let epfd = ep.fd.load(Ordering::Relaxed);
    let Some(reg) = find(ep, conn, fd) else {
        return real!(epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, event));
    };
    {
        let Some(_held) = ep.lock.lock() else {
            return real!(epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, event));
        };
        if marked(reg, REG_ABSENT) {
            real::set_errno(libc::ENOENT);
            return -1;
        }
        if may_wait(ep, conn) {
            mark(reg, REG_ABSENT);
            push_dirty(ep, reg);
            process::count(Counter::CtlAvoided, 1);
            return 0;
        }
    }
    let r = real!(epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, event));
    if r == 0 {
        remove(ep, reg);
    }
    r
}

/// The program adds what it has deleted a moment ago: the kernel never knew.
fn add_again(ep: &'static Ep, conn: &Use, fd: c_int, event: *mut epoll_event) -> Option<c_int> {
    let reg = find(ep, conn, fd)?;
    let (events, data) = asked(event)?;
    let _held = ep.lock.lock()?;
    if !marked(reg, REG_ABSENT) {
        real::set_errno(libc::EEXIST);
        return Some(-1);
    }
    if events & (ONESHOT | EXCLUSIVE | WAKEUP) == 0 && may_wait(ep, conn) {
        change_later(ep, reg, events, data);
        return Some(0);
    }
    drop(_held);
    kernel_ctl(ep, libc::EPOLL_CTL_DEL, reg, 0);
    remove(ep, reg);
    None
}

fn add(ep: &'static Ep, conn: &Use, fd: c_int, event: *mut epoll_event) -> c_int {
    if let Some(done) = add_again(ep, conn, fd, event) {
        return done;
    }
    let r = real!(epoll_ctl(
        ep.fd.load(Ordering::Relaxed),
        libc::EPOLL_CTL_ADD,
        fd,
        event
    ));
    if r != 0 {
        return r;
    }
    let Some((events, data)) = asked(event) else {
        return r;
    };
    if events & (ONESHOT | EXCLUSIVE | WAKEUP) != 0 || ep.nested.load(Ordering::Relaxed) != 0 {
        crate::upgrade::bar(conn, Reason::WAIT_KIND);
        return r;
    }
    let Some(reg) = conn
        .regs
        .iter()
        .find(|r| r.ep.load(Ordering::Acquire).is_null())
    else {
        crate::upgrade::bar(conn, Reason::WAIT_KIND);
        return r;
    };
    {
        let Some(_held) = ep.lock.lock() else {
            return r;
        };
        reg.fd.store(fd, Ordering::Relaxed);
        reg.data.store(data, Ordering::Relaxed);
        reg.events.store(events, Ordering::Relaxed);
        reg.kernel_events.store(events, Ordering::Relaxed);
        reg.kernel_data.store(data, Ordering::Relaxed);
        reg.marks
            .store(REG_IN_EDGE | REG_OUT_EDGE, Ordering::Relaxed);
        reg.ep
            .store(core::ptr::from_ref(ep).cast_mut(), Ordering::Release);
        ep.regs.fetch_add(1, Ordering::Relaxed);
        push_ready(ep, reg);
    }
    join(ep, conn, reg);
    r
}

/// An awake connection has come into a set: if threads sleep there, it must be
/// parked (or, with bytes unread in the ring, they must be woken).
fn join(ep: &Ep, conn: &Use, reg: &Reg) {
    if !conn.upgraded() {
        return;
    }
    lane::want_ready(conn);
    let asleep = {
        let Some(_held) = ep.lock.lock() else { return };
        if ep.sleepers.load(Ordering::Relaxed) == 0 {
            push_hot(ep, reg);
            push_ready(ep, reg);
            false
        } else {
            true
        }
    };
    if asleep && conn.rx_mode() == mode::HOT {
        let parked = lane::lock_rx(conn).map(|held| lane::park(conn, &held));
        if parked != Some(Parked::Yes) {
            kick(ep, reg);
        }
    } else if asleep && lane::readable(conn) {
        kick(ep, reg);
    }
}

/// Wakes the threads that sleep on the set: a TCP socket is (almost) always
/// writable, so asking for that too makes the kernel report it. The waiter
/// sorts out what is really there.
fn kick(ep: &Ep, reg: &Reg) {
    // Under the lock: a waiter that wakes finds the lists complete.
    let Some(_held) = ep.lock.lock() else { return };
    push_ready(ep, reg);
    push_dirty(ep, reg);
    let events = reg.events.load(Ordering::Relaxed);
    tell_kernel(ep, reg, (events | OUT) & !ET);
}

fn tell_kernel(ep: &Ep, reg: &Reg, events: u32) {
    kernel_ctl(ep, libc::EPOLL_CTL_MOD, reg, events);
    reg.kernel_events.store(events, Ordering::Relaxed);
    reg.kernel_data
        .store(reg.data.load(Ordering::Relaxed), Ordering::Relaxed);
}

fn kernel_ctl(ep: &Ep, op: c_int, reg: &Reg, events: u32) {
    let mut e = epoll_event {
        events,
        u64: reg.data.load(Ordering::Relaxed),
    };
    let (epfd, fd) = (
        ep.fd.load(Ordering::Relaxed),
        reg.fd.load(Ordering::Relaxed),
    );
    // SAFETY: `e` lives over the call. An error means that the program has closed one of the two: nothing to tell.
    let _ = unsafe { memlane_sys::syscall!(libc::SYS_epoll_ctl, epfd, op, fd, &raw mut e) };
}

/// Tells the kernel what it was not told yet.
fn flush_dirty(ep: &Ep) {
    if ep.dirty.load(Ordering::Relaxed).is_null() {
        return;
    }
    loop {
        let gone = {
            let Some(_held) = ep.lock.lock() else { return };
            let Some(reg) = reg_ref(ep.dirty.load(Ordering::Relaxed)) else {
                return;
            };
            ep.dirty
                .store(reg.next_dirty.load(Ordering::Relaxed), Ordering::Relaxed);
            unmark(reg, REG_DIRTY);
            if marked(reg, REG_ABSENT) {
                kernel_ctl(ep, libc::EPOLL_CTL_DEL, reg, 0);
                reg
            } else {
                let events = reg.events.load(Ordering::Relaxed);
                let same = events == reg.kernel_events.load(Ordering::Relaxed)
                    && reg.data.load(Ordering::Relaxed) == reg.kernel_data.load(Ordering::Relaxed);
                if !same {
                    tell_kernel(ep, reg, events);
                }
                continue;
            }
        };
        remove(ep, gone);
    }
}

fn modify(ep: &'static Ep, conn: &Use, fd: c_int, event: *mut epoll_event) -> c_int {
    let epfd = ep.fd.load(Ordering::Relaxed);
    let (Some(reg), Some((events, data))) = (find(ep, conn, fd), asked(event)) else {
        return real!(epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, event));
    };
    if events & (ONESHOT | EXCLUSIVE | WAKEUP) != 0 {
        crate::upgrade::bar(conn, Reason::WAIT_KIND);
    } else if let Some(_held) = ep.lock.lock() {
        if marked(reg, REG_ABSENT) {
            real::set_errno(libc::ENOENT);
            return -1;
        }
        if may_wait(ep, conn) {
            change_later(ep, reg, events, data);
            return 0;
        }
    }
    let r = real!(epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, event));
    if r == 0 {
        {
            let Some(_held) = ep.lock.lock() else {
                return r;
            };
            for (word, value) in [(&reg.events, events), (&reg.kernel_events, events)] {
                word.store(value, Ordering::Relaxed);
            }
            reg.data.store(data, Ordering::Relaxed);
            reg.kernel_data.store(data, Ordering::Relaxed);
            mark(reg, REG_IN_EDGE | REG_OUT_EDGE);
            push_ready(ep, reg);
        }
        join(ep, conn, reg);
    }
    r
}

// --- epoll_wait ------------------------------------------------------------------

/// How a wait sleeps in the kernel: the program's own call with another timeout (ms).
pub type Sleep<'a> = &'a dyn Fn(*mut epoll_event, c_int, c_int) -> c_int;

/// `epoll_wait(2)` and its relatives. `masked`: the call comes with a signal
/// mask, which only the kernel can honour: no spinning then.
pub fn wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    masked: bool,
    sleep: Sleep<'_>,
) -> c_int {
    let Some(ep) = process::ep_of(epfd) else {
        return sleep(events, max, timeout);
    };
    if ep.inherited.load(Ordering::Relaxed) != 0 {
        process::for_live(|conn| {
            if is_registered(conn) {
                crate::calls::touch_conn(conn);
            }
        });
    }
    if max <= 0 || events.is_null() {
        return sleep(events, max, timeout);
    }
    // SAFETY: the program's array of `max` entries, as it promised its call.
    let out = unsafe { core::slice::from_raw_parts_mut(events, max.cast_unsigned() as usize) };
    Waiter {
        ep,
        out,
        timeout,
        masked,
        sleep,
    }
    .run()
}

struct Waiter<'a> {
    ep: &'static Ep,
    out: &'a mut [epoll_event],
    timeout: c_int,
    masked: bool,
    sleep: Sleep<'a>,
}

impl Waiter<'_> {
    fn run(&mut self) -> c_int {
        let start = ticks();
        let deadline = self.deadline(start);
        loop {
            let n = self.collect();
            if n > 0 {
                return self.with_kernel(n, start);
            }
            if self.timeout == 0 {
                flush_dirty(self.ep);
                return (self.sleep)(self.out.as_mut_ptr(), self.max(), 0);
            }
            if !self.ep.hot.load(Ordering::Relaxed).is_null() {
                let n = self.ask_kernel();
                if n != 0 {
                    return n;
                }
                match self.spin(deadline) {
                    Spun::Ready => continue,
                    Spun::Signal => {
                        real::set_errno(libc::EINTR);
                        return -1;
                    }
                    Spun::Nothing => {}
                }
            }
            match self.park_all() {
                AllParked::No => {}
                AllParked::Yes => {
                    if let Some(n) = self.sleep_parked(deadline) {
                        return n;
                    }
                }
                AllParked::Stuck => {
                    let n = (self.sleep)(self.out.as_mut_ptr(), self.max(), 1);
                    if n != 0 || deadline.is_some_and(|d| ticks() >= d) {
                        return n;
                    }
                }
            }
        }
    }

    /// Before a spin: what the kernel has, if it was not asked lately.
    fn ask_kernel(&mut self) -> c_int {
        let every = KERNEL_EVERY_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
        let now = ticks();
        if now.wrapping_sub(self.ep.asked.load(Ordering::Relaxed)) < every {
            return 0;
        }
        self.ep.asked.store(now, Ordering::Relaxed);
        flush_dirty(self.ep);
        (self.sleep)(self.out.as_mut_ptr(), self.max(), 0)
    }

    fn max(&self) -> c_int {
        c_int::try_from(self.out.len()).unwrap_or(c_int::MAX)
    }

    fn deadline(&self, start: u64) -> Option<u64> {
        let ms = u64::try_from(self.timeout).ok()?;
        Some(start.saturating_add(ms * 1000 * PROCESS.ticks_per_us.load(Ordering::Relaxed)))
    }

    /// Fills `out` from the ready list; returns the number of entries.
    fn collect(&mut self) -> usize {
        if group::any_hot() {
            group::harvest(|conn| {
                for reg in &conn.regs {
                    // SAFETY: null, or an address in the pool of sets, which is never unmapped.
                    if let Some(ep) = unsafe { reg.ep.load(Ordering::Acquire).as_ref() }
                        && let Some(_held) = ep.lock.lock()
                    {
                        mark(reg, REG_IN_EDGE);
                        push_ready(ep, reg);
                    }
                }
            });
        }
        if self.ep.ready_head.load(Ordering::Relaxed).is_null() {
            return 0;
        }
        let Some(_held) = self.ep.lock.lock() else {
            return 0;
        };
        let mut n = 0;
        let mut again: [*mut Reg; 64] = [core::ptr::null_mut(); 64];
        let mut keep = 0;
        while n < self.out.len() && keep < again.len() {
            let Some(reg) = pop_ready(self.ep) else { break };
            let Some(conn) = reg_conn(reg) else { continue };
            let asked = reg.events.load(Ordering::Relaxed);
            let report = report(conn, reg, asked);
            if report == 0 {
                continue;
            }
            self.out[n] = epoll_event {
                events: report,
                u64: reg.data.load(Ordering::Relaxed),
            };
            n += 1;
            if asked & ET == 0 {
                again[keep] = ptr(reg);
                keep += 1;
            }
        }
        for reg in again.iter().take(keep).filter_map(|p| reg_ref(*p)) {
            push_ready(self.ep, reg);
        }
        n
    }

    /// `n` entries came from the rings: is it time to ask the kernel too?
    fn with_kernel(&mut self, n: usize, now: u64) -> c_int {
        let ep = self.ep;
        let every = KERNEL_EVERY_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
        let waits = ep.unasked.fetch_add(1, Ordering::Relaxed) + 1;
        let due = waits >= KERNEL_EVERY_WAITS
            || now.wrapping_sub(ep.asked.load(Ordering::Relaxed)) > every;
        if !due || n == self.out.len() {
            process::count(Counter::WaitsAvoided, 1);
            return c_int::try_from(n).unwrap_or(c_int::MAX);
        }
        ep.asked.store(now, Ordering::Relaxed);
        ep.unasked.store(0, Ordering::Relaxed);
        flush_dirty(self.ep);
        let (ours, rest) = self.out.split_at_mut(n);
        let got = (self.sleep)(
            rest.as_mut_ptr(),
            c_int::try_from(rest.len()).unwrap_or(c_int::MAX),
            0,
        );
        let mut total = n;
        for i in 0..usize::try_from(got).unwrap_or(0) {
            let e = rest[i];
            let (bits, data) = (e.events, e.u64);
            // One entry per registration, as the kernel does it.
            if let Some(twin) = ours.iter_mut().find(|o| { o.u64 } == data) {
                twin.events |= bits;
            } else {
                rest[total - n] = e;
                total += 1;
            }
        }
        c_int::try_from(total).unwrap_or(c_int::MAX)
    }

    fn spin(&mut self, deadline: Option<u64>) -> Spun {
        if self.masked {
            return Spun::Nothing;
        }
        let mut budget = spin::budget();
        if let Some(deadline) = deadline {
            budget = budget.min(deadline.saturating_sub(ticks()));
        }
        if budget == 0 || self.peers_here() {
            return Spun::Nothing;
        }
        let ep = self.ep;
        let spun = spin::until(budget, || {
            group::any_ready() || !ep.ready_head.load(Ordering::Relaxed).is_null()
        });
        let counter = if spun == Spun::Ready {
            Counter::SpinHits
        } else {
            Counter::SpinMisses
        };
        process::count(counter, 1);
        spun
    }

    /// Was the peer of the connection last woken seen on this very CPU?
    fn peers_here(&self) -> bool {
        let Some(conn) = reg_ref(self.ep.hot.load(Ordering::Relaxed)).and_then(reg_conn) else {
            return false;
        };
        if conn.rx_mode() != mode::HOT {
            return false;
        }
        // SAFETY: HOT: mapped.
        let theirs = unsafe { conn.rx_words() }
            .tx
            .0
            .tx_cpu
            .load(Ordering::Relaxed);
        let here = theirs == spin::cpu_mark();
        if here {
            memlane_sys::proc::yield_now();
        }
        here
    }

    /// Parks every awake connection of the set and counts us as asleep.
    fn park_all(&mut self) -> AllParked {
        let Some(_held) = self.ep.lock.lock() else {
            return AllParked::Stuck;
        };
        let mut at = self.ep.hot.load(Ordering::Relaxed);
        while let Some(reg) = reg_ref(at) {
            at = reg.next_hot.load(Ordering::Relaxed);
            match park_reg(reg) {
                ParkedReg::Yes => drop_hot(self.ep, reg),
                ParkedReg::ByTcp => {}
                ParkedReg::Stuck => return AllParked::Stuck,
                ParkedReg::Report => {
                    mark(reg, REG_IN_EDGE);
                    push_ready(self.ep, reg);
                    return AllParked::No;
                }
            }
        }
        if !self.ep.ready_head.load(Ordering::Relaxed).is_null() {
            return AllParked::No;
        }
        self.ep.sleepers.fetch_add(1, Ordering::SeqCst);
        AllParked::Yes
    }

    /// `None`: somebody woke us for a look at the rings.
    fn sleep_parked(&mut self, deadline: Option<u64>) -> Option<c_int> {
        flush_dirty(self.ep);
        process::count(Counter::KernelWaits, 1);
        let start = ticks();
        let n = (self.sleep)(self.out.as_mut_ptr(), self.max(), self.remaining(deadline));
        let keep = real::errno();
        self.ep.sleepers.fetch_sub(1, Ordering::SeqCst);
        let now = ticks();
        self.ep.asked.store(now, Ordering::Relaxed);
        if n > 0 {
            spin::slept(now.wrapping_sub(start));
        }
        if n > 0 && self.was_kicked() {
            // What was asked for in order to wake us (see `kick`) is not what the
            // program asked for: the kernel is asked again, properly.
            flush_dirty(self.ep);
            let from_rings = self.collect();
            if from_rings > 0 {
                return Some(self.with_kernel(from_rings, 0));
            }
            let n = (self.sleep)(self.out.as_mut_ptr(), self.max(), 0);
            return (n != 0).then_some(n);
        }
        real::set_errno(keep);
        Some(n)
    }

    fn was_kicked(&self) -> bool {
        let Some(_held) = self.ep.lock.lock() else { return false };
        !self.ep.dirty.load(Ordering::Relaxed).is_null()
    }

    fn remaining(&self, deadline: Option<u64>) -> c_int {
        let Some(deadline) = deadline else {
            return self.timeout;
        };
        let per_ms = PROCESS.ticks_per_us.load(Ordering::Relaxed) * 1000;
        let left = deadline.saturating_sub(ticks()).div_ceil(per_ms.max(1));
        c_int::try_from(left)
            .unwrap_or(self.timeout)
            .min(self.timeout)
    }
}

#[derive(PartialEq, Eq)]
enum AllParked {
    Yes,
    No,
    Stuck,
}

enum ParkedReg {
    /// It is parked, or on TCP.
    Yes,
    /// It stays awake, but only TCP can have news for this set.
    ByTcp,
    /// Its peer is in the middle of a write.
    Stuck,
    /// There is something to report.
    Report,
}

fn park_reg(reg: &Reg) -> ParkedReg {
    let Some(conn) = reg_conn(reg) else {
        return ParkedReg::Yes;
    };
    if !matches!(conn.rx_mode(), mode::HOT | mode::MOVING | mode::DRAIN) {
        return ParkedReg::Yes;
    }
    let Some(held) = lane::lock_rx(conn) else {
        return ParkedReg::Stuck;
    };
    match lane::park(conn, &held) {
        Parked::Yes | Parked::Ended => ParkedReg::Yes,
        Parked::Stuck => ParkedReg::Stuck,
        Parked::Data if wants_in(reg) && ring_bytes(conn, &held) => ParkedReg::Report,
        // Bytes of a TCP run are due, or nobody asked for input.
        Parked::Data => ParkedReg::ByTcp,
    }
}

fn wants_in(reg: &Reg) -> bool {
    !marked(reg, REG_ABSENT) && reg.events.load(Ordering::Relaxed) & IN != 0
}

fn ring_bytes(conn: &Conn, held: &lane::RxHeld<'_>) -> bool {
    // SAFETY: the caller has just found the mode HOT under the lock: mapped.
    let words = unsafe { conn.rx_words() };
    matches!(
        held.rx()
            .next(words, conn.rx_size.load(Ordering::Relaxed) as usize),
        Ok(memlane_core::ring::Next::Ring(_)) | Err(_)
    )
}

/// What the rings have to report for a registration; 0 = nothing.
fn report(conn: &Conn, reg: &Reg, asked: u32) -> u32 {
    if marked(reg, REG_ABSENT) {
        return 0;
    }
    let readable = asked & IN != 0 && lane::readable(conn);
    // The kernel would say "writable" unless TCP's buffer is full. It is asked
    // itself as long as the connection is parked.
    let writable = asked & OUT != 0
        && conn.rx_mode() == mode::HOT
        && conn.tx_mode() == mode::OPEN
        && conn.cell().tx_blocked.load(Ordering::Relaxed) == 0;
    // An edge on either side makes the kernel report the whole state.
    let due = asked & ET == 0
        || readable && marked(reg, REG_IN_EDGE)
        || writable && marked(reg, REG_OUT_EDGE);
    if !due {
        return 0;
    }
    let mut bits = 0;
    if readable {
        bits |= asked & IN;
        unmark(reg, REG_IN_EDGE);
    }
    if writable {
        bits |= asked & OUT;
        unmark(reg, REG_OUT_EDGE);
    }
    bits
}
