//! A peer that says it is in the middle of a write, and stays there: stopped,
//! killed, or hostile. Calls that need not wait for it do not.

use super::looped::{Looped, looped};
use crate::calls::io;
use crate::conn::mode;
use crate::process;
use crate::wait::poll;
use core::sync::atomic::Ordering;

/// Awake, and then told to use TCP, with the peer in the middle of a write.
fn beside_a_writer(drains: bool) -> Looped {
    let l = looped();
    // SAFETY: the lane is open: mapped.
    let words = unsafe { l.conn.rx_words() };
    words.tx.0.writing.store(1, Ordering::SeqCst);
    if drains {
        super::end_rx(&l.conn);
        assert_eq!(l.conn.rx_mode(), mode::DRAIN);
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
fn a_poll_ends_at_its_limit() {
    for drains in [false, true] {
        let l = beside_a_writer(drains);
        let mut p = libc::pollfd {
            fd: l.fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let n = poll::poll(&raw mut p, 1, poll::limit_ms(20), false, || {
            panic!("it went to sleep where nothing would wake it (drains: {drains})")
        });
        assert_eq!((n, p.revents), (0, 0), "drains: {drains}");
        ends(l);
    }
}

#[test]
fn a_poll_sees_what_the_writer_writes_in_the_end() {
    let l = beside_a_writer(true);
    // SAFETY: as above.
    let words = unsafe { l.conn.rx_words() };
    words.published.0.store(3, Ordering::Release);
    words.tx.0.writing.store(0, Ordering::Release);
    let mut p = libc::pollfd {
        fd: l.fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let n = poll::poll(&raw mut p, 1, None, false, || panic!("it went to sleep"));
    assert_eq!((n, p.revents), (1, libc::POLLIN));
    let mut bytes = [0u8; 8];
    let n = io::recv(l.fd, bytes.as_mut_ptr().cast(), 8, libc::MSG_DONTWAIT);
    assert_eq!(n, 3);
    ends(l);
}
