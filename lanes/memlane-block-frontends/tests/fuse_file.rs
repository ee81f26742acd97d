//! A volume as a file, as programs see it. The daemon is a process of its own: the kernel talks to it, we to the kernel.
#![cfg(feature = "fuse")]

#[path = "support/files.rs"]
mod files;
#[path = "support/slow.rs"]
mod slow;
#[path = "support/mod.rs"]
mod support;

use files::mapped;
use memlane_block::volume::mem::MemVolume;
use memlane_block::volume::{Errno, Op};
use memlane_block_frontends::fuse::{self, Cache, Options};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::{Daemon, Folder, Rng, can_mount, has, run, text};

const SIZE: u64 = 4 << 20;

/// Serves `PATH SIZE KIND CACHE`, and does what it is asked on its input.
#[test]
fn daemon() {
    let Some((_, arguments)) = support::role() else {
        return;
    };
    let [path, size, kind, cache] = &arguments[..] else {
        panic!("{arguments:?}");
    };
    let memory = MemVolume::with(size.parse().unwrap(), |info| {
        info.read_only = kind == "read-only";
        info.block = if kind == "large-blocks" { 4096 } else { 512 };
        info.extents = kind != "no-extents";
        info.max_trim = 64 * 1024;
    })
    .unwrap();
    let slow = slow::SlowVolume::new(memory.clone(), 3);
    let stuck = Arc::clone(&slow.stuck);
    let volume: Arc<dyn memlane_block::volume::Volume> = match kind.as_str() {
        "slow" | "stuck" => Arc::new(slow),
        _ => Arc::new(memory.clone()),
    };
    let options = Options {
        cache: (cache == "none").then_some(Cache::None),
        threads: 3,
        ..Options::default()
    };
    let mut mounted = match fuse::mount(volume, Path::new(path), &options) {
        Ok(mounted) => mounted,
        Err(error) => return support::say(&format!("error {error}")),
    };
    support::say("mounted");
    while let Some(request) = support::request() {
        let answer = match request.as_str() {
            "unmount" => match mounted.unmount() {
                Ok(()) => "done".to_owned(),
                Err(error) => error.to_string(),
            },
            "unmount now" => {
                mounted.unmount_now();
                "done".to_owned()
            }
            "fail" => {
                memory.fail_with(Some(Errno(libc::EIO)));
                "done".to_owned()
            }
            "stick" => {
                stuck.store(true, Ordering::SeqCst);
                "done".to_owned()
            }
            "ops" => {
                let count = |op| memory.log().iter().filter(|entry| entry.0 == op).count();
                format!("{} {}", count(Op::Flush), count(Op::WriteZeroes))
            }
            other => panic!("{other}"),
        };
        support::say(&answer);
    }
}

fn serve(path: &Path, kind: &str, cache: &str) -> Daemon {
    let daemon = Daemon::start("fuse", &[text(path), &SIZE.to_string(), kind, cache]);
    assert_eq!(daemon.hears(), "mounted");
    daemon
}

fn open(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Random operations at random places, against a copy in memory.
fn exercise(path: &Path, direct: bool, map: bool, seed: u64) {
    let mut model = vec![0_u8; usize::try_from(SIZE).unwrap()];
    let mut rng = Rng(seed);
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
        .unwrap();
    for _ in 0..400 {
        let at = rng.below(SIZE);
        let most = if rng.below(4) == 0 { 300_000 } else { 5000 };
        let len = 1 + rng.below(most.min(SIZE - at));
        let (from, n) = (usize::try_from(at).unwrap(), usize::try_from(len).unwrap());
        let range = from..from + n;
        match rng.below(if map { 7 } else { 5 }) {
            0 | 1 => {
                let bytes = rng.bytes(n);
                file.write_all_at(&bytes, at).unwrap();
                model[range].copy_from_slice(&bytes);
            }
            2 => {
                let mut bytes = vec![1; n];
                file.read_exact_at(&mut bytes, at).unwrap();
                assert_eq!(bytes, model[range], "seed {seed}: {at}+{len}");
            }
            3 => {
                let hole = rng.below(2) == 0;
                zero(&file, at, len, hole);
                model[range].fill(0);
            }
            4 => file.sync_all().unwrap(),
            5 => {
                let bytes = rng.bytes(n);
                mapped(&file, model.len(), |memory| {
                    memory[range.clone()].copy_from_slice(&bytes)
                });
                model[range].copy_from_slice(&bytes);
            }
            _ => mapped(&file, model.len(), |memory| {
                assert_eq!(
                    memory[range.clone()],
                    model[range],
                    "seed {seed}: {at}+{len}"
                );
            }),
        }
    }
    let mut all = vec![0; model.len()];
    open(path).read_exact_at(&mut all, 0).unwrap();
    assert!(all == model, "seed {seed}");
}

fn zero(file: &File, at: u64, len: u64, hole: bool) {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = if hole {
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
    } else {
        FallocateFlags::ZERO_RANGE
    };
    fallocate(file, flags, at, len).unwrap();
}

#[test]
fn random_operations_leave_what_a_file_would_have() {
    if !can_mount() {
        return;
    }
    for (number, (kind, cache)) in [
        ("plain", "kernel"),
        ("plain", "none"),
        ("large-blocks", "kernel"),
        ("large-blocks", "none"),
        ("slow", "kernel"),
        ("slow", "none"),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = Folder::new();
        let path = folder.at("volume");
        let mut daemon = serve(&path, kind, cache);
        exercise(&path, false, cache == "kernel", 1000 + number as u64);
        assert_eq!(daemon.ask("unmount"), "done", "{kind} {cache}");
        assert!(!path.exists(), "it was made for the mount");
    }
}

#[test]
fn direct_io_of_any_place_and_length_works() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.at("volume");
    let _daemon = serve(&path, "slow", "kernel");
    exercise(&path, true, false, 77);
}

#[test]
fn writers_of_parts_of_one_block_lose_nothing() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.at("volume");
    let _daemon = serve(&path, "slow", "none");
    // 64 writers, 64 bytes each, all in the same 4096.
    std::thread::scope(|scope| {
        for writer in 0..64_u8 {
            let path = &path;
            scope.spawn(move || {
                let file = OpenOptions::new()
                    .write(true)
                    .custom_flags(libc::O_DIRECT)
                    .open(path)
                    .unwrap();
                for round in 0..20 {
                    let bytes = [writer ^ round; 64];
                    file.write_all_at(&bytes, u64::from(writer) * 64).unwrap();
                }
            });
        }
    });
    let mut all = [0; 4096];
    open(&path).read_exact_at(&mut all, 0).unwrap();
    for (writer, bytes) in all.chunks(64).enumerate() {
        assert_eq!(
            bytes,
            [u8::try_from(writer).unwrap() ^ 19; 64],
            "writer {writer}"
        );
    }
}

#[test]
fn a_volume_ends_where_it_ends_and_does_not_grow_or_shrink() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.at("volume");
    std::fs::write(&path, "").unwrap();
    let mut daemon = serve(&path, "plain", "kernel");
    let file = open(&path);
    assert_eq!(file.metadata().unwrap().len(), SIZE);
    assert_eq!(errno(file.set_len(SIZE / 2)), libc::EPERM);
    assert_eq!(errno(file.set_len(SIZE * 2)), libc::EPERM);
    file.set_len(SIZE).unwrap();
    assert_eq!(errno(File::create(&path)), libc::EPERM);
    assert_eq!(errno(file.write_at(b"x", SIZE)), libc::ENOSPC);
    assert_eq!(file.write_at(b"xyz", SIZE - 2).unwrap(), 2);
    assert_eq!(file.read_at(&mut [0; 10], SIZE - 2).unwrap(), 2);
    assert_eq!(file.read_at(&mut [0; 10], SIZE).unwrap(), 0);
    assert_eq!(file.metadata().unwrap().len(), SIZE);
    assert_eq!(
        daemon.ask("unmount"),
        format!("{} is in use", path.display())
    );
    drop(file);
    // A program that another test starts at this moment has the file open until it begins.
    let until = Instant::now() + Duration::from_secs(5);
    while daemon.ask("unmount") != "done" {
        assert!(Instant::now() < until, "still in use");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(
        path.metadata().unwrap().len(),
        0,
        "the file below was there before"
    );
}

#[test]
fn fsync_is_a_flush_and_a_failing_volume_is_heard_of() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.at("volume");
    let mut daemon = serve(&path, "plain", "kernel");
    let file = open(&path);
    file.write_all_at(b"hello", 3).unwrap();
    file.sync_data().unwrap();
    zero(&file, 0, 256 * 1024, true);
    assert_eq!(
        daemon.ask("ops"),
        "1 4",
        "one flush, and zeros in steps of 64 KiB"
    );
    daemon.ask("fail");
    assert_eq!(errno(file.write_at(b"hello", 0)), libc::EIO);
    assert_eq!(errno(file.sync_data()), libc::EIO);
    assert_eq!(errno(file.read_at(&mut [0; 10], 1 << 20)), libc::EIO);
}

#[test]
fn a_volume_that_is_read_only_is_a_file_that_is_read_only() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.at("volume");
    let _daemon = serve(&path, "read-only", "kernel");
    let written = OpenOptions::new().write(true).open(&path);
    assert_eq!(errno(written), libc::EROFS);
    let mut bytes = [1; 8];
    File::open(&path)
        .unwrap()
        .read_exact_at(&mut bytes, 5)
        .unwrap();
    assert_eq!(bytes, [0; 8]);
}

#[test]
fn data_and_holes_are_told_as_the_volume_tells_them() {
    if !can_mount() {
        return;
    }
    use rustix::fs::{SeekFrom, seek};
    for kind in ["plain", "slow", "no-extents"] {
        let folder = Folder::new();
        let path = folder.at("volume");
        let _daemon = serve(&path, kind, "kernel");
        let file = open(&path);
        assert_eq!(seek(&file, SeekFrom::Data(1000)), Ok(1000), "{kind}");
        assert_eq!(seek(&file, SeekFrom::Hole(1000)), Ok(SIZE), "{kind}");
        assert_eq!(
            seek(&file, SeekFrom::Data(SIZE)),
            Err(rustix::io::Errno::NXIO)
        );
    }
}

#[test]
fn fio_finds_what_it_wrote() {
    if !can_mount() || !has("fio") {
        return;
    }
    for (kind, engine, direct) in [("plain", "psync", "0"), ("slow", "libaio", "1")] {
        let folder = Folder::new();
        let path = folder.at("volume");
        let mut daemon = serve(&path, kind, "kernel");
        let arguments = [
            "--name=verify",
            &format!("--filename={}", text(&path)),
            &format!("--ioengine={engine}"),
            &format!("--direct={direct}"),
            "--rw=randrw",
            "--bsrange=512-64k",
            "--blockalign=512",
            "--iodepth=16",
            "--size=4m",
            "--loops=2",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--allow_file_create=0",
        ];
        run("fio", &arguments).unwrap();
        assert_eq!(daemon.ask("unmount"), "done");
    }
}

#[test]
fn a_mount_that_is_taken_away_gives_errors_to_those_who_use_it() {
    if !can_mount() || !support::is_root() {
        return;
    }
    for how in ["unmount now", "kill", "stick and unmount now"] {
        let folder = Folder::new();
        let path = folder.at("volume");
        let mut daemon = serve(&path, "slow", "none");
        std::thread::scope(|scope| {
            let users: Vec<_> = (0..4)
                .map(|user| {
                    let file = open(&path);
                    scope.spawn(move || {
                        loop {
                            let bytes = [user; 8192];
                            let at = u64::from(user) * 65536;
                            if let Err(error) = file.write_all_at(&bytes, at) {
                                return error;
                            }
                        }
                    })
                })
                .collect();
            match how {
                "kill" => daemon.kill(),
                "unmount now" => assert_eq!(daemon.ask(how), "done"),
                _ => {
                    daemon.ask("stick");
                    assert_eq!(daemon.ask("unmount now"), "done");
                }
            }
            for user in users {
                let error = user.join().unwrap().raw_os_error().unwrap();
                let expected = [libc::EIO, libc::ENOTCONN, libc::ECONNABORTED];
                assert!(expected.contains(&error), "{how}: {error}");
            }
        });
        if how == "kill" {
            // Of a mount without a server nothing is left but its name, which the next one takes.
            let mut again = Daemon::start("fuse", &[text(&path), "4096", "plain", "kernel"]);
            assert_eq!(again.hears(), "mounted");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 4096);
            assert_eq!(again.ask("unmount now"), "done");
        }
    }
}

#[test]
fn nothing_is_mounted_over_what_would_be_hidden() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.at("volume");
    std::fs::write(&path, "precious").unwrap();
    let refused = Daemon::start("fuse", &[text(&path), "4096", "plain", "kernel"]);
    assert!(refused.hears().contains("would hide"));
    let refused = Daemon::start("fuse", &[text(&folder.0), "4096", "plain", "kernel"]);
    assert!(refused.hears().contains("not a regular file"));
}

#[test]
fn a_file_that_is_unmounted_by_somebody_else_is_gone_for_the_daemon_too() {
    if !can_mount() || !has("fusermount3") {
        return;
    }
    let folder = Folder::new();
    let path = folder.at("volume");
    let mut daemon = serve(&path, "plain", "kernel");
    run("fusermount3", &["-u", text(&path)]).unwrap();
    assert_eq!(daemon.ask("unmount"), "done");
}

/// A shell in a mount namespace of its own, with copies of all mounts. It has `path` open, if there is one, and reads as
/// many bytes of it as it is told to.
struct Elsewhere(std::process::Child);

impl Elsewhere {
    fn start(path: Option<&Path>) -> Elsewhere {
        let path = path.map_or("/dev/null", text);
        let script = "exec 3<\"$0\"; echo there; while read count; do dd bs=$count count=1 <&3 2>/dev/null | wc -c; done";
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, path]);
        command.stdin(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::piped());
        let mut shell = Elsewhere(command.spawn().expect("unshare"));
        assert_eq!(shell.says(), "there");
        shell
    }

    fn says(&mut self) -> String {
        let stdout = self.0.stdout.as_mut().expect("a pipe");
        let bytes = io::Read::bytes(stdout).map(|byte| byte.expect("a byte"));
        let line = bytes.take_while(|byte| *byte != b'\n').collect();
        String::from_utf8(line).expect("text")
    }

    /// How many of `count` bytes it can read.
    fn reads(&mut self, count: usize) -> String {
        let stdin = self.0.stdin.as_mut().expect("a pipe");
        io::Write::write_all(stdin, format!("{count}\n").as_bytes()).expect("it reads");
        self.says()
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn a_copy_of_the_mount_in_another_mount_namespace_does_not_hold_up_who_unmounts() {
    if !can_mount() || !support::is_root() || !has("unshare") {
        return;
    }
    for how in ["unmount", "unmount now"] {
        let folder = Folder::new();
        let path = folder.at("volume");
        let mut daemon = serve(&path, "plain", "kernel");
        let other = Elsewhere::start(None);
        let begin = Instant::now();
        assert_eq!(daemon.ask(how), "done");
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(5), "{how}: {took:?}");
        assert!(!path.exists());
        drop(other);
    }
}

#[test]
fn who_has_it_open_in_another_mount_namespace_keeps_it_and_force_takes_it() {
    if !can_mount() || !support::is_root() || !has("unshare") {
        return;
    }
    let folder = Folder::new();
    let path = folder.at("volume");
    let mut daemon = serve(&path, "plain", "kernel");
    let mut user = Elsewhere::start(Some(&path));
    let other = folder.at("other");
    std::fs::write(&other, "other").unwrap();
    for length in [0, 5] {
        let said = daemon.ask("unmount");
        assert!(said.contains("in use in another mount"), "{said}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), length);
        assert_eq!(user.reads(4096), "4096");
        if length == 0 {
            // What somebody mounts there meanwhile is not taken away.
            run("mount", &["--bind", text(&other), text(&path)]).unwrap();
        }
    }
    run("umount", &[text(&path)]).unwrap();
    drop(user);
    assert_eq!(daemon.ask("unmount"), "done");
    assert!(!path.exists());
    let mut daemon = serve(&path, "plain", "kernel");
    let mut user = Elsewhere::start(Some(&path));
    assert_eq!(daemon.ask("unmount now"), "done");
    assert_eq!(user.reads(4096), "0");
    assert!(!path.exists());
}

#[test]
fn somebody_who_is_not_root_may_do_it_too() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    const NOBODY: u32 = 65534;
    if !can_mount() || !support::is_root() || !has("fusermount3") {
        return;
    }
    let device = std::fs::metadata("/dev/fuse").unwrap();
    if device.permissions().mode() & 0o006 != 0o006 {
        return support::skip("/dev/fuse is only for root here");
    }
    let folder = Folder::new();
    chown(&folder.0, Some(NOBODY), Some(NOBODY)).unwrap();
    let path = folder.at("volume");
    let arguments = [text(&path), &SIZE.to_string(), "plain", "kernel"];
    let mut daemon = Daemon::start_as(NOBODY, "fuse", &arguments);
    assert_eq!(daemon.hears(), "mounted");
    // Not even root may look into it.
    assert_eq!(errno(File::open(&path)), libc::EACCES);
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(
        mounts.contains(&format!("{} fuse", text(&path))),
        "{mounts}"
    );
    assert_eq!(daemon.ask("unmount"), "done");
    assert!(!path.exists());
    let mut daemon = Daemon::start_as(NOBODY, "fuse", &arguments);
    assert_eq!(daemon.hears(), "mounted");
    assert_eq!(daemon.ask("unmount now"), "done");
    assert!(!path.exists());
    assert_eq!(folder.0.metadata().unwrap().uid(), NOBODY);
}
