//! What is in a store is what a plain reader finds there, however it is reached.

use memlane_block::store::{Backing, Direct, StoreKind};
use memlane_block::volume::local::{LocalVolume, Options};
use memlane_block::volume::{Done, EXTENT_LEN, Errno, Flags, Io, Op, Queue, Volume as _};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("memlane-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str, size: u64) -> PathBuf {
        let path = self.0.join(name);
        let file = File::create(&path).expect("a file");
        file.set_len(size).expect("its size");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn both() -> Vec<StoreKind> {
    let ring = memlane_block::store::Engine::new(StoreKind::Ring);
    if let Err(error) = ring {
        eprintln!("SKIPPED: io_uring is not permitted here: {error}");
        return vec![StoreKind::Threads];
    }
    vec![StoreKind::Ring, StoreKind::Threads]
}

fn open(path: &Path, store: StoreKind) -> LocalVolume {
    let options = Options {
        store,
        ..Options::default()
    };
    LocalVolume::open(path, options).expect("opened")
}

fn finish(queue: &mut dyn Queue, n: usize) -> Vec<Done> {
    let mut done = Vec::new();
    while done.len() < n {
        if queue.reap(&mut done) == 0 {
            queue.wait(None);
        }
    }
    done
}

fn write_io(queue: &mut dyn Queue, at: u64, bytes: &[u8], flags: Flags) -> Io {
    let len = u32::try_from(bytes.len()).expect("short");
    let lease = queue.lease(len).expect("not too long").expect("free");
    assert!(lease.fill(0, bytes));
    Io::data(at, Op::Write, at, len, lease).with(flags)
}

fn write(queue: &mut dyn Queue, at: u64, bytes: &[u8], flags: Flags) -> Result<(), Errno> {
    let io = write_io(queue, at, bytes, flags);
    queue.submit(io);
    finish(queue, 1).remove(0).result
}

fn read(queue: &mut dyn Queue, at: u64, len: u32) -> Result<Vec<u8>, Errno> {
    let lease = queue.lease(len).expect("not too long").expect("free");
    queue.submit(Io::data(at, Op::Read, at, len, lease));
    let done = finish(queue, 1).remove(0);
    done.result?;
    let mut bytes = vec![0; len as usize];
    assert!(done.lease.expect("its lease").take(0, &mut bytes));
    Ok(bytes)
}

fn bare(queue: &mut dyn Queue, op: Op, at: u64, len: u32, flags: Flags) -> Result<(), Errno> {
    queue.submit(Io::bare(1, op, at, len).with(flags));
    finish(queue, 1).remove(0).result
}

/// (length, hole) of each record.
fn extents(queue: &mut dyn Queue, at: u64, len: u32) -> Vec<(u64, bool)> {
    let lease = queue.lease(4096).expect("not too long").expect("free");
    queue.submit(Io::data(1, Op::Extents, at, len, lease));
    let done = finish(queue, 1).remove(0);
    assert_eq!(done.result, Ok(()));
    let mut bytes = [0; 4096];
    assert!(done.lease.expect("its lease").take(0, &mut bytes));
    let records = bytes.chunks_exact(EXTENT_LEN).map(|record| {
        let (len, state) = record.split_at(8);
        let len = u64::from_le_bytes(len.try_into().expect("8 bytes"));
        (len, state[0] & 1 != 0)
    });
    records.take_while(|(len, _)| *len > 0).collect()
}

// ---- against a model --------------------------------------------------------

const BLOCKS: u64 = 64;
const BLOCK: u64 = 512;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u64, u64, u8, Flags),
    Read(u64, u64),
    Trim(u64, u64),
    Zero(u64, u64, Flags),
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = (0..BLOCKS).prop_flat_map(|at| (Just(at), 1..=BLOCKS - at));
    let write_flags = prop_oneof![
        Just(Flags::NONE),
        Just(Flags::FUA),
        Just(Flags::PREFLUSH),
        Just(Flags::FUA.and(Flags::PREFLUSH)),
    ];
    let zero_flags = prop_oneof![
        Just(Flags::NONE),
        Just(Flags::NO_HOLE),
        Just(Flags::NO_HOLE.and(Flags::FUA)),
    ];
    let step = prop_oneof![
        4 => (place.clone(), any::<u8>(), write_flags)
            .prop_map(|((at, n), seed, flags)| Step::Write(at, n, seed, flags)),
        3 => place.clone().prop_map(|(at, n)| Step::Read(at, n)),
        1 => place.clone().prop_map(|(at, n)| Step::Trim(at, n)),
        2 => (place, zero_flags).prop_map(|((at, n), flags)| Step::Zero(at, n, flags)),
        1 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 1..40)
}

fn pattern(seed: u8, len: u64) -> Vec<u8> {
    let byte = |i: u64| (i.wrapping_mul(31) ^ u64::from(seed)).to_le_bytes()[0] | 1;
    (0..len).map(byte).collect()
}

/// Runs steps on a volume and on a model; `found` is what somebody else sees there in the end.
fn agree(volume: &LocalVolume, steps: &[Step], found: impl Fn() -> Vec<u8>) {
    let mut model = vec![0; usize::try_from(BLOCKS * BLOCK).expect("small")];
    let mut queue = volume.queue().expect("a queue");
    let queue = queue.as_mut();
    let range = |at: u64, n: u64| {
        let (from, to) = (at * BLOCK, (at + n) * BLOCK);
        usize::try_from(from).expect("small")..usize::try_from(to).expect("small")
    };
    let bytes = |n: u64| u32::try_from(n * BLOCK).expect("small");
    for step in steps {
        match *step {
            Step::Write(at, n, seed, flags) => {
                let data = pattern(seed, n * BLOCK);
                model[range(at, n)].copy_from_slice(&data);
                assert_eq!(write(queue, at * BLOCK, &data, flags), Ok(()));
            }
            Step::Read(at, n) => {
                let got = read(queue, at * BLOCK, bytes(n)).expect("read");
                assert!(got == model[range(at, n)], "{step:?} of {steps:?}");
            }
            Step::Trim(at, n) => {
                // What these backings do, and the model can check.
                model[range(at, n)].fill(0);
                let done = bare(queue, Op::Trim, at * BLOCK, bytes(n), Flags::NONE);
                assert_eq!(done, Ok(()));
            }
            Step::Zero(at, n, flags) => {
                model[range(at, n)].fill(0);
                let done = bare(queue, Op::WriteZeroes, at * BLOCK, bytes(n), flags);
                assert_eq!(done, Ok(()));
            }
            Step::Flush => assert_eq!(bare(queue, Op::Flush, 0, 0, Flags::NONE), Ok(())),
        }
    }
    assert!(found() == model, "after {steps:?}");
}

#[test]
fn a_file_holds_what_a_model_holds_and_a_second_descriptor_sees_it() {
    let folder = Folder::new("model");
    for kind in both() {
        for direct in [Direct::Off, Direct::On] {
            let mut runner = TestRunner::new(Config::with_cases(40));
            let run = runner.run(&steps(), |steps| {
                let path = folder.file("disk", BLOCKS * BLOCK);
                let options = Options {
                    store: kind,
                    direct,
                    ..Options::default()
                };
                let volume = match LocalVolume::open(&path, options) {
                    Ok(volume) => volume,
                    Err(error) if direct == Direct::On => {
                        eprintln!("SKIPPED: no direct I/O in {}: {error}", path.display());
                        return Ok(());
                    }
                    Err(error) => panic!("{error}"),
                };
                agree(&volume, &steps, || std::fs::read(&path).expect("the file"));
                Ok(())
            });
            run.unwrap_or_else(|error| panic!("{kind:?} {direct:?}: {error}"));
        }
    }
}

#[test]
fn memory_holds_what_a_model_holds() {
    let mut runner = TestRunner::new(Config::with_cases(60));
    let run = runner.run(&steps(), |steps| {
        let memory = Backing::memory(BLOCKS * BLOCK, "mem").expect("memory");
        let volume = LocalVolume::over(memory, StoreKind::Threads);
        let len = u32::try_from(BLOCKS * BLOCK).expect("small");
        agree(&volume, &steps, || {
            let mut second = volume.queue().expect("a queue");
            read(second.as_mut(), 0, len).expect("read")
        });
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn many_requests_of_many_queues_end_each_with_its_own_bytes() {
    const EACH: u64 = 400;
    let folder = Folder::new("many");
    for kind in both() {
        let path = folder.file("disk", 4 * EACH * 4096);
        let volume = open(&path, kind);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let volume = volume.clone();
                scope.spawn(move || {
                    let mut queue = volume.queue().expect("a queue");
                    let (mut sent, mut done) = (0, Vec::new());
                    while (done.len() as u64) < EACH {
                        while sent < EACH
                            && let Ok(Some(lease)) = queue.lease(4096)
                        {
                            let at = (thread * EACH + sent) * 4096;
                            assert!(lease.fill(0, &pattern(at.to_le_bytes()[1], 4096)));
                            queue.submit(Io::data(at, Op::Write, at, 4096, lease));
                            sent += 1;
                        }
                        if queue.reap(&mut done) == 0 {
                            queue.wait(None);
                        }
                        for one in &mut done {
                            assert_eq!(one.result, Ok(()));
                            one.lease = None;
                        }
                    }
                });
            }
        });
        let bytes = std::fs::read(&path).expect("the file");
        for (n, block) in bytes.chunks_exact(4096).enumerate() {
            let at = n as u64 * 4096;
            assert!(block == pattern(at.to_le_bytes()[1], 4096), "at {at}");
        }
    }
}

// ---- holes ------------------------------------------------------------------

#[test]
fn a_trim_and_zeroes_leave_holes_and_no_hole_leaves_none() {
    let folder = Folder::new("holes");
    for kind in both() {
        let path = folder.file("disk", 1 << 20);
        let volume = open(&path, kind);
        let mut queue = volume.queue().expect("a queue");
        let queue = queue.as_mut();
        let blocks = || {
            use std::os::unix::fs::MetadataExt as _;
            std::fs::metadata(&path).expect("the file").blocks()
        };
        assert_eq!(extents(queue, 0, 1 << 20), [(1 << 20, true)]);
        for at in 0..8 {
            let data = pattern(1, 128 << 10);
            assert_eq!(write(queue, at << 17, &data, Flags::NONE), Ok(()));
        }
        assert_eq!(bare(queue, Op::Flush, 0, 0, Flags::NONE), Ok(()));
        let full = blocks();
        assert_eq!(extents(queue, 0, 1 << 20), [(1 << 20, false)]);
        let zero = |queue: &mut dyn Queue, flags| bare(queue, Op::WriteZeroes, 0, 1 << 18, flags);
        assert_eq!(zero(queue, Flags::NO_HOLE.and(Flags::FUA)), Ok(()));
        assert_eq!(blocks(), full, "{kind:?}: NO_HOLE gave blocks back");
        assert_eq!(zero(queue, Flags::FUA), Ok(()));
        assert_eq!(blocks(), full - 512, "{kind:?}");
        let trim = bare(queue, Op::Trim, 1 << 19, 1 << 18, Flags::FUA);
        assert_eq!((trim, blocks()), (Ok(()), full - 1024), "{kind:?}");
        let quarter = 1 << 18;
        assert_eq!(
            extents(queue, 0, 1 << 20),
            [
                (quarter, true),
                (quarter, false),
                (quarter, true),
                (quarter, false)
            ]
        );
        // A question about a part is answered about that part.
        assert_eq!(
            extents(queue, quarter - 4096, 8192),
            [(4096, true), (4096, false)]
        );
    }
}

// ---- what goes wrong --------------------------------------------------------

#[test]
fn what_a_file_lost_behind_its_end_is_an_error_with_a_reason() {
    let folder = Folder::new("shrunk");
    for kind in both() {
        let path = folder.file("disk", 1 << 20);
        let volume = open(&path, kind);
        let mut queue = volume.queue().expect("a queue");
        let queue = queue.as_mut();
        File::options()
            .write(true)
            .open(&path)
            .expect("the file")
            .set_len(4096)
            .expect("shorter");
        assert_eq!(read(queue, 0, 4096).map(|_| ()), Ok(()));
        // Found out by a read that meets the end.
        assert_eq!(
            read(queue, 1 << 19, 4096),
            Err(Errno(libc::EIO)),
            "{kind:?}"
        );
        let why = volume.failure().expect("kept").why.expect("known");
        assert_eq!(why, "it has shrunk from 1048576 to 4096 bytes");
        // And a write does not make the file longer behind its owner's back.
        assert_eq!(
            write(queue, 1 << 19, &[7; 4096], Flags::NONE),
            Err(Errno(libc::EIO))
        );
        assert_eq!(std::fs::metadata(&path).expect("the file").len(), 4096);
        assert_eq!(
            read(queue, 1 << 20, 4096),
            Err(Errno(libc::EINVAL)),
            "never inside"
        );
        // Back again: as if nothing had been.
        File::options()
            .write(true)
            .open(&path)
            .expect("the file")
            .set_len(1 << 20)
            .expect("longer");
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert_eq!(memlane_block::volume::Volume::info(&volume).size, 1 << 20);
        assert_eq!(read(queue, 1 << 19, 4096), Ok(vec![0; 4096]));
    }
}

#[test]
fn what_is_outside_or_not_in_blocks_or_not_to_be_written_is_refused() {
    let folder = Folder::new("refused");
    let path = folder.file("disk", (1 << 20) + 100);
    for kind in both() {
        let volume = open(&path, kind);
        assert_eq!(volume.info().size, 1 << 20, "whole blocks");
        let mut queue = volume.queue().expect("a queue");
        let queue = queue.as_mut();
        for (at, len) in [
            (1 << 20, 512),
            ((1 << 20) - 512, 1024),
            (u64::MAX - 511, 512),
            (100, 512),
            (0, 100),
            (0, 0),
        ] {
            let refused = Err(Errno(libc::EINVAL));
            assert_eq!(
                bare(queue, Op::WriteZeroes, at, len, Flags::NONE),
                refused,
                "{at} {len}"
            );
            assert_eq!(read(queue, at, len).map(|_| ()), refused, "{at} {len}");
        }
        // Less memory than is to be moved.
        let lease = queue.lease(512).expect("short").expect("free");
        queue.submit(Io::data(1, Op::Read, 0, 4096, lease));
        assert_eq!(finish(queue, 1).remove(0).result, Err(Errno(libc::EINVAL)));
        queue.submit(Io::bare(1, Op::Read, 0, 4096));
        assert_eq!(finish(queue, 1).remove(0).result, Err(Errno(libc::EINVAL)));
        let options = Options {
            read_only: true,
            store: kind,
            ..Options::default()
        };
        let read_only = LocalVolume::open(&path, options).expect("opened");
        let info = read_only.info();
        assert!(info.read_only && !info.trim && !info.zeroes && info.max_trim == 0);
        let mut queue = read_only.queue().expect("a queue");
        let queue = queue.as_mut();
        assert_eq!(
            write(queue, 0, &[1; 512], Flags::NONE),
            Err(Errno(libc::EROFS))
        );
        assert_eq!(
            bare(queue, Op::Trim, 0, 512, Flags::NONE),
            Err(Errno(libc::EROFS))
        );
        assert_eq!(bare(queue, Op::Flush, 0, 0, Flags::NONE), Ok(()));
        assert_eq!(read(queue, 0, 512), Ok(vec![0; 512]));
    }
}

#[test]
fn a_queue_that_goes_with_requests_under_way_leaves_a_whole_file() {
    let folder = Folder::new("dropped");
    for kind in both() {
        let path = folder.file("disk", 64 * 4096);
        let volume = open(&path, kind);
        for round in 1..=20 {
            let mut queue = volume.queue().expect("a queue");
            for n in 0..64 {
                let io = write_io(queue.as_mut(), n * 4096, &[round; 4096], Flags::FUA);
                queue.submit(io);
            }
            queue.push();
        }
        let bytes = std::fs::read(&path).expect("the file");
        for block in bytes.chunks_exact(4096) {
            assert!(block.iter().all(|byte| *byte == block[0]));
        }
    }
}

#[test]
fn the_second_queue_of_a_full_disk_is_told_so_too() {
    let Some(disk) = small_tmpfs() else {
        return;
    };
    for kind in both() {
        let path = disk.path().join(format!("disk-{kind:?}"));
        File::create(&path)
            .expect("a file")
            .set_len(64 << 20)
            .expect("sparse");
        let volume = open(&path, kind);
        let mut queue = volume.queue().expect("a queue");
        let queue = queue.as_mut();
        // Of a length that does not divide the disk's: one write fits in part.
        const EACH: u64 = 25 << 12;
        let data = vec![7; usize::try_from(EACH).expect("small")];
        let outcomes: Vec<_> = (0..64)
            .map(|n| write(queue, n * EACH, &data, Flags::NONE))
            .collect();
        assert_eq!(outcomes[0], Ok(()), "{kind:?}");
        assert_eq!(outcomes[63], Err(Errno(libc::ENOSPC)), "{kind:?}");
        for (n, outcome) in (0..).zip(outcomes) {
            let len = u32::try_from(EACH).expect("small");
            match outcome {
                Ok(()) => assert_eq!(read(queue, n * EACH, len).as_ref(), Ok(&data)),
                Err(errno) => assert_eq!(errno, Errno(libc::ENOSPC)),
            }
        }
        let failure = volume.failure().expect("kept");
        assert_eq!(failure.errno, Errno(libc::ENOSPC));
        // Zeroes that must be there need room too; tmpfs can only write them.
        let zeroes = bare(queue, Op::WriteZeroes, 32 << 20, 16 << 20, Flags::NO_HOLE);
        assert_eq!(zeroes, Err(Errno(libc::ENOSPC)));
        let fast = Flags::NO_HOLE.and(Flags::FAST);
        let zeroes = bare(queue, Op::WriteZeroes, 32 << 20, 4096, fast);
        assert_eq!(zeroes, Err(Errno(libc::EOPNOTSUPP)));
        // What is given back can be used again.
        assert_eq!(bare(queue, Op::Trim, 0, 64 << 20, Flags::NONE), Ok(()));
        assert_eq!(write(queue, 63 * EACH, &data, Flags::NONE), Ok(()));
        std::fs::remove_file(&path).expect("removed");
    }
}

/// A tmpfs of 4 MiB, mounted where nobody else sees it: by a process with a mount namespace of its own, which lives as
/// long as this. Needs root.
struct SmallTmpfs {
    keeper: std::process::Child,
}

impl SmallTmpfs {
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/mnt", self.keeper.id()))
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

fn small_tmpfs() -> Option<SmallTmpfs> {
    use std::io::BufRead as _;
    let script = "mount -t tmpfs -o size=4m none /mnt && echo mounted && exec sleep 300";
    let keeper = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn();
    let mut keeper = match keeper {
        Ok(keeper) => keeper,
        Err(error) => {
            eprintln!("SKIPPED: no unshare: {error}");
            return None;
        }
    };
    let out = keeper.stdout.take().expect("piped");
    let mut line = String::new();
    let _ = std::io::BufReader::new(out).read_line(&mut line);
    let disk = SmallTmpfs { keeper };
    if line.trim() != "mounted" {
        eprintln!("SKIPPED: a small tmpfs cannot be mounted without root");
        return None;
    }
    Some(disk)
}

// ---- a block device ---------------------------------------------------------

#[test]
fn a_block_device_reads_writes_trims_and_zeroes() {
    let folder = Folder::new("device");
    let path = folder.file("disk", 8 << 20);
    let Some(device) = loop_device(&path) else {
        return;
    };
    for kind in both() {
        let volume = open(&device.0, kind);
        let info = volume.info();
        assert_eq!(info.size, 8 << 20);
        let mut queue = volume.queue().expect("a queue");
        let queue = queue.as_mut();
        let data = pattern(3, 1 << 17);
        assert_eq!(write(queue, 1 << 20, &data, Flags::FUA), Ok(()));
        assert_eq!(read(queue, 1 << 20, 1 << 17).as_deref(), Ok(&data[..]));
        let mut there = vec![0; 1 << 17];
        File::open(&path)
            .expect("the file")
            .read_exact_at(&mut there, 1 << 20)
            .expect("read");
        assert!(there == data, "the device's file has it");
        assert_eq!(
            bare(queue, Op::WriteZeroes, 1 << 20, 4096, Flags::NONE),
            Ok(())
        );
        assert_eq!(
            bare(
                queue,
                Op::WriteZeroes,
                (1 << 20) + 4096,
                4096,
                Flags::NO_HOLE
            ),
            Ok(())
        );
        assert_eq!(read(queue, 1 << 20, 8192), Ok(vec![0; 8192]));
        assert_eq!(
            read(queue, (1 << 20) + 8192, 4096).as_deref(),
            Ok(&data[8192..12288])
        );
        if info.trim {
            assert_eq!(bare(queue, Op::Trim, 1 << 20, 1 << 17, Flags::NONE), Ok(()));
        }
        assert_eq!(bare(queue, Op::Flush, 0, 0, Flags::NONE), Ok(()));
        assert_eq!(extents(queue, 0, 8 << 20), [(8 << 20, false)]);
    }
}

#[test]
fn a_block_device_holds_what_a_model_holds() {
    let folder = Folder::new("device-model");
    let path = folder.file("disk", BLOCKS * BLOCK);
    let Some(device) = loop_device(&path) else {
        return;
    };
    for kind in both() {
        let volume = open(&device.0, kind);
        let mut runner = TestRunner::new(Config::with_cases(30));
        let run = runner.run(&steps(), |steps| {
            let zero = Step::Zero(0, BLOCKS, Flags::NONE);
            let steps: Vec<Step> = std::iter::once(zero).chain(steps).collect();
            agree(&volume, &steps, || {
                std::fs::read(&device.0).expect("the device")
            });
            Ok(())
        });
        run.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    }
}

#[test]
fn what_is_to_be_durable_reaches_the_device_with_a_flush() {
    let folder = Folder::new("durable");
    let path = folder.file("disk", 8 << 20);
    let Some(device) = loop_device(&path) else {
        return;
    };
    let name = device
        .0
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    // Documentation/ABI/stable/sysfs-block: the 16th number counts flushes.
    let flushes = || -> u64 {
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).expect("a disk");
        let count = stat.split_whitespace().nth(15).expect("since Linux 5.5");
        count.parse().expect("a number")
    };
    for kind in both() {
        for direct in [Direct::On, Direct::Off] {
            let options = Options {
                store: kind,
                direct,
                ..Options::default()
            };
            let volume = LocalVolume::open(&device.0, options).expect("opened");
            let mut queue = volume.queue().expect("a queue");
            let queue = queue.as_mut();
            let mut cost = |what: &str, durable, act: &mut dyn FnMut(&mut dyn Queue)| {
                let before = flushes();
                act(queue);
                let told = flushes() > before;
                assert_eq!(told, durable, "{what}, {kind:?}, {direct:?}");
            };
            let data = [7; 4096];
            let mut flagged = |what, durable, flags| {
                cost(what, durable, &mut |queue| {
                    assert_eq!(write(queue, 4096, &data, flags), Ok(()));
                });
            };
            flagged("write", false, Flags::NONE);
            flagged("FUA", true, Flags::FUA);
            flagged("PREFLUSH", true, Flags::PREFLUSH);
            let mut other = |what, durable, op, flags| {
                cost(what, durable, &mut |queue| {
                    let len = if op == Op::Flush { 0 } else { 4096 };
                    assert_eq!(bare(queue, op, 0, len, flags), Ok(()));
                });
            };
            other("flush", true, Op::Flush, Flags::NONE);
            other("zeroes", true, Op::WriteZeroes, Flags::FUA);
        }
    }
}

#[test]
fn a_file_that_another_process_writes_is_refused_and_one_of_this_process_is_shared() {
    use rustix::fs::{FlockOperation, flock};
    let folder = Folder::new("locked");
    let path = folder.file("disk", 8 << 20);
    let open = |read_only| {
        let options = Options {
            read_only,
            ..Options::default()
        };
        LocalVolume::open(&path, options).map_err(|error| error.raw_os_error())
    };
    // What another process has: a lock of another open file.
    let other = std::fs::File::open(&path).expect("the file");
    let try_lock = || flock(&other, FlockOperation::NonBlockingLockExclusive);
    try_lock().expect("free");
    assert_eq!(open(false).err(), Some(Some(libc::EBUSY)));
    assert!(open(true).is_ok(), "readers may");
    flock(&other, FlockOperation::Unlock).expect("unlocked");
    let first = open(false).expect("free");
    let second = open(false).expect("this process has it");
    drop(first);
    assert!(try_lock().is_err(), "the second has it still");
    let queue = second.queue().expect("a queue");
    drop(second);
    assert!(try_lock().is_err(), "its queue has it still");
    drop(queue);
    try_lock().expect("free again");
}

#[test]
fn a_device_that_is_mounted_or_written_by_another_is_refused() {
    let folder = Folder::new("claimed");
    let path = folder.file("disk", 8 << 20);
    let Some(device) = loop_device(&path) else {
        return;
    };
    let first = open(&device.0, StoreKind::Auto);
    let again = |read_only| {
        let options = Options {
            read_only,
            ..Options::default()
        };
        LocalVolume::open(&device.0, options).map_err(|error| error.raw_os_error())
    };
    assert_eq!(again(false).err(), Some(Some(libc::EBUSY)));
    assert!(again(true).is_ok(), "readers may");
    drop(first);
    assert!(again(false).is_ok());
}

struct Loop(PathBuf);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

fn loop_device(file: &Path) -> Option<Loop> {
    let made = Command::new("losetup")
        .args(["-f", "--show"])
        .arg(file)
        .output();
    match made {
        Ok(out) if out.status.success() => {
            let name = String::from_utf8_lossy(&out.stdout).trim().to_owned();
            Some(Loop(name.into()))
        }
        Ok(out) => {
            let why = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            eprintln!("SKIPPED: no loop device: {why}");
            None
        }
        Err(error) => {
            eprintln!("SKIPPED: no losetup: {error}");
            None
        }
    }
}

// ---- death ------------------------------------------------------------------

const VICTIM: &str = "MEMLANE_TEST_VICTIM";

/// The child: blocks of round numbers, a flush after each round, and the round's number on stdout when that is done.
#[test]
fn victim_of_the_test_below() {
    let Ok(path) = std::env::var(VICTIM) else {
        return;
    };
    let (path, kind) = path.split_once('|').expect("path|kind");
    let kind = if kind == "ring" {
        StoreKind::Ring
    } else {
        StoreKind::Threads
    };
    let volume = open(Path::new(path), kind);
    let mut queue = volume.queue().expect("a queue");
    for round in 1..=u64::MAX {
        for n in 0..16 {
            let data = round.to_le_bytes().repeat(512);
            let io = write_io(queue.as_mut(), n * 4096, &data, Flags::NONE);
            queue.submit(io);
        }
        assert!(
            finish(queue.as_mut(), 16)
                .iter()
                .all(|done| done.result.is_ok())
        );
        assert_eq!(bare(queue.as_mut(), Op::Flush, 0, 0, Flags::NONE), Ok(()));
        println!("round {round}");
    }
}

#[test]
fn what_was_flushed_before_a_kill_is_there_after_it() {
    use std::io::BufRead as _;
    let folder = Folder::new("killed");
    for kind in both() {
        for rounds in [1u64, 3, 10] {
            let path = folder.file("disk", 16 * 4096);
            let name = if kind == StoreKind::Ring {
                "ring"
            } else {
                "threads"
            };
            let mut child = Command::new(std::env::current_exe().expect("this test"))
                .args(["--exact", "victim_of_the_test_below", "--nocapture"])
                .env(VICTIM, format!("{}|{name}", path.display()))
                .stdout(std::process::Stdio::piped())
                .spawn()
                .expect("a child");
            let out = std::io::BufReader::new(child.stdout.take().expect("piped"));
            let told = out.lines().map_while(Result::ok).filter_map(|line| {
                let (_, round) = line.split_once("round ")?;
                round.parse::<u64>().ok()
            });
            let last = told
                .into_iter()
                .find(|round| *round >= rounds)
                .expect("rounds");
            child.kill().expect("killed");
            child.wait().expect("dead");
            let bytes = std::fs::read(&path).expect("the file");
            for (n, block) in bytes.chunks_exact(4096).enumerate() {
                let number = |word: &[u8]| u64::from_le_bytes(word.try_into().expect("8 bytes"));
                for word in block.chunks_exact(8) {
                    assert!(
                        number(word) >= last,
                        "{kind:?}: block {n} is older than round {last}"
                    );
                }
            }
        }
    }
}
