//! iperf3: both directions, several streams, a file with its content, and UDP.

use memlane_system::real::iperf3::{Diskfile, bytes_of, iperf3};
use memlane_system::real::{SHORT_LIVED, Stage, Story, blob, story};

fn check(stage: &Stage, args: &[&str], summaries: &[&str]) {
    let (client, server) = iperf3(stage, args, &[]);
    let json = client.stdout();
    assert!(!json.contains("\"error\""), "{json}");
    for summary in summaries {
        let bytes = bytes_of(&json, summary);
        assert!(bytes > 10 << 20, "{summary}: {bytes} bytes in {json}");
    }
    // More than the control connection ever carries.
    client.lane.must_use_ring_for(1 << 20, &[SHORT_LIVED]);
    server.lane.must_use_ring_for(1 << 20, &[SHORT_LIVED]);
}

#[test]
fn iperf3_sends_forward() {
    story("iperf3-forward", &["iperf3"], |stage| {
        check(stage, &["-t", "1"], &["sum_sent", "sum_received"]);
        // Small writes, and a count of bytes instead of a time.
        check(
            stage,
            &["-n", "32M", "-l", "1000"],
            &["sum_sent", "sum_received"],
        );
    });
}

#[test]
fn iperf3_sends_in_reverse() {
    story("iperf3-reverse", &["iperf3"], |stage| {
        check(stage, &["-t", "1", "-R"], &["sum_sent", "sum_received"]);
    });
}

#[test]
fn iperf3_sends_both_ways_at_once() {
    let sums = [
        "sum_sent",
        "sum_received",
        "sum_sent_bidir_reverse",
        "sum_received_bidir_reverse",
    ];
    story("iperf3-bidir", &["iperf3"], |stage| {
        check(stage, &["-t", "1", "--bidir"], &sums)
    });
}

#[test]
fn iperf3_sends_over_four_connections() {
    story("iperf3-parallel", &["iperf3"], |stage| {
        check(
            stage,
            &["-t", "1", "-P", "4"],
            &["sum_sent", "sum_received"],
        );
        check(
            stage,
            &["-t", "1", "-P", "4", "-R"],
            &["sum_sent", "sum_received"],
        );
    });
}

#[test]
fn iperf3_sends_from_a_file_by_sendfile() {
    story("iperf3-zerocopy", &["iperf3"], |stage| {
        check(stage, &["-t", "1", "-Z"], &["sum_sent", "sum_received"]);
    });
}

#[test]
fn iperf3_carries_a_file_as_it_is() {
    let Some(story) = Story::new("iperf3-file", &["iperf3"]) else {
        return;
    };
    let bytes = blob(21, 96 << 20);
    let source = story.dir().join("source");
    std::fs::write(&source, &bytes).expect("source");
    story.in_each_mode(|stage| {
        let target = stage.dir().join("target");
        let client = ["-F", source.to_str().expect("ASCII")];
        let server = ["-F", target.to_str().expect("ASCII")];
        let (client, server) = iperf3(stage, &client, &server);
        let arrived = std::fs::read(&target).expect("target");
        // iperf3 stops receiving when the client says that it is done: the end may lack.
        assert!(
            arrived.len() > bytes.len() / 2,
            "only {} bytes arrived",
            arrived.len()
        );
        assert!(
            Diskfile::new(&bytes).explains(&arrived),
            "other bytes arrived than were sent"
        );
        client.lane.must_use_ring_for(1 << 20, &[SHORT_LIVED]);
        server.lane.must_use_ring_for(1 << 20, &[SHORT_LIVED]);
    });
}

#[test]
fn iperf3_over_udp_is_left_alone() {
    story("iperf3-udp", &["iperf3"], |stage| {
        let (client, server) = iperf3(stage, &["-t", "1", "-u", "-b", "100M"], &[]);
        let json = client.stdout();
        assert!(!json.contains("\"error\""), "{json}");
        assert!(bytes_of(&json, "sum") > 1 << 20, "{json}");
        for lane in [client.lane, server.lane] {
            lane.must_explain(&[SHORT_LIVED]);
            // The control connection is TCP, the data is not.
            assert!(lane.connections() <= 1, "{lane}");
            assert!(lane.ring_bytes() < 1 << 20, "{lane}");
        }
    });
}
