//! The order in which a receiver's epoll set reports what is ready.
//!
//! The kernel reports descriptors in the order in which they became ready. A set whose connections have rings gets its
//! news in two ways, and keeps that order by two rules:
//!
//! * **Among rings**: a sender notes in the DMB when it set the DMB's bit in the ready word
//!   ([`SentWords::ready_since`](memlane_core::layout::SentWords)); a receiver that finds several bits goes by that.
//! * **Between rings and all else** (TCP, pipes, timers, listeners): a receiver that waits, reads or sends shows now and
//!   then that it looks ([`ReadyWords::looked`]). If it has not looked for a while, it computes, or waits elsewhere, and rings
//!   that became ready meanwhile have no place among what the kernel lists. The first bytes then go by TCP, so that the
//!   kernel lists them too. Bytes that follow unread ones change nothing, and go by the ring.
//!
//! What rings report lies within [`AWAY_US`] after the receiver last looked, so it is reported before what the kernel has.
//! Both words are hints: a peer that lies changes its own place only.

use crate::protocol::group;
use crate::state::conn::{Conn, Dmb, SEEN_SELF};
use crate::state::process::PROCESS;
use core::sync::atomic::Ordering;
use memlane_core::layout::{ReadyWords, WANT_READY};
use memlane_core::ring::{Misbehaved, Tx};

/// A receiver that has shown nothing for this long is away. A busy event loop reads or sends more often; two events that
/// are farther apart than this must keep their order.
const AWAY_US: u64 = 1_000;
/// Bytes that come sooner after the last ones are taken to meet them unread, unless we have received meanwhile.
const IN_A_ROW_US: u64 = 50;

fn ready_words(conn: &Conn) -> &ReadyWords {
    // SAFETY: set when the chunk was attached; chunks are not unmapped while a connection uses them.
    unsafe { &*conn.tx_ready.load(Ordering::Relaxed) }
}

/// This process sends: it is busy with its connections, and about to look at its rings. What it sends to itself says
/// nothing of that.
#[inline]
pub(super) fn is_busy(conn: &Conn, now: u64) {
    if conn.seen.load(Ordering::Relaxed) & SEEN_SELF == 0 {
        group::looking(now);
    }
}

/// Is the receiver away, with nothing unread? Then the next bytes go by TCP. `tx_lock` is held; `now` in `ticks`.
#[inline]
pub(super) fn is_away(conn: &Conn, tx: &mut Tx, words: &Dmb, now: u64) -> Result<bool, Misbehaved> {
    if words.rx.0.flags.load(Ordering::Relaxed) & WANT_READY == 0 {
        return Ok(false);
    }
    let looked = ready_words(conn).looked.load(Ordering::Relaxed);
    let away = AWAY_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    if looked == 0 || now.saturating_sub(looked) < away {
        return Ok(false);
    }
    tx.drained(words)
}

/// When the receiver's set got news of this connection, told in the DMB before they are published.
#[must_use]
pub(super) struct Since {
    before: u64,
    told: bool,
    now: u64,
}

/// Before bytes are published for a receiver with [`WANT_READY`]: if it has probably seen all earlier ones, these are
/// the first of its news. `tx_lock` is held; `now` in `ticks`.
#[inline]
pub(super) fn will_be_ready(conn: &Conn, words: &Dmb, now: u64) -> Since {
    let before = conn.tx_ready_since.load(Ordering::Relaxed);
    let received = conn.rx_calls.load(Ordering::Relaxed);
    let in_a_row = IN_A_ROW_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    let told = received != conn.tx_ready_rx_calls.load(Ordering::Relaxed)
        || now.wrapping_sub(before) > in_a_row;
    let since = Since { before, told, now };
    if told {
        tell(conn, words, now);
        conn.tx_ready_rx_calls.store(received, Ordering::Relaxed);
    }
    since
}

fn tell(conn: &Conn, words: &Dmb, since: u64) {
    conn.tx_ready_since.store(since, Ordering::Relaxed);
    words.sent.0.ready_since.store(since, Ordering::Relaxed);
}

/// After `published`: sets the receiver's ready bit, so that whoever sees the bit sees the bytes; and mends what
/// `will_be_ready` took for granted, if the bit shows that it was not so.
#[inline]
pub(super) fn is_ready(conn: &Conn, words: &Dmb, since: &Since) {
    let bit = 1u64 << (conn.tx_slot.load(Ordering::Relaxed) & 63);
    let was = ready_words(conn).bits.fetch_or(bit, Ordering::AcqRel);
    let are_first = was & bit == 0;
    if are_first != since.told {
        tell(
            conn,
            words,
            if are_first { since.now } else { since.before },
        );
    }
}
