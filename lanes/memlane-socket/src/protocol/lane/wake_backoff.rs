//! Wake backoff: a connection that wakes up in vain wakes up less often.
//!
//! A wake-up costs both sides: they write words and run fences when the connection wakes and again when it parks, and
//! the receiver looks for ring bytes in between. Where nothing comes in between, TCP alone would have been cheaper.
//!
//! A thread that will not spin (`--spin off`, a CPU that other programs use, or spins that have been in vain, see
//! [`crate::state::spin`]) wakes its connections in vain, unless their peers send before they are answered, or a bell
//! lets them stay awake. So each connection counts the wake-ups since bytes last came by the ring. After [`FREE`] of them
//! in a row, such threads skip 1, 2, 4 … 16 chances to wake it, until a wake-up was not in vain.

use crate::state::conn::{Conn, SEEN_BELL};
use crate::state::sets;
use crate::state::spin;
use core::sync::atomic::Ordering;

/// The number of wake-ups in vain before the backoff begins.
const FREE: u32 = 4;
/// The longest backoff, as a power of two of chances to wake.
const MOST: u32 = 4;
/// A read of this many bytes is part of a stream, whose sender waits for the receiver to wake up.
const BULK: usize = 8 * 1024;

/// Should the connection wake up, now that `n` bytes have come by TCP?
#[inline]
pub(super) fn waking(conn: &Conn, n: usize) -> bool {
    let left = conn.stays_parked.load(Ordering::Relaxed);
    if left == 0 || n >= BULK || has_bell(conn) || conn.naps.pay() || spin::will_spin() {
        return true;
    }
    // Two readers at once may count one chance only: nothing depends on it.
    conn.stays_parked.store(left - 1, Ordering::Relaxed);
    false
}

/// Did the connection have a bell when it last woke up? Takes no lock: a wrong answer costs a wake-up.
fn has_bell(conn: &Conn) -> bool {
    conn.seen.load(Ordering::Relaxed) & SEEN_BELL != 0 || sets::has_bell(&conn.regs)
}

/// Counts a wake-up. The caller holds `rx_lock`.
#[inline]
pub(super) fn woken(conn: &Conn) {
    let vain = conn.wakes_in_vain.load(Ordering::Relaxed);
    conn.wakes_in_vain
        .store(vain.saturating_add(1), Ordering::Relaxed);
}

/// Ends the backoff: bytes came by the ring. The caller holds `rx_lock`.
#[inline(always)]
pub(super) fn by_ring(conn: &Conn) {
    if conn.wakes_in_vain.load(Ordering::Relaxed) != 0 {
        conn.wakes_in_vain.store(0, Ordering::Relaxed);
    }
}

/// Sets the backoff of a connection that has parked. The caller holds `rx_lock`.
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

    /// Sends `n` bytes to the parked connection. They come by TCP (the socket's other end sends them back) and are
    /// read.
    fn comes_by_tcp(l: &mut Looped, n: usize) {
        let mut bytes = vec![7u8; n];
        let all = n.cast_signed();
        assert_eq!(io::send(l.fd, bytes.as_ptr().cast(), n, 0), all);
        l.ends[1].read_exact(&mut bytes).unwrap();
        l.ends[1].write_all(&bytes).unwrap();
        assert_eq!(io::recv(l.fd, bytes.as_mut_ptr().cast(), n, 0), all);
    }

    /// The number of messages that come by TCP until the connection wakes up. It is parked again afterwards.
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
        // This CPU counts as one that other programs use.
        crate::state::thread::current()
            .no_yield_until
            .store(u64::MAX, Ordering::Relaxed);
        parks(&l);
        let rarely = [1, 1, 1, 2, 3, 5, 9, 17, 17, 17, 17];
        let first = in_vain(&mut l);
        assert_eq!(first[1..], rarely[..10], "{first:?}");
        // The bytes of a stream wake the connection at once.
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
