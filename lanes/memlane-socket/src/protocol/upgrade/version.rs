//! A peer that speaks another version of the handshake: it gets a Decline, and both sides stay on TCP at once.

use super::messages::remember_peer;
use super::refuse;
use crate::protocol::wire::Message;
use crate::state::conn::{Handshake, Stage};
use crate::state::process;
use memlane_core::reason::Reason;
use memlane_sys::sock::Received;

/// The reason for declining a Proposal of another version. Remembers the sender, so that the Decline reaches it.
pub(super) fn of_proposal(hs: &mut Handshake, bytes: &[u8], got: &Received) -> Reason {
    if let Ok(m) = Message::of_other_version(bytes) {
        remember_peer(hs, &m, got, None);
    }
    Reason::VERSION
}

/// Handles a message of another version that came, to the mailbox or over a life line, for one of our connections.
pub(super) fn of_answer(bytes: &[u8], got: &Received, line: Option<u32>) {
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
    // SAFETY: a connection learns its tuple before it sends its id.
    let tuple = unsafe { *conn.tuple.get() };
    if m.tuple == tuple.mirrored() && matches!(hs.stage, Stage::Proposed | Stage::Accepted) {
        remember_peer(hs, &m, got, line);
        refuse(&conn, hs, Reason::VERSION, true);
        conn.hs_due
            .store(u64::MAX, core::sync::atomic::Ordering::Relaxed);
    }
}
