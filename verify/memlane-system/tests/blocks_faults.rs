//! Faults behind a volume, in front of it, and between. Each gives a clear error and disturbs nobody else, and no
//! acknowledged write is lost.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlane_system::blocks::alone::{Alone, Mapping};
use memlane_system::blocks::fio::{Verdict, Verifying};
use memlane_system::blocks::proxy::Proxy;
use memlane_system::blocks::{Rng, has, seed, skip};
use memlane_system::harness::{self, free_port};

const LIMIT: Duration = Duration::from_secs(60);
const SIZE: u64 = 40 << 20;

fn all_here(test: &str, programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| !has(program));
    if let Some(missing) = missing {
        skip(test, &format!("no {missing}"));
    }
    missing.is_none()
}

/// A server that serves `disk`.
fn serving(test: &str, more: &[&str]) -> Alone {
    let mut alone = Alone::new(test);
    alone.volume("disk", SIZE);
    alone.serve(more);
    alone
}

/// One command of qemu-io, past all caches.
fn qemu_io(mapping: &Mapping, command: &str) -> String {
    let mut program = Command::new("qemu-io");
    program
        .args(["-f", "raw", "-t", "none", "-c", command])
        .arg(mapping.shown());
    let Output { stdout, stderr, .. } = program.output().expect("qemu-io");
    String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()
}

#[track_caller]
fn works(mapping: &Mapping) {
    for command in ["write -P 77 1M 64k", "flush", "read -P 77 1M 64k"] {
        let said = qemu_io(mapping, command);
        assert!(
            !said.contains("failed") && !said.contains("error"),
            "{command}: {said}"
        );
    }
}

#[track_caller]
fn fails(mapping: &Mapping, command: &str, why: &str) {
    let said = qemu_io(mapping, command);
    assert!(said.contains(why), "{command}: {said}");
}

/// Waits until the server tells a reason for `volume`'s last error.
#[track_caller]
fn tells(alone: &Alone, volume: &str, why: &str) {
    let begin = Instant::now();
    let last = || alone.served(volume)["last_error"].to_string();
    while !last().contains(why) {
        assert!(begin.elapsed() < LIMIT, "{volume}: {}", last());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn tell(test: &str, what: &str, verdict: &Verdict) {
    println!(
        "{test}: {what}: {} requests, the longest took {:.0} ms",
        verdict.requests,
        verdict.longest.as_secs_f64() * 1000.0
    );
}

#[test]
fn a_file_that_shrinks_costs_what_it_lost_and_other_volumes_nothing() {
    let test = "faults-shrinks";
    if !all_here(test, &["qemu-io"]) {
        return;
    }
    let alone = serving(test, &[]);
    alone.volume("other", SIZE);
    let disk = alone.nbd("disk", &alone.tcp(), "disk", &[]);
    let other = alone.nbd("other", &alone.tcp(), "other", &[]);
    works(&disk);
    assert!(!qemu_io(&disk, "write -P 3 30M 64k").contains("failed"));
    let file = std::fs::File::options()
        .write(true)
        .open(alone.root().join("disk"));
    file.expect("the file").set_len(16 << 20).expect("shorter");
    fails(&disk, "read 30M 64k", "Input/output error");
    tells(&alone, "disk", "it has shrunk");
    works(&disk);
    works(&other);
}

#[test]
fn a_full_file_system_is_told_as_such_and_what_was_acknowledged_is_there() {
    let test = "faults-full";
    if !harness::is_root() {
        return eprintln!("SKIPPED {test}: not root: no small file system");
    }
    if !all_here(test, &["qemu-io"]) {
        return;
    }
    let mut alone = Alone::new(test);
    let small = Small::mount(alone.root());
    alone.volume("disk", SIZE);
    alone.serve(&[]);
    let disk = alone.nbd("disk", &alone.local(), "disk", &[]);
    let mut written = Vec::new();
    for n in 0..12_u64 {
        let said = qemu_io(&disk, &format!("write -P {} {n}M 1M", n + 1));
        match said.contains("No space left on device") {
            true => break,
            false => written.push(n),
        }
    }
    assert!((3..12).contains(&written.len()), "{written:?}");
    tells(&alone, "disk", "No space left on device");
    for n in &written {
        let said = qemu_io(&disk, &format!("read -P {} {n}M 1M", n + 1));
        assert!(!said.contains("failed"), "{said}");
    }
    // What is given back can be used again.
    assert!(!qemu_io(&disk, "discard 0 2M").contains("failed"));
    let said = qemu_io(&disk, "write -P 99 30M 1M");
    assert!(!said.contains("No space"), "{said}");
    drop(disk);
    alone.kill();
    drop(small);
}

/// A tmpfs of 6 MiB, mounted until it is dropped.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf) -> Small {
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=6m", "none"])
            .arg(&at);
        memlane_system::blocks::must(mount);
        Small(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The file of one server's volume is another server's volume, shown by FUSE: when that one fails, the file does.
#[test]
fn a_file_with_io_errors_gives_io_errors_and_is_whole_when_it_gives_none() {
    let test = "faults-eio";
    if std::fs::File::open("/dev/fuse").is_err() {
        return eprintln!("SKIPPED {test}: no /dev/fuse");
    }
    if !all_here(test, &["qemu-io"]) {
        return;
    }
    let mut below = serving("faults-eio-below", &[]);
    let file = below.fuse("file", &below.tcp(), "disk", &["--on-disconnect", "fail"]);
    let mut above = Alone::new(test);
    // A volume is no link that leads out of the root: the folder of the mount is the root.
    std::fs::write(above.root().join("other"), vec![0; 4 << 20]).expect("a file");
    let bound = Bound::mount(file.shown().into(), above.root().join("disk"));
    above.serve(&[]);
    let disk = above.nbd("disk", &above.tcp(), "disk", &[]);
    let other = above.nbd("other", &above.tcp(), "other", &[]);
    let Some(_bound) = bound else {
        return eprintln!("SKIPPED {test}: no bind mounts without root");
    };
    works(&disk);
    below.kill();
    fails(&disk, "read 4M 64k", "Input/output error");
    fails(&disk, "write 4M 64k", "Input/output error");
    tells(&above, "disk", "Input/output error");
    works(&other);
    below.serve(&[]);
    file.wait_for_paths(1);
    file.wait_until_open();
    let said = qemu_io(&disk, "read -P 77 1M 64k");
    assert!(
        !said.contains("failed") && !said.contains("error"),
        "{said}"
    );
    works(&disk);
    drop((disk, other));
    above.kill();
}

/// A file that is mounted over another until this is dropped.
struct Bound(PathBuf);

impl Bound {
    fn mount(from: PathBuf, at: PathBuf) -> Option<Bound> {
        std::fs::write(&at, "").expect("a file");
        let mut mount = Command::new("mount");
        let said = mount
            .arg("--bind")
            .args([&from, &at])
            .output()
            .expect("mount");
        said.status.success().then_some(Bound(at))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_server_that_comes_back_with_other_chunks_is_told_and_the_old_ones_work_again() {
    let test = "faults-depth";
    if !all_here(test, &["qemu-io"]) {
        return;
    }
    let mut alone = serving(test, &["--queue-depth", "64"]);
    let more = ["--on-disconnect", "queue:20s"];
    let disk = alone.nbd("disk", &alone.tcp(), "disk", &more);
    works(&disk);
    let path = disk.show()["paths"][0]["path"]
        .as_str()
        .expect("a path")
        .to_owned();
    alone.kill();
    alone.serve(&["--queue-depth", "32"]);
    disk.wait_until("the path is given up", |session| {
        session["paths"][0]["state"] == "closed"
    });
    // The server reports it.
    disk.wait_until("an event", |session| {
        session["events"].to_string().contains("closed")
    });
    alone.kill();
    alone.serve(&["--queue-depth", "64"]);
    let at = alone.tcp();
    for args in [
        ["rm-path", disk.session(), &path],
        ["add-path", disk.session(), &at],
    ] {
        let said = alone.memlane(&["session", args[0], args[1], args[2]]);
        assert!(said.status.success(), "{said:?}");
    }
    disk.wait_for_paths(1);
    works(&disk);
}

#[test]
fn strangers_at_every_door_disturb_nobody() {
    let test = "faults-strangers";
    if !all_here(test, &["fio"]) {
        return;
    }
    let metrics = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let alone = serving(test, &["--metrics", &metrics[0]]);
    let mapping = alone.nbd("disk", &alone.tcp(), "disk", &["--metrics", &metrics[1]]);
    let socket = alone.dir().join("disk.sock");
    let control = format!("memlane/session/0/{}", mapping.session());
    let fio = Verifying::start(mapping.shown(), 3, &[]);
    let over = AtomicBool::new(false);
    let verdict = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng(seed());
            while !over.load(Ordering::SeqCst) {
                let noise: Vec<u8> = (0..rng.below(3000))
                    .map(|_| rng.next().to_le_bytes()[0])
                    .collect();
                for at in [&alone.tcp(), &metrics[0], &metrics[1]] {
                    if let Ok(mut stream) = TcpStream::connect(at) {
                        let _ = stream.write_all(&noise);
                    }
                }
                if let Ok(mut stream) = UnixStream::connect(&socket) {
                    let _ = stream.write_all(&noise);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        scope.spawn(|| {
            // One that says nothing for long is at each door, too.
            let silent: Vec<_> = [alone.tcp(), metrics[0].clone(), metrics[1].clone()]
                .iter()
                .map(TcpStream::connect)
                .collect();
            std::thread::sleep(Duration::from_secs(2));
            drop(silent);
        });
        let verdict = fio.must_find_nothing(LIMIT);
        over.store(true, Ordering::SeqCst);
        verdict
    });
    tell(test, "beside noise", &verdict);
    let show = mapping.show();
    assert_eq!(show["volumes"][0]["state"], "ok", "{control}: {show:#}");
    for at in &metrics {
        let mut page = String::new();
        let mut stream = TcpStream::connect(at).expect("the metrics");
        write!(stream, "GET /metrics HTTP/1.1\r\n\r\n").expect("asked");
        stream.read_to_string(&mut page).expect("answered");
        assert!(
            page.contains("200 OK") && page.ends_with("# EOF\n"),
            "{page}"
        );
    }
    mapping.end();
}

/// The numbers of the protocol (proto.md): see memlane-block's `nbd_hostile` for the rest of them.
#[test]
fn nbd_clients_that_go_in_mid_command_or_ask_for_four_gigabytes_disturb_nobody() {
    let test = "faults-nbd";
    if !all_here(test, &["fio"]) {
        return;
    }
    let alone = serving(test, &[]);
    let mapping = alone.nbd("disk", &alone.tcp(), "disk", &[]);
    let socket = alone.dir().join("disk.sock");
    let fio = Verifying::start(mapping.shown(), 3, &[]);
    let header = |command: u16, len: u32| {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(7_u64.to_be_bytes());
        bytes.extend((36_u64 << 20).to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes
    };
    let mut said = Vec::new();
    for round in 0..40_u32 {
        let mut stream = UnixStream::connect(&socket).expect("the export");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("a greeting");
        // Fixed newstyle without zeroes, then EXPORT_NAME of the default export.
        stream.write_all(&3_u32.to_be_bytes()).expect("flags");
        stream
            .write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0")
            .expect("an option");
        let mut export = [0; 10];
        stream.read_exact(&mut export).expect("an export");
        match round % 4 {
            // A write of which the half comes.
            0 => {
                let _ = stream.write_all(&header(1, 65536));
                let _ = stream.write_all(&vec![0xee; 30_000]);
            }
            // Half a header.
            1 => drop(stream.write_all(&header(0, 4096)[..13])),
            // Reads that nobody waits for.
            2 => (0..20).for_each(|_| drop(stream.write_all(&header(0, 1 << 20)))),
            // Four gigabytes.
            _ => {
                let _ = stream.write_all(&header(u16::from(round % 8 == 3), u32::MAX));
                let mut reply = [0; 16];
                said.push(
                    stream
                        .read_exact(&mut reply)
                        .map(|()| u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]])),
                );
            }
        }
    }
    // A read is refused (EOVERFLOW), a write ends the connection: nobody takes in four gigabytes.
    assert!(
        said.iter().any(|one| matches!(one, Ok(75 | 22))),
        "{said:?}"
    );
    assert!(said.iter().any(Result::is_err), "{said:?}");
    tell(test, "beside them", &fio.must_find_nothing(LIMIT));
    mapping.end();
}

/// Two paths through proxies that misbehave in turn, at points that a seed selects.
#[test]
fn paths_that_are_late_stand_still_or_break_in_mid_frame_carry_every_request_once() {
    let test = "faults-proxies";
    if !all_here(test, &["fio"]) {
        return;
    }
    let alone = serving(test, &[]);
    let to = alone.tcp().parse().expect("an address");
    let seed = seed();
    let proxies = [Proxy::new(to, seed), Proxy::new(to, seed + 1)];
    let at = proxies
        .each_ref()
        .map(|proxy| proxy.address.to_string())
        .join(",");
    let mapping = alone.nbd("disk", &at, "disk", &["--policy", "rr"]);
    mapping.wait_for_paths(2);
    let fio = Verifying::start(mapping.shown(), 9, &[]);
    let pause = |millis| std::thread::sleep(Duration::from_millis(millis));
    let [one, other] = proxies.each_ref().map(|proxy| &proxy.switches);
    pause(500);
    one.delay_ms.store(20, Ordering::SeqCst);
    pause(1000);
    other.cut_after.store(1 << 20, Ordering::SeqCst);
    pause(2000);
    other.cut_after.store(0, Ordering::SeqCst);
    one.delay_ms.store(0, Ordering::SeqCst);
    pause(500);
    one.stalled.store(true, Ordering::SeqCst);
    pause(2500);
    one.stalled.store(false, Ordering::SeqCst);
    one.cut_after.store(1 << 20, Ordering::SeqCst);
    other.cut_after.store(1 << 20, Ordering::SeqCst);
    pause(1500);
    for switches in [one, other] {
        switches.cut_after.store(0, Ordering::SeqCst);
    }
    let cuts = [one, other].map(|switches| switches.cuts.load(Ordering::SeqCst));
    tell(
        test,
        &format!("seed {seed}, cut {cuts:?} times"),
        &fio.must_find_nothing(LIMIT),
    );
    assert!(cuts.iter().sum::<u64>() > 0, "nothing was cut");
    mapping.wait_for_paths(2);
    mapping.end();
}

/// The size of what is behind a volume is no client's to change: what is outside is refused before it is sent.
#[test]
fn nothing_outside_of_a_volume_is_read_or_written() {
    let test = "faults-outside";
    if !all_here(test, &["qemu-io"]) {
        return;
    }
    let alone = serving(test, &[]);
    let disk = alone.nbd("disk", &alone.tcp(), "disk", &[]);
    for command in ["read 40M 4k", "write 40960k 4k", "write 41943039 2"] {
        let said = qemu_io(&disk, command);
        assert!(
            said.contains("failed") || said.contains("error"),
            "{command}: {said}"
        );
    }
    let file = std::fs::File::open(alone.root().join("disk")).expect("the file");
    assert_eq!(file.metadata().expect("its size").len(), SIZE);
    let mut last = [1; 1];
    file.read_exact_at(&mut last, SIZE - 1)
        .expect("its last byte");
    assert_eq!(last, [0]);
}
