//! `kill -9` of either end of `memlane nc` at each step: the other end goes on or ends with a message, and nothing is
//! left behind.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use memlane_system::devmem::{
    LIMIT, Listening, PATHS, PATHS_HERE, both, command, holders_of_regions, nothing_is_lost,
    refused,
};
use memlane_system::harness::{self, Running, TempDir};
use memlane_system::real::wait_until;

/// Nobody of these has a region any more.
fn nothing_is_left(pids: &[u32]) {
    let left = || {
        let mut holders = holders_of_regions();
        holders.retain(|(pid, _)| pids.contains(pid));
        holders
    };
    wait_until("regions to go with their processes", LIMIT, || {
        left().is_empty()
    });
    for pid in pids {
        assert!(
            !Path::new(&format!("/proc/{pid}")).exists(),
            "{pid} is there"
        );
    }
}

fn has_a_region(pid: u32) -> bool {
    holders_of_regions()
        .iter()
        .any(|(holder, _)| *holder == pid)
}

fn killed(running: Running) -> u32 {
    let pid = running.pid();
    running.signal("KILL");
    let ended = running.finish(LIMIT);
    assert!(!ended.hung && !ended.is_ok(), "{}", ended.report());
    pid
}

#[test]
fn a_receiver_that_is_killed_while_it_waits_leaves_its_place_to_the_next_one() {
    let first = Listening::start(&["--into", "memfd:1M"]);
    let at = first.at.clone();
    assert!(has_a_region(first.running.pid()));
    let pid = killed(first.running);
    nothing_is_left(&[pid]);
    assert!(TcpStream::connect(&at).is_err(), "somebody listens");
    let next = Listening::of(command(&["nc", "-l", &at, "--into", "memfd:1M", "--json"]));
    TcpStream::connect(&at)
        .expect("a connection")
        .write_all(b"here")
        .expect("sent");
    nothing_is_lost(&next.counted(), 4);
}

/// While a connection is being made: nobody takes it, or nobody has said anything.
#[test]
fn whoever_is_killed_when_the_connection_is_new_takes_nobody_with_him() {
    // Connected to a queue of a listener that takes nobody.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("its address").to_string();
    for args in [["--into", "memfd:1M"], ["--from", "memfd:1M"]] {
        let mut one = Running::start(command(&[&["nc", &at], &args[..]].concat()));
        let pid = one.pid();
        one.wait_until(LIMIT, "its region", || has_a_region(pid));
        nothing_is_left(&[killed(one)]);
        drop(listener.accept().expect("it was there"));
    }
    // The receiver has just been connected to.
    let receiver = Listening::start(&["--into", "memfd:1M"]);
    let mut stream = TcpStream::connect(&receiver.at).expect("a connection");
    nothing_is_left(&[killed(receiver.running)]);
    let end = stream.read(&mut [0]);
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
}

#[test]
fn a_sender_that_is_killed_in_mid_stream_is_an_end_for_the_receiver() {
    for path in PATHS_HERE {
        let args = [
            "--into",
            "memfd:1M",
            "--validate",
            "7",
            "--json",
            "--require",
            path,
        ];
        let receiver = Listening::start(&args);
        let from = ["--from", "memfd:1M", "--bytes", "1T", "--validate", "7"];
        let sender = Running::start(command(
            &[&["nc", &receiver.at], &from[..], both(path)].concat(),
        ));
        std::thread::sleep(Duration::from_millis(250)); // some bytes
        nothing_is_left(&[killed(sender)]);
        let pid = receiver.running.pid();
        let counted = receiver.counted();
        let bytes = counted["bytes"].as_u64().expect("bytes");
        assert!(bytes > 0, "{counted}");
        nothing_is_lost(&counted, bytes);
        nothing_is_left(&[pid]);
    }
}

#[test]
fn a_receiver_that_is_killed_in_mid_stream_is_an_error_for_the_sender() {
    for path in PATHS_HERE {
        let receiver = Listening::start(&["--into", "memfd:1M", "--require", path]);
        let from = ["--from", "memfd:1M", "--bytes", "1T"];
        let mut sender = Running::start(command(
            &[&["nc", &receiver.at], &from[..], both(path)].concat(),
        ));
        std::thread::sleep(Duration::from_millis(250)); // some bytes
        assert!(sender.is_running(), "{}", sender.stderr());
        let (sending, receiving) = (sender.pid(), killed(receiver.running));
        refused(&sender.finish(LIMIT), 1, "sending: ");
        nothing_is_left(&[sending, receiving]);
    }
}

/// The receiver's fragments are out: it waits for the reader of `--output`.
#[test]
fn a_receiver_that_is_killed_while_its_tokens_are_out_leaves_nothing() {
    let dir = TempDir::new("nc-kill");
    let fifo = dir.path().join("fifo");
    let mut make = std::process::Command::new("mkfifo");
    make.arg(&fifo);
    assert!(harness::run(make, LIMIT).is_ok());
    let mut open = std::fs::OpenOptions::new();
    let _reader = open.read(true).write(true).open(&fifo).expect("the FIFO");
    let output = fifo.to_str().expect("a path");
    for path in PATHS_HERE {
        let args = ["--into", "memfd:1M", "--require", path, "--output", output];
        let receiver = Listening::start(&args);
        let from = ["--from", "memfd:1M", "--bytes", "1T"];
        let sender = Running::start(command(
            &[&["nc", &receiver.at], &from[..], both(path)].concat(),
        ));
        std::thread::sleep(Duration::from_millis(300)); // until it is full
        assert!(has_a_region(receiver.running.pid()));
        let (sending, receiving) = (sender.pid(), killed(receiver.running));
        refused(&sender.finish(LIMIT), 1, "sending: ");
        nothing_is_left(&[sending, receiving]);
    }
}

/// All has been sent, and lies in the kernel's buffers: the sender is gone, and each byte arrives.
#[test]
fn a_sender_that_is_killed_after_its_last_byte_has_lost_nothing() {
    for path in PATHS {
        let args = [
            "--into",
            "memfd:64K",
            "--validate",
            "7",
            "--json",
            "--require",
            path,
        ];
        let receiver = Listening::start(&args);
        receiver.running.signal("STOP");
        // As much as the kernel takes at once.
        let from = ["--from", "memfd:64K", "--validate", "7"];
        let sent = harness::run(command(&[&["nc", &receiver.at], &from[..]].concat()), LIMIT);
        assert!(sent.is_ok(), "{}", sent.report());
        receiver.running.signal("CONT");
        nothing_is_lost(&receiver.counted(), 64 << 10);
    }
}
