//! Two machines joined TAP, memif, TAP: the kernel sends large TCP frames, memif takes none, so they are cut up in
//! between. Also an interface joined to a TAP device with several queues, and a command whose interface is removed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memlane_system::blocks::machines::{Machines, Side};
use memlane_system::blocks::{has, memlane, must, skip};
use memlane_system::harness::{self, Running};

const LIMIT: Duration = Duration::from_secs(90);
const TAP: &str = "tap0";

fn machines(test: &str, cables: usize) -> Option<Machines> {
    if let Some(missing) = ["ping", "curl", "python3"]
        .into_iter()
        .find(|name| !has(name))
    {
        skip(test, &format!("no {missing}: ./dev installs it"));
        return None;
    }
    // Not for want of a package: it cannot be demanded.
    let machines = Machines::new(test, cables);
    machines
        .map_err(|why| eprintln!("SKIPPED {test}: {why}"))
        .ok()
}

fn address(side: Side) -> &'static str {
    match side {
        Side::Client => "198.51.100.1",
        Side::Server => "198.51.100.2",
    }
}

fn sum(file: &Path) -> String {
    let mut command = Command::new("sha256sum");
    command.arg(file);
    let said = must(command);
    said.split(' ').next().unwrap_or_default().to_owned()
}

fn link(machines: &Machines, side: Side) -> Running {
    machines.ip(side, &["tuntap", "add", TAP, "mode", "tap"]);
    let own = format!("{}/24", address(side));
    machines.ip(side, &["addr", "add", &own, "dev", TAP]);
    machines.ip(side, &["link", "set", TAP, "up"]);
    let role = match side {
        Side::Client => "client",
        Side::Server => "server",
    };
    let socket = machines.dir().join("memif.sock");
    let memif = format!("memif:{}?role={role}", socket.display());
    let mut command = machines.command(side, memlane());
    command.args(["net", "link", "--json", &format!("tap:{TAP}"), &memif]);
    Running::start(command)
}

fn finish(running: Running) -> serde_json::Value {
    running.signal("TERM");
    let said = running.finish(LIMIT);
    assert!(said.is_ok(), "{}", said.report());
    serde_json::from_str(&said.stdout).expect("JSON")
}

fn number(value: &serde_json::Value, end: usize, key: &str) -> u64 {
    let found = value["ends"][end][key].as_u64();
    found.unwrap_or_else(|| panic!("no {key} in {value:#}"))
}

/// Fetches a file of this many bytes from the server's machine, and compares it.
fn fetch(machines: &Machines, bytes: usize) {
    let file = machines.dir().join("file");
    let words = (0..bytes as u64 / 8).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let content: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    std::fs::write(&file, content).expect("room for it");
    let mut http = machines.command(Side::Server, "python3");
    http.args(["-m", "http.server", "8000", "--bind", address(Side::Server)]);
    http.arg("--directory").arg(machines.dir());
    let http = Running::start(http);
    let fetched = machines.dir().join("fetched");
    let mut curl = machines.command(Side::Client, "curl");
    let url = format!("http://{}:8000/file", address(Side::Server));
    curl.args([
        "-sS",
        "--retry",
        "60",
        "--retry-all-errors",
        "--retry-delay",
        "1",
    ]);
    curl.args(["--connect-timeout", "2", "-o"])
        .arg(&fetched)
        .arg(url);
    let said = harness::run(curl, LIMIT);
    assert!(said.is_ok(), "{}", said.report());
    assert_eq!(sum(&fetched), sum(&file));
    drop(http);
}

#[test]
fn large_frames_of_the_kernel_reach_a_peer_that_takes_none() {
    const BYTES: usize = 32 << 20;
    if !Path::new("/dev/net/tun").exists() {
        eprintln!("SKIPPED segments: no /dev/net/tun");
        return;
    }
    let Some(machines) = machines("segments", 0) else {
        return;
    };
    let server = link(&machines, Side::Server);
    let client = link(&machines, Side::Client);
    fetch(&machines, BYTES);
    let (client, server) = (finish(client), finish(server));
    // From the kernel in large frames, to memif in those that fit.
    let (frames, bytes) = (
        number(&server, 0, "received"),
        number(&server, 0, "received_bytes"),
    );
    assert!(
        bytes > BYTES as u64 && bytes / frames > 2 * 1500,
        "{server:#}"
    );
    let (frames, bytes) = (number(&server, 1, "sent"), number(&server, 1, "sent_bytes"));
    assert!(bytes > BYTES as u64 && bytes / frames <= 1514, "{server:#}");
    for said in [&client, &server] {
        let failed = [0, 1].map(|end| number(said, end, "failed"));
        assert_eq!(failed, [0, 0], "{said:#}");
    }
}

/// The server's address is that of a TAP device, which is joined to the cable's end by the lane: two commands.
#[test]
fn an_interface_in_several_queues_is_a_cable_for_tcp() {
    if !Path::new("/dev/net/tun").exists() {
        eprintln!("SKIPPED queues: no /dev/net/tun");
        return;
    }
    let Some(machines) = machines("queues", 1) else {
        return;
    };
    let side = Side::Server;
    machines.ip(side, &["addr", "flush", "dev", "c0"]);
    machines.ip(side, &["tuntap", "add", TAP, "mode", "tap", "multi_queue"]);
    let own = format!("{}/30", address(side));
    machines.ip(side, &["addr", "add", &own, "dev", TAP]);
    machines.ip(side, &["link", "set", TAP, "up"]);
    let socket = machines.dir().join("link.sock");
    let started = |ends: [String; 2]| {
        let mut command = machines.command(side, memlane());
        command
            .args(["net", "link", "--json", "--queues", "3"])
            .args(ends);
        Running::start(command)
    };
    let tap = started([format!("tap:{TAP}"), format!("back:{}", socket.display())]);
    let cable = started(["afpacket:c0".into(), format!("front:{}", socket.display())]);
    fetch(&machines, 16 << 20);
    let (cable, tap) = (finish(cable), finish(tap));
    assert!(number(&cable, 0, "sent_bytes") > 16 << 20, "{cable:#}");
    for said in [&cable, &tap] {
        assert_eq!(number(said, 0, "failed"), 0, "{said:#}");
    }
}

#[test]
fn a_command_whose_interface_is_removed_says_so() {
    let Some(machines) = machines("removed", 1) else {
        return;
    };
    let mut command = machines.command(Side::Server, memlane());
    command.args(["net", "link", "afpacket:c0", "sink:"]);
    let mut running = Running::start(command);
    let mut tries = 0;
    while !running.stderr().contains("linked") {
        tries += 1;
        assert!(running.is_running() && tries < 2000, "{}", running.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    machines.ip(Side::Server, &["link", "del", "c0"]);
    let said = running.finish(LIMIT);
    assert!(
        !said.is_ok() && said.stderr.contains("gone"),
        "{}",
        said.report()
    );
}
