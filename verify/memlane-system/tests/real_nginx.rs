//! nginx (workers under another user) with curl, wrk and a Python client.

use std::path::PathBuf;
use std::time::Duration;

use memlane_system::harness::Mode;
use memlane_system::real::http::{self, Nginx, PEER_OUTSIDE, SMALL_FILES, Site, curl, curl_all};
use memlane_system::real::{
    Done, Reason, SHORT_LIVED, Stage, Story, counts, sha256_of_bytes, sha256_of_file,
};

#[test]
fn curl_fetches_a_large_file_from_nginx() {
    let Some(story) = Story::new("nginx-large", &["nginx", "curl"]) else {
        return;
    };
    let site = Site::new(&story);
    story.in_each_mode(|stage| {
        let nginx = Nginx::start(stage, &site);
        // Once by sendfile, once through nginx's own buffers.
        for path in ["big.bin", "copied/big.bin"] {
            let done = fetch_big(stage, &nginx, &site, path);
            done.lane.must_use_ring(&[SHORT_LIVED]);
        }
        nginx.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

#[test]
fn curl_fetches_many_small_files_over_one_connection() {
    let Some(story) = Story::new("nginx-small", &["nginx", "curl"]) else {
        return;
    };
    let site = Site::new(&story);
    story.in_each_mode(|stage| {
        let nginx = Nginx::start(stage, &site);
        // So many that curl lives long enough to be seen.
        let names = (0..10 * SMALL_FILES).map(|n| format!("small/{}", n % SMALL_FILES));
        let names: Vec<String> = names.collect();
        let urls: Vec<String> = names.iter().map(|name| nginx.url(name)).collect();
        let (done, files) = curl_all(stage, &urls, &["-w", "%{num_connects}\n"]);
        for (name, file) in names.iter().zip(&files) {
            assert!(fetched(file) == site.bytes(name), "{name} differs");
        }
        let connects: u32 = done
            .stdout()
            .lines()
            .map(|line| line.parse::<u32>().unwrap())
            .sum();
        assert_eq!(connects, 1, "curl did not keep its connection");
        done.lane.must_use_ring(&[SHORT_LIVED]);
        nginx.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

#[test]
fn curl_fetches_many_files_over_parallel_connections() {
    let Some(story) = Story::new("nginx-parallel", &["nginx", "curl"]) else {
        return;
    };
    let site = Site::new(&story);
    story.in_each_mode(|stage| {
        let nginx = Nginx::start(stage, &site);
        let names: Vec<String> = (0..SMALL_FILES)
            .rev()
            .map(|n| format!("small/{n}"))
            .collect();
        let urls: Vec<String> = names.iter().map(|name| nginx.url(name)).collect();
        let (done, files) = curl_all(stage, &urls, &["-Z", "--parallel-max", "8"]);
        for (name, file) in names.iter().zip(&files) {
            assert!(fetched(file) == site.bytes(name), "{name} differs");
        }
        done.lane.must_use_ring(&[SHORT_LIVED]);
        nginx.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

#[test]
fn curl_fetches_ranges() {
    let Some(story) = Story::new("nginx-range", &["nginx", "curl"]) else {
        return;
    };
    let site = Site::new(&story);
    let big = site.bytes("big.bin");
    story.in_each_mode(|stage| {
        let nginx = Nginx::start(stage, &site);
        let len = big.len();
        let ranges = [
            ("0-0", 0..1),
            ("1000000-9999999", 1_000_000..10_000_000),
            ("47000000-", 47_000_000..len),
            ("-65537", len - 65_537..len),
        ];
        for (range, expected) in ranges {
            // Twelve requests on one connection, each for the same part.
            let urls = vec![nginx.url("big.bin"); 12];
            let (done, files) = curl_all(stage, &urls, &["-r", range]);
            for file in files {
                assert!(
                    fetched(&file) == big[expected.clone()],
                    "range {range} differs"
                );
            }
            done.lane.must_explain(&[SHORT_LIVED]);
        }
        nginx.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

#[test]
fn wrk_gets_the_right_page_every_time() {
    let Some(story) = Story::new("nginx-wrk", &["nginx", "wrk"]) else {
        return;
    };
    let site = Site::new(&story);
    story.in_each_mode(|stage| {
        let nginx = Nginx::start(stage, &site);
        for (path, connections) in [("page", 16), ("page", 128), ("mid.bin", 8)] {
            let wrk = http::wrk(
                stage,
                &nginx.url(path),
                &site.root.join(path),
                connections,
                1,
            );
            wrk.lane.must_use_ring(&[SHORT_LIVED]);
            println!("{path} × {connections}: {} answers", wrk.checked);
        }
        nginx.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

#[test]
fn nginx_under_memlane_serves_a_curl_that_is_not() {
    let Some(story) = Story::new("nginx-only", &["nginx", "curl"]) else {
        return;
    };
    let site = Site::new(&story);
    story.in_each_mode(|stage| {
        let nginx = Nginx::start(stage, &site);
        let mut command = stage.plain_command("curl");
        let file = stage.dir().join("big");
        command
            .args(["-q", "-sS", "--fail", "--noproxy", "*", "-o"])
            .arg(&file);
        command.arg(nginx.url("big.bin"));
        stage
            .start_plain("curl", command)
            .wait(Duration::from_secs(60))
            .success();
        assert_eq!(sha256_of_file(&file), site.big_hash);
        nginx.finish().must_stay_on_tcp(&[PEER_OUTSIDE]);
    });
}

#[test]
fn curl_under_memlane_fetches_from_an_nginx_that_is_not() {
    let Some(story) = Story::new("curl-only", &["nginx", "curl"]) else {
        return;
    };
    let site = Site::new(&story);
    story.in_each_mode(|stage| {
        let nginx = Nginx::start_plain(stage, &site);
        let (done, file) = curl(stage, &nginx.url("big.bin"), &[]);
        assert_eq!(sha256_of_file(&file), site.big_hash);
        done.lane.must_stay_on_tcp(&[PEER_OUTSIDE]);
        done.lane.must_say(Reason::PEER_NO_MEMLANE);
        let urls: Vec<String> = (100..150)
            .map(|n| nginx.url(&format!("small/{n}")))
            .collect();
        let (done, files) = curl_all(stage, &urls, &[]);
        for (n, file) in (100..150).zip(files) {
            assert!(
                fetched(&file) == site.bytes(&format!("small/{n}")),
                "small/{n} differs"
            );
        }
        done.lane.must_stay_on_tcp(&[PEER_OUTSIDE]);
        nginx.finish();
    });
}

/// Four connections that ask without pause while `disturb` happens to nginx.
fn under_load(stage: &Stage, site: &Site, nginx: &mut Nginx, disturb: fn(&mut Nginx)) -> Done {
    let stop = stage.dir().join("stop");
    let mut command = stage.python("hammer.py");
    command
        .args([&nginx.port.to_string(), "60", "4"])
        .arg(&stop);
    for name in ["page", "mid.bin", "small/199", "small/20"] {
        command.arg(format!("{name}={}", sha256_of_bytes(&site.bytes(name))));
    }
    let client = stage.start("hammer", command);
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(200));
        disturb(nginx);
    }
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(&stop, "").expect("stop file");
    client.wait(Duration::from_secs(60)).success()
}

fn must_be_right(done: &Done) {
    let text = done.stdout();
    let counts = counts(&text);
    for never in ["wrong", "failed", "stalled"] {
        assert_eq!(counts[never], 0, "{text}");
    }
    assert!(counts["ok"] > 100, "{text}");
    println!("{}", text.trim());
}

#[test]
fn nginx_reloads_under_load_and_no_answer_is_wrong() {
    let Some(story) = Story::new("nginx-reload", &["nginx", "python3"]) else {
        return;
    };
    let site = Site::new(&story);
    story.in_each_mode(|stage| {
        let mut nginx = Nginx::start(stage, &site);
        let done = under_load(stage, &site, &mut nginx, Nginx::reload);
        must_be_right(&done);
        // A worker that ends resets what is unread: for a moment its socket has
        // gone and the reset has not arrived.
        let gone: &[Reason] = &[Reason::NOT_SAME_HOST];
        done.lane.must_use_ring(&[SHORT_LIVED, gone]);
        nginx.finish().must_use_ring(&[SHORT_LIVED, gone]);
    });
}

#[test]
fn nginx_workers_are_killed_under_load_and_no_answer_is_wrong() {
    let Some(story) = Story::new("nginx-kill", &["nginx", "python3"]) else {
        return;
    };
    let site = Site::new(&story);
    story.in_each_mode(|stage| {
        let mut nginx = Nginx::start(stage, &site);
        let done = under_load(stage, &site, &mut nginx, Nginx::kill_a_worker);
        must_be_right(&done);
        // A handshake may have been under way when its other end was killed.
        let killed: &[Reason] = &[
            Reason::TIMEOUT_CL,
            Reason::TIMEOUT_AL,
            Reason::PEER_TCP_ONLY,
        ];
        done.lane.must_use_ring(&[SHORT_LIVED, killed]);
        nginx.finish().must_use_ring(&[SHORT_LIVED, killed]);
    });
}

#[test]
fn nginx_serves_on_when_clients_are_killed_in_mid_download() {
    let Some(story) = Story::new("nginx-clients", &["nginx", "curl"]) else {
        return;
    };
    let site = Site::new(&story);
    story.in_each_mode(|stage| {
        let nginx = Nginx::start(stage, &site);
        let workers = nginx.workers();
        let slow = || {
            let mut command = stage.command("curl");
            command.args(["-q", "-sS", "--noproxy", "*", "--limit-rate", "20M"]);
            command.args(["-o", "/dev/null", &nginx.url("big.bin")]);
            stage.start("slow-curl", command)
        };
        let clients: Vec<_> = (0..8).map(|_| slow()).collect();
        std::thread::sleep(Duration::from_millis(500));
        for client in clients {
            client.kill();
            let done = client.wait(Duration::from_secs(20));
            assert!(!done.status.success(), "it ended before it was killed");
            done.lane.must_explain(&[SHORT_LIVED]);
        }
        let done = fetch_big(stage, &nginx, &site, "big.bin");
        done.lane.must_use_ring(&[SHORT_LIVED]);
        assert_eq!(nginx.workers(), workers, "a worker died");
        nginx.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

/// Fetches the big file until one download has used the ring: on a busy machine
/// a single one may be over before its stream leaves TCP. Each must be right.
fn fetch_big(stage: &Stage, nginx: &Nginx, site: &Site, path: &str) -> Done {
    for _ in 0..DOWNLOADS {
        let (done, file) = curl(stage, &nginx.url(path), &[]);
        assert_eq!(sha256_of_file(&file), site.big_hash, "{path}");
        if done.lane.mode == Mode::Plain || done.lane.ring_bytes() > 0 {
            return done;
        }
    }
    let (done, _) = curl(stage, &nginx.url(path), &[]);
    done
}

/// Downloads of the big file before the ring must have been used.
const DOWNLOADS: u32 = 8;

fn fetched(file: &PathBuf) -> Vec<u8> {
    std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
