//! What comes to the process's mailbox and over life lines, and messages for connections that are gone or from peers that speak another version.

use super::messages::{To, sender_of, tell};
use super::{answer, channel, deliver, names, refuse, version};
use crate::protocol::board;
use crate::protocol::group::{self, Owed, PeerDmb};
use crate::protocol::wire::{self, Malformed, Message, MessageKind};
use crate::state::conn::Stage;
use crate::state::process::PROCESS;
use core::sync::atomic::Ordering;
use memlane_core::reason::Reason;
use memlane_core::ring::Tx;
use memlane_sys::sock::{self, Received, Tuple};
use memlane_sys::{Errno, epoll, time};

/// The most messages that are taken at a time from the mailbox, and as many from all life lines together …
const AT_ONCE: usize = 64;
/// … of which each line with news has at least so many.
const FROM_EACH: usize = AT_ONCE / epoll::READY_MOST;

/// Takes the messages that have come and hands them to their connections. The caller holds `PROCESS.mail_lock`.
pub fn drain_mailbox() {
    channel::drain();
    drain_mail();
    drain_lines();
}

fn drain_lines() {
    let (mut groups, mut count) = ([0; epoll::READY_MOST], 0);
    for (place, group) in groups.iter_mut().zip(group::lines_with_news()) {
        (*place, count) = (group, count + 1);
    }
    for &group in &groups[..count] {
        if !is_answered(group) {
            continue;
        }
        for _ in 0..(AT_ONCE / count).max(FROM_EACH) {
            let mut buf = [0u8; wire::LEN + 1];
            let heard = group::lock().and_then(|mut l| group::line(&mut l, group).hear(&mut buf));
            let Some(got) = heard else { break };
            take(&buf, got, Some(group));
            if !is_answered(group) {
                break;
            }
        }
    }
}

/// Sends the answer that the peer of this group is owed. `false`: there is no room for it.
fn is_answered(group: u32) -> bool {
    let Some(mut locked) = group::lock() else {
        return false;
    };
    match group::line(&mut locked, group).owed() {
        Ok(None) => true,
        Ok(Some(answer)) => tell_too_young(&mut locked, group, answer),
        Err(_) => false,
    }
}

/// Declines a Proposal that came over a life line. `false`: there is no room now; the answer is owed.
fn tell_too_young(locked: &mut group::Locked<'_>, group: u32, answer: Owed) -> bool {
    let no = too_young(answer.tuple, answer.echo);
    let line = group::line(locked, group);
    let is_full = line.say(&no.encode(), &[]) == Err(Errno::AGAIN);
    if is_full {
        line.owe(answer);
    }
    !is_full
}

fn too_young(tuple: Tuple, echo: u64) -> Message {
    let mut no = Message::new(MessageKind::Decline, tuple);
    (no.echo, no.reason) = (echo, Reason::TOO_YOUNG.0);
    no
}

fn drain_mail() {
    let own = PROCESS.mailbox.load(Ordering::Acquire);
    if own < 0 {
        return;
    }
    for _ in 0..AT_ONCE {
        let mut buf = [0u8; wire::LEN + 1];
        let Ok(got) = sock::recv_with_fds(own, &mut buf) else {
            return;
        };
        take(&buf, got, None);
    }
}

/// Hands a message to its connection. `line`: the group over whose life line it has come.
fn take(buf: &[u8], got: Received, line: Option<u32>) {
    let bytes = got.len.and_then(|n| buf.get(..n)).unwrap_or(&[]);
    match Message::decode(bytes) {
        Ok(m) => deliver(&m, got, line),
        Err(Malformed::Version) => version::of_answer(bytes, &got, line),
        Err(_) => {}
    }
}

/// Declines an Accept or Confirm for a connection that is gone: the DMB that it offers may serve another connection.
/// This is said in the DMB itself if its chunk is known here, else by mail.
pub(super) fn decline_unknown(m: &Message, got: &Received, line: Option<u32>) {
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
        give_back(m, sender_of(got, line).as_ref());
    }
}

/// Tells the peer that nobody uses the DMB that `m` offers.
pub(super) fn give_back(m: &Message, to: Option<&To>) {
    if m.token == 0 {
        return;
    }
    let mut no = Message::new(MessageKind::Decline, m.tuple.mirrored());
    (no.echo, no.reason) = (m.id, Reason::CLOSING.0);
    (no.chunk, no.slot, no.token) = (m.chunk, m.slot, m.token);
    if let Some(to) = to {
        tell(to, &no);
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

/// Handles a Proposal that has come by mail or over a life line.
pub(super) fn proposed(m: &Message, got: Received, line: Option<u32>) {
    if line.is_some() {
        names::told_by_line();
    }
    let Some(conn) = names::expected(&m.tuple.mirrored()) else {
        return not_here(m, &got, line);
    };
    let Some(_held) = conn.hs_lock.lock() else {
        return;
    };
    // SAFETY: hs_lock is held.
    let hs = unsafe { &mut *conn.hs.get() };
    if hs.stage != Stage::Listening {
        return not_here(m, &got, line);
    }
    if let Err(why) = answer(&conn, hs, Ok(*m), got, line) {
        refuse(&conn, hs, why, true);
        conn.hs_due.store(u64::MAX, Ordering::Relaxed);
    } else {
        conn.hs_due.store(0, Ordering::Relaxed);
    }
}

/// Answers that this process does not have that connection, or has not begun to use it.
fn not_here(m: &Message, got: &Received, line: Option<u32>) {
    let answer = Owed {
        tuple: m.tuple.mirrored(),
        echo: m.id,
        since: time::now_ns(),
    };
    match sender_of(got, line) {
        Some(To::Line(group)) => {
            if let Some(mut locked) = group::lock() {
                tell_too_young(&mut locked, group, answer);
            }
        }
        Some(to) => tell(&to, &too_young(answer.tuple, answer.echo)),
        None => {}
    }
}
