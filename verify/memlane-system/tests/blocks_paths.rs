//! One machine uses a volume of another while the cables between them are pulled, cut and throttled and the server is
//! killed. fio writes, reads back and verifies throughout.

use std::process::Command;
use std::time::{Duration, Instant};

use memlane_system::blocks::alone::Alone;
use memlane_system::blocks::fio::Verifying;
use memlane_system::blocks::machines::Side;
use memlane_system::blocks::scene::{LIMIT, Scene, pause};
use memlane_system::blocks::{has, memlane, must, skip};

#[test]
fn a_cable_is_pulled_and_put_back_and_nothing_is_wrong() {
    let Some(scene) = Scene::new("cable-pulled", 2, &[]) else {
        return;
    };
    let machines = &scene.machines;
    let mapped = scene.map(&[]);
    let fio = Verifying::start(&mapped.uri(), 8, &[]);
    for cable in [0, 1] {
        pause(1000);
        machines.pull(cable, true);
        mapped.wait_for_paths(1);
        machines.pull(cable, false);
        mapped.wait_for_paths(2);
    }
    scene.report(&fio.must_find_nothing(LIMIT));
    assert!(mapped.failed_over() > 0, "{:#}", mapped.session());
    mapped.unmap();
}

#[test]
fn a_cable_that_carries_one_direction_only_is_left_alone() {
    let Some(scene) = Scene::new("one-way", 2, &[]) else {
        return;
    };
    let machines = &scene.machines;
    let mapped = scene.map(&[]);
    let fio = Verifying::start(&mapped.uri(), 8, &[]);
    for (cable, deaf) in [(0, Side::Client), (1, Side::Server)] {
        pause(500);
        machines.lose(cable, deaf, 100);
        mapped.wait_for_paths(1);
        machines.stop_losing(deaf);
        mapped.wait_for_paths(2);
    }
    scene.report(&fio.must_find_nothing(LIMIT));
    mapped.unmap();
}

#[test]
fn a_client_that_was_cut_off_loses_its_volume_to_another_one_and_writes_no_more() {
    let Some(scene) = Scene::new("taken-over", 1, &["--heartbeat", "1s"]) else {
        return;
    };
    let machines = &scene.machines;
    let mapped = scene.map(&["--on-disconnect", "queue:60s"]);
    let old = Verifying::start(&mapped.uri(), 40, &[]);
    pause(1000);
    for deaf in [Side::Client, Side::Server] {
        machines.lose(0, deaf, 100);
    }
    // The other one is on the server's machine, where nothing is cut.
    let socket = machines.dir().join("new.sock");
    let map = |more: &[&str]| {
        let mut command = machines.command(Side::Server, memlane());
        command.args(["map", "--session", "new", "--as"]);
        command.arg(format!("nbd:unix:{}", socket.display()));
        command.args(more);
        command.args([&machines.address(0, Side::Server), "disk"]);
        command.output().expect("the command")
    };
    let refused = map(&[]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(4), "{why}");
    assert!(why.contains("session test, "), "{why}");
    let begin = Instant::now();
    // Until the server has noticed.
    while !map(&["--take-over"]).status.success() {
        assert!(begin.elapsed() < LIMIT);
        pause(50);
    }
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let new = Verifying::start(&uri, 5, &[]);
    pause(1000);
    // The old one comes back, with all that it has not been able to write.
    for deaf in [Side::Client, Side::Server] {
        machines.stop_losing(deaf);
    }
    let outcome = old.end(LIMIT);
    assert!(!outcome.is_ok() && !outcome.hung, "{}", outcome.report());
    scene.report(&new.must_find_nothing(LIMIT));
    let session = mapped.session();
    let state = session["volumes"][0]["state"].as_str().unwrap_or_default();
    assert!(state.contains("taken it over"), "{session:#}");
    let end = ["vol", "unmap", "disk"];
    let before = std::fs::read(&scene.file).expect("the file");
    mapped.unmap();
    assert!(before == std::fs::read(&scene.file).expect("the file"));
    let mut command = machines.command(Side::Server, memlane());
    command.args(end);
    must(command);
}

#[test]
fn a_cable_that_loses_packets_or_crawls_slows_nobody_down_for_ever() {
    let Some(scene) = Scene::new("lossy", 2, &[]) else {
        return;
    };
    let machines = &scene.machines;
    let mapped = scene.map(&[]);
    let fio = Verifying::start(&mapped.uri(), 8, &[]);
    pause(500);
    machines.lose(0, Side::Client, 20);
    pause(2000);
    machines.stop_losing(Side::Client);
    machines.throttle(1, Side::Server, Some("256kbit"));
    pause(2000);
    machines.throttle(1, Side::Server, None);
    scene.report(&fio.must_find_nothing(LIMIT));
    mapped.wait_for_paths(2);
    mapped.unmap();
}

#[test]
fn the_server_is_killed_and_started_again_twice_and_nothing_is_lost() {
    let Some(scene) = Scene::new("server-killed", 2, &[]) else {
        return;
    };
    let mapped = scene.map(&[]);
    let fio = Verifying::start(&mapped.uri(), 10, &[]);
    pause(1500);
    scene.kill_server();
    pause(500);
    scene.start_server();
    mapped.wait_for_paths(2);
    pause(1500);
    scene.kill_server();
    scene.start_server();
    mapped.wait_for_paths(2);
    scene.report(&fio.must_find_nothing(LIMIT));
    // The file is what the volume shows.
    must({
        let mut command = Command::new("qemu-img");
        command.args(["compare", "-f", "raw", "-F", "raw"]);
        command.arg(&scene.file).arg(mapped.uri());
        command
    });
    mapped.unmap();
}

#[test]
fn without_a_path_requests_wait_as_long_as_was_asked_and_then_fail() {
    let Some(scene) = Scene::new("no-path", 1, &[]) else {
        return;
    };
    let machines = &scene.machines;
    let mapped = scene.map(&["--on-disconnect", "queue:20s"]);
    let fio = Verifying::start(&mapped.uri(), 6, &[]);
    pause(1000);
    machines.pull(0, true);
    mapped.wait_for_paths(0);
    pause(1500);
    machines.pull(0, false);
    let verdict = fio.must_find_nothing(LIMIT);
    scene.report(&verdict);
    assert!(
        verdict.longest >= Duration::from_millis(1500),
        "{verdict:?}"
    );
    mapped.unmap();

    let mapped = scene.map(&["--on-disconnect", "fail"]);
    let fio = Verifying::start(&mapped.uri(), 30, &[]);
    pause(1000);
    machines.pull(0, true);
    let outcome = fio.end(LIMIT);
    assert!(!outcome.is_ok() && !outcome.hung, "{}", outcome.report());
    machines.pull(0, false);
    mapped.wait_for_paths(1);
    // The volume is as good as before.
    Verifying::start(&mapped.uri(), 1, &[]).must_find_nothing(LIMIT);
    mapped.unmap();
}

#[test]
fn paths_are_added_and_removed_under_load() {
    let Some(scene) = Scene::new("paths-changed", 2, &[]) else {
        return;
    };
    let machines = &scene.machines;
    let mapped = scene.map(&[]);
    let fio = Verifying::start(&mapped.uri(), 6, &[]);
    for cable in [0, 1, 0] {
        pause(500);
        let session = mapped.session();
        let to = machines.address(cable, Side::Server);
        let paths = session["paths"].as_array().expect("paths");
        let path = paths
            .iter()
            .find_map(|path| path["path"].as_str().filter(|p| p.contains(&to)));
        must(mapped.verb(&["session", "rm-path", "test", path.expect("the path")]));
        mapped.wait_for_paths(1);
        must(mapped.verb(&["session", "add-path", "test", &to]));
        mapped.wait_for_paths(2);
    }
    scene.report(&fio.must_find_nothing(LIMIT));
    mapped.unmap();
}

#[test]
fn a_session_has_a_path_by_memory_and_one_by_tcp_and_goes_on_by_either() {
    let test = "paths-mixed";
    if !has("fio") {
        return skip(test, "no fio");
    }
    let mut alone = Alone::new(test);
    alone.volume("disk", 16 << 20);
    alone.serve(&[]);
    let (local, tcp) = (alone.local(), format!("tcp://{}", alone.tcp()));
    let more = ["--path", &local, "--path", &tcp];
    let mapped = alone.nbd("mixed", &local, "disk", &more);
    mapped.wait_for_paths(2);
    let fio = Verifying::start(mapped.shown(), 5, &[]);
    for path in [&local, &tcp, &local] {
        pause(500);
        for (verb, left) in [("rm-path", 1), ("add-path", 2)] {
            let done = alone.memlane(&["session", verb, mapped.session(), path]);
            assert!(done.status.success(), "{verb} {path}: {done:?}");
            mapped.wait_for_paths(left);
        }
    }
    fio.must_find_nothing(LIMIT);
    mapped.end();
}
