//! `memlane map file:PATH`: a file of this machine, shown without a server. Common programs find in it what they wrote, one
//! process writes it at a time, and nothing is lost when that process is killed.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlane_system::blocks::alone::{Alone, Mapping};
use memlane_system::blocks::fio::Verifying;
use memlane_system::blocks::writer::{Loses, Writer};
use memlane_system::blocks::{Rng, has, must, seed, skip};
use memlane_system::harness::{Running, is_root};

const LIMIT: Duration = Duration::from_secs(60);
const SIZE: u64 = 24 << 20;

fn all_here(test: &str, programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| !has(program));
    if let Some(missing) = missing {
        skip(test, &format!("no {missing}"));
    }
    missing.is_none()
}

fn run(program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args);
    must(command)
}

fn refused(said: &Output, code: i32, why: &str) {
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(
        said.status.code() == Some(code) && text.contains(why),
        "{said:?}"
    );
    assert!(said.stdout.is_empty(), "{said:?}");
}

fn done(said: &Output) -> String {
    assert!(said.status.success(), "{said:?}");
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// Bytes that a file takes of its disk.
fn taken(file: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(file).expect("the file").blocks() * 512
}

/// A folder with a file to be mapped.
struct World {
    alone: Alone,
    file: PathBuf,
}

impl World {
    fn new(test: &str) -> World {
        let alone = Alone::new(test);
        let file = alone.volume("disk", SIZE);
        World { alone, file }
    }

    fn at(&self, name: &str) -> String {
        self.alone.dir().join(name).display().to_string()
    }

    /// As `map` takes it.
    fn server(&self) -> String {
        format!("file:{}", self.file.display())
    }

    fn socket(&self, name: &str) -> String {
        format!("nbd:unix:{}", self.at(name))
    }

    fn nbd(&self, more: &[&str]) -> Mapping {
        self.alone.direct(&self.file, &self.socket("nbd"), more)
    }

    /// In the background.
    fn map(&self, frontend: &str, more: &[&str]) -> Output {
        let server = self.server();
        let args = [&["map", "--as", frontend], more, &[&server]].concat();
        self.alone.memlane(&args)
    }

    fn vol(&self, args: &[&str]) -> Output {
        self.alone.memlane(&[&["vol"], args].concat())
    }

    fn show(&self) -> serde_json::Value {
        let said = self.vol(&["show", &self.server(), "--json"]);
        serde_json::from_str(&done(&said)).expect("a document")
    }
}

/// What qemu-io does to a disk: odd pieces, zeroes, discards.
fn script() -> Vec<String> {
    let place = |i: u64| (i * 37 % 40) * 300_000 + i * 13;
    let writes = (1..40).map(|i| format!("aio_write -P {i} {} {}", place(i), 1000 + i * 2500));
    let reads = (1..40).map(|i| format!("read -P {i} {} {}", place(i), 1000 + i * 2500));
    let last = [
        "write -f -P 5 0 4096",
        "write -z 13M 8192",
        "write -z -u 14M 2M",
        "write -P 9 18M 1M",
        "discard 18M 512k",
        "flush",
        "read -P 0 14M 2M",
        "read -P 9 18944k 512k",
    ];
    let flush = std::iter::once("aio_flush".to_owned());
    let first = writes.chain(flush).chain(reads);
    first.chain(last.map(String::from)).collect()
}

fn qemu_io(uri: &str) {
    let mut args = vec!["-f", "raw", "-t", "none"];
    let commands = script();
    for command in &commands {
        args.extend(["-c", command.as_str()]);
    }
    args.push(uri);
    let told = run("qemu-io", &args);
    let bad = ["Pattern verification failed", "rror", "failed"];
    assert!(!bad.iter().any(|bad| told.contains(bad)), "{told}");
}

#[test]
fn libnbds_tools_copy_images_in_and_out_of_a_mapped_file_and_holes_stay_holes() {
    let test = "direct-libnbd";
    if !all_here(test, &["nbdinfo", "nbdcopy"]) {
        return;
    }
    let world = World::new(test);
    let mapping = world.nbd(&[]);
    let uri = mapping.shown();
    assert_eq!(run("nbdinfo", &["--size", uri]).trim(), SIZE.to_string());
    for ability in ["multi-conn", "flush", "fua", "trim", "zero", "df", "write"] {
        run("nbdinfo", &["--can", ability, uri]);
    }
    let mut rng = Rng(seed());
    let words = std::iter::repeat_with(|| rng.next().to_le_bytes());
    let image: Vec<u8> = words.flatten().take(3 << 20).collect();
    let sparse = std::fs::File::create(world.at("in")).expect("a file");
    sparse.set_len(SIZE).expect("its size");
    std::os::unix::fs::FileExt::write_all_at(&sparse, &image, 5 << 20).expect("written");
    let [from, to] = ["in", "out"].map(|name| world.at(name));
    run("nbdcopy", &["--flush", "--connections=3", &from, uri]);
    run("nbdcopy", &["--connections=2", "--requests=32", uri, &to]);
    let image = std::fs::read(&from).expect("the image");
    assert!(std::fs::read(&world.file).expect("the file") == image);
    assert!(std::fs::read(&to).expect("copied") == image);
    assert!(taken(&world.file) < 5 << 20, "{} bytes", taken(&world.file));
    let map = run("nbdinfo", &["--map", uri]);
    assert!(map.lines().any(|line| line.contains("hole,zero")), "{map}");
    mapping.end();
}

#[test]
fn the_same_script_leaves_the_same_image_behind_as_with_nbdkits_file() {
    let test = "direct-nbdkit";
    if !all_here(test, &["qemu-io", "nbdkit"]) {
        return;
    }
    let world = World::new(test);
    let mapping = world.nbd(&[]);
    qemu_io(mapping.shown());
    mapping.end();
    let other = world.alone.volume("other", SIZE);
    let socket = world.at("nbdkit");
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix", &socket]);
    let mut nbdkit = Running::start({
        command.arg("file").arg(&other);
        command
    });
    nbdkit.wait_until(LIMIT, "a socket", || Path::new(&socket).exists());
    qemu_io(&format!("nbd+unix:///?socket={socket}"));
    drop(nbdkit.stop());
    let [ours, theirs] = [&world.file, &other].map(|file| std::fs::read(file).expect("a file"));
    assert!(ours == theirs && ours.iter().any(|byte| *byte != 0));
    assert!(taken(&world.file) <= taken(&other) + (1 << 20));
}

#[test]
fn fio_finds_what_it_wrote_to_a_file_on_a_disk_and_to_one_in_memory() {
    let test = "direct-fio";
    if !all_here(test, &["fio"]) {
        return;
    }
    let world = World::new(test);
    let memory = PathBuf::from(format!("/dev/shm/memlane-direct-{}", std::process::id()));
    for file in [&world.file, &memory] {
        let made = std::fs::File::create(file).expect("a file");
        made.set_len(32 << 20).expect("its size");
        let mapping = world.alone.direct(file, &world.socket("nbd"), &[]);
        let verdict = Verifying::start(mapping.shown(), 2, &[]).must_find_nothing(LIMIT);
        assert!(verdict.requests > 100, "{verdict:?}");
        mapping.end();
    }
    std::fs::remove_file(memory).expect("removed");
}

/// A file that goes with its owner.
struct InMemory(PathBuf);

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_file_in_memory_that_shrinks_while_it_is_read_costs_errors_and_not_the_process() {
    let test = "direct-shrinks";
    if !all_here(test, &["nbdcopy", "qemu-io"]) {
        return;
    }
    let mut world = World::new(test);
    let name = format!("/dev/shm/memlane-direct-shrinks-{}", std::process::id());
    let memory = InMemory(PathBuf::from(&name));
    let whole = vec![7; usize::try_from(SIZE).expect("small")];
    std::fs::write(&memory.0, &whole).expect("written");
    world.file.clone_from(&memory.0);
    let mapping = world.nbd(&[]);
    let uri = mapping.shown();
    let copy = || Command::new("nbdcopy").args([uri, "null:"]).output();
    assert!(copy().expect("started").status.success());
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", mapping.pid()));
    assert!(maps.expect("it runs").contains(&name), "not mapped");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                copy().expect("started");
            }
        });
        let file = std::fs::File::options().write(true).open(&memory.0);
        let file = file.expect("the file");
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(3) {
            file.set_len(SIZE / 3).expect("shorter");
            std::thread::sleep(Duration::from_millis(1));
            std::os::unix::fs::FileExt::write_all_at(&file, &whole, 0).expect("written");
            std::thread::sleep(Duration::from_millis(5));
        }
        over.store(true, Ordering::Relaxed);
    });
    // It has its size again, which is noticed within a second.
    std::thread::sleep(Duration::from_millis(1200));
    let read = run(
        "qemu-io",
        &["-r", "-f", "raw", "-c", "read -P 7 0 24M", uri],
    );
    assert!(!read.contains("failed"), "{read}");
    mapping.end();
}

#[test]
fn a_file_has_one_writer_whether_it_is_served_or_mapped() {
    let test = "direct-writers";
    let mut world = World::new(test);
    let mapping = world.nbd(&[]);
    let in_use = "is in use";
    refused(&world.map(&world.socket("b"), &[]), 1, "mapped already");
    // By another name.
    let link = world.alone.dir().join("link");
    std::os::unix::fs::symlink(&world.file, &link).expect("a link");
    let linked = format!("file:{}", link.display());
    let map = |more: &[&str]| {
        let frontend = world.socket("b");
        let args = [&["map", "--as", &frontend], more, &[&linked]].concat();
        world.alone.memlane(&args)
    };
    refused(&map(&[]), 1, in_use);
    // Readers may.
    done(&map(&["--access", "ro"]));
    done(&world.vol(&["unmap", &linked]));
    world.alone.serve(&[]);
    let session = format!("{}-b", world.alone.name());
    let (frontend, local) = (world.socket("c"), world.alone.local());
    let served = |access: &str| {
        let flags = ["map", "--session", &session, "--access", access, "--as"];
        let args = [&flags[..], &[&frontend, &local, "disk"]].concat();
        world.alone.memlane(&args)
    };
    let said = served("rw");
    assert!(!said.status.success(), "{said:?}");
    mapping.end();
    done(&served("rw"));
    refused(&world.map(&world.socket("nbd"), &[]), 1, in_use);
    done(&world.vol(&["unmap", "disk", "--session", &session]));
    // The server gives the file back when the session has closed it.
    let begin = Instant::now();
    while !world.map(&world.socket("nbd"), &[]).status.success() {
        assert!(begin.elapsed() < LIMIT, "it stays claimed");
        std::thread::sleep(Duration::from_millis(20));
    }
    done(&world.vol(&["unmap", &world.server()]));
}

#[test]
fn what_needs_a_server_is_refused() {
    let world = World::new("direct-refused");
    let frontend = world.socket("nbd");
    let map = |more: &[&str]| world.map(&frontend, more);
    for flags in [
        &["--session", "a"][..],
        &["--path", "192.0.2.1"],
        &["--policy", "rr"],
        &["--access", "migration"],
        &["--take-over"],
        &["--on-disconnect", "fail"],
        &["--heartbeat", "1s"],
        &["--wait", "1s"],
        &["--connections", "2"],
        &["--tls", world.alone.dir().to_str().expect("text")],
    ] {
        refused(&map(flags), 2, flags[0]);
    }
    let server = world.server();
    let named = ["map", "--as", &frontend, &server, "disk"];
    refused(&world.alone.memlane(&named), 2, "leave \"disk\" out");
    let nameless = ["map", "--as", &frontend, "local"];
    refused(&world.alone.memlane(&nameless), 2, "name the volume");
    for (file, why) in [
        ("file:/nowhere", "No such file"),
        (
            "file:/dev/null",
            "neither a regular file nor a block device",
        ),
        ("file:/", "neither a regular file nor a block device"),
    ] {
        let args = ["map", "--as", &frontend, file];
        refused(&world.alone.memlane(&args), 1, why);
    }
}

#[test]
fn the_verbs_of_volumes_know_a_mapped_file_and_those_of_sessions_do_not() {
    let world = World::new("direct-verbs");
    let said = world.map(&world.socket("nbd"), &["--json"]);
    let told: serde_json::Value = serde_json::from_str(&done(&said)).expect("a document");
    let (server, process) = (world.server(), told["session"].as_str().expect("a name"));
    assert_eq!(told["volume"], server.as_str());
    let listed = done(&world.vol(&["ls"]));
    assert!(listed.contains(&server), "{listed}");
    let shown = world.show();
    assert_eq!(
        (&shown["direct"], &shown["size"]),
        (&true.into(), &SIZE.into())
    );
    assert_eq!(shown["access"], "rw");
    let sessions = done(&world.alone.memlane(&["session", "ls"]));
    assert!(!sessions.contains(process), "{sessions}");
    let session = |args: &[&str]| world.alone.memlane(&[&["session"], args].concat());
    refused(&session(&["show", process]), 2, "no session");
    refused(
        &session(&["add-path", process, "192.0.2.1"]),
        2,
        "no session",
    );
    refused(&world.vol(&["remap", &server]), 2, "no server");
    refused(&world.vol(&["resize", &server, "1000"]), 1, "cannot resize");
    done(&world.vol(&["resize", &server, "32M"]));
    assert_eq!(world.show()["size"], 32 << 20);
    done(&world.vol(&["unmap", &server]));
    assert!(!Path::new(&world.at("nbd")).exists());
    refused(&world.vol(&["unmap", &server]), 1, "no volume");
    // One that was named by a path that is not complete.
    let mut command = Command::new(memlane_system::blocks::memlane());
    command.args(["map", "--as", &world.socket("nbd"), "file:disk"]);
    must({
        command.current_dir(world.alone.root());
        command
    });
    done(&world.vol(&["unmap", &server]));
}

#[test]
fn a_file_that_is_mapped_read_only_stays_as_it_is() {
    let test = "direct-read-only";
    if !all_here(test, &["qemu-io", "nbdinfo"]) {
        return;
    }
    let world = World::new(test);
    std::fs::write(&world.file, vec![7; 1 << 20]).expect("written");
    let mapping = world.nbd(&["--access", "ro"]);
    let uri = mapping.shown();
    run("nbdinfo", &["--is", "read-only", uri]);
    let read = ["-r", "-f", "raw", "-c", "read -P 7 0 1M", uri];
    assert!(!run("qemu-io", &read).contains("failed"));
    let mut write = Command::new("qemu-io");
    write.args(["-f", "raw", "-c", "write -P 1 0 4k", uri]);
    let said = write.output().expect("qemu-io");
    let text = [said.stdout, said.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(!text.contains("wrote"), "{text}");
    refused(
        &world.vol(&["resize", &world.server(), "2M"]),
        1,
        "read-only",
    );
    mapping.end();
    assert!(std::fs::read(&world.file).expect("the file") == vec![7; 1 << 20]);
}

#[test]
fn nothing_that_was_written_is_lost_when_the_process_is_killed() {
    let test = "direct-killed";
    if !Path::new("/dev/fuse").exists() {
        skip(test, "no /dev/fuse");
        return;
    }
    let world = World::new(test);
    let mount = world.at("fuse");
    let mut writer = Writer::new(0, 512, seed());
    for round in 0..3 {
        let mapping = world
            .alone
            .direct(&world.file, &format!("fuse:{mount}"), &[]);
        let mut options = std::fs::File::options();
        let file = options.read(true).write(true).open(&mount);
        let file = file.expect("the mounted file");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let work = scope.spawn(|| writer.work(&file, &over));
            std::thread::sleep(Duration::from_millis(300));
            mapping.kill();
            // A write fails at the latest when the mount is gone.
            let begin = Instant::now();
            while !work.is_finished() {
                assert!(begin.elapsed() < LIMIT, "the writer hangs");
                std::thread::sleep(Duration::from_millis(5));
            }
            over.store(true, Ordering::SeqCst);
        });
        let bytes = std::fs::read(&world.file).expect("the file");
        writer.check(&bytes, Loses::Nothing, &format!("round {round}"));
    }
    assert!(writer.writes > 0 && writer.flushes > 0, "{writer:?}");
}

#[test]
fn what_is_left_of_a_killed_process_is_taken_over_or_pruned() {
    let test = "direct-leftovers";
    if !Path::new("/dev/fuse").exists() {
        skip(test, "no /dev/fuse");
        return;
    }
    let world = World::new(test);
    let kill = || {
        let process = world.show()["session"].as_str().expect("a name").to_owned();
        // Its socket says whose it is.
        let pids = run("pgrep", &["-f", "__volumes"]);
        let marker = world.file.display().to_string();
        let holds = |pid: &&str| {
            let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter();
            let mut links = fds
                .flatten()
                .flatten()
                .filter_map(|fd| std::fs::read_link(fd.path()).ok());
            links.any(|link| link.display().to_string() == marker)
        };
        let pid = pids.lines().find(holds).expect("its process").to_owned();
        run("kill", &["-s", "KILL", &pid]);
        // The kernel closes the descriptors, its socket among them, when the last thread has ended. The first one may be a
        // zombie before that, so whoever asks the process may still find its socket.
        let lives = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state = stat
                .rsplit(')')
                .next()
                .and_then(|rest| rest.trim().chars().next());
            !matches!(state, None | Some('Z' | 'X'))
        };
        let begin = Instant::now();
        while lives() {
            assert!(begin.elapsed() < LIMIT, "{process} lives");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // A socket is taken over.
    done(&world.map(&world.socket("nbd"), &[]));
    kill();
    done(&world.map(&world.socket("nbd"), &[]));
    done(&world.vol(&["unmap", &world.server()]));
    // A mount is pruned.
    let mount = world.at("fuse");
    done(&world.map(&format!("fuse:{mount}"), &[]));
    kill();
    let begin = Instant::now();
    while std::fs::metadata(&mount).is_ok() {
        assert!(begin.elapsed() < LIMIT, "the mount lives");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pruned = done(&world.vol(&["prune"]));
    assert!(pruned.contains(&mount), "{pruned}");
}

#[test]
fn a_file_is_shown_as_a_file_a_loop_device_and_a_virtual_machines_disk() {
    let test = "direct-frontends";
    let world = World::new(test);
    let socket = world.at("vhost");
    let mapping = world
        .alone
        .direct(&world.file, &format!("vhost-user:{socket}"), &[]);
    assert!(Path::new(&socket).exists());
    mapping.end();
    let tcp = world.alone.direct(&world.file, "nbd:tcp:127.0.0.1:0", &[]);
    assert!(
        tcp.shown().starts_with("nbd://127.0.0.1:"),
        "{}",
        tcp.shown()
    );
    tcp.end();
    if !is_root() || !Path::new("/dev/loop-control").exists() {
        skip(test, "no loop devices");
        return;
    }
    let device = world.alone.direct(&world.file, "loop", &[]);
    let size = run("blockdev", &["--getsize64", device.shown()]);
    assert_eq!(size.trim(), SIZE.to_string());
    device.end();
    // A device needs no server either.
    let made = run("losetup", &["-f", "--show", &world.at("root/disk")]);
    let device = PathBuf::from(made.trim());
    let mapping = world.alone.direct(&device, &world.socket("device"), &[]);
    let frontend = world.socket("second");
    let second = [
        "map",
        "--as",
        &frontend,
        &format!("file:{}", device.display()),
    ];
    let said = world.alone.memlane(&second);
    mapping.end();
    run("losetup", &["-d", made.trim()]);
    refused(&said, 1, "mapped already");
}

/// As udev does with each device that appears or changes.
#[test]
fn a_loop_device_that_somebody_only_looks_at_is_unmapped() {
    let test = "direct-looked-at";
    if !is_root() || !Path::new("/dev/loop-control").exists() {
        skip(test, "no loop devices");
        return;
    }
    let world = World::new(test);
    let mapping = world.alone.direct(&world.file, "loop", &[]);
    let look = format!("exec 3<{}; echo open; sleep 0.4", mapping.shown());
    let mut looker = Command::new("sh")
        .args(["-c", &look])
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh");
    let mut said = [0; 5];
    let mut stdout = looker.stdout.take().expect("a pipe");
    stdout.read_exact(&mut said).expect("it has it open");
    done(&world.vol(&["unmap", &world.server()]));
    drop(mapping);
    looker.wait().expect("waited");
}
