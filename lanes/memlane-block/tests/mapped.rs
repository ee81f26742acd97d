//! A file in memory that is read and written through a mapping reads as it does by `pread`, and has what `pwrite` would have written,
//! whatever becomes of it meanwhile.

use memlane_block::store::{self, Backing, Direct, Mode, StoreKind};
use memlane_block::volume::local::LocalVolume;
use memlane_block::volume::{Errno, Io, Op, Queue, Volume as _};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fchmod, fstat, ftruncate, memfd_create};
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
const BLOCK: u64 = 512;
/// Of a test's file. A read of a quarter goes through the mapping.
const SIZE: u64 = 64 * PAGE;
const EIO: Errno = Errno(libc::EIO);
const EINVAL: Errno = Errno(libc::EINVAL);

/// A file in memory, as a plain user and as a volume has it.
struct Disk {
    file: File,
    volume: LocalVolume,
    name: String,
}

impl Disk {
    fn new(size: u64) -> Disk {
        Disk::made(size, MemfdFlags::CLOEXEC)
    }

    fn sealable(size: u64) -> Disk {
        Disk::made(size, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
    }

    fn made(size: u64, flags: MemfdFlags) -> Disk {
        static MADE: AtomicU64 = AtomicU64::new(0);
        store::allow_mappings();
        let name = format!("mapped-{}", MADE.fetch_add(1, Ordering::Relaxed));
        let fd = memfd_create(&name, flags).expect("a file");
        ftruncate(&fd, size).expect("its size");
        let backing = Backing::open(fd.as_fd(), Mode::Claim, Direct::Off).expect("opened");
        Disk {
            file: File::from(fd),
            volume: LocalVolume::over(backing, StoreKind::Threads),
            name,
        }
    }

    /// Has a request mapped it?
    fn is_mapped(&self) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("our mappings");
        let name = format!("/memfd:{} (deleted)", self.name);
        maps.lines().any(|line| line.ends_with(&name))
    }

    /// Its memory, in units of 512 bytes.
    fn blocks(&self) -> u64 {
        u64::try_from(fstat(&self.file).expect("known").st_blocks).expect("not negative")
    }

    fn len(&self) -> u64 {
        u64::try_from(fstat(&self.file).expect("known").st_size).expect("not negative")
    }

    fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.len()).expect("small")];
        self.file.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    }

    fn fill(&self, byte: u8) {
        let bytes = vec![byte; usize::try_from(self.len()).expect("small")];
        self.file.write_all_at(&bytes, 0).expect("written");
    }
}

fn read(queue: &mut dyn Queue, at: u64, len: u64) -> Result<Vec<u8>, Errno> {
    let len = u32::try_from(len).expect("small");
    let lease = queue.lease(len).expect("not too long").expect("free");
    // What was there before is not what is read.
    assert!(lease.fill(0, &vec![0xEE; len as usize]));
    queue.submit(Io::data(0, Op::Read, at, len, lease));
    let mut done = Vec::new();
    while queue.reap(&mut done) == 0 {
        queue.wait(None);
    }
    let done = done.remove(0);
    done.result?;
    let mut bytes = vec![0; len as usize];
    assert!(done.lease.expect("its lease").take(0, &mut bytes));
    Ok(bytes)
}

fn write(queue: &mut dyn Queue, at: u64, bytes: &[u8]) -> Result<(), Errno> {
    let len = u32::try_from(bytes.len()).expect("small");
    let lease = queue.lease(len).expect("not too long").expect("free");
    assert!(lease.fill(0, bytes));
    queue.submit(Io::data(0, Op::Write, at, len, lease));
    let mut done = Vec::new();
    while queue.reap(&mut done) == 0 {
        queue.wait(None);
    }
    done.remove(0).result
}

#[test]
fn a_large_read_maps_the_file_and_a_small_one_does_not() {
    let disk = Disk::new(SIZE);
    disk.fill(7);
    let mut queue = disk.volume.queue().expect("a queue");
    assert_eq!(read(queue.as_mut(), 0, PAGE), Ok(vec![7; 4096]));
    assert!(!disk.is_mapped());
    let all = usize::try_from(SIZE).expect("small");
    assert_eq!(read(queue.as_mut(), 0, SIZE), Ok(vec![7; all]));
    assert!(disk.is_mapped());
    let name = disk.name.clone();
    drop((queue, disk.volume));
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our mappings");
    assert!(!maps.contains(&format!("memfd:{name} ")), "left behind");
}

#[test]
fn a_read_fills_no_hole() {
    let disk = Disk::new(SIZE);
    let mut queue = disk.volume.queue().expect("a queue");
    disk.file
        .write_all_at(&[5; 4096], 7 * PAGE)
        .expect("written");
    let before = disk.blocks();
    for at in [0, 4, 7, 8] {
        let bytes = read(queue.as_mut(), at * PAGE, SIZE / 2).expect("read");
        for (page, bytes) in (at..).zip(bytes.chunks_exact(4096)) {
            assert_eq!(bytes[0], if page == 7 { 5 } else { 0 }, "page {page}");
        }
    }
    assert!(disk.is_mapped());
    assert_eq!(disk.blocks(), before);
    // One that is made in pages that were read through the mapping stays one, too.
    disk.fill(9);
    assert!(read(queue.as_mut(), 0, SIZE).is_ok());
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&disk.file, hole, 16 * PAGE, 16 * PAGE).expect("punched");
    let before = disk.blocks();
    let bytes = read(queue.as_mut(), 0, SIZE).expect("read");
    assert_eq!((bytes[16 * 4096], bytes[32 * 4096]), (0, 9));
    assert_eq!(disk.blocks(), before);
}

#[test]
fn a_large_write_goes_through_a_mapping_and_changes_the_files_time() {
    let disk = Disk::new(SIZE);
    disk.fill(1);
    let mut queue = disk.volume.queue().expect("a queue");
    assert_eq!(write(queue.as_mut(), 0, &[2; 4096]), Ok(()));
    assert!(!disk.is_mapped());
    let old = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec::default(),
        last_modification: rustix::fs::Timespec::default(),
    };
    rustix::fs::futimens(&disk.file, &old).expect("its times");
    let most = usize::try_from(SIZE - 3 * BLOCK).expect("small");
    assert_eq!(write(queue.as_mut(), BLOCK, &vec![3; most]), Ok(()));
    assert!(disk.is_mapped());
    assert!(fstat(&disk.file).expect("known").st_mtime > 0);
    let bytes = disk.contents();
    let (before, rest) = bytes.split_at(512);
    let (written, behind) = rest.split_at(most);
    assert!(before.iter().all(|byte| *byte == 2));
    assert!(written.iter().all(|byte| *byte == 3));
    assert!(behind.iter().all(|byte| *byte == 1));
}

#[test]
fn a_sealed_file_is_read_through_a_mapping_and_not_written() {
    let disk = Disk::sealable(SIZE);
    disk.fill(1);
    let seal = rustix::fs::SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&disk.file, seal).expect("sealed");
    let mut queue = disk.volume.queue().expect("a queue");
    let all = usize::try_from(SIZE).expect("small");
    assert_eq!(read(queue.as_mut(), 0, SIZE), Ok(vec![1; all]));
    assert!(disk.is_mapped());
    assert_eq!(write(queue.as_mut(), 0, &vec![2; all]), Err(EIO));
    assert_eq!(read(queue.as_mut(), 0, SIZE), Ok(vec![1; all]));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// By its volume.
    Put(u64, u64, u8),
    /// By somebody else.
    Write(u64, u64, u8),
    Read(u64, u64),
    Punch(u64, u64),
    /// To this many blocks, by its volume.
    Resize(u64),
    /// To this many blocks, if it has more, by somebody else.
    Cut(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let blocks = SIZE / BLOCK;
    let place = move || (0..blocks).prop_flat_map(move |at| (Just(at), 1..=blocks - at));
    let step = prop_oneof![
        4 => (place(), 1..=255_u8).prop_map(|((at, n), byte)| Step::Put(at, n, byte)),
        4 => (place(), 1..=255_u8).prop_map(|((at, n), byte)| Step::Write(at, n, byte)),
        6 => place().prop_map(|(at, n)| Step::Read(at, n)),
        2 => place().prop_map(|(at, n)| Step::Punch(at, n)),
        1 => (1..=blocks + 64).prop_map(Step::Resize),
        1 => (1..=blocks).prop_map(Step::Cut),
    ];
    prop::collection::vec(step, 1..60)
}

#[test]
fn a_file_that_others_write_punch_and_resize_is_as_by_pread_and_pwrite() {
    let mut runner = TestRunner::new(Config::with_cases(150));
    let run = runner.run(&steps(), |steps| {
        let disk = Disk::new(SIZE);
        let mut queue = disk.volume.queue().expect("a queue");
        for step in &steps {
            match *step {
                Step::Put(at, n, byte) => {
                    let (begin, end) = (at * BLOCK, (at + n) * BLOCK);
                    let [begin, end] = [begin, end].map(|at| usize::try_from(at).expect("small"));
                    let mut wanted = disk.contents();
                    if write(queue.as_mut(), at * BLOCK, &vec![byte; end - begin]).is_ok() {
                        wanted.resize(wanted.len().max(end), 0);
                        wanted[begin..end].fill(byte);
                    }
                    prop_assert!(disk.contents() == wanted, "{step:?} of {steps:?}");
                }
                Step::Write(at, n, byte) => {
                    let n = n.min((disk.len() / BLOCK).saturating_sub(at));
                    let bytes = vec![byte; usize::try_from(n * BLOCK).expect("small")];
                    disk.file.write_all_at(&bytes, at * BLOCK).expect("written");
                }
                Step::Punch(at, n) => {
                    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&disk.file, hole, at * BLOCK, n * BLOCK).expect("punched");
                }
                Step::Resize(to) => disk.volume.resize(to * BLOCK).expect("its size"),
                Step::Cut(to) => {
                    ftruncate(&disk.file, disk.len().min(to * BLOCK)).expect("shorter");
                }
                Step::Read(at, n) => {
                    let before = disk.blocks();
                    let mut wanted = vec![0; usize::try_from(n * BLOCK).expect("small")];
                    let there = disk.file.read_exact_at(&mut wanted, at * BLOCK);
                    let got = read(queue.as_mut(), at * BLOCK, n * BLOCK);
                    let agree = match there {
                        Ok(()) => got == Ok(wanted),
                        // Behind the end that the volume knows, or the one that it finds.
                        Err(_) => got.is_err(),
                    };
                    prop_assert!(agree, "{step:?} of {steps:?}");
                    prop_assert_eq!(disk.blocks(), before, "{:?} of {:?}", step, steps);
                }
            }
        }
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_file_that_becomes_shorter_while_it_is_read_gives_errors_and_no_signal() {
    const LARGE: u64 = 4 << 20;
    let disk = Disk::new(LARGE);
    let over = AtomicBool::new(false);
    let (whole, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for first in 0..2 {
            let (disk, over, whole, failed) = (&disk, &over, &whole, &failed);
            scope.spawn(move || {
                let mut queue = disk.volume.queue().expect("a queue");
                let mut at = first * (128 << 10);
                while !over.load(Ordering::Relaxed) {
                    match read(queue.as_mut(), at, 128 << 10) {
                        // A page that came back is zero until it is written.
                        Ok(bytes) => {
                            assert!(bytes.iter().all(|byte| [0, 3].contains(byte)));
                            whole.fetch_add(1, Ordering::Relaxed);
                        }
                        // Once the volume has seen that it is shorter, its end is the new one.
                        Err(errno) => {
                            assert!([EIO, EINVAL].contains(&errno), "{errno:?}");
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    at = (at + (128 << 10)) % LARGE;
                }
            });
        }
        let begin = Instant::now();
        let both = || [&whole, &failed].map(|count| count.load(Ordering::Relaxed) > 0) == [true; 2];
        // On a busy machine a second may be too short for both.
        while begin.elapsed() < Duration::from_secs(1)
            || !both() && begin.elapsed() < Duration::from_secs(30)
        {
            disk.volume.resize(LARGE).expect("its size");
            disk.fill(3);
            std::thread::sleep(Duration::from_millis(2));
            ftruncate(&disk.file, 10 * PAGE).expect("shorter");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(whole.load(Ordering::Relaxed) > 0 && failed.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_file_that_becomes_shorter_while_it_is_written_gets_all_bytes_and_no_signal() {
    const LARGE: u64 = 4 << 20;
    const PART: u32 = 128 << 10;
    let disk = Disk::new(LARGE);
    let over = AtomicBool::new(false);
    let part = |byte: u8| vec![byte; PART as usize];
    let writes = |first: u64| {
        let bytes = part(3);
        let mut queue = disk.volume.queue().expect("a queue");
        let mut at = first * u64::from(PART);
        while !over.load(Ordering::Relaxed) {
            let written = write(queue.as_mut(), at, &bytes);
            // The volume may know of the end that it has at the moment.
            assert!(matches!(written, Ok(()) | Err(EIO)), "{written:?}");
            at = (at + 2 * u64::from(PART)) % LARGE;
        }
    };
    std::thread::scope(|scope| {
        for first in 0..2 {
            scope.spawn(move || writes(first));
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(2));
            ftruncate(&disk.file, 10 * PAGE).expect("shorter");
            disk.volume.resize(LARGE).expect("its size");
        }
        over.store(true, Ordering::Relaxed);
    });
    let mut queue = disk.volume.queue().expect("a queue");
    for at in (0..LARGE).step_by(PART as usize) {
        assert_eq!(write(queue.as_mut(), at, &part(5)), Ok(()));
    }
    assert!(disk.contents().iter().all(|byte| *byte == 5));
}

/// The mapping breaks as a whole, under requests for what the file has kept, too.
#[test]
fn what_is_written_and_read_before_a_cut_is_whole_though_the_mapping_breaks() {
    const LARGE: u64 = 4 << 20;
    const CUT: u64 = 1 << 20;
    const PART: usize = 256 << 10;
    // Each file breaks a few mappings only, and is then not mapped any more.
    for _ in 0..20 {
        let disk = Disk::new(LARGE);
        disk.fill(1);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut queue = disk.volume.queue().expect("a queue");
                for byte in (1..=255).cycle() {
                    let bytes = vec![byte; PART];
                    assert_eq!(write(queue.as_mut(), 0, &bytes), Ok(()));
                    let mut there = vec![0; PART];
                    disk.file.read_exact_at(&mut there, 0).expect("read");
                    assert!(there == bytes, "a write is lost");
                    let there = read(queue.as_mut(), 0, PART as u64);
                    assert!(there == Ok(bytes), "not what was written");
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            scope.spawn(|| {
                let mut queue = disk.volume.queue().expect("a queue");
                while !over.load(Ordering::Relaxed) {
                    let _ = read(queue.as_mut(), CUT, PART as u64);
                }
            });
            for _ in 0..40 {
                std::thread::sleep(Duration::from_millis(1));
                ftruncate(&disk.file, CUT).expect("shorter");
                disk.volume.resize(LARGE).expect("its size");
                disk.file
                    .write_all_at(&vec![2; 2 << 20], CUT)
                    .expect("written");
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_file_that_ends_within_a_page_has_nothing_in_the_rest_of_it() {
    let disk = Disk::new(SIZE);
    disk.fill(1);
    let mut queue = disk.volume.queue().expect("a queue");
    assert!(read(queue.as_mut(), 0, SIZE).is_ok() && disk.is_mapped());
    ftruncate(&disk.file, 32 * PAGE + BLOCK).expect("shorter");
    let there = usize::try_from(32 * PAGE + BLOCK).expect("small");
    assert_eq!(
        read(queue.as_mut(), 0, 32 * PAGE + BLOCK),
        Ok(vec![1; there])
    );
    assert_eq!(read(queue.as_mut(), 0, 32 * PAGE + 2 * BLOCK), Err(EIO));
}

#[test]
fn a_mapping_that_has_lost_pages_is_followed_by_another() {
    let disk = Disk::new(SIZE);
    disk.fill(1);
    let mut queue = disk.volume.queue().expect("a queue");
    assert!(read(queue.as_mut(), 0, SIZE).is_ok());
    ftruncate(&disk.file, 2 * PAGE).expect("shorter");
    assert_eq!(read(queue.as_mut(), 0, SIZE), Err(EIO));
    ftruncate(&disk.file, 2 * SIZE).expect("longer");
    disk.fill(2);
    disk.volume.resize(2 * SIZE).expect("known");
    let half = usize::try_from(SIZE).expect("small");
    for at in [0, SIZE] {
        assert_eq!(read(queue.as_mut(), at, SIZE), Ok(vec![2; half]));
    }
    assert!(disk.is_mapped());
}

#[test]
fn a_file_of_somebody_else_whose_holes_the_kernel_hides_is_not_mapped() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: not root: nobody to be instead");
    }
    let disk = Disk::new(SIZE);
    fchmod(&disk.file, rustix::fs::Mode::from_raw_mode(0o444)).expect("its mode");
    disk.file.write_all_at(&[5; 4096], 0).expect("written");
    let before = disk.blocks();
    let reads_as_nobody = || {
        const NOBODY: libc::c_long = 65534;
        // SAFETY: no pointers. The call is made by its number, so it changes this thread alone, which ends soon.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        assert_eq!(done, 0);
        let mut queue = disk.volume.queue().expect("a queue");
        read(queue.as_mut(), 0, SIZE)
    };
    let bytes = std::thread::scope(|scope| scope.spawn(reads_as_nobody).join());
    let bytes = bytes.expect("no panic").expect("read");
    assert_eq!((bytes[0], bytes[4096]), (5, 0));
    assert_eq!((disk.is_mapped(), disk.blocks()), (false, before));
}

#[test]
fn a_bus_error_that_no_volume_caused_still_ends_the_process() {
    const ME: &str = "a_bus_error_that_no_volume_caused_still_ends_the_process";
    const CHILD: &str = "MEMLANE_TEST_LOSES_A_PAGE";
    if std::env::var(CHILD).is_err() {
        let me = std::env::current_exe().expect("this program");
        let mut child = Command::new(me);
        let child = child.args([ME, "--exact", "--nocapture"]).env(CHILD, "1");
        let ended = child.output().expect("started");
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
        return;
    }
    let disk = Disk::new(SIZE);
    disk.fill(1);
    let mut queue = disk.volume.queue().expect("a queue");
    assert!(read(queue.as_mut(), 0, SIZE).is_ok() && disk.is_mapped());
    let fd: OwnedFd = memfd_create("other", MemfdFlags::CLOEXEC).expect("a file");
    ftruncate(&fd, PAGE).expect("its size");
    let page = memlane_sys::mem::map_shared(fd.as_raw_fd(), 0, 4096, false).expect("mapped");
    ftruncate(&fd, 0).expect("shorter");
    // SAFETY: the page is mapped, though there is nothing behind it: this read is what the test is about.
    unsafe { page.as_ptr().read_volatile() };
}
