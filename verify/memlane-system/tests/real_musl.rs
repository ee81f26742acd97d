//! Stock programs that are linked with musl, at one end or at both, with programs of glibc at the other.

use std::fs::File;
use std::time::Duration;

use memlane_system::musl;
use memlane_system::real::http::{self, Nginx, Site, curl};
use memlane_system::real::kv::{Memcached, Redis};
use memlane_system::real::{Reason, SHORT_LIVED, Stage, Story, blob, counts, sha256_of_file};

const LIMIT: Duration = Duration::from_secs(60);
/// While the child that saves lives, it holds every connection too.
const FORKED: &[Reason] = &[Reason::SHARED_FD, Reason::PEER_TCP_ONLY];

/// `body` in each mode, with a server of musl, if the programs are here: those with musl, and others.
fn story(name: &str, with_musl: &[&str], others: &[&str], body: impl Fn(&Stage, &Story)) {
    if !musl::has(with_musl) {
        return;
    }
    if let Some(story) = Story::new(name, others) {
        story.in_each_mode(|stage| body(stage, &story));
    }
}

#[test]
fn nginx_serves_curl_and_wrk() {
    story(
        "musl-nginx",
        &["nginx"],
        &["curl", "wrk"],
        |stage, story| {
            let site = Site::new(story);
            let nginx = Nginx::start(&stage.with_musl(), &site);
            for path in ["big.bin", "copied/big.bin"] {
                fetches_big(stage, &nginx, &site, path);
            }
            let wrk = http::wrk(stage, &nginx.url("page"), &site.root.join("page"), 64, 1);
            wrk.lane.must_use_ring(&[SHORT_LIVED]);
            nginx.finish().must_use_ring(&[SHORT_LIVED]);
        },
    );
}

#[test]
fn curl_fetches_from_either_nginx() {
    story(
        "musl-curl",
        &["curl", "nginx"],
        &["nginx"],
        |stage, story| {
            let site = Site::new(story);
            for server in [stage.clone(), stage.with_musl()] {
                let nginx = Nginx::start(&server, &site);
                fetches_big(&stage.with_musl(), &nginx, &site, "big.bin");
                nginx.finish().must_use_ring(&[SHORT_LIVED]);
            }
        },
    );
}

fn fetches_big(stage: &Stage, nginx: &Nginx, site: &Site, path: &str) {
    let (done, file) = curl(stage, &nginx.url(path), &[]);
    assert_eq!(sha256_of_file(&file), site.big_hash, "{path}");
    done.lane.must_use_ring(&[SHORT_LIVED]);
}

#[test]
fn redis_answers_clients_of_either_libc() {
    story(
        "musl-redis",
        &["redis-server", "redis-cli", "redis-benchmark"],
        &["redis-cli", "redis-benchmark", "python3"],
        |stage, story| {
            let redis = Redis::start(&stage.with_musl());
            for client in [stage.clone(), stage.with_musl()] {
                returns_what_it_got(&client, &redis, story);
                let done = redis.benchmark(
                    &client,
                    &["-t", "get,set", "-c", "20", "-n", "20000", "-d", "300"],
                );
                let text = done.stdout();
                assert!(!text.contains("Error") && !text.contains("ERR"), "{text}");
                done.lane.must_use_ring(&[SHORT_LIVED]);
            }
            let mut mixed = stage.python("redis_mixed.py");
            mixed.args([&redis.port.to_string(), "2", "bgsave"]);
            let done = stage.run("redis_mixed", mixed, LIMIT);
            assert!(counts(&done.stdout())["pipelined"] > 0);
            redis.finish().must_use_ring(&[SHORT_LIVED, FORKED]);
        },
    );
}

fn returns_what_it_got(client: &Stage, redis: &Redis, story: &Story) {
    let value = blob(7, 1 << 20);
    let file = story.dir().join("value");
    std::fs::write(&file, &value).expect("value");
    let mut set = redis.cli(client, &["-x", "SET", "value"]);
    set.stdin(File::open(&file).expect("value"));
    assert_eq!(client.run("redis-cli", set, LIMIT).stdout(), "OK\n");
    let get = redis.cli(client, &["--raw", "-r", "20", "GET", "value"]);
    let done = client.run("redis-cli", get, LIMIT);
    let got = std::fs::read(&done.out).expect("output");
    assert_eq!(got.len(), 20 * (value.len() + 1));
    for (n, part) in got.chunks(value.len() + 1).enumerate() {
        assert!(part[..value.len()] == value, "copy {n} differs");
    }
    done.lane.must_use_ring(&[SHORT_LIVED]);
}

#[test]
fn memcached_returns_the_blobs_that_it_was_given() {
    story(
        "musl-memcached",
        &["memcached"],
        &["python3"],
        |stage, _| {
            let memcached = Memcached::start(&stage.with_musl());
            let mut command = stage.python("memcache.py");
            command.args([&memcached.port.to_string(), "2", "8"]);
            let done = stage.run("memcache.py", command, LIMIT);
            let text = done.stdout();
            let counts = counts(&text);
            assert!(counts["values"] >= 24 && counts["batches"] >= 24, "{text}");
            done.lane.must_use_ring(&[SHORT_LIVED]);
            memcached.finish().must_use_ring(&[SHORT_LIVED]);
        },
    );
}
