//! Tests of full rings: what sends and waits say while the receiver does not read.

use super::looped::{Looped, looped_to};
use super::room::is_full;
use crate::hooks::calls::io;
use crate::hooks::wait::{epoll, limit_ms, poll};
use crate::state::guard::lock_tx;
use crate::state::{large, process, sets};
use core::sync::atomic::{AtomicU64, Ordering};
use libc::pollfd;
use memlane_sys::time::ticks;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Sends pieces of 64 KiB that do not wait, until the ring is full. Returns the number of bytes sent.
fn fill(l: &Looped) -> usize {
    let piece = vec![7u8; 64 * 1024];
    let mut sent = 0;
    while let Ok(n) = usize::try_from(send(l, &piece)) {
        sent += n;
    }
    assert_eq!(crate::real::errno(), libc::EAGAIN);
    sent
}

fn send(l: &Looped, piece: &[u8]) -> isize {
    io::send(l.fd, piece.as_ptr().cast(), piece.len(), libc::MSG_DONTWAIT)
}

fn receive(l: &Looped, n: usize) {
    let mut bytes = vec![0u8; n];
    assert_eq!(
        io::recv(l.fd, bytes.as_mut_ptr().cast(), n, 0),
        n.cast_signed()
    );
}

/// What poll reports of these events, within `ms`.
fn polled(l: &Looped, events: i16, ms: i32) -> i16 {
    let mut p = pollfd {
        fd: l.fd,
        events,
        revents: 0,
    };
    poll(&raw mut p, 1, limit_ms(ms), false, || {
        // SAFETY: `p` lives until the call returns.
        unsafe { libc::poll(&raw mut p, 1, ms) }
    });
    p.revents
}

/// Asks poll whether the connection is writable, for at most `ms`.
fn writable(l: &Looped, ms: i32) -> bool {
    polled(l, libc::POLLOUT, ms) == libc::POLLOUT
}

/// The peer of the test that runs. Each has one of its own: only the first connections with a peer have the largest rings.
static PEER: AtomicU64 = AtomicU64::new(1000);

/// A looped connection whose stream alone uses a large window.
fn alone() -> (MutexGuard<'static, ()>, Looped) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    PEER.fetch_add(1, Ordering::Relaxed);
    (alone, looped())
}

/// A looped connection with the test's peer.
fn looped() -> Looped {
    looped_to(PEER.load(Ordering::Relaxed))
}

fn window(l: &Looped) -> usize {
    let size = l.conn.tx_size.load(Ordering::Relaxed) as usize;
    lock_tx(&l.conn).unwrap().window(size)
}

fn ends(l: Looped) {
    process::forget(l.fd);
    drop(l.conn);
}

#[test]
fn a_full_ring_is_writable_again_when_a_quarter_of_it_is_free() {
    let (_alone, l) = alone();
    assert!(writable(&l, 0));
    let sent = fill(&l);
    receive(&l, sent); // the window has grown
    let sent = fill(&l);
    let size = l.conn.tx_size.load(Ordering::Relaxed) as usize;
    assert_eq!(sent, size, "the whole ring is used, and TCP is not");
    assert!(is_full(&l.conn) && !writable(&l, 0));
    receive(&l, size / 8);
    assert!(is_full(&l.conn) && !writable(&l, 0), "an eighth");
    receive(&l, size / 8);
    assert!(!is_full(&l.conn) && writable(&l, 0), "a quarter");
    ends(l);
}

/// Asks the set for at most `ms` whether the connection is writable.
fn reported(epfd: i32, ms: i32) -> bool {
    let mut out = libc::epoll_event { events: 0, u64: 0 };
    let n = epoll::wait(epfd, &raw mut out, 1, ms, false, &|events, max, ms| {
        // SAFETY: the caller's array.
        unsafe { libc::epoll_wait(epfd, events, max, ms) }
    });
    n == 1 && out.events == libc::EPOLLOUT.cast_unsigned()
}

#[test]
fn a_send_that_may_block_finds_room_as_long_as_poll_calls_the_connection_writable() {
    let (_alone, l) = alone();
    let piece = [7u8; 8192];
    let mut sent = 0;
    while writable(&l, 0) {
        let n = io::send(l.fd, piece.as_ptr().cast(), piece.len(), 0);
        assert_eq!(n, piece.len().cast_signed());
        sent += piece.len();
    }
    let size = l.conn.tx_size.load(Ordering::Relaxed) as usize;
    // It has filled three quarters of the largest window, and not waited until TCP took over.
    assert!((size / 2..=size).contains(&sent), "{sent} of {size}");
    assert!(is_full(&l.conn));
    receive(&l, size / 4);
    assert!(!is_full(&l.conn) && writable(&l, 0));
    ends(l);
}

#[test]
fn whether_tcp_behind_a_full_ring_has_room_for_a_send_that_may_block_says_the_kernel() {
    let (_alone, l) = alone();
    let piece = [7u8; 8192];
    // What can be read is reported, too: the ring leads back.
    let is_writable = || polled(&l, libc::POLLIN | libc::POLLOUT, 0) & libc::POLLOUT != 0;
    let fill = || {
        let mut sent = 0;
        while writable(&l, 0) {
            let n = io::send(l.fd, piece.as_ptr().cast(), piece.len(), 0);
            assert_eq!(n, piece.len().cast_signed());
            sent += piece.len();
        }
        sent
    };
    assert!(fill() > 0);
    std::thread::sleep(Duration::from_millis(15)); // nobody reads: TCP takes over
    l.conn.glanced.store(ticks(), Ordering::Relaxed);
    assert!(!is_writable(), "the kernel has been asked a moment ago");
    std::thread::sleep(Duration::from_millis(1));
    assert!(is_writable(), "the kernel is asked");
    assert!(fill() > 0, "and TCP becomes full");
    ends(l);
}

#[test]
fn a_program_that_begins_to_wait_for_room_hears_only_of_a_quarter_if_its_sends_may_block() {
    let (_alone, l) = alone();
    let sent = fill(&l);
    receive(&l, sent); // the window has grown
    // SAFETY: no pointers are passed.
    let epfd = unsafe { libc::epoll_create1(0) };
    process::open_ep(epfd);
    let ctl = |how, events: i32| {
        let events = events.cast_unsigned();
        let mut event = libc::epoll_event { events, u64: 0 };
        assert_eq!(epoll::ctl(epfd, how, l.fd, &raw mut event), 0);
    };
    let piece = [7u8; 8192];
    let size = l.conn.tx_size.load(Ordering::Relaxed) as usize;
    for _ in 0..size / 8 * 7 / piece.len() {
        let n = io::send(l.fd, piece.as_ptr().cast(), piece.len(), 0);
        assert_eq!(n, piece.len().cast_signed());
    }
    ctl(libc::EPOLL_CTL_ADD, libc::EPOLLPRI);
    ctl(libc::EPOLL_CTL_MOD, libc::EPOLLOUT);
    assert!(!reported(epfd, 0), "an eighth");
    receive(&l, size / 8);
    assert!(reported(epfd, 0), "a quarter");
    // SAFETY: the set is this test's own.
    unsafe { libc::close(epfd) };
    process::forget(epfd);
    ends(l);
}

#[test]
fn an_edge_for_room_is_reported_even_if_the_ring_is_full_again_by_then() {
    let (_alone, l) = alone();
    fill(&l);
    // SAFETY: no pointers are passed.
    let epfd = unsafe { libc::epoll_create1(0) };
    process::open_ep(epfd);
    let ep = process::ep_of(epfd).unwrap();
    let mut event = libc::epoll_event {
        events: (libc::EPOLLOUT | libc::EPOLLET).cast_unsigned(),
        u64: 0,
    };
    let add = libc::EPOLL_CTL_ADD;
    assert_eq!(epoll::ctl(epfd, add, l.fd, &raw mut event), 0);
    assert!(sets::full(&l.conn.regs, &process::HIDING));
    while reported(epfd, 0) {}
    {
        // Another thread sees room, and the ring is full again before this thread reports it.
        let _held = ep.lock.lock().unwrap();
        assert!(sets::drop_full(ep, |_| sets::Fullness::Room));
    }
    assert!(is_full(&l.conn) && reported(epfd, 0));
    // SAFETY: the set is this test's own.
    unsafe { libc::close(epfd) };
    process::forget(epfd);
    ends(l);
}

#[test]
fn what_tcp_once_refused_does_not_hide_that_the_ring_has_room() {
    let (_alone, l) = alone();
    let sent = fill(&l);
    receive(&l, sent); // the window has grown
    l.conn.shared().tx_blocked.store(1, Ordering::Relaxed);
    let sent = fill(&l);
    assert_eq!(l.conn.shared().tx_blocked.load(Ordering::Relaxed), 0);
    receive(&l, sent);
    assert!(writable(&l, 0));
    ends(l);
}

#[test]
fn a_wait_naps_until_there_is_room() {
    let (_alone, l) = alone();
    let sent = fill(&l);
    receive(&l, sent); // the window has grown
    let sent = fill(&l);
    std::thread::scope(|both| {
        both.spawn(|| {
            // The receiver is slow, but reads: TCP does not take over.
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(2));
                receive(&l, sent / 64);
            }
        });
        assert!(writable(&l, 5_000));
    });
    let taken = usize::try_from(l.conn.shared().rx_taken.load(Ordering::Relaxed)).unwrap();
    assert!(taken >= sent + sent / 4, "{taken}, twice {sent}");
    ends(l);
}

#[test]
fn a_wait_lasts_its_time_where_ring_and_tcp_are_full() {
    let (_alone, l) = alone();
    let sent = fill(&l);
    receive(&l, sent); // the window has grown
    fill(&l);
    std::thread::sleep(Duration::from_millis(15));
    assert!(fill(&l) > 0, "TCP has taken over");
    receive(&l, 64); // the sender waits for the ring again, and soon for TCP
    // By the library's own clock: it is measured when the program starts, and is a few percent off where others use the
    // CPUs then.
    let start = ticks();
    assert!(!writable(&l, 200));
    let us = (ticks() - start) / process::PROCESS.ticks_per_us.load(Ordering::Relaxed);
    assert!(us >= 199_000, "{us}");
    ends(l);
}

#[test]
fn tcp_takes_over_from_a_ring_that_nobody_reads() {
    let (_alone, l) = alone();
    let sent = fill(&l);
    std::thread::sleep(Duration::from_millis(15));
    assert!(!is_full(&l.conn) && writable(&l, 0));
    assert_eq!(send(&l, b"by TCP"), 6);
    let written = memlane_sys::sock::tcp_counts(l.fd).unwrap().written;
    assert_eq!(written, 6);
    // Once the receiver reads, the sender waits for the ring again. The other end of the socket sends back what went
    // by TCP.
    use std::io::{Read as _, Write as _};
    let mut bytes = [0u8; 6];
    let mut other = &l.ends[1];
    other.read_exact(&mut bytes).unwrap();
    other.write_all(&bytes).unwrap();
    receive(&l, sent / 4 * 3);
    assert!(fill(&l) > 0 && is_full(&l.conn));
    ends(l);
}

#[test]
fn large_windows_are_counted_once_and_given_back() {
    let (_alone, l) = alone();
    let ring = 1 << 20;
    for _ in 0..100_000 {
        assert!(large::allows(&l.conn, ring, ring));
    }
    large::end(&l.conn, ring);
    let whole = usize::try_from(memlane_sys::proc::memory()).unwrap();
    assert!(large::allows(&l.conn, 256 * 1024, whole), "not large");
    assert!(!large::allows(&l.conn, ring, whole), "all of the memory");
    ends(l);
}

#[test]
fn streams_that_fill_their_rings_share_the_room_of_one() {
    let (_alone, first) = alone();
    let fill_and_receive = |l: &Looped| receive(l, fill(l));
    (0..3).for_each(|_| fill_and_receive(&first));
    assert_eq!(window(&first), 4 << 20);
    let all: Vec<Looped> = (0..7).map(|_| looped()).chain([first]).collect();
    for _ in 0..4 {
        all.iter().for_each(fill_and_receive);
    }
    let windows: Vec<usize> = all.iter().map(window).collect();
    assert!(windows.iter().sum::<usize>() <= 4 << 20, "{windows:?}");
    // The others are idle now, although their connections live.
    std::thread::sleep(Duration::from_millis(150));
    (0..3).for_each(|_| fill_and_receive(&all[0]));
    assert_eq!(window(&all[0]), 4 << 20);
    all.into_iter().for_each(ends);
    // A connection that is over shares no more.
    let next = looped();
    (0..3).for_each(|_| fill_and_receive(&next));
    assert_eq!(window(&next), 4 << 20);
    ends(next);
}

#[test]
fn each_stream_of_a_crowd_has_a_window_that_one_of_its_writes_fills() {
    let (_alone, first) = alone();
    let fill_and_receive = |l: &Looped| receive(l, fill(l));
    (0..2).for_each(|_| fill_and_receive(&first));
    assert!(window(&first) >= 1 << 18, "it is no crowd yet");
    let all: Vec<Looped> = (0..39).map(|_| looped()).chain([first]).collect();
    for _ in 0..6 {
        all.iter().for_each(fill_and_receive);
    }
    let windows: Vec<usize> = all.iter().map(window).collect();
    assert!(windows.iter().all(|&w| w == 64 * 1024), "{windows:?}");
    // A longer write is no reason to wait in its middle.
    let long = vec![7u8; 200 * 1024];
    for _ in 0..3 {
        receive(&all[0], usize::try_from(send(&all[0], &long)).unwrap());
    }
    assert_eq!(window(&all[0]), 256 * 1024);
    // The others are idle now, although their connections live.
    std::thread::sleep(Duration::from_millis(250));
    (0..3).for_each(|_| fill_and_receive(&all[1]));
    assert_eq!(window(&all[1]), 4 << 20);
    all.into_iter().for_each(ends);
}

#[test]
fn a_full_ring_whose_window_must_shrink_loses_nothing_and_goes_on() {
    let (_alone, l) = alone();
    (0..3).for_each(|_| receive(&l, fill(&l)));
    let other = looped();
    receive(&l, fill(&l) / 2); // half of the large window is unread
    let mut left = window(&l) / 2;
    receive(&other, fill(&other));
    receive(&other, fill(&other));
    // What is unread is more than the window may have now.
    assert_eq!((fill(&l), window(&l)), (0, 1 << 20));
    assert!(is_full(&l.conn) && !writable(&l, 0));
    while left > 1 << 19 {
        receive(&l, 1 << 18);
        left -= 1 << 18;
    }
    assert!(writable(&l, 0));
    for _ in 0..100 {
        // A stream that has not filled its window for 100 ms would no longer count.
        receive(&other, fill(&other));
        left += fill(&l);
        assert!(left <= 1 << 20, "{left} bytes in a window of 1 MiB");
        receive(&l, left);
        left = 0;
    }
    [l, other].into_iter().for_each(ends);
}
