//! A peer that speaks another version of the handshake: it is told so, and both stay on TCP at once.

use super::{refuse, remember_peer};
use crate::protocol::wire::Message;
use crate::state::conn::{Handshake, Stage};
use crate::state::process;
use memlane_core::reason::Reason;
use memlane_sys::sock::Received;

/// A Proposal: why not. Whoever sent it is remembered, so that it can be told.
pub(super) fn of_proposal(hs: &mut Handshake, bytes: &[u8], got: &Received) -> Reason {
    if let Ok(m) = Message::of_other_version(bytes) {
        remember_peer(hs, &m, got);
    }
    Reason::VERSION
}

/// What came to the mailbox for one of our connections.
pub(super) fn of_answer(bytes: &[u8], got: &Received) {
    let Ok(m) = Message::of_other_version(bytes) else {
        return;
    };
    let Some(conn) = process::conn_by_id(m.echo) else {
        return;
    };
    let Some(_held) = conn.hs_lock.lock() else {
        return;
    };
    // SAFETY: hs_lock is held.
    let hs = unsafe { &mut *conn.hs.get() };
    // SAFETY: a connection that told its id has learnt its tuple.
    let tuple = unsafe { *conn.tuple.get() };
    if m.tuple == tuple.mirrored() && matches!(hs.stage, Stage::Proposed | Stage::Accepted) {
        remember_peer(hs, &m, got);
        refuse(&conn, hs, Reason::VERSION, true);
        conn.hs_due
            .store(u64::MAX, core::sync::atomic::Ordering::Relaxed);
    }
}
