//! Connections that wake up in vain wake up more rarely.
//!
//! A wake-up costs both sides something: words and fences when the connection wakes, the same when it parks, and the
//! receiver looks for ring bytes in between. Where nothing ever comes in between, TCP alone would have been cheaper.
//!
//! A thread that may spin keeps a score of its own for that ([`crate::state::spin`]). One that may not (`--spin off`, or
//! a CPU full of strangers) wakes its connections in vain, unless their peers send before they are answered. So each
//! connection counts the wake-ups since which nothing has come by the ring. After [`FREE`] of them in a row, such
//! threads skip 1, 2, 4 … 16 chances to wake it, until a wake-up was not in vain.

use crate::state::conn::Conn;
use crate::state::spin;
use core::sync::atomic::Ordering;

/// So many wake-ups in vain are not held against it.
const FREE: u32 = 4;
/// At most so many chances go by, as a power of two.
const MOST: u32 = 4;
/// Who reads so many bytes at once receives a stream: its sender is waiting for it to wake up.
const BULK: usize = 8 * 1024;

/// `n` bytes came by TCP. Should the connection wake up?
#[inline]
pub(super) fn waking(conn: &Conn, n: usize) -> bool {
    let left = conn.stays_parked.load(Ordering::Relaxed);
    if left == 0 || n >= BULK || spin::is_open_to_us() {
        return true;
    }
    // Two readers at a time may count one chance: nothing depends on it.
    conn.stays_parked.store(left - 1, Ordering::Relaxed);
    false
}

/// It has woken up; `rx_lock` is held.
#[inline]
pub(super) fn woken(conn: &Conn) {
    let vain = conn.wakes_in_vain.load(Ordering::Relaxed);
    conn.wakes_in_vain
        .store(vain.saturating_add(1), Ordering::Relaxed);
}

/// Something came by the ring; `rx_lock` is held.
#[inline(always)]
pub(super) fn by_ring(conn: &Conn) {
    if conn.wakes_in_vain.load(Ordering::Relaxed) != 0 {
        conn.wakes_in_vain.store(0, Ordering::Relaxed);
    }
}

/// It has parked; `rx_lock` is held.
#[inline]
pub(super) fn parked(conn: &Conn) {
    let over = conn
        .wakes_in_vain
        .load(Ordering::Relaxed)
        .saturating_sub(FREE);
    let chances = (1 << over.min(MOST + 1)) >> 1;
    conn.stays_parked.store(chances, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::calls::io;
    use crate::protocol::lane::looped::{Looped, looped};
    use crate::protocol::lane::{self, Parked};
    use crate::state::conn::RxMode;
    use crate::state::guard::lock_rx;
    use std::io::{Read as _, Write as _};

    fn parks(l: &Looped) {
        assert_eq!(
            lane::park(&l.conn, &mut lock_rx(&l.conn).unwrap()),
            Parked::Yes
        );
    }

    /// `n` bytes are sent to the parked connection, come by TCP (to the socket's other end, which
    /// sends them back) and are read.
    fn comes_by_tcp(l: &mut Looped, n: usize) {
        let mut bytes = vec![7u8; n];
        let all = n.cast_signed();
        assert_eq!(io::send(l.fd, bytes.as_ptr().cast(), n, 0), all);
        l.ends[1].read_exact(&mut bytes).unwrap();
        l.ends[1].write_all(&bytes).unwrap();
        assert_eq!(io::recv(l.fd, bytes.as_mut_ptr().cast(), n, 0), all);
    }

    /// How many messages come by TCP until it wakes up; parked again afterwards.
    fn messages_to_wake(l: &mut Looped) -> u32 {
        for n in 1..100 {
            comes_by_tcp(l, 1);
            if l.conn.rx_mode() == RxMode::Hot {
                parks(l);
                return n;
            }
        }
        panic!("it never wakes up");
    }

    fn in_vain(l: &mut Looped) -> Vec<u32> {
        (0..11).map(|_| messages_to_wake(l)).collect()
    }

    #[test]
    fn a_connection_wakes_ever_more_rarely_in_vain_until_the_ring_is_used() {
        let mut l = looped();
        // Among strangers.
        crate::state::thread::current()
            .no_yield_until
            .store(u64::MAX, Ordering::Relaxed);
        parks(&l);
        let rarely = [1, 1, 1, 2, 3, 5, 9, 17, 17, 17, 17];
        let first = in_vain(&mut l);
        assert_eq!(first[1..], rarely[..10], "{first:?}");
        // What a stream brings wakes it at once.
        comes_by_tcp(&mut l, BULK);
        assert_eq!(l.conn.rx_mode(), RxMode::Hot);
        // Something comes by the ring.
        let sent = [7u8; 10];
        assert_eq!(io::send(l.fd, sent.as_ptr().cast(), 10, 0), 10);
        let mut got = [0u8; 10];
        assert_eq!(io::recv(l.fd, got.as_mut_ptr().cast(), 10, 0), 10);
        parks(&l);
        assert_eq!(in_vain(&mut l)[..8], [1, 1, 1, 1, 1, 2, 3, 5]);
        crate::state::process::forget(l.fd);
    }
}
