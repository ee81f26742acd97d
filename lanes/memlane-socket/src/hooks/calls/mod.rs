//! The bodies of the hooked calls, by kind. Each either passes the call on to libc unchanged, or does for the two lanes
//! what libc does for TCP.

pub mod aio;
pub mod control;
pub mod io;
pub mod life;
pub mod opts;
pub mod pass;
mod plain;
pub mod signals;

use crate::state::conn::Conn;
use crate::state::process::ConnRef;
use core::sync::atomic::Ordering;
use memlane_core::reason::Reason;

/// Sends a connection back to TCP, before it is used, if a fork brought it to this process while its memory lane was
/// open: parent and child hold the same socket, and only TCP can serve both.
#[inline(always)]
pub fn touch(conn: &ConnRef) {
    touch_conn(conn);
}

/// Sends an inherited connection back to TCP, like [`touch`].
#[inline(always)]
pub fn touch_conn(conn: &Conn) {
    if conn.inherited.load(Ordering::Relaxed) != 0 {
        touch_inherited(conn);
    }
}

#[cold]
fn touch_inherited(conn: &Conn) {
    if conn.upgraded() {
        crate::protocol::lane::end(conn, Reason::SHARED_FD);
    } else if conn.shared().procs.load(Ordering::Acquire) != 1 {
        return; // the parent may still give it up
    }
    conn.inherited.store(0, Ordering::Relaxed);
}
