//! Very many connections between two processes: all are upgraded, no byte is wrong, and their cost in descriptors,
//! mappings and waits is bounded.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Instant;

use memlane_system::crowd::{Crowd, descriptors, program};
use memlane_system::harness::{self, Mode, plain_only};
use memlane_system::real::held::Held;
use memlane_system::real::{self, Reason, Story};

/// Connections of the large story.
const MANY: usize = 10_000;
/// Descriptors of a process beside its connections: the program's, the library's own.
const OWN: usize = 600;

fn note(text: &str) {
    // Not eprintln!: the test runner hides what that prints.
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[test]
fn ten_thousand_connections_get_the_lane_and_share_what_a_few_have() {
    if plain_only() {
        return;
    }
    let many = MANY.min(descriptors().saturating_sub(OWN));
    if many < MANY {
        note(&format!(
            "SKIPPED: {MANY} connections, only {many}: ulimit -Hn"
        ));
    }
    let mut crowd = Crowd::start(Mode::Eager);
    crowd.caller.does("open 100");
    crowd.talk_until_on_lane("talk epoll 0 100 100 4", 100);
    let few = [crowd.server.holds(), crowd.caller.holds()];

    crowd.caller.does(&format!("open {many}"));
    let order = format!("talk epoll 0 {many} 50 2");
    let on_lane = crowd.talk_until_nearly_all_are_on_lane(&order, many);
    // For each 64 connections a memfd, two ends of bells, and two mappings: their own rings, and the peer's.
    let more = many - 100;
    let chunks = more.div_ceil(64) + 1;
    let is_within = |few: &Held, now: &Held| {
        now.fds - few.fds <= more + 3 * chunks && now.maps - few.maps <= 2 * chunks + 20
    };
    // A handshake whose last message has not been taken yet has a descriptor of its own.
    for round in 1.. {
        let now = [crowd.server.holds(), crowd.caller.holds()];
        let all = std::iter::zip(&few, &now);
        if all.clone().all(|(few, now)| is_within(few, now)) {
            note(&format!(
                "{few:?} at 100, {now:?} at {many}; talks: {round}"
            ));
            break;
        }
        assert!(round < 20, "{few:?} at 100, {now:?} at {many}");
        crowd.caller.does(&order);
    }

    // All at once, and a few among all the others, in every size of message.
    for (first, count, size, times) in [
        (0, many, 1, 1),
        (0, many, 3000, 1),
        (many / 2, 16, 60_000, 3),
    ] {
        let order = format!("talk epoll {first} {count} {size} {times}");
        crowd.caller.does(&order);
    }
    for first in [0, many / 3, many - 16] {
        crowd.caller.does(&format!("talk epoll {first} 16 200 300"));
    }
    assert_eq!(crowd.caller.on_lane(), on_lane);
    let late = [
        Reason::PEER_NO_MEMLANE,
        Reason::TIMEOUT_CL,
        Reason::TIMEOUT_AL,
    ];
    for program in [&crowd.server, &crowd.caller] {
        program.lane().must_use_ring(&[&late]);
    }
    crowd.end();
}

/// Connections that begin at once and exchange messages in turn, under `--upgrade auto`: so many exchanges after the first
/// handshakes are due, all have the lane. `cpus`: those of the caller; the server has CPU 0.
fn all_get_the_lane_within(connections: usize, cpus: &str, exchanges: usize) {
    const DUE_AFTER: usize = 8;
    let many = connections.min(descriptors().saturating_sub(OWN));
    let mut crowd = Crowd::start_pinned(Mode::Auto, ["0", cpus]);
    crowd.caller.does(&format!("open {many}"));
    let talk = format!("talk epoll 0 {many} 50 1");
    for _ in 0..DUE_AFTER {
        crowd.caller.does(&talk);
    }
    let due = Instant::now();
    for nth in 1..=exchanges {
        crowd.caller.does(&talk);
        let now = crowd.caller.on_lane();
        note(&format!(
            "{now} of {many} after {nth} exchanges, {:?}",
            due.elapsed()
        ));
        if now == many {
            return crowd.end();
        }
    }
    panic!("{}", crowd.caller.lane());
}

#[test]
fn ten_thousand_connections_at_once_get_the_lane_soon_after_their_handshakes_are_due() {
    if !plain_only() {
        all_get_the_lane_within(MANY, "1", 10);
    }
}

#[test]
fn ten_thousand_connections_between_two_processes_of_one_cpu_get_the_lane_as_soon() {
    if !plain_only() {
        all_get_the_lane_within(MANY, "0", 16);
    }
}

#[test]
fn five_hundred_connections_at_once_get_the_lane_within_a_few_exchanges() {
    if !plain_only() {
        all_get_the_lane_within(500, "0", 8);
    }
}

#[test]
fn poll_and_select_wait_on_very_many_without_giving_up_a_lane() {
    if plain_only() {
        return;
    }
    let mut crowd = Crowd::start(Mode::Eager);
    crowd.caller.does("open 900");
    crowd.talk_until_on_lane("talk epoll 0 900 100 2", 900);
    for way in ["select", "poll"] {
        crowd.caller.does(&format!("talk {way} 0 900 100 3"));
        crowd.caller.does(&format!("talk {way} 880 2 5000 100"));
    }
    crowd.caller.does("open 1500");
    crowd.talk_until_on_lane("talk poll 0 1500 100 2", 1500);
    crowd.caller.does("talk poll 1000 500 300 5");
    crowd.caller.does("open 10");
    crowd.caller.does("talk poll 0 10 300 50");
    for program in [&crowd.server, &crowd.caller] {
        program.lane().must_use_ring(&[&[Reason::CLOSING]]);
    }
    assert_eq!(crowd.caller.on_lane(), 10);
    crowd.end();
}

/// Instructions that 300 rounds of talk on 16 of this many connections take, at both ends,
/// by valgrind's count.
fn instructions(connections: usize) -> u64 {
    let orders = format!(
        "open {connections}\ntalk epoll 0 {connections} 1 30\nrest\n\
         talk epoll 0 16 1 20\nmeasure epoll 0 16 1 300\n"
    );
    let mut command = harness::command(Mode::Eager, real::program("valgrind"));
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    // Without spinning, what is executed does not depend on time.
    command
        .args(["--toggle-collect=talk_measured"])
        .env("MEMLANE_SPIN", "off");
    command.arg(program()).arg("alone").stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("valgrind starts");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(orders.as_bytes()).expect("it reads");
    drop(input);
    let done = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let line = said.lines().find_map(|l| l.split_once("Collected :"));
    let count = line.and_then(|(_, n)| n.trim().parse().ok());
    count.unwrap_or_else(|| panic!("no count in {said}"))
}

#[test]
fn a_wait_costs_by_the_connections_that_are_active() {
    if plain_only() || Story::new("instructions", &["valgrind"]).is_none() {
        return;
    }
    // A thread that loses its CPU at the wrong moment takes a few steps more: the least of several counts has none of that.
    let least = |connections| (0..3).map(|_| instructions(connections)).min();
    let (few, many) = (least(64).expect("a count"), least(1000).expect("a count"));
    note(&format!("instructions: {few} among 64, {many} among 1000"));
    // Five instructions for each connection in each wait would be a quarter more.
    assert!(many < few + few / 10, "{few} among 64, {many} among 1000");
}
