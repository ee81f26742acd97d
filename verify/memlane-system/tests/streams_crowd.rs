//! Many streams at once between two processes stay on the memory lane: the receiver comes back to each of them late, but it comes.

use std::time::Duration;

use memlane_system::real::{counts, free_port, story};

/// More than a list of poll or select on the stack has room for. A turn over all of them takes longer than 10 ms, after which a
/// sender gives up a receiver that reads nothing.
const STREAMS: u64 = 150;
const EACH: u64 = 24 << 20;

#[test]
fn one_thread_takes_a_crowd_of_streams_by_epoll_from_memory() {
    crowd("epoll");
}

#[test]
fn one_thread_takes_a_crowd_of_streams_by_poll_from_memory() {
    crowd("poll");
}

#[test]
fn one_thread_takes_a_crowd_of_streams_by_select_from_memory() {
    crowd("select");
}

#[test]
fn many_threads_take_a_stream_each_from_memory() {
    crowd("recv");
}

fn crowd(wait: &str) {
    story(&format!("streams-{wait}"), &["python3"], |stage| {
        let port = free_port();
        let numbers = [STREAMS, EACH].map(|n| n.to_string());
        let mut server = stage.python("streams.py");
        server
            .args(["server", wait, &port.to_string()])
            .args(&numbers);
        let mut server = stage.start("server", server);
        server.wait_listening(port);
        let mut client = stage.python("streams.py");
        client.args(["client", &port.to_string()]).args(&numbers);
        let done = stage.run("client", client, Duration::from_secs(120));
        let served = server.wait(Duration::from_secs(60)).success();
        assert_eq!(counts(&done.stdout())["sent"], STREAMS);
        assert_eq!(counts(&served.stdout())["right"], STREAMS);
        if !stage.under_memlane() {
            return;
        }
        let [process] = &served.lane.processes[..] else {
            panic!("one process: {}", served.lane);
        };
        let [_, by_memory, _, by_tcp] = process.bytes();
        eprintln!("{by_memory} by memory, {by_tcp} by TCP");
        // Until its lane is open, each stream has filled TCP's buffers.
        assert!(
            by_memory > (by_memory + by_tcp) / 3,
            "{by_memory} by memory, {by_tcp} by TCP: {}",
            served.lane
        );
    });
}
