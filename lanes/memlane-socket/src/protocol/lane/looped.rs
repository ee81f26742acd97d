//! For unit tests: a connection whose ring leads back to itself.

use crate::protocol::group;
use crate::protocol::lane;
use crate::real;
use crate::state::conn::{Role, RxMode, TxMode};
use crate::state::guard::{lock_rx, lock_tx};
use crate::state::process;
use crate::state::process::ConnRef;
use crate::state::sets::Sleeper;
use core::sync::atomic::Ordering;
use memlane_core::layout::WINDOW_LEAST;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// A connection with a ring that leads back to itself, its descriptor, and both ends of its TCP connection.
pub(in crate::protocol) struct Looped {
    pub(in crate::protocol) fd: i32,
    pub(in crate::protocol) conn: ConnRef,
    pub(in crate::protocol) ends: [TcpStream; 2],
}

/// Makes such a connection, awake.
pub(in crate::protocol) fn looped() -> Looped {
    looped_to(1)
}

/// Makes such a connection, awake, as one to this peer of the same process.
pub(in crate::protocol) fn looped_to(peer: u64) -> Looped {
    static START: std::sync::Once = std::sync::Once::new();
    START.call_once(|| {
        crate::state::thread::tests::set_own_locator();
        real::TABLE.fill(|name| {
            // SAFETY: `name` is NUL-terminated.
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
        });
        crate::hooks::start::start(true);
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    let fd = client.as_raw_fd();
    let conn = process::open_conn(fd, Role::Connected, false).unwrap();
    conn.hs_due.store(u64::MAX, Ordering::Relaxed);
    {
        let mut locked = group::lock().unwrap();
        let group = group::find(&mut locked, peer, memlane_sys::proc::pid()).unwrap();
        let dmb = group::take_dmb(&mut locked, group, Sleeper::NOBODY).unwrap();
        let words = group::own_words(dmb.chunk, dmb.slot).unwrap();
        let ring = group::own_ring(dmb.chunk, dmb.slot, dmb.ring_size);
        conn.tx_ring.store(ring, Ordering::Relaxed);
        conn.tx_size.store(dmb.ring_size, Ordering::Relaxed);
        conn.tx_dmb
            .store(core::ptr::from_ref(words).cast_mut(), Ordering::Release);
        let (mut rx, mut tx) = (lock_rx(&conn).unwrap(), lock_tx(&conn).unwrap());
        let dmb = (dmb.chunk, dmb.slot);
        lane::open(&conn, (&mut rx, &mut tx), dmb, (0, 0), WINDOW_LEAST);
    }
    lane::wake(&conn);
    assert_eq!(
        (conn.rx_mode(), conn.tx_mode()),
        (RxMode::Hot, TxMode::Open)
    );
    Looped {
        fd,
        conn,
        ends: [client, server],
    }
}

#[test]
fn how_far_a_stream_has_come_is_seen_without_its_locks() {
    let l = looped();
    let shared = l.conn.shared();
    let seen = || {
        let sent = shared.tx_sent.load(Ordering::Relaxed);
        (sent, shared.rx_taken.load(Ordering::Relaxed))
    };
    let mut bytes = [7u8; 1000];
    let n = crate::hooks::calls::io::send(l.fd, bytes.as_ptr().cast(), 1000, 0);
    assert_eq!((n, seen()), (1000, (1000, 0)));
    let n = crate::hooks::calls::io::recv(l.fd, bytes.as_mut_ptr().cast(), 300, 0);
    assert_eq!((n, seen()), (300, (1000, 300)));
    // A guard that is dropped on another path publishes too.
    let mut held = lock_rx(&l.conn).unwrap();
    held.skip(50);
    assert_eq!(seen(), (1000, 300));
    drop(held);
    assert_eq!(seen(), (1000, 350));
    process::forget(l.fd);
    drop(l.conn);
}
