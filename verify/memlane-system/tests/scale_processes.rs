//! A server with a thousand processes, tens of thousands of connections that come and go, and forks. Afterwards each
//! process holds what it held before.

use memlane_system::crowd::{Crowd, Program, descriptors, serve};
use memlane_system::harness::{Mode, plain_only};
use memlane_system::real::Reason;
use memlane_system::real::held::Held;

/// Processes that call one server.
const PROCESSES: usize = 1000;

/// `SCALE=long`: as often as the issue of this lane says, not as often as a test run allows.
fn times(short: u32, long: u32) -> u32 {
    match std::env::var("SCALE").as_deref() {
        Ok("long") => long,
        _ => short,
    }
}

#[test]
fn a_thousand_processes_have_a_lane_to_one_server() {
    // The first of them has two pipes to each of the others.
    if plain_only() || descriptors() < 2 * PROCESSES + 200 {
        return;
    }
    let mut crowd = Crowd::of_many(Mode::Eager, PROCESSES);
    crowd.caller.does("open 1");
    crowd.talk_until_on_lane("talk epoll 0 1 300 10", PROCESSES);
    let held = crowd.server.holds();
    // A connection, a life line and two mappings for each process, which is a link group of its own here; and the memfds
    // that are kept for an exec, and at most 256 bells of its own and of its peers.
    assert!(held.fds < 2 * PROCESSES + 400 + 2 * 256, "{held:?}");
    assert!(held.maps < 2 * PROCESSES + 200, "{held:?}");
    crowd.caller.does("talk epoll 0 1 2000 20");
    crowd.server.lane().must_use_ring(&[]);

    // They go, and one more comes: what was theirs is given back.
    let Crowd { server, caller } = crowd;
    caller.end();
    let port = port_of(&server);
    std::thread::sleep(std::time::Duration::from_millis(1200));
    let mut last = Program::start(Mode::Eager, &["call", &port]);
    last.does("open 1");
    last.does("talk epoll 0 1 300 40");
    let held = server.holds();
    assert!(held.fds < 40 && held.maps < 120, "{held:?}");
    last.end();
    server.end();
}

/// The port on which a program listens.
fn port_of(server: &Program) -> String {
    let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", server.pid())).expect("/proc");
    let inodes: Vec<String> = std::fs::read_dir(format!("/proc/{}/fd", server.pid()))
        .expect("/proc")
        .flatten()
        .filter_map(|e| Some(std::fs::read_link(e.path()).ok()?.to_str()?.to_owned()))
        .collect();
    let listens = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(3) == Some(&"0A") && inodes.contains(&format!("socket:[{}]", words[9]))
    };
    let line = table.lines().find(listens).expect("it listens");
    let port = line
        .split_whitespace()
        .nth(1)
        .and_then(|a| a.split(':').nth(1));
    let port = u16::from_str_radix(port.expect("a port"), 16);
    port.expect("a port").to_string()
}

/// By how much one may hold more than before: a link group's chunks come one at a time.
fn must_be_back(what: &str, before: [Held; 2], now: [Held; 2]) {
    for (before, now) in before.into_iter().zip(now) {
        assert!(now.fds <= before.fds + 3, "{what}: {before:?} {now:?}");
        assert!(
            now.memfds <= before.memfds + 2,
            "{what}: {before:?} {now:?}"
        );
        assert!(
            now.shared_maps <= before.shared_maps + 4,
            "{what}: {before:?} {now:?}"
        );
        assert!(now.maps <= before.maps + 12, "{what}: {before:?} {now:?}");
    }
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    if plain_only() {
        return;
    }
    for mode in Mode::UNDER_MEMLANE {
        let mut crowd = Crowd::start(mode);
        crowd.caller.does("open 10");
        // The same at a time as later: a chunk has room for 64.
        crowd.caller.does("short 400 50 20");
        crowd.talk_until_on_lane("talk epoll 0 10 100 20", 10);
        let before = [crowd.server.holds(), crowd.caller.holds()];
        let memory = [crowd.server.shared_kb(), crowd.caller.shared_kb()];
        let many = times(8_000, 490_000);
        crowd.caller.does(&format!("short {many} 50 4"));
        crowd
            .caller
            .does(&format!("short {} 50 20", times(1_000, 10_000)));
        crowd.caller.does("talk epoll 0 10 100 20");
        let after = [crowd.server.holds(), crowd.caller.holds()];
        must_be_back("short connections", before, after);
        // The rings that were used once stay in memory, if at all, as long as the link group.
        let memory_now = [crowd.server.shared_kb(), crowd.caller.shared_kb()];
        for (before, now) in memory.into_iter().zip(memory_now) {
            assert!(now <= before + 4096, "{before} kB have become {now} kB");
        }
        for program in [&crowd.server, &crowd.caller] {
            let allowed = [
                Reason::TOO_YOUNG,
                Reason::CLOSING,
                Reason::NOT_SAME_HOST,
                Reason::PEER_DECLINED,
            ];
            program.lane().must_use_ring(&[&allowed]);
        }
        crowd.end();
    }
}

#[test]
fn children_that_come_and_go_leave_nothing_behind() {
    if plain_only() {
        return;
    }
    let mut crowd = Crowd::start(Mode::Eager);
    crowd.caller.does("open 20");
    crowd.talk_until_on_lane("talk epoll 0 20 100 10", 20);
    for how in ["exit", "exec"] {
        crowd.caller.does(&format!("fork {how} 3"));
        let before = [crowd.server.holds(), crowd.caller.holds()];
        crowd.caller.does(&format!("fork {how} {}", times(60, 500)));
        must_be_back(how, before, [crowd.server.holds(), crowd.caller.holds()]);
        assert_eq!(crowd.server.on_lane(), 20, "after {how}");
    }
    // These cost the first connection its lane, and nothing else.
    for how in ["inherit", "use"] {
        crowd.caller.does(&format!("fork {how} 3"));
        let before = [crowd.server.holds(), crowd.caller.holds()];
        crowd.caller.does(&format!("fork {how} {}", times(30, 250)));
        must_be_back(how, before, [crowd.server.holds(), crowd.caller.holds()]);
        assert!(crowd.server.on_lane() >= 19, "after {how}");
    }
    crowd.end();
}

#[test]
fn a_server_holds_no_more_after_clients_that_came_and_went() {
    if plain_only() {
        return;
    }
    let (server, port) = serve(Mode::Eager);
    // Processes that live for one connection each.
    let call = |n: u32| {
        for _ in 0..n {
            let mut caller = Program::start(Mode::Eager, &["call", &port]);
            caller.does("open 2");
            caller.does("talk epoll 0 2 100 20");
            caller.end();
        }
    };
    call(5);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    call(1);
    let before = server.holds();
    call(times(20, 1000));
    std::thread::sleep(std::time::Duration::from_millis(1100));
    call(1);
    must_be_back("processes", [before; 2], [server.holds(); 2]);
    server.end();
}
