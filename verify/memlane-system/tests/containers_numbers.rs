//! A program takes the very descriptor numbers that the library has its own files at, by dup2, while it is introduced to a
//! program in another network namespace. Nobody but the program reads from them or closes them from then on, and the lane
//! opens all the same.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for the agent.

use std::time::Duration;

use memlane_system::blocks::skip;
use memlane_system::containers::{Agent, Between, Networks};
use memlane_system::harness::plain_only;
use memlane_system::pair::{DEFAULT, Pair, Settings};
use memlane_system::real::held::channels_of;

/// An agent and two namespaces; `None`, and a word on standard error, where they cannot be.
fn scene(test: &'static str) -> Option<(Agent, Networks)> {
    if plain_only() {
        return None;
    }
    let networks = Networks::new(Between::Cable).map_err(|why| skip(test, &why));
    let agent = Agent::start(test).map_err(|why| skip(test, &why));
    Some((agent.ok()?, networks.ok()?))
}

fn pair(agent: &Agent, networks: &Networks) -> Pair {
    let domain = agent.directory();
    let flags = ["--domain", &domain];
    let side = |under| Settings {
        under,
        flags: &flags,
        ..DEFAULT
    };
    Pair::across(
        &side(&["ip", "netns", "exec", networks.server()]),
        networks.server_address(),
        &side(&["ip", "netns", "exec", networks.client()]),
        |port| (networks.reached_at().into(), port),
    )
}

/// One call of either program: a send, or the receive that belongs to it. Four of them are an exchange.
fn call(pair: &mut Pair, number: u32) {
    let (client, server) = (&mut pair.client, &mut pair.server);
    let _ = match number % 4 {
        0 => client.does(&format!("send {} 100", 900 + number)),
        1 => server.does("take 100"),
        2 => server.does(&format!("send {} 100", 900 + number)),
        _ => client.does("take 100"),
    };
}

/// Both take all the library's numbers after this many calls, and the lane opens.
fn takes_numbers_after(mut pair: Pair, calls: u32) {
    for number in 0..calls {
        call(&mut pair, number);
    }
    for end in [&mut pair.client, &mut pair.server] {
        end.does("spoil numbers");
    }
    for number in calls..calls.next_multiple_of(4) {
        call(&mut pair, number);
    }
    pair.open();
    pair.flood(1 << 20);
    for end in [&mut pair.client, &mut pair.server] {
        end.does("spoil looked");
    }
    pair.exchange();
    // The handshake is over: what it needed is closed, wherever it had been moved to.
    let channels = [&pair.client, &pair.server].map(|end| channels_of(end.pid()));
    assert!(
        channels.iter().all(|&n| n <= AT_REST),
        "after {calls} calls: {channels:?} are left"
    );
}

/// The connection to the agent, and the life line.
const AT_REST: usize = 2;

#[test]
fn numbers_that_a_program_takes_during_an_introduction_are_its_own() {
    let Some((agent, networks)) = scene("numbers") else {
        return;
    };
    for calls in 1..=16 {
        takes_numbers_after(pair(&agent, &networks), calls);
    }
}

#[test]
fn numbers_that_a_program_takes_while_the_agent_thinks_are_its_own() {
    let Some((agent, networks)) = scene("numbers-asking") else {
        return;
    };
    agent.signal("STOP");
    let mut pair = pair(&agent, &networks);
    for _ in 0..12 {
        pair.exchange();
    }
    pair.client.does("spoil numbers");
    pair.exchange();
    agent.signal("CONT");
    std::thread::sleep(Duration::from_millis(20));
    pair.server.does("spoil numbers");
    pair.open();
    for end in [&mut pair.client, &mut pair.server] {
        end.does("spoil looked");
    }
}

#[test]
fn numbers_that_a_program_takes_within_one_namespace_are_its_own() {
    if plain_only() {
        return;
    }
    for calls in 1..=16 {
        takes_numbers_after(Pair::start(&DEFAULT, &DEFAULT), calls);
    }
}
