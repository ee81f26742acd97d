//! A container is killed, paused or loses its network, or the agent has no time: programs in other containers see what plain
//! TCP would show them, lose not a byte, and keep nothing of what is gone.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for the agent.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use memlane_system::blocks::skip;
use memlane_system::containers::{Between, Cgroup, Container, Hierarchy, scene};
use memlane_system::harness::{Mode, command};
use memlane_system::pair::{PATIENCE, Pair};
use memlane_system::real::held::Held;
use memlane_system::real::lane::LaneWatch;
use memlane_system::real::{Reason, program, script};

// --- killed -----------------------------------------------------------------

/// `outlive.py server`, in the server's namespace. Killed when dropped.
struct Survivor {
    child: Child,
    orders: ChildStdin,
    lines: BufReader<ChildStdout>,
    port: String,
    watch: Option<LaneWatch>,
}

impl Survivor {
    fn start(mode: Mode, at: &Container) -> Survivor {
        let mut inner = command(mode, program("python3"));
        inner.arg("-u").arg(script("outlive.py"));
        inner.args(["server", &at.address]);
        let mut command = at.around(&inner, None);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python starts");
        let mut survivor = Survivor {
            orders: child.stdin.take().expect("piped"),
            lines: BufReader::new(child.stdout.take().expect("piped")),
            watch: (mode != Mode::Plain).then(|| LaneWatch::start(child.id())),
            port: String::new(),
            child,
        };
        let said = survivor.line();
        survivor.port = said.strip_prefix("port ").expect("a port").to_owned();
        survivor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line);
        assert!(matches!(read, Ok(n) if n > 0), "no answer: {read:?}");
        line.trim().to_owned()
    }

    fn serves(&mut self, what: &str) {
        writeln!(self.orders, "{what}").expect("it takes orders");
    }

    /// Nobody else comes. What it says of the connections, by their numbers: all words after the number.
    fn says(&mut self) -> BTreeMap<i64, BTreeMap<String, i64>> {
        writeln!(self.orders, "over").expect("it takes orders");
        let mut said = BTreeMap::new();
        loop {
            let line = self.line();
            if line == "done" {
                return said;
            }
            let mut words = line.split(' ').skip(1);
            let number = words.next().and_then(|word| word.parse().ok());
            let values = words.filter_map(|word| {
                let (name, value) = word.split_once('=')?;
                Some((name.to_owned(), value.parse().ok()?))
            });
            said.insert(number.expect("a number"), values.collect());
        }
    }

    fn ring_bytes(&self) -> u64 {
        let watch = self.watch.as_ref();
        watch.map_or(0, |watch| {
            watch.report("survivor", Mode::Eager).ring_bytes()
        })
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A container with a pid namespace of its own: three programs with two connections each.
struct Victim {
    child: Child,
    progress: std::fs::File,
}

const PROGRAMS: usize = 3;
const CONNECTIONS: usize = 2 * PROGRAMS;

impl Victim {
    fn start(mode: Mode, at: &Container, port: &str, what: &str) -> Victim {
        let file = PathBuf::from(&at.domain).join("../progress");
        std::fs::write(&file, [0; 8 * CONNECTIONS]).expect("a file");
        let python = format!(
            "{} -u {} client {} {port} {what} {}",
            program("python3").display(),
            script("outlive.py").display(),
            at.address,
            file.display()
        );
        let programs = (0..PROGRAMS).map(|n| format!("{python} {} {} & ", 2 * n, 2 * n + 1));
        let all = programs.collect::<String>() + "wait";
        let mut inner = command(mode, "/bin/sh");
        inner.args(["-c", &all]);
        let own = ["--pid", "--fork", "--kill-child", "--mount-proc"];
        let mut unshare = Command::new("unshare");
        unshare.args(own).arg(inner.get_program());
        unshare.args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => unshare.env(name, value),
                None => unshare.env_remove(name),
            };
        }
        Victim {
            child: at.around(&unshare, None).spawn().expect("unshare starts"),
            progress: std::fs::File::open(&file).expect("just written"),
        }
    }

    /// How many bytes it has sent, or taken, on each connection.
    fn moved(&self) -> [i64; CONNECTIONS] {
        let mut bytes = [0; 8 * CONNECTIONS];
        self.progress.read_exact_at(&mut bytes, 0).expect("a file");
        std::array::from_fn(|n| {
            let word = bytes[8 * n..8 * n + 8].try_into().expect("8 bytes");
            i64::from_le_bytes(word)
        })
    }

    fn wait_until_each_has_moved(&self, bytes: i64) {
        let begin = Instant::now();
        while self.moved().iter().any(|&moved| moved < bytes) {
            let took = begin.elapsed();
            assert!(took < Duration::from_secs(30), "{:?}", self.moved());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// All its processes at once, as the end of a pid namespace's first process is. Returns what it had moved.
    fn kill(mut self) -> [i64; CONNECTIONS] {
        self.child.kill().expect("a child");
        self.child.wait().expect("a child");
        self.moved()
    }
}

/// End of the stream, or a reset?
fn ending(of: &BTreeMap<String, i64>) -> &'static str {
    match of["end"] {
        0 => "end",
        32 | 104 => "reset",
        _ => "other",
    }
}

/// Kills a container in the middle of `what`. Returns how each connection ended for the survivor.
fn killed_while(
    mode: Mode,
    [client, server]: [&Container; 2],
    survivor: &mut Survivor,
    what: &str,
) -> Vec<&'static str> {
    survivor.serves(what);
    let victim = Victim::start(mode, client, &survivor.port, what);
    let far_enough = if what == "idle" { 1 } else { 300_000 };
    victim.wait_until_each_has_moved(far_enough);
    let sent = victim.kill();
    let said = survivor.says();
    assert_eq!(said.len(), CONNECTIONS, "{what}, {mode:?}, {server:?}");
    for (number, said) in &said {
        let reset = said["after"] == 32 || said["after"] == 104;
        assert!(reset, "{what} {number}: {said:?}: nothing ended it");
        let least = match what {
            "take" => sent[usize::try_from(*number).expect("small")] - 1,
            _ => 0,
        };
        let taken = said["taken"];
        assert!(taken >= least, "{what}: {taken} of {least} bytes came");
    }
    said.values().map(ending).collect()
}

#[test]
fn a_container_that_is_killed_is_for_the_others_what_tcp_would_show() {
    let Some((agent, networks)) = scene("killed", Between::Nat) else {
        return;
    };
    let (client, server) = (networks.at_client(&agent), networks.at_server(&agent));
    let places = [&client, &server];
    for what in ["take", "give", "idle"] {
        let [plain, lane] = [Mode::Plain, Mode::Eager].map(|mode| {
            let mut survivor = Survivor::start(mode, &server);
            let ended = killed_while(mode, places, &mut survivor, what);
            let by_ring = survivor.ring_bytes();
            assert!(mode == Mode::Plain || by_ring > 0, "{what}: no lane");
            ended
        });
        assert_eq!(plain, lane, "{what}");
    }
}

#[test]
fn containers_that_are_killed_at_any_time_leave_nothing_behind() {
    let Some((agent, networks)) = scene("killed-early", Between::Nat) else {
        return;
    };
    let (client, server) = (networks.at_client(&agent), networks.at_server(&agent));
    let places = [&client, &server];
    let mut survivor = Survivor::start(Mode::Eager, &server);
    killed_while(Mode::Eager, places, &mut survivor, "take");
    let before = Held::by(survivor.child.id()).expect("it lives");
    for ms in [30, 50, 60, 70, 80, 100, 130] {
        survivor.serves("take");
        let victim = Victim::start(Mode::Eager, &client, &survivor.port, "take");
        std::thread::sleep(Duration::from_millis(ms));
        let sent = victim.kill();
        for (number, said) in survivor.says() {
            let sent = usize::try_from(number).map_or(0, |n| sent[n] - 1);
            assert!(said["taken"] >= sent, "{said:?} of {sent} bytes");
        }
    }
    // What belonged to the dead goes when somebody new comes, a second later.
    std::thread::sleep(Duration::from_millis(1100));
    killed_while(Mode::Eager, places, &mut survivor, "take");
    let after = Held::by(survivor.child.id()).expect("it lives");
    assert!(after.is_back_to(&before), "{before:?} has become {after:?}");
}

// --- paused -----------------------------------------------------------------

/// CPU time of a process, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let (_, words) = stat.rsplit_once(") ").expect("a state");
    let words: Vec<u64> = words.split(' ').filter_map(|w| w.parse().ok()).collect();
    // The state is no number: utime and stime are fields 14 and 15 of the whole line.
    words[10] + words[11]
}

fn freezers(test: &str) -> Vec<Cgroup> {
    let kinds = [Hierarchy::Freezer, Hierarchy::Unified];
    let made = kinds.map(|kind| Cgroup::new(kind).map_err(|why| skip(test, &why)));
    made.into_iter().flatten().collect()
}

#[test]
fn a_container_that_is_paused_goes_on_where_it_was() {
    let Some((agent, networks)) = scene("paused", Between::Nat) else {
        return;
    };
    for freezer in freezers("paused") {
        let mut pair = Pair::in_domain(&networks, &agent.directory());
        pair.open();
        freezer.take(pair.server.pid());
        const BYTES: usize = 64 << 20;
        for round in 1..=2 {
            let (seed, other) = (round * 1000, round * 1000 + 1);
            pair.client.tell(&format!("both {seed} {BYTES} {BYTES}"));
            pair.server.tell(&format!("both {other} {BYTES} {BYTES}"));
            std::thread::sleep(Duration::from_millis(20));
            freezer.freeze();
            std::thread::sleep(Duration::from_millis(50));
            let before = ticks(pair.client.pid());
            std::thread::sleep(Duration::from_millis(600));
            let busy = ticks(pair.client.pid()) - before;
            assert!(busy < 20, "it waits by burning {busy}0 ms of 600 ms");
            freezer.thaw();
            let (client, server) = (pair.client.answer(), pair.server.answer());
            assert_eq!((client.sent, server.sent), (server.taken, client.taken));
        }
        pair.open();
    }
}

#[test]
fn a_container_that_is_paused_while_questions_wait_gets_its_lane_later() {
    let Some((agent, networks)) = scene("paused-early", Between::Nat) else {
        return;
    };
    for freezer in freezers("paused-early") {
        for (exchanges, ms) in [(7, 100), (8, 1300), (9, 100), (11, 100)] {
            let mut pair = Pair::in_domain(&networks, &agent.directory());
            for _ in 0..exchanges {
                pair.exchange();
            }
            freezer.take(pair.server.pid());
            freezer.freeze();
            pair.client.tell("send 77 100");
            std::thread::sleep(Duration::from_millis(ms));
            freezer.thaw();
            let sent = pair.client.answer().sent;
            assert_eq!(pair.server.does("take 100").taken, sent);
            pair.open();
        }
    }
}

// --- without a network ------------------------------------------------------

#[test]
fn a_network_that_is_taken_away_and_given_back_costs_not_a_byte() {
    let Some((agent, networks)) = scene("no-network", Between::Cable) else {
        return;
    };
    let mut pair = Pair::in_domain(&networks, &agent.directory());
    pair.open();
    const BYTES: usize = 16 << 20;
    for seed in [500, 600] {
        pair.client.tell(&format!("both {seed} {BYTES} {BYTES}"));
        pair.server
            .tell(&format!("both {} {BYTES} {BYTES}", seed + 1));
        std::thread::sleep(Duration::from_millis(10));
        networks.pull();
        std::thread::sleep(Duration::from_millis(300));
        networks.plug();
        let (client, server) = (pair.client.answer(), pair.server.answer());
        assert_eq!((client.sent, server.sent), (server.taken, client.taken));
    }
    // Both sleep on TCP when it goes: what is said meanwhile comes when it is back.
    std::thread::sleep(Duration::from_millis(50));
    networks.pull();
    let sent = pair.client.does("send 700 5000").sent;
    networks.plug();
    assert_eq!(pair.server.does("take 5000").taken, sent);
    pair.open();
}

#[test]
fn a_network_that_is_taken_away_while_questions_wait_ends_no_connection() {
    let Some((agent, networks)) = scene("no-network-early", Between::Cable) else {
        return;
    };
    for (exchanges, ms) in [(8, 50), (9, 1200), (10, 50)] {
        let mut pair = Pair::in_domain(&networks, &agent.directory());
        for _ in 0..exchanges {
            pair.exchange();
        }
        networks.pull();
        pair.client.tell("send 77 100");
        std::thread::sleep(Duration::from_millis(ms));
        networks.plug();
        let sent = pair.client.answer().sent;
        assert_eq!(pair.server.does("take 100").taken, sent);
        opens_or_miscounts(&mut pair);
    }
}

/// The lane opens, unless a segment could not leave the host: the kernel counts that twice (decision 0004).
fn opens_or_miscounts(pair: &mut Pair) {
    let begin = Instant::now();
    loop {
        pair.exchange();
        let both = [pair.client.conn(), pair.server.conn()];
        let miscounted = both.iter().flatten().any(|c| c.reason == Reason::COUNTS);
        if miscounted || both.iter().flatten().filter(|c| c.on_lane()).count() == 2 {
            return pair.flood(1 << 20);
        }
        assert!(begin.elapsed() < PATIENCE, "{}", pair.describe());
    }
}

// --- the agent's queue ------------------------------------------------------

#[test]
fn an_agent_whose_queue_is_full_delays_nobody() {
    let Some((agent, networks)) = scene("full-queue", Between::Cable) else {
        return;
    };
    agent.signal("STOP");
    let path = format!("{}/agent.sock", agent.directory());
    let connect = || memlane_sys::sock::unix_seqpacket_to(path.as_bytes());
    let mut waiting = Vec::new();
    let full = loop {
        match connect() {
            Ok(fd) => waiting.push(fd),
            Err(error) => break error,
        }
        assert!(waiting.len() < 5000, "the queue has no end");
    };
    assert_eq!(full, memlane_sys::Errno::AGAIN);
    let mut pair = Pair::in_domain(&networks, &agent.directory());
    let begin = Instant::now();
    for _ in 0..200 {
        pair.exchange();
    }
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(2), "200 exchanges took {took:?}");
    let reasons = pair
        .stay_on_tcp()
        .map(|reasons| reasons.expect("a page")[0]);
    let without_agent = Reason::NOT_SAME_HOST;
    assert_eq!(reasons, [without_agent; 2]);
    // The queue is empty again: the next ones are introduced.
    drop(waiting);
    agent.signal("CONT");
    std::thread::sleep(Duration::from_millis(200));
    Pair::in_domain(&networks, &agent.directory()).open();
}
