//! The mapping of the whole region, and whose it is here.

use super::layout::{
    DEPARTED, EXTENTS, EXTENTS_AT, Extent, Head, MAGIC, MEMORY_AT, PAGE, VERSION, is_claim,
};
use memlane_core::access::SharedBytes;
use memlane_sys::proc;
use rustix::fs::{FileType, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::fs::MetadataExt as _;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// `SYSFS_MAGIC` (include/uapi/linux/magic.h): where the memory of PCI devices is.
const SYSFS_MAGIC: rustix::fs::FsWord = 0x6265_6572;

/// Who maps the memory, as others of the region can tell it from everyone else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// This machine: the same over boots.
    pub machine: u64,
    /// This boot of it.
    pub boot: u64,
}

/// This process, as its entries in the region name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Me {
    pub(super) holder: Holder,
    pub(super) process: u64,
    pub(super) started: u64,
    pub(super) namespace: u64,
}

/// Why memory cannot be shared between machines.
#[derive(Debug)]
pub enum SharedMemoryError {
    /// It cannot be mapped, or not be reserved.
    Io(io::Error),
    /// It is neither a file nor the memory of a device.
    Kind,
    /// Its length, in bytes, is no whole number of pages.
    Ragged(u64),
    /// Its length, in bytes, does not suffice for the least that is asked of it.
    Small {
        /// What it has.
        has: u64,
        /// What is needed.
        needs: u64,
    },
    /// Something else lies there.
    Foreign,
    /// It has another version, or was laid out for another length.
    Version {
        /// The version that it says it has.
        version: u64,
        /// The length that it says it has, in bytes.
        len: u64,
    },
    /// Another server of this host uses it.
    Busy,
    /// A server divides a file of the host; this is a device's memory.
    Device,
    /// What a former server has noted there cannot be.
    Damaged,
}

impl fmt::Display for SharedMemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedMemoryError::Io(error) => write!(f, "{error}"),
            SharedMemoryError::Kind => f.write_str("neither a file nor a device's memory"),
            SharedMemoryError::Ragged(len) => {
                write!(f, "it has {len} bytes, which is no whole number of pages")
            }
            SharedMemoryError::Small { has, needs } => write!(
                f,
                "it has {has} bytes; one session needs {needs}: make it larger, or use a smaller --queue-depth or --chunk"
            ),
            SharedMemoryError::Foreign => f.write_str(
                "it has other contents, and is not a region of volumes (an unused one is filled with zeros; that of memlane agent is another)",
            ),
            SharedMemoryError::Version { version, len } => write!(
                f,
                "it has version {version} and {len} bytes; this memlane has version {VERSION}: stop its server and clients, and fill it with zeros"
            ),
            SharedMemoryError::Busy => f.write_str("another server uses it: give each server a region of its own"),
            SharedMemoryError::Device => f.write_str(
                "it is a device's memory: run the server where the region is a file, on the host",
            ),
            SharedMemoryError::Damaged => f.write_str(
                "its table of extents is damaged: stop its clients, and fill it with zeros",
            ),
        }
    }
}

impl std::error::Error for SharedMemoryError {}

impl From<rustix::io::Errno> for SharedMemoryError {
    fn from(errno: rustix::io::Errno) -> Self {
        SharedMemoryError::Io(errno.into())
    }
}

/// A region, mapped as a whole. Each machine that has it can read and write all of it, at any time.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    is_file: bool,
    base: NonNull<u8>,
    len: usize,
    me: Me,
}

// SAFETY: it is an address range; all access is by atomic words and by `SharedBytes`.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps a region that is open for reading and writing.
    ///
    /// # Errors
    /// It cannot be used, and why.
    pub fn map(file: OwnedFd, holder: Holder) -> Result<SharedMemory, SharedMemoryError> {
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(SharedMemoryError::Kind);
        }
        let has = u64::try_from(stat.st_size).unwrap_or(0);
        let len = usize::try_from(has).unwrap_or(0);
        if !len.is_multiple_of(PAGE) {
            return Err(SharedMemoryError::Ragged(has));
        }
        if len <= MEMORY_AT {
            let needs = (MEMORY_AT + PAGE) as u64;
            return Err(SharedMemoryError::Small { has, needs });
        }
        let is_file = fstatfs(&file)?.f_type != SYSFS_MAGIC;
        if is_file {
            // Where memory is short, this says so; a touch of the mapping would be SIGBUS.
            let there = rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, there, 0, MEMORY_AT as u64)?;
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping, where the kernel likes.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                rights,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(SharedMemoryError::Kind)?;
        Ok(SharedMemory {
            file,
            is_file,
            base,
            len,
            me: Me::here(holder),
        })
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Can the kernel use it as the memory of a request? A device's memory has no pages that it could pin.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.is_file
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub(super) fn me(&self) -> &Me {
        &self.me
    }

    pub(super) fn bytes(&self) -> SharedBytes {
        // SAFETY: the mapping lives as long as `self`; whoever uses the window keeps that.
        unsafe { SharedBytes::new(self.base, self.len) }
    }

    fn head(&self) -> &Head {
        // SAFETY: it lies within the shortest region, and is made of atomic words, which others may change at any time.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    /// An entry of the table. Panics where there is none: numbers of peers are compared with `EXTENTS` before.
    pub(super) fn extent(&self, number: usize) -> &Extent {
        assert!(number < EXTENTS);
        // SAFETY: the table lies within the shortest region, and `Extent` is made of atomic words.
        unsafe {
            let table = self.base.add(EXTENTS_AT).cast::<Extent>();
            table.add(number).as_ref()
        }
    }

    /// At the server: makes sure that the region is one of this version, and lays out one of zeros.
    pub(super) fn format(&self) -> Result<(), SharedMemoryError> {
        let head = self.head();
        let ours = self.len as u64;
        let is_unused = || self.words().iter().all(|word| word.load(Relaxed) == 0);
        if head.magic.load(Acquire) == 0 && is_unused() {
            head.version.store(VERSION, Relaxed);
            head.len.store(ours, Relaxed);
            head.magic.store(MAGIC, Release);
        }
        let said = (head.version.load(Relaxed), head.len.load(Relaxed));
        match (head.magic.load(Acquire), said) {
            (MAGIC, (VERSION, len)) if len == ours => Ok(()),
            (MAGIC, (version, len)) => Err(SharedMemoryError::Version { version, len }),
            _ => Err(SharedMemoryError::Foreign),
        }
    }

    /// Everything before the memory of extents.
    fn words(&self) -> &[std::sync::atomic::AtomicU64; MEMORY_AT / 8] {
        // SAFETY: it lies within the shortest region, and is made of atomic words.
        unsafe { self.base.cast().as_ref() }
    }

    /// Says of what processes of this machine held that they are no more.
    pub(in crate::io) fn sweep(&self) {
        for number in 0..EXTENTS {
            let extent = self.extent(number);
            let claim = extent.claim.load(Acquire);
            if is_claim(claim) && self.me.has_outlived(extent) {
                // Claims are random, and only who has the claim signs: if it is the same one still, so is its holder.
                let _ = extent
                    .claim
                    .compare_exchange(claim, DEPARTED, Release, Relaxed);
            }
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the whole mapping that `map` made; whoever uses it keeps `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Me {
    fn here(holder: Holder) -> Me {
        let namespace = std::fs::metadata("/proc/self/ns/pid");
        let pid = std::process::id();
        Me {
            holder,
            process: u64::from(pid),
            started: proc::started(pid).unwrap_or(0),
            namespace: namespace.map_or(0, |namespace| namespace.st_ino()),
        }
    }

    /// Writes who this is into an entry that this process has claimed.
    pub(super) fn sign(&self, extent: &Extent) {
        extent.boot.store(self.holder.boot, Relaxed);
        extent.process.store(self.process, Relaxed);
        extent.started.store(self.started, Relaxed);
        extent.namespace.store(self.namespace, Relaxed);
        extent.machine.store(self.holder.machine, Release);
    }

    /// Is the holder of an entry a process of this machine that is no more?
    fn has_outlived(&self, extent: &Extent) -> bool {
        if extent.machine.load(Acquire) != self.holder.machine {
            return false;
        }
        if extent.boot.load(Relaxed) != self.holder.boot {
            return true;
        }
        // Numbers of processes mean something in their own namespace only.
        let namespace = extent.namespace.load(Relaxed);
        if namespace == 0 || namespace != self.namespace {
            return false;
        }
        let started = extent.started.load(Relaxed);
        let pid = u32::try_from(extent.process.load(Relaxed)).unwrap_or(0);
        started != 0 && proc::started(pid) != Some(started)
    }
}
