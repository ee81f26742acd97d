//! At a client that shares memory with its server: the session's chunks, and what of them belongs to a lease.
//!
//! A lease that has a *claim* lies in the server's chunk itself, with that chunk's permit reserved: what its user puts
//! there needs not be copied to be sent, and what the server reads lies there already. A claim is good as long as a
//! connection shares the very mapping that it was made from. A request that goes elsewhere, or fails before the server
//! has answered, takes its bytes home first, to the slot that every lease has: in a chunk that the server may still
//! work on, nothing of a user's is left.

use super::across::{Hold, Mapped, Place, SharedMemory};
use super::link_error::LinkError;
use crate::engine::permits::Free;
use crate::port::ChunkFile;
use crate::wire::Geometry;
use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use memlane_sys::fd::{Fd, stat};
use std::sync::Arc;

/// A place in the chunks of a server of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InChunks {
    /// Which memory that is: the kernel's numbers (`st_dev`, `st_ino`).
    pub file: (u64, u64),
    /// From its beginning.
    pub offset: usize,
}

/// The chunks of a session, mapped here once, however many connections share them.
#[derive(Debug)]
pub(crate) struct Chunks {
    memory: Mapped,
    /// If they are a file of their own.
    file: Option<File>,
    chunk: usize,
    permits: Arc<Free>,
}

/// A file that is all chunks.
#[derive(Debug)]
struct File {
    /// For who gives them to a device.
    fd: Fd,
    /// Which memory it is: the kernel's numbers, device and inode.
    number: (u64, u64),
}

impl Chunks {
    /// What a server handed over, if it is none of those that are known.
    pub(super) fn attach(
        fd: Fd,
        geometry: &Geometry,
        permits: &Arc<Free>,
        known: &[Arc<Chunks>],
    ) -> memlane_sys::Result<Arc<Chunks>> {
        let told = stat(fd.raw())?;
        let number = (told.dev, told.ino);
        let same = |known: &&Arc<Chunks>| {
            let file = known.file.as_ref();
            file.is_some_and(|file| file.number == number)
        };
        if let Some(known) = known.iter().find(same) {
            return Ok(Arc::clone(known));
        }
        let chunk = geometry.chunk() as usize;
        Ok(Arc::new(Chunks {
            file: Some(File {
                fd: memlane_sys::fd::duplicate(fd.raw())?,
                number,
            }),
            memory: Mapped::Own(Region::attach(fd, chunk * usize::from(geometry.depth()))?),
            chunk,
            permits: Arc::clone(permits),
        }))
    }

    /// What a server of another machine has in memory that both machines have, if it is none of those that are known.
    pub(super) fn claim_at(
        memory: &Arc<SharedMemory>,
        place: Place,
        (geometry, permits): (&Geometry, &Arc<Free>),
        known: &[Arc<Chunks>],
    ) -> Result<Arc<Chunks>, LinkError> {
        let same = |known: &&Arc<Chunks>| matches!(&known.memory, Mapped::Held(hold) if hold.is_at(&place));
        if let Some(known) = known.iter().find(same) {
            return Ok(Arc::clone(known));
        }
        let chunk = geometry.chunk() as usize;
        let hold = Hold::claim(memory, place, chunk * usize::from(geometry.depth()))?;
        Ok(Arc::new(Chunks {
            memory: Mapped::Held(hold),
            file: None,
            chunk,
            permits: Arc::clone(permits),
        }))
    }

    /// The client is about to close its session.
    pub(super) fn client_departs(&self) {
        if let Mapped::Held(hold) = &self.memory {
            hold.departs();
        }
    }

    /// May leases lie here? They are given to the kernel, which can use nothing but pages: a device's memory has none.
    pub(super) fn takes_leases(&self) -> bool {
        match &self.memory {
            Mapped::Held(hold) => hold.has_pages(),
            Mapped::Own(_) | Mapped::Lent(_) => true,
        }
    }

    /// All of them.
    pub(super) fn bytes(&self) -> SharedBytes {
        self.memory.bytes()
    }

    /// The memory that they are, for a mapping of one's own; `None`: they are a part of something else.
    pub(super) fn file(&self) -> memlane_sys::Result<Option<ChunkFile>> {
        let Some(file) = &self.file else {
            return Ok(None);
        };
        Ok(Some(ChunkFile {
            fd: memlane_sys::fd::duplicate(file.fd.raw())?,
            len: self.bytes().len(),
            file: file.number,
        }))
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

    /// `None`: the chunks are no file of their own.
    pub(crate) fn place(&self) -> Option<InChunks> {
        let file = self.chunks.file.as_ref()?;
        Some(InChunks {
            file: file.number,
            offset: self.chunks.offset(self.permit),
        })
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
