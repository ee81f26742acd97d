//! A region: a file of the host's, or the memory of a PCI device in a guest, mapped as a whole.

use super::layout::{
    Division, EXTENTS_AT, Extent, Head, MACHINES, MAGIC, MEMORY_AT, PARTICIPANTS_AT, Participant,
    REGION_LEAST, RINGS_AT, Ring, VERSION, extent_len,
};
use super::untruncated;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use memlane_core::access::SharedBytes;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, FileType};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// PCI devices of the machine.
const DEVICES: &str = "/sys/bus/pci/devices";
/// ivshmem-plain (docs/specs/ivshmem-spec.rst of QEMU): vendor and device.
const IVSHMEM: [&str; 2] = ["0x1af4", "0x1110"];
/// Its memory.
const BAR: &str = "resource2";
/// A mapping of `len` bytes is a whole number of these.
const PAGE: usize = 4096;

/// Why a region cannot be used.
#[derive(Debug)]
pub enum RegionError {
    /// It cannot be opened or mapped.
    Io(PathBuf, io::Error),
    /// No device of the kind is there.
    NoDevice,
    /// There are several; the user has to name one of these.
    Several(Vec<PathBuf>),
    /// It is neither a file nor the memory of a device.
    Kind(PathBuf),
    /// Its length, in bytes, is not a multiple of the page size.
    Ragged(u64),
    /// Its length, in bytes, is too small.
    Small(u64),
    /// Something else lies there.
    Foreign,
    /// It has another version, or is used as one of another length.
    Version {
        /// The version that it says it has.
        version: u64,
        /// The length that it says it has, in bytes.
        len: u64,
    },
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegionError::Io(path, e) => write!(f, "{}: {e}", path.display()),
            RegionError::NoDevice => write!(
                f,
                "this machine has no ivshmem device (PCI 1af4:1110) with memory in {DEVICES}"
            ),
            RegionError::Several(paths) => {
                f.write_str("there are several ivshmem devices; name one:")?;
                let mut names = paths.iter().map(|path| path.display());
                names.try_for_each(|path| write!(f, " ivshmem:{path}"))
            }
            RegionError::Kind(path) => {
                write!(f, "{} is neither a file nor a device's memory", path.display())
            }
            RegionError::Ragged(len) => {
                write!(f, "the region has {len} bytes, which is no whole number of pages")
            }
            RegionError::Small(len) => write!(
                f,
                "the region has {len} bytes; {REGION_LEAST} are needed (16 MiB serve three pairs of programs, 64 MiB thirteen)"
            ),
            RegionError::Foreign => f.write_str(
                "the region has other contents: it is not memlane's (an unused one is filled with zeros)",
            ),
            RegionError::Version { version, len } => write!(
                f,
                "the region has version {version} and {len} bytes; this memlane has version {VERSION}: stop all agents, and fill \
                 it with zeros"
            ),
        }
    }
}

impl std::error::Error for RegionError {}

/// The device's memory, if the machine has one ivshmem device.
///
/// # Errors
/// None is there, or several are.
pub fn find() -> Result<PathBuf, RegionError> {
    let mut found = devices(Path::new(DEVICES));
    match found.len() {
        0 => Err(RegionError::NoDevice),
        1 => Ok(found.remove(0)),
        _ => Err(RegionError::Several(found)),
    }
}

/// The memory of each ivshmem device of a folder of PCI devices.
pub fn devices(folder: &Path) -> Vec<PathBuf> {
    let is_ivshmem = |device: &Path| {
        let says = |name| std::fs::read_to_string(device.join(name)).unwrap_or_default();
        [says("vendor").trim(), says("device").trim()] == IVSHMEM
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|device| is_ivshmem(device) && device.join(BAR).exists())
        .map(|device| device.join(BAR))
        .collect();
    found.sort();
    found
}

/// Opens memory that machines share, without the right to truncate it where the kernel can take that away.
///
/// # Errors
/// It cannot be opened.
pub fn open(path: &Path) -> Result<OwnedFd, RegionError> {
    untruncated::open(path).map_err(|e| RegionError::Io(path.to_owned(), e.into()))
}

/// How fast a mapping is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speed {
    /// As ordinary memory.
    Cached,
    /// It is mapped uncached. A read takes this many times as long as one of ordinary memory.
    Uncached(u32),
}

/// Bytes that are read to measure a mapping's speed.
const SAMPLE: usize = 1 << 20;
/// A mapping that is slower than ordinary memory by this factor is not cached. Uncached ones are slower by a hundred and more.
const FAR_SLOWER: u32 = 8;

/// A region that is mapped.
pub struct Region {
    path: PathBuf,
    file: OwnedFd,
    is_file: bool,
    base: NonNull<u8>,
    len: usize,
    division: Division,
}

// SAFETY: a `Region` is an address range; all access is by atomic words and by `SharedBytes`, from any thread.
unsafe impl Send for Region {}

impl Region {
    /// Opens and maps a region, and writes into one of zeros what memlane's begin with.
    ///
    /// # Errors
    /// It cannot be used, and why.
    pub fn open(path: &Path) -> Result<Region, RegionError> {
        Region::map(path, open(path)?)
    }

    /// Maps a region that is open.
    ///
    /// # Errors
    /// It cannot be used, and why.
    pub fn map(path: &Path, file: OwnedFd) -> Result<Region, RegionError> {
        let failed = |e: rustix::io::Errno| RegionError::Io(path.to_owned(), e.into());
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(RegionError::Kind(path.to_owned()));
        }
        let told = u64::try_from(stat.st_size).unwrap_or(0);
        let len = usize::try_from(told).unwrap_or(0);
        if !len.is_multiple_of(PAGE) {
            return Err(RegionError::Ragged(told));
        }
        let division = Division::of(len).ok_or(RegionError::Small(told))?;
        // Files of sysfs have no blocks of their own, and no holes.
        let is_file = rustix::fs::fstatfs(&file).map_err(failed)?.f_type != SYSFS_MAGIC;
        if is_file {
            // Where memory is short, this says so; a touch of the mapping would be SIGBUS.
            let all = FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, all, 0, MEMORY_AT as u64).map_err(failed)?;
        }
        // SAFETY: a fresh mapping, where the kernel likes.
        let base = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let base = NonNull::new(base.map_err(failed)?.cast())
            .ok_or_else(|| failed(rustix::io::Errno::INVAL))?;
        let region = Region {
            path: path.to_owned(),
            file,
            is_file,
            base,
            len,
            division,
        };
        region.format()?;
        Ok(region)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor that programs map.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// How the memory is divided.
    pub fn division(&self) -> Division {
        self.division
    }

    /// A place in the table of machines.
    pub(crate) fn participant(&self, place: usize) -> &Participant {
        assert!(place < MACHINES);
        // SAFETY: the table lies within the shortest region, the mapping lives as long as `self`, and `Participant` is made of
        // atomic words, which others may change at any time.
        unsafe { self.words(PARTICIPANTS_AT + place * size_of::<Participant>()) }
    }

    /// A place in the table of extents.
    pub(crate) fn extent(&self, extent: usize) -> &Extent {
        assert!(extent < self.division.extents);
        // SAFETY: as above.
        unsafe { self.words(EXTENTS_AT + extent * size_of::<Extent>()) }
    }

    /// The ring of messages from one machine to another.
    pub(crate) fn ring(&self, from: usize, to: usize) -> &Ring {
        assert!(from < MACHINES && to < MACHINES);
        // SAFETY: as above.
        unsafe { self.words(RINGS_AT + (from * MACHINES + to) * size_of::<Ring>()) }
    }

    /// # Safety
    /// `T` is made of atomic words, and lies at `at` within [`MEMORY_AT`].
    unsafe fn words<T>(&self, at: usize) -> &T {
        debug_assert!(at + size_of::<T>() <= MEMORY_AT && at.is_multiple_of(align_of::<T>()));
        // SAFETY: the caller's promise; each region is longer than `MEMORY_AT`, and mapped at the start of a page.
        unsafe { self.base.add(at).cast().as_ref() }
    }

    /// The whole region as a window.
    fn bytes(&self) -> SharedBytes {
        // SAFETY: the mapping lives as long as `self`, which every user of this window borrows.
        unsafe { SharedBytes::new(self.base, self.len) }
    }

    /// Fills the words of an extent with zeros. Its rings keep what was there: whoever has the region can read that anyway, and
    /// an honest sender says only of what it has written that it is there. `false`: there is no memory for the extent.
    pub(crate) fn clear(&self, extent: usize) -> bool {
        let (at, len) = (
            self.division.at(extent),
            extent_len(self.division.ring_size),
        );
        if self.is_file {
            let there = FallocateFlags::KEEP_SIZE;
            if rustix::fs::fallocate(&self.file, there, at as u64, len as u64).is_err() {
                return false;
            }
        }
        let zeros = [0u8; PAGE];
        (at..at + memlane_core::layout::RINGS_AT)
            .step_by(PAGE)
            .all(|at| {
                // SAFETY: `zeros` has as many bytes as are copied; the window refuses what lies outside.
                unsafe { self.bytes().copy_in(at, zeros.as_ptr(), PAGE) }
            })
    }

    /// Gives the memory of an extent back to the host, where that is possible.
    pub(crate) fn give_back(&self, extent: usize) {
        if self.is_file {
            let hole = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
            let (at, len) = (
                self.division.at(extent),
                extent_len(self.division.ring_size),
            );
            let _ = rustix::fs::fallocate(&self.file, hole, at as u64, len as u64);
        }
    }

    /// Measures how fast the mapping is read, beside ordinary memory.
    pub fn speed(&self) -> Speed {
        speed_of(self.bytes())
    }

    /// Makes sure that the region is one of this version: two agents that find zeros write the same.
    fn format(&self) -> Result<(), RegionError> {
        // SAFETY: the head lies within the shortest region; as in `participant`.
        let head: &Head = unsafe { self.words(0) };
        let ours = self.len as u64;
        let read = |word: &AtomicU64| word.load(Ordering::Acquire);
        if read(&head.magic) == 0 && self.is_unused() {
            head.version.store(VERSION, Ordering::Relaxed);
            head.len.store(ours, Ordering::Relaxed);
            let order = Ordering::SeqCst;
            let _ = head.magic.compare_exchange(0, MAGIC, order, order);
        }
        match (read(&head.magic), read(&head.version), read(&head.len)) {
            (MAGIC, VERSION, len) if len == ours => Ok(()),
            (MAGIC, version, len) => Err(RegionError::Version { version, len }),
            _ => Err(RegionError::Foreign),
        }
    }

    /// Are the tables all zeros, but for what another agent has just written there?
    fn is_unused(&self) -> bool {
        // SAFETY: the whole of the tables, which are atomic words to everybody.
        let words: &[AtomicU64; RINGS_AT / 8] = unsafe { self.words(0) };
        let just_written = |at: usize, word: u64| match at {
            0 => word == MAGIC,
            1 => word == VERSION,
            2 => word == self.len as u64,
            _ => false,
        };
        let mut words = words
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .enumerate();
        words.all(|(at, word)| word == 0 || just_written(at, word))
    }
}

/// Measures how fast a mapping of an open file would be read, beside ordinary memory.
///
/// # Errors
/// It cannot be mapped.
pub fn measure(file: &OwnedFd) -> io::Result<Speed> {
    let len = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
    let len = usize::try_from(len).unwrap_or(SAMPLE).min(SAMPLE);
    // SAFETY: a fresh mapping, where the kernel likes; it is not used after it was unmapped.
    unsafe {
        let place = core::ptr::null_mut();
        let base = rustix::mm::mmap(place, len, ProtFlags::READ, MapFlags::SHARED, file, 0)?;
        let bytes = NonNull::new(base.cast()).map(|base| SharedBytes::read_only(base, len));
        let speed = bytes.map_or(Speed::Cached, speed_of);
        rustix::mm::munmap(base, len)?;
        Ok(speed)
    }
}

/// How fast these bytes are read, beside ordinary memory.
fn speed_of(bytes: SharedBytes) -> Speed {
    let len = bytes.len().min(SAMPLE);
    let mut ordinary = vec![1u8; len];
    let mut into = vec![0u8; len];
    let ours = NonNull::from(ordinary.as_mut_slice()).cast();
    // SAFETY: `ordinary` outlives this window, and nothing else uses it.
    let ours = unsafe { SharedBytes::new(ours, len) };
    let mut read = |from: SharedBytes| {
        let begin = Instant::now();
        // SAFETY: `into` has `len` bytes; the window refuses what lies outside.
        let whole = unsafe { from.copy_out(0, into.as_mut_ptr(), len) };
        debug_assert!(whole);
        begin.elapsed()
    };
    // The first time, pages are found; the best of several has met no interruption.
    let mut best = |from: SharedBytes| (0..4).map(|_| read(from)).min();
    let shared = bytes.part(0, len).and_then(&mut best);
    let plain = best(ours)
        .unwrap_or_default()
        .max(Duration::from_micros(10));
    let times = shared.unwrap_or_default().as_nanos() / plain.as_nanos();
    match u32::try_from(times).unwrap_or(u32::MAX) {
        times if times >= FAR_SLOWER => Speed::Uncached(times),
        _ => Speed::Cached,
    }
}

/// `SYSFS_MAGIC` (include/uapi/linux/magic.h).
const SYSFS_MAGIC: rustix::fs::FsWord = 0x6265_6572;

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the whole mapping that `map` made; whoever used it has borrowed `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
