//! Two programs in different network namespaces: the agent introduces them, whatever the kernel does to their packets on
//! the way. What ends the connection in between, such as a proxy, leaves them on TCP.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for the agent.

use std::process::Stdio;
use std::time::{Duration, Instant};

use memlane_system::blocks::skip;
use memlane_system::containers::{Agent, Between, Networks};
use memlane_system::harness::plain_only;
use memlane_system::pair::{DEFAULT, Pair, Settings};
use memlane_system::real::Reason;

/// An agent and two namespaces; `None`, and a word on standard error, where they cannot be.
fn scene(test: &'static str, between: Between) -> Option<(Agent, Networks)> {
    if plain_only() {
        return None;
    }
    let networks = Networks::new(between).map_err(|why| eprintln!("SKIPPED {test}: {why}"));
    let agent = Agent::start(test).map_err(|why| skip(test, &why));
    Some((agent.ok()?, networks.ok()?))
}

/// Client and server, each in its namespace and in a domain.
fn in_domains(networks: &Networks, [at_client, at_server]: [&str; 2]) -> Pair {
    Pair::between(
        networks,
        [&["--domain", at_client], &["--domain", at_server]],
    )
}

/// Client and server, each started by a command, under one agent.
fn pair_under(agent: &Agent, networks: &Networks, client: &[&str], server: &[&str]) -> Pair {
    let domain = agent.directory();
    let flags = ["--domain", &domain];
    let side = |under| Settings {
        under,
        flags: &flags,
        ..DEFAULT
    };
    Pair::across(
        &side(server),
        networks.server_address(),
        &side(client),
        |port| (networks.reached_at().into(), port),
    )
}

fn stays(pair: &mut Pair, why: [Reason; 2]) {
    let own = pair
        .stay_on_tcp()
        .map(|reasons| reasons.expect("a page")[0]);
    assert_eq!(
        own.map(Reason::name),
        why.map(Reason::name),
        "{}",
        pair.describe()
    );
}

#[test]
fn over_a_cable_between_two_namespaces_the_lane_opens() {
    let Some((agent, networks)) = scene("over_a_cable", Between::Cable) else {
        return;
    };
    let domain = agent.directory();
    Pair::in_domain(&networks, &domain).open_and_carry();
}

#[test]
fn over_a_cable_the_lane_opens_for_the_newer_protocol_too() {
    let Some((agent, networks)) = scene("over_a_cable_v6", Between::Cable) else {
        return;
    };
    let domain = agent.directory();
    let (at, flags) = (networks.server_address_v6(), ["--domain", &domain]);
    let side = |under| Settings {
        under,
        flags: &flags,
        ..DEFAULT
    };
    let mut pair = Pair::across(
        &side(&["ip", "netns", "exec", networks.server()]),
        at,
        &side(&["ip", "netns", "exec", networks.client()]),
        |port| (at.into(), port),
    );
    pair.open_and_carry();
}

#[test]
fn over_a_bridge_the_lane_opens() {
    let Some((agent, networks)) = scene("over_a_bridge", Between::Bridge) else {
        return;
    };
    let domain = agent.directory();
    Pair::in_domain(&networks, &domain).open_and_carry();
}

#[test]
fn behind_a_router_that_translates_both_addresses_the_lane_opens() {
    let Some((agent, networks)) = scene("behind_nat", Between::Nat) else {
        return;
    };
    let domain = agent.directory();
    Pair::in_domain(&networks, &domain).open_and_carry();
}

#[test]
fn in_mode_copy_the_lane_opens_across_namespaces_too() {
    let Some((agent, networks)) = scene("copy_across", Between::Nat) else {
        return;
    };
    let domain = agent.directory();
    let flags = ["--mode", "copy", "--domain", &domain];
    Pair::between(&networks, [&flags; 2]).open_and_carry();
}

#[test]
fn behind_a_forwarder_in_user_space_both_stay_on_tcp() {
    let Some((agent, networks)) = scene("behind_a_forwarder", Between::Cable) else {
        return;
    };
    let domain = agent.directory();
    let (client, server) = (networks.client(), networks.server());
    let flags = ["--domain", &domain];
    let side = |under| Settings {
        under,
        flags: &flags,
        ..DEFAULT
    };
    // As docker's proxy: it accepts one connection and makes another.
    const FORWARDER: &str = "
import socket, sys, threading
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
near = listener.accept()[0]
far = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def carry(a, b):
    while data := a.recv(65536): b.sendall(data)
    b.shutdown(socket.SHUT_WR)
threading.Thread(target=carry, args=(far, near), daemon=True).start()
carry(near, far)
";
    let mut forwarder = None;
    let mut pair = Pair::across(
        &side(&["ip", "netns", "exec", server]),
        networks.server_address(),
        &side(&["ip", "netns", "exec", client]),
        |port| {
            let mut command = networks.command(server, "python3");
            let at = networks.server_address();
            command.args(["-c", FORWARDER, at, &port.to_string()]);
            let mut child = command.stdout(Stdio::piped()).spawn().expect("python3");
            let mut line = String::new();
            let out = child.stdout.take().expect("piped");
            std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)
                .expect("a port");
            forwarder = Some(child);
            (at.into(), line.trim().parse().expect("a port"))
        },
    );
    // The client's other end is in another namespace; the server's is in its own, but not under memlane.
    stays(&mut pair, [Reason::NO_MATCH, Reason::PEER_NO_MEMLANE]);
    drop(pair);
    if let Some(mut forwarder) = forwarder {
        let _ = forwarder.kill();
        let _ = forwarder.wait();
    }
}

#[test]
fn programs_of_two_domains_stay_on_tcp() {
    let Some((one, networks)) = scene("two_domains", Between::Cable) else {
        return;
    };
    let other = Agent::start("two_domains_other").expect("the first one started");
    let mut pair = in_domains(&networks, [&one.directory(), &other.directory()]);
    stays(&mut pair, [Reason::NO_MATCH, Reason::NO_MATCH]);
}

#[test]
fn without_an_agent_all_is_as_before() {
    let Some((agent, networks)) = scene("without_agent", Between::Cable) else {
        return;
    };
    let nobody = format!("{}/nobody", agent.directory());
    for domain in ["off", &nobody] {
        let mut pair = Pair::in_domain(&networks, domain);
        stays(&mut pair, [Reason::NOT_SAME_HOST, Reason::NOT_SAME_HOST]);
    }
}

#[test]
fn a_killed_agent_ends_no_lane_and_the_next_one_makes_new_ones() {
    let Some((mut agent, networks)) = scene("killed_agent", Between::Nat) else {
        return;
    };
    let domain = agent.directory();
    let mut before = Pair::in_domain(&networks, &domain);
    before.open_and_carry();
    agent.kill();
    before.open_and_carry();
    let mut without = Pair::in_domain(&networks, &domain);
    stays(&mut without, [Reason::NOT_SAME_HOST, Reason::NOT_SAME_HOST]);
    agent.restart();
    Pair::in_domain(&networks, &domain).open_and_carry();
    before.open_and_carry();
}

#[test]
fn an_agent_that_is_restarted_while_questions_wait_is_asked_again() {
    let Some((mut agent, networks)) = scene("restarted_agent", Between::Nat) else {
        return;
    };
    let domain = agent.directory();
    // Nobody is at work who could answer.
    agent.signal("STOP");
    let mut pair = Pair::in_domain(&networks, &domain);
    for _ in 0..20 {
        pair.exchange();
    }
    agent.kill();
    for _ in 0..5 {
        pair.exchange();
    }
    agent.restart();
    // An agent that could not be reached is tried again after a second.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        pair.exchange();
    }
    pair.open_and_carry();
}

#[test]
fn an_agent_that_does_not_come_back_leaves_connections_on_tcp() {
    let Some((mut agent, networks)) = scene("agent_gone", Between::Cable) else {
        return;
    };
    let domain = agent.directory();
    agent.signal("STOP");
    let mut pair = Pair::in_domain(&networks, &domain);
    for _ in 0..20 {
        pair.exchange();
    }
    agent.kill();
    // A connection waits ten seconds for the next agent.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(11) {
        pair.exchange();
    }
    stays(&mut pair, [Reason::AGENT, Reason::AGENT]);
}

#[test]
fn a_stopped_agent_delays_nobody() {
    let Some((agent, networks)) = scene("stopped_agent", Between::Nat) else {
        return;
    };
    let domain = agent.directory();
    agent.signal("STOP");
    let mut pair = Pair::in_domain(&networks, &domain);
    let begin = Instant::now();
    for _ in 0..200 {
        pair.exchange();
    }
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(2), "200 exchanges took {took:?}");
    agent.signal("CONT");
    pair.open_and_carry();
}

#[test]
fn in_a_user_namespace_of_its_own_the_lane_opens() {
    let Some((agent, networks)) = scene("own_users", Between::Cable) else {
        return;
    };
    let own = ["unshare", "--user", "--map-root-user"];
    let at_client = [&["ip", "netns", "exec", networks.client()], &own[..]].concat();
    let at_server = ["ip", "netns", "exec", networks.server()];
    pair_under(&agent, &networks, &at_client, &at_server).open_and_carry();
}

#[test]
fn a_network_that_belongs_to_a_user_is_not_trusted() {
    let Some((agent, networks)) = scene("not_trusted", Between::Cable) else {
        return;
    };
    // Whoever owns a network namespace can give its sockets any addresses and any sequence numbers.
    let Some(user) = Owned::take_in(&networks) else {
        return;
    };
    let target = user.pid().to_string();
    let at_client = [
        "nsenter",
        "--user",
        "--net",
        "--preserve-credentials",
        "--target",
        &target,
    ];
    let at_server = ["ip", "netns", "exec", networks.server()];
    let mut pair = pair_under(&agent, &networks, &at_client, &at_server);
    stays(&mut pair, [Reason::NOT_TRUSTED, Reason::NOT_TRUSTED]);
}

/// A network namespace that belongs to a user namespace of an ordinary user's, with the client's end of the cable.
struct Owned(std::process::Child);

impl Owned {
    fn take_in(networks: &Networks) -> Option<Owned> {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", "1000", "--clear-groups", "unshare"]);
        command.args(["--user", "--map-root-user", "--net", "sh", "-c"]);
        command.arg("echo ready; exec sleep 60");
        let mut child = command.stdout(Stdio::piped()).spawn().expect("unshare");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("ready");
        let owned = Owned(child);
        if line != "ready\n" {
            skip("not_trusted", "no user namespaces here");
            return None;
        }
        networks.move_client_to(owned.pid());
        Some(owned)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn each_in_a_pid_and_mount_namespace_of_its_own_the_lane_opens() {
    let Some((agent, networks)) = scene("own_pids", Between::Nat) else {
        return;
    };
    let own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let at_client = [&["ip", "netns", "exec", networks.client()], &own[..]].concat();
    let at_server = [&["ip", "netns", "exec", networks.server()], &own[..]].concat();
    pair_under(&agent, &networks, &at_client, &at_server).open_and_carry();
}

/// `memlane check --container` of the two: its verdict, and what it says of each step that is not well.
fn checked(pair: &Pair) -> (bool, Vec<String>) {
    let pids = [&pair.server, &pair.client].map(|end| end.pid().to_string());
    let said = pair
        .memlane()
        .args(["check", "--json", "--container", &pids[0], &pids[1]])
        .output()
        .expect("memlane runs");
    let said: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let steps = said["steps"].as_array().expect("steps");
    let wrong = steps.iter().filter(|step| step["well"] == false);
    let what = |step: &serde_json::Value| step["what"].as_str().unwrap_or("?").to_owned();
    (said["lane"] == true, wrong.map(what).collect())
}

#[test]
fn check_tells_step_by_step_why_two_containers_get_no_lane() {
    let Some((mut agent, networks)) = scene("check", Between::Nat) else {
        return;
    };
    let domain = agent.directory();
    let mut both = Pair::in_domain(&networks, &domain);
    both.exchange();
    assert_eq!(checked(&both), (true, Vec::new()));
    let mut other = in_domains(&networks, [&domain, "off"]);
    other.exchange();
    assert_eq!(checked(&other), (false, vec!["agent".to_owned()]));
    agent.kill();
    assert_eq!(checked(&both), (false, vec!["agent".to_owned(); 2]));
}
