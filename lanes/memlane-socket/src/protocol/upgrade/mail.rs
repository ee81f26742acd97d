//! The process's mailbox, and messages for connections that are gone or from peers that speak another version.

use super::messages::mailbox;
use super::{answer, channel, deliver, names, refuse, version};
use crate::protocol::board;
use crate::protocol::group::{self, PeerDmb};
use crate::protocol::wire::{self, Malformed, Message, MessageKind};
use crate::state::conn::Stage;
use crate::state::process::PROCESS;
use core::sync::atomic::Ordering;
use memlane_core::reason::Reason;
use memlane_core::ring::Tx;
use memlane_sys::sock::{self, Received, UnixName};

/// Takes the messages out of the mailbox and hands them to their connections. The caller holds `PROCESS.mail_lock`.
pub fn drain_mailbox() {
    channel::drain();
    let own = PROCESS.mailbox.load(Ordering::Acquire);
    if own < 0 {
        return;
    }
    for _ in 0..64 {
        let mut buf = [0u8; wire::LEN + 1];
        let Ok(got) = sock::recv_with_fds(own, &mut buf) else {
            return;
        };
        let bytes = got.len.and_then(|n| buf.get(..n)).unwrap_or(&[]);
        match Message::decode(bytes) {
            Ok(m) => deliver(&m, got),
            Err(Malformed::Version) => version::of_answer(bytes, &got),
            Err(_) => {}
        }
    }
}

/// Declines an Accept or Confirm for a connection that is gone: the DMB that it offers may serve another connection.
/// This is said in the DMB itself if its chunk is known here, else by mail.
pub(super) fn decline_unknown(m: &Message, got: &Received) {
    if !matches!(m.kind, MessageKind::Accept | MessageKind::Confirm) {
        return;
    }
    let told = PeerDmb {
        chunk: m.chunk,
        slot: u32::from(m.slot),
        ring_size: m.ring_size,
        token: m.token,
    };
    let let_go = group::lock().map(|mut l| group::let_go(&mut l, m.gid, got.cred.pid, &told));
    if let_go != Some(true) {
        give_back(m, got.from.as_ref());
    }
}

/// Tells the peer by mail that nobody uses the DMB that `m` offers.
pub(super) fn give_back(m: &Message, to: Option<&UnixName>) {
    if m.token == 0 {
        return;
    }
    let mut no = Message::new(MessageKind::Decline, m.tuple.mirrored());
    (no.echo, no.reason) = (m.id, Reason::CLOSING.0);
    (no.chunk, no.slot, no.token) = (m.chunk, m.slot, m.token);
    if let Some(to) = to {
        let _ = sock::send_with_fds(mailbox(), to, &no.encode(), &[]);
    }
}

/// Releases a DMB of ours that the peer will never use, as its message says.
pub(super) fn release_declined(m: &Message) {
    let words = group::own_words(board::number_of(m.chunk), u32::from(m.slot));
    if let Some(words) = words
        && m.token != 0
        && words.rx.0.token.load(Ordering::Acquire) == m.token
    {
        Tx::detach(words);
    }
}

/// Handles a Proposal that has come by mail.
pub(super) fn proposed(m: &Message, got: Received) {
    let Some(conn) = names::expected(&m.tuple.mirrored()) else {
        return not_here(m, &got);
    };
    let Some(_held) = conn.hs_lock.lock() else {
        return;
    };
    // SAFETY: hs_lock is held.
    let hs = unsafe { &mut *conn.hs.get() };
    if hs.stage != Stage::Listening {
        return not_here(m, &got);
    }
    if let Err(why) = answer(&conn, hs, Ok(*m), got) {
        refuse(&conn, hs, why, true);
        conn.hs_due.store(u64::MAX, Ordering::Relaxed);
    } else {
        conn.hs_due.store(0, Ordering::Relaxed);
    }
}

/// Answers that this process does not have that connection, or has not begun to use it.
fn not_here(m: &Message, got: &Received) {
    let mut no = Message::new(MessageKind::Decline, m.tuple.mirrored());
    (no.echo, no.reason) = (m.id, Reason::TOO_YOUNG.0);
    if let Some(to) = &got.from {
        let _ = sock::send_with_fds(mailbox(), to, &no.encode(), &[]);
    }
}
