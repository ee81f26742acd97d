//! A TAP device that the process of one network namespace lends to that of another, with `memlane net lend`.

use std::process::Command;
use std::time::{Duration, Instant};

use memlane_system::blocks::machines::Side;
use memlane_system::blocks::memlane;
use memlane_system::harness::{self, Running, TempDir};
use memlane_system::packets::{Download, Linked, TAP};

const LIMIT: Duration = Duration::from_secs(90);

/// Waits until a side of the link says this.
fn says(linked: &mut Linked, side: Side, what: &str) {
    let start = Instant::now();
    while !linked.said(side).contains(what) {
        assert!(start.elapsed() < LIMIT, "{}", linked.said(side));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A borrower of the server's device, on the client's machine, whose other end is `end`.
fn borrower(linked: &Linked, end: &str, more: &[&str]) -> Running {
    let mut command = linked.machines().command(Side::Client, memlane());
    let lent = format!("lent:{}", linked.socket().display());
    command.args(["net", "link", end, &lent]).args(more);
    Running::start(command)
}

#[test]
fn tcp_udp_and_pings_go_over_a_lent_device_and_none_is_of_no_use() {
    let Some(mut linked) = Linked::lent("lend-traffic", &[]) else {
        return;
    };
    linked.mtu(9000);
    for size in ["0", "56", "1472", "1473", "8972"] {
        let said = linked.ping(&["-c", "5", "-i", "0.02", "-M", "do", "-s", size]);
        assert!(said.stdout.contains(" 0% packet loss"), "{}", said.report());
    }
    linked.mtu(1500);
    for address in [linked.address(Side::Server), linked.address6(Side::Server)] {
        for way in [&["-n", "192M"][..], &["-n", "192M", "-R"]] {
            let moved = linked.iperf3_at(address, way);
            let bytes = moved["end"]["sum_received"]["bytes"].as_u64();
            assert!(bytes >= Some(150 << 20), "{moved:#}");
        }
    }
    let udp = linked.iperf3(&["-u", "-b", "200M", "-k", "1500"]);
    let sum = &udp["end"]["sum"];
    assert!(sum["packets"].as_u64() > Some(100), "{udp:#}");
    let said = linked.finish(Side::Client);
    for end in [0, 1] {
        assert_eq!(said["ends"][end]["failed"].as_u64(), Some(0), "{said:#}");
    }
    let [frames, bytes] = ["received", "received_bytes"].map(|key| said["ends"][0][key].as_u64());
    assert!(bytes > Some(300 << 20), "{said:#}");
    assert!(
        bytes > frames.map(|n| n * 4 * 1500),
        "no large frames: {said:#}"
    );
}

#[test]
fn several_queues_of_a_device_are_lent_together() {
    let Some(mut linked) = Linked::lent("lend-queues", &["--queues", "3"]) else {
        return;
    };
    let moved = linked.iperf3(&["-n", "192M", "-P", "6"]);
    let bytes = moved["end"]["sum_received"]["bytes"].as_u64();
    assert!(bytes >= Some(16 << 20), "{moved:#}");
    linked.finish(Side::Client);
    // Another number of queues is refused, with advice.
    let other = borrower(&linked, "sink:", &[]).finish(LIMIT);
    assert_eq!(other.ending(), "exit 4", "{}", other.report());
    assert!(
        other.stderr.contains("the same --queues"),
        "{}",
        other.report()
    );
    assert!(linked.said(Side::Server).contains("waiting for another"));
}

/// 512 MiB, while things happen to both processes.
#[test]
fn a_download_over_a_lent_device_is_whole_whoever_was_killed_and_frozen_on_the_way() {
    let Some(mut linked) = Linked::lent("lend-killed", &[]) else {
        return;
    };
    let mut download = Download::start(&linked, 512);
    download.goes_on(&linked, "first bytes");
    for side in [Side::Client, Side::Server] {
        linked.kill(side);
        std::thread::sleep(Duration::from_millis(50));
        linked.start(side);
        download.goes_on(&linked, "bytes after a kill");
    }
    linked.signal(Side::Client, "STOP");
    std::thread::sleep(Duration::from_millis(500));
    linked.signal(Side::Client, "CONT");
    download.goes_on(&linked, "bytes after the borrower was frozen");
    // Nothing passes through the lender.
    linked.signal(Side::Server, "STOP");
    download.goes_on(&linked, "bytes beside a frozen lender");
    linked.signal(Side::Server, "CONT");
    download.is_whole();
    assert!(linked.said(Side::Client).contains("waiting for another"));
}

#[test]
fn one_process_at_a_time_has_the_device_and_the_next_gets_it_when_that_ends() {
    let Some(mut linked) = Linked::lent("lend-turns", &[]) else {
        return;
    };
    let mut second = borrower(&linked, "gen:rate=100", &[]);
    second.wait_until_said("another process has borrowed the device", 1);
    assert!(linked.ping(&["-c", "3", "-i", "0.1"]).is_ok());
    linked.kill(Side::Client);
    second.wait_until_said("linked: ", 1);
    says(&mut linked, Side::Server, "given back; waiting for another");
    let late = borrower(&linked, "sink:", &["--wait", "1s"]).finish(LIMIT);
    assert_eq!(late.ending(), "exit 7", "{}", late.report());
    assert!(late.stderr.contains("has borrowed"), "{}", late.report());
    second.signal("TERM");
    assert!(second.finish(LIMIT).is_ok());
}

#[test]
fn the_socket_of_a_back_lends_nothing() {
    let dir = TempDir::new("lend-back");
    let socket = dir.path().join("sock");
    let link = |ends: [&str; 2]| {
        let mut command = Command::new(memlane());
        command.args(["net", "link"]).args(ends);
        command
    };
    let back = format!("back:{}", socket.display());
    let mut back = Running::start(link(["sink:", &back]));
    back.wait_until(LIMIT, "a socket", || socket.exists());
    let lent = format!("lent:{}", socket.display());
    let said = harness::run(link(["sink:", &lent]), LIMIT);
    assert_eq!(said.ending(), "exit 4", "{}", said.report());
    let advice = "use the socket of memlane net lend";
    assert!(said.stderr.contains(advice), "{}", said.report());
}

#[test]
fn a_lender_whose_device_is_removed_ends_and_so_does_its_loan() {
    let Some(mut linked) = Linked::lent("lend-gone", &[]) else {
        return;
    };
    linked.machines().ip(Side::Server, &["link", "del", TAP]);
    let said = linked.ended(Side::Server);
    assert_eq!(said.ending(), "exit 1", "{}", said.report());
    let gone = format!("tap:{TAP}: the interface is gone");
    assert!(said.stderr.contains(&gone), "{}", said.report());
    says(&mut linked, Side::Client, "waiting for another");
}

#[test]
fn a_lender_ends_once_the_device_is_given_back_if_told_so() {
    let Some(mut linked) = Linked::lent("lend-once", &[]) else {
        return;
    };
    linked.kill(Side::Server);
    let mut command = linked.machines().command(Side::Server, memlane());
    command.args(["net", "lend"]).arg(linked.socket());
    command.args([&format!("tap:{TAP}"), "--once"]);
    let lender = Running::start(command);
    linked.wait();
    linked.finish(Side::Client);
    let said = lender.finish(LIMIT);
    assert!(said.is_ok(), "{}", said.report());
    assert!(!linked.socket().exists(), "its name is left");
}

#[test]
fn what_cannot_be_lent_is_answered_with_what_is_wrong() {
    let dir = TempDir::new("lend-usage");
    let socket = dir.path().join("sock");
    let lend = |at: &std::path::Path, end: &str| {
        let mut command = Command::new(memlane());
        command.args(["net", "lend"]).arg(at).arg(end);
        harness::run(command, LIMIT)
    };
    let none = dir.path().join("none/sock");
    let mut all = vec![
        (socket.as_path(), "sink:", 2, "only tap: can be lent"),
        (&socket, "back:/x", 2, "only tap: can be lent"),
        (&socket, "tap", 2, "an end is"),
    ];
    if harness::is_root() && std::path::Path::new("/dev/net/tun").exists() {
        all.push((&none, "tap:lend-none", 1, "the directory does not exist"));
    }
    for (at, end, code, text) in all {
        let said = lend(at, end);
        assert_eq!(said.status.code(), Some(code), "{}", said.report());
        assert!(said.stderr.contains(text), "{}", said.report());
    }
}

/// Opens a device as `memlane net lend` does, has its calls wait, and lends it.
const HOSTILE: &str = r"
import fcntl, os, socket, struct, sys, time
tun = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH22x', sys.argv[2].encode(), 0x5002))
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.bind(sys.argv[1])
door.listen()
line, _ = door.accept()
message = b'MLDEVICE' + struct.pack('<HHHH', 1, 1, 1, 0)
socket.send_fds(line, [message], [tun])
print('lent', flush=True)
while True:
    # Whatever the borrower says of it.
    fcntl.fcntl(tun, fcntl.F_SETFL, 0)
    fcntl.ioctl(tun, 0x400454d8, struct.pack('i', int(sys.argv[3])))
    time.sleep(0.01)
";

#[test]
fn a_lender_that_has_calls_wait_and_headers_change_holds_nobody_up() {
    for header in ["10", "200"] {
        let Some(mut linked) = Linked::lent("lend-hostile", &[]) else {
            return;
        };
        linked.kill(Side::Client);
        linked.kill(Side::Server);
        let _ = std::fs::remove_file(linked.socket());
        let mut command = linked.machines().command(Side::Server, "python3");
        command.args(["-c", HOSTILE]).arg(linked.socket());
        command.args([TAP, header]);
        let mut lender = Running::start(command);
        lender.wait_until(LIMIT, "a socket", || linked.socket().exists());
        linked.start(Side::Client);
        says(&mut linked, Side::Client, "linked: ");
        // Frames of ours that the device takes or not, and of others that it gives or not.
        let _ = linked.ping(&["-c", "5", "-i", "0.05", "-W", "1"]);
        let start = Instant::now();
        linked.finish(Side::Client);
        assert!(start.elapsed() < Duration::from_secs(5), "it was held up");
    }
}
