//! The stats page, by which `memlane ss` and others see this process.

use super::{PROCESS, above, config, early, has_tables, hide, is_borrowed, tables};
use crate::state::conn::{Conn, Role};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};
use memlane_core::reason::Reason;
use memlane_core::stats::{self, ConnEntry, ConnState, Counter, Header};
use memlane_sys::{fd, mem, proc, time};

/// Has this process made its page, or tried to? Written under `pool_lock`, and in the child of a fork by its only thread.
static HAS_APPEARED: AtomicBool = AtomicBool::new(false);

/// Begins the process's counts. It appears at once only if somebody waits for that.
pub(super) fn begin() {
    early::begin();
    if above().is_some_and(|above| (above.is_wanted)()) {
        show_page();
    }
}

/// Makes what this process has put off, if it has not been made yet: the page, what higher modules show, and in the child of a
/// fork shared states for connections of its own. A child that a server forks for one short connection mostly needs none of
/// them, and they would make its fork a third longer. Nor does a program that makes a short connection and ends.
#[inline(always)]
pub(crate) fn appear() {
    if !has_appeared() {
        appear_late();
    }
}

/// [`appear`], unless the process is young and may make one more connection without.
#[inline(always)]
pub(super) fn appear_with_connection(role: Role) {
    if !has_appeared() && !early::has_place(role) {
        appear_late();
    }
}

/// Has the process made its page, or tried to?
#[inline(always)]
pub(super) fn has_appeared() -> bool {
    HAS_APPEARED.load(Ordering::Acquire)
}

#[cold]
fn appear_late() {
    if is_borrowed() || !has_tables() {
        return;
    }
    let Some(_held) = PROCESS.pool_lock.lock() else {
        return;
    };
    if HAS_APPEARED.load(Ordering::Relaxed) {
        return;
    }
    let has_states = !PROCESS.shared_states.load(Ordering::Relaxed).is_null();
    if !has_states && let Ok(states) = tables::make_shared_states() {
        PROCESS.shared_states.store(states, Ordering::Relaxed);
    }
    show_page();
}

/// Makes the page, and what higher modules show. The caller holds `pool_lock`.
fn show_page() {
    super::learn_boot_id();
    let page = make_page().unwrap_or(null_mut());
    PROCESS.stats.store(page, Ordering::Release);
    if let Some(above) = above() {
        (above.appeared)();
    }
    HAS_APPEARED.store(true, Ordering::Release);
}

/// Leaves the page and the shared states to the parent, in the child of a fork. The states stay mapped, for the sockets that both
/// hold.
pub(crate) fn leave_to_parent() {
    PROCESS.shared_states.store(null_mut(), Ordering::Relaxed);
    PROCESS.stats.store(null_mut(), Ordering::Relaxed);
    PROCESS.stats_fd.store(-1, Ordering::Relaxed);
    HAS_APPEARED.store(false, Ordering::Relaxed);
}

fn make_page() -> memlane_sys::Result<*mut Header> {
    let file = mem::memfd(stats::MEMFD_NAME, stats::PAGE_LEN, false)?;
    let base = mem::map_shared(file.raw(), 0, stats::PAGE_LEN, true)?;
    // From here on the page cannot be mapped writable any more: others only read it.
    mem::add_seals(file.raw(), mem::SEALS_FIXED | libc::F_SEAL_FUTURE_WRITE)?;
    let header: *mut Header = base.as_ptr().cast();
    // SAFETY: the region is larger than a Header, page aligned, zeroed; Header consists of atomics.
    let h = unsafe { &*header };
    h.version.store(stats::VERSION, Ordering::Relaxed);
    h.header_len
        .store(stats::HEADER_LEN as u32, Ordering::Relaxed);
    h.page_len.store(stats::PAGE_LEN as u64, Ordering::Relaxed);
    h.pid.store(proc::pid().cast_unsigned(), Ordering::Relaxed);
    h.uid.store(proc::euid(), Ordering::Relaxed);
    h.start_ns.store(time::wall_ns(), Ordering::Relaxed);
    h.gid
        .store(PROCESS.gid.load(Ordering::Relaxed), Ordering::Relaxed);
    let name = process_name();
    let (words, _) = name.as_chunks();
    for (word, bytes) in h.comm.iter().zip(words) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    h.conn_capacity
        .store(stats::CONN_CAPACITY as u32, Ordering::Relaxed);
    h.conn_entry_len
        .store(stats::CONN_ENTRY_LEN as u32, Ordering::Relaxed);
    h.ring_size
        .store(u64::from(config().ring), Ordering::Relaxed);
    h.spin_us.store(config().spin_us, Ordering::Relaxed);
    h.upgrade.store(config().upgrade as u32, Ordering::Relaxed);
    h.mode.store(config().mode as u32, Ordering::Relaxed);
    // SAFETY: the entries lie behind the header, and consist of atomics.
    let entries = unsafe {
        let first = base.as_ptr().add(stats::HEADER_LEN).cast::<ConnEntry>();
        core::slice::from_raw_parts(first, stats::CONN_CAPACITY)
    };
    early::copy_to(h, entries);
    h.magic.store(stats::MAGIC, Ordering::Release);
    PROCESS.stats_fd.store(hide(file), Ordering::Relaxed);
    Ok(header)
}

/// The name of this process, padded with zeros: that of its first thread.
fn process_name() -> [u8; 16] {
    if proc::tid() == proc::pid() {
        return proc::thread_name();
    }
    let mut comm = [0u8; 16];
    let _ = fd::read_file(c"/proc/self/comm", &mut comm);
    comm.map(|c| if c == b'\n' { 0 } else { c })
}

/// The header of the stats page, or of what a young process counts in; `None`: there is neither.
#[inline(always)]
pub fn header() -> Option<&'static Header> {
    let h = PROCESS.stats.load(Ordering::Acquire);
    // SAFETY: null, a static, or a mapping that is never unmapped.
    unsafe { h.as_ref() }
}

/// The connection's entry in the stats page.
#[inline(always)]
pub fn entry(conn: &Conn) -> Option<&'static ConnEntry> {
    let h = PROCESS.stats.load(Ordering::Acquire);
    if h.is_null() {
        return None;
    }
    let at =
        stats::HEADER_LEN + conn.index.load(Ordering::Relaxed) as usize * stats::CONN_ENTRY_LEN;
    // SAFETY: the page has CONN_CAPACITY entries behind its header, and `index` is below that. Without a page, the process has made
    // no more connections than there are entries (`early::has_place`).
    Some(unsafe { &*h.cast::<u8>().add(at).cast::<ConnEntry>() })
}

/// Adds to a counter of the process.
#[inline]
pub fn count(c: Counter, n: u64) {
    if let Some(h) = header() {
        h.counters[c as usize].fetch_add(n, Ordering::Relaxed);
    }
}

/// Shows the connection's state and reason in its entry.
pub fn show(conn: &Conn, state: ConnState, reason: Reason) {
    if let Some(e) = entry(conn) {
        e.reason.store(reason.0, Ordering::Relaxed);
        e.state.store(state as u32, Ordering::Relaxed);
    }
}
