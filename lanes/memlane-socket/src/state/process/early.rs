//! What a process counts before it has a stats page.
//!
//! Most programs of a script end after a connection or two. To make the page, and what is made with it, would be about a third of
//! what the library costs them. So they count in a static of the same shape. When the process appears, its page takes over what
//! is there. It appears when it listens or accepts, with its fifth connection, or with the fourth call on one.

use super::{PROCESS, config};
use crate::config::Upgrade;
use crate::state::conn::Role;
use crate::state::far::far;
use core::ptr::from_ref;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use memlane_core::stats::{CONN_ENTRY_LEN, ConnEntry, HEADER_LEN, Header};

/// A process that makes more connections than this has a page.
const MOST: usize = 4;

/// So has one that has made this many calls on a connection: two exchanges.
pub(super) const CALLS: u64 = 4;

/// The beginning of a stats page.
#[repr(C)]
struct Early {
    header: Header,
    entries: [ConnEntry; MOST],
}

const _: () = assert!(
    core::mem::offset_of!(Early, entries) == HEADER_LEN
        && size_of::<Early>() == HEADER_LEN + MOST * CONN_ENTRY_LEN
);

far! {
    // SAFETY: it consists of atomic integers, which may be zero.
    static EARLY: Early = unsafe { core::mem::zeroed() };
}

/// The number of connections that the process has made without a page.
static MADE: AtomicUsize = AtomicUsize::new(0);

fn start_of_early() -> *mut Header {
    from_ref(&EARLY).cast::<Header>().cast_mut()
}

/// Counts in the static from now on.
pub(super) fn begin() {
    // The first use of its page is a write: a read would cost a page fault of its own.
    EARLY.header.conn_high.store(0, Relaxed);
    PROCESS.stats.store(start_of_early(), Relaxed);
}

/// May one more connection begin without a page? One that is accepted may not: a server shows itself. Nor may one whose
/// handshake begins at once, or one of a forked child's: the static has the parent's counts.
pub(super) fn has_place(role: Role) -> bool {
    role == Role::Connected
        && config().upgrade == Upgrade::Auto
        && PROCESS.stats.load(Relaxed) == start_of_early()
        && MADE.fetch_add(1, Relaxed) < MOST
}

/// Copies what was counted to a new page, which no thread knows of yet. What a thread adds to the static from now on is lost.
pub(super) fn copy_to(page: &Header, entries: &[ConnEntry]) {
    if PROCESS.stats.load(Relaxed) != start_of_early() {
        return;
    }
    let early = &EARLY.header;
    copy(&early.conn_high, &page.conn_high);
    for (from, to) in early.counters.iter().zip(&page.counters) {
        to.store(from.load(Relaxed), Relaxed);
    }
    for (from, to) in early.reasons.iter().zip(&page.reasons) {
        copy(&from.code, &to.code);
        to.client.store(from.client.load(Relaxed), Relaxed);
        to.server.store(from.server.load(Relaxed), Relaxed);
    }
    for (from, to) in EARLY.entries.iter().zip(entries) {
        copy_entry(from, to);
    }
}

/// Copies what an entry has before the connection's handshake begins.
fn copy_entry(from: &ConnEntry, to: &ConnEntry) {
    for (from, to) in [
        (&from.fd, &to.fd),
        (&from.role, &to.role),
        (&from.reason, &to.reason),
        (&from.state, &to.state),
    ] {
        copy(from, to);
    }
    for (from, to) in [
        (&from.since_ns, &to.since_ns),
        (&from.tx_tcp_bytes, &to.tx_tcp_bytes),
        (&from.rx_tcp_bytes, &to.rx_tcp_bytes),
    ] {
        to.store(from.load(Relaxed), Relaxed);
    }
}

fn copy(from: &AtomicU32, to: &AtomicU32) {
    to.store(from.load(Relaxed), Relaxed);
}
