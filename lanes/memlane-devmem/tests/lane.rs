//! Payload that a process of this host puts into the region itself.

use memlane_devmem::engine::Fragment;
use memlane_devmem::error::ReceiveError;
use memlane_devmem::io::lane::{self, End};
use memlane_devmem::io::{Binding, Path, Stream, Terms, Wait};
use memlane_devmem::region::DeviceRegion;
use memlane_socket::Listener;
use memlane_socket::Stream as Native;
use memlane_socket::native::Standing;
use memlane_sys::fd::Fd;
use std::collections::VecDeque;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

fn bound(bytes: &str, chunk: u32) -> Arc<Binding> {
    let region = DeviceRegion::create(&format!("memfd:{bytes}").parse().unwrap()).unwrap();
    Binding::new(region, chunk).unwrap()
}

fn is_whole(binding: &Binding) {
    let counts = binding.counts();
    assert_eq!(counts.free, counts.chunks, "chunks were lost");
}

/// The byte at a place of the stream.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (there, listener.accept().unwrap().0)
}

fn native(socket: TcpStream, end: End) -> Native {
    // SAFETY: its only owner gives it up.
    Native::of(unsafe { Fd::from_raw(socket.into_raw_fd()) }, end).unwrap()
}

/// A sender that has agreed, and a stream whose path is `lane`.
fn agreed(binding: &Arc<Binding>, fragments: u32) -> (Native, Stream) {
    let (there, here) = pair();
    let mut there = native(there, End::Connected);
    let other = std::thread::spawn(move || {
        assert_eq!(there.negotiate(LIMIT), Standing::Memory);
        there
    });
    let terms = Terms {
        require: Some(Path::Lane),
        fragments,
        ..Terms::default()
    };
    let stream = lane::stream(here.into(), End::Accepted, binding, &terms).unwrap();
    assert_eq!(stream.path(), Path::Lane);
    (other.join().unwrap(), stream)
}

/// Sends by turns with and without a copy of its own; what was in memory.
fn sends(mut to: Native, bytes: u64) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        let (mut at, mut round) = (0, 0_usize);
        while at < bytes {
            let most = usize::try_from(bytes - at)
                .unwrap()
                .min(1 + round * 977 % 90_000);
            let part: Vec<u8> = (at..at + most as u64).map(byte).collect();
            round += 1;
            at += if round.is_multiple_of(2) {
                to.write(&part).unwrap() as u64
            } else {
                let slot = to.reserve(most).unwrap();
                let n = slot.len().min(most);
                assert!(slot.fill(0, &part[..n]));
                slot.commit(n).unwrap();
                n as u64
            };
        }
        to.finish().unwrap();
        to.counts().sent_in_memory
    })
}

/// Receives the next fragments, waits if there are none; 0 at the end. `None`: there is no room.
fn next(stream: &mut Stream, fragments: &mut Vec<Fragment>) -> Option<u64> {
    loop {
        match stream.receive(fragments) {
            Ok(n) => return Some(n),
            Err(ReceiveError::WouldBlock) => {
                assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
            }
            Err(ReceiveError::NoRoom) => return None,
            Err(error) => panic!("{error}"),
        }
    }
}

fn is_right(stream: &Stream, fragment: Fragment, at: u64) {
    let mut seen = vec![0; fragment.len as usize];
    stream.read(fragment.token, 0, &mut seen).unwrap();
    let right = seen.iter().zip(at..).all(|(seen, at)| *seen == byte(at));
    assert!(right, "other bytes at {at}");
}

/// Looks at everything, gives everything back at once; all bytes.
fn drain(stream: &mut Stream) -> u64 {
    let (mut total, mut fragments) = (0, Vec::new());
    while next(stream, &mut fragments).unwrap() > 0 {
        for fragment in &fragments {
            is_right(stream, *fragment, total);
            total += u64::from(fragment.len);
        }
        assert_eq!(stream.release_all(&fragments) as usize, fragments.len());
        fragments.clear();
    }
    total
}

#[test]
fn a_sender_of_this_host_puts_bytes_into_the_region_and_the_receiver_copies_none() {
    let binding = bound("1M", 4096);
    let (there, mut stream) = agreed(&binding, 1 << 16);
    let sender = sends(there, 30_000_000);
    assert_eq!(drain(&mut stream), 30_000_000);
    let (counts, in_memory) = (stream.counts(), sender.join().unwrap());
    assert_eq!((counts.received, counts.out), (30_000_000, 0));
    assert_eq!(counts.by_lane, in_memory, "as many as the sender put there");
    assert!(counts.by_lane > 0);
    assert_eq!(counts.bounced, 0, "copies at the receiver");
    assert_eq!(counts.fragments, counts.released);
    drop(stream);
    is_whole(&binding);
}

#[test]
fn fragments_come_back_in_any_order_and_none_is_written_over_before() {
    let binding = bound("512K", 4096);
    let (there, mut stream) = agreed(&binding, 64);
    let sender = sends(there, 20_000_000);
    let (mut total, mut kept, mut fragments) = (0_u64, Vec::new(), Vec::new());
    let mut seed = 1_u64;
    loop {
        fragments.clear();
        match next(&mut stream, &mut fragments) {
            Some(0) => break,
            Some(_) => {
                for fragment in &fragments {
                    kept.push((*fragment, total));
                    total += u64::from(fragment.len);
                }
            }
            None => assert!(!kept.is_empty(), "no room, and nothing is out"),
        }
        // Some stay out for long, and are as they were in the end.
        while kept.len() > 40 || (fragments.is_empty() && !kept.is_empty()) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let nth = usize::try_from(seed >> 33).unwrap() % kept.len();
            let (fragment, at) = kept.swap_remove(nth);
            is_right(&stream, fragment, at);
            assert_eq!(stream.release(&[fragment.into()]), Ok(1));
            if fragments.is_empty() && kept.len() < 30 {
                break;
            }
        }
    }
    assert_eq!(total, 20_000_000);
    for (fragment, at) in kept {
        is_right(&stream, fragment, at);
    }
    assert!(sender.join().unwrap() > 0);
    drop(stream);
    is_whole(&binding);
}

#[test]
fn a_receiver_that_gives_nothing_back_holds_the_sender_up_and_loses_nothing() {
    let binding = bound("256K", 4096);
    let (there, mut stream) = agreed(&binding, 1 << 16);
    let sender = sends(there, 10_000_000);
    let mut held = Vec::new();
    while let Some(n) = next(&mut stream, &mut held) {
        assert_ne!(n, 0, "the end came first");
    }
    let bytes: u64 = held.iter().map(|f| u64::from(f.len)).sum();
    // The chunks at least, for what came by TCP; the ring, if it was in use.
    assert!(bytes >= 128 << 10, "{bytes} are out");
    assert_eq!(stream.wait(Wait::Room, Duration::ZERO), Ok(false));
    let mut total = 0;
    for fragment in &held {
        is_right(&stream, *fragment, total);
        total += u64::from(fragment.len);
    }
    assert_eq!(stream.release_all(&held) as usize, held.len());
    assert_eq!(stream.wait(Wait::Room, LIMIT), Ok(true));
    let mut fragments = Vec::new();
    while next(&mut stream, &mut fragments).unwrap() > 0 {
        for fragment in &fragments {
            is_right(&stream, *fragment, total);
            total += u64::from(fragment.len);
        }
        stream.release_all(&fragments);
        fragments.clear();
    }
    assert_eq!(total, 10_000_000);
    sender.join().unwrap();
    drop(stream);
    is_whole(&binding);
}

#[test]
fn after_a_full_ring_and_a_time_of_tcp_the_ring_is_used_again() {
    let binding = bound("1M", 4096);
    let (mut there, mut stream) = agreed(&binding, 1 << 16);
    let mut at = 0_u64;
    let mut by_lane = Vec::new();
    for round in 0..20 {
        let mut kept = Vec::new();
        // More than the ring has, all of it out at a time; TCP's buffers take the rest.
        let all: Vec<u8> = (at..at + 700_000).map(byte).collect();
        let sender = std::thread::spawn(move || {
            let mut done = 0;
            while done < all.len() {
                done += there.write(&all[done..]).unwrap();
            }
            there
        });
        let mut left = 700_000;
        while left > 0 {
            let mut fragments = Vec::new();
            let came = next(&mut stream, &mut fragments);
            for fragment in fragments {
                kept.push((fragment, at));
                at += u64::from(fragment.len);
            }
            left -= came.unwrap_or(0);
            if came.is_none() || left == 0 {
                for (fragment, at) in kept.drain(..) {
                    is_right(&stream, fragment, at);
                    assert_eq!(stream.release(&[fragment.into()]), Ok(1), "round {round}");
                }
            }
        }
        there = sender.join().unwrap();
        by_lane.push(stream.counts().by_lane);
    }
    assert!(by_lane[19] > by_lane[9] && by_lane[9] > 0, "{by_lane:?}");
}

#[test]
fn a_receiver_that_keeps_more_than_the_ring_goes_on_by_tcp() {
    const BYTES: u64 = 100_000_000;
    let binding = bound("32M", 16384);
    let (mut there, mut stream) = agreed(&binding, 1 << 16);
    let sender = std::thread::spawn(move || {
        let mut at = 0;
        while at < BYTES {
            let end = BYTES.min(at + 100_000);
            let part: Vec<u8> = (at..end).map(byte).collect();
            at += there.write(&part).unwrap() as u64;
        }
        there.finish().unwrap();
        there
    });
    let (mut at, mut kept, mut fragments) = (0, VecDeque::new(), Vec::new());
    let mut at_the_end = None;
    while next(&mut stream, &mut fragments).expect("there is room") > 0 {
        for fragment in fragments.drain(..) {
            is_right(&stream, fragment, at);
            kept.push_back(fragment);
            at += u64::from(fragment.len);
        }
        if at_the_end.is_none() && stream.passed().is_some() {
            at_the_end = Some(stream.counts().by_lane);
        }
        // Of the ring's 2 MiB all is out, nearly always.
        while kept.iter().map(|f| u64::from(f.len)).sum::<u64>() > 8 << 20 {
            let oldest: Fragment = kept.pop_front().unwrap();
            assert_eq!(stream.release(&[oldest.into()]), Ok(1));
        }
    }
    assert_eq!(at, BYTES);
    let there = sender.join().unwrap();
    let counts = stream.counts();
    assert!(counts.by_lane > 0, "{counts:?}");
    let most = at_the_end.expect("it was not ended") + (2 << 20);
    assert!(
        counts.by_lane <= most,
        "more than lay in the ring: {counts:?}"
    );
    assert_eq!(stream.path(), Path::Lane);
    let why = stream.passed().expect("a reason").lacks.join("");
    assert!(why.starts_with("RING_KEPT"), "{why}");
    drop((there, stream));
    is_whole(&binding);
}

#[test]
fn fragments_with_an_owner_outlive_the_stream_and_its_peer() {
    let binding = bound("256K", 4096);
    let (mut there, mut stream) = agreed(&binding, 16);
    let mut fragments = Vec::new();
    there.write(b"wake up").unwrap();
    next(&mut stream, &mut fragments).unwrap();
    stream.release_all(&fragments);
    fragments.clear();
    there.write(&[7; 9000]).unwrap();
    next(&mut stream, &mut fragments).unwrap();
    assert!(stream.counts().by_lane > 0);
    let mine = stream.own(fragments[0]).unwrap();
    drop(there);
    while next(&mut stream, &mut fragments).unwrap() > 0 {}
    drop(stream);
    let mut seen = vec![0; mine.fragment().len as usize];
    let at = mine.fragment().offset;
    mine.binding().region().read(at, &mut seen).unwrap();
    assert!(seen.iter().all(|b| *b == 7));
    assert_ne!(binding.counts().free, binding.counts().chunks, "it is out");
    drop(mine);
    is_whole(&binding);
}

#[test]
fn a_plain_peer_s_bytes_come_as_on_the_path_mapped() {
    let (mut there, here) = pair();
    let binding = bound("512K", 4096);
    let terms = Terms::default();
    let mut stream = lane::stream(here.into(), End::Accepted, &binding, &terms).unwrap();
    let sender = std::thread::spawn(move || {
        let all: Vec<u8> = (0..3_000_000).map(byte).collect();
        there.write_all(&all).unwrap();
    });
    let half = binding.counts().free;
    assert_eq!(
        half,
        binding.counts().chunks / 2,
        "the other half is a ring"
    );
    assert_eq!(drain(&mut stream), 3_000_000);
    sender.join().unwrap();
    assert_eq!((stream.path(), stream.counts().by_lane), (Path::Mapped, 0));
    drop(stream);
    is_whole(&binding);
}

#[test]
fn where_no_ring_will_ever_be_its_chunks_take_what_comes_by_tcp() {
    let (mut there, here) = pair();
    let binding = bound("512K", 4096);
    let terms = Terms::default();
    let mut stream = lane::stream(here.into(), End::Accepted, &binding, &terms).unwrap();
    let mut held = Vec::new();
    let (mut at, began) = (0, std::time::Instant::now());
    // A peer that has no lane counts as such after two seconds.
    while binding.counts().free <= binding.counts().chunks / 2 {
        there.write_all(&[byte(at)]).unwrap();
        assert_eq!(next(&mut stream, &mut held), Some(1));
        at += 1;
        stream.release_all(&held);
        held.clear();
        assert!(began.elapsed() < LIMIT, "the ring is kept");
        std::thread::sleep(Duration::from_millis(1));
    }
    let all: Vec<u8> = (at..at + 400_000).map(byte).collect();
    let sender = std::thread::spawn(move || {
        there.write_all(&all).unwrap();
        there
    });
    let mut total = 0;
    while total < 400_000 {
        total += next(&mut stream, &mut held).expect("room in what was the ring");
    }
    for fragment in &held {
        is_right(&stream, *fragment, at);
        at += u64::from(fragment.len);
    }
    drop((stream, sender.join().unwrap()));
    is_whole(&binding);
}

#[test]
fn the_path_opens_in_the_middle_of_a_stream() {
    let (there, here) = pair();
    let binding = bound("512K", 4096);
    let terms = Terms::default();
    let mut stream = lane::stream(here.into(), End::Accepted, &binding, &terms).unwrap();
    let sender = sends(native(there, End::Connected), 20_000_000);
    assert_eq!(drain(&mut stream), 20_000_000);
    assert!(sender.join().unwrap() > 0);
    assert_eq!(stream.path(), Path::Lane);
    assert!(stream.counts().by_lane > 0);
}

#[test]
fn where_it_is_required_its_absence_has_a_reason() {
    let terms = Terms {
        require: Some(Path::Lane),
        ..Terms::default()
    };
    let tried = |binding: &Arc<Binding>, socket: OwnedFd| {
        let refused = lane::stream(socket, End::Accepted, binding, &terms);
        refused.expect_err("it is not there").to_string()
    };
    let (_there, here) = pair();
    let plain = tried(&bound("512K", 4096), here.into());
    assert!(plain.contains("PEER_NO_SMC"), "{plain}");
    let (_there, here) = pair();
    let small = tried(&bound("64K", 4096), here.into());
    assert!(small.contains("larger region"), "{small}");
    let (_there, here) = std::os::unix::net::UnixStream::pair().unwrap();
    let unix = tried(&bound("512K", 4096), here.into());
    assert!(unix.contains("no TCP connection"), "{unix}");
}

#[test]
fn streams_that_share_a_region_have_rings_of_their_own_and_give_them_back() {
    let binding = bound("4M", 4096);
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let binding = Arc::clone(&binding);
            std::thread::spawn(move || {
                let (there, mut stream) = agreed(&binding, 1 << 12);
                let sender = sends(there, 5_000_000);
                assert_eq!(drain(&mut stream), 5_000_000);
                sender.join().unwrap();
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    is_whole(&binding);
}

#[test]
fn a_region_sends_into_a_peer_s_memory_too() {
    let binding = bound("512K", 4096);
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut here = listener.accept().unwrap();
    let other = std::thread::spawn(move || {
        assert_eq!(here.negotiate(LIMIT), Standing::Memory);
        let twice: Vec<u8> = (0..200_000).map(|at| byte(at % 100_000)).collect();
        let (mut all, mut buffer) = (0, vec![0; 65_536]);
        loop {
            // Quickly: a sender that must not wait does not wait for a slow receiver, and goes on by TCP.
            let n = here.read(&mut buffer).unwrap();
            assert!(buffer[..n] == twice[all % 100_000..][..n], "at {all}");
            all += n;
            if n == 0 {
                return (all, here.counts().received_in_memory);
            }
        }
    });
    let terms = Terms {
        require: Some(Path::Lane),
        ..Terms::default()
    };
    let mut stream = lane::stream(socket.into(), End::Connected, &binding, &terms).unwrap();
    let bytes: Vec<u8> = (0..100_000).map(byte).collect();
    binding.region().write(400_000, &bytes).unwrap();
    for _ in 0..300 {
        let mut at = 0;
        while at < 100_000 {
            match stream.send(400_000 + at, u32::try_from(100_000 - at).unwrap()) {
                Ok(n) => at += u64::from(n),
                Err(_) => assert_eq!(stream.wait(Wait::Socket, LIMIT), Ok(true)),
            }
        }
    }
    assert_eq!(stream.counts().sent, 30_000_000);
    drop(stream);
    let (all, in_memory) = other.join().unwrap();
    assert_eq!(all, 30_000_000);
    assert!(in_memory > 0);
}
