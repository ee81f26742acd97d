//! Epoll sets, and the registrations of connections in them.
//!
//! An [`Ep`] keeps what the program asked for, for each registered connection, and lists of registrations: *ready* (may
//! have something to report), *hot* (awake: to be parked before a sleep), *belled* (awake, and a bell wakes the sleeper), *dirty* (changes that the kernel does not know
//! yet, because no thread has slept since) and *full* (the ring had no room for a send). `wait::epoll` answers the program from these lists. The lanes only
//! note what has changed.
//!
//! Lock order: parking takes a connection's `rx_lock` under the set's lock. So a thread that holds `rx_lock` only
//! *tries* to take a set's lock ([`may_wake`]).

// Indices and descriptor numbers are bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

mod awake;
mod bells;
mod edges;
mod full;
mod kernel;
mod lists;
pub(crate) mod nests;
mod own_bell;
mod regs;
mod reports;
mod sleeper;
mod turns;

pub(crate) use awake::*;
pub(crate) use bells::rung;
pub use bells::{Bell, Bells, count_on_bell, hang, has_bell, may_have_bells, take_down};
pub use edges::{are_heard as are_edges_heard, hear_edges};
pub use full::full;
pub(crate) use full::*;
pub(crate) use kernel::*;
pub(crate) use lists::*;
pub(crate) use nests::*;
pub use own_bell::Hiding;
pub(crate) use own_bell::*;
pub use regs::{REGS, Regs};
pub(crate) use regs::{is_spare, owner_of, spare_reg};
pub(crate) use reports::{Asked, count_report, last_asked};
pub use sleeper::{Sleeper, SleeperCell};
use turns::Turns;

use crate::state::far::far;
use crate::state::thread::Lock;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// One epoll set.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Ep {
    /// The number of descriptors that refer to the set; 0: free.
    pub refs: AtomicU32,
    /// Guards the lists and `sleepers`.
    pub lock: Lock,
    /// The set's descriptor.
    pub fd: AtomicI32,
    /// The number of threads that sleep on the set in the kernel.
    pub sleepers: AtomicU32,
    /// 0: the set belongs to this process alone. Otherwise a fork has given it to two processes; 1: no wait has looked
    /// at its connections since.
    pub inherited: AtomicU32,
    /// What else waits on the set: 0: nothing, [`nests::FOLLOWED`] or [`nests::UNFOLLOWED`].
    pub nested: AtomicU32,
    /// The number of sets that are registered in this one (see [`nests`]).
    pub below: AtomicU32,
    /// Counts news of registrations, as edges for the sets that this one is in. Guarded by `lock`.
    pub(crate) arrivals: AtomicU32,
    /// The number of registrations of connections.
    pub regs: AtomicU32,
    /// The eventfd that wakes a sleeper (see `kick`); 0: not made yet.
    pub bell: AtomicI32,
    /// `ticks` at which the kernel was last asked.
    pub(crate) asked: AtomicU64,
    /// The number of waits since then that were answered from the rings.
    pub(crate) unasked: AtomicU32,
    /// The number of the kernel's last report to the program (see [`reports`]). Threads that wait write it, threads that read
    /// from a connection read it; nothing is ordered by it.
    pub(crate) report: AtomicU64,
    /// Whether rings or the kernel report next, where the program takes fewer events than there are.
    pub(crate) turns: Turns,
    /// The number of registrations in the ready list. Guarded by `lock`.
    pub(crate) ready_len: AtomicU32,
    pub(crate) ready_head: AtomicPtr<Reg>,
    pub(crate) ready_tail: AtomicPtr<Reg>,
    pub(crate) hot: AtomicPtr<Reg>,
    pub(crate) belled: AtomicPtr<Reg>,
    /// The bells that wake a sleeper for the connections in `belled`.
    pub bells: Bells,
    pub(crate) dirty: AtomicPtr<Reg>,
    pub(crate) full: AtomicPtr<Reg>,
}

impl Ep {
    /// Prepares this value for the set with descriptor `fd`.
    pub fn reset(&self, fd: i32) {
        self.lock.reset();
        self.fd.store(fd, Ordering::Relaxed);
        self.bell.store(0, Ordering::Relaxed);
        kernel::base();
        count_report(self);
        for word in [
            &self.sleepers,
            &self.inherited,
            &self.nested,
            &self.below,
            &self.arrivals,
            &self.regs,
            &self.unasked,
            &self.ready_len,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        self.turns.forget();
        self.bells.reset();
        for list in [
            &self.ready_head,
            &self.ready_tail,
            &self.hot,
            &self.belled,
            &self.dirty,
            &self.full,
        ] {
            list.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
    }
}

/// One registration in an epoll set.
#[derive(Debug)]
pub struct Reg {
    /// The set; null: none.
    pub ep: AtomicPtr<Ep>,
    /// The descriptor that it was registered with.
    pub fd: AtomicI32,
    /// The events that the program asked for (`EPOLLIN | …`).
    pub events: AtomicU32,
    /// The events that the kernel knows; `STALE`: it must get them in any case.
    pub kernel_events: AtomicU32,
    /// The `data` that the kernel knows.
    pub kernel_data: AtomicU64,
    /// The program's own `data`.
    pub data: AtomicU64,
    /// With `EPOLLONESHOT`: 1: it may still report once. Guarded by the set's lock.
    pub armed: AtomicU32,
    /// Counts uses, so that a late event of an earlier use can be recognized. Guarded by the set's lock.
    pub generation: AtomicU32,
    /// `REG_*` bits. Guarded by the set's lock.
    pub marks: AtomicU32,
    /// Next in the set's ready list. Guarded by the set's lock.
    pub next_ready: AtomicPtr<Reg>,
    /// Next in the set's hot list. Guarded by the set's lock.
    pub next_hot: AtomicPtr<Reg>,
    /// Previous in the set's hot list. Guarded by the set's lock.
    pub prev_hot: AtomicPtr<Reg>,
    /// Next in the set's dirty list. Guarded by the set's lock.
    pub next_dirty: AtomicPtr<Reg>,
    /// Next in the set's full list. Guarded by the set's lock.
    pub next_full: AtomicPtr<Reg>,
    /// The connection's index in the pool, times [`REGS`], plus the index among its registrations. Written when the
    /// connection is made.
    pub number: AtomicU32,
}

impl Reg {
    /// A registration that is in no set: zeros, as the memory of a connection is at first.
    #[allow(clippy::declare_interior_mutable_const)] // the initial value of statics
    const FREE: Reg = Reg {
        ep: AtomicPtr::new(core::ptr::null_mut()),
        fd: AtomicI32::new(0),
        events: AtomicU32::new(0),
        kernel_events: AtomicU32::new(0),
        kernel_data: AtomicU64::new(0),
        data: AtomicU64::new(0),
        armed: AtomicU32::new(0),
        generation: AtomicU32::new(0),
        marks: AtomicU32::new(0),
        next_ready: AtomicPtr::new(core::ptr::null_mut()),
        next_hot: AtomicPtr::new(core::ptr::null_mut()),
        prev_hot: AtomicPtr::new(core::ptr::null_mut()),
        next_dirty: AtomicPtr::new(core::ptr::null_mut()),
        next_full: AtomicPtr::new(core::ptr::null_mut()),
        number: AtomicU32::new(0),
    };
}

/// Bit of `Reg::marks`: in the ready list.
pub const REG_READY: u32 = 1;
/// Bit of `Reg::marks`: in the hot list.
pub const REG_HOT: u32 = 2;
/// Bit of `Reg::marks`: in the dirty list.
pub const REG_DIRTY: u32 = 4;
/// Bit of `Reg::marks`: an edge for `EPOLLOUT` is due.
pub const REG_OUT_EDGE: u32 = 8;
/// Bit of `Reg::marks`: an edge for `EPOLLIN` is due.
pub const REG_IN_EDGE: u32 = 16;
/// Bit of `Reg::marks`: the program has deleted it; the kernel does not know that yet.
pub const REG_ABSENT: u32 = 32;
/// Bit of `Reg::marks`: in the full list.
pub const REG_FULL: u32 = 64;
/// Bit of `Reg::marks`: the ring was full and has room again, which the program has not been told yet.
pub const REG_ROOM: u32 = 128;

/// Bit of `Reg::marks`: the connection's chunk has its bell in the set.
pub const REG_BELL: u32 = 256;
/// Bit of `Reg::marks`: with `REG_HOT`, in the belled list.
pub const REG_BELLED: u32 = 512;

pub(crate) fn reg_ref<'a>(p: *mut Reg) -> Option<&'a Reg> {
    // SAFETY: null, or a Reg inside the pool of connections, which is never unmapped.
    unsafe { p.as_ref() }
}

pub(crate) fn ptr(reg: &Reg) -> *mut Reg {
    core::ptr::from_ref(reg).cast_mut()
}

/// Is the connection in any epoll set?
pub fn is_registered(regs: &Regs) -> bool {
    regs.iter().any(|r| !r.ep.load(Ordering::Relaxed).is_null())
}

/// Does the program wait in any epoll set until it can write to the connection?
pub fn is_writable_awaited(regs: &Regs) -> bool {
    let waits = |r: &Reg| r.events.load(Ordering::Relaxed) & OUT != 0;
    regs.iter()
        .any(|r| !r.ep.load(Ordering::Relaxed).is_null() && waits(r))
}

/// The one set that the connection is in; null: none, or several.
pub fn only_set(regs: &Regs) -> *mut Ep {
    let sets = regs.iter().map(|r| r.ep.load(Ordering::Relaxed));
    let mut sets = sets.filter(|set| !set.is_null());
    match (sets.next(), sets.next()) {
        (Some(set), None) => set,
        _ => core::ptr::null_mut(),
    }
}

/// Makes the next wait on a set with this connection look at it again. That is no edge for sets that this set lies in: what there
/// is to read was counted when it came. The caller holds no lane lock.
pub fn look_again(regs: &Regs) {
    for reg in regs.iter() {
        if let Some((ep, _held)) = set_of(reg) {
            look_again_at(ep, reg);
        }
    }
}

/// Makes the next wait report that the connection can send, to edge-triggered registrations too: a send failed though
/// TCP was not full. The caller holds no lane lock.
#[cold]
pub fn writable_again(regs: &Regs, upgraded: bool) {
    for reg in regs.iter() {
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

/// May the connection wake up (`Cold` → `Hot`)? It may not while a thread sleeps on a set that it is in, unless the thread
/// relies on the connection's `bell`. If it may, this puts it on the sets' lists of awake connections. `hang` puts the bell
/// into the set; `ask` asks the sender to ring it. The caller holds `rx_lock`, so the sets' locks are only tried.
pub fn may_wake(
    regs: &Regs,
    bell: Option<&Bell>,
    hang: impl Fn(&Ep, &Bell) -> bool,
    ask: impl Fn(&Ep, &Bell),
) -> bool {
    let only = only_set(regs);
    for reg in regs.iter() {
        if reg.ep.load(Ordering::Acquire).is_null() {
            continue;
        }
        let Some((ep, _held)) = try_set_of(reg) else {
            return false; // registrations already on a list of awake ones are found cold when that set parks
        };
        if ep.inherited.load(Ordering::Relaxed) != 0 {
            return false;
        }
        if !be_awake((ep, reg), only, bell, &hang, &ask) {
            return false;
        }
        mark(reg, REG_IN_EDGE);
        push_ready(ep, reg);
    }
    true
}

/// May the connection be awake in this set? It may not while a thread sleeps there that is to hear of its bytes, unless the thread
/// relies on the connection's `bell`. If it may, it comes into the set's list of awake connections. `only` is the one set that
/// it is in; null: it is in several. The caller holds the set's lock.
pub fn be_awake(
    (ep, reg): (&Ep, &Reg),
    only: *const Ep,
    bell: Option<&Bell>,
    hang: impl Fn(&Ep, &Bell) -> bool,
    ask: impl Fn(&Ep, &Bell),
) -> bool {
    let is_own = |b: &&Bell| core::ptr::eq(only, ep) && b.sleeper == Sleeper::on_set(ep);
    let bell = bell
        .filter(is_own)
        .filter(|b| may_have_bells(ep) && hang(ep, b));
    match bell {
        Some(_) => mark(reg, REG_BELL),
        None => unmark(reg, REG_BELL),
    }
    let sleepers = ep.sleepers.load(Ordering::Relaxed);
    if sleepers != 0 && may_report(reg) && waits_for_input(reg) {
        let all_rely = ep.bells.sleepers.load(Ordering::Relaxed) == sleepers;
        match bell.filter(|_| all_rely && stays_awake(reg)) {
            Some(bell) => ask(ep, bell),
            None => return false,
        }
    }
    push_hot(ep, reg);
    true
}

/// Drops the registrations of a descriptor `n` that is being closed. The kernel drops them when the last descriptor of
/// the socket goes; while others stay, it keeps them. But those that the program has deleted before go now: a thread that waits
/// on such a set would be told of the descriptor until it is closed, and for ever if another process has a copy.
pub fn drop_fd(regs: &Regs, n: i32, last: bool) {
    for reg in regs.iter() {
        let Some((ep, _held)) = set_of(reg) else {
            continue;
        };
        let is_deleted = marked(reg, REG_ABSENT) && reg.fd.load(Ordering::Relaxed) == n;
        if is_deleted {
            let _ = kernel_ctl(ep, libc::EPOLL_CTL_DEL, reg, 0);
        }
        if last || is_deleted {
            take_out(ep, reg);
        }
    }
}
