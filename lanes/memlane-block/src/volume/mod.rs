//! What a client uses: a volume, a queue for each thread, and leases of memory for the data.
//!
//! ```text
//!   thread ── Queue ──┐   submit(Io) ──► … ──► reap(Done)        one thread each, no callback
//!   thread ── Queue ──┴── Volume ── session ── paths ── server
//! ```
//!
//! A request's data lies in a [`Lease`]: memory that belongs to the device under the volume. With a loopback device
//! that is the server's chunk itself, so a byte that is put there has arrived.

mod leases;
pub mod local;
pub mod mem;
pub mod stats;

use memlane_core::access::SharedBytes;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

pub use memlane_sys::Errno;
pub use memlane_transport::lease::{Detour, InChunks, Lease, Lender, Memory};
pub use memlane_transport::port::ChunkFile;

/// What a volume is and can do. Only `size` may change while it is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// Bytes.
    pub size: u64,
    /// Offsets and lengths are multiples of this: a power of two, at least 512.
    pub block: u32,
    /// What is done at once without a detour: a power of two, at least `block`.
    pub preferred: u32,
    /// Most bytes of data of one request.
    pub max_io: u32,
    /// Most bytes that one trim or write-zeroes may name; 0: it can do neither.
    pub max_trim: u32,
    /// Nothing can be written.
    pub read_only: bool,
    /// Has a volatile cache: what was written is safe only after a flush, or with [`Flags::FUA`].
    pub cached: bool,
    /// [`Op::Trim`] is understood.
    pub trim: bool,
    /// [`Op::WriteZeroes`] is understood.
    pub zeroes: bool,
    /// [`Op::Extents`] is understood.
    pub extents: bool,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Read into the lease.
    Read,
    /// Write out of the lease.
    Write,
    /// Everything that was done before this was submitted becomes durable, whichever queue did it.
    Flush,
    /// The bytes are not needed any more; what is read there afterwards is not defined.
    Trim,
    /// The bytes become zero.
    WriteZeroes,
    /// Into the lease: what the bytes from `at` on consist of, as records of [`EXTENT_LEN`] bytes, in order, at
    /// least one, as many as fit or less; a record of length 0 ends the list. `len` bytes are asked about.
    Extents,
}

/// Bytes of one record of [`Op::Extents`]: little-endian `u64` length, `u32` state (bit 0: a hole, bit 1: reads as
/// zero), `u32` zero.
pub const EXTENT_LEN: usize = 16;

/// A record's state: bit 0 a hole, bit 1 reads as zero.
const HOLE: u32 = 3;

/// Writes records (length, is it a hole?) as [`Op::Extents`] has them, and the one that ends them if there is room.
pub(crate) fn tell_extents(found: &[(u64, bool)], room: SharedBytes) -> Result<(), Errno> {
    let mut records = Vec::with_capacity((found.len() + 1) * EXTENT_LEN);
    for (len, hole) in found {
        records.extend(len.to_le_bytes());
        records.extend(if *hole { HOLE } else { 0 }.to_le_bytes());
        records.extend([0; 4]);
    }
    records.extend([0; EXTENT_LEN]);
    let n = records.len().min(room.len() / EXTENT_LEN * EXTENT_LEN);
    // SAFETY: `records` has at least `n` bytes.
    let told = n >= EXTENT_LEN && unsafe { room.copy_in(0, records.as_ptr(), n) };
    told.then_some(()).ok_or(Errno::INVAL)
}

/// How it is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Flags(u8);

impl Flags {
    /// Nothing special.
    pub const NONE: Flags = Flags(0);
    /// Write, trim, write-zeroes: done means durable.
    pub const FUA: Flags = Flags(1);
    /// Write: a flush comes first.
    pub const PREFLUSH: Flags = Flags(2);
    /// Write-zeroes: leave no hole.
    pub const NO_HOLE: Flags = Flags(4);
    /// Write-zeroes: `EOPNOTSUPP` rather than writing zeroes one by one.
    pub const FAST: Flags = Flags(8);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Are all of these set?
    #[must_use]
    pub const fn has(self, these: Flags) -> bool {
        self.0 & these.0 == these.0
    }
}

/// A request.
#[derive(Debug)]
pub struct Io {
    /// Comes back with the result.
    pub tag: u64,
    /// What.
    pub op: Op,
    /// First byte.
    pub at: u64,
    /// Bytes. For read, write: as many of the lease's first bytes.
    pub len: u32,
    /// How.
    pub flags: Flags,
    /// Data, for those that have some; of the queue that it is submitted to.
    pub lease: Option<Lease>,
}

impl Io {
    /// One with data.
    #[must_use]
    pub fn data(tag: u64, op: Op, at: u64, len: u32, lease: Lease) -> Io {
        Io {
            tag,
            op,
            at,
            len,
            flags: Flags::NONE,
            lease: Some(lease),
        }
    }

    /// One without.
    #[must_use]
    pub fn bare(tag: u64, op: Op, at: u64, len: u32) -> Io {
        Io {
            tag,
            op,
            at,
            len,
            flags: Flags::NONE,
            lease: None,
        }
    }

    /// The same, done so.
    #[must_use]
    pub fn with(self, flags: Flags) -> Io {
        Io { flags, ..self }
    }
}

/// A result.
#[derive(Debug)]
pub struct Done {
    /// Whose.
    pub tag: u64,
    /// A disk's errors: `EIO`, `ENOSPC`, `EROFS`, `EINVAL` (outside, or not in blocks), `EOPNOTSUPP`, `ENODEV` (closed).
    pub result: Result<(), Errno>,
    /// Its lease.
    pub lease: Option<Lease>,
}

/// Something with blocks.
pub trait Volume: Send + Sync {
    /// What it is now.
    fn info(&self) -> Info;

    /// A queue for one thread.
    ///
    /// # Errors
    /// Descriptors or memory are used up.
    fn queue(&self) -> std::io::Result<Box<dyn Queue>>;
}

/// One thread's way to a volume. Requests of one queue may be done in any order: who wants one after another waits.
pub trait Queue: Send {
    /// Memory for `len` bytes. `None`: all of it is lent; ask again when something was reaped, or [`fd`](Self::fd)
    /// has been readable.
    ///
    /// # Errors
    /// `EINVAL`: more than `max_io`.
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, Errno>;

    /// A lease like [`lease`](Self::lease), whose data lies in `memory`, from this offset on for this many bytes: a
    /// read puts them there, and nowhere else before. The volume knows that memory, and keeps it, until it is closed.
    ///
    /// Memory that the CPU does not reach, a GPU's say, is read into by an RDMA device, if it is a dma-buf and the device's driver
    /// can ([`Memory::dma_buf`]). Where that cannot be, the data of the read comes to [`Lease::bytes`], and
    /// [`Lease::detour`] says why. Nothing is written from such memory: `EOPNOTSUPP`.
    ///
    /// ```
    /// use memlane_block::volume::{Errno, Io, Memory, Op, Queue};
    /// use memlane_core::access::SharedBytes;
    /// use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    /// use std::ptr::NonNull;
    /// use std::sync::Arc;
    ///
    /// /// Memory of a GPU, as its driver exports it.
    /// #[derive(Debug)]
    /// struct OfAGpu {
    ///     dma_buf: OwnedFd,
    ///     len: usize,
    /// }
    ///
    /// impl Memory for OfAGpu {
    ///     fn bytes(&self) -> SharedBytes {
    ///         // SAFETY: no bytes: it is not mapped.
    ///         unsafe { SharedBytes::new(NonNull::dangling(), 0) }
    ///     }
    ///
    ///     fn dma_buf(&self) -> Option<(BorrowedFd<'_>, usize)> {
    ///         Some((self.dma_buf.as_fd(), self.len))
    ///     }
    /// }
    ///
    /// /// Reads the first 64 KiB of a volume to the beginning of a GPU's memory.
    /// fn load(queue: &mut dyn Queue, gpu: &Arc<dyn Memory>, copy: impl Fn(SharedBytes)) -> Result<(), Errno> {
    ///     let lease = queue.lease_in(gpu, (0, 65536))?.expect("nothing else is lent");
    ///     queue.submit(Io::data(0, Op::Read, 0, 65536, lease));
    ///     let mut done = Vec::new();
    ///     while queue.reap(&mut done) == 0 {
    ///         queue.wait(None);
    ///     }
    ///     let done = done.remove(0);
    ///     done.result?;
    ///     if let Some(lease) = done.lease
    ///         && let Some(why) = lease.detour()
    ///     {
    ///         eprintln!("copied by the CPU: {why}");
    ///         copy(lease.bytes());
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: more than `max_io`, or beyond the memory's end; `ENOSPC`: too many memories; `EOPNOTSUPP`: this
    /// queue's leases lie in its own, or the CPU does not reach the memory and this volume is none of a server's.
    fn lease_in(
        &mut self,
        memory: &Arc<dyn Memory>,
        place: (usize, u32),
    ) -> Result<Option<Lease>, Errno> {
        let _ = (memory, place);
        Err(Errno(libc::EOPNOTSUPP))
    }

    /// Calls `moves` with a window on the volume's own memory: these bytes, or the first of them, as many as lie together there.
    /// `moves` reads ([`Op::Read`]) or writes ([`Op::Write`]) as many of them as it likes, from the first on, and returns how many.
    /// The volume counts them, and this returns the same number. They need not be whole blocks.
    ///
    /// The window exists for this call alone, and `moves` must not wait: until it returns, nobody can take the volume back or make
    /// it smaller.
    ///
    /// Such a write is complete, and its file's times are set, when an ordinary write to the bytes behind it is done.
    ///
    /// `None`: there is no such memory, or it cannot be had now; nothing was moved. A lease can be used instead.
    ///
    /// # Errors
    /// `EIO`: the volume's file has become shorter meanwhile. What was read may be zeroes instead, and what was written is lost.
    fn in_place(
        &mut self,
        op: Op,
        place: (u64, u32),
        moves: &mut dyn FnMut(SharedBytes) -> usize,
    ) -> Result<Option<usize>, Errno> {
        let _ = (op, place, moves);
        Ok(None)
    }

    /// The chunks of a server of this host, if leases lie there ([`Lease::in_chunks`]).
    ///
    /// # Errors
    /// Descriptors are used up.
    fn chunk_file(&self) -> std::io::Result<Option<ChunkFile>> {
        Ok(None)
    }

    /// Takes a request. It goes out with the next call of any other method but `lease` and `in_place`, at the latest.
    fn submit(&mut self, io: Io);

    /// Sends what was submitted.
    fn push(&mut self);

    /// Appends what is done, and says how much; never waits.
    fn reap(&mut self, into: &mut Vec<Done>) -> usize;

    /// Is there something to reap (or a lease to be had that was refused before)? If not, `fd` becomes readable
    /// when there is. To be asked before each sleep on `fd`.
    fn arm(&mut self) -> bool;

    /// For epoll, between an `arm` that said no and the next `reap`. Nobody but the queue reads it.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Waits until there is something to reap, but not longer than `limit`.
    fn wait(&mut self, limit: Option<Duration>);

    /// Works for what is under way without sleeping, as long as that has paid lately but not longer than `limit`; is
    /// there something to reap? For a thread that would sleep on `fd` next. `false` at once where another thread or the
    /// kernel does that work.
    fn linger(&mut self, limit: Duration) -> bool {
        let _ = limit;
        false
    }
}
