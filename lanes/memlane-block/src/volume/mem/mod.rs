//! A volume in this process's memory: for tests of whatever uses volumes, and for measuring it without a disk.

mod late;

use super::{Done, EXTENT_LEN, Errno, Flags, Info, Io, Lease, Lender, Op, Queue, Volume};
use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BLOCK: u32 = 512;
const MAX_IO: u32 = 128 * 1024;
const MAX_TRIM: u32 = 1 << 30;
const LEASES: u32 = 64;
/// Requests that are remembered.
pub const MAX_LOG: usize = 1 << 16;

/// Blocks in memory. Clones are the same volume.
#[derive(Clone, Debug)]
pub struct MemVolume {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    disk: Region,
    info: Info,
    log: Mutex<Vec<(Op, u64, u32, Flags)>>,
    failing: Mutex<Option<Errno>>,
    size: AtomicU64,
    late: bool,
}

impl MemVolume {
    /// One of `size` bytes, all zero.
    ///
    /// # Errors
    /// Not a multiple of 512, or no memory.
    pub fn new(size: u64) -> io::Result<MemVolume> {
        MemVolume::with(size, |_| {})
    }

    /// A volume whose description `change` has changed.
    ///
    /// # Errors
    /// The kernel's: there is no memory.
    pub fn with(size: u64, change: impl FnOnce(&mut Info)) -> io::Result<MemVolume> {
        MemVolume::make(size, false, change)
    }

    /// A volume whose requests another thread completes, later and not in order.
    ///
    /// # Errors
    /// The kernel's: there is no memory.
    pub fn late(size: u64, change: impl FnOnce(&mut Info)) -> io::Result<MemVolume> {
        MemVolume::make(size, true, change)
    }

    fn make(size: u64, late: bool, change: impl FnOnce(&mut Info)) -> io::Result<MemVolume> {
        let mut info = Info {
            size,
            block: BLOCK,
            preferred: 4096,
            max_io: MAX_IO,
            max_trim: MAX_TRIM,
            read_only: false,
            cached: true,
            trim: true,
            zeroes: true,
            extents: true,
        };
        change(&mut info);
        let len = usize::try_from(info.size).map_err(io::Error::other)?;
        if len == 0 || !info.size.is_multiple_of(u64::from(info.block)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let disk = Region::create(c"memlane-mem-volume", len, false).map_err(os)?;
        Ok(MemVolume {
            inner: Arc::new(Inner {
                disk,
                info,
                log: Mutex::default(),
                failing: Mutex::default(),
                size: AtomicU64::new(info.size),
                late,
            }),
        })
    }

    /// From now on it says that it has this size; never more than it had in the beginning.
    pub fn resize(&self, size: u64) {
        let size = size.min(self.inner.info.size);
        self.inner.size.store(size, Ordering::SeqCst);
    }

    /// What was asked of it, in order: the first [`MAX_LOG`] requests.
    #[must_use]
    pub fn log(&self) -> Vec<(Op, u64, u32, Flags)> {
        lock(&self.inner.log).clone()
    }

    /// From now on every request ends like this.
    pub fn fail_with(&self, errno: Option<Errno>) {
        *lock(&self.inner.failing) = errno;
    }

    /// Its bytes, for a look from outside.
    #[must_use]
    pub fn bytes(&self) -> SharedBytes {
        self.inner.disk.bytes()
    }
}

impl Volume for MemVolume {
    fn info(&self) -> Info {
        Info {
            size: self.inner.size.load(Ordering::SeqCst),
            ..self.inner.info
        }
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        let each = self.inner.info.max_io as usize;
        let memory = Region::create(c"memlane-mem-leases", each * LEASES as usize, false);
        let pool = Arc::new(Pool {
            memory: memory.map_err(os)?,
            each,
            free: Mutex::new((0..LEASES).collect()),
        });
        let volume = Arc::clone(&self.inner);
        if volume.late {
            return Ok(Box::new(late::LateQueue::new(volume, pool)?));
        }
        Ok(Box::new(MemQueue {
            volume,
            pool,
            ready: EventFd::new()?,
            done: VecDeque::new(),
        }))
    }
}

#[derive(Debug)]
struct Pool {
    memory: Region,
    each: usize,
    free: Mutex<Vec<u32>>,
}

impl Pool {
    fn lease(self: &Arc<Pool>, volume: &Inner, len: u32) -> Result<Option<Lease>, Errno> {
        if len > volume.info.max_io {
            return Err(Errno(libc::EINVAL));
        }
        let Some(number) = lock(&self.free).pop() else {
            return Ok(None);
        };
        let at = number as usize * self.each;
        let bytes = self.memory.bytes().part(at, len as usize);
        let owner: Arc<dyn Lender> = Arc::clone(self) as _;
        Ok(bytes.map(|bytes| Lease::new(bytes, number, owner)))
    }

    fn has_some(&self) -> bool {
        !lock(&self.free).is_empty()
    }
}

impl Lender for Pool {
    fn give_back(&self, number: u32) {
        lock(&self.free).push(number);
    }
}

/// Requests are done when they are submitted, and reaped last first, because any order is allowed.
struct MemQueue {
    volume: Arc<Inner>,
    pool: Arc<Pool>,
    /// Never readable: there is never anything to wait for.
    ready: EventFd,
    done: VecDeque<Done>,
}

impl Queue for MemQueue {
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, Errno> {
        self.pool.lease(&self.volume, len)
    }

    fn submit(&mut self, io: Io) {
        self.volume.note(&io);
        let result = self.volume.execute(&io);
        self.done.push_front(Done {
            tag: io.tag,
            result,
            lease: io.lease,
        });
    }

    fn push(&mut self) {}

    fn reap(&mut self, into: &mut Vec<Done>) -> usize {
        let n = self.done.len();
        into.extend(self.done.drain(..));
        n
    }

    fn arm(&mut self) -> bool {
        !self.done.is_empty()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn wait(&mut self, _limit: Option<Duration>) {}
}

impl Inner {
    fn note(&self, io: &Io) {
        let mut log = lock(&self.log);
        if log.len() < MAX_LOG {
            log.push((io.op, io.at, io.len, io.flags));
        }
    }

    fn execute(&self, io: &Io) -> Result<(), Errno> {
        if let Some(errno) = *lock(&self.failing) {
            return Err(errno);
        }
        let disk = || self.window(io);
        match io.op {
            Op::Flush => Ok(()),
            Op::Read => copy(disk()?, lease(io)?),
            Op::Extents => self.extents(io),
            _ if self.info.read_only => Err(Errno(libc::EROFS)),
            Op::Write => copy(lease(io)?, disk()?),
            Op::Trim | Op::WriteZeroes => zero(disk()?),
        }
    }

    fn window(&self, io: &Io) -> Result<SharedBytes, Errno> {
        let blocks = u64::from(self.info.block);
        let fits = io.at.is_multiple_of(blocks) && u64::from(io.len).is_multiple_of(blocks);
        let at = usize::try_from(io.at).ok().filter(|_| fits);
        at.and_then(|at| self.disk.bytes().part(at, io.len as usize))
            .ok_or(Errno(libc::EINVAL))
    }

    /// Memory is all there: one extent.
    fn extents(&self, io: &Io) -> Result<(), Errno> {
        self.window(io)?;
        let mut record = [0; EXTENT_LEN * 2];
        record[..8].copy_from_slice(&u64::from(io.len).to_le_bytes());
        let lease = io.lease.as_ref().ok_or(Errno(libc::EINVAL))?;
        let room = lease.bytes().len().min(record.len());
        let whole = room >= EXTENT_LEN && lease.fill(0, &record[..room]);
        whole.then_some(()).ok_or(Errno(libc::EINVAL))
    }
}

fn lease(io: &Io) -> Result<SharedBytes, Errno> {
    let bytes = io.lease.as_ref().map(Lease::bytes);
    bytes
        .and_then(|bytes| bytes.part(0, io.len as usize))
        .ok_or(Errno(libc::EINVAL))
}

fn copy(from: SharedBytes, to: SharedBytes) -> Result<(), Errno> {
    // SAFETY: `from` is readable for its whole length.
    let copied = unsafe { to.copy_in(0, from.as_ptr(), from.len()) };
    copied.then_some(()).ok_or(Errno(libc::EINVAL))
}

fn zero(bytes: SharedBytes) -> Result<(), Errno> {
    let zeroes = [0; 4096];
    let mut at = 0;
    while at < bytes.len() {
        let n = zeroes.len().min(bytes.len() - at);
        // SAFETY: `zeroes` has `n` bytes.
        if !unsafe { bytes.copy_in(at, zeroes.as_ptr(), n) } {
            return Err(Errno(libc::EINVAL));
        }
        at += n;
    }
    Ok(())
}

fn os(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
