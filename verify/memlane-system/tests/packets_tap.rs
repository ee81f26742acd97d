//! Two machines joined TAP, packet lane, TAP: what people do over a network goes over it, and goes on after either
//! side was killed or frozen.

use std::io::Write as _;
use std::time::{Duration, Instant};

use memlane_system::blocks::machines::Side;
use memlane_system::blocks::{memlane, must};
use memlane_system::harness::{self, Running, TempDir};
use memlane_system::packets::Linked;

const LIMIT: Duration = Duration::from_secs(90);
const MODES: [&str; 3] = ["persistent", "map", "copy"];

fn sum(file: &std::path::Path) -> String {
    let mut command = std::process::Command::new("sha256sum");
    command.arg(file);
    must(command)
        .split(' ')
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// A file of which no two pages are alike.
fn make_file(path: &std::path::Path, bytes: u64) {
    let file = std::fs::File::create(path).expect("a new file");
    let mut file = std::io::BufWriter::new(file);
    for n in 0..bytes / 8 {
        let word = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ n;
        file.write_all(&word.to_le_bytes()).expect("room for it");
    }
    file.flush().expect("room for it");
}

fn number(value: &serde_json::Value, end: usize, key: &str) -> u64 {
    let found = value["ends"][end][key].as_u64();
    found.unwrap_or_else(|| panic!("no {key} in {value:#}"))
}

#[test]
fn tcp_goes_in_large_frames_in_each_mode_and_none_is_of_no_use() {
    for mode in MODES {
        let Some(mut linked) = Linked::new("tap-tcp", &["--mode", mode]) else {
            return;
        };
        let said = linked.iperf3(&["-t", "1"]);
        let bits = said["end"]["sum_received"]["bits_per_second"].as_f64();
        println!("tap-tcp: {mode}: {:.2} Gbit/s", bits.unwrap_or(0.0) / 1e9);
        let front = linked.finish(Side::Client);
        let (frames, bytes) = (
            number(&front, 0, "received"),
            number(&front, 0, "received_bytes"),
        );
        let sent = said["end"]["sum_sent"]["bytes"].as_u64();
        assert!(
            bytes >= 8 << 20 && Some(bytes) >= sent.map(|n| n / 2),
            "{front:#}"
        );
        assert!(bytes / frames > 4 * 1500, "no large frames: {front:#}");
        assert_eq!(
            [0, 1].map(|end| number(&front, end, "failed")),
            [0, 0],
            "{front:#}"
        );
        let back = linked.finish(Side::Server);
        assert_eq!(
            [0, 1].map(|end| number(&back, end, "failed")),
            [0, 0],
            "{back:#}"
        );
        assert!(number(&back, 0, "sent_bytes") >= bytes / 2, "{back:#}");
    }
}

#[test]
fn pings_of_all_sizes_come_back_with_jumbo_frames() {
    let Some(linked) = Linked::new("tap-jumbo", &[]) else {
        return;
    };
    linked.mtu(9000);
    // 8972 is what 9000 leaves; none is cut up, and ping looks at the bytes that come back.
    for size in ["0", "56", "1472", "1473", "4050", "8972"] {
        let said = linked.ping(&["-c", "5", "-i", "0.02", "-M", "do", "-s", size]);
        assert!(said.is_ok(), "{}", said.report());
        assert!(said.stdout.contains(" 0% packet loss"), "{}", said.report());
    }
    let udp = linked.iperf3(&["-u", "-b", "50M", "-t", "1", "-l", "8900"]);
    let lost = udp["end"]["sum"]["lost_percent"].as_f64();
    assert!(lost.is_some_and(|lost| lost < 100.0), "{udp:#}");
    let packets = udp["end"]["sum"]["packets"].as_u64();
    assert!(packets > Some(100), "{udp:#}");
}

#[test]
fn several_queues_carry_several_streams() {
    let Some(mut linked) = Linked::new("tap-queues", &["--queues", "3"]) else {
        return;
    };
    let said = linked.iperf3(&["-t", "1", "-P", "6"]);
    assert!(
        said["end"]["sum_received"]["bytes"].as_u64() >= Some(16 << 20),
        "{said:#}"
    );
    let back = linked.finish(Side::Server);
    assert_eq!(
        [0, 1].map(|end| number(&back, end, "failed")),
        [0, 0],
        "{back:#}"
    );
}

#[test]
fn a_download_survives_either_side_killed_and_frozen() {
    let Some(mut linked) = Linked::new("tap-killed", &[]) else {
        return;
    };
    let dir = linked.machines().dir().to_owned();
    let (there, here) = (dir.join("there"), dir.join("here"));
    make_file(&there, 96 << 20);
    let _server = linked.serve_files();
    let mut client = linked.curl("there", &here);
    // So that it lasts while things happen.
    client.args(["--limit-rate", "24M"]);
    let mut client = Running::start(client);
    let size = || here.metadata().map_or(0, |file| file.len());
    client.wait_until(LIMIT, "first bytes", || size() > 1 << 20);
    for side in [Side::Client, Side::Server] {
        let before = size();
        linked.kill(side);
        std::thread::sleep(Duration::from_millis(200));
        linked.start(side);
        client.wait_until(LIMIT, "bytes after a kill", || size() > before + (4 << 20));
    }
    for side in [Side::Client, Side::Server] {
        linked.signal(side, "STOP");
        std::thread::sleep(Duration::from_millis(500));
        let before = size();
        linked.signal(side, "CONT");
        client.wait_until(LIMIT, "bytes after a freeze", || {
            size() > before + (1 << 20)
        });
    }
    let said = client.finish(LIMIT);
    assert!(said.is_ok(), "{}", said.report());
    assert_eq!(sum(&there), sum(&here));
    assert!(linked.said(Side::Client).contains("waiting for another"));
}

#[test]
fn a_capture_of_a_link_is_what_went_over_it() {
    let dir = TempDir::new("net-capture");
    let (socket, file) = (dir.path().join("sock"), dir.path().join("frames.pcap"));
    let back = |end: &str| {
        let mut command = std::process::Command::new(memlane());
        command.args([
            "net",
            "link",
            end,
            &format!("back:{}", socket.display()),
            "--json",
        ]);
        Running::start(command)
    };
    let front = |end: &str| {
        let mut command = std::process::Command::new(memlane());
        command.args([
            "net",
            "link",
            end,
            &format!("front:{}", socket.display()),
            "--json",
        ]);
        harness::run(command, LIMIT)
    };
    let ended = |running: Running, frames: u64| {
        let start = Instant::now();
        // All of them are there when the front has gone, but the back may not have looked yet.
        while !running.stderr().contains("waiting for another") {
            assert!(start.elapsed() < LIMIT, "{}", running.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        running.signal("TERM");
        let said = running.finish(LIMIT);
        assert!(said.is_ok(), "{}", said.report());
        let said: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
        assert_eq!(number(&said, 0, "sent"), frames, "{said:#}");
        said
    };
    let capturing = back(&format!("pcap:{}", file.display()));
    let said = front("gen:size=30-9000,count=20000");
    assert!(said.is_ok(), "{}", said.report());
    ended(capturing, 20_000);
    let sinking = back("sink:");
    let said = front(&format!("replay:{}", file.display()));
    assert!(said.is_ok(), "{}", said.report());
    let verdict = &ended(sinking, 20_000)["ends"][0]["verdict"];
    let expected = serde_json::json!({
        "good": 20000, "missing": 0, "late": 0, "twice": 0, "changed": 0, "strange": 0
    });
    assert_eq!(*verdict, expected);
}
