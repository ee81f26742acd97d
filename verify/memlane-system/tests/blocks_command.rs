//! `memlane serve`, `map` and `vol` on one machine: what they do, what they refuse, and with which exit code.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use memlane_system::blocks::{memlane, skip};
use memlane_system::harness::{Running, TempDir};

const LIMIT: Duration = Duration::from_secs(20);

/// A server of its own name; its sessions' names begin with that, too.
struct World {
    dir: TempDir,
    name: String,
    _server: Running,
}

impl World {
    fn new(label: &str) -> World {
        let dir = TempDir::new(label);
        let name = format!("{label}-{}", std::process::id());
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("folder")).expect("the root");
        let disk = std::fs::File::create(root.join("disk")).expect("a file");
        disk.set_len(8 << 20).expect("its size");
        std::fs::copy(root.join("disk"), root.join("folder/disk")).expect("another");
        std::os::unix::fs::symlink("/etc", root.join("out")).expect("a link");
        let mut command = Command::new(memlane());
        command.args([
            "serve",
            "--name",
            &name,
            "--listen",
            &format!("local:{name}"),
        ]);
        command.arg("--root").arg(root);
        let mut server = Running::start(command);
        let begin = Instant::now();
        while !server.stderr().contains("serving") {
            assert!(
                server.is_running() && begin.elapsed() < LIMIT,
                "{}",
                server.stderr()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        World {
            dir,
            name,
            _server: server,
        }
    }

    fn socket(&self, session: &str) -> PathBuf {
        self.dir.path().join(format!("{session}.sock"))
    }

    fn session(&self, session: &str) -> String {
        format!("{}-{session}", self.name)
    }

    fn memlane(&self, args: &[&str]) -> Output {
        Command::new(memlane())
            .args(args)
            .output()
            .expect("the command")
    }

    fn map(&self, session: &str, server: &str, volume: &str) -> Output {
        let frontend = format!("nbd:unix:{}", self.socket(session).display());
        self.map_as(session, &frontend, &[server, volume])
    }

    fn map_as(&self, session: &str, frontend: &str, more: &[&str]) -> Output {
        let session = self.session(session);
        let args = [
            "map",
            "--session",
            &session,
            "--as",
            frontend,
            "--wait",
            "5s",
        ];
        self.memlane(&[&args[..], more].concat())
    }

    /// The process behind a session.
    fn pid(&self, session: &str) -> String {
        self.show(session)["pid"].to_string()
    }

    /// Ends the process behind a session as badly as possible.
    fn kill(&self, session: &str) {
        let pid = self.pid(session);
        signal(&pid, "KILL");
        self.wait_until_gone(&pid);
    }

    fn wait_until_gone(&self, pid: &str) {
        let begin = Instant::now();
        while PathBuf::from(format!("/proc/{pid}/fd/0")).exists() {
            assert!(begin.elapsed() < LIMIT, "it lives");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn local(&self) -> String {
        format!("local:{}", self.name)
    }

    fn show(&self, session: &str) -> serde_json::Value {
        let said = self.memlane(&["session", "show", &self.session(session), "--json"]);
        serde_json::from_slice(&said.stdout).expect("a document")
    }
}

fn signal(pid: &str, name: &str) {
    let sent = Command::new("kill").args(["-s", name, pid]).output();
    done(&sent.expect("kill"));
}

fn refused(said: &Output, code: i32, why: &str) {
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(
        said.status.code() == Some(code) && text.contains(why),
        "{said:?}"
    );
    assert!(said.stdout.is_empty(), "{said:?}");
}

fn done(said: &Output) {
    assert!(said.status.success(), "{said:?}");
}

#[test]
fn a_volume_has_one_writer_until_it_is_unmapped_or_its_owner_is_gone() {
    let world = World::new("writers");
    done(&world.map("a", &world.local(), "disk"));
    refused(
        &world.map("b", &world.local(), "disk"),
        4,
        "somebody else writes",
    );
    done(&world.memlane(&["vol", "unmap", "disk", "--session", &world.session("a")]));
    assert!(!world.socket("a").exists());
    done(&world.map("b", &world.local(), "disk"));
    world.kill("b");
    let b = world.session("b");
    let who = format!("somebody else writes to it: session {b}, not heard of for ");
    refused(&world.map("c", &world.local(), "disk"), 4, &who);
    let c = world.session("c");
    done(&world.memlane(&["vol", "release", "disk", &b, "--server", &world.name]));
    done(&world.map("c", &world.local(), "disk"));
    done(&world.memlane(&["vol", "unmap", "disk", "--session", &c]));
}

#[test]
fn what_a_dead_client_had_is_taken_over_and_what_a_living_one_has_is_not() {
    let world = World::new("take-over");
    done(&world.map("a", &world.local(), "disk"));
    let frontend = format!("nbd:unix:{}", world.socket("b").display());
    let take = || world.map_as("b", &frontend, &["--take-over", &world.local(), "disk"]);
    refused(&take(), 4, "which is there: end that mapping");
    world.kill("a");
    let begin = Instant::now();
    let said = loop {
        let said = take();
        if said.status.success() || begin.elapsed() > LIMIT {
            break said;
        }
    };
    done(&said);
    done(&world.memlane(&["vol", "unmap", "disk", "--session", &world.session("b")]));
}

#[test]
fn why_no_path_comes_up_is_told_in_the_kernels_words() {
    let world = World::new("unreachable");
    let nobody = format!("local:{}-nobody", world.name);
    let frontend = format!("nbd:unix:{}", world.socket("a").display());
    for (server, why) in [
        (nobody.as_str(), "down: Connection refused"),
        ("127.0.0.1:1", "tcp://127.0.0.1:1: down: Connection refused"),
    ] {
        let session = format!("{}-{}", world.session("a"), server.len());
        let said = world.memlane(&[
            "map",
            "--session",
            &session,
            "--as",
            &frontend,
            "--wait",
            "300ms",
            server,
            "disk",
        ]);
        refused(&said, 1, why);
    }
}

/// Does the kernel say that the server of this mount is gone?
fn is_dead(path: &std::path::Path) -> bool {
    std::fs::metadata(path).is_err_and(|error| error.raw_os_error() == Some(107))
}

/// It says so when the last thread of the killed process has gone.
fn wait_until_dead(path: &std::path::Path) {
    let begin = Instant::now();
    while !is_dead(path) {
        assert!(begin.elapsed() < LIMIT, "it lives");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_a_killed_process_has_left_is_taken_over_or_taken_away() {
    let test = "leftovers";
    if !std::path::Path::new("/dev/fuse").exists() {
        skip(test, "no /dev/fuse");
        return;
    }
    let world = World::new(test);
    let file = world.dir.path().join("a file");
    let frontend = format!("fuse:{}", file.display());
    let map = || world.map_as("a", &frontend, &["--take-over", &world.local(), "disk"]);
    done(&map());
    std::fs::write(&file, "x").expect_err("it is as long as the volume");
    world.kill("a");
    wait_until_dead(&file);
    // The next one at the same place.
    let begin = Instant::now();
    while !map().status.success() {
        assert!(begin.elapsed() < LIMIT);
    }
    assert_eq!(std::fs::metadata(&file).expect("a file").len(), 8 << 20);
    // What lives is left alone.
    done(&world.memlane(&["vol", "prune"]));
    assert_eq!(std::fs::metadata(&file).expect("a file").len(), 8 << 20);
    world.kill("a");
    wait_until_dead(&file);
    let said = world.memlane(&["vol", "prune"]);
    done(&said);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(text.contains("a file: the mount of a volume"), "{text}");
    assert!(!is_dead(&file));
}

#[test]
fn names_that_are_no_volumes_are_refused_and_nothing_outside_the_root_is_reached() {
    let world = World::new("names");
    for (name, why) in [
        ("../x", "the name is refused"),
        ("out/passwd", "does not permit"),
        ("folder", "not a volume"),
        ("absent", "no such volume"),
        ("mem:1M", "does not permit"),
    ] {
        refused(&world.map("a", &world.local(), name), 4, why);
    }
}

#[test]
fn a_session_that_is_open_is_not_taken_for_one_with_another_server() {
    let world = World::new("servers");
    done(&world.map("a", &world.local(), "disk"));
    refused(
        &world.map("a", "local:another", "other"),
        2,
        "choose another --session",
    );
    done(&world.memlane(&["vol", "unmap", "disk", "--session", &world.session("a")]));
}

#[test]
fn a_session_whose_last_volume_is_unmapped_gives_its_name_to_one_with_another_server_at_once() {
    let world = World::new("gives-way");
    let other = World::new("gives-way-to");
    let unmap =
        || done(&world.memlane(&["vol", "unmap", "disk", "--session", &world.session("a")]));
    for server in [world.local(), other.local(), world.local()] {
        done(&world.map("a", &server, "disk"));
        unmap();
    }
    // To a verb that stays in the foreground, too. That one ends when it is told to, not when it has no volume.
    let export = format!("nbd:unix:{}", world.socket("a").display());
    let mut stays = Command::new(memlane());
    stays.args(["map", "--foreground", "--as", &export]);
    stays.args(["--session", &world.session("a"), &other.local(), "disk"]);
    let mut stays = Running::start(stays);
    let begin = Instant::now();
    while !stays.stdout().contains("nbd+unix") {
        let is_fine = stays.is_running() && begin.elapsed() < LIMIT;
        assert!(is_fine, "{}", stays.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    unmap();
    let said = world.map("a", &world.local(), "disk");
    refused(&said, 2, "choose another --session");
    assert!(stays.is_running());
}

#[test]
fn a_process_that_is_stopped_keeps_a_list_waiting_for_a_moment_and_is_named() {
    let world = World::new("stopped");
    let (stopped, other) = (world.session("a"), world.session("b"));
    done(&world.map("a", &world.local(), "folder/disk"));
    done(&world.map("b", &world.local(), "disk"));
    let pid = world.pid("a");
    signal(&pid, "STOP");
    let begin = Instant::now();
    let said = world.memlane(&["session", "ls"]);
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
    done(&said);
    let told = String::from_utf8_lossy(&said.stderr);
    assert!(told.contains(&format!("{stopped} is left out")), "{said:?}");
    let shown = String::from_utf8_lossy(&said.stdout);
    assert!(shown.contains(&other), "{said:?}");
    signal(&pid, "KILL");
    world.wait_until_gone(&pid);
    done(&world.memlane(&["vol", "unmap", "disk", "--session", &other]));
}

#[test]
fn a_new_size_reaches_the_client() {
    let world = World::new("sizes");
    done(&world.map("a", &world.local(), "disk"));
    done(&world.memlane(&["vol", "resize", "disk", "16M", "--server", &world.name]));
    let begin = Instant::now();
    while world.show("a")["volumes"][0]["size"] != 16 << 20 {
        assert!(begin.elapsed() < LIMIT, "{:#}", world.show("a"));
        std::thread::sleep(Duration::from_millis(20));
    }
    done(&world.memlane(&["vol", "unmap", "disk", "--session", &world.session("a")]));
}

#[test]
fn nobody_listens_beyond_this_machine_by_mistake() {
    let world = World::new("insecure");
    let root = world.dir.path().display().to_string();
    let at = "0.0.0.0:1";
    let said = world.memlane(&["serve", "--root", &root, "--name", "never", "--listen", at]);
    refused(&said, 2, "--insecure");
}
