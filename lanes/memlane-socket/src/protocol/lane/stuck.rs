//! Tests with a peer that says it is in the middle of a write and stays there: stopped, killed, or hostile. Calls that
//! need not wait for that peer do not wait.

use super::looped::{Looped, looped};
use crate::hooks::calls::io;
use crate::hooks::wait;
use crate::state::conn::{RxMode, TxMode};
use crate::state::process;
use core::sync::atomic::Ordering;
use std::os::fd::AsRawFd as _;

/// A connection that was awake and was then told to use TCP while its peer is in the middle of a write.
fn beside_a_writer(drains: bool) -> Looped {
    let l = looped();
    let words = l.conn.rx_lane().unwrap().words;
    words.tx.0.writing.store(1, Ordering::SeqCst);
    if drains {
        super::end_rx(&l.conn);
        assert_eq!(l.conn.rx_mode(), RxMode::Drain);
    }
    l
}

fn ends(l: Looped) {
    process::forget(l.fd);
    drop(l.conn);
}

#[test]
fn a_receive_that_must_not_wait_says_so() {
    for drains in [false, true] {
        let l = beside_a_writer(drains);
        let mut byte = 0u8;
        let n = io::recv(l.fd, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT);
        assert_eq!(
            (n, crate::real::errno()),
            (-1, libc::EAGAIN),
            "drains: {drains}"
        );
        ends(l);
    }
}

#[test]
fn bytes_that_a_sender_is_about_to_publish_are_waited_for_before_a_connection_is_given_away() {
    let l = looped();
    let sent = io::send(l.fd, [7u8; 100].as_ptr().cast(), 100, 0);
    assert_eq!(sent, 100);
    let words = l.conn.rx_lane().unwrap().words;
    // The sender has copied its bytes and has not said so yet.
    words.sent.0.published.store(0, Ordering::SeqCst);
    words.tx.0.writing.store(1, Ordering::SeqCst);
    super::end_rx(&l.conn);
    assert_eq!(super::in_ring(&l.conn), 0);
    std::thread::scope(|both| {
        both.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            words.sent.0.published.store(100, Ordering::SeqCst);
            words.tx.0.writing.store(0, Ordering::SeqCst);
        });
        assert!(super::holds_bytes(&l.conn, &mut super::Patience::fresh()));
    });
    assert_eq!(super::in_ring(&l.conn), 100);
    ends(l);
}

#[test]
fn a_sender_that_stops_in_the_middle_of_a_write_counts_as_unread_bytes() {
    let l = beside_a_writer(true);
    assert!(super::holds_bytes(&l.conn, &mut super::Patience::fresh()));
    ends(l);
}

#[test]
fn a_poll_ends_at_its_limit() {
    for drains in [false, true] {
        let l = beside_a_writer(drains);
        let mut p = libc::pollfd {
            fd: l.fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let n = wait::poll(&raw mut p, 1, wait::limit_ms(20), false, || {
            panic!("it went to sleep where nothing would wake it (drains: {drains})")
        });
        assert_eq!((n, p.revents), (0, 0), "drains: {drains}");
        ends(l);
    }
}

#[test]
fn a_poll_sees_what_the_writer_writes_in_the_end() {
    let l = beside_a_writer(true);
    let words = l.conn.rx_lane().unwrap().words;
    words.sent.0.published.store(3, Ordering::Release);
    words.tx.0.writing.store(0, Ordering::Release);
    let mut p = libc::pollfd {
        fd: l.fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let n = wait::poll(&raw mut p, 1, None, false, || panic!("it went to sleep"));
    assert_eq!((n, p.revents), (1, libc::POLLIN));
    let mut bytes = [0u8; 8];
    let n = io::recv(l.fd, bytes.as_mut_ptr().cast(), 8, libc::MSG_DONTWAIT);
    assert_eq!(n, 3);
    ends(l);
}

#[test]
fn a_splice_that_may_wait_waits_for_the_writer() {
    let l = beside_a_writer(true);
    // A splice ends the lane, and both ends of this lane are the same connection.
    l.conn.shared().tx_gate.set(TxMode::Ended);
    let words = l.conn.rx_lane().unwrap().words;
    let (_reader, writer) = std::io::pipe().unwrap();
    let (none, start) = (core::ptr::null_mut(), std::sync::Barrier::new(2));
    let n = std::thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            std::thread::sleep(std::time::Duration::from_millis(30)); // until it waits
            words.sent.0.published.store(3, Ordering::Release);
            words.tx.0.writing.store(0, Ordering::Release);
        });
        start.wait();
        io::splice(l.fd, none, writer.as_raw_fd(), none, 100, 0)
    });
    assert_eq!(n, 3, "{}", crate::real::errno());
    ends(l);
}

#[test]
fn a_look_at_a_promised_run_ends_when_the_peer_has() {
    let l = looped();
    let words = l.conn.tx_lane().unwrap().words;
    crate::state::guard::lock_tx(&l.conn)
        .expect("no handler is running")
        .promise_tcp(words, 5);
    l.ends[1].shutdown(std::net::Shutdown::Write).unwrap();
    let fd = l.fd;
    let (told, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut byte = 0u8;
        let _ = told.send(io::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK));
    });
    let n = hears.recv_timeout(std::time::Duration::from_secs(20));
    assert_eq!(n, Ok(0), "it looks for ever");
    ends(l);
}

/// At its next wait, the kernel would see that a handler has run. Here each piece of the send is a call of its own.
#[test]
fn a_send_that_waits_is_cut_short_by_a_handler_that_ran_between_two_pieces() {
    const MUCH: usize = 30 << 20;
    let mut l = looped();
    let (told, hears) = std::sync::mpsc::channel();
    let fd = l.fd;
    let sender = std::thread::spawn(move || {
        told.send(&crate::state::thread::current().signals).unwrap();
        let bytes = vec![7u8; MUCH];
        io::send(fd, bytes.as_ptr().cast(), MUCH, 0)
    });
    let signals = hears.recv().unwrap();
    let waiting = || memlane_sys::sock::tcp_counts(fd).unwrap().written;
    let mut before = 0;
    while before == 0 || waiting() != before {
        before = waiting();
        std::thread::sleep(std::time::Duration::from_millis(50)); // until it waits
    }
    signals.fetch_add(1, Ordering::Relaxed);
    let mut bytes = vec![0; 1 << 16];
    while !sender.is_finished() {
        use std::io::Read as _;
        l.ends[1].set_nonblocking(true).unwrap();
        let _ = l.ends[1].read(&mut bytes);
    }
    let sent = sender.join().unwrap().cast_unsigned();
    assert!(sent > 0 && sent < MUCH, "{sent}");
    ends(l);
}
