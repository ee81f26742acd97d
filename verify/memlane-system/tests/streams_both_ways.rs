//! Threads that send and receive on one connection all the time are always inside a call. The lane opens all the same.

use std::path::Path;
use std::time::Duration;

use memlane_system::real::story;

const MIB: u64 = 2048;

#[test]
fn one_connection_with_a_stream_each_way_goes_by_memory() {
    story("streams-both-ways", &[], |stage| {
        let mut both = stage.command(Path::new(env!("OUT_DIR")).join("duplex"));
        both.arg(MIB.to_string());
        let done = stage.run("duplex", both, Duration::from_secs(60));
        assert_eq!(done.stdout(), "right\n");
        if !stage.under_memlane() {
            return;
        }
        for process in &done.lane.processes {
            let [sent, received, sent_by_tcp, received_by_tcp] = process.bytes();
            assert_eq!(sent + sent_by_tcp, received + received_by_tcp);
            assert!(sent > sent_by_tcp, "{}", done.lane);
        }
        assert!(!done.lane.processes.is_empty());
    });
}
