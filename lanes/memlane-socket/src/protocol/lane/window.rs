//! How large a sender's window may become.

use crate::faults::{self, Step};
use crate::state::conn::Conn;
use crate::state::large;
use crate::state::process::memory;
use memlane_core::access::SharedBytes;

/// The window that a send of `write` bytes may have, which wants `wanted` bytes and has `window`.
#[inline(always)]
pub(super) fn allowed(
    conn: &Conn,
    ring: &SharedBytes,
    (window, wanted): (usize, usize),
    write: usize,
    now: u64,
) -> usize {
    let wanted = large::window(conn, wanted, write, ring.len(), now);
    if wanted <= window || can_grow(conn, ring, window, wanted) {
        wanted
    } else {
        window
    }
}

/// Is there memory for a window of `to` bytes of this ring, which now has `from`?
#[cold]
pub(super) fn can_grow(conn: &Conn, ring: &SharedBytes, from: usize, to: usize) -> bool {
    let more = to.saturating_sub(from);
    conn.cost.allows(more, ring.len()) && memory::allows_window(ring, from, more)
}

/// Shows a window that had `before` bytes before this send.
#[inline]
pub(super) fn show_change(conn: &Conn, before: usize, now: usize) {
    if now != before {
        crate::state::stats::show_window(conn, now);
        let grown = now > before;
        faults::at(if grown {
            Step::WindowGrown
        } else {
            Step::WindowShrunk
        });
    }
}
