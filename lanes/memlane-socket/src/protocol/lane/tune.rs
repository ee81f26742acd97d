//! TCP options that an open lane sets for itself, and gives back when it ends.
//! The program goes on seeing, and setting, its own values.

use crate::state::conn::{Conn, RxMode, SEEN_WIDENED, TUNED, TxMode};
use core::sync::atomic::Ordering;
use memlane_sys::sock::{self, Peeked};

/// Bytes on the TCP lane are wake-ups: Nagle's wait for an ACK that the ring has
/// made unnecessary would hold them for 40 ms.
const NODELAY: i32 = 1;
/// Bytes that wait in the sender's kernel, and …
/// … in the receiver's (two of loopback's segments). The ring can be used again
/// when the receiver has read all but a ring's worth of what went by TCP; TCP's
/// own buffers grow to tens of MiB, and a stream that fills them stays on TCP.
const WINDOW_CLAMP: i32 = 256 * 1024;

const OPTIONS: [(i32, i32); TUNED] = [
    (libc::TCP_NODELAY, NODELAY),
    (libc::TCP_WINDOW_CLAMP, WINDOW_CLAMP),
];
/// The sender's options come first.
const SENDERS: usize = 1;

/// The lane opens.
pub fn tune(conn: &Conn) {
    let fd = conn.fd.load(Ordering::Relaxed);
    widen_window(conn);
    for ((name, value), own) in OPTIONS.iter().zip(&conn.tuned) {
        let before = sock::option::<i32>(fd, libc::IPPROTO_TCP, *name).unwrap_or(0);
        own.store(before, Ordering::Relaxed);
        let _ = sock::set_option(fd, libc::IPPROTO_TCP, *name, *value);
    }
}

/// Loopback's segments have 64 KiB, as much as a young connection's whole window.
/// A reader that leaves less than that open, and cannot double it, says nothing
/// (tcp_cleanup_rbuf), and a sender does not send in smaller pieces: both wait for
/// the persist timer, 200 ms and more. Plain TCP's buffer grows while it carries
/// bulk; ours carries too little of it. Asking for a low-water mark makes the
/// kernel provide the buffer for it (tcp_set_rcvlowat), and leaves it to itself.
/// Not while bytes are unread: the kernel would announce them anew, which an
/// edge-triggered epoll set would report.
pub fn widen_window(conn: &Conn) {
    let fd = conn.fd.load(Ordering::Relaxed);
    if conn.seen.load(Ordering::Relaxed) & SEEN_WIDENED != 0 || sock::peek(fd) != Peeked::Nothing {
        return;
    }
    conn.seen.fetch_or(SEEN_WIDENED, Ordering::Relaxed);
    let own = sock::option::<i32>(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
    for mark in [WINDOW_CLAMP, own] {
        let _ = sock::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, mark);
    }
}

/// From here on, everything is sent by TCP.
pub fn tx_ended(conn: &Conn) {
    conn.shared().tx_gate.set(TxMode::Ended);
    restore(conn, 0..SENDERS);
}

/// From here on, everything comes by TCP; `mode` is `Drain` if something is left
/// in the ring, else `ENDED`.
pub fn rx_ended(conn: &Conn, mode: RxMode) {
    // What drained has given them back already, perhaps before a filter that forbids the call.
    if conn.shared().rx_gate.set(mode) != RxMode::Drain {
        restore(conn, SENDERS..TUNED);
    }
}

fn restore(conn: &Conn, which: core::ops::Range<usize>) {
    let fd = conn.fd.load(Ordering::Relaxed);
    for i in which {
        let own = conn.tuned[i].load(Ordering::Relaxed);
        let _ = sock::set_option(fd, libc::IPPROTO_TCP, OPTIONS[i].0, own);
    }
}

/// The program sets an option: is it one that the lane holds? Then its value is
/// kept for later.
pub fn set_by_program(conn: &Conn, name: i32, value: i32) -> bool {
    let Some(i) = held(conn, name) else {
        return false;
    };
    if name == libc::TCP_WINDOW_CLAMP && value == 0 {
        return false; // the kernel refuses that
    }
    let value = if name == libc::TCP_NODELAY {
        i32::from(value != 0)
    } else {
        value
    };
    conn.tuned[i].store(value, Ordering::Relaxed);
    true
}

/// What the program is to see, if the lane holds this option.
pub fn shown_to_program(conn: &Conn, name: i32) -> Option<i32> {
    held(conn, name).map(|i| conn.tuned[i].load(Ordering::Relaxed))
}

fn held(conn: &Conn, name: i32) -> Option<usize> {
    let i = OPTIONS.iter().position(|(option, _)| *option == name)?;
    let on = if i < SENDERS {
        conn.tx_mode() == TxMode::Open
    } else {
        matches!(conn.rx_mode(), RxMode::Cold | RxMode::Hot)
    };
    (conn.upgraded() && on).then_some(i)
}
