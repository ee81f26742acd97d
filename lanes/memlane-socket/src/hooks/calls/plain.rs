//! Calls on a connection whose lane is not open, by the program's own call.
//!
//! Most calls of a short connection find cold caches: what they cost is the number of lines that their code has. So these calls
//! have code of their own, without branches for lanes ([0045](../../../../../docs/decisions/0045-calls-on-cold-caches.md)).

use crate::protocol::lane;
use crate::protocol::upgrade;
use crate::state::conn::{Conn, RxMode, TxMode};
use crate::state::process::{self, Glimpse};
use crate::state::{spin, stats, trace};
use core::sync::atomic::Ordering;
use libc::{iovec, ssize_t};

/// Has the connection no lane, and does it belong to this process alone? Where a tracer watches, calls take the general way.
#[inline(always)]
pub(super) fn is_plain(conn: &Conn) -> bool {
    !conn.upgraded() && conn.inherited.load(Ordering::Relaxed) == 0 && !trace::on()
}

/// Receives, and takes the step of the handshake that is due afterwards. `buffers` are what the call fills.
/// `None`: nothing was done, because the lane is about to open, the connection stays on TCP for good, or the descriptor refers to
/// another one by now.
#[inline(always)]
pub(super) fn receive<B: AsRef<[iovec]>>(
    glimpse: &Glimpse,
    flags: i32,
    buffers: impl FnOnce() -> B,
    original: impl FnOnce() -> ssize_t,
) -> Option<ssize_t> {
    if !glimpse.is_sure() {
        return None;
    }
    let conn = glimpse.conn();
    let shared = conn.shared();
    if shared.rx_gate.enter() != RxMode::Plain {
        shared.rx_gate.leave();
        return None;
    }
    conn.rx_calls.fetch_add(1, Ordering::Relaxed);
    let n = original();
    let mut count = 0;
    if n > 0 && flags & libc::MSG_PEEK == 0 {
        let bytes = n.cast_unsigned() as u64;
        count = bytes + shared.rx_count.fetch_add(bytes, Ordering::AcqRel);
        stats::add_rx_tcp(conn, bytes);
    }
    if shared.rx_gate.leave() != RxMode::Plain || trace::on() {
        let n = lane::recv::came_by_kernel(conn, buffers().as_ref(), flags, n);
        upgrade::after_call(conn, n);
        return Some(n);
    }
    process::hurry(conn, count);
    spin::received(n);
    upgrade::after_call(conn, n);
    Some(n)
}

/// Sends what lies in `buffers`, and takes the step of the handshake that is due afterwards. `None`: as [`receive`] says.
#[inline(always)]
pub(super) fn send<B: AsRef<[iovec]>>(
    glimpse: &Glimpse,
    buffers: impl FnOnce() -> B,
    original: impl FnOnce() -> ssize_t,
) -> Option<ssize_t> {
    if !glimpse.is_sure() {
        return None;
    }
    let conn = glimpse.conn();
    let shared = conn.shared();
    if shared.tx_gate.enter() != TxMode::Plain {
        shared.tx_gate.leave();
        return None;
    }
    conn.tx_calls.fetch_add(1, Ordering::Relaxed);
    let n = original();
    if n > 0 {
        let bytes = n.cast_unsigned() as u64;
        let before = shared.tx_count.fetch_add(bytes, Ordering::AcqRel);
        stats::add_tx_tcp(conn, bytes);
        if trace::on() {
            trace::by_kernel(conn, buffers().as_ref(), before, n);
        }
        process::hurry(conn, before + bytes);
    }
    shared.tx_gate.leave();
    stats::show_tx(conn, n);
    upgrade::after_call(conn, n);
    Some(n)
}
