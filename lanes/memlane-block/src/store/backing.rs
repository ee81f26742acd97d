//! An opened file, block device, piece of memory, or nothing of a certain size.

use super::claim::Claim;
use super::mapped::Mapped;
use super::memory::Memory;
use crate::volume::{Errno, Info, Op, tell_extents};
use memlane_core::access::SharedBytes;
use memlane_sys::mem;
use memlane_wait::mutex::lock;
use rustix::fs::{AtFlags, FallocateFlags, FileType, OFlags, StatxFlags};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Most bytes of one trim or write-zeroes. Where a file system can do neither, zeroes are written: that may take a
/// while, but not longer than this takes.
pub const MAX_TRIM: u32 = 1 << 30;
/// Blocks of what has none of its own.
const BLOCK: u32 = 512;
/// `STATX_DIOALIGN` (linux/stat.h): since Linux 6.1.
const STATX_DIOALIGN: u32 = 0x2000;

/// May the page cache be passed by?
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Direct {
    /// For block devices: files are often sparse, and smaller than memory.
    #[default]
    Auto,
    /// Or an error.
    On,
    /// Never.
    Off,
}

/// What may be done with what is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Only reading.
    Read,
    /// Writing too, beside others; those of a file are in this process.
    Share,
    /// Writing too. A block device that is mounted, or has such a user already, is refused: `EBUSY`.
    Claim,
}

/// What makes two names the same volume.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// A file.
    File {
        /// `st_dev`.
        device: u64,
        /// `st_ino`.
        inode: u64,
    },
    /// A block device.
    Device(u64),
    /// A backing that exists only while a session has it open.
    Test(String),
}

/// Something that went wrong, for people to read.
#[derive(Clone, Debug)]
pub struct Failure {
    /// When.
    pub when: SystemTime,
    /// At what.
    pub op: Op,
    /// From which byte on.
    pub at: u64,
    /// How many.
    pub len: u32,
    /// What its user knows of it.
    pub errno: Errno,
    /// Why, if more is known.
    pub why: Option<String>,
}

/// Where the bytes are.
#[derive(Debug)]
enum Source {
    File(File),
    Memory(Memory),
    Nothing,
}

/// A file or a block device.
#[derive(Debug)]
pub(super) struct File {
    fd: OwnedFd,
    /// The same with `O_DIRECT`.
    direct: Option<(OwnedFd, Alignment)>,
    pub(super) device: bool,
    /// All of it is in memory (tmpfs): reading and writing waits for no disk.
    pub(super) in_memory: bool,
    mapped: Mapped,
}

#[derive(Clone, Copy, Debug)]
struct Alignment {
    memory: usize,
    offset: u64,
}

impl File {
    /// For everything but data.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// For this data: past the page cache where its alignment permits.
    pub(super) fn fd_for(&self, at: u64, len: usize, memory: *const u8) -> RawFd {
        let fits = |to: &Alignment| {
            at.is_multiple_of(to.offset)
                && (len as u64).is_multiple_of(to.offset)
                && memory.addr().is_multiple_of(to.memory)
        };
        match &self.direct {
            Some((fd, to)) if fits(to) => fd.as_raw_fd(),
            _ => self.fd.as_raw_fd(),
        }
    }

    /// Its mapping, which takes the place of system calls for data, where that is possible.
    pub(super) fn mapped(&self) -> Option<&Mapped> {
        let suits = self.in_memory && self.direct.is_none();
        suits.then_some(&self.mapped)
    }

    fn bytes(&self) -> io::Result<u64> {
        if self.device {
            return device_size(self.fd());
        }
        let size = rustix::fs::fstat(&self.fd)?.st_size;
        Ok(u64::try_from(size).unwrap_or(0))
    }
}

/// An opened volume. Clones of its `Arc` may be used by any number of threads.
#[derive(Debug)]
pub struct Backing {
    source: Source,
    key: Key,
    block: u32,
    preferred: u32,
    writable: bool,
    /// Of a file that is written: keeps other processes from writing it.
    claim: Option<Claim>,
    trim: bool,
    /// Bytes, in whole blocks.
    size: AtomicU64,
    /// What it had before it shrank without anybody telling us; 0: it did not.
    shrunk_from: AtomicU64,
    /// How often its size has changed.
    changes: AtomicU64,
    /// Held while the size is looked at.
    looking: Mutex<()>,
    failure: Mutex<Option<Failure>>,
}

impl Backing {
    /// What `path` (an `O_PATH` descriptor of a regular file or a block device) stands for, opened.
    ///
    /// # Errors
    /// It cannot be opened so, is of another kind (`EINVAL`), or another process has it (`EBUSY`).
    pub fn open(path: BorrowedFd<'_>, mode: Mode, direct: Direct) -> io::Result<Backing> {
        let writable = mode != Mode::Read;
        let stat = rustix::fs::fstat(path)?;
        let device = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        let flags = match mode {
            Mode::Read => OFlags::RDONLY,
            Mode::Share | Mode::Claim => OFlags::RDWR,
        };
        // Without O_CREAT it means this, and only of devices.
        let claim = match mode {
            Mode::Claim if device => OFlags::EXCL,
            _ => OFlags::empty(),
        };
        let fd = reopen(path, flags | claim)?;
        let key = match device {
            true => Key::Device(stat.st_rdev),
            false => Key::File {
                device: stat.st_dev,
                inode: stat.st_ino,
            },
        };
        let claim = (writable && !device).then(|| Claim::of(&key, || reopen(path, flags)));
        let bypass = match direct {
            Direct::Auto => device,
            Direct::On => true,
            Direct::Off => false,
        };
        let direct = match bypass.then(|| open_direct(path, flags)).transpose() {
            Ok(direct) => direct,
            Err(error) if direct == Direct::On => return Err(error),
            Err(_) => None,
        };
        let (block, preferred) = block_sizes(fd.as_fd(), device, stat.st_blksize);
        let trim = writable && can_trim(fd.as_fd(), device, stat.st_rdev);
        let in_memory = !device && is_in_memory(fd.as_fd());
        let file = File {
            fd,
            direct,
            device,
            in_memory,
            mapped: Mapped::new(writable),
        };
        let bytes = file.bytes()?;
        Ok(Backing {
            source: Source::File(file),
            key,
            claim: claim.transpose()?,
            trim,
            writable,
            ..Backing::new(block, preferred, bytes)
        })
    }

    /// Memory of `size` bytes, all zero, which goes with the last user.
    ///
    /// # Errors
    /// There is not so much, or it is not in blocks.
    pub fn memory(size: u64, name: &str) -> io::Result<Backing> {
        Backing::of_memory(size, name, Memory::new)
    }

    /// Memory like that of [`memory`](Self::memory), which can be lent.
    ///
    /// # Errors
    /// There is not so much, or it is not in blocks.
    pub fn memory_to_lend(size: u64, name: &str) -> io::Result<Backing> {
        Backing::of_memory(size, name, Memory::to_share)
    }

    fn of_memory(
        size: u64,
        name: &str,
        make: impl FnOnce(u64) -> io::Result<Memory>,
    ) -> io::Result<Backing> {
        in_blocks(size)?;
        Ok(Backing {
            source: Source::Memory(make(size)?),
            key: Key::Test(name.to_owned()),
            ..Backing::new(BLOCK, 4096, size)
        })
    }

    /// A descriptor by which another process can read these bytes, and write them if `writable`. `None`: they are not all in
    /// memory, or only this process can have them.
    ///
    /// # Errors
    /// Descriptors are used up.
    pub fn lend(&self, writable: bool) -> io::Result<Option<OwnedFd>> {
        let file = match &self.source {
            Source::Memory(memory) => memory.file(),
            Source::File(file) => file.mapped().map(|_| file.fd()),
            Source::Nothing => None,
        };
        let Some(file) = file else {
            return Ok(None);
        };
        let lent = match (&self.claim, writable) {
            (_, false) => reopen(file, OFlags::RDONLY),
            (Some(claim), true) => claim.lend(),
            (None, true) => file.try_clone_to_owned(),
        };
        lent.map(Some)
    }

    /// What another process has lent, of at least `size` bytes.
    ///
    /// # Errors
    /// It is neither a file of a tmpfs with as many bytes nor a memory file of exactly this size, which is sealed.
    pub fn borrowed(lent: OwnedFd, size: u64, writable: bool) -> io::Result<Backing> {
        let stat = rustix::fs::fstat(&lent)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let is_shorter = u64::try_from(stat.st_size).is_ok_and(|has| has < size);
        if !is_file || is_shorter || !is_in_memory(lent.as_fd()) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let is_sealed = mem::seals(lent.as_raw_fd())
            .is_ok_and(|seals| seals & mem::SEALS_FIXED == mem::SEALS_FIXED);
        let source = match is_sealed {
            true => Source::Memory(Memory::of_another(lent, size, writable)?),
            false => Source::File(File {
                fd: lent,
                direct: None,
                device: false,
                in_memory: true,
                mapped: Mapped::new(writable),
            }),
        };
        Ok(Backing {
            source,
            writable,
            ..Backing::new(BLOCK, 4096, size)
        })
    }

    /// Nothing: what is written is forgotten, and what is read was in the memory before.
    ///
    /// # Errors
    /// Not in blocks.
    pub fn nothing(size: u64, name: &str) -> io::Result<Backing> {
        in_blocks(size)?;
        Ok(Backing {
            key: Key::Test(name.to_owned()),
            ..Backing::new(BLOCK, 4096, size)
        })
    }

    fn new(block: u32, preferred: u32, bytes: u64) -> Backing {
        Backing {
            source: Source::Nothing,
            key: Key::Test(String::new()),
            block,
            preferred,
            writable: true,
            claim: None,
            trim: true,
            size: AtomicU64::new(whole(bytes, block)),
            shrunk_from: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            looking: Mutex::new(()),
            failure: Mutex::new(None),
        }
    }

    /// What makes two names the same volume.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What it is now, for a user whose requests carry `max_io` bytes at most.
    #[must_use]
    pub fn info(&self, max_io: u32) -> Info {
        Info {
            size: self.size.load(Ordering::Acquire),
            block: self.block,
            preferred: self.preferred,
            max_io: max_io & !(self.block - 1),
            max_trim: if self.writable { MAX_TRIM } else { 0 },
            read_only: !self.writable,
            cached: matches!(self.source, Source::File(_)),
            trim: self.trim,
            zeroes: self.writable,
            extents: true,
        }
    }

    /// How often its size has changed since it was opened.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The last thing that went wrong.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    /// Does this lie inside, in blocks, and may it be done? `EIO` for what lay inside before the file shrank.
    ///
    /// # Errors
    /// `EINVAL`, `EROFS`, `EOPNOTSUPP`, `EIO`.
    pub fn check(&self, op: Op, at: u64, len: u32) -> Result<(), Errno> {
        let changes = matches!(op, Op::Write | Op::Trim | Op::WriteZeroes);
        let many = matches!(op, Op::Trim | Op::WriteZeroes);
        if op == Op::Flush {
            return Ok(());
        }
        if changes && !self.writable {
            return Err(Errno(libc::EROFS));
        }
        if op == Op::Trim && !self.trim {
            return Err(Errno::NOTSUP);
        }
        let block = u64::from(self.block);
        let in_blocks = at.is_multiple_of(block) && u64::from(len).is_multiple_of(block);
        if len == 0 || !in_blocks || (many && len > MAX_TRIM) {
            return Err(Errno::INVAL);
        }
        let end = at.checked_add(len.into()).ok_or(Errno::INVAL)?;
        if end <= self.size.load(Ordering::Acquire) {
            return Ok(());
        }
        let before = self.shrunk_from.load(Ordering::Acquire);
        let gone = end <= before;
        Err(if gone { Errno(libc::EIO) } else { Errno::INVAL })
    }

    /// Has `moves` read or write these bytes where they are (see [`Queue::in_place`](crate::volume::Queue::in_place)).
    ///
    /// # Errors
    /// `EIO`: its file has become shorter meanwhile.
    pub fn in_place(
        &self,
        op: Op,
        (at, len): (u64, u32),
        moves: &mut dyn FnMut(SharedBytes) -> usize,
    ) -> Result<Option<usize>, Errno> {
        let is_allowed = op == Op::Read || (op == Op::Write && self.writable);
        let end = at.checked_add(len.into());
        let is_inside = end.is_some_and(|end| end <= self.size.load(Ordering::Acquire));
        if !is_allowed || !is_inside {
            return Ok(None);
        }
        match &self.source {
            Source::Memory(memory) => Ok(memory.part(at, len).map(moves)),
            Source::File(file) => match file.mapped() {
                Some(mapped) => mapped.in_place(file.fd(), op, (at, len), moves),
                None => Ok(None),
            },
            Source::Nothing => Ok(None),
        }
    }

    /// Reads the size again, and returns whether it has changed. After it has shrunk, requests for what is gone fail.
    pub fn look(&self) -> bool {
        self.look_as(false)
    }

    fn look_as(&self, on_purpose: bool) -> bool {
        let Source::File(file) = &self.source else {
            return false;
        };
        let _one = lock(&self.looking);
        // Who cannot be asked has no other size.
        let Ok(bytes) = file.bytes() else {
            return false;
        };
        let (now, old) = (whole(bytes, self.block), self.size.load(Ordering::Acquire));
        let before = old.max(self.shrunk_from.load(Ordering::Acquire));
        if now < before && !on_purpose {
            self.shrunk_from.store(before, Ordering::Release);
        } else {
            self.shrunk_from.store(0, Ordering::Release);
        }
        if now == old {
            return false;
        }
        self.size.store(now, Ordering::Release);
        self.changes.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Notes that the size was changed on purpose, perhaps by [`resize`](Self::resize) of another backing of the same
    /// file.
    pub fn resized(&self) -> bool {
        self.look_as(true)
    }

    /// Gives a file another size.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` if not in blocks; `EOPNOTSUPP` if it is no file.
    pub fn resize(&self, size: u64) -> io::Result<()> {
        in_blocks(size)?;
        match &self.source {
            Source::File(file) if !file.device => {
                rustix::fs::ftruncate(file.fd(), size)?;
                self.resized();
                Ok(())
            }
            _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        }
    }

    /// Keeps what went wrong, for people to read.
    pub fn failed(&self, op: Op, at: u64, len: u32, errno: Errno) {
        let before = self.shrunk_from.load(Ordering::Acquire);
        let now = self.size.load(Ordering::Acquire);
        let why = (errno.0 == libc::EIO && before > now)
            .then(|| format!("it has shrunk from {before} to {now} bytes"));
        *lock(&self.failure) = Some(Failure {
            when: SystemTime::now(),
            op,
            at,
            len,
            errno,
            why,
        });
    }

    /// The file, for what does the work.
    pub(super) fn file(&self) -> Option<&File> {
        match &self.source {
            Source::File(file) => Some(file),
            _ => None,
        }
    }

    /// Does what needs no file; `None`: it needs one.
    pub(super) fn at_once(
        &self,
        op: Op,
        at: u64,
        len: u32,
        data: Option<SharedBytes>,
    ) -> Option<Result<(), Errno>> {
        match &self.source {
            Source::File(_) => None,
            Source::Memory(memory) => Some(memory.perform(op, at, len, data)),
            Source::Nothing => Some(nothing(op, len, data)),
        }
    }
}

fn nothing(op: Op, len: u32, data: Option<SharedBytes>) -> Result<(), Errno> {
    match (op, data) {
        (Op::Extents, Some(room)) => tell_extents(&[(len.into(), true)], room),
        _ => Ok(()),
    }
}

/// The same file, opened anew, and not by its name.
fn reopen(path: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    let name = format!("/proc/self/fd/{}", path.as_raw_fd());
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(rustix::fs::open(name, flags, rustix::fs::Mode::empty())?)
}

fn open_direct(path: BorrowedFd<'_>, flags: OFlags) -> io::Result<(OwnedFd, Alignment)> {
    let fd = reopen(path, flags | OFlags::DIRECT)?;
    let wanted = StatxFlags::from_bits_retain(STATX_DIOALIGN);
    let told = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, wanted)?;
    let known = told.stx_mask & STATX_DIOALIGN != 0;
    let (memory, offset) = match known {
        true => (told.stx_dio_mem_align, told.stx_dio_offset_align),
        // Older kernels do not tell: what every device takes.
        false => (4096, 4096),
    };
    if memory == 0 || offset == 0 {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let to = Alignment {
        memory: memory as usize,
        offset: offset.into(),
    };
    Ok((fd, to))
}

/// Blocks, and what is done without a detour.
fn block_sizes(fd: BorrowedFd<'_>, device: bool, file_block: impl TryInto<u32>) -> (u32, u32) {
    let sane = |size: u32| (BLOCK..=1 << 15).contains(&size) && size.is_power_of_two();
    let (block, preferred) = match device {
        true => (
            rustix::fs::ioctl_blksszget(fd).unwrap_or(BLOCK),
            rustix::fs::ioctl_blkpbszget(fd).unwrap_or(4096),
        ),
        false => (BLOCK, file_block.try_into().unwrap_or(4096)),
    };
    let block = if sane(block) { block } else { 4096 };
    let preferred = if sane(preferred) { preferred } else { 4096 };
    (block, preferred.max(block))
}

/// Is this a file of a tmpfs (`TMPFS_MAGIC`, linux/magic.h)?
fn is_in_memory(fd: BorrowedFd<'_>) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    rustix::fs::fstatfs(fd).is_ok_and(|told| u64::try_from(told.f_type) == Ok(TMPFS_MAGIC))
}

/// A file system that can punch holes does so behind a file's end, where it changes nothing; a device says it.
fn can_trim(fd: BorrowedFd<'_>, device: bool, number: u64) -> bool {
    if !device {
        const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
        let end = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_size);
        let end = u64::try_from(end).unwrap_or(0).next_multiple_of(4096);
        return rustix::fs::fallocate(fd, PUNCH, end, 4096).is_ok();
    }
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    // A partition's queue is its disk's.
    let most = ["queue", "../queue"].iter().find_map(|queue| {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/discard_max_bytes");
        std::fs::read_to_string(path).ok()
    });
    most.and_then(|most| most.trim().parse().ok())
        .is_some_and(|most: u64| most > 0)
}

/// `BLKGETSIZE64` (linux/fs.h).
fn device_size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    use rustix::ioctl::{Getter, ioctl, opcode};
    const BLKGETSIZE64: rustix::ioctl::Opcode = opcode::read::<usize>(0x12, 114);
    // SAFETY: the kernel writes a u64 (its macro says size_t).
    let bytes = unsafe { ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) }?;
    Ok(bytes)
}

fn in_blocks(size: u64) -> io::Result<()> {
    let fits = size > 0 && size.is_multiple_of(BLOCK.into()) && i64::try_from(size).is_ok();
    let error = || io::Error::from_raw_os_error(libc::EINVAL);
    fits.then_some(()).ok_or_else(error)
}

fn whole(bytes: u64, block: u32) -> u64 {
    bytes - bytes % u64::from(block)
}
