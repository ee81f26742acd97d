//! Two machines joined TAP, packet lane, TAP: ordinary traffic passes, and goes on after either side was killed or
//! frozen.

use std::time::{Duration, Instant};

use memlane_system::blocks::machines::Side;
use memlane_system::blocks::memlane;
use memlane_system::harness::{self, Running, TempDir};
use memlane_system::packets::{Download, Linked, TAP};

const LIMIT: Duration = Duration::from_secs(90);
const MODES: [&str; 3] = ["persistent", "map", "copy"];

fn number(value: &serde_json::Value, end: usize, key: &str) -> u64 {
    let found = value["ends"][end][key].as_u64();
    found.unwrap_or_else(|| panic!("no {key} in {value:#}"))
}

/// Nothing was of no use to either end of either side.
fn all_used(linked: &mut Linked) -> [serde_json::Value; 2] {
    [Side::Client, Side::Server].map(|side| {
        let said = linked.finish(side);
        let failed = [0, 1].map(|end| number(&said, end, "failed"));
        assert_eq!(failed, [0, 0], "{said:#}");
        said
    })
}

#[test]
fn tcp_goes_in_large_frames_in_each_mode_and_none_is_of_no_use() {
    for mode in MODES {
        let Some(mut linked) = Linked::new("tap-tcp", &["--mode", mode]) else {
            return;
        };
        let mut sent = 0;
        for address in [linked.address(Side::Server), linked.address6(Side::Server)] {
            let said = linked.iperf3_at(address, &["-n", "192M"]);
            let bits = said["end"]["sum_received"]["bits_per_second"].as_f64();
            let gbit = bits.unwrap_or(0.0) / 1e9;
            println!("tap-tcp: {mode} to {address}: {gbit:.2} Gbit/s");
            sent += said["end"]["sum_sent"]["bytes"].as_u64().unwrap_or(0);
        }
        let [front, back] = all_used(&mut linked);
        let (frames, bytes) = (
            number(&front, 0, "received"),
            number(&front, 0, "received_bytes"),
        );
        assert!(bytes >= 16 << 20 && bytes >= sent / 2, "{front:#}");
        assert!(bytes / frames > 4 * 1500, "no large frames: {front:#}");
        assert!(number(&back, 0, "sent_bytes") >= bytes / 2, "{back:#}");
    }
}

/// A process that may enter both namespaces needs no lane, no second process and no socket between them.
#[test]
fn one_process_joins_devices_of_two_namespaces() {
    let Some(mut linked) = Linked::new("tap-alone", &[]) else {
        return;
    };
    linked.kill(Side::Client);
    linked.kill(Side::Server);
    assert!(!linked.ping(&["-c", "1", "-W", "1"]).is_ok(), "nobody");
    let there = linked.machines().name(Side::Server).to_owned();
    for netns in [there.clone(), format!("/run/netns/{there}")] {
        let mut command = linked.machines().command(Side::Client, memlane());
        let ends = [format!("tap:{TAP}"), format!("tap:{TAP}?netns={netns}")];
        command.args(["net", "link"]).args(ends).arg("--json");
        let mut alone = Running::start(command);
        alone.wait_until(LIMIT, "a ping", || {
            linked.ping(&["-c", "1", "-W", "1"]).is_ok()
        });
        let moved = linked.iperf3(&["-n", "64M"]);
        let bytes = moved["end"]["sum_received"]["bytes"].as_u64();
        assert!(bytes > Some(60 << 20), "{moved:#}");
        alone.signal("INT");
        let said = alone.finish(LIMIT);
        assert!(said.is_ok(), "{}", said.report());
        let said: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
        let failed = [0, 1].map(|end| number(&said, end, "failed"));
        assert_eq!(failed, [0, 0], "{said:#}");
    }
}

#[test]
fn a_namespace_that_cannot_be_entered_is_told() {
    for (netns, code, advice) in [
        ("no-such", 1, "`ip netns` lists"),
        ("/proc/self/exe", 1, "netns=/proc/self/exe"),
    ] {
        let mut command = std::process::Command::new(memlane());
        let end = format!("tap:{TAP}?netns={netns}");
        command.args(["net", "link", &end, "sink:"]);
        let said = harness::run(command, LIMIT);
        assert_eq!(said.status.code(), Some(code), "{}", said.report());
        assert!(said.stderr.contains(advice), "{}", said.report());
    }
}

#[test]
fn pings_of_all_sizes_and_udp_go_over_jumbo_frames_in_each_mode() {
    for mode in MODES {
        let Some(mut linked) = Linked::new("tap-jumbo", &["--mode", mode]) else {
            return;
        };
        linked.mtu(9000);
        // 8972 is what 9000 leaves; none is cut up, and ping looks at the bytes that come back.
        for size in ["0", "56", "1472", "1473", "4050", "8972"] {
            let said = linked.ping(&["-c", "5", "-i", "0.02", "-M", "do", "-s", size]);
            assert!(said.is_ok(), "{}", said.report());
            assert!(said.stdout.contains(" 0% packet loss"), "{}", said.report());
        }
        let said = linked.ping_at(linked.address6(Side::Server), &["-c", "2", "-s", "8952"]);
        assert!(said.stdout.contains(" 0% packet loss"), "{}", said.report());
        for (address, size) in [
            (linked.address(Side::Server), "8900"),
            (linked.address6(Side::Server), "1400"),
        ] {
            let udp = linked.iperf3_at(address, &["-u", "-b", "200M", "-k", "1500", "-l", size]);
            let sum = &udp["end"]["sum"];
            let lost = sum["lost_percent"].as_f64();
            println!("tap-jumbo: {mode} to {address}, {size} bytes: {lost:?} % of UDP lost");
            // There may be no room for it, as on any wire, but what comes is right and in order.
            assert!(lost.is_some_and(|lost| lost < 50.0), "{udp:#}");
            assert!(sum["packets"].as_u64() > Some(100), "{udp:#}");
            let order = udp["end"]["streams"][0]["udp"]["out_of_order"].as_u64();
            assert!(order.is_none_or(|n| n == 0), "{udp:#}");
        }
        let said = linked.iperf3(&["-n", "64M"]);
        assert!(
            said["end"]["sum_received"]["bytes"].as_u64() >= Some(60 << 20),
            "{said:#}"
        );
        all_used(&mut linked);
    }
}

#[test]
fn several_queues_carry_several_streams_in_each_mode() {
    for mode in MODES {
        let args = ["--queues", "3", "--mode", mode];
        let Some(mut linked) = Linked::new("tap-queues", &args) else {
            return;
        };
        let said = linked.iperf3(&["-n", "192M", "-P", "6"]);
        let bytes = said["end"]["sum_received"]["bytes"].as_u64();
        assert!(bytes >= Some(16 << 20), "{said:#}");
        // All six, not only the one whose queue is lucky.
        let streams = said["end"]["streams"].as_array().expect("streams");
        let least = streams
            .iter()
            .map(|s| s["receiver"]["bytes"].as_u64())
            .min();
        assert!(least >= Some(Some(64 << 10)), "{said:#}");
        all_used(&mut linked);
    }
}

/// A gigabyte, while things happen to the two processes between the machines.
#[test]
fn a_download_is_whole_whichever_side_was_killed_and_frozen_on_the_way() {
    for (mode, mib) in MODES.into_iter().zip([1024, 512, 512]) {
        let Some(mut linked) = Linked::new("tap-killed", &["--mode", mode]) else {
            return;
        };
        let mut download = Download::start(&linked, mib);
        download.goes_on(&linked, "first bytes");
        for side in [Side::Client, Side::Server] {
            linked.kill(side);
            std::thread::sleep(Duration::from_millis(50));
            linked.start(side);
            download.goes_on(&linked, "bytes after a kill");
        }
        for side in [Side::Client, Side::Server] {
            linked.signal(side, "STOP");
            std::thread::sleep(Duration::from_millis(1000));
            linked.signal(side, "CONT");
            download.goes_on(&linked, "bytes after a freeze");
        }
        download.is_whole();
        assert!(linked.said(Side::Client).contains("waiting for another"));
    }
}

#[test]
fn a_tag_of_a_vlan_goes_over_the_lane() {
    let Some(linked) = Linked::new("tap-vlan", &[]) else {
        return;
    };
    let dir = linked.machines().dir();
    let (sent, came) = (dir.join("sent.pcap"), dir.join("came.pcap"));
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9, 0x81, 0, 0, 7, 0x88, 0xb5]);
    frame.extend((0..1000_u32).map(|n| n.to_le_bytes()[0] ^ 0x5a));
    let mut file = vec![0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4];
    file.extend([0; 8]);
    file.extend([0, 0, 0xff, 0xff, 0, 0, 0, 1]);
    file.extend([0; 8]);
    let len = u32::try_from(frame.len()).expect("short").to_be_bytes();
    file.extend([len, len].concat());
    file.extend(&frame);
    std::fs::write(&sent, file).expect("room for it");
    let interface = format!("afpacket:{TAP}");
    let link = |side, ends: [&str; 2]| {
        let mut command = linked.machines().command(side, memlane());
        command.args(["net", "link"]).args(ends);
        Running::start(command)
    };
    let mut taking = link(
        Side::Server,
        [&interface, &format!("pcap:{}", came.display())],
    );
    let said = |taking: &Running| taking.stderr().contains("linked");
    let start = Instant::now();
    while !said(&taking) {
        assert!(
            taking.is_running() && start.elapsed() < LIMIT,
            "{}",
            taking.stderr()
        );
    }
    let sending = link(
        Side::Client,
        [&format!("replay:{}", sent.display()), &interface],
    );
    assert!(sending.finish(LIMIT).is_ok());
    let is_there = || {
        let bytes = std::fs::read(&came).unwrap_or_default();
        bytes.windows(frame.len()).any(|some| some == frame)
    };
    taking.wait_until(LIMIT, "the frame with its tag", is_there);
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

#[test]
fn a_device_that_is_taken_down_is_waited_for_and_one_that_is_taken_away_ends_its_side() {
    let Some(mut linked) = Linked::new("tap-gone", &[]) else {
        return;
    };
    let machines = linked.machines();
    machines.ip(Side::Server, &["link", "set", TAP, "down"]);
    assert!(!linked.ping(&["-c", "1", "-W", "1"]).is_ok());
    linked
        .machines()
        .ip(Side::Server, &["link", "set", TAP, "up"]);
    linked.wait();
    linked.machines().ip(Side::Server, &["link", "del", TAP]);
    let said = linked.ended(Side::Server);
    assert_eq!(said.ending(), "exit 1", "{}", said.report());
    assert!(
        said.stderr.contains(&format!("tap:{TAP}: ")),
        "{}",
        said.report()
    );
    let start = Instant::now();
    while !linked.said(Side::Client).contains("waiting for another") {
        assert!(start.elapsed() < LIMIT, "{}", linked.said(Side::Client));
    }
}
