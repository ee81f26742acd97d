//! What is kept of epoll sets, and of the connections in them.
//!
//! An [`Ep`] keeps for each registered connection what the program asked for, and lists of registrations: *ready* (may
//! have something to report), *hot* (awake: to be parked before a sleep) and *dirty* (changes that the kernel has not been
//! told, because nobody has slept since). `wait::epoll` answers the program out of them; the lanes only tell them what
//! has changed.
//!
//! Lock order: parking takes a connection's `rx_lock` under the set's lock, so whoever holds `rx_lock` only *tries* a
//! set's lock ([`may_wake`]).

// Indices and descriptor numbers: bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

mod kernel;
mod lists;

pub(crate) use kernel::*;
pub(crate) use lists::*;

use crate::state::thread::Lock;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

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
    pub(crate) asked: AtomicU64,
    /// Waits answered from the rings since.
    pub(crate) unasked: AtomicU32,
    /// 1 = the kernel then had news, and they filled the program's array together with those of the rings: both sides
    /// have more to report than the program takes at a time.
    pub(crate) contended: AtomicU32,
    pub(crate) ready_head: AtomicPtr<Reg>,
    pub(crate) ready_tail: AtomicPtr<Reg>,
    pub(crate) hot: AtomicPtr<Reg>,
    pub(crate) dirty: AtomicPtr<Reg>,
}

impl Ep {
    /// Makes a slot ready for descriptor `fd`.
    pub fn reset(&self, fd: i32) {
        self.lock.reset();
        self.fd.store(fd, Ordering::Relaxed);
        self.bell.store(0, Ordering::Relaxed);
        kernel::base();
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
}

/// One registration in an epoll set.
#[derive(Debug)]
pub struct Reg {
    /// The set; null = none.
    pub ep: AtomicPtr<Ep>,
    /// Descriptor it was registered by.
    pub fd: AtomicI32,
    /// Events asked for (`EPOLLIN | …`).
    pub events: AtomicU32,
    /// Events that the kernel has been told; `STALE` = tell it in any case.
    pub kernel_events: AtomicU32,
    /// `data` as the kernel has been told.
    pub kernel_data: AtomicU64,
    /// The program's word.
    pub data: AtomicU64,
    /// With `EPOLLONESHOT`: 1 = may still report once. Guarded by the set's lock.
    pub armed: AtomicU32,
    /// Counts uses, so that a late event of an earlier one is known. Guarded by the set's lock.
    pub generation: AtomicU32,
    /// `REG_*` bits, guarded by the set's lock.
    pub marks: AtomicU32,
    /// Next in the set's ready list, guarded by the set's lock.
    pub next_ready: AtomicPtr<Reg>,
    /// Neighbours in the set's hot list, guarded by the set's lock.
    pub next_hot: AtomicPtr<Reg>,
    /// See `next_hot`.
    pub prev_hot: AtomicPtr<Reg>,
    /// Next in the set's dirty list, guarded by the set's lock.
    pub next_dirty: AtomicPtr<Reg>,
    /// The connection's index in the pool, times [`REGS`], plus the place among its registrations. Written when the
    /// connection is made.
    pub number: AtomicU32,
}

/// `Reg::marks`: in the ready list.
pub const REG_READY: u32 = 1;
/// `Reg::marks`: in the hot list.
pub const REG_HOT: u32 = 2;
/// `Reg::marks`: in the dirty list.
pub const REG_DIRTY: u32 = 4;
/// `Reg::marks`: an edge for `EPOLLOUT` is due.
pub const REG_OUT_EDGE: u32 = 8;
/// `Reg::marks`: an edge for `EPOLLIN` is due.
pub const REG_IN_EDGE: u32 = 16;
/// `Reg::marks`: the program has deleted it; the kernel has not been told yet.
pub const REG_ABSENT: u32 = 32;

/// Registrations that one connection can have; more: TCP only.
pub const REGS: usize = 2;

pub(crate) fn reg_ref<'a>(p: *mut Reg) -> Option<&'a Reg> {
    // SAFETY: null, or a Reg inside the pool of connections, which is never unmapped.
    unsafe { p.as_ref() }
}

pub(crate) fn ptr(reg: &Reg) -> *mut Reg {
    core::ptr::from_ref(reg).cast_mut()
}

/// Is the connection in any epoll set?
pub fn is_registered(regs: &[Reg]) -> bool {
    regs.iter().any(|r| !r.ep.load(Ordering::Relaxed).is_null())
}

/// The next wait on a set with this connection looks at it again. No lane lock is held.
pub fn look_again(regs: &[Reg]) {
    for reg in regs {
        if let Some((ep, _held)) = set_of(reg) {
            push_ready(ep, reg);
        }
    }
}

/// The next wait reports that the connection can send, to edge-triggered registrations too: a send was refused though
/// TCP was not full. No lane lock is held.
#[cold]
pub fn writable_again(regs: &[Reg], upgraded: bool) {
    for reg in regs {
        if let Some((ep, _held)) = set_of(reg)
            && !marked(reg, REG_ABSENT)
            && may_report(reg)
        {
            let told = |word: &AtomicU32| word.load(Ordering::Relaxed);
            if may_wait(ep, upgraded) {
                change_later(ep, reg, told(&reg.events), reg.data.load(Ordering::Relaxed));
            } else {
                tell_kernel(ep, reg, for_kernel(reg));
            }
        }
    }
}

/// May the connection wake up (`Cold` → `Hot`)? Not while a thread sleeps on a
/// set that it is in. If so it is put on the sets' hot lists. `rx_lock` is held:
/// the sets' locks are only tried.
pub fn may_wake(regs: &[Reg]) -> bool {
    for reg in regs {
        if reg.ep.load(Ordering::Acquire).is_null() {
            continue;
        }
        let ok = match try_set_of(reg) {
            Some((ep, _held))
                if ep.inherited.load(Ordering::Relaxed) == 0
                    && (ep.sleepers.load(Ordering::Relaxed) == 0 || !may_report(reg)) =>
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

/// Descriptor `n` of a connection is being closed: the kernel drops its registrations
/// when the last descriptor goes; a number that goes while others stay keeps
/// them (but not those that the program has deleted before).
pub fn drop_fd(regs: &[Reg], n: i32, last: bool) {
    for reg in regs {
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
