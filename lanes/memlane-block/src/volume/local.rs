//! A volume that this process has itself: a file, a block device, or for tests memory and nothing. Without a server,
//! so that `memlane map file:…` can give it to whatever takes volumes.

use super::leases::Leases;
use super::stats::{Counters, VolumeStats};
use super::{Done, Errno, Info, Io, Lease, Memory, Op, Queue, Volume};
use crate::store::{self, Backing, Completion, Direct, Engine, Failure, StoreKind, StoreRequest};
use memlane_core::access::SharedBytes;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Most bytes of data of one request.
const MAX_IO: u32 = 256 * 1024;
/// Leases of a queue.
const LEASES: u32 = 64;
/// How often the size is looked at, at most.
const LOOK_EVERY_NS: u64 = 1_000_000_000;

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Options {
    /// Nothing will be written.
    pub read_only: bool,
    /// May the page cache be passed by?
    pub direct: Direct,
    /// How it is reached.
    pub store: StoreKind,
}

/// A volume of this machine. Clones are the same one.
#[derive(Clone, Debug)]
pub struct LocalVolume {
    backing: Arc<Backing>,
    store: StoreKind,
    looked: Arc<AtomicU64>,
    counters: Arc<Counters>,
    /// Queues that were made.
    queues: Arc<AtomicUsize>,
}

impl LocalVolume {
    /// A file or a block device.
    ///
    /// # Errors
    /// It cannot be opened so, is of another kind (`EINVAL`), or is in use (`EBUSY`): a device that is mounted, or, for a
    /// writer, a file that another process of memlane writes.
    pub fn open(path: &Path, options: Options) -> io::Result<LocalVolume> {
        let path = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let mode = match options.read_only {
            true => store::Mode::Read,
            false => store::Mode::Claim,
        };
        let backing = Backing::open(path.as_fd(), mode, options.direct)?;
        Ok(LocalVolume::over(backing, options.store))
    }

    /// Any backing.
    #[must_use]
    pub fn over(backing: Backing, store: StoreKind) -> LocalVolume {
        LocalVolume {
            backing: Arc::new(backing),
            store,
            looked: Arc::new(AtomicU64::new(memlane_sys::time::now_ns())),
            counters: Arc::default(),
            queues: Arc::default(),
        }
    }

    /// What its queues have done so far.
    #[must_use]
    pub fn stats(&self) -> VolumeStats {
        self.counters.snapshot()
    }

    /// The last thing that went wrong.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.backing.failure()
    }

    /// Gives a file another size.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` if not in blocks; `EOPNOTSUPP` if it is no file.
    pub fn resize(&self, size: u64) -> io::Result<()> {
        self.backing.resize(size)
    }
}

impl Volume for LocalVolume {
    fn info(&self) -> Info {
        let now = memlane_sys::time::now_ns();
        let looked = self.looked.load(Ordering::Relaxed);
        if now.saturating_sub(looked) > LOOK_EVERY_NS {
            self.looked.store(now, Ordering::Relaxed);
            self.backing.look();
        }
        self.backing.info(MAX_IO)
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        let engine = Engine::new(self.store)?;
        let leases = Leases::new(LEASES, MAX_IO, engine.wakeup())?;
        Ok(Box::new(LocalQueue {
            backing: Arc::clone(&self.backing),
            counters: Arc::clone(&self.counters),
            number: self.queues.fetch_add(1, Ordering::Relaxed),
            engine,
            leases,
            slots: Vec::new(),
            free: Vec::new(),
            completions: Vec::new(),
            done: Vec::new(),
        }))
    }
}

/// A request under way. Its lease keeps the memory that the engine has the address of.
#[derive(Debug)]
struct Slot {
    tag: u64,
    lease: Option<Lease>,
    op: Op,
    at: u64,
    len: u32,
}

struct LocalQueue {
    // Before the slots: it ends only when nothing is under way any more, and their leases go after that.
    engine: Engine,
    backing: Arc<Backing>,
    counters: Arc<Counters>,
    /// Which shard of the counters.
    number: usize,
    leases: Arc<Leases>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    completions: Vec<Completion>,
    done: Vec<Done>,
}

impl LocalQueue {
    fn request(&self, io: &Io) -> Result<StoreRequest, Errno> {
        self.backing.check(io.op, io.at, io.len)?;
        let lease = || io.lease.as_ref().map(Lease::bytes).ok_or(Errno::INVAL);
        let data = match io.op {
            Op::Read | Op::Write => {
                let bytes = lease()?.part(0, io.len as usize);
                Some(bytes.ok_or(Errno::INVAL)?)
            }
            Op::Extents => Some(lease()?),
            _ => None,
        };
        Ok(StoreRequest {
            id: 0,
            backing: Arc::clone(&self.backing),
            op: io.op,
            at: io.at,
            len: io.len,
            flags: io.flags,
            data,
        })
    }

    fn run(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.engine.complete(&mut completions);
        for completion in completions.drain(..) {
            self.finish(completion);
        }
        self.completions = completions;
    }

    fn finish(&mut self, completion: Completion) {
        let at = usize::try_from(completion.id).unwrap_or(usize::MAX);
        let Some(slot) = self.slots.get_mut(at).and_then(Option::take) else {
            return;
        };
        self.free.push(at);
        let shard = self.counters.shard(self.number);
        match completion.result {
            Ok(()) => shard.done(slot.op, slot.len),
            Err(errno) => {
                shard.failed();
                self.backing.failed(slot.op, slot.at, slot.len, errno);
            }
        }
        self.done.push(Done {
            tag: slot.tag,
            result: completion.result,
            lease: slot.lease,
        });
    }
}

impl Queue for LocalQueue {
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, Errno> {
        if len > MAX_IO {
            return Err(Errno::INVAL);
        }
        Ok(self.leases.take(len))
    }

    fn lease_in(
        &mut self,
        memory: &Arc<dyn Memory>,
        place: (usize, u32),
    ) -> Result<Option<Lease>, Errno> {
        if place.1 > MAX_IO {
            return Err(Errno::INVAL);
        }
        self.leases.take_in(memory, place)
    }

    fn in_place(
        &mut self,
        op: Op,
        place: (u64, u32),
        moves: &mut dyn FnMut(SharedBytes) -> usize,
    ) -> Result<Option<usize>, Errno> {
        let shard = self.counters.shard(self.number);
        let moved = self.backing.in_place(op, place, moves);
        match moved {
            Ok(bytes) => shard.moved(op, bytes.unwrap_or(0)),
            Err(errno) => {
                shard.failed();
                self.backing.failed(op, place.0, place.1, errno);
            }
        }
        moved
    }

    fn submit(&mut self, io: Io) {
        let request = self.request(&io);
        let slot = Slot {
            tag: io.tag,
            lease: io.lease,
            op: io.op,
            at: io.at,
            len: io.len,
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(slot);
        let id = at as u64;
        match request {
            Ok(request) => self.engine.submit(StoreRequest { id, ..request }),
            Err(errno) => self.finish(Completion {
                id,
                result: Err(errno),
            }),
        }
    }

    fn push(&mut self) {
        self.run();
    }

    fn reap(&mut self, into: &mut Vec<Done>) -> usize {
        self.run();
        let n = self.done.len();
        into.append(&mut self.done);
        n
    }

    fn arm(&mut self) -> bool {
        self.run();
        !self.done.is_empty() || self.leases.to_be_had()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.engine.fd()
    }

    fn wait(&mut self, limit: Option<Duration>) {
        if self.arm() {
            return;
        }
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = [PollFd::from_borrowed_fd(self.engine.fd(), PollFlags::IN)];
        // Interrupted, or too early: the caller asks again.
        let _ = rustix::event::poll(&mut fds, limit.as_ref());
    }
}
