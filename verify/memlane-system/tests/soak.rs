//! Long-lived servers, and what clients do to them in a seeded mix: stock programs and hard cases, connections by the
//! thousand, `kill -9` on either side. After each round the servers must hold no more than before.
//!
//! `SOAK_SECONDS` (15 by default, so that every test run includes a little; 600 in `./dev soak`) and `SOAK_SEED`
//! select how long and which mix.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use memlane_system::cases::compare_one;
use memlane_system::crowd::{self, Program};
use memlane_system::harness::plain_only;
use memlane_system::real::held::{self, Held};
use memlane_system::real::http::{Nginx, Site, curl, wrk};
use memlane_system::real::iperf3::{bytes_of, iperf3};
use memlane_system::real::kv::Redis;
use memlane_system::real::lang::{EchoServer, Load, python_echo};
use memlane_system::real::{
    Mode, Proc, Reason, SHORT_LIVED, Stage, Story, counts, sha256_of_bytes, sha256_of_file,
};

const NEEDS: &[&str] = &[
    "redis-server",
    "redis-cli",
    "nginx",
    "wrk",
    "curl",
    "iperf3",
    "python3",
];

/// The families of hard cases that may not differ from plain TCP in any line.
const FAMILIES: [&str; 9] = [
    "bulk", "closing", "connect", "epoll", "flags", "options", "signals", "threads", "vectors",
];

/// A mix that has bulk streams, forks, kills of either side and of a worker, hard cases, web pages and short connections
/// by the thousand in its first 15 s.
const SMOKE_SEED: u64 = 7847;

/// What may be said of connections whose other end was killed in mid-handshake.
const KILLED: &[Reason] = &[
    Reason::TIMEOUT_CL,
    Reason::TIMEOUT_AL,
    Reason::PEER_TCP_ONLY,
];

/// What may be said of ends that close soon: their socket has gone by the time
/// that the kernel is asked for it.
const GONE: &[Reason] = &[Reason::NOT_SAME_HOST, Reason::PEER_DECLINED];

/// Longest that a program may take to end after its peer was killed.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

fn note(text: &str) {
    // Not eprintln!: the test runner hides what that prints.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}")),
        Err(_) => default,
    }
}

/// splitmix64: the mix depends on the seed only.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn within(&mut self, least: u32, most: u32) -> u32 {
        let span = u64::from(most - least) + 1;
        least + u32::try_from(self.next() % span).expect("below 2^32")
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.within(0, u32::try_from(list.len() - 1).expect("short")) as usize]
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let other = self.within(0, u32::try_from(last).expect("short"));
            list.swap(last, other as usize);
        }
    }
}

// ---- the servers that stay ----------------------------------------------------

/// The servers of one mode.
struct Servers<'a> {
    site: &'a Site,
    redis: Redis,
    nginx: Nginx,
    echo: EchoServer,
    threads: EchoServer,
    /// For connections by the thousand.
    crowd: Program,
    crowd_port: String,
    /// What each process held when it was quiet for the first time.
    before: BTreeMap<u32, Held>,
}

impl<'a> Servers<'a> {
    fn start(story: &Story, site: &'a Site, mode: Mode) -> Servers<'a> {
        let stage = story.stage(mode, &format!("{}-servers", mode.name()));
        let (crowd, crowd_port) = crowd::serve(mode);
        let mut servers = Servers {
            crowd,
            crowd_port,
            redis: Redis::start(&stage),
            nginx: Nginx::start(&stage, site),
            echo: EchoServer::python(&stage, "asyncio", &[]),
            threads: EchoServer::python(&stage, "thread", &[]),
            site,
            before: BTreeMap::new(),
        };
        servers.greet(&stage);
        servers.greet(&stage);
        servers.before = held::by_each(&servers.pids());
        servers
    }

    fn procs(&self) -> [&Proc; 4] {
        let (redis, nginx) = (&self.redis.proc, &self.nginx.proc);
        [redis, nginx, &self.echo.proc, &self.threads.proc]
    }

    fn pids(&self) -> Vec<u32> {
        let trees = self.procs().into_iter().flat_map(Proc::tree);
        trees.chain([self.crowd.pid()]).collect()
    }

    /// A new client of each: a server forgets the dead when it meets the living.
    fn greet(&self, stage: &Stage) {
        let load = Load {
            connections: 4,
            rounds: 24,
            most: 2000,
        };
        for server in [&self.echo, &self.threads] {
            python_echo(stage, server.port, load, &[]);
        }
        let mut caller = Program::start(stage.mode, &["call", &self.crowd_port]);
        caller.does("open 3");
        caller.does("talk epoll 0 3 200 40");
        caller.end();
        let get = self.redis.cli(stage, &["-r", "40", "PING"]);
        stage.run("redis-cli", get, Duration::from_secs(60));
        // Enough connections that each worker gets some.
        wrk(
            stage,
            &self.nginx.url("page"),
            &self.site.root.join("page"),
            16,
            1,
        );
    }

    /// They must come to hold what they held at first.
    fn must_hold_no_more(&self, stage: &Stage) {
        const GREETINGS: u32 = 15;
        let mut grown = String::new();
        for greeting in 0..=GREETINGS {
            let now = held::by_each(&self.pids());
            assert!(
                self.before.keys().all(|pid| now.contains_key(pid)),
                "a server process died: {:?} of {:?}",
                now.keys(),
                self.before.keys()
            );
            grown = held::grown(&self.before, &now);
            if grown.is_empty() {
                return;
            }
            if greeting > 0 {
                std::thread::sleep(Duration::from_millis(200));
            }
            self.greet(stage);
        }
        panic!("the servers do not come back to what they held:\n{grown}");
    }

    /// Their own pages must say that all went well. Only of the whole run is it
    /// demanded that the lane was used: a busy machine may keep one client parked.
    fn finish(self) {
        for (pid, held) in held::by_each(&self.pids()) {
            note(&format!(
                "soak: process {pid} holds {held:?}, at first {:?}",
                self.before[&pid]
            ));
        }
        let allowed: &[&[Reason]] = &[SHORT_LIVED, KILLED, GONE];
        self.redis.finish().must_use_ring(allowed);
        self.nginx.finish().must_use_ring(allowed);
        self.echo.finish().must_use_ring(allowed);
        self.threads.finish().must_use_ring(allowed);
        self.crowd.lane().must_explain(allowed);
        self.crowd.end();
    }
}

// ---- what happens in a round --------------------------------------------------

/// One round: where it plays, and what it may use.
struct Round<'a> {
    stage: Stage,
    servers: &'a Servers<'a>,
    random: Random,
}

type Act = fn(&mut Round<'_>) -> String;

/// By name, for the log. Each is played once before any is played again.
const ACTS: [(&str, Act); 11] = [
    ("redis", |round| round.redis()),
    ("web", |round| round.web()),
    ("echo", |round| round.echo()),
    ("churn", |round| round.churn()),
    ("crowd", |round| round.crowd()),
    ("forks", |round| round.forks()),
    ("iperf3", |round| round.iperf3()),
    ("cases", |round| round.cases()),
    ("kill a client", |round| round.kill_a_client()),
    ("kill a server", |round| round.kill_a_server()),
    ("kill a worker", |round| round.kill_a_worker()),
];

impl Round<'_> {
    /// Pipelines, transactions, messages and big values, each answer compared.
    fn redis(&mut self) -> String {
        let redis = &self.servers.redis;
        assert_eq!(redis.ask(&self.stage, &["FLUSHALL"]), "OK");
        let mut command = self.stage.python("redis_mixed.py");
        command.args([&redis.port.to_string(), "1"]);
        let done = self
            .stage
            .run("redis_mixed", command, Duration::from_secs(60));
        done.lane.must_explain(&[SHORT_LIVED, GONE]);
        done.stdout().trim().to_owned()
    }

    /// wrk compares each body; curl fetches what does not fit into a ring.
    fn web(&mut self) -> String {
        let (nginx, site) = (&self.servers.nginx, self.servers.site);
        let path = self
            .random
            .of(&["page", "mid.bin", "small/77", "small/199"]);
        let connections = self.random.of(&[4, 16, 64]);
        let file = site.root.join(path);
        let wrk = wrk(&self.stage, &nginx.url(path), &file, connections, 1);
        wrk.lane.must_explain(&[SHORT_LIVED, GONE]);
        let big = self.random.of(&["big.bin", "copied/big.bin"]);
        let (done, file) = curl(&self.stage, &nginx.url(big), &[]);
        assert_eq!(sha256_of_file(&file), site.big_hash);
        done.lane.must_explain(&[SHORT_LIVED, GONE]);
        format!("{path} × {connections}: {} answers", wrk.checked)
    }

    fn echo(&mut self) -> String {
        let server = match self.random.within(0, 1) {
            0 => &self.servers.echo,
            _ => &self.servers.threads,
        };
        let load = Load {
            connections: self.random.within(1, 60),
            rounds: self.random.within(20, 40),
            most: self.random.of(&[100, 5000, 100_000]),
        };
        let done = python_echo(&self.stage, server.port, load, &[]);
        done.lane.must_explain(&[SHORT_LIVED, GONE]);
        done.stdout().trim().to_owned()
    }

    /// Connections that open and close, two thousand of them.
    fn churn(&mut self) -> String {
        const CONNECTIONS: u32 = 2000;
        let mut command = self.stage.python("churn.py");
        let at_once = self.random.of(&[1, 8, 100]);
        let seed = self.random.within(0, 1 << 30);
        command.args(
            [
                u32::from(self.servers.echo.port),
                CONNECTIONS,
                at_once,
                seed,
            ]
            .map(|number| number.to_string()),
        );
        let done = self.stage.run("churn", command, Duration::from_secs(100));
        let text = done.stdout();
        assert_eq!(counts(&text)["opened"], u64::from(CONNECTIONS), "{text}");
        done.lane.must_explain(&[SHORT_LIVED, GONE]);
        format!("{at_once} at once: {}", text.trim())
    }

    /// Some thousand connections, all at once and a few among them, by each way to wait;
    /// then others that come and go beside them.
    fn crowd(&mut self) -> String {
        let mut caller = Program::start(self.stage.mode, &["call", &self.servers.crowd_port]);
        let many = self.random.within(200, 3000);
        caller.does(&format!("open {many}"));
        for _ in 0..4 {
            let (way, size) = (
                self.random.of(&["epoll", "poll"]),
                self.random.within(1, 3000),
            );
            let few = self.random.within(0, many - 16);
            caller.does(&format!("talk {way} 0 {many} {size} 2"));
            caller.does(&format!("talk {way} {few} 16 {size} 50"));
        }
        let at_once = self.random.of(&[1, 20, 300]);
        caller.does(&format!("short 1000 {at_once} 3"));
        caller.does(&format!("short {at_once} {at_once} 20"));
        let held = caller.holds();
        caller.end();
        format!("{many} connections, {at_once} at once, {held:?}")
    }

    /// Children beside connections that go on; what the parent holds does not grow.
    fn forks(&mut self) -> String {
        let mut caller = Program::start(self.stage.mode, &["call", &self.servers.crowd_port]);
        caller.does("open 30");
        caller.does("talk epoll 0 30 200 20");
        let how = self.random.of(&["exit", "exec", "inherit", "use"]);
        caller.does(&format!("fork {how} 2"));
        let before = BTreeMap::from([(caller.pid(), caller.holds())]);
        caller.does(&format!("fork {how} 30"));
        let now = BTreeMap::from([(caller.pid(), caller.holds())]);
        assert_eq!(held::grown(&before, &now), "", "after {how}");
        caller.end();
        how.to_owned()
    }

    fn iperf3(&mut self) -> String {
        let ways: [&[&str]; 4] = [&[], &["-R"], &["-P", "4"], &["-Z"]];
        let way = self.random.of(&ways);
        let args = [&["-t", "1"], way].concat();
        let (client, server) = iperf3(&self.stage, &args, &[]);
        let json = client.stdout();
        assert!(!json.contains("\"error\""), "{json}");
        client.lane.must_explain(&[SHORT_LIVED, GONE]);
        server.lane.must_explain(&[SHORT_LIVED, GONE]);
        format!("{way:?}: {} bytes", bytes_of(&json, "sum_received"))
    }

    fn cases(&mut self) -> String {
        let one = |_| {
            let (family, pick) = (self.random.of(&FAMILIES), self.random.next());
            compare_one(family, pick, self.stage.mode)
        };
        (0..4).map(one).collect::<Vec<_>>().join(", ")
    }

    /// Clients that are not to notice what happens to others.
    fn witness(&self) -> Proc {
        let load = Load {
            connections: 10,
            rounds: 100,
            most: 60_000,
        };
        let mut command = self.stage.python("echo_client.py");
        command
            .arg(self.servers.echo.port.to_string())
            .args(load.args());
        self.stage.start("witness", command)
    }

    fn must_have_seen_nothing(&self, witness: Proc) {
        let done = witness.wait(Duration::from_secs(90)).success();
        assert_eq!(counts(&done.stdout())["rounds"], 1000);
        done.lane.must_explain(&[SHORT_LIVED, GONE]);
    }

    /// A client that fetches files from nginx until a file tells it to stop.
    fn hammer(&self, nginx: &Nginx) -> Proc {
        let mut command = self.stage.python("hammer.py");
        command
            .args([&nginx.port.to_string(), "60", "4"])
            .arg(self.stage.dir().join("stop"));
        for name in ["page", "mid.bin", "small/199"] {
            let hash = sha256_of_bytes(&self.servers.site.bytes(name));
            command.arg(format!("{name}={hash}"));
        }
        self.stage.start("hammer", command)
    }

    /// One that would go on for much longer than it is let.
    fn endless_echo(&self, port: u16) -> Proc {
        let mut command = self.stage.python("echo_client.py");
        command.args([&port.to_string(), "20", "1000000", "40000"]);
        self.stage.start("endless-echo", command)
    }

    fn endless_redis(&self, redis: &Redis) -> Proc {
        assert_eq!(redis.ask(&self.stage, &["FLUSHALL"]), "OK");
        let mut command = self.stage.python("redis_mixed.py");
        command.args([&redis.port.to_string(), "60"]);
        self.stage.start("endless-redis", command)
    }

    /// A moment in which anything may be under way.
    fn a_moment(&mut self) -> Duration {
        let moment = Duration::from_millis(self.random.within(150, 900).into());
        std::thread::sleep(moment);
        moment
    }

    /// The servers go on, and so do the other clients.
    fn kill_a_client(&mut self) -> String {
        let witness = self.witness();
        let which = self.random.within(0, 3);
        let mut victim = match which {
            0 => self.hammer(&self.servers.nginx),
            1 => self.endless_redis(&self.servers.redis),
            2 => self.endless_echo(self.servers.echo.port),
            _ => self.endless_echo(self.servers.threads.port),
        };
        let moment = self.a_moment();
        assert!(victim.running(), "it ended before it was killed");
        victim.kill();
        let done = victim.wait(ENDS_WITHIN);
        assert!(!done.status.success(), "it was killed");
        done.lane.must_explain(&[SHORT_LIVED, GONE]);
        self.must_have_seen_nothing(witness);
        format!("{} after {moment:.0?}", done.name)
    }

    /// Its clients notice and end; other servers and their clients go on.
    fn kill_a_server(&mut self) -> String {
        let witness = self.witness();
        let (server, client) = match self.random.within(0, 2) {
            0 => {
                let redis = Redis::start(&self.stage);
                let client = self.endless_redis(&redis);
                (redis.proc, client)
            }
            kind => {
                let kind = if kind == 1 { "asyncio" } else { "thread" };
                let server = EchoServer::python(&self.stage, kind, &[]);
                let client = self.endless_echo(server.port);
                (server.proc, client)
            }
        };
        let moment = self.a_moment();
        server.kill();
        let done = server.wait(ENDS_WITHIN);
        done.lane.must_explain(&[SHORT_LIVED, GONE]);
        let client = client.wait(ENDS_WITHIN);
        assert!(!client.status.success(), "it did not notice the kill");
        client.lane.must_explain(&[SHORT_LIVED, KILLED, GONE]);
        self.must_have_seen_nothing(witness);
        format!("{} under {} after {moment:.0?}", done.name, client.name)
    }

    /// No answer of the nginx whose workers are killed is wrong.
    fn kill_a_worker(&mut self) -> String {
        let witness = self.witness();
        let mut nginx = Nginx::start(&self.stage, self.servers.site);
        let client = self.hammer(&nginx);
        for _ in 0..2 {
            self.a_moment();
            nginx.kill_a_worker();
        }
        self.a_moment();
        std::fs::write(self.stage.dir().join("stop"), "").expect("stop file");
        let done = client.wait(Duration::from_secs(60)).success();
        let text = done.stdout();
        let counts = counts(&text);
        for never in ["wrong", "failed", "stalled"] {
            assert_eq!(counts[never], 0, "{text}");
        }
        assert!(counts["ok"] > 10, "{text}");
        done.lane.must_explain(&[SHORT_LIVED, KILLED, GONE]);
        nginx.finish().must_explain(&[SHORT_LIVED, KILLED, GONE]);
        self.must_have_seen_nothing(witness);
        text.trim().to_owned()
    }
}

// ---- the run ------------------------------------------------------------------

/// Says, when dropped by a panic, which round it was and how to have it again.
struct Failing(String);

impl Drop for Failing {
    fn drop(&mut self) {
        note(&format!("===== soak fails: {} =====", self.0));
    }
}

#[test]
fn servers_serve_on_through_any_mix_and_hold_no_more_than_before() {
    let Some(story) = Story::new("soak", NEEDS) else {
        return;
    };
    let (seconds, seed) = (number("SOAK_SECONDS", 15), number("SOAK_SEED", SMOKE_SEED));
    note(&format!("soak: SOAK_SECONDS={seconds} SOAK_SEED={seed}"));
    let modes: &[Mode] = match plain_only() {
        true => &[Mode::Plain],
        false => &Mode::UNDER_MEMLANE,
    };
    let site = Site::new(&story);
    let mut servers = BTreeMap::new();
    let mut random = Random(seed);
    let begin = Instant::now();
    let mut deck: Vec<(&str, Act)> = Vec::new();
    let mut round = 0;
    while round == 0 || begin.elapsed() < Duration::from_secs(seconds) {
        round += 1;
        if deck.is_empty() {
            deck = ACTS.to_vec();
            random.shuffle(&mut deck);
        }
        let (name, act) = deck.pop().expect("just filled");
        let (mode, own_seed) = (random.of(modes), random.next());
        let what = format!("round {round}, {name}, {}", mode.name());
        let failing = Failing(format!("{what}, SOAK_SEED={seed}"));
        let servers = servers
            .entry(mode.name())
            .or_insert_with(|| Servers::start(&story, &site, mode));
        let start = Instant::now();
        let mut played = Round {
            stage: story.stage(mode, &format!("round-{round}")),
            servers,
            random: Random(own_seed),
        };
        let did = act(&mut played);
        servers.must_hold_no_more(&played.stage);
        let (at, took) = (begin.elapsed().as_secs(), start.elapsed());
        note(&format!("soak {at:4} s, {what}, {took:.1?}: {did}"));
        // What a round wrote is of interest only if it failed.
        std::fs::remove_dir_all(played.stage.dir()).expect("the round's files");
        std::mem::forget(failing);
    }
    for (_, servers) in servers {
        servers.finish();
    }
    note(&format!("soak: {round} rounds, seed {seed}"));
}
