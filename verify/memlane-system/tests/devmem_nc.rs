//! `memlane nc` and `memlane devmem` with real processes: payload into device memory, and what is refused.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use memlane_system::devmem::{LIMIT, Listening, PATHS, command, nothing_is_lost};
use memlane_system::harness::{self, Outcome, Running, TempDir};
use serde_json::Value;

fn run(args: &[&str]) -> Outcome {
    harness::run(command(args), LIMIT)
}

#[test]
fn a_pattern_lands_in_the_region_over_each_path() {
    for (path, bounced) in PATHS.into_iter().zip([0.0, 1.0]) {
        let region = ["--into", "memfd:8M", "--validate", "7", "--json"];
        let receiver = Listening::start(&[&region[..], &["--require", path]].concat());
        let from = ["--from", "memfd:4M", "--bytes", "200M", "--validate", "7"];
        let sent = run(&[&["nc", &receiver.at], &from[..]].concat());
        assert!(sent.is_ok(), "{}", sent.report());
        let counted = receiver.counted();
        nothing_is_lost(&counted, 200 << 20);
        assert_eq!(counted["path"], path);
        assert_eq!(counted["validated"], true);
        assert_eq!(counted["bounced_per_byte"], bounced, "copies on the way");
    }
}

/// As the kernel's documentation has ncdevmem fed: by nothing of ours.
#[test]
fn ncdevmem_s_own_recipe_is_received_and_validated() {
    let receiver = Listening::start(&["--into", "memfd:1M", "--validate", "7", "--json"]);
    let (host, port) = receiver.at.rsplit_once(':').expect("an address");
    let feed = format!(
        r"yes $(printf '\x01\x02\x03\x04\x05\x06') | tr '\n' '\0' | head -c 50M > /dev/tcp/{host}/{port}"
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &feed]);
    let fed = harness::run(bash, LIMIT);
    assert!(fed.is_ok(), "{}", fed.report());
    nothing_is_lost(&receiver.counted(), 50 << 20);
}

#[test]
fn a_file_goes_through_device_memory_and_comes_out_the_same() {
    let dir = TempDir::new("nc-file");
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let bytes: Vec<u8> = (0..2_500_001).flat_map(|_| next()).collect();
    std::fs::write(&from, &bytes).expect("a file");
    for path in PATHS {
        let output = to.to_str().expect("a path");
        let args = ["--into", "memfd:1M", "--chunk", "16K", "--json"];
        let more = ["--require", path, "--output", output];
        let receiver = Listening::start(&[&args[..], &more].concat());
        let sent = run(&["nc", &receiver.at, "--from", from.to_str().expect("a path")]);
        assert!(sent.is_ok(), "{}", sent.report());
        nothing_is_lost(&receiver.counted(), bytes.len() as u64);
        assert!(
            std::fs::read(&to).expect("the copy") == bytes,
            "other bytes over {path}"
        );
    }
}

#[test]
fn the_first_wrong_byte_is_named_and_the_exit_code_is_1() {
    let receiver = Listening::start(&["--into", "memfd:1M", "--validate", "7"]);
    let mut stream = TcpStream::connect(&receiver.at).expect("a connection");
    stream.write_all(&[1, 2, 3, 4, 9]).expect("sent");
    drop(stream);
    let outcome = receiver.finish();
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.report());
    assert!(
        outcome.stderr.contains("byte 4 is 9, and must be 5"),
        "{}",
        outcome.report()
    );
    assert_eq!(outcome.stdout, "");
}

#[test]
fn a_receiver_without_a_peer_s_bytes_ends_well_with_none() {
    let receiver = Listening::start(&["--into", "memfd:1M", "--json"]);
    drop(TcpStream::connect(&receiver.at).expect("a connection"));
    nothing_is_lost(&receiver.counted(), 0);
}

#[test]
fn whoever_is_killed_the_other_side_ends_with_a_sentence() {
    let receiver = Listening::start(&["--into", "memfd:1M"]);
    let args = ["nc", &receiver.at, "--from", "memfd:1M", "--bytes", "1T"];
    let mut sender = Running::start(command(&args));
    std::thread::sleep(Duration::from_millis(300)); // some bytes
    assert!(sender.is_running(), "a terabyte is not sent yet");
    receiver.running.signal("KILL");
    let outcome = sender.finish(LIMIT);
    assert!(
        !outcome.hung && outcome.status.code() == Some(1),
        "{}",
        outcome.report()
    );
    assert!(outcome.stderr.contains("sending: "), "{}", outcome.report());

    let receiver = Listening::start(&["--into", "memfd:1M", "--json"]);
    let args = ["nc", &receiver.at, "--from", "memfd:1M", "--bytes", "1T"];
    let sender = Running::start(command(&args));
    std::thread::sleep(Duration::from_millis(300)); // some bytes
    sender.signal("KILL");
    let outcome = receiver.finish();
    // The kernel closes the dead one's socket in order: that is an end as any other.
    assert!(!outcome.hung && outcome.is_ok(), "{}", outcome.report());
}

/// A sender that floods a receiver that is stopped: it is held up, and goes on afterwards.
#[test]
fn a_receiver_that_is_frozen_holds_the_sender_up_and_loses_nothing() {
    let receiver = Listening::start(&["--into", "memfd:256K", "--validate", "5", "--json"]);
    let from = ["--from", "memfd:1M", "--bytes", "100M", "--validate", "5"];
    receiver.running.signal("STOP");
    let mut sender = Running::start(command(&[&["nc", &receiver.at], &from[..]].concat()));
    std::thread::sleep(Duration::from_millis(700)); // longer than 100 MB would take
    assert!(sender.is_running(), "it was not held up");
    receiver.running.signal("CONT");
    let sent = sender.finish(LIMIT);
    assert!(sent.is_ok(), "{}", sent.report());
    nothing_is_lost(&receiver.counted(), 100 << 20);
}

#[test]
fn what_cannot_be_is_refused_with_its_exit_code() {
    let at = "127.0.0.1:9";
    let usage = [
        &["nc", at][..],
        &["nc", at, "--into", "memfd:1M", "--from", "memfd:1M"],
        &["nc", at, "--into", "memfd"],
        &["nc", at, "--into", "gpu:1M"],
        &["nc", at, "--into", "memfd:1M", "--require", "warp"],
        &["nc", at, "--into", "memfd:1M", "--chunk", "5000"],
        &["nc", at, "--into", "memfd:1M", "--chunk", "2M"],
        &["nc", at, "--from", "memfd:1M", "--validate", "1"],
        &["nc", at, "--from", "/dev/null", "--bytes", "1M"],
        &["devmem", "probe", "--interface", "no-such-if"],
    ];
    for args in usage {
        let outcome = run(args);
        assert_eq!(
            outcome.status.code(),
            Some(2),
            "{args:?}\n{}",
            outcome.report()
        );
        assert_eq!(outcome.stdout, "");
    }
    let lacking = ["udmabuf:1M", "dmaheap:no-such-heap:1M"];
    for region in lacking {
        let outcome = run(&["nc", at, "--into", region]);
        let here = region == "udmabuf:1M" && std::path::Path::new("/dev/udmabuf").exists();
        if !here {
            assert_eq!(outcome.status.code(), Some(3), "{}", outcome.report());
            assert!(outcome.stderr.contains("/dev/"), "{}", outcome.report());
        }
    }
    let outcome = run(&["nc", "127.0.0.1:1", "--from", "memfd:1M"]);
    assert_eq!(outcome.status.code(), Some(1), "nobody is there");
}

#[test]
fn what_this_machine_has_is_said_with_a_reason_for_each_no() {
    for (verb, schema, sure) in [
        ("ls", "memlane.devmem-ls/1", "memfd"),
        ("probe", "memlane.devmem-probe/1", "mapped"),
    ] {
        let text = run(&["devmem", verb]);
        assert!(
            text.is_ok() && text.stdout.contains(sure),
            "{}",
            text.report()
        );
        let outcome = run(&["devmem", verb, "--json"]);
        let document: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        assert_eq!(document["schema"], schema);
        let findings = document["findings"].as_array().expect("findings");
        for finding in findings {
            let lacks = finding["lacks"].as_array().expect("a list");
            assert_eq!(finding["here"], lacks.is_empty(), "{finding}");
        }
        let known = findings.iter().find(|finding| finding["name"] == sure);
        assert_eq!(known.expect("it is listed")["here"], true);
    }
}

/// What goes out of a region goes out as it lies there.
#[test]
fn bytes_of_a_region_are_read_by_any_program() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("its address").to_string();
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a sender");
        let mut seen = Vec::new();
        stream.read_to_end(&mut seen).expect("bytes");
        seen
    });
    let args = ["nc", &at, "--from", "memfd:64K", "--bytes", "300001"];
    let sent = run(&[&args[..], &["--validate", "3"]].concat());
    assert!(sent.is_ok(), "{}", sent.report());
    let seen = reader.join().expect("the reader");
    let expected: Vec<u8> = [1, 2, 0].into_iter().cycle().take(300_001).collect();
    assert!(seen == expected, "other bytes");
}
