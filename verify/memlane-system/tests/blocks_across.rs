//! A server and its clients share memory, as a host and its guests do: `--device`. fio writes, reads back and verifies while
//! both ends are killed.

use memlane_system::blocks::alone::{Alone, Mapping};
use memlane_system::blocks::fio::Verifying;
use memlane_system::blocks::region::Region;
use memlane_system::blocks::scene::{LIMIT, pause};
use memlane_system::blocks::{has, skip};

/// Bytes of a region with room for two sessions of `DEPTH` chunks of 128 KiB.
const REGION: u64 = 20 << 20;
/// Least memory that lets fio have all its requests in flight.
const DEPTH: &str = "64";

fn by_memory(alone: &Alone) -> String {
    format!("ivshmem://{}", alone.tcp())
}

/// Requests that went by each path, by the beginning of its address.
fn carried(mapping: &Mapping, kind: &str) -> u64 {
    let session = mapping.show();
    let paths = session["paths"].as_array().into_iter().flatten();
    let ours = paths.filter(|path| path["path"].as_str().is_some_and(|at| at.starts_with(kind)));
    let count = |path: &serde_json::Value, what| path[what].as_u64().unwrap_or(0);
    ours.map(|path| count(path, "reads") + count(path, "writes"))
        .sum()
}

fn serve(alone: &mut Alone, region: &Region) {
    alone.serve(&["--queue-depth", DEPTH, "--device", &region.device()]);
}

#[test]
fn fio_finds_nothing_wrong_while_the_server_is_killed_and_started_again() {
    if !has("fio") {
        return skip("across-server", "no fio: apt-get install fio");
    }
    let (mut alone, region) = (Alone::new("across-server"), Region::new("server", REGION));
    alone.volume("disk", 64 << 20);
    serve(&mut alone, &region);
    let device = region.device();
    let mapping = alone.nbd("a", &by_memory(&alone), "disk", &["--device", &device]);
    let fio = Verifying::start(mapping.shown(), 8, &[]);
    for _ in 0..2 {
        pause(1500);
        alone.kill();
        serve(&mut alone, &region);
        mapping.wait_for_paths(1);
    }
    let verdict = fio.must_find_nothing(LIMIT);
    assert!(verdict.requests > 1000, "{verdict:?}");
    assert!(carried(&mapping, "ivshmem://") > 1000);
    mapping.end();
}

#[test]
fn requests_go_on_by_tcp_when_there_is_no_memory_any_more_and_by_memory_when_there_is() {
    if !has("fio") {
        return skip("across-paths", "no fio: apt-get install fio");
    }
    let (mut alone, region) = (Alone::new("across-paths"), Region::new("paths", REGION));
    alone.volume("disk", 64 << 20);
    serve(&mut alone, &region);
    let (device, both) = (
        region.device(),
        format!("{},{}", by_memory(&alone), alone.tcp()),
    );
    let more = ["--device", &device, "--policy", "min-latency"];
    let mapping = alone.nbd("a", &both, "disk", &more);
    mapping.wait_for_paths(2);
    let fio = Verifying::start(mapping.shown(), 10, &[]);
    pause(1500);
    let before = carried(&mapping, "ivshmem://");
    assert!(before > carried(&mapping, "tcp://"), "memory is faster");
    // The server comes back without the memory.
    alone.kill();
    alone.serve(&["--queue-depth", DEPTH]);
    mapping.wait_until("the reason", |session| {
        session["paths"].to_string().contains("it shares no memory")
    });
    let tcp = carried(&mapping, "tcp://");
    pause(1000);
    assert!(carried(&mapping, "tcp://") > tcp);
    alone.kill();
    serve(&mut alone, &region);
    mapping.wait_for_paths(2);
    pause(1000);
    assert!(carried(&mapping, "ivshmem://") > before);
    fio.must_find_nothing(LIMIT);
    mapping.end();
}

#[test]
fn a_mapping_that_was_killed_leaves_room_for_the_next_one() {
    let (mut alone, region) = (Alone::new("across-client"), Region::new("client", REGION));
    alone.volume("disk", 64 << 20);
    serve(&mut alone, &region);
    let device = region.device();
    for round in 0..5 {
        let session = format!("round-{round}");
        let more = ["--device", &device, "--take-over"];
        let mapping = alone.nbd(&session, &by_memory(&alone), "disk", &more);
        mapping.wait_until_open();
        mapping.kill();
    }
}

/// What a command says that fails with this exit code.
fn fails(alone: &Alone, args: &[&str], code: i32) -> String {
    let out = alone.memlane(args);
    let why = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(code), "{args:?}: {why}");
    why
}

#[test]
fn a_command_without_the_right_memory_says_what_to_do() {
    let (mut alone, region) = (Alone::new("across-errors"), Region::new("errors", REGION));
    alone.volume("disk", 64 << 20);
    serve(&mut alone, &region);
    let (at, device, socket) = (
        by_memory(&alone),
        region.device(),
        format!("nbd:unix:{}", alone.dir().join("socket").display()),
    );
    let map = |more: &[&str], server: &str, code| {
        let mut args = vec![
            "map",
            "--session",
            "errors",
            "--wait",
            "2s",
            "--as",
            &socket,
        ];
        args.extend_from_slice(more);
        args.extend([server, "disk"]);
        fails(&alone, &args, code)
    };
    assert!(map(&[], &at, 2).contains("say which by --device"));
    let other = Region::new("other", REGION);
    let why = map(&["--device", &other.device()], &at, 4);
    assert!(why.contains("is not the server's"), "{why}");
    let missing = "ivshmem:/dev/shm/no-such-memory";
    let why = map(&["--device", missing], &at, 1);
    assert!(why.contains("No such file"), "{why}");

    let root = alone.root().display().to_string();
    let serve = |more: &[&str]| {
        let mut args = vec!["serve", "--root", &root, "--name", "across-other"];
        args.extend_from_slice(more);
        fails(&alone, &args, if more.len() > 2 { 2 } else { 1 })
    };
    let why = serve(&["--device", &device]);
    assert!(why.contains("another server uses it"), "{why}");
    let small = Region::new("small", 1 << 20);
    let why = serve(&["--device", &small.device()]);
    assert!(why.contains("one session needs"), "{why}");
    let why = serve(&["--device", &device, "--listen", &at]);
    assert!(why.contains("--listen tcp://"), "{why}");
}
