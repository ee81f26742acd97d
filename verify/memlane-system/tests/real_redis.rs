//! redis-server with redis-cli, redis-benchmark and a Python client.

use std::cell::OnceCell;
use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use memlane_system::real::kv::Redis;
use memlane_system::real::{Reason, SHORT_LIVED, Stage, Story, blob, counts, story};

const SERVER: &[&str] = &["redis-server", "redis-cli"];

#[test]
fn redis_cli_stores_a_megabyte_and_gets_the_same_back() {
    let Some(story) = Story::new("redis-value", SERVER) else {
        return;
    };
    let value = blob(7, 1 << 20);
    let file = story.dir().join("value");
    std::fs::write(&file, &value).expect("value");
    story.in_each_mode(|stage| {
        let redis = Redis::start(stage);
        let mut set = redis.cli(stage, &["-x", "SET", "value"]);
        set.stdin(File::open(&file).expect("value"));
        let done = stage.run("redis-cli", set, Duration::from_secs(60));
        assert_eq!(done.stdout(), "OK\n");
        done.lane.must_explain(&[SHORT_LIVED]);
        // The same command again and again, over one connection.
        let get = redis.cli(stage, &["--raw", "-r", "20", "GET", "value"]);
        let done = stage.run("redis-cli", get, Duration::from_secs(60));
        let got = std::fs::read(&done.out).expect("output");
        assert_eq!(got.len(), 20 * (value.len() + 1));
        for (n, part) in got.chunks(value.len() + 1).enumerate() {
            assert!(part[..value.len()] == value, "copy {n} differs");
        }
        done.lane.must_use_ring(&[SHORT_LIVED]);
        redis.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

#[test]
fn redis_cli_loads_a_pipe_of_commands() {
    let Some(story) = Story::new("redis-pipe", SERVER) else {
        return;
    };
    let file = story.dir().join("commands");
    let commands: String = (0..50_000)
        .map(|n| format!("SET key{n} value{}\r\n", n * 7))
        .collect();
    std::fs::write(&file, commands).expect("commands");
    let loaded = OnceCell::new();
    story.in_each_mode(|stage| {
        let redis = Redis::start(stage);
        let mut load = redis.cli(stage, &["--pipe"]);
        load.stdin(File::open(&file).expect("commands"));
        let done = stage.run("redis-cli", load, Duration::from_secs(60));
        let text = done.stdout();
        assert!(text.contains("errors: 0, replies: 50000"), "{text}");
        done.lane.must_use_ring(&[SHORT_LIVED]);
        assert_eq!(redis.ask(stage, &["DBSIZE"]), "50000");
        assert_eq!(redis.ask(stage, &["GET", "key49999"]), "value349993");
        // A hash of the whole data set: the same as without memlane.
        let digest = redis.ask(stage, &["DEBUG", "DIGEST"]);
        assert_eq!(digest.len(), 40, "{digest}");
        assert_eq!(loaded.get_or_init(|| digest.clone()), &digest);
        redis.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

#[test]
fn redis_benchmark_finds_no_error() {
    let needs = &["redis-server", "redis-cli", "redis-benchmark"];
    story("redis-bench", needs, |stage| {
        let redis = Redis::start(stage);
        let runs: [&[&str]; 4] = [
            &[
                "-t",
                "get,set,lpush,lrange_300",
                "-c",
                "50",
                "-n",
                "20000",
                "-r",
                "1000",
                "-d",
                "300",
            ],
            &["-t", "get,set", "-c", "1", "-n", "5000"],
            &["-t", "get,set", "-c", "50", "-n", "100000", "-P", "16"],
            &[
                "-t",
                "get,set",
                "-c",
                "8",
                "-n",
                "2000",
                "-d",
                "100000",
                "--threads",
                "2",
            ],
        ];
        for args in runs {
            let done = redis.benchmark(stage, args);
            let text = done.stdout();
            assert!(
                text.contains("GET") && text.contains("requests per second"),
                "{text}"
            );
            assert!(!text.contains("Error") && !text.contains("ERR"), "{text}");
            done.lane.must_use_ring(&[SHORT_LIVED]);
        }
        let stats = redis.ask(stage, &["INFO", "errorstats"]);
        assert!(!stats.contains("errorstat_"), "{stats}");
        redis.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

fn mixed(stage: &Stage, redis: &Redis, more: &[&str], allowed: &[&[Reason]]) {
    let mut command = stage.python("redis_mixed.py");
    command.args([&redis.port.to_string(), "2"]).args(more);
    let done = stage.run("redis_mixed", command, Duration::from_secs(60));
    let text = done.stdout();
    let counts = counts(&text);
    for key in ["pipelined", "multi", "published", "values"] {
        assert!(counts[key] > 0, "{text}");
    }
    done.lane.must_use_ring(allowed);
    println!("{}", text.trim());
}

#[test]
fn pipelines_transactions_messages_and_big_values_arrive_whole() {
    story(
        "redis-mixed",
        &["redis-server", "redis-cli", "python3"],
        |stage| {
            let redis = Redis::start(stage);
            mixed(stage, &redis, &[], &[SHORT_LIVED]);
            redis.finish().must_use_ring(&[SHORT_LIVED]);
        },
    );
}

#[test]
fn redis_forks_to_save_while_clients_run_and_the_dump_loads() {
    story(
        "redis-bgsave",
        &["redis-server", "redis-cli", "python3"],
        |stage| {
            let redis = Redis::start(stage);
            mixed(stage, &redis, &["bgsave"], &[SHORT_LIVED, FORKED]);
            let keys = redis.ask(stage, &["DBSIZE"]);
            let digest = redis.ask(stage, &["DEBUG", "DIGEST"]);
            assert_eq!(digest.len(), 40, "{digest}");
            assert_eq!(redis.ask(stage, &["SAVE"]), "OK");
            let dir = redis.dir.clone();
            redis.finish().must_use_ring(&[SHORT_LIVED, FORKED]);

            let again = Redis::start_in(stage, dir);
            assert_eq!(again.ask(stage, &["DBSIZE"]), keys);
            assert_eq!(again.ask(stage, &["DEBUG", "DIGEST"]), digest);
            again.finish().must_explain(&[SHORT_LIVED]);
        },
    );
}

/// While the child that saves lives, it holds every connection too.
const FORKED: &[Reason] = &[Reason::SHARED_FD, Reason::PEER_TCP_ONLY];

#[test]
fn a_client_of_a_redis_killed_in_mid_reply_sees_what_tcp_would_show() {
    story(
        "redis-torn",
        &["redis-server", "redis-cli", "python3"],
        |stage| {
            let redis = Redis::start(stage);
            let (ready, killed) = (stage.dir().join("ready"), stage.dir().join("killed"));
            let mut command = stage.python("redis_torn.py");
            command
                .args([&redis.port.to_string(), "64"])
                .arg(&ready)
                .arg(&killed);
            command.stdin(Stdio::null());
            let mut client = stage.start("redis_torn", command);
            client.wait_until("half a reply", Duration::from_secs(60), || ready.exists());
            redis.proc.kill();
            let server = redis.proc.wait(Duration::from_secs(20));
            assert!(!server.status.success(), "it was killed");
            std::fs::write(&killed, "").expect("killed file");

            let done = client.wait(Duration::from_secs(60)).success();
            let text = done.stdout();
            let counts = counts(&text);
            // Everything that came is right, it is not all, and then the connection is over.
            assert_eq!(counts["right"], 1, "{text}");
            assert!(
                counts["got"] >= 1 << 20 && counts["got"] < counts["of"],
                "{text}"
            );
            assert!(
                text.contains("ending end") || text.contains("ending reset"),
                "{text}"
            );
            done.lane.must_use_ring(&[SHORT_LIVED]);
            server.lane.must_use_ring(&[SHORT_LIVED]);
            println!("{}", text.trim());
        },
    );
}
