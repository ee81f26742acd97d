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

// Indices and descriptor numbers: bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

mod ctl;
mod lists;
mod oneshot;
mod waiter;

pub use ctl::{ctl, is_waited_for};
pub use waiter::{Sleep, wait};

use ctl::*;
use lists::*;

use crate::conn::{
    Conn, REG_ABSENT, REG_DIRTY, REG_HOT, REG_IN_EDGE, REG_OUT_EDGE, REG_READY, Reg, Use, mode,
};
use crate::group;
use crate::lane::{self, Parked, shed};
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

/// Kinds of registration that ring readiness does not follow.
const NOT_OURS: u32 = EXCLUSIVE | WAKEUP;

/// `Reg::kernel_events`: an edge-triggered registration was armed anew, so the
/// kernel must be told even if the mask is the same.
const STALE: u32 = u32::MAX;

/// While the rings keep a wait busy, the kernel's side of the set (listeners,
/// timers, plain sockets, ends of streams) is looked at this often.
const KERNEL_EVERY_US: u64 = 50;
/// … and at least every so many waits.
const KERNEL_EVERY_WAITS: u32 = 64;
/// A wait that spins asks it this often.
const KERNEL_EVERY_SPIN_US: u64 = 10;

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
    /// Not 0: a fork has given it to two processes; 1: no wait has looked at its connections since.
    pub inherited: AtomicU32,
    /// 1 = it is itself in another set.
    pub nested: AtomicU32,
    /// Registrations of connections.
    pub regs: AtomicU32,
    /// Eventfd that wakes a sleeper (see `kick`); 0 = none yet.
    pub bell: AtomicI32,
    /// `ticks` at which the kernel was last asked.
    asked: AtomicU64,
    /// Waits answered from the rings since.
    unasked: AtomicU32,
    /// 1 = the kernel then had news, and they filled the program's array together with those of the rings: both sides
    /// have more to report than the program takes at a time.
    contended: AtomicU32,
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
        self.bell.store(0, Ordering::Relaxed);
        oneshot::base();
        for word in [
            &self.sleepers,
            &self.inherited,
            &self.nested,
            &self.regs,
            &self.unasked,
            &self.contended,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for list in [&self.ready_head, &self.ready_tail, &self.hot, &self.dirty] {
            list.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
    }

    /// The last descriptor is closed: its registrations are void.
    pub fn release(&self) {
        process::unhide(self.bell.swap(0, Ordering::Relaxed));
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

/// Is the connection in any epoll set?
pub fn is_registered(conn: &Conn) -> bool {
    conn.regs
        .iter()
        .any(|r| !r.ep.load(Ordering::Relaxed).is_null())
}

/// The next wait on a set with this connection looks at it again. No lane lock is held.
pub fn look_again(conn: &Conn) {
    for reg in &conn.regs {
        if let Some((ep, _held)) = set_of(reg) {
            push_ready(ep, reg);
        }
    }
}

/// The next wait reports that the connection can send, to edge-triggered registrations too: a send was refused though
/// TCP was not full. No lane lock is held.
#[cold]
pub fn writable_again(conn: &Conn) {
    for reg in &conn.regs {
        // SAFETY: null, or an address in the pool of sets, which is never unmapped.
        if let Some(ep) = unsafe { reg.ep.load(Ordering::Acquire).as_ref() }
            && let Some(_held) = ep.lock.lock()
            && !marked(reg, REG_ABSENT)
            && oneshot::may_report(reg)
        {
            let told = |word: &AtomicU32| word.load(Ordering::Relaxed);
            if may_wait(ep, conn) {
                change_later(ep, reg, told(&reg.events), reg.data.load(Ordering::Relaxed));
            } else {
                tell_kernel(ep, reg, oneshot::for_kernel(reg));
            }
        }
    }
}

/// May the connection wake up (`COLD` → `HOT`)? Not while a thread sleeps on a
/// set that it is in. If so it is put on the sets' hot lists. `rx_lock` is held:
/// the sets' locks are only tried.
pub fn may_wake(conn: &Conn) -> bool {
    for reg in &conn.regs {
        if reg.ep.load(Ordering::Acquire).is_null() {
            continue;
        }
        let ok = match try_set_of(reg) {
            Some((ep, _held))
                if ep.inherited.load(Ordering::Relaxed) == 0
                    && (ep.sleepers.load(Ordering::Relaxed) == 0 || !oneshot::may_report(reg)) =>
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
        let Some((ep, _held)) = set_of(reg) else {
            continue;
        };
        if last {
            take_out(ep, reg);
        } else if reg.fd.load(Ordering::Relaxed) == n && marked(reg, REG_ABSENT) {
            let _ = kernel_ctl(ep, libc::EPOLL_CTL_DEL, reg, 0);
            take_out(ep, reg);
        }
    }
}

/// Before a fork: the kernel's sets are as the program believes them to be.
pub fn flush(ep: &Ep) {
    flush_dirty(ep);
}
