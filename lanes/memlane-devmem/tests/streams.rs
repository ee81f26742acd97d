//! Streams between two threads, over each path: contents, back-pressure, ends of all kinds, and nothing lost after them.

use memlane_devmem::error::{AccessError, ReceiveError};
use memlane_devmem::io::{Binding, Path, Stream, Terms, Wait};
use memlane_devmem::{DeviceRegion, Fragment, Range};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

fn bound(bytes: &str, chunk: u32) -> Arc<Binding> {
    let region = DeviceRegion::create(&format!("memfd:{bytes}").parse().unwrap()).unwrap();
    Binding::new(region, chunk).unwrap()
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (there, listener.accept().unwrap().0)
}

fn over(path: Path) -> Terms {
    Terms {
        require: Some(path),
        ..Terms::default()
    }
}

/// The byte at a place of the stream: no period that a chunk's size could hide.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Receives until the end; true for each fragment: give it back now.
fn drain(stream: &mut Stream, mut now: impl FnMut(Fragment) -> bool) -> u64 {
    let (mut total, mut fragments, mut seen) = (0, Vec::new(), Vec::new());
    loop {
        fragments.clear();
        match stream.receive(&mut fragments) {
            Ok(0) => return total,
            Ok(_) => {}
            Err(ReceiveError::WouldBlock) => {
                assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
            }
            Err(other) => panic!("{other}"),
        }
        for fragment in &fragments {
            seen.resize(fragment.len as usize, 0);
            stream.read(fragment.token, 0, &mut seen).unwrap();
            let right = seen.iter().zip(total..).all(|(seen, at)| *seen == byte(at));
            assert!(right, "other bytes at {total}");
            total += u64::from(fragment.len);
        }
        fragments.retain(|fragment| now(*fragment));
        assert_eq!(stream.release_all(&fragments) as usize, fragments.len());
    }
}

fn sends(mut to: TcpStream, bytes: u64) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut at = 0;
        while at < bytes {
            let end = bytes.min(at + 70_001);
            let part: Vec<u8> = (at..end).map(byte).collect();
            to.write_all(&part).unwrap();
            at = end;
        }
    })
}

fn is_whole(binding: &Binding) {
    let counts = binding.counts();
    assert_eq!(counts.free, counts.chunks, "chunks were lost");
}

#[test]
fn what_is_sent_lands_in_the_region_over_each_path() {
    for path in [Path::Mapped, Path::Staged] {
        let (there, here) = pair();
        let binding = bound("512K", 16 << 10);
        let sender = sends(there, 20_000_000);
        let mut stream = Stream::new(here.into(), &binding, &over(path));
        assert_eq!(stream.path(), path);
        assert_eq!(drain(&mut stream, |_| true), 20_000_000);
        sender.join().unwrap();
        let counts = stream.counts();
        assert_eq!((counts.received, counts.out), (20_000_000, 0));
        assert_eq!(counts.fragments, counts.released);
        let bounced = if path == Path::Staged { 20_000_000 } else { 0 };
        assert_eq!(counts.bounced, bounced, "copies on the way, {path}");
        drop(stream);
        is_whole(&binding);
    }
}

#[test]
fn a_receiver_that_gives_nothing_back_holds_the_sender_up_and_loses_nothing() {
    let (there, here) = pair();
    let binding = bound("64K", 4096);
    let sender = sends(there, 10_000_000);
    let mut stream = Stream::new(here.into(), &binding, &Terms::default());
    let mut held = Vec::new();
    let full = loop {
        match stream.receive(&mut held) {
            Err(ReceiveError::WouldBlock) => {
                assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
            }
            Err(error) => break error,
            Ok(n) => assert_ne!(n, 0, "the end came first"),
        }
    };
    assert_eq!(full, ReceiveError::NoRoom);
    let bytes: u64 = held.iter().map(|f| u64::from(f.len)).sum();
    assert_eq!(bytes, 64 << 10, "all of the region is out");
    assert_eq!(stream.wait(Wait::Room, Duration::ZERO), Ok(false));
    // What it held is as it came; the rest follows once it is given back.
    let mut total = 0;
    for fragment in &held {
        let mut seen = vec![0; fragment.len as usize];
        stream.read(fragment.token, 0, &mut seen).unwrap();
        assert!(seen.iter().zip(total..).all(|(seen, at)| *seen == byte(at)));
        total += u64::from(fragment.len);
    }
    assert_eq!(stream.release_all(&held) as usize, held.len());
    assert_eq!(stream.wait(Wait::Room, LIMIT), Ok(true));
    let mut left = 10_000_000 - total;
    let mut fragments = Vec::new();
    while left > 0 {
        match stream.receive(&mut fragments) {
            Err(ReceiveError::WouldBlock) => {
                assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
            }
            came => left -= came.unwrap(),
        }
        stream.release_all(&fragments);
        fragments.clear();
    }
    sender.join().unwrap();
    drop(stream);
    is_whole(&binding);
}

#[test]
fn too_many_small_fragments_are_held_up_by_tokens_too() {
    let (mut there, here) = pair();
    there.set_nodelay(true).unwrap();
    let binding = bound("64K", 4096);
    let terms = Terms {
        fragments: 3,
        ..Terms::default()
    };
    let mut stream = Stream::new(here.into(), &binding, &terms);
    let mut held = Vec::new();
    for n in 0..3 {
        there.write_all(&[n]).unwrap();
        assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
        assert_eq!(stream.receive(&mut held), Ok(1));
    }
    there.write_all(&[3]).unwrap();
    assert_eq!(stream.receive(&mut held), Err(ReceiveError::NoRoom));
    // All three lie in one chunk, which is not used up by that.
    assert_eq!(binding.counts().free, binding.counts().chunks - 1);
    assert_eq!(stream.wait(Wait::Room, Duration::ZERO), Ok(false));
    assert_eq!(stream.release(&[held[1].into()]), Ok(1));
    assert_eq!(stream.wait(Wait::Room, LIMIT), Ok(true));
    assert_eq!(stream.receive(&mut held), Ok(1));
    let mut seen = [0];
    stream.read(held[3].token, 0, &mut seen).unwrap();
    assert_eq!(seen, [3]);
}

#[test]
fn tokens_of_others_and_of_nobody_free_nothing() {
    let binding = bound("64K", 4096);
    let mut streams = Vec::new();
    for n in 0..2 {
        let (mut there, here) = pair();
        there.write_all(&[n; 100]).unwrap();
        let mut stream = Stream::new(here.into(), &binding, &Terms::default());
        let mut fragments = Vec::new();
        assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
        stream.receive(&mut fragments).unwrap();
        streams.push((there, stream, fragments));
    }
    let [(_, one, mine), (_, two, _)] = &streams[..] else {
        panic!("two streams");
    };
    for start in [1, 77, u32::MAX] {
        assert_eq!(one.release(&[Range { start, count: 1 }]), Ok(0));
    }
    let token = mine[0].token;
    assert_eq!(
        one.release(&[mine[0].into(), mine[0].into()]),
        Ok(1),
        "once"
    );
    assert_eq!(one.release(&[mine[0].into()]), Ok(0), "not again");
    let gone = one.read(token, 0, &mut [0]);
    assert_eq!(gone, Err(AccessError::NoSuchToken(token)));
    assert_eq!(two.counts().out, 1, "the other's is still out");
    assert_eq!(two.read(token, 99, &mut [0; 2]), Err(AccessError::Outside));
    drop(streams);
    is_whole(&binding);
}

#[test]
fn a_stream_that_ends_gives_everything_back_but_what_has_an_owner() {
    let binding = bound("64K", 4096);
    let (mut there, here) = pair();
    there.write_all(&[7; 10_000]).unwrap();
    drop(there);
    let mut stream = Stream::new(here.into(), &binding, &Terms::default());
    let mut fragments = Vec::new();
    while stream.receive(&mut fragments) != Ok(0) {}
    let mine = stream.own(fragments[0]).expect("it is out");
    assert!(stream.own(fragments[0]).is_none(), "it has one owner");
    assert_eq!(stream.release_all(&fragments) as usize, fragments.len() - 1);
    drop(stream);
    assert_eq!(binding.counts().free, binding.counts().chunks - 1);
    let mut seen = [0; 10];
    let at = mine.fragment().offset;
    mine.binding().region().read(at, &mut seen).unwrap();
    assert_eq!(seen, [7; 10], "it is there after the stream");
    std::thread::spawn(move || drop(mine)).join().unwrap();
    is_whole(&binding);
}

#[test]
fn a_peer_that_resets_is_an_error_and_costs_no_chunk() {
    let binding = bound("64K", 4096);
    let (mut there, here) = pair();
    there.write_all(b"unread").unwrap();
    // Unread bytes at its close make a reset of it.
    (&here).write_all(b"answer").unwrap();
    let mut stream = Stream::new(here.into(), &binding, &Terms::default());
    drop(there);
    let mut fragments = Vec::new();
    let end = loop {
        match stream.receive(&mut fragments) {
            Ok(0) => break None,
            Ok(_) => {}
            Err(ReceiveError::WouldBlock) => {
                assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
            }
            Err(error) => break Some(error),
        }
    };
    assert!(matches!(end, Some(ReceiveError::Kernel(_))), "{end:?}");
    drop(stream);
    is_whole(&binding);
}

#[test]
fn bytes_of_the_region_are_sent_from_where_they_lie() {
    let binding = bound("64K", 4096);
    let (mut there, here) = pair();
    let mut stream = Stream::new(here.into(), &binding, &Terms::default());
    binding.region().write(5000, b"from the device").unwrap();
    assert_eq!(stream.send(5000, 15), Ok(15));
    assert_eq!(stream.send(65_530, 15), Err(AccessError::Outside));
    let mut seen = [0; 15];
    there.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"from the device");
    assert_eq!(stream.counts().sent, 15);
}

#[test]
fn two_streams_share_a_region_and_each_gets_its_own_bytes() {
    let binding = bound("256K", 4096);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (there, here) = pair();
            let binding = Arc::clone(&binding);
            let sender = sends(there, 3_000_000);
            std::thread::spawn(move || {
                let mut stream = Stream::new(
                    here.into(),
                    &binding,
                    &Terms {
                        burst: 16 << 10,
                        ..Terms::default()
                    },
                );
                assert_eq!(drain(&mut stream, |_| true), 3_000_000);
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
fn a_receive_that_waits_keeps_nothing_when_nothing_comes_and_gets_what_comes_later() {
    for path in [Path::Mapped, Path::Staged] {
        for blocks in [true, false] {
            let (there, here) = pair();
            here.set_nonblocking(!blocks).unwrap();
            let binding = bound("64K", 4096);
            let mut stream = Stream::new(here.into(), &binding, &over(path));
            let (mut held, began, limit) = (Vec::new(), Instant::now(), Duration::from_millis(30));
            let nothing = stream.receive_within(limit, &mut held);
            assert_eq!(nothing, Err(ReceiveError::WouldBlock), "{path}, {blocks}");
            assert!(began.elapsed() >= limit, "{path}, {blocks}");
            is_whole(&binding);
            let later = std::thread::spawn(move || {
                std::thread::sleep(limit);
                (&there).write_all(b"later").unwrap();
                there
            });
            assert_eq!(stream.receive_within(LIMIT, &mut held), Ok(5));
            assert_eq!(held.len(), 1);
            drop(later.join().unwrap());
            assert_eq!(stream.receive_within(LIMIT, &mut held), Ok(0), "the end");
        }
    }
}

/// A stream that waits keeps chunks for a while. Another one, which found none because of that, hears when they are back.
#[test]
fn chunks_that_a_waiting_stream_did_not_use_are_told_of() {
    let binding = bound("64K", 4096);
    let (_silent, idle) = pair();
    let mut idle = Stream::new(idle.into(), &binding, &over(Path::Mapped));
    let (mut there, here) = pair();
    let mut stream = Stream::new(here.into(), &binding, &over(Path::Mapped));
    let stop = Arc::new(AtomicBool::new(false));
    let waits = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            while !stop.load(Ordering::Relaxed) {
                let nothing = idle.receive_within(Duration::from_millis(10), &mut Vec::new());
                // The other stream may have all chunks at this moment.
                let errors = [ReceiveError::WouldBlock, ReceiveError::NoRoom];
                assert!(
                    nothing.as_ref().is_err_and(|error| errors.contains(error)),
                    "{nothing:?}"
                );
            }
        }
    });
    let (mut held, mut got, began) = (Vec::new(), 0, Instant::now());
    loop {
        assert!(began.elapsed() < LIMIT, "there was always room");
        // Whole chunks: behind half of one there would be room for more.
        if got % 4096 == 0 {
            there.write_all(&[1; 4096]).unwrap();
        }
        match stream.receive(&mut held) {
            Err(ReceiveError::NoRoom) => break,
            Err(ReceiveError::WouldBlock) => {}
            came => got += came.unwrap(),
        }
        stream.release_all(&held);
        held.clear();
    }
    // Nothing of this stream is out whose return could be told of.
    assert_eq!(stream.wait(Wait::Room, LIMIT), Ok(true));
    stop.store(true, Ordering::Relaxed);
    waits.join().unwrap();
    assert!(matches!(stream.receive(&mut held), Ok(1..)));
}
