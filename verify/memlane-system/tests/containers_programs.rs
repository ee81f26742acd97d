//! Stock programs in different network namespaces, introduced to each other by an agent: redis, nginx, haproxy, PostgreSQL
//! and gRPC. What arrives has the same hash as without memlane, and goes by the lane.
//!
//! Needs root for the namespaces, and CAP_BPF and CAP_PERFMON for the agent.

use std::cell::OnceCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memlane_system::blocks::skip;
use memlane_system::containers::{Agent, Between, Networks};
use memlane_system::real::http::{self, Haproxy, Nginx, SMALL_FILES, Site, curl, curl_all};
use memlane_system::real::kv::Redis;
use memlane_system::real::postgres::{Cluster, Postgres};
use memlane_system::real::{
    LaneReport, Reason, SHORT_LIVED, Stage, Story, blob, counts, free_port, script, sha256_of_file,
};

/// A connection that is over before both of its ends have asked the agent.
const OVER_SOON: &[Reason] = &[Reason::NO_MATCH, Reason::NOT_SAME_HOST];
const SHORT: &[&[Reason]] = &[SHORT_LIVED, OVER_SOON];

/// A story between namespaces.
struct Scene {
    story: Story,
    agent: Agent,
    networks: Networks,
}

impl Scene {
    /// `None`, and a word on standard error, where it cannot be.
    fn new(name: &'static str, between: Between, needs: &[&str]) -> Option<Scene> {
        let story = Story::new(name, needs)?;
        let networks = Networks::new(between).map_err(|why| skip(name, &why));
        let agent = Agent::start(name).map_err(|why| skip(name, &why));
        Some(Scene {
            story,
            agent: agent.ok()?,
            networks: networks.ok()?,
        })
    }

    /// The stage as it is in the client's namespace, and in the server's.
    fn split(&self, stage: &Stage) -> (Stage, Stage) {
        let [client, server] = [
            self.networks.at_client(&self.agent),
            self.networks.at_server(&self.agent),
        ];
        (stage.inside(&client), stage.inside(&server))
    }

    /// The same, by the newer protocol.
    fn split_v6(&self, stage: &Stage) -> (Stage, Stage) {
        let at = self.networks.server_address_v6();
        let [client, server] = [self.networks.client(), self.networks.server()]
            .map(|namespace| self.networks.container(namespace, &self.agent, at));
        (stage.inside(&client), stage.inside(&server))
    }
}

#[test]
fn redis_gives_back_big_values_behind_nat() {
    let needs = &["redis-server", "redis-cli", "redis-benchmark"];
    let Some(scene) = Scene::new("redis-behind-nat", Between::Nat, needs) else {
        return;
    };
    let value = blob(13, 3 << 20);
    let file = scene.story.dir().join("value");
    std::fs::write(&file, &value).expect("value");
    scene.story.in_each_mode(|stage| {
        let (client, server) = scene.split(stage);
        let redis = Redis::start(&server);
        let mut set = redis.cli(&client, &["-x", "SET", "value"]);
        set.stdin(File::open(&file).expect("value"));
        let done = client.run("redis-cli", set, Duration::from_secs(60));
        assert_eq!(done.stdout(), "OK\n");

        let get = redis.cli(&client, &["--raw", "-r", "20", "GET", "value"]);
        let done = client.run("redis-cli", get, Duration::from_secs(60));
        let got = std::fs::read(&done.out).expect("output");
        assert_eq!(got.len(), 20 * (value.len() + 1));
        for (n, part) in got.chunks(value.len() + 1).enumerate() {
            assert!(part[..value.len()] == value, "copy {n} differs");
        }
        done.lane.must_use_ring(SHORT);

        let args = [
            "-t", "set,get", "-d", "100000", "-c", "8", "-n", "4000", "-r", "50",
        ];
        redis.benchmark(&client, &args).lane.must_use_ring(SHORT);
        assert_eq!(redis.ask(&client, &["STRLEN", "value"]), "3145728");
        redis.finish().must_use_ring(SHORT);
    });
}

#[test]
fn nginx_serves_curl_and_wrk_by_the_newer_protocol() {
    let needs = &["nginx", "curl", "wrk"];
    let Some(scene) = Scene::new("nginx-v6", Between::Cable, needs) else {
        return;
    };
    let site = Site::new(&scene.story);
    scene.story.in_each_mode(|stage| {
        let (client, server) = scene.split_v6(stage);
        let nginx = Nginx::start(&server, &site);
        fetch_big(&client, &nginx.url_from(&client, "big.bin"), &site);
        let page = nginx.url_from(&client, "page");
        let wrk = http::wrk(&client, &page, &site.root.join("page"), 16, 1);
        wrk.lane.must_use_ring(SHORT);
        nginx.finish().must_use_ring(SHORT);
    });
}

fn fetch_big(client: &Stage, url: &str, site: &Site) {
    let (done, file) = curl(client, url, &[]);
    assert_eq!(sha256_of_file(&file), site.big_hash, "{url}");
    done.lane.must_use_ring(SHORT);
}

#[test]
fn both_hops_of_a_chain_of_three_namespaces_take_the_lane() {
    let needs = &["nginx", "haproxy", "curl", "wrk"];
    let Some(scene) = Scene::new("three-hops", Between::Proxy, needs) else {
        return;
    };
    let site = Site::new(&scene.story);
    let networks = &scene.networks;
    let front = networks.container(networks.middle(), &scene.agent, networks.reached_at());
    scene.story.in_each_mode(|stage| {
        let (client, server) = scene.split(stage);
        let nginx = Nginx::start(&server, &site);
        let haproxy = Haproxy::before(&stage.inside(&front), server.address(), nginx.port);
        fetch_big(&client, &haproxy.url_from(&client, "big.bin"), &site);

        let names: Vec<String> = (0..SMALL_FILES).map(|n| format!("small/{n}")).collect();
        let urls: Vec<String> = names
            .iter()
            .map(|name| haproxy.url_from(&client, name))
            .collect();
        let (done, files) = curl_all(&client, &urls, &[]);
        for (name, file) in names.iter().zip(&files) {
            let got = std::fs::read(file).expect("fetched");
            assert!(got == site.bytes(name), "{name} differs");
        }
        done.lane.must_use_ring(SHORT);

        let page = haproxy.url_from(&client, "page");
        let wrk = http::wrk(&client, &page, &site.root.join("page"), 16, 1);
        wrk.lane.must_use_ring(SHORT);
        // nginx has no other clients than haproxy: what it says is the second hop.
        haproxy.finish().must_use_ring(SHORT);
        nginx.finish().must_use_ring(SHORT);
    });
}

#[test]
fn postgres_takes_and_dumps_tables_over_a_bridge_with_a_password() {
    let needs = &["postgres", "initdb", "psql", "pgbench", "pg_dump"];
    let Some(scene) = Scene::new("postgres-bridge", Between::Bridge, needs) else {
        return;
    };
    let cluster = Cluster::with_password(&scene.story);
    let dumped = OnceCell::new();
    scene.story.in_each_mode(|stage| {
        let (client, server) = scene.split(stage);
        let postgres = Postgres::start(&server, &cluster);
        must_be_asked_for_a_password(&client, &postgres);
        let fill = postgres.pgbench(&client, &["-i", "-s", "1", "-q"]);
        fill.lane.must_use_ring(SHORT);
        let args = ["-c", "4", "-j", "2", "-t", "100", "-n", "-M", "extended"];
        let done = postgres.pgbench(&client, &args);
        let text = done.stdout();
        assert!(text.contains("actually processed: 400/400"), "{text}");
        assert!(text.contains("failed transactions: 0 "), "{text}");
        done.lane.must_use_ring(SHORT);

        let make = "drop table if exists t; create table t as \
                    select n, repeat(md5(n::text), 40) as text from generate_series(1, 20000) n";
        postgres.psql(&client, &["-c", make]);
        let args = ["-t", "t", "--no-owner"];
        let mut dump = postgres.client(&client, "pg_dump", &args);
        dump.arg("postgres");
        let done = client.run("pg_dump", dump, Duration::from_secs(60));
        let hash = hash_of_rows(&done.out);
        assert_eq!(dumped.get_or_init(|| hash.clone()), &hash);
        done.lane.must_use_ring(SHORT);
        finish(postgres).must_use_ring(SHORT);
    });
}

fn must_be_asked_for_a_password(client: &Stage, postgres: &Postgres) {
    let args = ["-X", "-w", "-d", "postgres", "-c", "select 1"];
    let mut command = postgres.client(client, "psql", &args);
    command.env_remove("PGPASSWORD");
    let refused = client.start("psql", command).wait(Duration::from_secs(20));
    let why = refused.stderr();
    assert!(
        !refused.status.success() && why.contains("no password"),
        "{why}"
    );
}

/// SHA-256 of a dump without its comments and its own settings, which may tell the time.
fn hash_of_rows(dump: &Path) -> String {
    let text = std::fs::read_to_string(dump).expect("a dump");
    let rows = text.lines().filter(|line| line.contains('\t'));
    let rows: Vec<&str> = rows.collect();
    assert_eq!(rows.len(), 20_000);
    let file = dump.with_extension("rows");
    std::fs::write(&file, rows.join("\n")).expect("rows");
    sha256_of_file(&file)
}

fn finish(postgres: Postgres) -> LaneReport {
    // Backends end a moment after their clients.
    std::thread::sleep(Duration::from_millis(100));
    postgres.finish()
}

/// A Python that has gRPC.
fn python_with_grpc() -> Option<PathBuf> {
    let known = ["/usr/bin/python3", "python3"].map(PathBuf::from);
    let has = |python: &PathBuf| {
        let mut command = std::process::Command::new(python);
        let said = command.args(["-c", "import grpc"]).output();
        said.is_ok_and(|said| said.status.success())
    };
    known.into_iter().find(has)
}

#[test]
fn grpc_carries_the_same_messages() {
    let Some(python) = python_with_grpc() else {
        return skip("grpc", "no gRPC for Python: apt-get install python3-grpcio");
    };
    let Some(scene) = Scene::new("grpc", Between::Nat, &[]) else {
        return;
    };
    let heard = OnceCell::new();
    scene.story.in_each_mode(|stage| {
        let (client, server) = scene.split(stage);
        let port = free_port();
        let command = |at: &Stage, role: &str| {
            let mut command = at.command(&python);
            command.arg("-u").arg(script("grpc_hash.py")).arg(role);
            command.arg(format!("{}:{port}", at.host()));
            command
        };
        let mut service = server.start("grpc-server", command(&server, "server"));
        service.wait_listening(port);
        let limit = Duration::from_secs(90);
        let done = client.run("grpc-client", command(&client, "client"), limit);
        let text = done.stdout();
        assert_eq!(counts(&text)["calls"], 32 + 64, "{text}");
        assert_eq!(heard.get_or_init(|| text.clone()), &text);
        done.lane.must_use_ring(&[SHORT_LIVED]);
        service.lane().must_use_ring(&[SHORT_LIVED]);
        service.kill();
        service.wait(Duration::from_secs(20));
    });
}
