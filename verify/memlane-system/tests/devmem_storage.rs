//! `memlane vol read` with real processes: volumes into device memory, from a file, over TCP, and within a host.

use std::io::Read as _;
use std::process::Command;
use std::time::Duration;

use memlane_system::blocks::alone::Alone;
use memlane_system::blocks::memlane;
use memlane_system::harness::Running;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(90);

/// Not a multiple of the reads' length.
const BYTES: usize = (12 << 20) + 4096;

/// A server that has a volume `disk` with a pattern.
fn serving(label: &str) -> Alone {
    let mut alone = Alone::new(label);
    let bytes: Vec<u8> = (1..7).chain([0]).cycle().take(BYTES).collect();
    std::fs::write(alone.root().join("disk"), bytes).expect("a volume");
    alone.serve(&[]);
    alone
}

fn read(alone: &Alone, args: &[&str]) -> std::process::Output {
    alone.memlane(&[&["vol", "read"], args].concat())
}

/// What it counted, if all went well.
fn counted(alone: &Alone, args: &[&str]) -> Value {
    let output = read(alone, &[args, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    let counted: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(counted["schema"], "memlane.vol-read/1");
    assert_eq!(counted["validated"], true);
    counted
}

#[track_caller]
fn is_refused(alone: &Alone, args: &[&str], exit: i32, words: &str) {
    let output = read(alone, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit), "{said}");
    assert!(said.contains(words), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_volume_lands_in_the_region_and_every_copy_on_the_way_is_counted() {
    let alone = serving("vol-read");
    let file = format!("file:{}", alone.root().join("disk").display());
    let (tcp, local) = (alone.tcp(), alone.local());
    // Where from, into what, by which path, copies of each byte here.
    let rows: [(&[&str], &str, &str, f64); 7] = [
        (&[&file], "memfd:64M", "direct", 0.0),
        (&[&file], "memfd:1M", "staged", 1.0),
        (&[&tcp, "disk"], "memfd:1M", "direct", 0.0),
        (&[&tcp, "disk"], "memfd:64M", "direct", 0.0),
        (&[&tcp, "disk"], "memfd:1M", "staged", 1.0),
        (&[&local, "disk"], "memfd:1M", "direct", 1.0),
        (&[&local, "disk"], "chunks", "chunks", 0.0),
    ];
    for (from, into, path, bounced) in rows {
        let how = ["--into", into, "--require", path, "--validate", "7"];
        let counted = counted(&alone, &[from, &how].concat());
        assert_eq!(counted["path"], path);
        assert_eq!(counted["bytes"], BYTES, "{from:?}");
        let copies = counted["bounced_per_byte"].as_f64().expect("a number");
        match path {
            // Some go through a buffer of the socket, too.
            "staged" => assert!((bounced..=2.0).contains(&copies), "{from:?}: {copies}"),
            _ => assert_eq!(copies, bounced, "{from:?} {into}"),
        }
    }
}

#[test]
fn a_part_of_it_goes_to_a_file_as_it_is() {
    let alone = serving("vol-part");
    let output = alone.dir().join("output");
    let to = output.display().to_string();
    let part = ["--offset", "4096", "--bytes", "1M", "--output", &to];
    let into = ["--into", "memfd:256K", "--chunk", "8K"];
    let read = read(
        &alone,
        &[&[&*alone.tcp(), "disk"], &part[..], &into[..]].concat(),
    );
    assert!(read.status.success());
    let whole = std::fs::read(alone.root().join("disk")).expect("the volume");
    let found = std::fs::read(output).expect("the output");
    assert!(found == whole[4096..][..1 << 20]);
}

#[test]
fn what_cannot_be_is_said() {
    let alone = serving("vol-not");
    let (tcp, local) = (alone.tcp(), alone.local());
    let at = |at: &'static str, more: &[&'static str]| [&["--into", at], more].concat();
    let case = |from: &str, more: &[&'static str], exit, words| {
        is_refused(&alone, &[&[from, "disk"], more].concat(), exit, words);
    };
    case(&tcp, &at("chunks", &[]), 5, "not on this host");
    case(
        &tcp,
        &at("memfd:1M", &["--require", "chunks"]),
        5,
        "--require",
    );
    case(
        &local,
        &at("chunks", &["--require", "direct"]),
        5,
        "--require",
    );
    case(
        &tcp,
        &at("memfd:1M", &["--offset", "1T"]),
        2,
        "bytes in blocks",
    );
    case(
        &tcp,
        &at("memfd:1M", &["--bytes", "100"]),
        2,
        "bytes in blocks",
    );
    case(
        &tcp,
        &at("memfd:1M", &["--chunk", "5000"]),
        2,
        "power of two",
    );
    case(&tcp, &at("dmaheap:no-such:1M", &[]), 3, "/dev/dma_heap");
    // The pattern has another period.
    let wrong = at("memfd:1M", &["--validate", "9"]);
    case(&tcp, &wrong, 1, "byte 6 is 0, and must be 7");
    is_refused(&alone, &[&tcp, "none", "--into", "memfd:1M"], 4, "none");
    is_refused(&alone, &[&tcp, "--into", "memfd:1M"], 2, "volume");
    is_refused(
        &alone,
        &["file:/no/such", "--into", "memfd:1M"],
        1,
        "/no/such",
    );
}

/// Whoever reads the pipe decides how far a read has come; the server is killed and comes back in the middle.
#[test]
fn a_server_that_is_killed_and_comes_back_costs_no_byte() {
    let mut alone = serving("vol-killed");
    for at in [alone.tcp(), alone.local()] {
        let pipe = alone.dir().join(format!("pipe-{}", at.len()));
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).expect("a pipe");
        let mut reads = Command::new(memlane());
        reads.args([
            "vol",
            "read",
            &at,
            "disk",
            "--into",
            "memfd:1M",
            "--validate",
            "7",
        ]);
        reads.arg("--output").arg(&pipe);
        let running = Running::start(reads);
        let mut seen = vec![0; BYTES / 2];
        let mut pipe = std::fs::File::open(&pipe).expect("the pipe");
        pipe.read_exact(&mut seen).expect("half of it");
        alone.kill();
        alone.serve(&[]);
        pipe.read_to_end(&mut seen).expect("the rest");
        let said = running.finish(LIMIT);
        assert!(said.is_ok(), "{}", said.report());
        let whole = std::fs::read(alone.root().join("disk")).expect("the volume");
        assert!(seen == whole, "other bytes by {at}");
    }
}

/// The server's chunks as a dma-buf: here, or a sentence that says what is missing.
#[test]
fn the_server_s_memory_can_be_a_dma_buf() {
    let alone = serving("vol-dmabuf");
    let local = alone.local();
    let output = read(&alone, &[&local, "disk", "--into", "chunks:udmabuf"]);
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => assert!(String::from_utf8_lossy(&output.stdout).contains("udmabuf")),
        Some(3) => assert!(said.contains("udmabuf"), "{said}"),
        _ => panic!("{said}"),
    }
}
