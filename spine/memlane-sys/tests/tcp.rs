//! What the kernel says about real TCP connections over loopback.

use memlane_sys::Errno;
use memlane_sys::diag::{build_request, lookup_tcp, parse_reply};
use memlane_sys::fd::{open_path_of, stat};
use memlane_sys::sock::{
    self, Addr, Peeked, TCP_ESTABLISHED, Tuple, is_tcp, local_addr, peek, remote_addr,
    socket_cookie, tcp_counts,
};
use proptest::prelude::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// (the connecting end, the accepting end)
fn connection(listen: &str, connect: &str) -> Option<(TcpStream, TcpStream)> {
    let listener = match TcpListener::bind((listen, 0)) {
        Ok(listener) => listener,
        Err(e) => {
            eprintln!("SKIPPED: no {listen} on this machine: {e}");
            return None;
        }
    };
    let client = TcpStream::connect((connect, listener.local_addr().unwrap().port())).unwrap();
    let server = listener.accept().unwrap().0;
    Some((client, server))
}

fn v4() -> (TcpStream, TcpStream) {
    connection("127.0.0.1", "127.0.0.1").unwrap()
}

fn tuple_of(s: &TcpStream) -> Tuple {
    Tuple {
        local: local_addr(s.as_raw_fd()).unwrap(),
        remote: remote_addr(s.as_raw_fd()).unwrap(),
    }
}

/// Waits until `done` (the kernel moves loopback packets at once, acknowledgements a little later).
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn assert_found(s: &TcpStream, as_v4: bool) {
    let found = lookup_tcp(&tuple_of(s), as_v4).unwrap();
    assert_eq!(found.state, TCP_ESTABLISHED);
    assert_eq!(u64::from(found.inode), stat(s.as_raw_fd()).unwrap().ino);
    assert_eq!(found.cookie, socket_cookie(s.as_raw_fd()).unwrap());
    // SAFETY: only asks.
    assert_eq!(found.uid, unsafe { libc::geteuid() });
}

// ---- sock_diag ----

#[test]
fn both_ends_of_an_ipv4_connection_are_found_by_inode_and_cookie() {
    let (client, server) = v4();
    assert!(tuple_of(&client) == tuple_of(&server).mirrored());
    assert!(tuple_of(&client).local.is_v4() && is_tcp(client.as_raw_fd()));
    for end in [&client, &server] {
        assert_found(end, true);
    }
    assert_ne!(
        lookup_tcp(&tuple_of(&client), true),
        lookup_tcp(&tuple_of(&server), true)
    );
}

#[test]
fn both_ends_of_an_ipv6_connection_are_found_by_inode_and_cookie() {
    let Some((client, server)) = connection("::1", "::1") else {
        return;
    };
    assert!(tuple_of(&client) == tuple_of(&server).mirrored());
    assert!(!tuple_of(&client).local.is_v4());
    for end in [&client, &server] {
        assert_found(end, false);
    }
}

#[test]
fn a_v4_mapped_end_is_found_as_ipv6_and_its_ipv4_peer_as_ipv4() {
    let Some((client, server)) = connection("::", "127.0.0.1") else {
        return;
    };
    assert!(server.local_addr().unwrap().is_ipv6() && client.local_addr().unwrap().is_ipv4());
    assert!(tuple_of(&client) == tuple_of(&server).mirrored());
    assert_found(&client, true);
    assert_found(&server, false);
    assert_eq!(
        lookup_tcp(&tuple_of(&server), true),
        Err(Errno::NOENT),
        "the answer is in the other family's form"
    );
}

#[test]
fn a_connection_that_is_not_there_is_not_found_and_a_listener_is_not_taken_for_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut wrong = tuple_of(&client).mirrored();
    wrong.remote.port ^= 1; // nobody connected from there; the listener's port is right
    assert_eq!(lookup_tcp(&wrong, true), Err(Errno::NOENT));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_reply_whatsoever_makes_the_parser_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..160),
        shape in 0u8..4,
        v4 in any::<bool>(),
    ) {
        let tuple = Tuple::default();
        if shape > 0 && bytes.len() >= 6 {
            let kind: u16 = if shape == 1 { 2 } else { 20 };
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        }
        if shape == 3 && bytes.len() >= 56 {
            bytes[20..56].copy_from_slice(&expected_id(&tuple, v4));
        }
        if let Ok(found) = parse_reply(&bytes, &tuple, v4) {
            prop_assert!(bytes.len() >= 88);
            prop_assert_eq!(found.state, bytes[17]);
        }
    }
}

/// The id that a reply must carry, taken from the request (same layout, other place).
fn expected_id(tuple: &Tuple, v4: bool) -> [u8; 36] {
    build_request(tuple, v4)[24..60].try_into().unwrap()
}

#[test]
fn a_reply_about_another_connection_is_not_believed() {
    let mut reply = [0u8; 88];
    reply[4..6].copy_from_slice(&20u16.to_ne_bytes());
    let tuple = Tuple {
        local: Addr {
            ip: [1; 16],
            port: 80,
        },
        remote: Addr {
            ip: [2; 16],
            port: 81,
        },
    };
    reply[20..56].copy_from_slice(&expected_id(&tuple, false));
    assert!(parse_reply(&reply, &tuple, false).is_ok());
    assert_eq!(
        parse_reply(&reply, &tuple.mirrored(), false),
        Err(Errno::NOENT)
    );
    assert_eq!(parse_reply(&reply[..87], &tuple, false), Err(Errno::PROTO));
}

#[test]
fn an_error_reply_gives_its_error_whatever_the_number() {
    let mut reply = [0u8; 36];
    reply[4..6].copy_from_slice(&2u16.to_ne_bytes());
    for (code, want) in [
        (-libc::EPERM, libc::EPERM),
        (0, libc::EPROTO),
        (7, libc::EPROTO),
        (i32::MIN, i32::MIN),
    ] {
        reply[16..20].copy_from_slice(&code.to_ne_bytes());
        assert_eq!(
            parse_reply(&reply, &Tuple::default(), true),
            Err(Errno(want))
        );
    }
}

// ---- tcp_counts ----

/// (written by the connecting side, taken by it, written by the accepting side, taken by it).
fn counts(client: &TcpStream, server: &TcpStream) -> (u64, u64, u64, u64) {
    let (c, s) = (
        tcp_counts(client.as_raw_fd()).unwrap(),
        tcp_counts(server.as_raw_fd()).unwrap(),
    );
    (c.written, c.taken, s.written, s.taken)
}

#[test]
fn a_fresh_connection_has_written_and_taken_nothing() {
    let (client, server) = v4();
    assert_eq!(counts(&client, &server), (0, 0, 0, 0));
    assert_eq!(
        tcp_counts(client.as_raw_fd()).unwrap().state,
        TCP_ESTABLISHED
    );
}

#[test]
fn bytes_read_and_bytes_waiting_are_told_apart_at_both_ends() {
    let (mut client, mut server) = v4();
    client.write_all(&[1; 1000]).unwrap();
    server.write_all(&[2; 77]).unwrap();
    until("1000 bytes arrive", || {
        sock::queue_len(server.as_raw_fd(), libc::FIONREAD) == Ok(1000)
    });
    assert_eq!(counts(&client, &server), (1000, 0, 77, 0));
    server.read_exact(&mut [0; 600]).unwrap();
    until("77 bytes arrive", || {
        sock::queue_len(client.as_raw_fd(), libc::FIONREAD) == Ok(77)
    });
    client.read_exact(&mut [0; 70]).unwrap();
    assert_eq!(counts(&client, &server), (1000, 70, 77, 600));
    server.read_exact(&mut [0; 400]).unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    assert_eq!(counts(&client, &server), (1000, 77, 77, 1000));
}

#[test]
fn bytes_that_the_peer_has_not_acknowledged_count_as_written() {
    let (mut client, server) = v4();
    client.set_nonblocking(true).unwrap();
    let mut written = 0u64;
    loop {
        match client.write(&[3; 65536]) {
            Ok(n) => written += n as u64,
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(
        sock::queue_len(client.as_raw_fd(), libc::TIOCOUTQ).unwrap() > 0,
        "nothing is unacknowledged"
    );
    assert_eq!(counts(&client, &server), (written, 0, 0, 0));
    let mut got = vec![0; 300_000];
    (&server).read_exact(&mut got).unwrap();
    assert_eq!(counts(&client, &server), (written, 0, 0, 300_000));
}

#[test]
fn the_counts_stay_exact_over_many_steps() {
    let (mut client, mut server) = v4();
    let (mut written, mut taken) = (0, 0);
    let mut buf = vec![0u8; 40_000];
    for i in 1..200usize {
        let n = i * 199;
        client.write_all(&buf[..n]).unwrap();
        written += n as u64;
        taken += server.read(&mut buf[..n / 2 + 1]).unwrap() as u64;
        assert_eq!(counts(&client, &server), (written, 0, 0, taken));
        while written - taken > 20_000 {
            taken += server.read(&mut buf).unwrap() as u64;
        }
    }
}

#[test]
fn after_a_fin_the_state_says_that_the_counts_are_off_by_it() {
    let (mut client, server) = v4();
    client.write_all(&[1; 10]).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    until("the FIN arrives", || {
        tcp_counts(server.as_raw_fd()).unwrap().state != TCP_ESTABLISHED
    });
    assert_ne!(
        tcp_counts(client.as_raw_fd()).unwrap().state,
        TCP_ESTABLISHED
    );
    // Why callers must look at the state: the kernel counts the FIN as a byte received.
    assert_eq!(tcp_counts(server.as_raw_fd()).unwrap().taken, 1);
}

// ---- handles and peeks ----

#[test]
fn a_fin_is_sent_although_a_path_handle_is_still_held() {
    let (client, mut server) = v4();
    let handle = open_path_of(client.as_raw_fd()).unwrap();
    assert_eq!(
        stat(handle.raw()).unwrap().ino,
        stat(client.as_raw_fd()).unwrap().ino
    );
    drop(client);
    server
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    assert_eq!(
        server
            .read(&mut [0; 1])
            .expect("the end of the stream, not a time-out"),
        0
    );
    assert!(
        stat(handle.raw()).is_ok(),
        "the handle was held all the time"
    );
}

#[test]
fn a_path_handle_of_a_bad_descriptor_is_refused_and_long_numbers_are_written_whole() {
    assert_eq!(open_path_of(-1).err(), Some(Errno::INVAL));
    assert_eq!(open_path_of(i32::MAX).err(), Some(Errno::NOENT));
    let (client, _server) = v4();
    // SAFETY: duplicates our own descriptor to a long number, which OwnedFd then closes.
    let high = unsafe {
        OwnedFd::from_raw_fd(libc::fcntl(client.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 1009))
    };
    assert!(high.as_raw_fd() >= 1009);
    let handle = open_path_of(high.as_raw_fd()).unwrap();
    assert_eq!(
        stat(handle.raw()).unwrap().ino,
        stat(client.as_raw_fd()).unwrap().ino
    );
}

#[test]
fn a_peek_takes_nothing_and_tells_data_from_nothing_from_the_end() {
    let (mut client, mut server) = v4();
    let fd = server.as_raw_fd();
    assert_eq!(peek(fd), Peeked::Nothing);
    client.write_all(b"z").unwrap();
    until("a byte arrives", || peek(fd) == Peeked::Data);
    assert_eq!(peek(fd), Peeked::Data);
    server.read_exact(&mut [0]).unwrap();
    assert_eq!(peek(fd), Peeked::Nothing);
    drop(client);
    until("the end arrives", || peek(fd) == Peeked::End);
    assert_eq!(peek(-1), Peeked::Error(Errno(libc::EBADF)));
}
