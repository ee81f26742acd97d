//! TCP options that an open lane sets on the socket, and restores when it ends. The program still sees and sets its own
//! values.

use crate::state::conn::{Conn, RxMode, SEEN_CLAMPED, SEEN_INQ, SEEN_WIDENED, TUNED, TxMode};
use core::sync::atomic::Ordering;
use memlane_sys::sock::{self, Peeked};

/// Bytes on the TCP lane are wake-ups. Nagle's algorithm would hold them for 40 ms, for an ACK that the ring has made
/// unnecessary.
const NODELAY: i32 = 1;
/// The limit on bytes that wait in the receiver's kernel: four segments of loopback. The ring can be used again when
/// the receiver has read all but a ring's worth of the bytes that went by TCP. TCP's own buffers grow to tens of MiB,
/// and a stream that fills them would stay on TCP.
const WINDOW_CLAMP: i32 = 256 * 1024;

const OPTIONS: [(i32, i32); TUNED] = [
    (libc::TCP_NODELAY, NODELAY),
    (libc::TCP_WINDOW_CLAMP, WINDOW_CLAMP),
];
/// The number of options at the front of [`OPTIONS`] that belong to the sending direction.
const SENDERS: usize = 1;

/// Sets the options when the lane opens.
pub fn tune(conn: &Conn) {
    let fd = conn.fd.load(Ordering::Relaxed);
    // A socket has it from its listener, too.
    if sock::option::<i32>(fd, libc::IPPROTO_TCP, libc::TCP_INQ) == Ok(1) {
        conn.seen.fetch_or(SEEN_INQ, Ordering::Relaxed);
    }
    for ((name, _), own) in OPTIONS.iter().zip(&conn.tuned) {
        let before = sock::option::<i32>(fd, libc::IPPROTO_TCP, *name).unwrap_or(0);
        own.store(before, Ordering::Relaxed);
    }
    if conn.tuned[SENDERS].load(Ordering::Relaxed) < least_clamp(fd) {
        conn.seen.fetch_or(SEEN_CLAMPED, Ordering::Relaxed);
    }
    widen_window(conn);
    for (name, value) in OPTIONS {
        let _ = sock::set_option(fd, libc::IPPROTO_TCP, name, value);
    }
}

/// The least clamp that the kernel itself gives a socket with this receive buffer, nearly.
///
/// The kernel sets the clamp to the share of the buffer that it takes for payload: `tcp_win_from_space`, half at first,
/// and more where segments are large. It is a little less than half for a while, after a program has set `SO_RCVBUF`.
fn least_clamp(fd: i32) -> i32 {
    sock::option::<i32>(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0) / 8 * 3
}

/// Widens TCP's receive window once.
///
/// A segment of loopback has 64 KiB, as much as a young connection's whole window. A reader that leaves less than that
/// open, and cannot double it, sends no window update (`tcp_cleanup_rbuf`), and a sender does not send in smaller
/// pieces. Both then wait for the persist timer, 200 ms or more. Plain TCP's buffer grows while it carries bulk; under
/// memlane TCP carries too little of it. Asking for a low-water mark makes the kernel provide the buffer
/// (`tcp_set_rcvlowat`), and the kernel's own tuning stays on.
///
/// This waits while bytes are unread: the kernel would announce them anew, and an edge-triggered epoll set would report
/// them.
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

/// Notes that everything is sent by TCP from here on, and restores the sender's options.
pub fn tx_ended(conn: &Conn) {
    conn.shared().tx_gate.set(TxMode::Ended);
    restore(conn, 0..SENDERS);
}

/// Notes that everything comes by TCP from here on, and restores the receiver's options. `mode` is `Drain` if bytes are
/// left in the ring, else `Ended`.
pub fn rx_ended(conn: &Conn, mode: RxMode) {
    // `Drain` has restored them already, perhaps before a filter that forbids the call.
    if conn.shared().rx_gate.set(mode) != RxMode::Drain {
        restore(conn, SENDERS..TUNED);
    }
}

fn restore(conn: &Conn, which: core::ops::Range<usize>) {
    let fd = conn.fd.load(Ordering::Relaxed);
    for i in which {
        let name = OPTIONS[i].0;
        let own = conn.tuned[i].load(Ordering::Relaxed);
        let value = if name == libc::TCP_WINDOW_CLAMP {
            clamp_after(conn, own)
        } else {
            own
        };
        let _ = sock::set_option(fd, libc::IPPROTO_TCP, name, value);
    }
}

/// The clamp for a socket whose lane has ended: the program's, or as the kernel would have it by now.
///
/// The kernel raises the clamp only when it enlarges the receive buffer. That has grown meanwhile ([`widen_window`]), so the
/// clamp from before would stay, and the stream would have the window of a young connection for good.
fn clamp_after(conn: &Conn, own: i32) -> i32 {
    if conn.seen.load(Ordering::Relaxed) & SEEN_CLAMPED != 0 {
        return own;
    }
    own.max(least_clamp(conn.fd.load(Ordering::Relaxed)))
}

/// Keeps a value that the program sets for later, if the lane holds this option. Returns whether it does.
pub fn set_by_program(conn: &Conn, name: i32, value: i32) -> bool {
    if name == libc::TCP_WINDOW_CLAMP {
        if value == 0 {
            return false; // the kernel refuses this value
        }
        // Before the lane opens, too.
        conn.seen.fetch_or(SEEN_CLAMPED, Ordering::Relaxed);
    }
    let Some(i) = held(conn, name) else {
        return false;
    };
    let value = if name == libc::TCP_NODELAY {
        i32::from(value != 0)
    } else {
        value
    };
    conn.tuned[i].store(value, Ordering::Relaxed);
    true
}

/// The value that the program sees, if the lane holds this option.
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
