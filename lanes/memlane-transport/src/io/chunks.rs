//! At a client of a server of its host: the session's chunks, and what of them belongs to a lease.
//!
//! A lease that has a *claim* lies in the server's chunk itself, with that chunk's permit reserved: what its user puts
//! there needs not be copied to be sent, and what the server reads lies there already. A claim is good as long as a
//! connection shares the very mapping that it was made from. A request that goes elsewhere, or fails before the server
//! has answered, takes its bytes home first, to the slot that every lease has: in a chunk that the server may still
//! work on, nothing of a user's is left.

use crate::engine::permits::Free;
use crate::lease::InChunks;
use crate::port::ChunkFile;
use crate::wire::Geometry;
use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use memlane_sys::Result;
use memlane_sys::fd::{Fd, stat};
use std::sync::Arc;

/// The chunks of a session, mapped here once, however many connections share them.
#[derive(Debug)]
pub(crate) struct Chunks {
    region: Region,
    /// For who gives them to a device.
    file: Fd,
    /// Which memory it is: the kernel's numbers.
    device: u64,
    inode: u64,
    chunk: usize,
    permits: Arc<Free>,
}

impl Chunks {
    /// What a server handed over, if it is none of those that are known.
    pub(super) fn attach(
        fd: Fd,
        geometry: &Geometry,
        permits: &Arc<Free>,
        known: &[Arc<Chunks>],
    ) -> Result<Arc<Chunks>> {
        let told = stat(fd.raw())?;
        let same = |known: &&Arc<Chunks>| (known.device, known.inode) == (told.dev, told.ino);
        if let Some(known) = known.iter().find(same) {
            return Ok(Arc::clone(known));
        }
        let chunk = geometry.chunk() as usize;
        Ok(Arc::new(Chunks {
            file: memlane_sys::fd::duplicate(fd.raw())?,
            region: Region::attach(fd, chunk * usize::from(geometry.depth()))?,
            device: told.dev,
            inode: told.ino,
            chunk,
            permits: Arc::clone(permits),
        }))
    }

    /// All of them.
    pub(super) fn bytes(&self) -> SharedBytes {
        self.region.bytes()
    }

    /// The memory that they are, for a mapping of one's own.
    pub(super) fn file(&self) -> Result<ChunkFile> {
        Ok(ChunkFile {
            fd: memlane_sys::fd::duplicate(self.file.raw())?,
            len: self.region.len(),
            file: (self.device, self.inode),
        })
    }

    /// Where a chunk begins.
    pub(super) fn offset(&self, permit: u16) -> usize {
        self.chunk * usize::from(permit)
    }

    /// One of them, for a lease of `len` bytes, and where it is. `None`: the others are for those who have no lease.
    pub(super) fn claim(self: &Arc<Chunks>, len: usize) -> Option<(Claim, SharedBytes)> {
        let claim = Claim {
            permit: self.permits.reserve()?,
            chunks: Arc::clone(self),
            handed_over: false,
        };
        let bytes = self.bytes().part(self.offset(claim.permit), len)?;
        Some((claim, bytes))
    }
}

/// A chunk that is reserved, and stays mapped. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    permit: u16,
    chunks: Arc<Chunks>,
    handed_over: bool,
}

impl Claim {
    pub(super) fn permit(&self) -> u16 {
        self.permit
    }

    pub(crate) fn place(&self) -> InChunks {
        InChunks {
            file: (self.chunks.device, self.chunks.inode),
            offset: self.chunks.offset(self.permit),
        }
    }

    /// Is it one of these?
    pub(super) fn is_of(&self, chunks: &Arc<Chunks>) -> bool {
        Arc::ptr_eq(&self.chunks, chunks)
    }

    /// The permit is the engine's from now on.
    pub(super) fn hand_over(mut self) {
        self.handed_over = true;
        self.chunks.permits.hand_over();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.handed_over {
            self.chunks.permits.give_back(self.permit);
        }
    }
}
