//! What each process has once: settings, the descriptor table, the pools and the stats page; and what happens to them
//! at a fork.

// Indices and descriptor numbers are bounded by the tables' sizes, far below 2^31.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

mod agents;
mod bells;
mod closes;
mod conn_ref;
mod early;
mod files;
mod hidden;
pub mod memory;
mod numbers;
mod page;
pub mod payback;
mod pool;
mod room;
pub mod stand_in;
mod tables;

pub use agents::keep_agent;
pub use bells::{drop_bell, keep_bell, most_bells, ring};
pub use closes::{closes, will_close, will_close_all};
pub use conn_ref::ConnRef;
pub use files::{drop_file, find_file, is_kept_file, keep_file};
pub use hidden::*;
pub(crate) use page::{appear, leave_to_parent};
pub use page::{count, entry, header, show};
use pool::alloc_conn;
pub use pool::reap;
pub use room::make_room;

use crate::config::{self, Config, Upgrade};
use crate::state::conn::{Conn, Role, SEEN_IN_SET, SharedState};
use crate::state::sets::{self, Ep};
use crate::state::thread::{Lock, SleepLock};
use crate::state::typed::{Typed, bits_enum};
use crate::state::uring;
use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use memlane_core::stats::{self, Header};
use memlane_sys::time::{self, Moment};
use memlane_sys::{fd, proc};

/// Descriptor numbers below this are tracked; sockets with higher numbers stay on TCP. Tests have a small table: most
/// machines do not allow descriptor numbers beyond the real one.
pub const FDS: usize = if cfg!(test) { 600 } else { 1 << 20 };
/// The number of connections that are tracked; more stay on TCP.
pub const CONNS: usize = stats::CONN_CAPACITY;
/// The number of epoll sets that are tracked; connections in others stay on TCP.
pub const EPS: usize = 8192;

/// Table entry tag: the entry is an epoll set.
const TAG_EP: usize = 1;
/// Table entry of a listening socket whose protocol is known to be TCP. It is a note, and may be out of date: its
/// descriptor may have been closed by a call without a hook.
const TCP_LISTENER: usize = 2;
/// Table entry of an instance of io_uring whose submissions are watched.
const URING: usize = 4;

bits_enum! {
    /// Has the library begun its work in this process?
    enum Started {
        /// No call has asked for it.
        No = 0,
        /// A thread is beginning.
        Beginning = 1,
        /// The library works.
        Yes = 2,
        ;
        /// The library is switched off.
        Off = 3,
    }
}

/// What a process has once.
#[derive(Debug)]
pub struct Process {
    /// Written by the thread that begins; read by all.
    stage: Typed<Started>,
    config: UnsafeCell<Config>,
    /// When the library has begun: ticks are measured from then on.
    began: UnsafeCell<Moment>,
    /// The process id; 0 in a process that a fork made without our notice.
    pub pid: AtomicI32,
    /// A random id of the process (SMC's GID).
    pub gid: AtomicU64,
    /// The number of `ticks` in 1 µs.
    pub ticks_per_us: AtomicU64,
    /// The effective user id: see [`owner`].
    owner: AtomicU32,
    /// The boot id, which tells hosts apart.
    pub boot: [AtomicU64; 2],
    /// The reason for which no connection may upgrade from now on; 0: they may.
    pub frozen: AtomicU32,
    /// The mailbox of the handshakes; −1: not made yet.
    pub mailbox: AtomicI32,
    /// The connection to the agent; −1: none.
    pub agent: AtomicI32,
    /// `/proc/loadavg`; −1: not opened yet, −2: it cannot be opened. See `runnable`.
    pub loadavg: AtomicI32,
    /// The number of connections that wait for mail.
    pub waiting: AtomicU32,
    /// Guards the handshake's mailbox and the link groups.
    pub group_lock: SleepLock,
    /// Held by the thread that takes mail and the agent's answers, one at a time.
    pub mail_lock: Lock,
    tables: AtomicBool,
    /// Is this library called by name? Written by the thread that begins.
    by_name: AtomicBool,
    pub(crate) pool_lock: SleepLock,
    fds: AtomicPtr<AtomicUsize>,
    /// The length of `fds`; 0: there is no table yet. Stored once, with release, after `fds`.
    fds_len: AtomicU32,
    conns: AtomicPtr<Conn>,
    shared_states: AtomicPtr<SharedState>,
    eps: AtomicPtr<Ep>,
    conn_high: AtomicU32,
    conn_free: AtomicPtr<u32>,
    conn_free_len: AtomicU32,
    ep_high: AtomicU32,
    pub(crate) stats: AtomicPtr<Header>,
    stats_fd: AtomicI32,
    /// The file of the tracer's page (`trace`); −1: none.
    pub trace_fd: AtomicI32,
}

// SAFETY: everything is atomic, or guarded by a lock; `config` and `began` are written once, before `stage` is `Yes`.
unsafe impl Sync for Process {}

/// The process.
pub static PROCESS: Process = Process {
    stage: Typed::new(0),
    config: UnsafeCell::new(Config::DEFAULT),
    began: UnsafeCell::new(Moment::NEVER),
    pid: AtomicI32::new(0),
    gid: AtomicU64::new(0),
    ticks_per_us: AtomicU64::new(1000),
    owner: AtomicU32::new(0),
    boot: [AtomicU64::new(0), AtomicU64::new(0)],
    frozen: AtomicU32::new(0),
    mailbox: AtomicI32::new(-1),
    agent: AtomicI32::new(-1),
    loadavg: AtomicI32::new(-1),
    waiting: AtomicU32::new(0),
    group_lock: SleepLock::new(),
    mail_lock: Lock::new(),
    tables: AtomicBool::new(false),
    by_name: AtomicBool::new(false),
    pool_lock: SleepLock::new(),
    fds: AtomicPtr::new(core::ptr::null_mut()),
    fds_len: AtomicU32::new(0),
    conns: AtomicPtr::new(core::ptr::null_mut()),
    shared_states: AtomicPtr::new(core::ptr::null_mut()),
    eps: AtomicPtr::new(core::ptr::null_mut()),
    conn_high: AtomicU32::new(0),
    conn_free: AtomicPtr::new(core::ptr::null_mut()),
    conn_free_len: AtomicU32::new(0),
    ep_high: AtomicU32::new(0),
    stats: AtomicPtr::new(core::ptr::null_mut()),
    stats_fd: AtomicI32::new(-1),
    trace_fd: AtomicI32::new(-1),
};

/// The settings of this process.
#[inline(always)]
pub fn config() -> &'static Config {
    // SAFETY: written once by `start`, before a hook reads it.
    unsafe { &*PROCESS.config.get() }
}

/// Functions of higher modules, which this one calls at certain moments.
#[derive(Debug)]
pub struct Above {
    /// Does anybody wait for the process's stats page, and what else it shows?
    pub is_wanted: fn() -> bool,
    /// Called when the process has made its stats page.
    pub appeared: fn(),
    /// Called when the last descriptor and the last hold of a connection are gone; with `true` if it
    /// [is as it was made](Conn::is_as_made).
    pub gone: fn(&'static Conn, bool),
}

/// Null, or what [`begin`] got. Written once, before `stage` is `Yes`.
static ABOVE: AtomicPtr<Above> = AtomicPtr::new(core::ptr::null_mut());

fn above() -> Option<&'static Above> {
    // SAFETY: null, or a static that `begin` got.
    unsafe { ABOVE.load(Ordering::Acquire).as_ref() }
}

/// Takes the settings, once. `false`: an earlier call has done so.
pub fn begin(c: Config, above: &'static Above) -> bool {
    if !PROCESS.stage.replace(Started::No, Started::Beginning) {
        return false;
    }
    #[cfg(feature = "faults")]
    crate::faults::read(config::env(c"MEMLANE_FAULT"));
    ABOVE.store(core::ptr::from_ref(above).cast_mut(), Ordering::Release);
    // SAFETY: nobody reads before `stage` is `Yes`.
    unsafe {
        *PROCESS.config.get() = c;
        *PROCESS.began.get() = Moment::now();
    }
    PROCESS.pid.store(proc::pid(), Ordering::Relaxed);
    if c.stats_on_exit {
        crate::state::stderr::remember();
    }
    let started = if c.disabled {
        Started::Off
    } else {
        Started::Yes
    };
    PROCESS.stage.store(started, Ordering::Release);
    true
}

/// May hooks do anything beyond calling libc?
#[inline(always)]
pub fn enabled() -> bool {
    PROCESS.stage.load(Ordering::Relaxed) == Started::Yes
}

/// Makes the tables, when the process makes its first TCP socket or epoll set. `false`: there is no memory, and
/// everything stays as without memlane.
#[inline(always)]
pub fn tables() -> bool {
    PROCESS.tables.load(Ordering::Acquire) || enabled() && first_tables()
}

#[cold]
fn first_tables() -> bool {
    let Some(_held) = PROCESS.pool_lock.lock() else {
        return false;
    };
    if PROCESS.tables.load(Ordering::Acquire) {
        return true;
    }
    make_tables().is_ok()
}

fn make_tables() -> memlane_sys::Result<()> {
    let gid = proc::random_u64()?;
    tables::make()?;
    PROCESS.gid.store(gid, Ordering::Relaxed);
    PROCESS.owner.store(proc::euid(), Ordering::Relaxed);
    // SAFETY: written once, before `stage` was `Yes`.
    let began = unsafe { *PROCESS.began.get() };
    PROCESS
        .ticks_per_us
        .store(time::ticks_per_us_since(began), Ordering::Relaxed);
    page::begin();
    PROCESS.tables.store(true, Ordering::Release);
    Ok(())
}

/// The user id under which this process made its shared memory.
pub fn owner() -> u32 {
    PROCESS.owner.load(Ordering::Relaxed)
}

/// Reads the boot id, unless a parent has. It takes long, and only handshakes tell it; later, a chroot may hide it.
fn learn_boot_id() {
    if PROCESS.boot[0].load(Ordering::Relaxed) != 0 {
        return;
    }
    let mut text = [0u8; 64];
    let n = fd::read_file(c"/proc/sys/kernel/random/boot_id", &mut text).unwrap_or(0);
    let mut words = [0u64; 2];
    let mut digits = 0;
    for b in &text[..n] {
        if let Some(v) = (*b as char).to_digit(16) {
            if digits < 32 {
                words[digits / 16] = words[digits / 16] << 4 | u64::from(v);
            }
            digits += 1;
        }
    }
    PROCESS.boot[0].store(words[0], Ordering::Relaxed);
    PROCESS.boot[1].store(words[1], Ordering::Relaxed);
}

// --- descriptors ---------------------------------------------------------

#[inline(always)]
fn slot(n: i32) -> Option<&'static AtomicUsize> {
    let n = n.cast_unsigned(); // a negative number is beyond any table
    if n >= PROCESS.fds_len.load(Ordering::Acquire) {
        return None;
    }
    let base = PROCESS.fds.load(Ordering::Relaxed);
    // SAFETY: `base` was stored before `fds_len`. The place is inside the table, which is never unmapped.
    unsafe {
        core::hint::assert_unchecked(!base.is_null());
        Some(&*base.add(n as usize))
    }
}

/// The connection that descriptor `n` refers to, held.
#[inline(always)]
pub fn conn_of(n: i32) -> Option<ConnRef> {
    glimpse(n)?.sure(n).map(Glimpse::into_conn)
}

/// The connection that descriptor `n` referred to a moment ago.
#[inline(always)]
pub fn glimpse(n: i32) -> Option<Glimpse> {
    let entry = slot(n)?;
    let value = entry.load(Ordering::Acquire);
    if matches!(value, 0 | TCP_LISTENER | URING) || value & TAG_EP != 0 {
        return None;
    }
    // SAFETY: other entries, which are not 0, are addresses in the pool, which is never unmapped.
    let conn = unsafe {
        core::hint::assert_unchecked(value != 0);
        &*(value as *const Conn)
    };
    conn.holds.fetch_add(1, Ordering::AcqRel);
    let conn = ConnRef::counted(conn);
    Some(Glimpse { conn, entry })
}

/// A connection that is held, but the descriptor may have become another's before it was.
#[derive(Debug)]
pub struct Glimpse {
    conn: ConnRef,
    /// The descriptor's place in the table.
    entry: &'static AtomicUsize,
}

impl Glimpse {
    /// The connection that was seen.
    #[inline(always)]
    pub fn conn(&self) -> &ConnRef {
        &self.conn
    }

    /// The connection that was seen, and the hold on it.
    #[inline(always)]
    pub fn into_conn(self) -> ConnRef {
        self.conn
    }

    /// The same, if descriptor `n`, by which it was found, still refers to that connection; else another glimpse, of which this
    /// is true. `None`: `n` refers to no connection by now.
    #[inline(always)]
    pub fn sure(self, n: i32) -> Option<Glimpse> {
        if self.is_sure() {
            Some(self)
        } else {
            self.again(n)
        }
    }

    /// Does the descriptor still refer to that connection?
    #[inline(always)]
    pub fn is_sure(&self) -> bool {
        let address = core::ptr::from_ref(self.conn.conn()) as usize;
        self.entry.load(Ordering::Acquire) == address
    }

    #[cold]
    #[inline(never)]
    fn again(self, n: i32) -> Option<Glimpse> {
        drop(self);
        glimpse(n)?.sure(n)
    }
}

/// The epoll set that descriptor `n` refers to.
#[inline(always)]
pub fn ep_of(n: i32) -> Option<&'static Ep> {
    let value = slot(n)?.load(Ordering::Acquire);
    if value & TAG_EP == 0 {
        return None;
    }
    // SAFETY: tagged entries are addresses in the pool, which is never unmapped.
    Some(unsafe { &*((value & !TAG_EP) as *const Ep) })
}

/// Is `n` beyond the table of descriptors?
pub fn beyond(n: i32) -> bool {
    usize::try_from(n).is_ok_and(|n| n >= FDS)
}

/// Does the table know descriptor `n`?
pub fn known(n: i32) -> bool {
    slot(n).is_some_and(|e| e.load(Ordering::Acquire) != 0)
}

/// Calls `f` with every descriptor from `begin` on and below `end` that refers to a connection.
pub fn each_conn(begin: i32, end: i32, mut f: impl FnMut(i32, &'static Conn)) {
    let high = fd_high().min(i64::from(end)) as i32;
    for n in begin.max(0)..high {
        if let Some(held) = conn_of(n) {
            f(n, held.conn());
        }
    }
}

static FD_HIGH: AtomicI32 = AtomicI32::new(0);

/// The highest descriptor number ever tracked, plus one.
pub fn fd_high() -> i64 {
    i64::from(FD_HIGH.load(Ordering::Relaxed))
}

fn put(n: i32, value: usize) -> bool {
    let Some(entry) = slot(n) else { return false };
    if n >= FD_HIGH.load(Ordering::Relaxed) {
        FD_HIGH.fetch_max(n + 1, Ordering::Relaxed);
    }
    entry.store(value, Ordering::Release);
    true
}

/// Makes descriptor `n` refer to a new connection. `None`: the connection is not tracked.
pub fn open_conn(n: i32, role: Role, nonblock: bool) -> Option<ConnRef> {
    if !tables() {
        return None;
    }
    page::appear_with_connection(role);
    // Most places are empty, and many are on a page that nobody has written: a look at it first would be one more page fault.
    forget_what_is_at(slot(n)?, n);
    let conn = alloc_conn()?;
    conn.fd.store(n, Ordering::Relaxed);
    conn.role.store(role, Ordering::Relaxed);
    conn.refs.store(1, Ordering::Relaxed);
    conn.shared()
        .nonblock
        .store(u32::from(nonblock), Ordering::Relaxed);
    let first = first_step(role);
    conn.hs_first.store(first, Ordering::Relaxed);
    let due = if page::has_appeared() {
        first
    } else {
        first.min(early::CALLS)
    };
    conn.hs_due.store(due, Ordering::Relaxed);
    conn.holds.fetch_add(1, Ordering::AcqRel);
    put(n, core::ptr::from_ref(conn) as usize);
    Some(ConnRef::counted(conn))
}

/// The count of calls at which the handshake of a new connection is due.
fn first_step(role: Role) -> u64 {
    let first = config().first_step(role == Role::Accepted);
    match config().upgrade {
        Upgrade::Auto => first << payback::doubled(role),
        // Its first bytes may be received by io_uring: a lane may open only after calls that the hooks see.
        Upgrade::Eager if uring::is_used() => first.max(config::AUTO_OPS),
        Upgrade::Off | Upgrade::Eager => first,
    }
}

/// Is the handshake of a connection that has not begun it due only because the process had to appear? Then it is due later.
pub fn was_due_to_appear(conn: &Conn) -> bool {
    let first = conn.hs_first.load(Ordering::Relaxed);
    let due = &conn.hs_due;
    conn.ops() < first
        && due
            .compare_exchange(early::CALLS, first, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}

/// Makes the handshake due at once if `bytes` are enough for `--upgrade auto`, whatever the count of calls.
#[inline(always)]
pub fn hurry(conn: &Conn, bytes: u64) {
    if bytes < config::AUTO_BYTES / 2 || config().upgrade != Upgrade::Auto {
        return;
    }
    let first = conn.hs_first.load(Ordering::Relaxed);
    let due = conn.hs_due.load(Ordering::Relaxed);
    if (due == first || due == early::CALLS)
        && bytes >= payback::least_bytes(conn.role.load(Ordering::Relaxed), first)
    {
        conn.hs_due.store(0, Ordering::Relaxed);
    }
}

/// Makes descriptor `new` refer to what `old` refers to, after a dup.
pub fn dup_entry(old: i32, new: i32) {
    forget(new);
    let Some(value) = slot(old).map(|e| e.load(Ordering::Acquire)) else {
        return;
    };
    if value == 0 || slot(new).is_none() {
        return;
    }
    if value & TAG_EP == 0 {
        let Some(held) = conn_of(old) else { return };
        held.refs.fetch_add(1, Ordering::AcqRel);
    } else if let Some(ep) = ep_of(old) {
        ep.refs.fetch_add(1, Ordering::AcqRel);
    }
    put(new, value);
}

/// Does only one descriptor of this process refer to the connection?
pub fn is_last(conn: &Conn) -> bool {
    conn.refs.load(Ordering::Acquire) == 1
}

/// Notes that descriptor `n`, which nothing else is known of, listens for TCP connections.
pub fn note_tcp_listener(n: i32) {
    if let Some(entry) = slot(n) {
        let _ = entry.compare_exchange(0, TCP_LISTENER, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Was [`note_tcp_listener`] the last that was heard of descriptor `n`?
pub fn is_tcp_listener(n: i32) -> bool {
    slot(n).is_some_and(|entry| entry.load(Ordering::Relaxed) == TCP_LISTENER)
}

/// Notes that descriptor `n` is an instance of io_uring that is watched. `false`: its number is beyond the table.
pub fn note_uring(n: i32) -> bool {
    tables() && put(n, URING)
}

/// Makes descriptor `n` refer to nothing, before it is closed.
#[inline(always)]
pub fn forget(n: i32) {
    // Only the program's own calls on this descriptor give it a meaning.
    if let Some(entry) = slot(n)
        && entry.load(Ordering::Relaxed) != 0
    {
        forget_what_is_at(entry, n);
    }
}

/// Makes descriptor `n` refer to nothing, before it is closed. Calls `ends` first if it is the last one that refers to its
/// connection.
pub fn forget_closing(n: i32, ends: impl FnOnce(&Conn)) {
    if let Some(held) = conn_of(n) {
        if is_last(&held) {
            ends(&held);
        }
        let ours = core::ptr::from_ref(held.conn()) as usize;
        let was_ours = slot(n).is_some_and(|entry| {
            entry
                .compare_exchange(ours, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        if was_ours {
            return drop_descriptor(&held, n);
        }
    }
    forget(n);
}

fn forget_what_is_at(entry: &AtomicUsize, n: i32) {
    let value = entry.swap(0, Ordering::AcqRel);
    if matches!(value, 0 | TCP_LISTENER) {
        return;
    }
    if value == URING {
        return uring::forget(n);
    }
    if value & TAG_EP != 0 {
        // SAFETY: tagged entries are addresses in the pool, which is never unmapped.
        let ep = unsafe { &*((value & !TAG_EP) as *const Ep) };
        if ep.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            release(ep);
        } else if ep.fd.load(Ordering::Relaxed) == n {
            ep.fd.store(fd_of(ep).unwrap_or(-1), Ordering::Relaxed);
        }
        return;
    }
    // SAFETY: untagged entries are addresses in the pool, which is never unmapped.
    let conn = unsafe { &*(value as *const Conn) };
    conn.holds.fetch_add(1, Ordering::AcqRel);
    drop_descriptor(&ConnRef::counted(conn), n);
}

/// Descriptor `n`, which is in the table no more, does not refer to the connection from now on.
#[inline(always)]
fn drop_descriptor(held: &ConnRef, n: i32) {
    if held.seen.load(Ordering::Relaxed) & SEEN_IN_SET != 0 {
        drop_from_sets(held, n);
    }
    if held.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
        held.closing.store(1, Ordering::Release);
    } else if held.fd.load(Ordering::Relaxed) == n {
        go_by_another(held);
    }
}

#[inline(never)]
fn drop_from_sets(held: &ConnRef, n: i32) {
    sets::drop_fd(&held.regs, n, is_last(held));
}

/// The connection is known by one of its other descriptors from now on.
#[cold]
fn go_by_another(held: &ConnRef) {
    each_conn(0, FDS as i32, |m, c| {
        if core::ptr::eq(c, held.conn()) {
            c.fd.store(m, Ordering::Relaxed);
        }
    });
}

/// A descriptor that refers to this set.
fn fd_of(ep: &Ep) -> Option<i32> {
    let is_it = |n: &i32| ep_of(*n).is_some_and(|set| core::ptr::eq(set, ep));
    (0..FD_HIGH.load(Ordering::Relaxed)).find(is_it)
}

/// Frees a set whose last descriptor is closed, with its registrations.
fn release(ep: &'static Ep) {
    unhide(ep.bell.swap(0, Ordering::Relaxed));
    sets::nests::end_nests(ep);
    for_live(|conn| {
        for reg in conn.regs.iter() {
            if sets::belongs_to(reg, ep) {
                sets::remove(ep, reg);
            }
        }
    });
}

/// Calls `f` with every connection in use.
pub fn for_live(mut f: impl FnMut(&'static Conn)) {
    let base = PROCESS.conns.load(Ordering::Relaxed);
    for i in 0..PROCESS.conn_high.load(Ordering::Relaxed) {
        // SAFETY: below conn_high, inside the pool.
        let conn = unsafe { &*base.add(i as usize) };
        if conn.refs.load(Ordering::Acquire) != 0 {
            f(conn);
        }
    }
}

/// Is this the child of a vfork, or of another call that shares our memory? Then nothing of ours may change.
pub fn is_borrowed() -> bool {
    proc::pid() != PROCESS.pid.load(Ordering::Relaxed)
}

/// Have the tables been made?
pub(crate) fn has_tables() -> bool {
    PROCESS.tables.load(Ordering::Acquire)
}

/// Makes all descriptors refer to nothing. The process must have only one thread.
pub(crate) fn forget_all_fds() {
    for n in 0..FD_HIGH.load(Ordering::Relaxed) {
        if let Some(entry) = slot(n) {
            entry.store(0, Ordering::Release);
        }
    }
}

/// Notes that the program calls this library by name.
pub fn set_by_name() {
    PROCESS.by_name.store(true, Ordering::Relaxed);
}

/// Does the program call this library by name? Then the library does not see where the program waits.
pub fn is_by_name() -> bool {
    PROCESS.by_name.load(Ordering::Relaxed)
}

/// Makes descriptor `n` refer to a new epoll set.
pub fn open_ep(n: i32) {
    if !tables() || slot(n).is_none() {
        return;
    }
    forget(n);
    let Some(_held) = PROCESS.pool_lock.lock() else {
        return;
    };
    let base = PROCESS.eps.load(Ordering::Relaxed);
    let high = PROCESS.ep_high.load(Ordering::Relaxed);
    for i in 0..=high.min(EPS as u32 - 1) {
        // SAFETY: below EPS, inside the pool.
        let ep = unsafe { &*base.add(i as usize) };
        if ep
            .refs
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            if i == high {
                PROCESS.ep_high.store(high + 1, Ordering::Relaxed);
            }
            ep.reset(n);
            put(n, core::ptr::from_ref(ep) as usize | TAG_EP);
            return;
        }
    }
}

/// Calls `f` with every epoll set in use.
pub fn each_ep(mut f: impl FnMut(&'static Ep)) {
    let base = PROCESS.eps.load(Ordering::Relaxed);
    for i in 0..PROCESS.ep_high.load(Ordering::Relaxed) {
        // SAFETY: below EPS, inside the pool.
        let ep = unsafe { &*base.add(i as usize) };
        if ep.refs.load(Ordering::Acquire) != 0 {
            f(ep);
        }
    }
}

/// The connection with this id (see [`id_of`]), if its index is in use by the same generation.
pub fn conn_by_id(id: u64) -> Option<ConnRef> {
    let index = (id & 0xffff_ffff) as usize;
    if index >= PROCESS.conn_high.load(Ordering::Relaxed) as usize {
        return None;
    }
    // SAFETY: below conn_high, inside the pool.
    let conn = unsafe { &*PROCESS.conns.load(Ordering::Relaxed).add(index) };
    conn.holds.fetch_add(1, Ordering::AcqRel);
    let held = ConnRef::counted(conn);
    let alive = held.refs.load(Ordering::Acquire) != 0
        && u64::from(held.generation.load(Ordering::Acquire)) == id >> 32;
    alive.then_some(held)
}

/// The id by which [`conn_by_id`] finds the connection: its index and generation.
pub fn id_of(conn: &Conn) -> u64 {
    u64::from(conn.generation.load(Ordering::Acquire)) << 32
        | u64::from(conn.index.load(Ordering::Relaxed))
}

/// The connection with index `i`, if that index has ever been used.
pub fn conn_at(i: usize) -> Option<&'static Conn> {
    let base = PROCESS.conns.load(Ordering::Relaxed);
    // SAFETY: below `conn_high`, inside the pool.
    (i < conns_made()).then(|| unsafe { &*base.add(i) })
}

/// The number of indices that have ever been used.
pub fn conns_made() -> usize {
    PROCESS.conn_high.load(Ordering::Relaxed) as usize
}
