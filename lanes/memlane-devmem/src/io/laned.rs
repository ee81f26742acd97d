//! A stream's side of the socket lane: the ring that lies in the region, and who writes to it.

use super::binding::Binding;
use super::mapped::PIECES;
use super::path::{Passed, Path};
use super::ways::{Giver, Wait};
use crate::engine::Span;
use crate::engine::held::Unreleased;
use crate::engine::inflow::Room;
use crate::error::{AccessError, ReceiveError};
use crate::region::{Access, DeviceRegion};
use core::cell::Cell;
use memlane_core::reason::Reason;
use memlane_socket::native::{Came, Consumer, End, Lane, Memory, Ready, Standing};
use memlane_sys::Errno;
use memlane_sys::fd::Fd;
use memlane_sys::iov::Piece;
use memlane_wait::mutex::lock;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of the ring, at most: more does not stay in a CPU's cache, in which the sender writes fast.
const RING_MOST: u64 = 2 << 20;
/// And at least.
const RING_LEAST: u64 = 64 << 10;

/// So much by TCP, and hardly anything in the ring, shows that its user keeps more than it holds: then each piece by TCP
/// costs a wait for room, and TCP alone is faster.
const KEPT_TOO_LONG: u64 = 16 << 20;

/// What speaks against it, before there is a connection.
pub fn lacks(region: &DeviceRegion, chunk: u32) -> Vec<String> {
    if !region.can_be_carved() {
        let kind = region.kind();
        return vec![format!(
            "a region of {kind} cannot be given to another process in parts: take memfd:SIZE"
        )];
    }
    let chunks = region.len() as u64 / u64::from(chunk.max(1));
    if ring_of(chunks, chunk).is_none() {
        return vec![too_small()];
    }
    Vec::new()
}

fn too_small() -> String {
    format!(
        "half of the region's chunks are to be a ring of {RING_LEAST} bytes at least: take a larger region, or smaller chunks (--chunk)"
    )
}

/// Why a stream that stands so, and has carried so much in memory, is not on this path.
pub fn passed(standing: Standing, in_memory: u64) -> Option<Passed> {
    let why = match standing {
        _ if in_memory > 0 => return None,
        Standing::Memory => return None,
        Standing::Tcp(why) => format!("{}: {}", why.name(), why.text()),
        Standing::Pending => "the two ends had no time to agree".to_owned(),
    };
    let (path, lacks) = (Path::Lane, vec![why]);
    Some(Passed { path, lacks })
}

/// How large a ring can be: a power of two, of whole chunks, and of the free ones' half at most.
fn ring_of(free: u64, chunk: u32) -> Option<u64> {
    let chunk = u64::from(chunk);
    let ring = (free * chunk / 2).checked_ilog2().map(|log| 1 << log)?;
    let ring = RING_MOST.max(chunk).min(ring);
    (ring >= RING_LEAST.max(chunk) && ring <= 64 << 20).then_some(ring)
}

/// The part of a region that is the ring: chunks in a row, and the file that the peer gets.
#[derive(Debug)]
pub(super) struct Part {
    binding: Arc<Binding>,
    first: u32,
    count: u32,
    offset: u64,
    len: u32,
    file: Fd,
}

impl Part {
    pub(super) fn take(binding: &Arc<Binding>) -> Result<Part, Vec<String>> {
        let counts = binding.counts();
        let len = ring_of(u64::from(counts.free), counts.chunk);
        let len = len.ok_or_else(|| vec![too_small()])?;
        let (first, count, offset) = {
            let mut pool = binding.pool();
            let count = u32::try_from(len / u64::from(pool.chunks.size())).unwrap_or(u32::MAX);
            let first = pool.chunks.take_row(count);
            let first = first
                .ok_or_else(|| vec![format!("no {len} bytes of the region are free in a row")])?;
            (first, count, pool.chunks.offset(first))
        };
        match binding
            .region()
            .carve(offset, usize::try_from(len).unwrap_or(0))
        {
            Ok(file) => Ok(Part {
                binding: Arc::clone(binding),
                first,
                count,
                offset,
                len: u32::try_from(len).unwrap_or(0),
                file,
            }),
            Err(errno) => {
                give_row(binding, first, count);
                Err(match lacks(binding.region(), counts.chunk) {
                    none if none.is_empty() => vec![format!("memory for the ring: {errno}")],
                    some => some,
                })
            }
        }
    }

    fn memory(&self) -> Option<Memory> {
        let at = usize::try_from(self.offset).ok()?;
        let window = self.binding.region().bytes().part(at, self.len as usize)?;
        Some(Memory {
            base: NonNull::new(window.as_ptr())?,
            len: self.len,
            file: self.file.raw(),
            offset: 0,
        })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Where others may still write, nobody else's payload goes: such chunks are lost.
        if self
            .binding
            .region()
            .mend(self.offset, self.len as usize)
            .is_ok()
        {
            give_row(&self.binding, self.first, self.count);
            self.binding.tell();
        }
    }
}

fn give_row(binding: &Binding, first: u32, count: u32) {
    let mut pool = binding.pool();
    for chunk in first..first + count {
        pool.chunks.give(chunk);
    }
}

/// Where stretches of the ring come back to.
#[derive(Debug)]
struct Back {
    held: Mutex<Unreleased>,
    /// Dropped before the part: then nothing of the connection is left that knows of it.
    consumer: Option<Consumer>,
    /// `None`: nothing is received in place.
    part: Mutex<Option<Part>>,
}

impl Back {
    fn held(&self) -> MutexGuard<'_, Unreleased> {
        lock(&self.held)
    }
}

impl Giver for Back {
    fn give(&self, names: &[u64]) {
        // The sender hears of them in order: it is told under the lock.
        let mut held = self.held();
        let mut free = None;
        for name in names {
            free = held.give_back(*name).or(free);
        }
        if let (Some(free), Some(consumer)) = (free, &self.consumer) {
            consumer.release_to(free);
        }
    }
}

/// What a receive has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Landed {
    /// The peer put it there.
    There {
        /// Where.
        span: Span,
        /// What it comes back as.
        name: u64,
    },
    /// This many bytes came by TCP, into the rooms.
    Poured(u64),
}

/// A stream's lane.
#[derive(Debug)]
pub(super) struct Laned {
    /// `None`: closed.
    lane: Option<Lane>,
    back: Arc<Back>,
    /// Where the ring begins in the region, as long as there can be one.
    ring: Cell<Option<u64>>,
    /// Bytes that came by TCP while its user kept parts of the ring, less twice those that came in it.
    beside: Cell<u64>,
    /// It has been ended for that.
    kept: Cell<bool>,
}

impl Laned {
    pub(super) fn open(
        socket: &OwnedFd,
        end: End,
        part: Option<Part>,
    ) -> Result<Laned, Vec<String>> {
        let memory = part.as_ref().and_then(Part::memory);
        let ring = part.as_ref().map(|part| part.offset);
        // SAFETY: the region and the part's file live as long as the consumer does: see `Back`.
        let lane = unsafe { Lane::of(socket.as_raw_fd(), end, memory.as_ref()) };
        let lane = lane.map_err(|errno| vec![format!("this is no TCP connection: {errno}")])?;
        Ok(Laned {
            back: Arc::new(Back {
                held: Mutex::default(),
                consumer: lane.consumer(),
                part: Mutex::new(part),
            }),
            lane: Some(lane),
            ring: Cell::new(ring),
            beside: Cell::new(0),
            kept: Cell::new(false),
        })
    }

    pub(super) fn lane(&self) -> Result<&Lane, Errno> {
        self.lane.as_ref().ok_or(Errno::INVAL)
    }

    pub(super) fn giver(&self) -> Arc<dyn Giver> {
        Arc::clone(&self.back) as Arc<dyn Giver>
    }

    pub(super) fn path(&self) -> Path {
        match self.passed() {
            Some(_) if !self.kept.get() => Path::Mapped,
            _ => Path::Lane,
        }
    }

    /// Why it is not `lane`, so far, or not any more.
    pub(super) fn passed(&self) -> Option<Passed> {
        if self.kept.get() {
            return passed(Standing::Tcp(Reason::RING_KEPT), 0);
        }
        let lane = self.lane().ok()?;
        let counts = lane.counts();
        passed(
            lane.standing(),
            counts.received_in_memory + counts.sent_in_memory,
        )
    }

    /// [`ReceiveError::NoRoom`]: rooms are needed.
    pub(super) fn receive(
        &self,
        region: &DeviceRegion,
        rooms: &[Room],
        most: u32,
    ) -> Result<Landed, ReceiveError> {
        let mut pieces = [Piece::NONE; PIECES];
        let mut count = 0;
        for (piece, room) in pieces.iter_mut().zip(rooms) {
            let at = usize::try_from(room.offset).unwrap_or(usize::MAX);
            // Rooms are within the region: it is what the chunks were made of.
            let window = region.bytes().part(at, room.len as usize);
            let window = window.ok_or(ReceiveError::Kernel(Errno::INVAL))?;
            *piece = Piece {
                base: window.as_ptr(),
                len: window.len(),
            };
            count += 1;
        }
        let lane = self.lane().map_err(ReceiveError::Kernel)?;
        let pieces = &pieces[..count];
        let came = match self.ring.get() {
            None if pieces.is_empty() => return Err(ReceiveError::NoRoom),
            // SAFETY: windows on chunks that this stream has open, of a region that lives; nothing in them is borrowed.
            None => unsafe { lane.receive_copied(pieces) }.map(Came::Tcp),
            // SAFETY: as above.
            Some(_) => unsafe { lane.receive(most as usize, pieces) },
        };
        match (came, self.ring.get()) {
            (Ok(Came::Tcp(bytes)), _) => {
                self.give_up_ring(lane);
                self.came_beside(lane, bytes as u64);
                Ok(Landed::Poured(bytes as u64))
            }
            // Not asked for.
            (Ok(Came::Ring { .. }), None) => Err(ReceiveError::Kernel(Errno::INVAL)),
            (Ok(Came::Ring { offset, at, len }), Some(ring)) => {
                self.back.held().hand_out(offset);
                let beside = self.beside.get().saturating_sub(2 * len as u64);
                self.beside.set(beside);
                Ok(Landed::There {
                    span: Span {
                        offset: ring + at as u64,
                        // At most `most`.
                        len: u32::try_from(len).unwrap_or(most),
                    },
                    name: offset,
                })
            }
            (Err(Errno::AGAIN), _) => Err(ReceiveError::WouldBlock),
            (Err(errno), _) if errno.0 == rustix::io::Errno::NOBUFS.raw_os_error() => {
                Err(ReceiveError::NoRoom)
            }
            (Err(errno), _) => Err(ReceiveError::Kernel(errno)),
        }
    }

    /// Where the other end has none, or will not, the ring's chunks are for what comes by TCP.
    fn give_up_ring(&self, lane: &Lane) {
        let never = matches!(lane.standing(), Standing::Tcp(_)) && !lane.was_open();
        if self.ring.get().is_some() && never {
            self.ring.set(None);
            let part = self.back.part.lock();
            part.unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// Ends a lane that is of no use to who receives.
    fn came_beside(&self, lane: &Lane, bytes: u64) {
        if self.kept.get() || !lane.was_open() || self.back.held().is_empty() {
            return;
        }
        let beside = self.beside.get() + bytes;
        self.beside.set(beside);
        if beside > KEPT_TOO_LONG {
            lane.end(Reason::RING_KEPT);
            self.kept.set(true);
        }
    }

    /// `None`: it is not the lane that is waited for.
    pub(super) fn wait(&self, until: Wait, limit: Duration) -> Option<Result<bool, Errno>> {
        let ready = match until {
            Wait::Payload => Ready::ToRead,
            Wait::Socket => Ready::ToWrite,
            Wait::Room | Wait::Sent => return None,
        };
        Some(self.lane().and_then(|lane| lane.wait(ready, limit)))
    }

    /// Sends bytes of the region: into the peer's memory, or by TCP.
    pub(super) fn send(&self, region: &DeviceRegion, span: Span) -> Result<u64, AccessError> {
        let at = usize::try_from(span.offset).map_err(|_| AccessError::Outside)?;
        let lane = self.lane().map_err(AccessError::Device)?;
        let sent = region.cpu(Access::Read, |bytes| {
            let window = bytes.part(at, span.len as usize);
            let window = window.ok_or(AccessError::Outside)?;
            let piece = Piece {
                base: window.as_ptr(),
                len: window.len(),
            };
            // SAFETY: a window on the region, which lives.
            unsafe { lane.send(piece) }.map_err(AccessError::Device)
        });
        Ok(sent.map_err(AccessError::Device)?? as u64)
    }

    pub(super) fn close(&mut self) {
        self.lane = None;
    }
}
