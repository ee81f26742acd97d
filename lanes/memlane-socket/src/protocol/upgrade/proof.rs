//! Checks that a message comes from the other end of the connection, and that this end may be a peer.

use crate::config::EID_LEN;
use crate::faults::{self, Step};
use crate::protocol::wire::Message;
use crate::state::conn::Conn;
use crate::state::process::{self, PROCESS};
use core::sync::atomic::Ordering;
use memlane_core::peer;
use memlane_core::reason::Reason;
use memlane_sys::sock::{Received, Tuple};

/// Checks that the sender of this message is the other end of the connection, and that its user may be a peer.
pub(super) fn check_peer(
    conn: &Conn,
    m: &Message,
    got: &Received,
    tuple: &Tuple,
) -> Result<(), Reason> {
    if m.boot
        != [
            PROCESS.boot[0].load(Ordering::Relaxed),
            PROCESS.boot[1].load(Ordering::Relaxed),
        ]
    {
        return Err(Reason::NOT_SAME_HOST);
    }
    if m.tuple != tuple.mirrored() {
        return Err(Reason::NOT_PROVEN);
    }
    let proof = got.fds[0].as_ref().ok_or(Reason::NOT_PROVEN)?;
    peer::prove(
        tuple,
        conn.fd.load(Ordering::Relaxed),
        &got.cred,
        proof,
        process::config().peer,
    )?;
    faults::at(Step::PeerProven);
    Ok(())
}

/// The EID that both sides share. Where EIDs are set, there must be one (SMC's rule for UEIDs).
pub(super) fn common_eid(m: &Message) -> Result<Option<[u8; EID_LEN]>, Reason> {
    let own = &process::config().eids[..process::config().eid_count];
    if own.is_empty() && m.eids().is_empty() {
        return Ok(None);
    }
    m.eids()
        .iter()
        .find(|e| own.contains(e))
        .copied()
        .map(Some)
        .ok_or(Reason::NO_EID)
}
