//! The pool of connections: a new one takes a free index and a shared state, and the last hold gives them back.
//!
//! A new connection resets what every connection writes, which is a few cache lines. The rest is reset only if its place is
//! [`worn`](Conn::worn): a short connection uses none of it.

use super::{CONNS, PROCESS, above, is_by_name, unhide};
use crate::state::conn::{Conn, Handshake, SharedState};
use crate::state::sets::Sleeper;
use core::sync::atomic::Ordering;

/// A connection that nobody uses, reset.
pub(super) fn alloc_conn() -> Option<&'static Conn> {
    let _held = PROCESS.pool_lock.lock()?;
    let base = PROCESS.conns.load(Ordering::Relaxed);
    let free = PROCESS.conn_free.load(Ordering::Relaxed);
    let waiting = PROCESS.conn_free_len.load(Ordering::Relaxed);
    let index = if waiting > 0 {
        PROCESS.conn_free_len.store(waiting - 1, Ordering::Relaxed);
        // SAFETY: below `conn_free_len`, inside the mapping of CONNS numbers.
        unsafe { *free.add(waiting as usize - 1) }
    } else {
        let next = PROCESS.conn_high.load(Ordering::Relaxed);
        if next as usize >= CONNS {
            return None;
        }
        PROCESS.conn_high.store(next + 1, Ordering::Relaxed);
        next
    };
    // SAFETY: below CONNS, inside the pool.
    let conn = unsafe { &*base.add(index as usize) };
    let Some(shared) = alloc_shared(index as usize) else {
        give_back(index);
        return None;
    };
    reset_conn(conn, index, shared);
    Some(conn)
}

/// Puts an index on the free list. The caller holds `pool_lock`.
fn give_back(index: u32) {
    let len = PROCESS.conn_free_len.load(Ordering::Relaxed);
    // SAFETY: there are never more free indices than CONNS.
    unsafe { *PROCESS.conn_free.load(Ordering::Relaxed).add(len as usize) = index };
    PROCESS.conn_free_len.store(len + 1, Ordering::Relaxed);
}

/// A shared state that no process uses, for connection `index`. It has the same index if no child still holds that one,
/// so that few connections touch little memory, however many come and go. The caller holds `pool_lock`.
fn alloc_shared(index: usize) -> Option<&'static SharedState> {
    let base = PROCESS.shared_states.load(Ordering::Relaxed);
    if base.is_null() {
        return None; // a forked child found no memory for them
    }
    for i in 0..CONNS {
        // SAFETY: below CONNS, inside the pool.
        let shared = unsafe { &*base.add((index + i) % CONNS) };
        if shared.procs.load(Ordering::Acquire) == 0 {
            reset_shared(shared);
            return Some(shared);
        }
    }
    None
}

fn reset_shared(shared: &SharedState) {
    if shared.worn.load(Ordering::Relaxed) != 0 {
        reset_worn_shared(shared);
    }
    shared.procs.store(1, Ordering::Relaxed);
    shared.nonblock.store(0, Ordering::Relaxed);
    shared.rx_gate.reset();
    shared.tx_gate.reset();
    shared.rx_count.store(0, Ordering::Relaxed);
    shared.tx_count.store(0, Ordering::Relaxed);
    shared.pending_error.store(0, Ordering::Relaxed);
    shared.tx_blocked.store(0, Ordering::Relaxed);
}

/// Resets what only a connection with a lane uses, or one that two processes have held.
#[inline(never)]
fn reset_worn_shared(shared: &SharedState) {
    shared.worn.store(0, Ordering::Relaxed);
    shared.rx_lock.reset();
    shared.tx_lock.reset();
    shared.tx_to_parked.store(0, Ordering::Relaxed);
    for word in [
        &shared.rx_taken,
        &shared.rx_flight,
        &shared.tx_sent,
        &shared.tx_waited,
        &shared.tx_flight,
        &shared.tx_full,
        &shared.tx_stalled_at,
        &shared.tx_napped_us,
        &shared.tx_stalled_by,
        &shared.tx_after,
        &shared.rx_after,
    ] {
        word.store(0, Ordering::Relaxed);
    }
}

fn reset_conn(conn: &Conn, index: u32, shared: &'static SharedState) {
    let is_first = conn.generation.fetch_add(1, Ordering::AcqRel) == 0;
    if is_first || conn.worn.load(Ordering::Relaxed) != 0 {
        reset_worn_conn(conn, index);
    }
    conn.closing.store(0, Ordering::Relaxed);
    conn.barred
        .store(PROCESS.frozen.load(Ordering::Relaxed), Ordering::Relaxed);
    conn.shared
        .store(core::ptr::from_ref(shared).cast_mut(), Ordering::Relaxed);
    conn.tx_calls.store(0, Ordering::Relaxed);
    conn.rx_calls.store(0, Ordering::Relaxed);
    conn.seen.store(0, Ordering::Relaxed);
    conn.last_waiter.set(Sleeper::NOBODY);
}

/// Resets what no connection uses whose handshake has not begun.
#[inline(never)]
fn reset_worn_conn(conn: &Conn, index: u32) {
    conn.worn.store(0, Ordering::Relaxed);
    conn.inherited.store(0, Ordering::Relaxed);
    conn.index.store(index, Ordering::Relaxed);
    for p in [&conn.tx_dmb, &conn.rx_dmb] {
        p.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    conn.given_ring
        .store(core::ptr::null_mut(), Ordering::Relaxed);
    conn.given_size.store(0, Ordering::Relaxed);
    conn.tx_bell.store(0, Ordering::Relaxed);
    conn.tx_ready_since.store(0, Ordering::Relaxed);
    conn.tx_ready_rx_calls.store(0, Ordering::Relaxed);
    conn.tx_stores.reset();
    conn.tx_writes.reset();
    conn.hs_lock.reset();
    conn.wakes_in_vain.store(0, Ordering::Relaxed);
    conn.looked_after.store(0, Ordering::Relaxed);
    conn.stays_parked.store(0, Ordering::Relaxed);
    conn.naps.reset();
    // SAFETY: the connection is not published yet: no other thread reads it.
    unsafe { *conn.hs.get() = Handshake::NEW };
    conn.regs.reset(index);
}

/// Frees a connection whose last descriptor and last hold are gone.
pub fn reap(conn: &'static Conn) {
    if conn
        .closing
        .compare_exchange(1, 2, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        return;
    }
    let is_as_made = !is_by_name() && conn.is_as_made();
    if let Some(above) = above() {
        (above.gone)(conn, is_as_made);
    }
    let shared = conn.shared();
    if !is_as_made {
        wear_out(conn, shared);
    }
    let _held = PROCESS.pool_lock.lock();
    shared.procs.fetch_sub(1, Ordering::AcqRel);
    give_back(conn.index.load(Ordering::Relaxed));
}

/// Gives back what a connection has taken that has used more than each new one resets.
#[inline(never)]
fn wear_out(conn: &Conn, shared: &SharedState) {
    unhide(conn.naps.take_back());
    conn.regs.give_back();
    // No hold is left: from here on the connection has no memory.
    for dmb in [&conn.tx_dmb, &conn.rx_dmb] {
        dmb.store(core::ptr::null_mut(), Ordering::Release);
    }
    conn.worn.store(1, Ordering::Relaxed);
    shared.worn.store(1, Ordering::Relaxed);
}
