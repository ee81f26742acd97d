//! The order in which a receiver's epoll set reports what is ready.
//!
//! The kernel reports descriptors in the order in which they became ready. A set whose connections have rings learns of
//! news in two ways, from the kernel and from its ready words. Two rules keep the order:
//!
//! * **Among rings**: a sender notes in the DMB when it set the DMB's bit in the ready word
//!   ([`SentWords::ready_since`](memlane_core::layout::SentWords)); a receiver that finds several bits goes by that.
//! * **Between rings and all else** (TCP, pipes, timers, listeners): a receiver that waits, reads or sends writes down
//!   the time now and then ([`ReadyWords::looked`]). If that time is old, the receiver computes, or waits elsewhere,
//!   and rings that become ready meanwhile have no position in the kernel's order. So the sender sends the first bytes
//!   by TCP, and the kernel puts them in order. This message is a *mark*: what becomes ready in the next [`AWAY_US`] goes
//!   by rings, and is reported behind it ([`memlane_core::marks`]). Bytes behind unread bytes change nothing, and go by
//!   the ring. A receiver that sleeps until a bell rings is not away: the kernel puts the bell in order.
//!
//! News from a ring is thus at most [`AWAY_US`] newer than the receiver's last look, and is reported before the
//! kernel's; or it is as much newer than a mark, and is reported behind that. All these words are hints: a peer that lies
//! in them only changes the order within one report.

use crate::protocol::board;
use crate::state::conn::{Conn, Dmb, SEEN_SELF};
use crate::state::process::{self, PROCESS};
use core::sync::atomic::Ordering;
use memlane_core::bell::Ring;
use memlane_core::layout::{ReadyWords, WANT_READY};
use memlane_core::marks::Place;
use memlane_core::ring::{Misbehaved, Tx};
use memlane_core::stats::Counter;

/// A receiver whose [`ReadyWords::looked`] is older than this, in microseconds, is away. A busy event loop reads or
/// sends more often than that. Two events that are farther apart than this must keep their order.
const AWAY_US: u64 = 1_000;
/// Bytes sent within this many microseconds of the last ones are expected to meet them unread, unless this side has
/// received in between.
const IN_A_ROW_US: u64 = 50;

fn ready_words(conn: &Conn) -> &ReadyWords {
    // SAFETY: set when the chunk was attached; chunks are not unmapped while a connection uses them.
    unsafe { &*conn.tx_ready.load(Ordering::Relaxed) }
}

/// Marks this process as looking at its rings: it sends, so it is busy with its connections. Does nothing for a
/// connection of a process with itself, whose bytes say nothing about other senders.
#[inline]
pub(super) fn is_busy(conn: &Conn, now: u64) {
    if conn.seen.load(Ordering::Relaxed) & SEEN_SELF == 0 {
        board::looking(now);
    }
}

/// Is the receiver away, has it read everything, and is there no mark behind which the next bytes belong? Then they go by
/// TCP. The caller holds `tx_lock`; `now` is in `ticks`.
#[inline]
pub(super) fn is_away(conn: &Conn, tx: &mut Tx, words: &Dmb, now: u64) -> Result<bool, Misbehaved> {
    if words.rx.0.flags.load(Ordering::Relaxed) & WANT_READY == 0 {
        return Ok(false);
    }
    let ready = ready_words(conn);
    if ready.is_asleep() {
        return Ok(false); // the bell wakes it, and has its position among the kernel's news
    }
    if conn.is_across() {
        return Ok(false); // it does not say when it looked
    }
    let looked = ready.looked.load(Ordering::Relaxed);
    let away = AWAY_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    if looked == 0 || now.saturating_sub(looked) < away {
        return Ok(false);
    }
    Ok(tx.drained(words)? && goes_by_tcp(conn, now, looked, away))
}

/// Must the first news for a receiver that is away go by TCP, because they make a mark, or none can be made? `looked` is when
/// the receiver last looked, and `away` is how long a mark holds, in `ticks`.
#[cold]
fn goes_by_tcp(conn: &Conn, now: u64, looked: u64, away: u64) -> bool {
    let slot = conn.tx_slot.load(Ordering::Relaxed) as usize;
    ready_words(conn).place(slot, now, looked, away) != Place::BehindMark
}

/// When the receiver's set gets news of this connection. The sender writes it to the DMB before it publishes the bytes.
#[must_use]
pub(super) struct Since {
    before: u64,
    told: bool,
    now: u64,
}

/// Prepares to publish bytes for a receiver with [`WANT_READY`]. If the receiver has probably seen all earlier bytes,
/// these are news, and the sender notes the time. The caller holds `tx_lock`; `now` is in `ticks`.
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
    // To a receiver on another machine, this clock says nothing.
    let since = if conn.is_across() { 0 } else { since };
    words.sent.0.ready_since.store(since, Ordering::Relaxed);
}

/// Sets the receiver's ready bit, and wakes a receiver that sleeps. This comes after the store to `published`, so that a
/// receiver that sees the bit sees the bytes. If the old bit shows that `will_be_ready` guessed wrong, corrects the time.
#[inline]
pub(super) fn is_ready(conn: &Conn, words: &Dmb, since: &Since) {
    let bit = 1u64 << (conn.tx_slot.load(Ordering::Relaxed) & 63);
    let told = ready_words(conn).tell(bit);
    if told.first != since.told {
        tell(
            conn,
            words,
            if told.first { since.now } else { since.before },
        );
    }
    if let Some(how) = told.ring {
        ring(conn, how);
    }
}

/// Wakes a receiver that polls ([`WANT_BELL`](memlane_core::layout::WANT_BELL)) and sleeps. This comes after the store to `published`.
#[inline]
pub(super) fn wake_poller(conn: &Conn) {
    if let Some(how) = ready_words(conn).ring_due() {
        ring(conn, how);
    }
}

/// Rings the bell of the receiver's chunk. If that is not possible, the receiver learns that it cannot rely on it.
#[cold]
fn ring(conn: &Conn, how: Ring) {
    process::count(Counter::BellsRung, 1);
    if !process::ring(conn.tx_bell.load(Ordering::Relaxed), how) {
        ready_words(conn).rings.store(0, Ordering::Release);
    }
}
