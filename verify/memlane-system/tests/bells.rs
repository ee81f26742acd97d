//! Threads that sleep with epoll leave their connections awake, and a bell wakes them.

use std::time::Duration;

use memlane_system::real::{counts, free_port, story};

const CONNECTIONS: u64 = 70; // more than one chunk has
const ROUNDS: u64 = 500;

#[test]
fn sleepers_talk_through_memory_and_are_parked_only_when_they_have_been_idle() {
    story("sleepers", &["python3"], |stage| {
        let port = free_port();
        let mut server = stage.python("sleepers.py");
        server.args(["server", &port.to_string()]);
        let mut server = stage.start("server", server);
        server.wait_listening(port);
        let mut client = stage.python("sleepers.py");
        client.args([
            "client".into(),
            port.to_string(),
            CONNECTIONS.to_string(),
            ROUNDS.to_string(),
        ]);
        let done = stage.run("client", client, Duration::from_secs(60));
        let served = server.wait(Duration::from_secs(10)).success();
        let asked = CONNECTIONS * 40 + ROUNDS + CONNECTIONS;
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
            assert!(parks >= CONNECTIONS, "{parks} parks: {lane}");
            let by_tcp: u64 = process.bytes()[2..].iter().sum();
            let all: u64 = process.bytes().iter().sum();
            assert!(by_tcp < all / 2, "{by_tcp} of {all} bytes by TCP: {lane}");
        }
    });
}
