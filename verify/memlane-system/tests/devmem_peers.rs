//! `memlane nc` with misbehaving peers that flood, stay silent, never read, disconnect or freeze; and impossible
//! requests.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use memlane_system::blocks::memlane;
use memlane_system::devmem::{
    LIMIT, Listening, PATHS, PATHS_HERE, both, command, nothing_is_lost, refused, resident, ticks,
};
use memlane_system::harness::{self, Running, TempDir};
use memlane_system::real::wait_until;

/// The pattern of `--validate 5`.
fn pattern(len: usize) -> Vec<u8> {
    [1, 2, 3, 4, 0].into_iter().cycle().take(len).collect()
}

/// Writes until it would have to wait for a while; how much went.
fn stuff(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    stream
        .set_write_timeout(Some(Duration::from_millis(300)))
        .expect("a limit");
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(n) => sent += n,
            Err(_) => break,
        }
    }
    sent
}

#[test]
fn a_region_of_one_chunk_is_enough_over_each_path() {
    for path in PATHS {
        let into = ["--into", "memfd:4K", "--chunk", "4K", "--validate", "5"];
        let args = [&into[..], &["--require", path, "--json"]].concat();
        let receiver = Listening::start(&args);
        let mut stream = TcpStream::connect(&receiver.at).expect("a connection");
        stream.write_all(&pattern(20_000_000)).expect("sent");
        drop(stream);
        let counted = receiver.counted();
        nothing_is_lost(&counted, 20_000_000);
        assert_eq!(
            (&counted["chunks"], &counted["largest_fragment"]),
            (&1.into(), &4096.into())
        );
    }
}

/// Whoever floods is taken at the pace of the receiver, with no more memory than the region and what the command has anyway.
#[test]
fn a_flood_costs_no_memory() {
    let receiver = Listening::start(&["--into", "memfd:1M", "--validate", "5", "--json"]);
    let mut stream = TcpStream::connect(&receiver.at).expect("a connection");
    let some = pattern(5_000_000);
    stream.write_all(&some).expect("sent");
    let (_, before) = resident(receiver.running.pid());
    for _ in 0..80 {
        stream.write_all(&some).expect("sent");
    }
    let (all, after) = resident(receiver.running.pid());
    assert!(
        before > 0 && after < before + 1024,
        "{before} KiB, {after} KiB"
    );
    assert!(all < 64 << 10, "{all} KiB");
    drop(stream);
    nothing_is_lost(&receiver.counted(), 405_000_000);
}

#[test]
fn a_peer_that_says_nothing_costs_nothing_and_the_command_can_be_ended() {
    for args in [
        &["--into", "memfd:1M"][..],
        &["--into", "memfd:1M", "--require", "staged"],
    ] {
        let mut receiver = Listening::start(args);
        let stream = TcpStream::connect(&receiver.at).expect("a connection");
        std::thread::sleep(Duration::from_millis(1200));
        let used = ticks(receiver.running.pid());
        assert!(used < 20, "{used} ticks of waiting");
        assert!(receiver.running.is_running());
        receiver.running.signal("TERM");
        let ended = receiver.finish();
        assert!(!ended.hung && !ended.is_ok(), "{}", ended.report());
        drop(stream);
    }
}

#[test]
fn a_sender_whose_peer_never_reads_waits_with_what_it_has() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("its address").to_string();
    let args = ["nc", &at, "--from", "memfd:1M", "--bytes", "1T"];
    let mut sender = Running::start(command(&args));
    let (peer, _) = listener.accept().expect("a sender");
    let pid = sender.pid();
    // Until nothing goes any more.
    let mut last = ticks(pid);
    let begin = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = ticks(pid);
        if now == last {
            break;
        }
        last = now;
        assert!(begin.elapsed() < LIMIT, "it never stops");
    }
    assert!(sender.is_running(), "{}", sender.stderr());
    let (all, _) = resident(pid);
    assert!(all < 64 << 10, "{all} KiB");
    drop(peer);
    refused(&sender.finish(LIMIT), 1, "sending: ");
}

/// The fragments are out as long as nobody takes what goes to `--output`.
#[test]
fn a_receiver_that_releases_nothing_holds_the_sender_up_and_loses_nothing() {
    let dir = TempDir::new("nc-fifo");
    let fifo = dir.path().join("fifo");
    let mut make = Command::new("mkfifo");
    make.arg(&fifo);
    assert!(harness::run(make, LIMIT).is_ok());
    let name = fifo.to_str().expect("a path");
    for path in PATHS {
        // It opens, as nobody has to read to open a FIFO for both.
        let mut open = std::fs::OpenOptions::new();
        let at_once = rustix::fs::OFlags::NONBLOCK.bits();
        open.read(true).write(true);
        open.custom_flags(at_once.try_into().expect("a flag"));
        let mut reader = open.open(&fifo).expect("the FIFO");
        let into = ["--into", "memfd:256K", "--json", "--output", name];
        let receiver = Listening::start(&[&into[..], &["--require", path]].concat());
        let mut stream = TcpStream::connect(&receiver.at).expect("a connection");
        let all = pattern(60_000_000);
        let sent = stuff(&mut stream, &all);
        assert!(sent < all.len(), "{path}: nobody held the sender up");
        let (_, anonymous) = resident(receiver.running.pid());
        assert!(anonymous < 32 << 10, "{anonymous} KiB");
        stream.set_write_timeout(None).expect("no limit");
        let rest = all.clone();
        let feeder = std::thread::spawn(move || stream.write_all(&rest[sent..]).expect("the rest"));
        let mut got = Vec::new();
        let mut some = vec![0; 1 << 16];
        let begin = Instant::now();
        while got.len() < all.len() {
            match reader.read(&mut some) {
                Ok(n) => got.extend_from_slice(&some[..n]),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(begin.elapsed() < LIMIT, "{} of {}", got.len(), all.len());
        }
        feeder.join().expect("the sender");
        assert!(got == all, "other bytes over {path}");
        nothing_is_lost(&receiver.counted(), all.len() as u64);
    }
}

#[test]
fn a_peer_that_ends_half_way_is_an_end_and_one_that_resets_is_an_error() {
    for path in PATHS {
        let into = ["--into", "memfd:256K", "--json", "--require", path];
        // The peer closes its half, and waits.
        let receiver = Listening::start(&into);
        let mut stream = TcpStream::connect(&receiver.at).expect("a connection");
        stream.write_all(&pattern(300_001)).expect("sent");
        stream.shutdown(std::net::Shutdown::Write).expect("half");
        nothing_is_lost(&receiver.counted(), 300_001);
        drop(stream);
        // It breaks off.
        let receiver = Listening::start(&into);
        let stream = TcpStream::connect(&receiver.at).expect("a connection");
        (&stream).write_all(&pattern(300_001)).expect("sent");
        reset(stream);
        refused_as_json(&receiver.finish(), "receiving: Connection reset by peer");
    }
}

/// Closed without a word: SO_LINGER of no time.
fn reset(stream: TcpStream) {
    let set = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    set.expect("an option");
    drop(stream);
}

/// With `--json`, the error is a document.
fn refused_as_json(outcome: &harness::Outcome, says: &str) {
    let report = outcome.report();
    assert_eq!(
        (outcome.status.code(), outcome.stdout.as_str()),
        (Some(1), ""),
        "{report}"
    );
    // Behind the line that says where it listens.
    let document = outcome.stderr.split_once('\n').map_or("", |(_, rest)| rest);
    let error: serde_json::Value = serde_json::from_str(document).expect(&report);
    assert_eq!(error["schema"], "memlane.error/1");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains(says), "{report}");
}

#[test]
fn a_sender_whose_peer_breaks_off_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("its address").to_string();
    for breaks in [drop as fn(TcpStream), reset] {
        let args = ["nc", &at, "--from", "memfd:1M", "--bytes", "1T"];
        let sender = Running::start(command(&args));
        let (mut peer, _) = listener.accept().expect("a sender");
        peer.read_exact(&mut vec![0; 1_000_000]).expect("some");
        breaks(peer);
        refused(&sender.finish(LIMIT), 1, "sending: ");
    }
}

/// Both sides are frozen and resumed in turn, at any point.
#[test]
fn both_ends_may_be_frozen_at_any_moment_and_nothing_is_lost() {
    for path in PATHS_HERE {
        let into = ["--into", "memfd:1M", "--validate", "7", "--json"];
        let receiver = Listening::start(&[&into[..], &["--require", path]].concat());
        let from = ["--from", "memfd:1M", "--bytes", "600M", "--validate", "7"];
        let args = [&["nc", &receiver.at], &from[..], both(path)].concat();
        let mut sender = Running::start(command(&args));
        for turn in 0..40 {
            let one = if turn % 2 == 0 {
                &receiver.running
            } else {
                &sender
            };
            one.signal("STOP");
            std::thread::sleep(Duration::from_millis(5));
            one.signal("CONT");
            std::thread::sleep(Duration::from_millis(3));
            if !sender.is_running() {
                break;
            }
        }
        let sent = sender.finish(LIMIT);
        assert!(sent.is_ok(), "{}", sent.report());
        nothing_is_lost(&receiver.counted(), 600 << 20);
    }
}

#[test]
fn what_cannot_be_written_or_read_is_an_error_with_a_sentence() {
    // A disk that is full.
    let receiver = Listening::start(&["--into", "memfd:1M", "--output", "/dev/full"]);
    let mut stream = TcpStream::connect(&receiver.at).expect("a connection");
    let _ = stream.write_all(&pattern(3_000_000));
    refused(&receiver.finish(), 1, "--output: No space left on device");
    // It has ended: whoever sends hears of it.
    wait_until("an error", LIMIT, || stream.write_all(&[0; 65536]).is_err());

    let dir = TempDir::new("nc-wrong");
    let folder = dir.path().to_str().expect("a path").to_owned();
    let inside = format!("{folder}/no/such/folder");
    let run = |args: &[&str]| harness::run(command(args), LIMIT);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("no waiting");
    let at = listener.local_addr().expect("its address").to_string();
    refused(&run(&["nc", &at, "--from", &inside]), 1, "No such file");
    refused(&run(&["nc", &at, "--from", &folder]), 1, "directory");
    refused(
        &run(&["nc", &at, "--into", "memfd:1M", "--output", &inside]),
        1,
        "No such file",
    );
    refused(
        &run(&["nc", &at, "--into", "memfd:1M", "--output", &folder]),
        1,
        "directory",
    );
    assert!(listener.accept().is_err(), "somebody was asked");
}

#[test]
fn regions_that_cannot_be_are_refused_before_anybody_is_asked() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("no waiting");
    let at = listener.local_addr().expect("its address").to_string();
    for (into, chunk, code) in [
        ("memfd:0", "64K", 2),
        ("memfd:4K", "64K", 2),
        ("memfd:1M", "0", 2),
        ("memfd:1M", "2K", 2),
        ("memfd:1M", "12K", 2),
        ("memfd:256M", "128M", 2),
        ("memfd:99999999G", "64K", 2),
    ] {
        let args = ["nc", &at, "--into", into, "--chunk", chunk];
        let outcome = harness::run(command(&args), LIMIT);
        refused(&outcome, code, "memfd:");
    }
    // More than this process may have.
    let mut narrow = Command::new("sh");
    let script = "ulimit -v 4000000 && exec \"$@\"";
    let args = ["nc", &at, "--into", "memfd:1024G"];
    narrow.args(["-c", script, "sh"]).arg(memlane()).args(args);
    let outcome = harness::run(narrow, LIMIT);
    refused(&outcome, 1, "mapping: Cannot allocate memory");
    assert!(listener.accept().is_err(), "somebody was asked");
}
