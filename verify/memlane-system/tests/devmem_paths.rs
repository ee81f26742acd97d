//! `memlane nc`: which path it takes, why no better one, and what it reports when `--require` or the kernel's own
//! path cannot be satisfied.

use std::process::Command;
use std::time::Duration;

use memlane_system::blocks::memlane;
use memlane_system::harness::{self, Outcome};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// Nobody is there, and nobody is asked: what cannot be is refused before.
const AT: &str = "127.0.0.1:9";

fn run(args: &[&str]) -> Outcome {
    let mut command = Command::new(memlane());
    command.args(args);
    harness::run(command, LIMIT)
}

fn findings() -> Vec<Value> {
    let probed = run(&["devmem", "probe", "--json"]);
    let document: Value = serde_json::from_str(&probed.stdout).expect("JSON");
    document["findings"].as_array().expect("a list").clone()
}

/// A path that probe says is not here is exit code 5 when it is required, with a reason.
#[test]
fn a_path_that_is_required_and_not_here_is_exit_code_5_with_the_reason() {
    for finding in findings() {
        let name = finding["name"].as_str().expect("a name");
        if finding["here"] == true || name == "kernel-send" {
            continue;
        }
        let outcome = run(&["nc", AT, "--into", "memfd:1M", "--require", name]);
        assert_eq!(outcome.status.code(), Some(5), "{}", outcome.report());
        assert!(
            outcome.stderr.contains(&format!("path {name}: ")),
            "{}",
            outcome.report()
        );
        assert_eq!(outcome.stdout, "");
    }
}

#[test]
fn the_kernel_s_path_names_what_is_missing() {
    let kernel = ["--require", "kernel"];
    let cases: [(&[&str], &[&str]); 4] = [
        (&["--into", "memfd:1M"], &["no dma-buf", "udmabuf:SIZE"]),
        (&["--from", "memfd:1M"], &["no dma-buf", "udmabuf:SIZE"]),
        (&["--from", "/dev/null"], &["no dma-buf"]),
        (
            &[
                "--into",
                "memfd:1M",
                "--interface",
                "lo",
                "--queues",
                "1",
                "--flow",
                "tcp dst 192.0.2.1:5201",
            ],
            &["no dma-buf"],
        ),
    ];
    for (args, says) in cases {
        let outcome = run(&[&["nc", AT], args, &kernel].concat());
        assert_eq!(outcome.status.code(), Some(5), "{}", outcome.report());
        for say in says {
            assert!(outcome.stderr.contains(say), "{}", outcome.report());
        }
    }
    let outcome = run(&["nc", AT, "--from", "memfd:1M", "--require", "staged"]);
    assert_eq!(outcome.status.code(), Some(5), "{}", outcome.report());
    // As a document, too.
    let outcome = run(&[
        "nc",
        AT,
        "--into",
        "memfd:1M",
        "--require",
        "kernel",
        "--json",
    ]);
    let document: Value = serde_json::from_str(&outcome.stderr).expect("JSON");
    assert_eq!(document["exit_code"], 5);
}

#[test]
fn flags_that_make_no_sense_are_exit_code_2() {
    let into = ["--into", "memfd:1M"];
    let cases: [&[&str]; 7] = [
        &["--queues", "1"],
        &["--flow", "tcp dst 192.0.2.1"],
        &["--interface", "no-such-if"],
        &["--interface", "lo", "--queues", "0"],
        &["--interface", "lo", "--flow", "udp dst 192.0.2.1"],
        &["--interface", "lo", "--flow", "tcp dst *:5201"],
        &["--require", "warp"],
    ];
    for args in cases {
        let outcome = run(&[&["nc", AT], &into[..], args].concat());
        assert_eq!(outcome.status.code(), Some(2), "{}", outcome.report());
    }
    let outcome = run(&[
        "nc",
        AT,
        "--from",
        "memfd:1M",
        "--interface",
        "lo",
        "--queues",
        "1",
    ]);
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.report());
}

/// Both ends say which path they took, and why no better one.
#[test]
fn the_choice_and_the_reasons_against_better_paths_are_reported() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("its address").to_string();
    let peer = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().expect("a receiver");
            std::io::Write::write_all(&mut stream, b"some bytes").expect("sent");
        }
        let (mut stream, _) = listener.accept().expect("a sender");
        std::io::copy(&mut stream, &mut std::io::sink()).expect("bytes");
    });
    let outcome = run(&["nc", &at, "--into", "memfd:1M", "--json"]);
    let document: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let path = document["path"].as_str().expect("a path").to_owned();
    let passed = document["passed"].as_array().expect("a list");
    let kernel = passed.iter().find(|passed| passed["path"] == "kernel");
    let lacks = kernel.expect("it is better")["lacks"]
        .as_array()
        .expect("a list");
    assert!(!lacks.is_empty(), "{document}");
    assert_eq!(document["changed"], Value::Array(Vec::new()));
    assert_eq!(document["beside"], 0);

    let outcome = run(&["nc", &at, "--into", "memfd:1M"]);
    assert!(
        outcome.stdout.contains(&format!("path         {path}\n")),
        "{}",
        outcome.report()
    );
    assert!(
        outcome
            .stdout
            .contains("not kernel: the region is no dma-buf"),
        "{}",
        outcome.report()
    );

    let outcome = run(&["nc", &at, "--from", "memfd:64K", "--json"]);
    let document: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(document["path"], "mapped");
    assert_eq!(document["passed"][0]["path"], "kernel");
    peer.join().expect("the peer");
}
