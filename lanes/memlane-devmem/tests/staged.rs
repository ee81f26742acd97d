//! The path `staged`, with engines that are late, slow, or fail: nobody gets a byte before it is in the region, and
//! nothing is lost or kept after any end.

use memlane_devmem::error::{AccessError, ReceiveError};
use memlane_devmem::io::copy::{Copier, CopyEngine, Job};
use memlane_devmem::io::stage::Stage;
use memlane_devmem::io::{Binding, Path, Stream, Terms, Wait};
use memlane_devmem::{DeviceRegion, Fragment, Range};
use memlane_sys::Errno;
use proptest::prelude::*;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

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

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bytes(from: u64, count: u64) -> Vec<u8> {
    (from..from + count).map(byte).collect()
}

fn is_whole(binding: &Binding) {
    let counts = binding.counts();
    assert_eq!(counts.free, counts.chunks, "chunks were lost");
}

/// An engine that copies a job for each word it is given, and what it has copied.
fn led(binding: &Arc<Binding>) -> (Box<dyn CopyEngine>, Sender<Result<(), AccessError>>) {
    let binding = Arc::clone(binding);
    let (lead, words) = channel();
    let engine = Copier::of("led", move |job: &Job| {
        // Nobody leads it any more: it works on alone.
        words.recv().unwrap_or(Ok(()))?;
        job.copy_to(binding.region())
    });
    (Box::new(engine.unwrap()), lead)
}

fn over(
    here: TcpStream,
    binding: &Arc<Binding>,
    stage: usize,
    engine: Box<dyn CopyEngine>,
) -> Stream {
    let stage = Stage::new(stage).unwrap();
    Stream::staged(here.into(), binding, &Terms::default(), stage, engine)
}

fn check(stream: &Stream, fragments: &[Fragment], mut at: u64) -> u64 {
    for fragment in fragments {
        let mut seen = vec![0; fragment.len as usize];
        stream.read(fragment.token, 0, &mut seen).unwrap();
        assert!(
            seen == bytes(at, u64::from(fragment.len)),
            "other bytes at {at}"
        );
        at += u64::from(fragment.len);
    }
    at
}

/// Receives until nothing more comes by itself.
fn settle(stream: &mut Stream, fragments: &mut Vec<Fragment>) -> ReceiveError {
    loop {
        match stream.receive(fragments) {
            Ok(0) => panic!("the end"),
            Ok(_) => {}
            Err(ReceiveError::WouldBlock) => {
                match stream.wait(Wait::Payload, Duration::from_millis(50)) {
                    Ok(true) => {}
                    _ => return ReceiveError::WouldBlock,
                }
            }
            Err(other) => return other,
        }
    }
}

#[test]
fn nobody_gets_a_byte_before_it_is_in_the_region() {
    let (mut there, here) = pair();
    let binding = bound("64K", 4096);
    let (engine, lead) = led(&binding);
    let mut stream = over(here, &binding, 1 << 16, engine);
    assert_eq!(stream.path(), Path::Staged);
    there.write_all(&bytes(0, 6000)).unwrap();
    let mut fragments = Vec::new();
    let why = settle(&mut stream, &mut fragments);
    let (counts, mut free) = (stream.counts(), vec![binding.counts().free]);
    let guessed = stream.release(&[Range {
        start: 0,
        count: 1024,
    }]);
    free.push(binding.counts().free);
    // Before anything is judged: a stream that is dropped waits for its engine.
    lead.send(Ok(())).unwrap();
    assert_eq!((why, &fragments), (ReceiveError::WouldBlock, &vec![]));
    assert_eq!((counts.received, counts.out, counts.bounced), (0, 0, 0));
    // Its tokens cannot be guessed: what is still written to does not become free.
    assert_eq!(guessed, Ok(0));
    assert!(
        free[0] < binding.counts().chunks && free[0] == free[1],
        "{free:?}"
    );
    let mut total = 0;
    while total < 6000 {
        assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
        match stream.receive(&mut fragments) {
            Err(ReceiveError::WouldBlock) => lead.send(Ok(())).unwrap(),
            came => total += came.unwrap(),
        }
    }
    assert_eq!(check(&stream, &fragments, 0), 6000);
    assert_eq!(stream.counts().bounced, 6000);
    stream.release_all(&fragments);
    drop((lead, stream));
    is_whole(&binding);
}

#[test]
fn the_end_is_told_behind_the_last_byte() {
    let (mut there, here) = pair();
    let binding = bound("64K", 4096);
    let (engine, lead) = led(&binding);
    let mut stream = over(here, &binding, 1 << 16, engine);
    there.write_all(&bytes(0, 5000)).unwrap();
    drop(there);
    let mut fragments = Vec::new();
    assert_eq!(
        settle(&mut stream, &mut fragments),
        ReceiveError::WouldBlock
    );
    drop(lead);
    let mut total = 0;
    loop {
        match stream.receive(&mut fragments) {
            Ok(0) => break,
            Err(ReceiveError::WouldBlock) => {
                assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
            }
            came => total += came.unwrap(),
        }
    }
    assert_eq!(total, 5000);
    assert_eq!(check(&stream, &fragments, 0), 5000);
    assert_eq!(stream.receive(&mut fragments), Ok(0), "and again");
}

#[test]
fn a_reset_is_told_behind_the_last_byte() {
    let (mut there, here) = pair();
    let binding = bound("64K", 4096);
    let (engine, lead) = led(&binding);
    (&here).write_all(b"unread").unwrap();
    there.write_all(&bytes(0, 5000)).unwrap();
    let mut stream = over(here, &binding, 1 << 16, engine);
    let mut fragments = Vec::new();
    assert_eq!(
        settle(&mut stream, &mut fragments),
        ReceiveError::WouldBlock
    );
    // Unread bytes at its close make a reset of it.
    drop(there);
    assert_eq!(
        settle(&mut stream, &mut fragments),
        ReceiveError::WouldBlock
    );
    assert_eq!(fragments, []);
    drop(lead);
    let end = loop {
        match stream.receive(&mut fragments) {
            Err(ReceiveError::WouldBlock) => {
                assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
            }
            Ok(1..) => {}
            end => break end,
        }
    };
    assert_eq!(end, Err(ReceiveError::Kernel(Errno(104))));
    assert_eq!(check(&stream, &fragments, 0), 5000);
}

#[test]
fn an_engine_that_stands_still_holds_the_sender_up() {
    let (there, here) = pair();
    there.set_nonblocking(true).unwrap();
    let binding = bound("1M", 4096);
    let (engine, lead) = led(&binding);
    let mut stream = over(here, &binding, 8192, engine);
    let mut fragments = Vec::new();
    let mut sent = 0;
    // Until the kernel takes no more, even after the stream has had its chance.
    let mut chances = 0;
    while chances < 3 {
        match (&there).write(&bytes(sent, 65_536)) {
            Ok(n) => sent += n as u64,
            Err(_) => {
                assert_eq!(
                    settle(&mut stream, &mut fragments),
                    ReceiveError::WouldBlock
                );
                chances += 1;
            }
        }
    }
    assert_eq!(fragments, []);
    let taken = binding.counts().chunks - binding.counts().free;
    assert!(taken <= 3, "two pages of staging memory are {taken} chunks");
    drop(lead);
    drop(there);
    let mut total = 0;
    loop {
        fragments.clear();
        match stream.receive(&mut fragments) {
            Ok(0) => break,
            Err(ReceiveError::WouldBlock) => {
                assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
            }
            came => {
                came.unwrap();
                total = check(&stream, &fragments, total);
                stream.release_all(&fragments);
            }
        }
    }
    assert_eq!(total, sent);
    assert_eq!(stream.counts().bounced, sent, "copied once each");
    drop(stream);
    is_whole(&binding);
}

#[test]
fn an_engine_that_fails_ends_the_stream_behind_what_is_whole() {
    let (mut there, here) = pair();
    let binding = bound("64K", 4096);
    let (engine, lead) = led(&binding);
    let mut stream = over(here, &binding, 1 << 16, engine);
    let why = AccessError::Device(Errno(5));
    let mut fragments = Vec::new();
    for n in 0..3 {
        there.write_all(&bytes(n * 100, 100)).unwrap();
        assert_eq!(
            settle(&mut stream, &mut fragments),
            ReceiveError::WouldBlock
        );
    }
    lead.send(Ok(())).unwrap();
    lead.send(Err(why)).unwrap();
    let end = loop {
        match settle(&mut stream, &mut fragments) {
            ReceiveError::WouldBlock => {}
            error => break error,
        }
    };
    assert_eq!(end, ReceiveError::Copy(why));
    assert!(end.to_string().contains("copy"), "{end}");
    assert_eq!(check(&stream, &fragments, 0), 100, "the first one is whole");
    assert_eq!(stream.receive(&mut fragments), Err(end), "for good");
    drop(stream);
    is_whole(&binding);
}

#[test]
fn an_engine_that_dies_is_an_error_and_no_wait_without_end() {
    let (mut there, here) = pair();
    let binding = bound("64K", 4096);
    let engine = Copier::of("dies", |_: &Job| -> Result<(), AccessError> {
        panic!("as this test wants it")
    });
    let mut stream = over(here, &binding, 1 << 16, Box::new(engine.unwrap()));
    there.write_all(b"lost").unwrap();
    let mut fragments = Vec::new();
    let end = loop {
        match stream.receive(&mut fragments) {
            Err(ReceiveError::WouldBlock) => {
                assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
            }
            came => break came,
        }
    };
    assert_eq!(end, Err(ReceiveError::Copy(AccessError::Gone)));
    drop(stream);
    is_whole(&binding);
}

/// Chunks that are free again are written to by nobody.
#[test]
fn a_stream_that_is_dropped_waits_for_what_is_under_way() {
    let (mut there, here) = pair();
    let binding = bound("64K", 4096);
    let copied = Arc::new(AtomicU64::new(0));
    let astray = Arc::new(AtomicU64::new(0));
    let (theirs, wrong, into) = (
        Arc::clone(&copied),
        Arc::clone(&astray),
        Arc::clone(&binding),
    );
    let engine = Copier::of("slow", move |job: &Job| {
        std::thread::sleep(Duration::from_millis(200));
        let counts = into.counts();
        let is_free = counts.free == counts.chunks;
        wrong.fetch_add(u64::from(is_free), Ordering::SeqCst);
        job.copy_to(into.region())?;
        theirs.fetch_add(job.len(), Ordering::SeqCst);
        Ok(())
    });
    let mut stream = over(here, &binding, 1 << 16, Box::new(engine.unwrap()));
    let mut fragments = Vec::new();
    for n in 0..2 {
        there.write_all(&bytes(n * 100, 100)).unwrap();
        assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
        while stream.counts().received == 0 && copied.load(Ordering::SeqCst) == 0 {
            match stream.receive(&mut fragments) {
                Err(ReceiveError::WouldBlock) => break,
                came => drop(came.unwrap()),
            }
        }
    }
    assert!(binding.counts().free < binding.counts().chunks);
    drop(stream);
    assert!(copied.load(Ordering::SeqCst) > 0, "it was under way");
    is_whole(&binding);
    let astray = astray.load(Ordering::SeqCst);
    assert_eq!(astray, 0, "somebody wrote to a free chunk");
}

#[test]
fn a_region_whose_chunks_are_under_way_is_not_out_of_room() {
    let (mut there, here) = pair();
    let binding = bound("8K", 4096);
    let (engine, lead) = led(&binding);
    let mut stream = over(here, &binding, 1 << 16, engine);
    there.write_all(&bytes(0, 20_000)).unwrap();
    let mut fragments = Vec::new();
    // Nobody has a fragment that could be handed back: this is a wait, not a lack of room.
    assert_eq!(
        settle(&mut stream, &mut fragments),
        ReceiveError::WouldBlock
    );
    drop(lead);
    assert_eq!(settle(&mut stream, &mut fragments), ReceiveError::NoRoom);
    assert_eq!(check(&stream, &fragments, 0), 8192);
    assert_eq!(stream.wait(Wait::Room, Duration::ZERO), Ok(false));
    stream.release_all(&fragments);
    assert_eq!(stream.wait(Wait::Room, LIMIT), Ok(true));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever comes when, and however late the engine is: the same bytes in the same order, each copied once.
    #[test]
    fn any_pace_gives_the_same_bytes(
        parts in proptest::collection::vec(1_u64..9000, 1..12),
        paces in proptest::collection::vec(0_u64..300, 1..12),
        stage in 1_usize..5,
        hold in any::<bool>(),
    ) {
        let (mut there, here) = pair();
        let binding = bound("64K", 4096);
        let into = Arc::clone(&binding);
        let mut turn = 0;
        let engine = Copier::of("paced", move |job: &Job| {
            std::thread::sleep(Duration::from_micros(paces[turn % paces.len()]));
            turn += 1;
            job.copy_to(into.region())
        });
        let mut stream = over(here, &binding, stage * 4096, Box::new(engine.unwrap()));
        let all: u64 = parts.iter().sum();
        let sender = std::thread::spawn(move || {
            let mut at = 0;
            for part in parts {
                there.write_all(&bytes(at, part)).unwrap();
                at += part;
            }
        });
        let (mut total, mut held, mut fragments) = (0, Vec::new(), Vec::new());
        loop {
            match stream.receive(&mut fragments) {
                Ok(0) => break,
                Ok(_) => {
                    total = check(&stream, &fragments, total);
                    held.append(&mut fragments);
                    if !hold {
                        stream.release_all(&held);
                        held.clear();
                    }
                }
                Err(ReceiveError::WouldBlock) => {
                    prop_assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
                }
                Err(ReceiveError::NoRoom) => {
                    prop_assert_eq!(stream.release_all(&held) as usize, held.len());
                    held.clear();
                }
                Err(other) => panic!("{other}"),
            }
        }
        sender.join().unwrap();
        prop_assert_eq!((total, stream.counts().bounced), (all, all));
        drop(stream);
        is_whole(&binding);
    }
}
