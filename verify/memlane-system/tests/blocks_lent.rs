//! `memlane serve --lend`: clients of the same machine have the memory of a volume itself. Programs find there what they wrote,
//! nothing is lost when either side is killed, and a volume never has two writers.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlane_system::blocks::alone::{Alone, Mapping};
use memlane_system::blocks::fio::Verifying;
use memlane_system::blocks::writer::{Loses, Writer};
use memlane_system::blocks::{has, memlane, must, seed, skip};
use memlane_system::harness::{Running, is_root};

const LIMIT: Duration = Duration::from_secs(60);
const SIZE: u64 = 32 << 20;

/// A server that lends what lies below its root, which is in memory, and a file there.
struct World {
    alone: Alone,
    file: PathBuf,
    /// The value of `--lend`.
    to: &'static str,
}

impl World {
    /// Clients get what is lent because they run as the server's user.
    fn new(test: &str) -> World {
        World::that_lends(test, "user")
    }

    /// Clients get it because they may trace the server. Not every system lets a user do that who is not root.
    fn by_default(test: &str) -> World {
        World::that_lends(test, if is_root() { "auto" } else { "user" })
    }

    fn that_lends(test: &str, to: &'static str) -> World {
        let mut alone = Alone::in_memory(test);
        let file = alone.volume("disk", SIZE);
        alone.serve(&["--lend", to, "--test-volumes"]);
        World { alone, file, to }
    }

    /// Kills the server and starts it anew.
    fn kill_the_server(&mut self) {
        self.alone.kill();
        self.alone.serve(&["--lend", self.to, "--test-volumes"]);
    }

    /// Maps it by NBD.
    fn nbd(&self, session: &str, volume: &str, more: &[&str]) -> Mapping {
        self.alone.nbd(session, &self.alone.local(), volume, more)
    }

    fn fuse(&self, session: &str) -> Mapping {
        self.alone.fuse(session, &self.alone.local(), "disk", &[])
    }

    /// What comes of mapping the file for writing, in the background.
    fn map(&self, session: &str, more: &[&str]) -> Output {
        let socket = self.alone.dir().join(format!("{session}.sock"));
        let frontend = format!("nbd:unix:{}", socket.display());
        let session = format!("{}-{session}", self.alone.name());
        let (local, first) = (self.alone.local(), ["map", "--session", &session]);
        let rest = ["--as", &frontend, &local, "disk"];
        self.alone.memlane(&[&first, more, &rest].concat())
    }

    /// Maps the file once nobody is in the way any more, and ends that.
    fn must_become_free(&self, session: &str, more: &[&str]) {
        let begin = Instant::now();
        loop {
            let said = self.map(session, more);
            if said.status.success() {
                break;
            }
            assert!(begin.elapsed() < LIMIT, "{said:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let session = format!("{}-{session}", self.alone.name());
        let said = self
            .alone
            .memlane(&["vol", "unmap", "disk", "--session", &session]);
        assert!(said.status.success(), "{said:?}");
    }
}

/// Requests that a session has sent to its server.
fn sent(mapping: &Mapping) -> u64 {
    let session = mapping.show();
    let paths = session["paths"].as_array().expect("paths");
    let count = |path: &serde_json::Value, what: &str| path[what].as_u64().expect("a number");
    let each = |path| count(path, "reads") + count(path, "writes");
    paths.iter().map(each).sum()
}

fn is_lent(mapping: &Mapping) -> bool {
    mapping.show()["volumes"][0]["lent"] == true
}

fn refused(said: &Output, code: i32, why: &str) {
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(
        said.status.code() == Some(code) && text.contains(why),
        "{said:?}"
    );
}

/// Has qemu-io do something to an export.
fn qemu_io(uri: &str, command: &str) {
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw", "-c", command, uri]);
    if command.starts_with("read") {
        qemu.arg("-r");
    }
    let told = must(qemu);
    assert!(!told.contains("failed"), "{told}");
}

/// The file that a volume is shown as.
fn file_of(mapping: &Mapping) -> File {
    let mut options = File::options();
    let file = options.read(true).write(true).open(mapping.shown());
    file.expect("the mounted file")
}

/// Do this file's bytes lie in memory?
fn is_in_memory(path: &Path) -> bool {
    let mut stat = Command::new("stat");
    stat.args(["-f", "-c", "%T"]).arg(path);
    must(stat).trim() == "tmpfs"
}

fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &pid.to_string()]);
    must(kill);
}

fn all_here(test: &str, programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| !has(program));
    if let Some(missing) = missing {
        skip(test, &format!("no {missing}"));
    }
    missing.is_none()
}

fn has_fuse(test: &str) -> bool {
    let there = Path::new("/dev/fuse").exists();
    if !there {
        skip(test, "no /dev/fuse");
    }
    there
}

#[test]
fn fio_finds_what_it_wrote_and_hardly_a_request_reaches_the_server() {
    let test = "lent-fio";
    if !all_here(test, &["fio"]) {
        return;
    }
    let worlds = [World::new(test), World::by_default("lent-fio-by-default")];
    for (world, volume) in worlds
        .iter()
        .flat_map(|world| [(world, "disk"), (world, "mem:32M")])
    {
        let mapping = world.nbd("a", volume, &[]);
        assert!(is_lent(&mapping), "{:#}", mapping.show());
        // People are told, too, at either side.
        let told = world.alone.memlane(&["vol", "ls"]);
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let of_ours = |line: &&str| line.contains(world.alone.name());
        let lines: Vec<&str> = told.lines().filter(of_ours).collect();
        let mapped = lines.iter().any(|line| line.ends_with("ok, lent"));
        let served = lines.iter().any(|line| line.contains(", lent)"));
        assert!(mapped && served, "{told}");
        let before = sent(&mapping);
        let more = ["--bs=4k-256k", "--bsrange=4k-256k"];
        let verdict = Verifying::start(mapping.shown(), 2, &more).must_find_nothing(LIMIT);
        let reached = sent(&mapping) - before;
        assert!(
            verdict.requests > 1000 && reached * 100 < verdict.requests,
            "{reached} of {} requests reached the server",
            verdict.requests
        );
        mapping.end();
    }
}

#[test]
fn what_one_client_writes_in_the_volumes_memory_is_read_by_another_that_asks_the_server() {
    let test = "lent-two";
    if !all_here(test, &["qemu-io"]) {
        return;
    }
    let world = World::new(test);
    for volume in ["disk", "mem:32M"] {
        let writer = world.nbd("a", volume, &[]);
        let reader = world.nbd("b", volume, &["--access", "ro"]);
        let at_tcp = &world.alone.tcp();
        let asker = world.alone.nbd("c", at_tcp, volume, &["--access", "ro"]);
        let lent = [&writer, &reader, &asker].map(is_lent);
        assert_eq!(lent, [true, true, false], "{volume}");
        for (pattern, len) in [(7, "4k"), (8, "100k"), (9, "3M")] {
            qemu_io(writer.shown(), &format!("write -P {pattern} 5M {len}"));
            for other in [&writer, &reader, &asker] {
                qemu_io(other.shown(), &format!("read -P {pattern} 5M {len}"));
            }
        }
        // Zeroes are the server's work, and are seen in the memory.
        qemu_io(writer.shown(), "write -z -u 5M 2M");
        qemu_io(reader.shown(), "read -P 0 5M 2M");
        for mapping in [asker, reader, writer] {
            mapping.end();
        }
    }
}

#[test]
fn a_server_that_is_killed_again_and_again_loses_nothing_and_lends_anew() {
    let test = "lent-server-killed";
    if !has_fuse(test) {
        return;
    }
    let mut world = World::by_default(test);
    let mapping = world.fuse("a");
    let mut writer = Writer::new(0, 512, seed());
    let file = file_of(&mapping);
    for round in 0..4 {
        mapping.wait_until("a loan", |session| session["volumes"][0]["lent"] == true);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| writer.work(&file, &over));
            std::thread::sleep(Duration::from_millis(200));
            world.kill_the_server();
            mapping.wait_until_open();
            std::thread::sleep(Duration::from_millis(100));
            over.store(true, Ordering::SeqCst);
        });
        assert!(!writer.is_unsure(), "a write failed in round {round}");
        let bytes = std::fs::read(&world.file).expect("the file");
        writer.check(&bytes, Loses::Nothing, &format!("round {round}"));
    }
    assert!(writer.writes > 0 && writer.flushes > 0, "{writer:?}");
    drop(file);
    mapping.end();
}

#[test]
fn a_client_that_is_killed_leaves_what_was_acknowledged_and_the_volume_is_free() {
    let test = "lent-client-killed";
    if !has_fuse(test) {
        return;
    }
    let world = World::by_default(test);
    let mut writer = Writer::new(0, 512, seed());
    for round in 0..3 {
        let mapping = world.fuse("a");
        assert!(is_lent(&mapping), "{:#}", mapping.show());
        let file = file_of(&mapping);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let work = scope.spawn(|| writer.work(&file, &over));
            std::thread::sleep(Duration::from_millis(200));
            mapping.kill();
            let begin = Instant::now();
            while !work.is_finished() {
                assert!(begin.elapsed() < LIMIT, "the writer hangs");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let bytes = std::fs::read(&world.file).expect("the file");
        writer.check(&bytes, Loses::Nothing, &format!("round {round}"));
        world.must_become_free("b", &["--take-over"]);
    }
    assert!(writer.writes > 0, "{writer:?}");
}

#[test]
fn a_client_that_is_only_stopped_cannot_lose_its_volume_to_another() {
    let test = "lent-stopped";
    let mut alone = Alone::in_memory(test);
    let file = alone.volume("disk", SIZE);
    alone.serve(&["--lend", "--heartbeat", "200ms"]);
    let world = World {
        alone,
        file,
        to: "user",
    };
    let mapping = world.nbd("a", "disk", &[]);
    assert!(is_lent(&mapping), "{:#}", mapping.show());
    signal(mapping.pid(), "STOP");
    // Long after its heartbeats have ended.
    std::thread::sleep(Duration::from_secs(1));
    refused(
        &world.map("b", &["--take-over"]),
        4,
        "somebody else writes to it",
    );
    signal(mapping.pid(), "CONT");
    mapping.end();
    world.must_become_free("b", &[]);
}

#[test]
fn the_servers_owner_takes_a_lent_volume_back() {
    let test = "lent-release";
    if !has_fuse(test) {
        return;
    }
    let world = World::new(test);
    let mapping = world.fuse("a");
    assert!(is_lent(&mapping), "{:#}", mapping.show());
    let file = file_of(&mapping);
    let write = |byte: u8| {
        let written = file.write_all_at(&[byte; 4096], 0);
        written.and_then(|()| file.sync_data())
    };
    write(1).expect("written");
    let name = world.alone.name();
    let release = [
        "vol",
        "release",
        "disk",
        mapping.session(),
        "--server",
        name,
    ];
    let said = world.alone.memlane(&release);
    assert!(said.status.success(), "{said:?}");
    world.must_become_free("b", &[]);
    assert!(!is_lent(&mapping), "{:#}", mapping.show());
    // By the same queue as before; the server refuses it.
    write(2).expect_err("another client has it now");
    let bytes = std::fs::read(&world.file).expect("the file");
    assert!(bytes[..4096].iter().all(|byte| *byte == 1));
    drop(file);
    mapping.end();
}

#[test]
fn a_server_that_ends_leaves_the_file_locked_until_a_stopped_client_gives_it_back() {
    for (test, killed) in [("lent-term", false), ("lent-kill", true)] {
        let mut world = World::new(test);
        let mapping = world.nbd("a", "disk", &["--on-disconnect", "fail"]);
        assert!(is_lent(&mapping), "{:#}", mapping.show());
        signal(mapping.pid(), "STOP");
        match killed {
            true => world.alone.kill(),
            false => world.alone.end(),
        }
        let file = format!("file:{}", world.file.display());
        let frontend = format!("nbd:unix:{}", world.alone.dir().join("b").display());
        let map = || world.alone.memlane(&["map", "--as", &frontend, &file]);
        let said = map();
        assert!(!said.status.success(), "{said:?}");
        signal(mapping.pid(), "CONT");
        let begin = Instant::now();
        while !map().status.success() {
            assert!(begin.elapsed() < LIMIT, "it stays locked");
            std::thread::sleep(Duration::from_millis(20));
        }
        let said = world.alone.memlane(&["vol", "unmap", &file]);
        assert!(said.status.success(), "{said:?}");
        mapping.end();
    }
}

#[test]
fn a_released_volume_has_no_other_writer_before_its_client_has_given_it_back() {
    let world = World::new("lent-release-stopped");
    let mapping = world.nbd("a", "disk", &[]);
    assert!(is_lent(&mapping), "{:#}", mapping.show());
    signal(mapping.pid(), "STOP");
    let name = world.alone.name();
    let release = [
        "vol",
        "release",
        "disk",
        mapping.session(),
        "--server",
        name,
    ];
    let said = world.alone.memlane(&release);
    assert!(said.status.success(), "{said:?}");
    let said = world.map("b", &["--wait", "1s"]);
    assert!(!said.status.success(), "{said:?}");
    signal(mapping.pid(), "CONT");
    world.must_become_free("c", &[]);
    mapping.end();
}

#[test]
fn a_lent_file_grows_under_its_clients() {
    let test = "lent-grows";
    if !all_here(test, &["qemu-io"]) {
        return;
    }
    let world = World::new(test);
    let mapping = world.nbd("a", "disk", &[]);
    let name = world.alone.name();
    let grown = SIZE * 2;
    let said = world
        .alone
        .memlane(&["vol", "resize", "disk", "64M", "--server", name]);
    assert!(said.status.success(), "{said:?}");
    mapping.wait_until("the new size", |session| {
        session["volumes"][0]["size"].as_u64() == Some(grown)
    });
    let before = sent(&mapping);
    for command in ["write -P 3 40M 1M", "read -P 3 40M 1M"] {
        qemu_io(mapping.shown(), command);
    }
    let mut bytes = [0; 4096];
    let file = File::open(&world.file).expect("the file");
    file.read_exact_at(&mut bytes, 40 << 20).expect("read");
    assert_eq!(bytes, [3; 4096]);
    // Flushes and questions about holes, no data.
    let reached = sent(&mapping) - before;
    assert!(is_lent(&mapping) && reached < 8, "{reached} requests");
    mapping.end();
}

#[test]
fn a_lent_file_is_taken_back_before_it_becomes_smaller() {
    let world = World::new("lent-shrinks");
    let mapping = world.nbd("a", "disk", &[]);
    assert!(is_lent(&mapping), "{:#}", mapping.show());
    let resize = |size: &str| {
        let name = world.alone.name();
        let args = ["vol", "resize", "disk", size, "--server", name];
        world.alone.memlane(&args)
    };
    // A client that cannot give it back holds it up.
    signal(mapping.pid(), "STOP");
    refused(&resize("16M"), 1, "does not give it back: end that mapping");
    assert_eq!(std::fs::metadata(&world.file).expect("a file").len(), SIZE);
    signal(mapping.pid(), "CONT");
    let said = resize("16M");
    assert!(said.status.success(), "{said:?}");
    assert!(!is_lent(&mapping), "{:#}", mapping.show());
    assert_eq!(
        std::fs::metadata(&world.file).expect("a file").len(),
        SIZE / 2
    );
    mapping.end();
}

/// An NBD client that asks for the first bytes of an export, and leaves the reply in its socket.
fn asks_and_does_not_listen(uri: &str, len: u32) -> UnixStream {
    let (_, socket) = uri.split_once("socket=").expect("a unix socket");
    let mut stream = UnixStream::connect(socket).expect("an export");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    // Fixed newstyle, no zeroes; EXPORT_NAME of the default export (nbd's doc/proto.md).
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    stream.write_all(&3_u32.to_be_bytes()).expect("flags");
    let name = [&b"IHAVEOPT"[..], &1_u32.to_be_bytes(), &[0; 4]].concat();
    stream.write_all(&name).expect("an option");
    stream.read_exact(&mut [0; 10]).expect("size and flags");
    let read = 0x2560_9513_u32.to_be_bytes();
    let request = [&read[..], &[0; 20], &len.to_be_bytes()].concat();
    stream.write_all(&request).expect("a request");
    stream
}

#[test]
fn a_lent_file_becomes_smaller_while_a_client_leaves_the_reply_to_a_read_in_its_socket() {
    const LEN: u32 = 8 << 20;
    let world = World::new("lent-half-sent");
    let bytes: Vec<u8> = (0..LEN).map(|n| (n >> 12).to_le_bytes()[0]).collect();
    let file = File::options().write(true).open(&world.file);
    file.expect("the file")
        .write_all_at(&bytes, 0)
        .expect("written");
    let mapping = world.nbd("a", "disk", &[]);
    assert!(is_lent(&mapping), "{:#}", mapping.show());
    let mut stream = asks_and_does_not_listen(mapping.shown(), LEN);
    mapping.wait_until("a part is sent", |session| {
        let read = session["volumes"][0]["counters"]["read_bytes"].as_u64();
        read.is_some_and(|read| read > 8192)
    });
    let name = world.alone.name();
    let resize = ["vol", "resize", "disk", "16M", "--server", name];
    let said = world.alone.memlane(&resize);
    assert!(said.status.success(), "{said:?}");
    assert!(!is_lent(&mapping), "{:#}", mapping.show());
    let mut reply = vec![0; LEN as usize + 16];
    stream.read_exact(&mut reply).expect("all of it");
    assert_eq!(reply[4..8], [0; 4], "no error");
    assert!(reply[16..] == bytes, "the file's bytes");
    mapping.end();
}

#[test]
fn nothing_is_lent_by_tcp_from_a_disk_against_the_servers_will_or_beyond_a_file_size_limit() {
    let test = "lent-not";
    let world = World::new(test);
    if has("prlimit") {
        // More than a session's own memory has.
        world.alone.volume("big", 1 << 30);
        let socket = world.alone.dir().join("limited.sock");
        let session = format!("{}-limited", world.alone.name());
        let mut map = Command::new("prlimit");
        map.arg(format!("--fsize={}", 512 << 20)).arg(memlane());
        map.args(["map", "--session", &session, "--as"]);
        map.arg(format!("nbd:unix:{}", socket.display()));
        must({
            map.args([&world.alone.local(), "big"]);
            map
        });
        let told = world
            .alone
            .memlane(&["session", "show", &session, "--json"]);
        let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("a document");
        let unmap = ["vol", "unmap", "big", "--session", &session];
        world.alone.memlane(&unmap);
        assert_eq!(told["volumes"][0]["lent"], false, "{told:#}");
    }
    let by_tcp = world.alone.nbd("a", &world.alone.tcp(), "disk", &[]);
    assert!(!is_lent(&by_tcp));
    if has("qemu-io") {
        let before = sent(&by_tcp);
        qemu_io(by_tcp.shown(), "write -P 4 1M 4k");
        assert!(sent(&by_tcp) > before, "what is not lent is asked for");
    }
    by_tcp.end();
    let mut plain = Alone::in_memory("lent-without");
    plain.volume("disk", SIZE);
    plain.serve(&["--lend", "never"]);
    let not_asked = plain.nbd("a", &plain.local(), "disk", &[]);
    assert!(!is_lent(&not_asked));
    not_asked.end();
    let mut on_disk = Alone::new("lent-disk");
    on_disk.volume("disk", SIZE);
    on_disk.serve(&["--lend"]);
    let elsewhere = on_disk.nbd("a", &on_disk.local(), "disk", &[]);
    assert_eq!(is_lent(&elsewhere), is_in_memory(on_disk.dir()));
    elsewhere.end();
}

#[test]
fn another_user_does_without_a_loan_and_root_borrows_from_every_user() {
    let test = "lent-users";
    if !is_root() || !has("setpriv") {
        return skip(test, "not root, or no setpriv: there is no other user");
    }
    let world = World::new(test);
    let others = Others::new(&world.alone);
    assert_eq!(others.is_lent(&world.alone.local(), "disk"), [false]);
    for to in ["user", "auto"] {
        let at = format!("{}-{to}", world.alone.name());
        let server = others.serve(65534, &at, &["--lend", to]);
        let mapping = world
            .alone
            .nbd("root", &format!("local:{at}"), "mem:1M", &[]);
        assert!(is_lent(&mapping), "{to}: {:#}", mapping.show());
        mapping.end();
        drop(server);
    }
}

#[test]
fn a_client_of_the_same_user_borrows_by_default_if_it_may_trace_the_server() {
    let test = "lent-traced";
    if !is_root() || !has("setpriv") {
        return skip(test, "not root, or no setpriv: there is no other user");
    }
    if std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .is_ok_and(|scope| scope.trim() != "0")
    {
        return skip(test, "processes of one user may not trace each other here");
    }
    let alone = Alone::in_memory(test);
    let others = Others::new(&alone);
    // A process of the same user may not be traced if it has another group.
    let (same, other) = (65534, 65533);
    for (number, (group, lend, expected)) in [
        (same, &[][..], true),
        (other, &[], false),
        (other, &["--lend"], true),
        (same, &["--lend", "never"], false),
    ]
    .into_iter()
    .enumerate()
    {
        let at = format!("{}-{number}", alone.name());
        let server = others.serve(group, &at, lend);
        let told = others.is_lent(&format!("local:{at}"), "mem:1M");
        assert_eq!(told, [expected], "{group} {lend:?}");
        drop(server);
    }
}

/// Another user than root, and what it has.
struct Others {
    dir: PathBuf,
    session: String,
}

impl Others {
    fn new(alone: &Alone) -> Others {
        let dir = alone.dir().join("theirs");
        std::fs::create_dir_all(dir.join("root")).expect("folders");
        std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).expect("theirs");
        let session = format!("{}-theirs", alone.name());
        Others { dir, session }
    }

    /// The command of this user, in that group.
    fn command(&self, group: u32) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", &format!("--regid={group}")]);
        command.arg("--clear-groups").arg(memlane());
        command
    }

    /// Starts a server of that name.
    fn serve(&self, group: u32, name: &str, more: &[&str]) -> Running {
        let mut serve = self.command(group);
        serve.args(["serve", "--test-volumes", "--name", name]);
        serve.args(["--listen", &format!("local:{name}"), "--root"]);
        serve.arg(self.dir.join("root")).args(more);
        let mut server = Running::start(serve);
        server.wait_until_said("serving", 1);
        server
    }

    /// Maps a volume, and tells of each that the session has whether it is lent; all are in order.
    fn is_lent(&self, at: &str, volume: &str) -> Vec<bool> {
        let socket = self.dir.join("nbd");
        let frontend = format!("nbd:unix:{}", socket.display());
        let memlane = |args: &[&str]| {
            let mut command = self.command(65534);
            command.args(args);
            must(command)
        };
        let session = &self.session;
        memlane(&["map", "--session", session, "--as", &frontend, at, volume]);
        let told = memlane(&["session", "show", session, "--json"]);
        let told: serde_json::Value = serde_json::from_str(&told).expect("a document");
        memlane(&["vol", "unmap", volume, "--session", session]);
        let volumes = told["volumes"].as_array().expect("volumes");
        let lent = |volume: &serde_json::Value| {
            assert_eq!(volume["state"], "ok", "{told:#}");
            volume["lent"] == true
        };
        volumes.iter().map(lent).collect()
    }
}
