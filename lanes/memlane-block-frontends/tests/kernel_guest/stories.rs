//! What is told of each frontend, inside of a guest.

use crate::device::{Device, Frontend};
use crate::files::Files;
use crate::slow::SlowVolume;
use crate::support::{self, Daemon, Folder, Rng, run, text};
use memlane_block::volume::local::{LocalVolume, Options};
use memlane_block::volume::mem::MemVolume;
use memlane_block::volume::{Errno, Flags, Op, Volume};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 48 * MIB;

/// Memory for requests that go past the page cache.
#[repr(align(4096))]
struct Page([u8; 64 * 1024]);

fn file_volume(folder: &Folder, size: u64) -> Arc<LocalVolume> {
    let path = folder.at("disk");
    if !path.exists() {
        File::create(&path).unwrap().set_len(size).unwrap();
    }
    Arc::new(LocalVolume::open(&path, Options::default()).unwrap())
}

fn direct(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    options.open(path).unwrap()
}

fn forget_pages() {
    std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

fn sectors(device: &Device) -> u64 {
    let size = std::fs::read_to_string(device.sys().join("size"));
    size.unwrap().trim().parse().unwrap()
}

pub(crate) fn a_file_system_keeps_its_files_and_is_found_clean(frontend: Frontend) {
    let folder = Folder::new();
    let memory = MemVolume::new(SIZE).unwrap();
    // Our own server takes larger ones than the kernel does; ublk has no server.
    let block = match frontend {
        Frontend::Nbd => 16384,
        Frontend::Ublk => 4096,
    };
    let large = MemVolume::with(SIZE, |info| (info.block, info.preferred) = (block, block));
    let volumes: [Arc<dyn Volume>; 3] = [
        Arc::new(SlowVolume::new(memory.clone(), 16)),
        Arc::new(large.unwrap()),
        file_volume(&folder, SIZE),
    ];
    for volume in volumes {
        let mut device = frontend.attach(volume);
        assert_eq!(sectors(&device) * 512, SIZE);
        run("mkfs.ext4", &["-q", "-b", "4096", text(device.path())]).unwrap();
        let place = folder.at("mnt");
        std::fs::create_dir_all(&place).unwrap();
        let mounted = |device: &Device| {
            mount(device.path(), &place, "ext4", MountFlags::empty(), None).unwrap();
        };
        mounted(&device);
        let mut rng = Rng(7);
        let mut files = Files::fill(&place, 12, 200_000, &mut rng);
        files.shuffle(400, &mut rng);
        let why = device.detach(false).expect_err("it is mounted");
        assert!(why.contains("in use"), "{why}");
        unmount(&place, UnmountFlags::empty()).unwrap();
        forget_pages();
        mounted(&device);
        files.check();
        unmount(&place, UnmountFlags::empty()).unwrap();
        run("e2fsck", &["-fn", text(device.path())]).unwrap();
        device.detach(false).unwrap();
    }
    let flushed = memory.log().iter().any(|(op, ..)| *op == Op::Flush);
    let durable = memory.log().iter().any(|(.., f)| f.has(Flags::FUA));
    assert!(flushed && durable, "the journal wants both");
}

pub(crate) fn it_does_what_a_disk_does(frontend: Frontend) {
    let memory = MemVolume::late(SIZE, |info| {
        info.max_io = 32 * 1024;
        info.max_trim = 8 * 1024;
    });
    let memory = memory.unwrap();
    let mut device = frontend.attach(Arc::new(memory.clone()));
    let file = direct(device.path());
    let mut model = vec![0; usize::try_from(SIZE).unwrap()];
    let (mut rng, mut page) = (Rng(11), Box::new(Page([0; 64 * 1024])));
    for round in 0..1500 {
        let at = rng.below(SIZE / 512 - 128) * 512;
        let len = usize::try_from((rng.below(128) + 1) * 512).unwrap();
        let from = usize::try_from(at).unwrap();
        match rng.below(10) {
            0..5 => {
                let value = u8::try_from(round % 251).unwrap();
                page.0[..len].fill(value);
                page.0[0] = 0xaa;
                file.write_all_at(&page.0[..len], at).unwrap();
                model[from..from + len].copy_from_slice(&page.0[..len]);
            }
            5..9 => {
                file.read_exact_at(&mut page.0[..len], at).unwrap();
                assert!(page.0[..len] == model[from..from + len], "{at} {len}");
            }
            _ => file.sync_data().unwrap(),
        }
    }
    let at = 8 * MIB;
    run(
        "blkdiscard",
        &["-o", &at.to_string(), "-l", "1048576", text(device.path())],
    )
    .unwrap();
    let log = memory.log();
    let mut trimmed = log.iter().filter(|(op, ..)| *op == Op::Trim);
    assert!(trimmed.all(|(_, _, len, _)| *len <= 8 * 1024));
    assert!(
        log.iter()
            .any(|(op, first, ..)| *op == Op::Trim && *first == at)
    );
    drop(file);
    device.detach(false).unwrap();
}

pub(crate) fn many_threads_use_it_at_once(frontend: Frontend) {
    let folder = Folder::new();
    let mut device = frontend.attach_with(file_volume(&folder, SIZE), 2);
    let queues = std::fs::read_dir(device.sys().join("mq")).unwrap();
    assert_eq!(queues.count(), 2);
    let part = SIZE / 4;
    let workers: Vec<_> = (0..4)
        .map(|worker: u8| {
            let file = direct(device.path());
            std::thread::spawn(move || {
                let (mut rng, mut page) = (Rng(u64::from(worker) + 1), Box::new(Page([0; 65536])));
                for _ in 0..150 {
                    let at = part * u64::from(worker) + rng.below(part / 4096 - 16) * 4096;
                    page.0.fill(worker + 1);
                    file.write_all_at(&page.0[..8192], at).unwrap();
                    page.0.fill(0);
                    file.read_exact_at(&mut page.0[..8192], at).unwrap();
                    assert!(page.0[..8192].iter().all(|byte| *byte == worker + 1));
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    device.detach(false).unwrap();
    // What was written has arrived, each in its part.
    let disk = std::fs::read(folder.at("disk")).unwrap();
    for (number, part) in disk.chunks(usize::try_from(part).unwrap()).enumerate() {
        let own = u8::try_from(number).unwrap() + 1;
        assert!(part.iter().all(|byte| *byte == 0 || *byte == own));
        assert!(part.contains(&own));
    }
}

pub(crate) fn it_grows_while_it_is_open(frontend: Frontend) {
    let memory = MemVolume::new(SIZE).unwrap();
    memory.resize(SIZE / 2);
    let mut device = frontend.attach(Arc::new(memory.clone()));
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(device.path())
        .unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), SIZE / 2);
    memory.resize(SIZE);
    if !device.resized() {
        support::skip("this kernel's ublk cannot change a device's size");
        drop(file);
        return device.detach(false).unwrap();
    }
    assert_eq!(sectors(&device) * 512, SIZE);
    file.seek(SeekFrom::Start(SIZE - 4096)).unwrap();
    file.write_all(&[7; 4096]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    device.detach(false).unwrap();
    let mut last = [0];
    // SAFETY: one byte is writable.
    assert!(unsafe {
        memory
            .bytes()
            .copy_out(usize::try_from(SIZE).unwrap() - 1, last.as_mut_ptr(), 1)
    });
    assert_eq!(last, [7]);
}

pub(crate) fn attached_and_taken_away_again_and_again_it_leaves_nothing(frontend: Frontend) {
    // Threads of our own: the kernel keeps one of its own for each user of io_uring.
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")));
        names
            .flatten()
            .filter(|name| name.starts_with("memlane-"))
            .count()
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let memory = Arc::new(MemVolume::new(SIZE).unwrap());
    let (open, running) = (descriptors(), threads());
    for round in 0..8_u8 {
        let mut device = frontend.attach_with(Arc::clone(&memory) as _, 2);
        let mut file = OpenOptions::new().write(true).open(device.path()).unwrap();
        file.write_all(&[round + 1; 4096]).unwrap();
        drop(file);
        // What was only in the kernel's cache has arrived.
        device.detach(false).unwrap();
        let mut first = [0];
        // SAFETY: one byte is writable.
        assert!(unsafe { memory.bytes().copy_out(0, first.as_mut_ptr(), 1) });
        assert_eq!(first, [round + 1]);
        device.detach(false).unwrap();
        drop(device);
        // A thread that has nothing left to do may still be on its way out.
        while threads() > running {
            std::thread::yield_now();
        }
        assert_eq!(descriptors(), open);
    }
}

pub(crate) fn taken_away_by_force_it_ends_what_waits(frontend: Frontend) {
    let memory = MemVolume::new(SIZE).unwrap();
    let slow = SlowVolume::new(memory, 16);
    let stuck = Arc::clone(&slow.stuck);
    let mut device = frontend.attach(Arc::new(slow));
    let file = direct(device.path());
    let mut page = Box::new(Page([1; 64 * 1024]));
    file.write_all_at(&page.0[..4096], 0).unwrap();
    stuck.store(true, Ordering::SeqCst);
    let waits = std::thread::spawn(move || {
        let failed = file.write_all_at(&page.0[..4096], 4096).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EIO));
        // And for good, until it is closed.
        file.read_exact_at(&mut page.0[..4096], 0).unwrap_err();
    });
    // The request must be on its way: the device says so.
    let inflight = device.sys().join("inflight");
    while std::fs::read_to_string(&inflight)
        .unwrap()
        .split_whitespace()
        .all(|n| n == "0")
    {
        std::thread::yield_now();
    }
    device.detach(true).unwrap();
    waits.join().unwrap();
    stuck.store(false, Ordering::SeqCst);
}

pub(crate) fn what_the_volume_refuses_is_an_error(frontend: Frontend) {
    let memory = MemVolume::new(SIZE).unwrap();
    let mut device = frontend.attach(Arc::new(memory.clone()));
    let file = direct(device.path());
    let mut page = Box::new(Page([1; 64 * 1024]));
    file.write_all_at(&page.0[..4096], 0).unwrap();
    memory.fail_with(Some(Errno(libc::EIO)));
    let written = file.write_all_at(&page.0[..4096], 0).unwrap_err();
    let read = file.read_exact_at(&mut page.0[..4096], 0).unwrap_err();
    let codes = (written.raw_os_error(), read.raw_os_error());
    assert_eq!(codes, (Some(libc::EIO), Some(libc::EIO)));
    memory.fail_with(None);
    file.read_exact_at(&mut page.0[..4096], 0).unwrap();
    drop(file);
    device.detach(false).unwrap();
}

pub(crate) fn a_volume_that_is_read_only_is_not_written(frontend: Frontend) {
    let memory = MemVolume::with(SIZE, |info| info.read_only = true).unwrap();
    let mut device = frontend.attach(Arc::new(memory));
    let read_only = std::fs::read_to_string(device.sys().join("ro")).unwrap();
    assert_eq!(read_only.trim(), "1");
    let opened = OpenOptions::new().write(true).open(device.path());
    let written = opened.and_then(|mut file| {
        file.write_all(&[1; 4096])?;
        file.sync_all()
    });
    written.expect_err("nothing can be written");
    let mut first = [1; 512];
    File::open(device.path())
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    device.detach(false).unwrap();
}

/// The daemon is a process of its own, because it is killed.
pub(crate) fn it_outlives_its_daemon(frontend: Frontend) {
    let folder = Folder::new();
    let kind = format!("{frontend:?}");
    let serve = |how| Daemon::start("device", &[&kind, how, text(&folder.0)]);
    let mut daemon = serve("attach");
    let path = PathBuf::from(daemon.hears());
    for _ in 0..3 {
        let file = direct(&path);
        let writer = std::thread::spawn(move || {
            let mut page = Box::new(Page([0; 64 * 1024]));
            for round in 0..200_u64 {
                page.0.fill(u8::try_from(round % 200).unwrap() + 1);
                file.write_all_at(&page.0[..16384], round * 16384).unwrap();
            }
            for round in 0..200_u64 {
                file.read_exact_at(&mut page.0[..16384], round * 16384)
                    .unwrap();
                let value = u8::try_from(round % 200).unwrap() + 1;
                assert!(page.0[..16384].iter().all(|byte| *byte == value), "{round}");
            }
        });
        daemon.kill();
        daemon = serve("recover");
        assert_eq!(Path::new(&daemon.hears()), path);
        writer.join().unwrap();
    }
    assert_eq!(daemon.ask("detach"), "gone");
}

/// Serves `FRONTEND HOW FOLDER`.
pub(crate) fn daemon(arguments: &[String]) {
    let [frontend, how, folder] = arguments else {
        panic!("{arguments:?}");
    };
    let frontend = Frontend::of(frontend);
    if how == "refusal" {
        let memory = MemVolume::new(SIZE).unwrap();
        return support::say(&frontend.refusal(Arc::new(memory)));
    }
    // Not dropped: the folder is the test's.
    let folder = std::mem::ManuallyDrop::new(Folder(folder.into()));
    let volume = file_volume(&folder, SIZE);
    let mut device = match how.as_str() {
        "attach" => frontend.attach(volume),
        _ => frontend.recover(volume),
    };
    support::say(text(device.path()));
    if support::request().as_deref() == Some("detach") {
        let gone = device.detach(false);
        support::say(&gone.map_or_else(|why| why, |()| "gone".into()));
    }
}

pub(crate) fn who_is_not_root_is_told_so(frontend: Frontend) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "daemon", "--nocapture"])
        .env("MEMLANE_DAEMON", "device")
        .env(
            "MEMLANE_DAEMON_ARGUMENTS",
            format!("{frontend:?}\nrefusal\n/"),
        )
        .uid(65534)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("root only"), "{said}");
}
