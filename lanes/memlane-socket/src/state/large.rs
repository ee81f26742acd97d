//! How many connections of this process may have a large window: a share of the machine's memory.
//!
//! Windows of up to [`SMALL`] bytes grow freely. A connection whose window grows beyond that counts as large until it
//! ends, with the whole of its ring, since its window may grow and shrink many times.

use crate::state::conn::{Conn, SEEN_LARGE};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memlane_sys::proc;

/// The largest window that is not counted, in bytes.
const SMALL: usize = 256 * 1024;
/// The rings of a process's large connections take at most this part of the machine's memory. Linux gives TCP's buffers
/// of all processes about a tenth (`net.ipv4.tcp_mem`).
const SHARE: u64 = 32;

/// The bytes of the rings of large connections. Each connection adds its own once and takes it back once, by its bit in
/// `Conn::seen`; nothing is ordered by the sum.
static BYTES: AtomicU64 = AtomicU64::new(0);
/// The machine's memory in MiB; 0: not asked yet.
static MEMORY: AtomicU32 = AtomicU32::new(0);

/// May the window of this connection grow to `window` bytes, in a ring of `ring` bytes? The caller holds `tx_lock`.
pub fn allows(conn: &Conn, window: usize, ring: usize) -> bool {
    if window <= SMALL || conn.seen.load(Ordering::Relaxed) & SEEN_LARGE != 0 {
        return true;
    }
    let most = (u64::from(memory_mib()) << 20) / SHARE;
    let more = |bytes: u64| bytes.checked_add(ring as u64).filter(|&sum| sum <= most);
    let taken = BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    if taken.is_ok() {
        conn.seen.fetch_or(SEEN_LARGE, Ordering::Relaxed);
    }
    taken.is_ok()
}

/// The connection is over, and no thread uses it: its ring of `ring` bytes does not count any more.
pub fn end(conn: &Conn, ring: usize) {
    if conn.seen.fetch_and(!SEEN_LARGE, Ordering::Relaxed) & SEEN_LARGE != 0 {
        BYTES.fetch_sub(ring as u64, Ordering::Relaxed);
    }
}

fn memory_mib() -> u32 {
    let known = MEMORY.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mib = u32::try_from(proc::memory() >> 20)
        .unwrap_or(u32::MAX)
        .max(1);
    MEMORY.store(mib, Ordering::Relaxed);
    mib
}
