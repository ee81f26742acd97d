//! A file system on a loop device on a volume's file: what people do with a disk. For root.
#![cfg(feature = "fuse")]

#[path = "support/files.rs"]
mod files;
#[path = "support/slow.rs"]
mod slow;
#[path = "support/mod.rs"]
mod support;

use files::Files;
use memlane_block::volume::mem::MemVolume;
use memlane_block::volume::{Info, Queue, Volume};
use memlane_block_frontends::fuse::{self, Options};
use memlane_block_frontends::loopdev::LoopDevice;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Daemon, Folder, Rng, can_mount, has, is_root, run, text};

const SIZE: u64 = 64 << 20;

/// A volume of which the first half is there until it is told to grow.
struct Growing(Arc<dyn Volume>, Arc<AtomicU64>);

impl Volume for Growing {
    fn info(&self) -> Info {
        Info {
            size: self.1.load(Ordering::SeqCst),
            ..self.0.info()
        }
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        self.0.queue()
    }
}

/// Serves `PATH KIND`, with a loop device above, and says which.
#[test]
fn daemon() {
    let Some((_, arguments)) = support::role() else {
        return;
    };
    let [path, kind] = &arguments[..] else {
        panic!("{arguments:?}");
    };
    let memory = MemVolume::with(SIZE * 2, |info| {
        info.block = if kind == "large-blocks" { 4096 } else { 512 };
    });
    let slow = slow::SlowVolume::new(memory.unwrap(), 16);
    let size = Arc::new(AtomicU64::new(SIZE));
    let volume = Arc::new(Growing(Arc::new(slow), Arc::clone(&size)));
    let block = volume.info().block;
    let mut mounted = fuse::mount(volume, Path::new(path), &Options::default()).unwrap();
    let device = LoopDevice::attach(Path::new(path), block, false).unwrap();
    support::say(text(device.path()));
    while let Some(request) = support::request() {
        match request.as_str() {
            "grow" => {
                size.store(SIZE * 2, Ordering::SeqCst);
                mounted.refresh();
                device.refresh().unwrap();
            }
            "end" => break,
            other => panic!("{other}"),
        }
        support::say("done");
    }
    drop(device);
    // The loop device lets the file go a moment after it was cleared.
    for _ in 0..1000 {
        if mounted.unmount().is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    support::say(if mounted.is_mounted() { "busy" } else { "gone" });
}

fn serve(path: &Path, kind: &str) -> (Daemon, PathBuf) {
    let daemon = Daemon::start("loop", &[text(path), kind]);
    let device = daemon.hears();
    assert!(device.starts_with("/dev/loop"), "{device}");
    (daemon, PathBuf::from(device))
}

fn can_run() -> bool {
    let loops = Path::new("/dev/loop-control").exists();
    if !loops {
        support::skip("no loop devices");
    }
    can_mount() && is_root() && loops && has("mkfs.ext4") && has("e2fsck")
}

/// Unmounts a device's file system everywhere: a mount namespace that another program has made meanwhile keeps a copy of the
/// mount for as long as it lives.
fn unmount(tree: &str, device: &str) {
    run("umount", &[tree]).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let mut exclusive = OpenOptions::new();
    exclusive.read(true).custom_flags(libc::O_EXCL);
    while let Err(error) = exclusive.open(device) {
        assert!(Instant::now() < until, "{device}: {error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_file_system_keeps_its_files_over_mounts_and_is_found_clean() {
    if !can_run() {
        return;
    }
    for kind in ["plain", "large-blocks"] {
        let folder = Folder::new();
        let (mut daemon, device) = serve(&folder.at("volume"), kind);
        let tree = folder.at("tree");
        std::fs::create_dir(&tree).unwrap();
        let (device, tree_at) = (text(&device).to_owned(), text(&tree).to_owned());
        run("mkfs.ext4", &["-q", "-E", "nodiscard", &device]).unwrap();
        run("mount", &[&device, &tree_at]).unwrap();
        let mut rng = Rng(5);
        let files = Files::fill(&tree, 40, 300_000, &mut rng);
        unmount(&tree_at, &device);
        run("mount", &["-o", "discard", &device, &tree_at]).unwrap();
        files.check();
        files.remove();
        run("fstrim", &[&tree_at]).unwrap();
        let mut files = Files::fill(&tree, 40, 300_000, &mut rng);
        files.shuffle(1000, &mut rng);
        unmount(&tree_at, &device);
        run("e2fsck", &["-fn", &device]).unwrap();
        run("mount", &["-o", "ro", &device, &tree_at]).unwrap();
        files.check();
        unmount(&tree_at, &device);
        assert_eq!(daemon.ask("end"), "gone", "{kind}");
    }
}

#[test]
fn a_volume_that_grows_makes_its_device_grow() {
    if !can_run() || !has("blockdev") || !has("resize2fs") {
        return;
    }
    let folder = Folder::new();
    let path = folder.at("volume");
    let (mut daemon, device) = serve(&path, "plain");
    let device = text(&device).to_owned();
    let size = || run("blockdev", &["--getsize64", &device]).unwrap();
    assert_eq!(size().trim(), SIZE.to_string());
    run("mkfs.ext4", &["-q", &device]).unwrap();
    assert_eq!(daemon.ask("grow"), "done");
    assert_eq!(size().trim(), (SIZE * 2).to_string());
    assert_eq!(path.metadata().unwrap().len(), SIZE * 2);
    run("resize2fs", &[&device]).unwrap();
    run("e2fsck", &["-fn", &device]).unwrap();
    assert_eq!(daemon.ask("end"), "gone");
}

#[test]
fn a_device_whose_daemon_was_killed_gives_errors_until_it_is_cleared() {
    if !can_run() {
        return;
    }
    let folder = Folder::new();
    let path = folder.at("volume");
    let (mut daemon, device) = serve(&path, "plain");
    let mine = std::fs::File::open(&device).unwrap();
    daemon.kill();
    let read = std::os::unix::fs::FileExt::read_exact_at(&mine, &mut [0; 4096], 1 << 20);
    assert!(read.is_err());
    // `memlane vol prune` clears every dead mount of the machine, and another test may run it at this moment. So the
    // mount may be gone already.
    fuse::clear(&path).unwrap();
    drop(mine);
    let number = device.file_name().unwrap().to_owned();
    let backing = Path::new("/sys/block")
        .join(number)
        .join("loop/backing_file");
    // A device whose file was unmounted below it has a file without a name.
    let is_ours = |file: String| file.contains(text(&path)) || file.trim_end() == "/";
    let ours = || std::fs::read_to_string(&backing).is_ok_and(is_ours);
    let mut tries = 0;
    while ours() && tries < 2000 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        tries += 1;
    }
    assert!(!ours(), "still there");
    let file = std::fs::metadata(&path).expect("the empty file below the mount");
    assert_eq!(file.len(), 0);
}

/// The kernel writes cached pages back when a device is closed for the last time. A process that dies may not be the one
/// that closes it: it would wait for itself.
#[test]
fn a_daemon_that_is_killed_dies_though_the_kernel_has_not_written_all() {
    if !can_run() {
        return;
    }
    let folder = Folder::new();
    let path = folder.at("volume");
    let (mut daemon, device) = serve(&path, "plain");
    std::fs::write(&device, vec![1; 8 << 20]).unwrap();
    daemon.kill_in(Duration::from_secs(20));
    fuse::clear(&path).unwrap();
}
