//! Threads that are always inside a call, because they send and receive a stream all the time, or wait for what does not come:
//! the lane opens all the same.

use std::path::Path;
use std::time::Duration;

use memlane_system::real::{LaneReport, story};

const MIB: u64 = 2048;

/// Runs `ends/duplex.c`, and hands what its processes tell of their lanes to `then`, under memlane.
fn streams(name: &str, how: &[&str], then: fn(&LaneReport)) {
    story(name, &[], |stage| {
        let mut both = stage.command(Path::new(env!("OUT_DIR")).join("duplex"));
        both.arg(MIB.to_string()).args(how);
        let done = stage.run("duplex", both, Duration::from_secs(60));
        assert_eq!(done.stdout(), "right\n");
        if stage.under_memlane() {
            assert!(!done.lane.processes.is_empty());
            then(&done.lane);
        }
    });
}

#[test]
fn one_connection_with_a_stream_each_way_goes_by_memory() {
    streams("streams-both-ways", &[], |lane| {
        for process in &lane.processes {
            let [sent, received, sent_by_tcp, received_by_tcp] = process.bytes();
            assert_eq!(sent + sent_by_tcp, received + received_by_tcp);
            assert!(sent > sent_by_tcp, "{lane}");
        }
    });
}

#[test]
fn a_stream_beside_which_a_thread_waits_for_an_answer_goes_by_memory() {
    streams("streams-beside-a-wait", &["wait"], |lane| {
        let sent = lane.processes.iter().map(|process| process.bytes());
        let [by_memory, by_tcp] = sent.fold([0; 2], |[m, t], bytes| [m + bytes[0], t + bytes[2]]);
        assert_eq!(by_memory + by_tcp, MIB << 20);
        assert!(by_memory > by_tcp, "{lane}");
    });
}
