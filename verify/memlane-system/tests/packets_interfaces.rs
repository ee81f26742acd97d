//! Existing interfaces, through packet sockets: what a generator sends through one, a sink receives from the other,
//! and VLAN tags that the kernel removes from frames are back in place.

use std::time::Duration;

use memlane_system::blocks::machines::{Machines, Side};
use memlane_system::blocks::memlane;
use memlane_system::harness::{self, Running};

const LIMIT: Duration = Duration::from_secs(60);

fn machines(test: &str) -> Option<Machines> {
    // Not for want of a package: it cannot be demanded.
    let machines = Machines::new(test, 1);
    machines
        .map_err(|why| eprintln!("SKIPPED {test}: {why}"))
        .ok()
}

fn link(machines: &Machines, side: Side, ends: [&str; 2]) -> Running {
    let mut command = machines.command(side, memlane());
    command.args(["net", "link", "--json"]).args(ends);
    Running::start(command)
}

#[test]
fn what_is_sent_by_one_interface_is_taken_in_at_the_other() {
    let Some(machines) = machines("afpacket") else {
        return;
    };
    let mut taking = link(&machines, Side::Server, ["afpacket:c0", "sink:"]);
    taking.wait_until_said("linked", 1);
    let mut sending = machines.command(Side::Client, memlane());
    sending.args([
        "net",
        "link",
        "gen:size=60-1514,count=3000,rate=20000",
        "afpacket:c0",
    ]);
    let said = harness::run(sending, LIMIT);
    assert!(said.is_ok(), "{}", said.report());
    std::thread::sleep(Duration::from_millis(300));
    taking.signal("TERM");
    let said = taking.finish(LIMIT);
    let said: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
    let mut verdict = said["ends"][1]["verdict"].clone();
    // The kernel's own, such as neighbour discovery.
    verdict["strange"] = 0.into();
    let expected = serde_json::json!({
        "good": 3000, "missing": 0, "late": 0, "twice": 0, "changed": 0, "strange": 0
    });
    assert_eq!(verdict, expected);
}

#[test]
fn a_tag_of_a_vlan_is_in_its_frames() {
    let Some(machines) = machines("vlan") else {
        return;
    };
    let file = machines.dir().join("frames.pcap");
    let mut taking = link(
        &machines,
        Side::Server,
        ["afpacket:c0", &format!("pcap:{}", file.display())],
    );
    taking.wait_until_said("linked", 1);
    let (frame, sent) = (tagged_frame(), machines.dir().join("sent.pcap"));
    std::fs::write(&sent, capture_of(&frame)).expect("room for it");
    let mut sending = machines.command(Side::Client, memlane());
    let replay = format!("replay:{}", sent.display());
    sending.args(["net", "link", &replay, "afpacket:c0"]);
    let said = harness::run(sending, LIMIT);
    assert!(said.is_ok(), "{}", said.report());
    std::thread::sleep(Duration::from_millis(200));
    taking.signal("TERM");
    assert!(taking.finish(LIMIT).is_ok());
    let bytes = std::fs::read(&file).expect("a capture");
    assert!(bytes.windows(frame.len()).any(|some| some == frame));
}

/// To everybody, in VLAN 7, of a type for experiments.
fn tagged_frame() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9, 0x81, 0, 0, 7, 0x88, 0xb5]);
    frame.extend((0..82).map(|n| n ^ 0x5a));
    frame
}

/// A capture file with one frame, in the other byte order than ours.
fn capture_of(frame: &[u8]) -> Vec<u8> {
    let mut file = vec![0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4];
    file.extend([0; 8]);
    file.extend([0, 0, 0xff, 0xff, 0, 0, 0, 1]);
    let len = u32::try_from(frame.len()).expect("short").to_be_bytes();
    file.extend([0; 8]);
    file.extend(len);
    file.extend(len);
    file.extend(frame);
    file
}
