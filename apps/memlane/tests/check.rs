//! `memlane check`, with libraries that do nothing or only claim to do something.

mod common;

use std::mem::offset_of;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{Dir, clean, memlane, stderr, stdout};
use memlane_core::reason::Reason;
use memlane_core::stats::{CONN_ENTRY_LEN, ConnEntry, ConnState, HEADER_LEN, Header, PAGE_LEN};

/// Shows a page with one client and one server connection in `state`; carries nothing.
fn pretender(dir: &Dir, state: ConnState, reason: Reason, ring_bytes: u64) -> PathBuf {
    let source = format!(
        r#"
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
static void put(int fd, long at, uint64_t v, int len) {{ if (pwrite(fd, &v, len, at) != len) _exit(99); }}
__attribute__((constructor)) static void start(void) {{
    int fd = memfd_create("memlane-stats", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, {PAGE_LEN})) _exit(98);
    put(fd, {version}, 1, 4); put(fd, {header_len}, {HEADER_LEN}, 4); put(fd, {page_len}, {PAGE_LEN}, 8);
    put(fd, {capacity}, 65536, 4); put(fd, {entry_len}, {CONN_ENTRY_LEN}, 4); put(fd, {high}, 2, 4);
    put(fd, {pid}, getpid(), 4);
    for (int role = 0; role < 2; role++) {{
        long at = {HEADER_LEN} + role * {CONN_ENTRY_LEN};
        put(fd, at + {state_at}, {state}, 4); put(fd, at + {role_at}, role, 4); put(fd, at + {reason_at}, {reason}, 4);
        put(fd, at + {tx_size}, 65536, 4); put(fd, at + {rx_size}, 65536, 4);
        put(fd, at + {tx}, {ring_bytes}, 8); put(fd, at + {rx}, {ring_bytes}, 8);
    }}
    uint64_t magic; __builtin_memcpy(&magic, "MLSTATS1", 8); put(fd, 0, magic, 8);
}}
"#,
        version = offset_of!(Header, version),
        header_len = offset_of!(Header, header_len),
        page_len = offset_of!(Header, page_len),
        capacity = offset_of!(Header, conn_capacity),
        entry_len = offset_of!(Header, conn_entry_len),
        high = offset_of!(Header, conn_high),
        pid = offset_of!(Header, pid),
        state_at = offset_of!(ConnEntry, state),
        role_at = offset_of!(ConnEntry, role),
        reason_at = offset_of!(ConnEntry, reason),
        tx_size = offset_of!(ConnEntry, tx_ring_size),
        rx_size = offset_of!(ConnEntry, rx_ring_size),
        tx = offset_of!(ConnEntry, tx_ring_bytes),
        rx = offset_of!(ConnEntry, rx_ring_bytes),
        state = state as u32,
        reason = reason.0,
    );
    dir.cc("pretender.so", &source, &["-shared", "-fPIC"])
}

fn check(library: &Path, args: &[&str]) -> Output {
    memlane()
        .env("MEMLANE_PRELOAD", library)
        .arg("check")
        .args(args)
        .output()
        .unwrap()
}

fn document(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(output)))
}

#[test]
fn bytes_on_the_memory_lane_at_both_ends_are_code_zero() {
    let dir = Dir::new();
    let library = pretender(&dir, ConnState::Memlane, Reason::NONE, 9);
    let output = check(&library, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("embedded echo server and client: MEMLANE\n"));
    let output = check(&library, &["--json"]);
    let report = document(&output);
    assert_eq!(report["schema"], "memlane.check/1");
    assert_eq!(report["result"], "memlane");
    // Eight cycles of six rounds, whatever the lane.
    assert_eq!(
        report["verified_bytes"],
        8 * (1 + 100 + 1 + 4096 + 14 + 65536)
    );
    assert_ne!(report["client"]["pid"], report["server"]["pid"]);
}

#[test]
fn an_open_lane_that_carried_nothing_is_no_proof() {
    let dir = Dir::new();
    let library = pretender(&dir, ConnState::Memlane, Reason::NONE, 0);
    let output = check(&library, &["--wait", "1"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(
        stdout(&output).contains("did not take it both ways"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn a_fall_back_gives_the_reason_and_code_five() {
    let dir = Dir::new();
    let library = pretender(&dir, ConnState::Tcp, Reason::SANDBOXED, 0);
    let output = check(&library, &[]);
    assert_eq!(output.status.code(), Some(5));
    assert!(
        stdout(&output).contains("0x0a0c0000 SANDBOXED"),
        "{}",
        stdout(&output)
    );
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_library_that_does_nothing_is_found_out() {
    let dir = Dir::new();
    let output = check(&dir.idle_library(), &["--wait", "1", "--json"]);
    assert_eq!(output.status.code(), Some(5));
    let report = document(&output);
    assert_eq!(report["result"], "undecided");
    assert!(
        report["note"]
            .as_str()
            .unwrap()
            .contains("the library did not get into it")
    );
    assert!(
        report["verified_bytes"].as_u64().unwrap() > 0,
        "the echo itself works"
    );
}

#[test]
fn a_missing_library_or_a_disabled_one_is_said() {
    let dir = Dir::new();
    let alone = dir.memlane();
    let output = clean(&alone).arg("check").output().unwrap();
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(1), String::new())
    );
    assert!(stderr(&output).contains("cannot find libmemlane_preload.so"));
    let output = clean(&alone)
        .env("MEMLANE_DISABLE", "1")
        .arg("check")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert!(stdout(&output).contains("MEMLANE_DISABLE is set"));
}

#[test]
fn a_service_that_refuses_is_code_four_and_one_that_is_silent_gets_advice() {
    let dir = Dir::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let refusing = pretender(&dir, ConnState::Tcp, Reason::PEER_REFUSED, 0);
    let output = check(&refusing, &[&at]);
    assert_eq!(output.status.code(), Some(4));
    assert!(
        stdout(&output).starts_with(&format!("{at}: TCP\n")),
        "{}",
        stdout(&output)
    );
    let other = Dir::new();
    let young = pretender(&other, ConnState::Tcp, Reason::TOO_YOUNG, 0);
    let output = check(&young, &[&at, "--wait", "1"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(stdout(&output).contains("--send"), "{}", stdout(&output));
}

#[test]
fn a_service_gets_only_what_was_asked_for() {
    use std::io::{Read, Write};
    let dir = Dir::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let service = std::thread::spawn(move || {
        let mut heard = [Vec::new(), Vec::new()];
        for (index, text) in heard.iter_mut().enumerate() {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 512];
            while let Ok(n @ 1..) = stream.read(&mut buffer) {
                text.extend_from_slice(&buffer[..n]);
                if index == 1 {
                    stream.write_all(b"+PONG\r\n").unwrap();
                }
            }
        }
        heard
    });
    let library = pretender(&dir, ConnState::Memlane, Reason::NONE, 9);
    assert_eq!(check(&library, &[&at]).status.code(), Some(0));
    let output = check(&library, &[&at, "--send", r"PING\r\n"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let [held, sent] = service.join().unwrap();
    assert!(held.is_empty());
    assert_eq!(sent, b"PING\r\n".repeat(32));
}

#[test]
fn a_service_that_is_not_there_is_a_failure() {
    let dir = Dir::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    drop(listener);
    let output = check(&dir.idle_library(), &[&at, "--json"]);
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(1), String::new())
    );
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("cannot connect to")
    );
}
