//! Programs in Go as others write them, built from their modules: gRPC, go-redis, Caddy, etcd, Prometheus. Each is tested
//! in every linkage of [`Linkage::TESTED`].

use std::cell::RefCell;
use std::process::Command;
use std::time::Duration;

use memlane_system::go::Linkage;
use memlane_system::real::http::{self, Nginx, Site, curl};
use memlane_system::real::kv::Redis;
use memlane_system::real::{
    Done, Proc, Reason, SHORT_LIVED, Stage, Story, counts, fetched, free_port, script,
    wait_listening,
};
use memlane_system::real::{blob, sha256_of_bytes, sha256_of_file, wait_until};

const LIMIT: Duration = Duration::from_secs(90);
/// Of a server that is killed while it is asked.
const KILLED: &[Reason] = &[
    Reason::TIMEOUT_CL,
    Reason::TIMEOUT_AL,
    Reason::NOT_SAME_HOST,
    Reason::PEER_DECLINED,
];

/// `body` in each mode, with programs of each linkage, if they are here.
fn story(name: &str, of_go: &[&str], others: &[&str], body: impl Fn(&Stage, &Story, Linkage)) {
    for linkage in Linkage::TESTED {
        if !linkage.has(of_go) {
            continue;
        }
        if let Some(story) = Story::new(&format!("{name}-{}", linkage.name()), others) {
            story.in_each_mode(|stage| body(stage, &story, *linkage));
        }
    }
}

/// What programs print must be the same in each mode.
#[derive(Default)]
struct Told(RefCell<Vec<(String, String)>>);

impl Told {
    fn same(&self, who: &str, text: String) {
        let mut told = self.0.borrow_mut();
        match told.iter().find(|(known, _)| known == who) {
            Some((_, before)) => assert_eq!(*before, text, "{who} was told otherwise before"),
            None => told.push((who.to_owned(), text)),
        }
    }
}

fn with_args(stage: &Stage, linkage: Linkage, program: &str, args: &[&str]) -> Command {
    let mut command = stage.command(linkage.program(program));
    command.args(args);
    command
}

/// A gRPC server in Go or Python, and where it listens.
fn grpc_server(stage: &Stage, mut command: Command) -> (Proc, String) {
    let port = free_port();
    let at = format!("127.0.0.1:{port}");
    command.arg(&at);
    let server = stage.start("grpc-server", command);
    wait_listening(port, "the gRPC server");
    (server, at)
}

fn grpc_client(stage: &Stage, mut command: Command, at: &str) -> Done {
    command.arg(at);
    let done = stage.run("grpc-client", command, LIMIT);
    done.lane.must_use_ring_for(50_000_000, &[SHORT_LIVED]);
    done
}

/// 8 sizes up to 4 MiB, four times: in calls, and on a stream that brings each message twice.
const CALLS: u64 = 32 + 64;

#[test]
fn grpc_of_go_calls_streams_gives_up_and_goes_on() {
    let told = Told::default();
    story("go-grpc", &["grpc"], &[], |stage, _, linkage| {
        let start = |args: &[&str]| with_args(stage, linkage, "grpc", args);
        let (server, at) = grpc_server(stage, start(&["serve"]));
        let done = grpc_client(stage, start(&["call"]), &at);
        assert_eq!(counts(&done.stdout())["calls"], CALLS);
        told.same("call", done.stdout());
        let done = grpc_client(stage, start(&["ends"]), &at);
        assert_eq!(done.stdout(), "done\n");
        server.lane().must_use_ring_for(100_000_000, &[SHORT_LIVED]);
        server.kill();
    });
}

#[test]
fn grpc_of_go_and_of_python_call_each_other() {
    let Some(python) = fetched::python() else {
        return;
    };
    let told = Told::default();
    story("go-grpc-python", &["grpc"], &[], |stage, _, linkage| {
        let of_go = |role: &str| with_args(stage, linkage, "grpc", &[role]);
        let of_python = |role: &str| {
            let mut command = stage.command(&python);
            command.arg("-u").arg(script("grpc_hash.py")).arg(role);
            command
        };
        for (who, server, client) in [
            ("python asks go", of_go("serve"), of_python("client")),
            ("go asks python", of_python("server"), of_go("call")),
        ] {
            let (server, at) = grpc_server(stage, server);
            let done = grpc_client(stage, client, &at);
            assert_eq!(counts(&done.stdout())["calls"], CALLS, "{who}");
            told.same(who, done.stdout());
            server.lane().must_use_ring_for(50_000_000, &[SHORT_LIVED]);
            server.kill();
        }
    });
}

#[test]
fn go_redis_gets_what_it_stored() {
    let told = Told::default();
    story(
        "go-redis",
        &["redis"],
        &["redis-server"],
        |stage, _, linkage| {
            let redis = Redis::start(stage);
            let command = with_args(stage, linkage, "redis", &["use", &redis.port.to_string()]);
            let done = stage.run("go-redis", command, LIMIT);
            // Values, pipelines, a sum, a queue, news.
            assert_eq!(counts(&done.stdout())["calls"], 140 + 6000 + 1 + 200 + 300);
            told.same("redis", done.stdout());
            done.lane.must_use_ring_for(50_000_000, &[SHORT_LIVED]);
            redis.finish().must_use_ring(&[SHORT_LIVED]);
        },
    );
}

/// The client compares every answer; calls that were under way when the server died may fail, no other.
#[test]
fn a_grpc_server_that_is_killed_and_started_again_gives_no_wrong_answer() {
    story("go-grpc-killed", &["grpc"], &[], |stage, _, linkage| {
        let port = free_port();
        let at = format!("127.0.0.1:{port}");
        let serve = || {
            let command = with_args(stage, linkage, "grpc", &["serve", &at]);
            let server = stage.start("grpc-server", command);
            wait_listening(port, "the gRPC server");
            server
        };
        let mut server = serve();
        let load = with_args(stage, linkage, "grpc", &["load", &at, "4"]);
        let load = stage.start("load", load);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(800));
            server.lane().must_use_ring(&[SHORT_LIVED, KILLED]);
            server.kill();
            server.wait(LIMIT);
            server = serve();
        }
        let done = load.wait(LIMIT).success();
        assert!(counts(&done.stdout())["ok"] > 100, "{}", done.stdout());
        done.lane.must_use_ring(&[SHORT_LIVED, KILLED]);
        server.lane().must_use_ring(&[SHORT_LIVED, KILLED]);
        server.kill();
    });
}

#[test]
fn go_redis_outlives_its_server_and_gets_no_wrong_value() {
    let needs = &["redis-server"];
    story("go-redis-killed", &["redis"], needs, |stage, _, linkage| {
        let mut redis = Redis::start(stage);
        let port = redis.port;
        let load = with_args(stage, linkage, "redis", &["load", &port.to_string(), "2"]);
        let load = stage.start("load", load);
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(500));
            redis.proc.lane().must_use_ring(&[SHORT_LIVED, KILLED]);
            redis.proc.kill();
            redis.proc.wait(LIMIT);
            redis = Redis::start_at(stage, port);
        }
        let done = load.wait(LIMIT).success();
        assert!(counts(&done.stdout())["ok"] > 100, "{}", done.stdout());
        done.lane.must_use_ring(&[SHORT_LIVED, KILLED]);
        redis.finish().must_use_ring(&[SHORT_LIVED, KILLED]);
    });
}

#[test]
fn caddy_between_wrk_and_nginx_passes_everything_on() {
    let needs = &["nginx", "wrk", "curl"];
    story("go-caddy", &["caddy"], needs, |stage, story, linkage| {
        let site = Site::new(story);
        let nginx = Nginx::start(stage, &site);
        let port = free_port();
        let config = stage.new_dir("caddy").join("Caddyfile");
        std::fs::write(&config, caddyfile(port, nginx.port)).expect("Caddyfile");
        let mut caddy = with_args(stage, linkage, "caddy", &["run", "--adapter", "caddyfile"]);
        caddy.arg("--config").arg(&config);
        caddy.envs([("HOME", stage.dir()), ("XDG_DATA_HOME", stage.dir())]);
        let caddy = stage.start("caddy", caddy);
        wait_listening(port, "Caddy");
        let url = |page: &str| format!("http://127.0.0.1:{port}/{page}");
        let wrk = http::wrk(stage, &url("page"), &site.root.join("page"), 16, 1);
        wrk.lane.must_use_ring(&[SHORT_LIVED]);
        let (done, file) = curl(stage, &url("big.bin"), &[]);
        assert_eq!(sha256_of_file(&file), site.big_hash);
        done.lane.must_use_ring(&[SHORT_LIVED]);
        // In from nginx and out to curl.
        caddy.lane().must_use_ring_for(50_000_000, &[SHORT_LIVED]);
        caddy.stop().success();
        nginx.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

fn caddyfile(port: u16, backend: u16) -> String {
    format!(
        "{{
    admin off
    auto_https off
    persist_config off
}}
http://127.0.0.1:{port} {{
    bind 127.0.0.1
    reverse_proxy 127.0.0.1:{backend}
}}
"
    )
}

/// Values of etcd are at most 1.5 MiB.
const VALUES: [usize; 6] = [1, 1000, 70_000, 300_000, 700_000, 1_000_000];

#[test]
fn etcd_tells_etcdctl_what_was_put_and_watched() {
    story("go-etcd", &["etcd", "etcdctl"], &[], |stage, _, linkage| {
        let [client, peer] =
            [free_port(), free_port()].map(|port| format!("http://127.0.0.1:{port}"));
        let mut etcd = with_args(stage, linkage, "etcd", &["--listen-client-urls", &client]);
        etcd.args([
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
        ]);
        etcd.args(["--initial-advertise-peer-urls", &peer]);
        etcd.arg(format!("--initial-cluster=default={peer}"));
        etcd.arg("--data-dir")
            .arg(stage.new_dir("etcd"))
            .arg("--unsafe-no-fsync");
        let etcd = stage.start("etcd", etcd);
        let ctl = |args: &[&str]| {
            let all = [&["--endpoints", &client], args].concat();
            with_args(stage, linkage, "etcdctl", &all)
        };
        let port = client.rsplit(':').next().and_then(|port| port.parse().ok());
        wait_listening(port.expect("a port"), "etcd");
        // From the first revision on, whenever it comes.
        let watch = ctl(&["watch", "--prefix", "key", "--rev", "1"]);
        let watch = stage.start("watch", watch);
        let mut watched = String::new();
        let mut text = String::new();
        for (n, size) in VALUES.iter().enumerate() {
            // What etcdctl prints ends each value with a line break.
            let value = sha256_of_bytes(&blob(n as u64, 64)).repeat(size / 64 + 1);
            let file = stage.new_dir("value").join("value");
            std::fs::write(&file, &value).expect("the value");
            let mut put = ctl(&["put", &format!("key{n}")]);
            put.stdin(std::fs::File::open(&file).expect("the value"));
            assert_eq!(stage.run("put", put, LIMIT).stdout(), "OK\n");
            text.push_str(&format!("{value}\n"));
            watched.push_str(&format!("PUT\nkey{n}\n{value}\n"));
        }
        for _ in 0..3 {
            let get = ctl(&["get", "--prefix", "key", "--print-value-only"]);
            let done = stage.run("get", get, LIMIT);
            assert!(done.stdout() == text, "other values than were put");
            done.lane.must_use_ring(&[SHORT_LIVED]);
        }
        wait_until("the watch has seen every value", LIMIT, || {
            watch.stdout() == watched
        });
        watch.lane().must_use_ring(&[SHORT_LIVED]);
        watch.kill();
        etcd.lane().must_use_ring_for(3_000_000, &[SHORT_LIVED]);
        etcd.stop();
    });
}

#[test]
fn prometheus_scrapes_every_number() {
    let programs = &["prometheus", "target"];
    story("go-prometheus", programs, &["curl"], |stage, _, linkage| {
        const SERIES: u64 = 5000;
        let [scraped, asked] = [free_port(), free_port()];
        let [target_at, at] = [scraped, asked].map(|port| format!("127.0.0.1:{port}"));
        let target = with_args(stage, linkage, "target", &[&target_at, &SERIES.to_string()]);
        let target = stage.start("target", target);
        wait_listening(scraped, "the target");
        let dir = stage.new_dir("prometheus");
        let config = dir.join("prometheus.yml");
        let text = format!(
            "scrape_configs:\n- job_name: t\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n  \
             static_configs: [{{targets: ['{target_at}']}}]\n"
        );
        std::fs::write(&config, text).expect("prometheus.yml");
        let mut command = with_args(stage, linkage, "prometheus", &["--log.level=warn"]);
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!(
            "--storage.tsdb.path={}",
            dir.join("data").display()
        ));
        command.arg(format!("--web.listen-address={at}"));
        let prometheus = stage.start("prometheus", command);
        wait_listening(asked, "Prometheus");
        let ask = |query: &str| {
            let (_, file) = curl(
                stage,
                &format!("http://{at}/api/v1/query?query={query}"),
                // It listens before it answers.
                &["--globoff", "--retry", "20"],
            );
            let text = std::fs::read_to_string(file).expect("an answer");
            let number = text
                .split("\"]}")
                .next()
                .and_then(|head| head.rsplit('"').next());
            number.and_then(|number| number.parse::<u64>().ok())
        };
        // Of all samples: one that came too late on a busy machine leaves a gap.
        let of_all = |what: &str, series: &str| ask(&format!("{what}_over_time({series}[1h]))"));
        wait_until("20 scrapes", LIMIT, || {
            of_all("sum(max", "target_asked_total") > Some(20)
        });
        let sum = Some(SERIES * (SERIES - 1) / 2);
        assert_eq!(of_all("sum(min", "target_number"), sum);
        assert_eq!(of_all("sum(max", "target_number"), sum);
        assert_eq!(of_all("count(max", "target_number"), Some(SERIES));
        prometheus.lane().must_use_ring_for(200_000, &[SHORT_LIVED]);
        target.lane().must_use_ring_for(200_000, &[SHORT_LIVED]);
        prometheus.stop();
        target.kill();
    });
}
