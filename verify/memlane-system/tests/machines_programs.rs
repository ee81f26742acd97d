//! Stock programs on two machines that share a region of memory: redis, nginx, PostgreSQL and iperf3. What arrives has the same
//! hash as without memlane, and goes by the lane.
//!
//! Needs root for the namespaces that stand in for machines, and CAP_BPF and CAP_PERFMON for the agents.

use std::fs::File;
use std::time::Duration;

use memlane_system::containers::{Between, Container, Machines};
use memlane_system::real::http::{self, Nginx, Site, curl};
use memlane_system::real::iperf3::bytes_of;
use memlane_system::real::kv::Redis;
use memlane_system::real::postgres::{Cluster, Postgres};
use memlane_system::real::{Reason, SHORT_LIVED, Stage, Story, blob, free_port, sha256_of_file};

/// A connection that is over before both of its ends have asked their agents, or that comes when all lanes of the two
/// processes are taken.
const OVER_SOON: &[Reason] = &[Reason::NO_MATCH, Reason::NOT_SAME_HOST];
const SHORT: &[&[Reason]] = &[SHORT_LIVED, OVER_SOON];
/// Bytes of a region.
const REGION: u64 = 256 << 20;

struct Scene {
    story: Story,
    machines: Machines,
}

impl Scene {
    fn new(name: &'static str, between: Between, needs: &[&str]) -> Option<Scene> {
        let story = Story::new(name, needs)?;
        let machines = Machines::new(name, between, REGION)?;
        Some(Scene { story, machines })
    }

    /// The stage as it is on the client's machine, and on the server's.
    fn split(&self, stage: &Stage) -> [Stage; 2] {
        let containers: [Container; 2] = self.machines.containers();
        containers.map(|container| stage.inside(&container))
    }
}

#[test]
fn redis_gives_back_big_values() {
    let needs = &["redis-server", "redis-cli", "redis-benchmark"];
    let Some(scene) = Scene::new("redis-machines", Between::Nat, needs) else {
        return;
    };
    let value = blob(17, 3 << 20);
    let file = scene.story.dir().join("value");
    std::fs::write(&file, &value).expect("value");
    scene.story.in_each_mode(|stage| {
        let [client, server] = scene.split(stage);
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
        redis.finish().must_use_ring(SHORT);
    });
}

#[test]
fn nginx_serves_curl_and_wrk() {
    let needs = &["nginx", "curl", "wrk"];
    let Some(scene) = Scene::new("nginx-machines", Between::Cable, needs) else {
        return;
    };
    let site = Site::new(&scene.story);
    scene.story.in_each_mode(|stage| {
        let [client, server] = scene.split(stage);
        let nginx = Nginx::start(&server, &site);
        let (done, file) = curl(&client, &nginx.url_from(&client, "big.bin"), &[]);
        assert_eq!(sha256_of_file(&file), site.big_hash);
        done.lane.must_use_ring(SHORT);
        let page = nginx.url_from(&client, "page");
        let wrk = http::wrk(&client, &page, &site.root.join("page"), 16, 1);
        wrk.lane.must_use_ring(SHORT);
        nginx.finish().must_use_ring(SHORT);
    });
}

#[test]
fn postgres_counts_all_transactions() {
    let needs = &["postgres", "initdb", "psql", "pgbench"];
    let Some(scene) = Scene::new("postgres-machines", Between::Bridge, needs) else {
        return;
    };
    let cluster = Cluster::with_password(&scene.story);
    scene.story.in_each_mode(|stage| {
        let [client, server] = scene.split(stage);
        let postgres = Postgres::start(&server, &cluster);
        let fill = postgres.pgbench(&client, &["-i", "-s", "1", "-q"]);
        fill.lane.must_use_ring(SHORT);
        let args = ["-c", "4", "-j", "2", "-t", "100", "-n", "-M", "extended"];
        let done = postgres.pgbench(&client, &args);
        let text = done.stdout();
        assert!(text.contains("actually processed: 400/400"), "{text}");
        done.lane.must_use_ring(SHORT);
        postgres.finish();
    });
}

#[test]
fn iperf3_moves_streams_both_ways() {
    let Some(scene) = Scene::new("iperf3-machines", Between::Cable, &["iperf3"]) else {
        return;
    };
    scene.story.in_each_mode(|stage| {
        let [client, server] = scene.split(stage);
        for flags in [&["-P", "4"][..], &["-R"], &["--bidir"]] {
            let port = free_port();
            let mut serve = server.command("iperf3");
            serve.args(["-s", "-1", "-B", server.host().as_str(), "-p"]);
            serve.arg(port.to_string());
            let mut service = server.start("iperf3-server", serve);
            service.wait_listening(port);
            let mut ask = client.command("iperf3");
            ask.args(["-c", client.host().as_str(), "-J", "-t", "1", "-p"]);
            ask.arg(port.to_string()).args(flags);
            let asked = client.start("iperf3-client", ask);
            let done = asked.wait(Duration::from_secs(60)).success();
            let text = done.stdout();
            assert!(bytes_of(&text, "sum_received") > 10 << 20, "{text}");
            done.lane.must_use_ring(SHORT);
            service.wait(Duration::from_secs(60)).success();
        }
    });
}
