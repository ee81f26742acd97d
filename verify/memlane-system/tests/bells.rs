//! Threads that sleep with epoll, poll or select leave their connections awake, and a bell wakes them. Blocking reads nap.

use std::time::Duration;

use memlane_system::real::lane::Process;
use memlane_system::real::{counts, free_port, story};

const ROUNDS: u64 = 500;

#[test]
fn sleepers_in_epoll_talk_through_memory_and_are_parked_only_when_they_have_been_idle() {
    sleepers("epoll", 70); // more than one chunk has
}

#[test]
fn sleepers_in_poll_talk_through_memory_and_are_parked_only_when_they_have_been_idle() {
    sleepers("poll", 70); // more than a chunk has, and than lie on the stack
}

#[test]
fn sleepers_in_select_talk_through_memory_and_are_parked_only_when_they_have_been_idle() {
    sleepers("select", 70);
}

/// Another thread may close the pipe that they wait for, too.
#[test]
fn sleepers_of_programs_with_threads_talk_through_memory() {
    sleepers("threaded-poll", 70);
    sleepers("threaded-select", 20);
}

/// Where the kernel tells of no edges, or a sender may make none, a bell rings by bytes.
#[test]
fn sleepers_that_hear_no_edges_and_senders_that_can_make_none_talk_through_memory() {
    sleepers_of("deaf-epoll", "deaf-poll", 20);
    sleepers_of("epoll", "deaf-epoll", 20);
    sleepers_of("deaf-epoll", "poll", 20);
}

/// The thread that waits sleeps again while the other one reads, and is still asleep when the connection's events are asked for again.
#[test]
fn sleepers_whose_connections_another_thread_reads_talk_through_memory() {
    sleepers("pool", 20);
}

/// Two threads wait, and take a connection out of their set while a third one reads. In that time, it gets its lane, and wakes up.
#[test]
fn sleepers_whose_connections_wake_up_outside_of_their_set_talk_through_memory() {
    sleepers("selectors", 20);
}

#[test]
fn sleepers_in_blocking_reads_talk_through_memory_and_are_parked_only_when_they_have_been_idle() {
    sleepers("recv", 2); // each reads again within the longest nap
}

/// A chunk whose connections have ended serves the next one, which may be in another thread's set: only that thread is rung for.
/// Another one that woke up, too, might take the bell's bytes before it.
#[test]
fn a_connection_of_another_threads_set_wakes_that_thread_alone() {
    const CONNECTIONS: u64 = 6;
    const ASKS: u64 = 40 + ROUNDS / 10;
    story("turns", &["python3"], |stage| {
        let port = free_port();
        let mut server = stage.python("sleepers.py");
        server.args(["turns-server", &port.to_string(), &CONNECTIONS.to_string()]);
        let mut server = stage.start("server", server);
        server.wait_listening(port);
        let mut client = stage.python("sleepers.py");
        client.arg("turns");
        client.args([port.into(), CONNECTIONS, ROUNDS / 10].map(|n| n.to_string()));
        let done = stage.run("client", client, Duration::from_secs(60));
        let served = server.wait(Duration::from_secs(10)).success();
        let (answers, sets) = (counts(&done.stdout()), counts(&served.stdout()));
        assert_eq!(answers["right"], CONNECTIONS * ASKS);
        assert_eq!(
            sets["seen"], 0,
            "descriptors in the set of a thread without connections"
        );
        assert!(answers["late"] < CONNECTIONS, "{answers:?}");
        if stage.under_memlane() {
            served.lane.must_use_ring(&[]);
        }
    });
}

/// The first message rings, and has its place among the kernel's events. Those that follow at once need no place of their own.
#[test]
fn a_crowd_of_messages_for_a_sleeper_that_gets_no_cpu_goes_through_memory() {
    crowds("stopped-sleeper", "crowd", |server| vec![server.into()]);
}

/// The first message goes by TCP, which marks its place among the kernel's events. The others belong behind it.
#[test]
fn a_crowd_of_messages_for_a_receiver_that_computes_goes_through_memory() {
    crowds("computing", "busy", |_| Vec::new());
}

/// Sends crowds of messages to a server that does not look at its rings: `role` is the client's, and `more` what it must be
/// told of the server, whose process it is given.
fn crowds(name: &str, role: &str, more: fn(u32) -> Vec<u64>) {
    const CONNECTIONS: u64 = 10;
    const CROWDS: u64 = 60;
    story(name, &["python3"], |stage| {
        let port = free_port();
        let mut server = stage.python("sleepers.py");
        server.args(["server", "epoll", &port.to_string()]);
        let mut server = stage.start("server", server);
        server.wait_listening(port);
        let mut client = stage.python("sleepers.py");
        client.arg(role);
        let mut numbers = vec![port.into(), CONNECTIONS, CROWDS];
        numbers.extend(more(server.id()));
        client.args(numbers.iter().map(u64::to_string));
        let done = stage.run("client", client, Duration::from_secs(60));
        server.wait(Duration::from_secs(10)).success();
        let counted = counts(&done.stdout());
        assert_eq!(counted["right"], CONNECTIONS * (40 + CROWDS));
        if !stage.under_memlane() {
            return;
        }
        if counted["quick"] < CROWDS * 9 / 10 {
            return eprintln!("SKIPPED: {name}: sends are too slow here: {counted:?}");
        }
        let [process] = &done.lane.processes[..] else {
            panic!("one process: {}", done.lane);
        };
        let [sent, _, by_tcp, _] = process.bytes();
        // The first exchanges of a connection go by TCP.
        let least = 100 * CONNECTIONS * CROWDS * 3 / 4;
        assert!(
            sent > least,
            "{sent} by memory, {by_tcp} by TCP: {}",
            done.lane
        );
    });
}

fn sleepers(wait: &str, connections: u64) {
    sleepers_of(wait, wait, connections);
}

/// The server sleeps in `at_server`, the client in `wait`.
fn sleepers_of(at_server: &str, wait: &str, connections: u64) {
    story(
        &format!("sleepers-{at_server}-{wait}"),
        &["python3"],
        |stage| {
            let port = free_port();
            let mut server = stage.python("sleepers.py");
            server.args(["server", at_server, &port.to_string()]);
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
            // It sleeps until its answer comes, so that the server has to ring.
            if wait != "recv" {
                client.env("MEMLANE_SPIN", "off");
            }
            let done = stage.run("client", client, Duration::from_secs(60));
            let served = server.wait(Duration::from_secs(10)).success();
            let asked = connections * 40 + ROUNDS + connections;
            assert_eq!(counts(&done.stdout())["right"], asked);
            if !stage.under_memlane() {
                return;
            }
            // A client that waits for its answer in a read may spin until it comes.
            let least = |is_client| match (wait, is_client) {
                ("recv", false) => 0,
                ("recv", true) => ROUNDS / 4,
                _ => ROUNDS / 2,
            };
            for (lane, least) in [(&done.lane, least(true)), (&served.lane, least(false))] {
                lane.must_use_ring(&[]);
                // One that becomes deaf has been another program before.
                let has_talked = |process: &&Process| process.bytes().iter().any(|&n| n > 0);
                let talked: Vec<_> = lane.processes.iter().filter(has_talked).collect();
                let [process] = talked[..] else {
                    panic!("one process: {lane}");
                };
                let bells = process.bells();
                assert!(bells > least, "{bells} bells in {ROUNDS} rounds: {lane}");
                // Each connection when it comes into the set, when it has been idle for three seconds, and a few times in between:
                // a round over all of them takes about half a second, too.
                let parks = process.parks();
                // A client that sleeps outside of a read is not seen to sleep.
                let is_seen = wait != "recv" || least == 0;
                assert!(!is_seen || parks >= connections, "{parks} parks: {lane}");
                let is_pool = ["pool", "selectors"].contains(&wait);
                assert!(!is_pool || parks < 5 * connections, "{parks} parks: {lane}");
                let by_tcp: u64 = process.bytes()[2..].iter().sum();
                let all: u64 = process.bytes().iter().sum();
                assert!(by_tcp < all / 2, "{by_tcp} of {all} bytes by TCP: {lane}");
            }
        },
    );
}
