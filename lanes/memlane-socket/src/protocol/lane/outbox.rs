//! Bytes that a signal handler sends while it has interrupted a send on the same connection.
//!
//! Such a handler cannot wait for the lock, because its own thread holds it. So its bytes go to the thread's outbox and
//! its send succeeds. The thread sends them, behind the interrupted bytes, when it releases the lock. A byte that was
//! accepted is never dropped: where TCP is full, the interrupted call waits. A call that must not wait cannot promise
//! that, so its handler's send fails with `EAGAIN`.

use super::send::by_lanes_alone;
use crate::iov::{Cursor, copied};
use crate::real;
use crate::real::{errno, fail, set_errno};
use crate::state::conn::Conn;
use crate::state::guard::lock_tx;
use crate::state::sets;
use crate::state::thread::{self, OUTBOX, Thread};
use core::sync::atomic::Ordering;
use libc::{iovec, ssize_t};
use memlane_sys::Errno;

/// Puts a handler's bytes into the outbox. Returns their number, as `send` does; `EAGAIN` if there is no room, or if
/// the interrupted call must not wait.
#[cold]
pub(super) fn put(conn: &Conn, cursor: &mut Cursor<'_>, flags: i32) -> ssize_t {
    let t = thread::current();
    if conn.must_not_block(flags) {
        t.outbox_refused.store(address(conn), Ordering::Relaxed);
        return fail(Errno::AGAIN);
    }
    let Some((at, len)) = reserve(t, address(conn), cursor.left()) else {
        return fail(Errno::AGAIN);
    };
    let mut done = 0;
    while done < len {
        let (from, piece) = cursor.piece();
        let n = piece.min(len - done);
        // SAFETY: inside OUTBOX, and only this frame has reserved it; the source is the program's buffer.
        unsafe { memlane_core::access::copy(t.outbox.get().cast::<u8>().add(at + done), from, n) };
        copied(n);
        cursor.advance(n);
        done += n;
    }
    len.cast_signed()
}

fn address(conn: &Conn) -> usize {
    core::ptr::from_ref(conn) as usize
}

/// Reserves room for up to `want` bytes of one connection: its position and length. A handler that interrupts this one
/// gets the room behind it.
fn reserve(t: &Thread, conn: usize, want: usize) -> Option<(usize, usize)> {
    loop {
        let used = t.outbox_len.load(Ordering::Acquire);
        if used == 0 {
            t.outbox_conn.store(conn, Ordering::Relaxed);
        } else if t.outbox_conn.load(Ordering::Relaxed) != conn {
            return None;
        }
        let n = want.min(OUTBOX - used as usize);
        if n == 0 {
            return None;
        }
        #[allow(clippy::cast_possible_truncation)] // at most OUTBOX
        let after = used + n as u32;
        let reserved =
            t.outbox_len
                .compare_exchange(used, after, Ordering::AcqRel, Ordering::Acquire);
        if reserved.is_ok() {
            return Some((used as usize, n));
        }
    }
}

/// Sends what handlers have left for this connection. If this thread holds its lock, does nothing: the frame that
/// releases the lock sends them. `errno` stays as it is.
#[inline]
pub(super) fn send(conn: &Conn) {
    let t = thread::current();
    if t.outbox_len.load(Ordering::Relaxed) != 0 || t.outbox_refused.load(Ordering::Relaxed) != 0 {
        let keep = errno();
        send_slowly(t, conn);
        set_errno(keep);
    }
}

#[cold]
fn send_slowly(t: &Thread, conn: &Conn) {
    if lock_tx(conn).is_none() {
        return; // this frame is a handler's
    }
    let mut bytes = [0u8; OUTBOX];
    while let Some(len) = take(t, address(conn), &mut bytes) {
        let list = [iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: len,
        }];
        let mut cursor = Cursor::new(&list);
        while cursor.left() > 0 {
            if by_lanes_alone(conn, &mut cursor, libc::MSG_NOSIGNAL) >= 0 {
                continue;
            }
            match errno() {
                libc::EINTR => {}
                libc::EAGAIN => wait_for_tcp(conn),
                _ => break, // the connection is over: bytes that TCP had taken would be lost too
            }
        }
    }
    let refused = &t.outbox_refused;
    if refused.load(Ordering::Relaxed) == address(conn) {
        refused.store(0, Ordering::Relaxed);
        sets::writable_again(&conn.regs, conn.upgraded());
    }
}

/// Takes this connection's bytes out of the outbox; `None`: there are none. A handler that runs meanwhile only adds to
/// the end.
fn take(t: &Thread, conn: usize, bytes: &mut [u8; OUTBOX]) -> Option<usize> {
    loop {
        let len = t.outbox_len.load(Ordering::Acquire);
        if len == 0 || t.outbox_conn.load(Ordering::Relaxed) != conn {
            return None;
        }
        let into = bytes.as_mut_ptr();
        // SAFETY: `len` is at most OUTBOX, and both are that long; no handler that runs now writes below `len`, and the
        // handlers that wrote it have returned.
        unsafe { memlane_core::access::copy(into, t.outbox.get().cast::<u8>(), len as usize) };
        copied(len as usize);
        let taken = t
            .outbox_len
            .compare_exchange(len, 0, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_ok() {
            return Some(len as usize);
        }
    }
}

/// Waits until TCP takes bytes again or a signal handler has run.
fn wait_for_tcp(conn: &Conn) {
    let mut p = libc::pollfd {
        fd: conn.fd.load(Ordering::Relaxed),
        events: libc::POLLOUT,
        revents: 0,
    };
    real!(poll(&raw mut p, 1, -1));
}
