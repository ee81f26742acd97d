//! A region whose chunks streams may fill.

use crate::engine::{Chunks, Fragment};
use crate::error::RegionError;
use crate::region::DeviceRegion;
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use std::sync::{Arc, Mutex, MutexGuard};

/// A region, cut into chunks. Streams share it; it lives as long as the last of them, or of their fragments' owners.
#[derive(Debug)]
pub struct Binding {
    region: DeviceRegion,
    pool: Mutex<Pool>,
    /// Readable: fragments have come back since somebody found no room.
    freed: EventFd,
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) chunks: Chunks,
    /// Somebody found no room, and wants to hear.
    wanted: bool,
}

/// What a binding has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BindingCounts {
    /// Bytes of a chunk.
    pub chunk: u32,
    /// All chunks.
    pub chunks: u32,
    /// Those that nobody has.
    pub free: u32,
}

impl Binding {
    /// Cuts a region into chunks of this many bytes.
    ///
    /// # Errors
    /// [`RegionError::Chunk`]: the size is none; [`RegionError::Kernel`]: no descriptor.
    pub fn new(region: DeviceRegion, chunk: u32) -> Result<Arc<Binding>, RegionError> {
        let chunks = Chunks::new(region.len() as u64, chunk).ok_or(RegionError::Chunk(chunk))?;
        Binding::of(region, chunks)
    }

    /// Keeps the region but for its last `kept` bytes for somebody else, an interface say, who puts payload there by
    /// himself. Only what comes beside that goes into chunks, of which there may be none.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn beside(
        region: DeviceRegion,
        chunk: u32,
        kept: u64,
    ) -> Result<Arc<Binding>, RegionError> {
        let end = region.len() as u64;
        let chunks = Chunks::within(end.saturating_sub(kept)..end, chunk);
        Binding::of(region, chunks.ok_or(RegionError::Chunk(chunk))?)
    }

    fn of(region: DeviceRegion, chunks: Chunks) -> Result<Arc<Binding>, RegionError> {
        let freed = EventFd::new().map_err(|error| {
            RegionError::Kernel("eventfd", memlane_sys::Errno(error.raw_os_error()))
        })?;
        Ok(Arc::new(Binding {
            region,
            pool: Mutex::new(Pool {
                chunks,
                wanted: false,
            }),
            freed,
        }))
    }

    /// The region.
    pub fn region(&self) -> &DeviceRegion {
        &self.region
    }

    /// What there is.
    pub fn counts(&self) -> BindingCounts {
        let pool = self.pool();
        BindingCounts {
            chunk: pool.chunks.size(),
            chunks: pool.chunks.count(),
            free: pool.chunks.free(),
        }
    }

    /// The chunks. A thread that panicked with the lock did so before it changed anything.
    pub(super) fn pool(&self) -> MutexGuard<'_, Pool> {
        lock(&self.pool)
    }

    /// The descriptor that becomes readable when fragments come back after no room was found.
    pub(super) fn freed(&self) -> &EventFd {
        &self.freed
    }

    /// Somebody who found no room is to look again.
    pub(super) fn tell(&self) {
        self.pool().tell(&self.freed);
    }

    /// Gives the chunks of fragments back.
    pub(super) fn give(&self, fragments: impl Iterator<Item = Fragment>) {
        let mut pool = self.pool();
        let mut some = false;
        for fragment in fragments {
            // Offsets are ours, of chunks that there are.
            let chunk = pool.chunks.at(fragment.offset);
            pool.chunks.give(chunk);
            some = true;
        }
        // Also if no chunk is free by it: a token is, and that may have been what was lacking.
        if some {
            pool.tell(&self.freed);
        }
    }
}

impl Pool {
    /// No room was found: the next fragment that comes back is to be told of.
    pub(super) fn want(&mut self, freed: &EventFd) {
        // A fragment that came back before is no news.
        freed.drain();
        self.wanted = true;
    }

    pub(super) fn tell(&mut self, freed: &EventFd) {
        if std::mem::take(&mut self.wanted) {
            freed.signal();
        }
    }
}
