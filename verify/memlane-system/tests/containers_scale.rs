//! As many containers as a host has: two hundred network namespaces behind one bridge, each with a client of one server, and
//! one agent. `SCALE=long`: four hundred.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for the agent.

use std::time::{Duration, Instant};

use memlane_system::blocks::skip;
use memlane_system::containers::{Agent, Container, Many};
use memlane_system::crowd::{Program, serve_in};
use memlane_system::harness::{Mode, plain_only};
use memlane_system::real::held::Held;

/// Network namespaces with a client. Each costs two of the 1,024 neighbours that Linux knows, in all namespaces together,
/// unless an administrator allows more (net.ipv4.neigh.default.gc_thresh3).
fn clients() -> usize {
    match std::env::var("SCALE").as_deref() {
        Ok("long") => 400,
        _ => 200,
    }
}

/// Longest that all of them may take, from the first question to the last lane.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the agent has taken: kilobytes of its own, descriptors, ticks of 10 ms of CPU.
#[derive(Clone, Copy, Debug)]
struct Taken {
    kilobytes: u64,
    descriptors: usize,
    ticks: u64,
}

fn taken_by(agent: &Agent) -> Taken {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/{}/{name}", agent.pid()));
        text.expect("it lives")
    };
    let status = read("status");
    let anonymous = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|line| line.split_whitespace().next()?.parse().ok());
    let stat = read("stat");
    let (_, words) = stat.rsplit_once(") ").expect("a state");
    let words: Vec<u64> = words.split(' ').filter_map(|w| w.parse().ok()).collect();
    Taken {
        kilobytes: anonymous.expect("a number"),
        descriptors: Held::by(agent.pid()).expect("it lives").fds,
        ticks: words[10] + words[11],
    }
}

/// A program that calls the server, in a namespace.
fn caller(many: &Many, n: usize, domain: &str, port: &str) -> Program {
    Program::start_in(&container(many, n, domain), Mode::Eager, &["call", port])
}

/// A namespace, with the server at the address of the first one.
fn container(many: &Many, n: usize, domain: &str) -> Container {
    Container {
        namespace: many.namespace(n),
        domain: domain.to_owned(),
        address: many.address(0),
    }
}

#[test]
fn two_hundred_namespaces_get_a_lane_each_and_leave_nothing_behind() {
    if plain_only() {
        return;
    }
    let count = clients();
    let many = Many::new(count + 1).map_err(|why| skip("two-hundred", &why));
    let agent = Agent::start("two-hundred").map_err(|why| skip("two-hundred", &why));
    let (Ok(many), Ok(agent)) = (many, agent) else {
        return;
    };
    let domain = agent.directory();
    let (server, port) = serve_in(&container(&many, 0, &domain), Mode::Eager);

    let mut first = caller(&many, 1, &domain, &port);
    talk_until_on_lane(std::slice::from_mut(&mut first));
    first.end();
    std::thread::sleep(Duration::from_millis(100));
    let (before, held) = (taken_by(&agent), server.holds());

    let all = (1..=count).map(|n| caller(&many, n, &domain, &port));
    let mut all: Vec<Program> = all.collect();
    for one in &mut all {
        one.does("open 1");
    }
    let begin = Instant::now();
    talk_until_on_lane(&mut all);
    println!("{count} lanes in {:.1?}", begin.elapsed());
    // The accepting side opens one call later.
    while server.on_lane() < count {
        assert!(begin.elapsed() < PATIENCE, "{}", server.lane());
        for one in &mut all {
            one.does("talk epoll 0 1 300 1");
        }
    }
    let during = taken_by(&agent);
    // A connection to each process, and what says which process it is.
    assert!(
        during.descriptors <= before.descriptors + 2 * count,
        "{during:?}"
    );
    for one in &mut all {
        one.does("talk epoll 0 1 20000 3");
    }

    // They go at once; and one more comes.
    for one in all {
        one.end();
    }
    std::thread::sleep(Duration::from_millis(1200));
    let mut last = caller(&many, 1, &domain, &port);
    talk_until_on_lane(std::slice::from_mut(&mut last));
    last.end();
    let after = taken_by(&agent);
    println!("the agent: {before:?}, {during:?}, {after:?}");
    assert!(after.descriptors <= before.descriptors + 4, "{after:?}");
    assert!(after.kilobytes <= before.kilobytes + 2048, "{after:?}");
    let ticks = usize::try_from(after.ticks - before.ticks).expect("small");
    assert!(
        ticks <= 20 + count / 5,
        "more than 2 ms for each: {ticks}0 ms"
    );
    let now = server.holds();
    assert!(now.is_back_to(&held), "{held:?} has become {now:?}");
    server.end();
    let idle = taken_by(&agent).ticks;
    std::thread::sleep(Duration::from_millis(500));
    assert!(taken_by(&agent).ticks <= idle + 1, "it has nothing to do");
}

/// Each talks until it has its lane.
fn talk_until_on_lane(all: &mut [Program]) {
    let end = Instant::now() + PATIENCE;
    while all.iter().any(|one| one.on_lane() == 0) {
        for one in all.iter_mut().filter(|one| one.on_lane() == 0) {
            one.does("open 1");
            one.does("talk epoll 0 1 300 10");
            assert!(Instant::now() < end, "{}", one.lane());
        }
    }
}
