//! Receiving by the program's own call, while bytes come only by TCP: before the lane opens, and while it is parked.

use super::recv::restarts;
use super::{end_tx, ending, trim, wake, wake_backoff};
use crate::real;
use crate::real::fail;
use crate::state::conn::{Conn, RxMode, TxMode};
use crate::state::guard::{lock_rx, lock_tx};
use crate::state::process;
use crate::state::process::ConnRef;
use crate::state::spin::{self, Spun};
use crate::state::thread;
use core::sync::atomic::Ordering;
use libc::ssize_t;
use memlane_sys::Errno;
use memlane_sys::sock;
use memlane_sys::time::ticks;

/// Makes the program's own call, on plain TCP or while parked. `None`: the mode has changed.
pub(super) fn from_kernel(
    conn: &ConnRef,
    flags: i32,
    buffers_wanted: bool,
    original: &impl Fn() -> ssize_t,
) -> Option<ssize_t> {
    let shared = conn.shared();
    let m = shared.rx_gate.enter();
    if m != RxMode::Plain && m != RxMode::Cold {
        shared.rx_gate.leave();
        return None;
    }
    let mut start = 0;
    if m == RxMode::Cold {
        start = ticks();
        trim::look(start);
        let may_block = !conn.is_nonblock() && flags & libc::MSG_DONTWAIT == 0;
        if may_block && trim::is_due(conn) && thread::is_alone() && nap_first(conn) == Spun::Signal
        {
            shared.rx_gate.leave();
            return Some(fail(Errno::INTR));
        }
    }
    let n = original();
    if n > 0 && flags & libc::MSG_PEEK == 0 {
        shared
            .rx_count
            .fetch_add(n.cast_unsigned() as u64, Ordering::AcqRel);
        crate::state::stats::add_rx_tcp(conn, n.cast_unsigned() as u64);
    }
    let left = shared.rx_gate.leave();
    if m == RxMode::Cold {
        if n > 0 {
            spin::slept(ticks().wrapping_sub(start));
        }
        return Some(after_cold(conn, n, buffers_wanted));
    }
    if left != RxMode::Plain {
        return Some(after_plain(conn, n, buffers_wanted));
    }
    process::hurry(conn, shared.rx_count.load(Ordering::Relaxed));
    Some(n)
}

/// What follows a call on a parked connection, which has returned `n`. Returns what the program is told.
#[inline]
fn after_cold(conn: &ConnRef, n: ssize_t, is_wanted: bool) -> ssize_t {
    if n == 0 && is_wanted {
        return stream_end(conn);
    }
    if n > 0 && wake_backoff::waking(conn, n.cast_unsigned()) {
        wake(conn);
    }
    n
}

/// What follows a call on plain TCP at whose end the mode was another. Returns what the program is told.
#[cold]
pub(super) fn after_plain(conn: &ConnRef, n: ssize_t, is_wanted: bool) -> ssize_t {
    if has_opened(conn) {
        return after_cold(conn, n, is_wanted);
    }
    process::hurry(conn, conn.shared().rx_count.load(Ordering::Relaxed));
    n
}

/// Has the lane opened while this thread was inside a call? An opening that is under way ends first.
#[cold]
fn has_opened(conn: &Conn) -> bool {
    if conn.rx_mode() == RxMode::Moving {
        drop(lock_rx(conn)); // the opening has it
    }
    conn.rx_mode() != RxMode::Plain
}

/// Sleeps first, before a read that waits for bytes of a connection whose window has grown: if nothing comes for a
/// while, the ring gives its pages back.
#[cold]
fn nap_first(conn: &Conn) -> Spun {
    let fd = conn.fd.load(Ordering::Relaxed);
    let timeout: [i64; 2] = sock::option(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO).unwrap_or([0, 0]);
    if timeout != [0, 0] {
        return Spun::Ready; // the kernel must count the whole time-out
    }
    let t = thread::current();
    let signals = t.signals.load(Ordering::Relaxed);
    while trim::is_due(conn) {
        let Some(ms) = trim::nap(ticks(), None) else {
            break;
        };
        let mut p = libc::pollfd {
            fd,
            events: libc::POLLIN | libc::POLLRDHUP,
            revents: 0,
        };
        let n = real!(poll(&raw mut p, 1, ms));
        if t.signals.load(Ordering::Relaxed) != signals && !restarts(conn) {
            return Spun::Signal;
        }
        if n != 0 {
            break;
        }
        trim::look(ticks());
    }
    Spun::Ready
}

/// Handles the end of the TCP stream. A peer that shuts down or closes announces it; one that has not announced it has
/// died. The kernel answers a death with unread bytes by RST. It does not know of unread bytes in the ring, so this
/// function makes that answer.
pub(super) fn stream_end(conn: &ConnRef) -> ssize_t {
    if conn.tx_mode() != TxMode::Open {
        return 0;
    }
    let Some(to) = conn.tx_lane() else {
        return 0;
    };
    let announced = ending::is_announced(conn);
    if announced {
        return 0;
    }
    let unread = lock_tx(conn).is_some_and(|mut held| held.ring_unread(to.words) == Ok(true));
    end_tx(conn);
    if unread {
        fail(Errno(libc::ECONNRESET))
    } else {
        0
    }
}
