//! The packet lane's header split with real processes: the payload of some flows goes into device memory.

use memlane_system::verbs::{MODES, Place, ended, json, run, says, start};
use serde_json::Value;
use std::path::Path;

/// A datagram to this port of 192.0.2.2, in Ethernet.
fn datagram(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    let udp = u16::try_from(8 + payload.len()).expect("short");
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((20 + udp).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    frame.extend([0, 7]);
    frame.extend(port.to_be_bytes());
    frame.extend(udp.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// The bytes 1 to 6 and 0, again and again.
fn pattern(len: usize) -> Vec<u8> {
    (1..7).chain([0]).cycle().take(len).collect()
}

/// A capture file of these frames.
fn capture(at: &Path, frames: &[Vec<u8>]) {
    let mut file = Vec::new();
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1];
    file.extend(header.iter().flat_map(|word| word.to_le_bytes()));
    for (n, frame) in frames.iter().enumerate() {
        let len = u32::try_from(frame.len()).expect("short");
        let second = u32::try_from(n).expect("few");
        let record = [second, 0, len, len];
        file.extend(record.iter().flat_map(|word| word.to_le_bytes()));
        file.extend(frame);
    }
    std::fs::write(at, file).expect("a capture");
}

/// 300 packets of the flow, of all lengths, among 100 of others.
fn frames() -> Vec<Vec<u8>> {
    let some = |n: usize| match n % 4 {
        3 => datagram(9001, &pattern(100)),
        _ => datagram(9000, &pattern(1 + n * 3)),
    };
    (0..400).map(some).collect()
}

/// Payload of the flow: packets, bytes.
fn of_flow(frames: &[Vec<u8>]) -> Vec<u8> {
    let ours = frames
        .iter()
        .filter(|frame| frame[36..38] == 9000_u16.to_be_bytes());
    ours.flat_map(|frame| frame[42..].to_vec()).collect()
}

fn verdict(document: &Value, end: usize) -> [u64; 3] {
    let seen = &document["ends"][end]["verdict"];
    ["good", "changed", "strange"].map(|key| seen[key].as_u64().expect("a number"))
}

const INTO: &str = "into:memfd:1M?flow=udp dst *:9000&unchecked&validate=7";

#[test]
fn payload_of_the_flow_lies_in_the_region_and_nothing_else_does() {
    let place = Place::new("split-file");
    let (file, output) = (place.path("frames.pcap"), place.path("payload"));
    let frames = frames();
    capture(&file, &frames);
    let from = format!("replay:{}", file.display());
    let into = format!("{INTO}&output={}", output.display());
    let said = run(&["link", &from, &into, "--json"]);
    ended(&said, 0, "300 packets split");
    assert_eq!(verdict(&json(&said.stdout), 1), [300, 0, 100]);
    let payload = of_flow(&frames);
    let told = format!("{} bytes to the region", payload.len());
    assert!(said.stderr.contains(&told), "{}", said.report());
    assert!(
        said.stderr.contains("100 whole: no rule names them"),
        "{}",
        said.report()
    );
    assert!(std::fs::read(output).expect("the payload") == payload);
}

#[test]
fn other_bytes_are_found_and_unchecked_packets_stay_whole() {
    let place = Place::new("split-wrong");
    let file = place.path("frames.pcap");
    let mut wrong = datagram(9000, &pattern(1000));
    wrong[500] ^= 1;
    capture(&file, &[datagram(9000, &pattern(9)), wrong]);
    let from = format!("replay:{}", file.display());
    let said = run(&["link", &from, INTO, "--json"]);
    assert_eq!(
        verdict(&json(&said.stdout), 1),
        [1, 1, 0],
        "{}",
        said.report()
    );
    let said = run(&["link", &from, &INTO.replace("&unchecked", ""), "--json"]);
    assert_eq!(
        verdict(&json(&said.stdout), 1),
        [0, 0, 2],
        "{}",
        said.report()
    );
    assert!(
        said.stderr.contains("vouches for their checksum"),
        "{}",
        said.report()
    );
}

#[test]
fn over_the_lane_it_comes_out_of_the_other_process_in_each_mode() {
    for mode in MODES {
        let place = Place::new("split-lane");
        let file = place.path("frames.pcap");
        capture(&file, &frames());
        let socket = place.at("back");
        let args = ["link", &socket, INTO, "--mode", mode, "--once", "--json"];
        let mut back = start(&args);
        says(&mut back, "waiting");
        let (from, to) = (format!("replay:{}", file.display()), place.at("front"));
        let sent = run(&["link", &from, &to]);
        assert!(sent.is_ok(), "{}", sent.report());
        let said = back.finish(memlane_system::verbs::LIMIT);
        ended(&said, 0, "300 packets split");
        assert_eq!(verdict(&json(&said.stdout), 1), [300, 0, 100], "{mode}");
    }
}

#[test]
fn what_cannot_be_is_said() {
    for (end, exit, what) in [
        ("into:memfd:1M", 2, "whose payload"),
        ("into:memfd:1M?flow=sctp", 2, "tcp or udp"),
        ("into:floppy:1M?flow=udp", 2, "a region is"),
        ("into:memfd:1M?flow=udp&chunk=100", 2, "power of two"),
        ("into:dmaheap:no-such:1M?flow=udp", 3, "/dev/dma_heap"),
    ] {
        ended(&run(&["link", "gen:count=1", end]), exit, what);
    }
}
