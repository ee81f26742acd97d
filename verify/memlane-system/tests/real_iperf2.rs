//! iperf 2: it asks for time stamps that it does not read, and sends both ways over one connection.

use std::time::Duration;

use memlane_system::real::{Stage, free_port, story, wait_listening};

const LIMIT: Duration = Duration::from_secs(60);
/// Much more than goes by before a lane opens.
const BYTES: u64 = 1 << 30;

fn check(stage: &Stage, args: &[&str]) {
    let port = free_port();
    let at = ["-p", &port.to_string()].map(str::to_owned);
    let mut server = stage.command("iperf");
    server.args(["-s", "-B", "127.0.0.1", "-P", "1"]).args(&at);
    let server = stage.start("iperf-server", server);
    wait_listening(port, "iperf");
    let mut client = stage.command("iperf");
    client
        .args(["-c", "127.0.0.1", "-t", "1"])
        .args(&at)
        .args(args);
    let client = stage.run("iperf-client", client, LIMIT);
    let server = server.wait(LIMIT).success();
    for end in [&client, &server] {
        assert!(!end.stdout().contains("failed"), "{}", end.stdout());
        end.lane.must_use_ring_for(BYTES, &[]);
    }
}

#[test]
fn iperf_2_sends_forward() {
    story("iperf2-forward", &["iperf"], |stage| check(stage, &[]));
}

#[test]
fn iperf_2_sends_both_ways_over_one_connection() {
    story("iperf2-both-ways", &["iperf"], |stage| {
        check(stage, &["--full-duplex"]);
    });
}
