//! Tests of `EPOLLEXCLUSIVE`: which sets are told that a connection has news.

use super::looped::{Looped, looped};
use crate::hooks::calls::io;
use crate::hooks::wait::epoll::{self, tell_sets};
use crate::state::process;
use crate::state::sets::Ep;

const EDGE: u32 = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
const EXCLUSIVE: u32 = EDGE | libc::EPOLLEXCLUSIVE.cast_unsigned();

/// A set with this connection. It has reported the bytes that are there: it reports them again only if it is told of news.
fn set_with(l: &Looped, events: u32) -> (i32, &'static Ep) {
    // SAFETY: no pointers are passed.
    let epfd = unsafe { libc::epoll_create1(0) };
    process::open_ep(epfd);
    let mut event = libc::epoll_event { events, u64: 0 };
    let done = epoll::ctl(epfd, libc::EPOLL_CTL_ADD, l.fd, &raw mut event);
    assert_eq!(done, 0);
    assert!(reports(epfd), "the bytes that are there");
    assert!(!reports(epfd), "no other bytes have come");
    (epfd, process::ep_of(epfd).unwrap())
}

fn reports(epfd: i32) -> bool {
    let mut out = libc::epoll_event { events: 0, u64: 0 };
    let n = epoll::wait(epfd, &raw mut out, 1, 0, false, &|events, max, ms| {
        // SAFETY: the caller's array.
        unsafe { libc::epoll_wait(epfd, events, max, ms) }
    });
    n == 1
}

/// Which of four sets report after news, if a thread waits on the second one, or just looks. The third set is not exclusive.
fn told(is_waiting: bool) -> [bool; 4] {
    let l = looped();
    assert_eq!(io::send(l.fd, b"news".as_ptr().cast(), 4, 0), 4);
    let sets = [EXCLUSIVE, EXCLUSIVE, EDGE, EXCLUSIVE].map(|events| set_with(&l, events));
    tell_sets(sets[1].1, &l.conn, is_waiting);
    let told = sets.map(|(epfd, _)| reports(epfd));
    process::forget(l.fd);
    for (epfd, _) in sets {
        // SAFETY: the set is this test's own.
        unsafe { libc::close(epfd) };
        process::forget(epfd);
    }
    told
}

#[test]
fn exclusive_news_end_at_the_set_on_which_a_thread_waits() {
    assert_eq!(told(true), [true, true, false, false]);
}

#[test]
fn all_sets_are_told_of_exclusive_news_that_nobody_waits_for() {
    assert_eq!(told(false), [true; 4]);
}
