//! For unit tests: a connection whose ring leads back to itself.

use crate::conn::{Use, mode};
use crate::{group, lane, process, real};
use core::sync::atomic::Ordering;
use memlane_core::layout::PART_LEAST;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// The connection, its descriptor, and both of its TCP ends.
pub(super) struct Looped {
    pub(super) fd: i32,
    pub(super) conn: Use,
    pub(super) ends: [TcpStream; 2],
}

/// Makes one; awake.
pub(super) fn looped() -> Looped {
    static START: std::sync::Once = std::sync::Once::new();
    START.call_once(|| {
        crate::thread::tests::set_own_locator();
        real::TABLE.fill(|name| {
            // SAFETY: `name` is NUL-terminated.
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
        });
        process::start(true);
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    let fd = client.as_raw_fd();
    let conn = process::open_conn(fd, 0, false).unwrap();
    conn.hs_due.store(u64::MAX, Ordering::Relaxed);
    {
        let mut locked = group::lock().unwrap();
        let group = group::find(&mut locked, 1, memlane_sys::proc::pid()).unwrap();
        // SAFETY: nobody else knows of the connection yet.
        let rx = unsafe { &mut *conn.cell().rx.get() };
        let dmb = group::take_dmb(&mut locked, group, rx).unwrap();
        let words = group::own_words(dmb.chunk, dmb.slot).unwrap();
        let ring = group::own_ring(dmb.chunk, dmb.slot, dmb.ring_size);
        conn.tx_ring.store(ring, Ordering::Relaxed);
        conn.tx_size.store(dmb.ring_size, Ordering::Relaxed);
        conn.tx_dmb
            .store(core::ptr::from_ref(words).cast_mut(), Ordering::Release);
        lane::open(&conn, (dmb.chunk, dmb.slot), 0, 0, PART_LEAST);
    }
    lane::wake(&conn);
    assert_eq!((conn.rx_mode(), conn.tx_mode()), (mode::HOT, mode::OPEN));
    Looped {
        fd,
        conn,
        ends: [client, server],
    }
}
