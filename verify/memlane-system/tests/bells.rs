//! Threads that sleep with epoll or poll leave their connections awake, and a bell wakes them.

use std::time::Duration;

use memlane_system::real::{counts, free_port, story};

const ROUNDS: u64 = 500;

#[test]
fn sleepers_in_epoll_talk_through_memory_and_are_parked_only_when_they_have_been_idle() {
    sleepers("epoll", 70); // more than one chunk has
}

#[test]
fn sleepers_in_poll_talk_through_memory_and_are_parked_only_when_they_have_been_idle() {
    sleepers("poll", 20); // lists of more than 64 are parked
}

fn sleepers(wait: &str, connections: u64) {
    story(&format!("sleepers-{wait}"), &["python3"], |stage| {
        let port = free_port();
        let mut server = stage.python("sleepers.py");
        server.args(["server", wait, &port.to_string()]);
        let mut server = stage.start("server", server);
        server.wait_listening(port);
        let mut client = stage.python("sleepers.py");
        client.args([
            "client".into(),
            wait.to_owned(),
            port.to_string(),
            connections.to_string(),
            ROUNDS.to_string(),
        ]);
        let done = stage.run("client", client, Duration::from_secs(60));
        let served = server.wait(Duration::from_secs(10)).success();
        let asked = connections * 40 + ROUNDS + connections;
        assert_eq!(counts(&done.stdout())["right"], asked);
        if !stage.under_memlane() {
            return;
        }
        for lane in [&done.lane, &served.lane] {
            lane.must_use_ring(&[]);
            let [process] = &lane.processes[..] else {
                panic!("one process: {lane}");
            };
            let bells = process.bells();
            assert!(
                bells > ROUNDS / 2,
                "{bells} bells in {ROUNDS} rounds: {lane}"
            );
            // Each connection when it comes into the set, when it has been idle for two seconds, and a few times in between:
            // a round over all of them takes about half a second, too.
            let parks = process.parks();
            assert!(parks >= connections, "{parks} parks: {lane}");
            let by_tcp: u64 = process.bytes()[2..].iter().sum();
            let all: u64 = process.bytes().iter().sum();
            assert!(by_tcp < all / 2, "{by_tcp} of {all} bytes by TCP: {lane}");
        }
    });
}
