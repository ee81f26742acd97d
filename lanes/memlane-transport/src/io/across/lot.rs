//! At the server: who has which extent of the region.

use super::layout::{DEPARTED, EXTENTS, LET_GO, MEMORY_AT, PAGE, is_claim};
use super::memory::{SharedMemory, SharedMemoryError};
use super::place::Place;
use memlane_core::access::SharedBytes;
use memlane_core::token::Token;
use memlane_sys::{Errno, Result};
use memlane_wait::mutex::lock;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a former server had lent is not lent again for this long. A server that was killed may have left I/O to a disk
/// under way, and the kernel finishes that after the process has ended.
const GRACE: Duration = Duration::from_secs(5);

/// The region of one server, and whom it has lent what.
#[derive(Debug)]
pub(in crate::io) struct Lot {
    memory: Arc<SharedMemory>,
    /// The random number by which the region knows this server.
    server: u64,
    began: Instant,
    extents: Mutex<Vec<Option<Use>>>,
}

/// What is known of an extent that is not free.
#[derive(Clone, Debug)]
struct Use {
    at: Range<usize>,
    what: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A session or a connection of this server has it.
    Lent,
    /// This server has let go; its client has not, yet.
    Left,
    /// A former server lent it.
    Inherited,
}

impl Lot {
    /// Takes possession of a region, which has to have this many bytes to lend.
    ///
    /// # Errors
    /// Another server has it, it is a device's memory, it is too small, or other things lie there.
    pub(in crate::io) fn take(
        memory: Arc<SharedMemory>,
        least: usize,
    ) -> std::result::Result<Arc<Lot>, SharedMemoryError> {
        if !memory.is_file() {
            return Err(SharedMemoryError::Device);
        }
        let exclusive = FlockOperation::NonBlockingLockExclusive;
        flock(memory.file(), exclusive).map_err(|errno| match errno {
            rustix::io::Errno::WOULDBLOCK => SharedMemoryError::Busy,
            errno => errno.into(),
        })?;
        memory.format()?;
        let (has, needs) = (memory.len(), MEMORY_AT + least);
        if has < needs {
            let (has, needs) = (has as u64, needs as u64);
            return Err(SharedMemoryError::Small { has, needs });
        }
        let extents: std::result::Result<Vec<_>, _> =
            (0..EXTENTS).map(|n| inherited(&memory, n)).collect();
        let token = Token::fresh().map_err(|errno| rustix::io::Errno::from_raw_os_error(errno.0));
        Ok(Arc::new(Lot {
            server: token?.bits(),
            began: Instant::now(),
            extents: Mutex::new(extents?),
            memory,
        }))
    }

    /// Bytes of the region.
    pub(in crate::io) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Bytes that are lent, or not free again yet.
    pub(in crate::io) fn used(&self) -> usize {
        let extents = lock(&self.extents);
        extents.iter().flatten().map(|used| used.at.len()).sum()
    }

    /// An extent of at least `len` bytes, all zeros.
    ///
    /// # Errors
    /// `ENOSPC`: the region is full, or its file system is. Others: what the kernel said.
    pub(in crate::io) fn lend(self: &Arc<Lot>, len: usize) -> Result<Lent> {
        let len = len.next_multiple_of(PAGE);
        let mut extents = lock(&self.extents);
        self.collect(&mut extents);
        let number = extents.iter().position(Option::is_none);
        let at = gap(&extents, len, self.memory.len());
        let (Some(number), Some(at)) = (number, at) else {
            return Err(Errno(libc::ENOSPC));
        };
        self.reserve(at, len)?;
        let offer = fresh_offer()?;
        let extent = self.memory.extent(number);
        extent.at.store(at as u64, Relaxed);
        extent.len.store(len as u64, Relaxed);
        self.offer(number, offer);
        extent.server.store(self.server, Release);
        extents[number] = Some(Use {
            at: at..at + len,
            what: Kind::Lent,
        });
        Ok(Lent {
            lot: Arc::clone(self),
            number,
            at,
            bytes: self.memory.bytes().part(at, len).ok_or(Errno::INVAL)?,
            offer: Mutex::new(offer),
        })
    }

    /// Has zeros there, in pages that exist: where memory is short, this says so, and no touch is a SIGBUS.
    fn reserve(&self, at: usize, len: usize) -> Result<()> {
        self.punch(at, len)?;
        let (at, len) = (at as u64, len as u64);
        fallocate(self.memory.file(), FallocateFlags::KEEP_SIZE, at, len)
            .map_err(|errno| Errno(errno.raw_os_error()))
    }

    /// Gives pages back to the host. What is read there next is zeros.
    fn punch(&self, at: usize, len: usize) -> Result<()> {
        let hole = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
        fallocate(self.memory.file(), hole, at as u64, len as u64)
            .map_err(|errno| Errno(errno.raw_os_error()))
    }

    /// Writes an offer into an entry that nobody holds.
    fn offer(&self, number: usize, offer: u64) {
        let extent = self.memory.extent(number);
        for word in [
            &extent.machine,
            &extent.boot,
            &extent.process,
            &extent.started,
            &extent.namespace,
        ] {
            word.store(0, Relaxed);
        }
        extent.claim.store(offer, Release);
    }

    /// Frees what nobody uses any more. Is there something left that its client has not let go of?
    pub(in crate::io) fn look(&self) -> bool {
        let mut extents = lock(&self.extents);
        self.collect(&mut extents);
        let mut used = extents.iter().flatten();
        used.any(|used| used.what != Kind::Lent)
    }

    /// Frees what nobody can write to any more.
    fn collect(&self, extents: &mut [Option<Use>]) {
        if extents.iter().all(Option::is_none) {
            return;
        }
        self.memory.sweep();
        let rested = self.began.elapsed() >= GRACE;
        for (number, slot) in extents.iter_mut().enumerate() {
            let Some(used) = slot else {
                continue;
            };
            let is_over = match used.what {
                Kind::Lent => false,
                Kind::Left => self.memory.extent(number).claim.load(Acquire) <= DEPARTED,
                Kind::Inherited => rested && self.withdraw_unclaimed(number),
            };
            if is_over {
                // If that fails, the host has its memory back later: before the extent is lent again, it must not fail.
                let _ = self.punch(used.at.start, used.at.len());
                self.memory.extent(number).server.store(0, Release);
                *slot = None;
            }
        }
    }

    /// Is an extent of a former server held by nobody? What nobody had claimed can be claimed no more.
    fn withdraw_unclaimed(&self, number: usize) -> bool {
        let extent = self.memory.extent(number);
        let claim = extent.claim.load(Acquire);
        let withdraw = || {
            extent
                .claim
                .compare_exchange(claim, LET_GO, AcqRel, Relaxed)
        };
        claim <= DEPARTED || (!is_claim(claim) && withdraw().is_ok())
    }

    fn leave(&self, number: usize, offer: u64) {
        let extent = self.memory.extent(number);
        // Nobody has claimed it, and nobody can from now on; or somebody has, and says when it is over.
        let _ = extent
            .claim
            .compare_exchange(offer, LET_GO, AcqRel, Relaxed);
        let mut extents = lock(&self.extents);
        if let Some(used) = extents.get_mut(number).and_then(Option::as_mut) {
            used.what = Kind::Left;
        }
        self.collect(&mut extents);
    }
}

/// What a former server has left in an entry.
fn inherited(
    memory: &SharedMemory,
    number: usize,
) -> std::result::Result<Option<Use>, SharedMemoryError> {
    let extent = memory.extent(number);
    if extent.server.load(Acquire) == 0 {
        return Ok(None);
    }
    let word = |word: u64| usize::try_from(word).map_err(|_| SharedMemoryError::Damaged);
    let (at, len) = (
        word(extent.at.load(Relaxed))?,
        word(extent.len.load(Relaxed))?,
    );
    let end = at.checked_add(len).filter(|end| *end <= memory.len());
    match end {
        Some(end) if at >= MEMORY_AT && (at | len).is_multiple_of(PAGE) => Ok(Some(Use {
            at: at..end,
            what: Kind::Inherited,
        })),
        _ => Err(SharedMemoryError::Damaged),
    }
}

/// A random number for an offer.
fn fresh_offer() -> Result<u64> {
    loop {
        let bits = Token::fresh()?.bits() & !1;
        if bits > DEPARTED {
            return Ok(bits);
        }
    }
}

/// The first gap of `len` bytes between extents.
fn gap(extents: &[Option<Use>], len: usize, end: usize) -> Option<usize> {
    let mut used: Vec<&Range<usize>> = extents.iter().flatten().map(|used| &used.at).collect();
    used.sort_by_key(|range| range.start);
    let mut at = MEMORY_AT;
    for range in used {
        if range.start.saturating_sub(at) >= len {
            return Some(at);
        }
        at = at.max(range.end);
    }
    (end.saturating_sub(at) >= len).then_some(at)
}

/// An extent that this server has lent. Given back when dropped; free when its client has let go, too.
#[derive(Debug)]
pub(in crate::io) struct Lent {
    lot: Arc<Lot>,
    number: usize,
    at: usize,
    bytes: SharedBytes,
    /// What was offered last.
    offer: Mutex<u64>,
}

impl Lent {
    /// As a client is told of it. If the client has let go of it before, it can be claimed anew.
    pub(in crate::io) fn place(&self) -> Result<Place> {
        let mut offer = lock(&self.offer);
        if self.lot.memory.extent(self.number).claim.load(Acquire) <= DEPARTED {
            *offer = fresh_offer()?;
            self.lot.offer(self.number, *offer);
        }
        Ok(Place {
            number: self.number,
            at: self.at,
            offer: *offer,
        })
    }

    /// Has its client said, or a process of its client's machine, that the client will not come back?
    pub(in crate::io) fn is_departed(&self) -> bool {
        self.lot.memory.extent(self.number).claim.load(Acquire) == DEPARTED
    }

    pub(in crate::io) fn bytes(&self) -> SharedBytes {
        self.bytes
    }

    pub(in crate::io) fn lot(&self) -> &Arc<Lot> {
        &self.lot
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let offer = *lock(&self.offer);
        self.lot.leave(self.number, offer);
    }
}

#[cfg(test)]
mod tests;
