//! Tests of sends by signal handlers that have interrupted a send on the same connection: accepted bytes arrive.

use super::looped::{Looped, looped};
use crate::hooks::calls::io;
use crate::hooks::wait::epoll;
use crate::protocol::lane::{self, Parked};
use crate::real::errno;
use crate::state::guard::{lock_rx, lock_tx};
use crate::state::process;
use core::sync::atomic::Ordering;
use memlane_sys::sock;
use std::io::Read as _;
use std::net::TcpStream;
use std::time::Duration;

/// Milliseconds until the peer reads, many times as long as a try takes.
const LATER: u64 = 300;
/// The bytes that the handler sends.
const HANDLERS: &[u8; 10] = b"HHHHHHHHHH";

/// A parked connection, on which everything goes by TCP, with TCP full; and the number of bytes that filled it.
fn full() -> (Looped, usize) {
    let l = looped();
    assert_eq!(
        lane::park(&l.conn, &mut lock_rx(&l.conn).unwrap()),
        Parked::Yes
    );
    let (piece, mut all) = ([b'M'; 4096], 0);
    loop {
        let n = io::send(l.fd, piece.as_ptr().cast(), 4096, libc::MSG_DONTWAIT);
        match usize::try_from(n) {
            Ok(n) => all += n,
            Err(_) => break,
        }
    }
    assert_eq!(errno(), libc::EAGAIN);
    (l, all)
}

/// Sends while this thread holds the connection's lock, as a handler does that has interrupted a send.
fn interrupting_send(l: &Looped) -> isize {
    let held = lock_tx(&l.conn).unwrap();
    let n = io::send(l.fd, HANDLERS.as_ptr().cast(), HANDLERS.len(), 0);
    drop(held);
    n
}

/// Reads what came by TCP until the sender shuts down. Returns the number of the program's bytes and of its handler's.
fn read_all(mut end: TcpStream) -> (usize, usize) {
    let mut bytes = Vec::new();
    end.read_to_end(&mut bytes).unwrap();
    let program = bytes.iter().filter(|b| **b == b'M').count();
    (program, bytes.len() - program)
}

/// Reads everything after `later`, while `sends` sends. What `sends` reports (bytes of the program, of the handler)
/// must arrive beside `before`.
fn all_arrives(l: Looped, before: usize, later: Duration, sends: impl FnOnce() -> (usize, usize)) {
    let end = l.ends[1].try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        std::thread::sleep(later);
        read_all(end)
    });
    let (program, handler) = sends();
    l.ends[0].shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(reader.join().unwrap(), (before + program, handler));
    process::forget(l.fd);
    drop(l.conn);
}

/// Sends one more byte of the program's. Returns how many went.
fn one_more(fd: i32, flags: i32) -> usize {
    let n = io::send(fd, b"M".as_ptr().cast(), 1, flags);
    assert!(n == 1 || n == -1 && errno() == libc::EAGAIN, "{n}");
    n.max(0).cast_unsigned()
}

#[test]
fn what_a_handler_sends_arrives_though_tcp_stays_full_for_long() {
    let (l, before) = full();
    // Each try gives up after one tick of the kernel.
    let soon = [0i64, 1];
    sock::set_option(l.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, soon).unwrap();
    let (fd, nested) = (l.fd, interrupting_send(&l));
    assert_eq!(nested, 10);
    all_arrives(l, before, Duration::from_millis(LATER), || {
        (one_more(fd, 0), 10)
    });
}

#[test]
fn a_handler_s_send_that_must_not_wait_is_refused_or_arrives() {
    let (l, before) = full();
    l.ends[0].set_nonblocking(true).unwrap();
    l.conn.shared().nonblock.store(1, Ordering::Relaxed);
    let nested = interrupting_send(&l);
    assert!(nested == 10 || nested == -1 && errno() == libc::EAGAIN);
    let fd = l.fd;
    all_arrives(l, before, Duration::from_millis(300), || {
        (one_more(fd, 0), nested.max(0).cast_unsigned())
    });
}

#[test]
fn a_refused_handler_s_send_is_followed_by_an_edge() {
    let (l, before) = full();
    let taken = before as u64;
    std::io::copy(
        &mut l.ends[1].try_clone().unwrap().take(taken),
        &mut std::io::sink(),
    )
    .unwrap();
    // SAFETY: no pointers are passed.
    let set = unsafe { libc::epoll_create1(0) };
    process::open_ep(set);
    let mut event = libc::epoll_event {
        events: (libc::EPOLLOUT | libc::EPOLLET).cast_unsigned(),
        u64: 7,
    };
    let added = epoll::ctl(set, libc::EPOLL_CTL_ADD, l.fd, &raw mut event);
    assert_eq!(added, 0);
    let edges = || {
        let mut out = libc::epoll_event { events: 0, u64: 0 };
        epoll::wait(set, &raw mut out, 1, 0, false, &|at, most, ms| {
            // SAFETY: the caller's array.
            unsafe { libc::epoll_wait(set, at, most, ms) }
        })
    };
    while edges() != 0 {}
    l.conn.shared().nonblock.store(1, Ordering::Relaxed);
    assert_eq!((interrupting_send(&l), errno()), (-1, libc::EAGAIN));
    assert_eq!(edges(), 0, "the interrupted call has not ended");
    super::outbox::send(&l.conn);
    assert_eq!(edges(), 1);
    assert_eq!(edges(), 0);
    process::forget(set);
    // SAFETY: the descriptor is ours.
    unsafe { libc::close(set) };
    process::forget(l.fd);
    drop(l.conn);
}

#[test]
fn what_a_handler_sends_while_the_lane_ends_arrives() {
    let (l, before) = full();
    let nested = interrupting_send(&l);
    assert_eq!(nested, 10);
    let conn = l.conn.conn();
    all_arrives(l, before, Duration::ZERO, || {
        lane::end_tx(conn);
        (0, 10)
    });
}
