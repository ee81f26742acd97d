//! The stats page, by which `memlane ps` and others see this process.

use super::{PROCESS, above, config, has_tables, hide, is_borrowed, tables};
use crate::state::conn::Conn;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};
use memlane_core::reason::Reason;
use memlane_core::stats::{self, ConnEntry, ConnState, Counter, Header};
use memlane_sys::{fd, mem, proc, time};

/// Has this process made its page, or tried to? Written under `pool_lock`, and in the child of a fork by its only thread.
static HAS_APPEARED: AtomicBool = AtomicBool::new(false);

/// Makes what a forked child left to its parent, if it has not been made yet: shared states for connections of its own, the
/// page, and what higher modules show. A child that a server forks for one short connection mostly needs none of them, and they
/// would make its fork a third longer.
#[inline(always)]
pub(crate) fn appear() {
    if !HAS_APPEARED.load(Ordering::Acquire) {
        appear_in_child();
    }
}

#[cold]
fn appear_in_child() {
    if is_borrowed() || !has_tables() {
        return;
    }
    let Some(_held) = PROCESS.pool_lock.lock() else {
        return;
    };
    if HAS_APPEARED.load(Ordering::Relaxed) {
        return;
    }
    if let Ok(shared_states) = tables::make_shared_states() {
        PROCESS
            .shared_states
            .store(shared_states, Ordering::Relaxed);
    }
    show_page();
}

/// Makes the page, and what higher modules show. The caller holds `pool_lock`.
pub(super) fn show_page() {
    make_page();
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

fn make_page() {
    let Ok(file) = mem::memfd(stats::MEMFD_NAME, stats::PAGE_LEN, false) else {
        return;
    };
    let Ok(base) = mem::map_shared(file.raw(), 0, stats::PAGE_LEN, true) else {
        return;
    };
    // From here on the page cannot be mapped writable any more: others only read it.
    if mem::add_seals(file.raw(), mem::SEALS_FIXED | libc::F_SEAL_FUTURE_WRITE).is_err() {
        return;
    }
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
    h.magic.store(stats::MAGIC, Ordering::Release);
    PROCESS.stats_fd.store(hide(file), Ordering::Relaxed);
    PROCESS.stats.store(header, Ordering::Release);
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

/// The header of the stats page, if there is a page.
#[inline(always)]
pub fn header() -> Option<&'static Header> {
    let h = PROCESS.stats.load(Ordering::Acquire);
    // SAFETY: null, or a mapping that is never unmapped.
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
    // SAFETY: the page has CONN_CAPACITY entries behind its header and `index` is below that.
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
