//! Streams by name: between two threads and between two processes, with plain peers, with peers that die.

use memlane_core::reason::Reason;
use memlane_socket::Listener;
use memlane_socket::Stream;
use memlane_socket::native::{End, Ready, Standing};
use memlane_sys::Errno;
use memlane_sys::fd::Fd;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

/// The byte at a place of the stream: no period that a ring's size could hide.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn pair() -> (Stream, Stream) {
    let listener = Listener::bind(&loopback()).unwrap();
    let there = Stream::connect(&listener.local_addr().unwrap()).unwrap();
    (there, listener.accept().unwrap())
}

/// Both in memory before anything is sent.
fn open_pair() -> (Stream, Stream) {
    let (mut there, mut here) = pair();
    let other = std::thread::spawn(move || {
        let standing = there.negotiate(LIMIT);
        (there, standing)
    });
    assert_eq!(here.negotiate(LIMIT), Standing::Memory);
    let (there, standing) = other.join().unwrap();
    assert_eq!(standing, Standing::Memory);
    (there, here)
}

/// Sends by turns of each kind, in pieces of many sizes.
fn send_all(to: &mut Stream, bytes: u64) {
    let mut at = 0;
    let mut round = 0_usize;
    while at < bytes {
        let most = usize::try_from(bytes - at)
            .unwrap()
            .min(1 + round * 977 % 90_000);
        round += 1;
        let part: Vec<u8> = (at..at + most as u64).map(byte).collect();
        let sent = if round.is_multiple_of(3) {
            to.write(&part).unwrap()
        } else {
            let slot = to.reserve(most).unwrap();
            let n = slot.len().min(most);
            assert!(slot.fill(0, &part[..n]));
            slot.commit(n).unwrap();
            n
        };
        at += sent as u64;
    }
    to.finish().unwrap();
}

/// Receives by turns of each kind, and looks at each byte.
fn receive_all(from: &mut Stream) -> u64 {
    let (mut at, mut round) = (0, 0);
    let mut buffer = vec![0; 50_000];
    loop {
        round += 1;
        let n = if round % 3 == 0 {
            match from.read(&mut buffer) {
                Ok(n) => n,
                Err(error) => panic!("{error} at {at}"),
            }
        } else {
            let here = from.peek().unwrap();
            let n = here.len().min(buffer.len());
            assert!(here.copy_to(0, &mut buffer[..n]));
            here.consume(n);
            n
        };
        if n == 0 {
            return at;
        }
        for seen in &buffer[..n] {
            assert_eq!(*seen, byte(at), "at {at}");
            at += 1;
        }
    }
}

#[test]
fn what_is_sent_comes_in_order_and_mostly_in_memory() {
    let (mut there, mut here) = open_pair();
    let sender = std::thread::spawn(move || {
        send_all(&mut there, 40_000_000);
        there.counts()
    });
    assert_eq!(receive_all(&mut here), 40_000_000);
    let (sent, got) = (sender.join().unwrap(), here.counts());
    assert_eq!(sent.sent_in_memory + sent.sent_by_tcp, 40_000_000);
    assert_eq!(got.received_in_memory, sent.sent_in_memory);
    assert_eq!(got.received_by_tcp, sent.sent_by_tcp);
    assert!(got.received_in_memory > 0, "{got:?}");
}

#[test]
fn a_place_is_whole_where_nothing_is_unread() {
    let (mut there, mut here) = open_pair();
    let mut in_memory = 0;
    for round in 0..500_u64 {
        // No size divides what a ring or a part of it has; in the end they are almost half of it.
        let want = usize::try_from(3000 + round * 257).unwrap().min(120_000);
        let slot = there.reserve(want).unwrap();
        let is_shared = slot.is_shared();
        in_memory += u32::from(is_shared);
        let n = slot.len();
        assert!(n >= want || !is_shared, "{n} of {want} in round {round}");
        let sent = [byte(round); 8];
        assert!(slot.fill(n.min(want) - 8, &sent));
        slot.commit(n.min(want)).unwrap();
        let mut left = n.min(want);
        let mut seen = [0; 8];
        while left > 0 {
            let shown = here.peek().unwrap();
            let some = shown.len();
            assert!(some > 0 && some == left || !is_shared, "{some} of {left}");
            assert!(!is_shared || shown.copy_to(some - 8, &mut seen));
            shown.consume(some);
            left -= some;
        }
        assert!(!is_shared || seen == sent, "round {round}");
    }
    assert!(in_memory > 400, "{in_memory} of 500 in memory");
}

#[test]
fn a_stream_opens_in_the_middle_of_its_bytes() {
    let (mut there, mut here) = pair();
    let sender = std::thread::spawn(move || {
        send_all(&mut there, 30_000_000);
        there.counts()
    });
    assert_eq!(receive_all(&mut here), 30_000_000);
    let sent = sender.join().unwrap();
    assert!(sent.sent_in_memory > 0, "{sent:?}");
}

#[test]
fn both_directions_at_a_time() {
    let (mut there, mut here) = open_pair();
    let echo = std::thread::spawn(move || {
        let mut buffer = [0; 3000];
        loop {
            let n = there.read(&mut buffer).unwrap();
            if n == 0 {
                return there.counts();
            }
            let mut done = 0;
            while done < n {
                done += there.write(&buffer[done..n]).unwrap();
            }
        }
    });
    let mut back = [0; 3000];
    for round in 0..3000_u64 {
        let len = 1 + (round * 7 % 2999) as usize;
        let part: Vec<u8> = (round..round + len as u64).map(byte).collect();
        assert_eq!(here.write(&part).unwrap(), len);
        let mut have = 0;
        while have < len {
            have += here.read(&mut back[have..len]).unwrap();
        }
        assert_eq!(&back[..len], &part[..]);
    }
    here.finish().unwrap();
    let counts = echo.join().unwrap();
    assert!(counts.sent_in_memory > 0, "{counts:?}");
}

#[test]
fn a_peer_that_has_no_lane_gets_its_bytes_by_tcp_and_the_reason_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut there = Stream::connect(&listener.local_addr().unwrap()).unwrap();
    let mut plain = listener.accept().unwrap().0;
    let receiver = std::thread::spawn(move || {
        let (mut buffer, mut at) = (vec![0; 65_536], 0);
        loop {
            match plain.read(&mut buffer).unwrap() {
                0 => return at,
                n => {
                    assert!(buffer[..n].iter().zip(at..).all(|(b, at)| *b == byte(at)));
                    at += n as u64;
                }
            }
        }
    });
    assert_eq!(
        there.negotiate(LIMIT),
        Standing::Tcp(Reason::PEER_NO_MEMLANE)
    );
    send_all(&mut there, 5_000_000);
    assert_eq!(receiver.join().unwrap(), 5_000_000);
    assert_eq!(there.counts().sent_in_memory, 0);

    let listener = Listener::bind(&loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut plain = TcpStream::connect(address).unwrap();
    let mut here = listener.accept().unwrap();
    let all: Vec<u8> = (0..3_000_000).map(byte).collect();
    let sender = std::thread::spawn(move || plain.write_all(&all).unwrap());
    assert_eq!(receive_all(&mut here), 3_000_000);
    sender.join().unwrap();
}

#[test]
fn a_socket_that_has_carried_bytes_before_is_taken_with_them() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut two = listener.accept().unwrap().0;
    one.write_all(b"before").unwrap();
    let mut before = [0; 6];
    two.read_exact(&mut before).unwrap();
    one.write_all(b"unread").unwrap();
    // SAFETY: each is the only owner of its descriptor.
    let (one, two) = unsafe {
        (
            Fd::from_raw(one.into_raw_fd()),
            Fd::from_raw(two.into_raw_fd()),
        )
    };
    let mut one = Stream::of(one, End::Connected).unwrap();
    let mut two = Stream::of(two, End::Accepted).unwrap();
    let other = std::thread::spawn(move || {
        assert_eq!(one.negotiate(LIMIT), Standing::Memory);
        one
    });
    assert_eq!(two.negotiate(LIMIT), Standing::Memory);
    let mut one = other.join().unwrap();
    assert_eq!(two.read(&mut before).unwrap(), 6);
    assert_eq!(&before, b"unread");
    let sender = std::thread::spawn(move || send_all(&mut one, 1_000_000));
    assert_eq!(receive_all(&mut two), 1_000_000);
    sender.join().unwrap();
}

#[test]
fn who_must_not_wait_is_told_so_and_a_commit_that_finds_no_room_is_not_lost() {
    let (mut there, mut here) = open_pair();
    there.set_nonblocking(true).unwrap();
    here.set_nonblocking(true).unwrap();
    assert_eq!(here.read(&mut [0; 10]).unwrap_err(), Errno::AGAIN);
    assert_eq!(here.peek().unwrap_err(), Errno::AGAIN);
    let mut at = 0_u64;
    // Nobody reads: ring, TCP's buffers and ours fill up.
    loop {
        match there.reserve(50_000) {
            Err(error) => {
                assert_eq!(error, Errno::AGAIN);
                break;
            }
            Ok(slot) => {
                let n = slot.len();
                let part: Vec<u8> = (at..at + n as u64).map(byte).collect();
                assert!(slot.fill(0, &part));
                slot.commit(n).unwrap();
                at += n as u64;
            }
        }
    }
    assert_eq!(there.write(b"x").unwrap_err(), Errno::AGAIN);
    let reader = std::thread::spawn(move || {
        here.set_nonblocking(false).unwrap();
        receive_all(&mut here)
    });
    let began = Instant::now();
    while there.flush() == Err(Errno::AGAIN) {
        assert!(began.elapsed() < LIMIT);
        there.wait(Ready::ToWrite, LIMIT).unwrap();
    }
    there.finish().unwrap();
    drop(there);
    assert_eq!(reader.join().unwrap(), at);
}

#[test]
fn an_armed_stream_becomes_readable_for_whoever_polls_its_descriptor() {
    let (mut there, mut here) = open_pair();
    // Awake once, so that the ring is in use.
    there.write(b"1").unwrap();
    assert_eq!(here.read(&mut [0; 9]).unwrap(), 1);
    for round in 0..200 {
        while !here.arm() {
            here.read(&mut [0; 9]).unwrap();
        }
        there.write(&[round]).unwrap();
        let mut one = libc::pollfd {
            fd: here.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, which lives over the call.
        let n = unsafe { libc::poll(&raw mut one, 1, 30_000) };
        assert_eq!(n, 1, "round {round}");
        let mut got = [0];
        assert_eq!(here.read(&mut got).unwrap(), 1);
        assert_eq!(got, [round]);
    }
}

#[test]
fn bytes_that_lie_in_the_ring_when_the_sender_closes_are_read_to_the_end() {
    for _ in 0..20 {
        let (mut there, mut here) = open_pair();
        there.write(b"wake up").unwrap();
        assert_eq!(here.read(&mut [0; 9]).unwrap(), 7);
        send_all(&mut there, 100_000);
        drop(there);
        assert_eq!(receive_all(&mut here), 100_000);
    }
}

#[test]
fn a_slot_that_is_not_committed_sends_nothing() {
    let (mut there, mut here) = open_pair();
    there.write(b"a").unwrap();
    assert_eq!(here.read(&mut [0; 9]).unwrap(), 1);
    let slot = there.reserve(10).unwrap();
    assert!(slot.fill(0, b"never"));
    drop(slot);
    there.write(b"b").unwrap();
    let mut got = [0; 9];
    assert_eq!(here.read(&mut got).unwrap(), 1);
    assert_eq!(got[0], b'b');
}

// --- two processes ----------------------------------------------------------

/// This very program, as the other process: it plays `part` with the listener at `port`.
fn other_process(part: &str, port: u16) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "plays_its_part", "--ignored", "--nocapture"])
        .env("W3_PART", part)
        .env("W3_PORT", port.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "the other process of those below"]
fn plays_its_part() {
    let part = std::env::var("W3_PART").unwrap();
    let port: u16 = std::env::var("W3_PORT").unwrap().parse().unwrap();
    let mut stream = Stream::connect(&SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    match part.as_str() {
        "sends" => {
            assert_eq!(stream.negotiate(LIMIT), Standing::Memory);
            send_all(&mut stream, 50_000_000);
            assert!(stream.counts().sent_in_memory > 0);
        }
        "pours" => loop {
            stream.write(&[7; 10_000]).unwrap();
        },
        "sleeps" => {
            stream.negotiate(LIMIT);
            std::thread::sleep(LIMIT);
        }
        part => panic!("{part}"),
    }
}

fn with_other_process(part: &str) -> (Child, Stream) {
    let listener = Listener::bind(&loopback()).unwrap();
    let child = other_process(part, listener.local_addr().unwrap().port());
    (child, listener.accept().unwrap())
}

#[test]
fn two_processes() {
    let (mut child, mut here) = with_other_process("sends");
    assert_eq!(here.negotiate(LIMIT), Standing::Memory);
    assert_eq!(receive_all(&mut here), 50_000_000);
    assert!(child.wait().unwrap().success());
    assert!(here.counts().received_in_memory > 0);
}

#[test]
fn a_sender_that_is_killed_ends_the_stream_behind_what_it_had_sent() {
    for after in [1, 300_000, 3_000_000] {
        let (mut child, mut here) = with_other_process("pours");
        let (mut got, mut buffer) = (0, vec![0; 30_000]);
        while got < after {
            let n = here.read(&mut buffer).unwrap();
            assert!(n > 0 && buffer[..n].iter().all(|b| *b == 7));
            got += n;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        loop {
            match here.read(&mut buffer) {
                Ok(0) | Err(Errno(libc::ECONNRESET)) => break,
                n => assert!(buffer[..n.unwrap()].iter().all(|b| *b == 7)),
            }
        }
    }
}

#[test]
fn a_receiver_that_is_killed_or_never_reads_does_not_hold_its_sender_for_ever() {
    let (mut child, mut here) = with_other_process("sleeps");
    assert_eq!(here.negotiate(LIMIT), Standing::Memory);
    here.set_nonblocking(true).unwrap();
    let mut sent = 0_u64;
    // It never reads: ring and TCP's buffers bound what it costs.
    loop {
        match here.write(&[1; 100_000]) {
            Ok(n) => sent += n as u64,
            Err(error) => {
                assert_eq!(error, Errno::AGAIN);
                break;
            }
        }
        assert!(sent < 1 << 30, "nothing holds the sender up");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let began = Instant::now();
    loop {
        match here.write(&[1; 100_000]) {
            Err(Errno(libc::EPIPE | libc::ECONNRESET)) => break,
            Ok(_) | Err(Errno::AGAIN) => assert!(began.elapsed() < LIMIT),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_child_of_a_fork_cannot_use_a_stream_and_its_parent_goes_on_in_memory() {
    let (mut there, mut here) = open_pair();
    there.write(b"wake up").unwrap();
    assert_eq!(here.read(&mut [0; 9]).unwrap(), 7);
    // SAFETY: the child does no more than to try its streams, and leaves at once.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        const STALE: Errno = Errno(libc::ESTALE);
        let refused = there.write(b"child") == Err(STALE)
            && there.reserve(5).err() == Some(STALE)
            && here.peek().err() == Some(STALE)
            && here.read(&mut [0; 9]) == Err(STALE);
        drop((there, here));
        // SAFETY: nothing of the parent's is run.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
    there.write(b"parent").unwrap();
    let mut got = [0; 9];
    assert_eq!(here.read(&mut got).unwrap(), 6);
    assert_eq!(&got[..6], b"parent");
    assert_eq!(there.standing(), Standing::Memory);
    drop(there);
    assert_eq!(
        here.read(&mut got).unwrap(),
        0,
        "the child's copy keeps it open"
    );
}

#[test]
fn a_peer_in_the_middle_of_a_write_keeps_nobody_from_asking_again() {
    let (mut there, mut here) = open_pair();
    // Awake once, so that the ring is in use.
    there.write(b"1").unwrap();
    assert_eq!(here.read(&mut [0; 9]).unwrap(), 1);
    here.set_nonblocking(true).unwrap();
    let slot = there.reserve(4).unwrap();
    assert!(slot.is_shared() && slot.fill(0, b"word"));
    // Told at once, and then after a moment.
    for _ in 0..6 {
        assert!(!here.arm(), "what it writes now would wake nobody");
        assert_eq!(here.read(&mut [0; 9]).unwrap_err(), Errno::AGAIN);
    }
    slot.commit(4).unwrap();
    let mut got = [0; 9];
    assert_eq!(here.read(&mut got).unwrap(), 4);
    assert_eq!(&got[..4], b"word");
    assert!(here.arm());
}
