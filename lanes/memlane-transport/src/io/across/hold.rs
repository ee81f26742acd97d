//! At the client: an extent that this process holds.

use super::layout::{DEPARTED, LET_GO, is_claim};
use super::memory::SharedMemory;
use super::place::Place;
use crate::io::link_error::LinkError;
use memlane_core::access::SharedBytes;
use memlane_core::token::Token;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// An extent that a server has offered and this process has claimed. Let go when dropped, after the last use.
#[derive(Debug)]
pub(in crate::io) struct Hold {
    memory: Arc<SharedMemory>,
    place: Place,
    claim: u64,
    bytes: SharedBytes,
    departs: AtomicBool,
}

impl Hold {
    /// Claims `len` bytes at a place.
    ///
    /// # Errors
    /// The region is another one than the server's, or the server has withdrawn the offer.
    pub(in crate::io) fn claim(
        memory: &Arc<SharedMemory>,
        place: Place,
        len: usize,
    ) -> Result<Hold, LinkError> {
        let bytes = memory.bytes().part(place.at, len);
        let bytes = bytes.ok_or(LinkError::OtherMemory)?;
        let extent = memory.extent(place.number);
        if extent.claim.load(Acquire) != place.offer {
            return Err(LinkError::OtherMemory);
        }
        let claim = fresh_claim().map_err(LinkError::Os)?;
        let claimed = extent
            .claim
            .compare_exchange(place.offer, claim, AcqRel, Relaxed);
        claimed.map_err(|_| LinkError::Queue)?;
        // Now, and not before: who comes too late must not sign for another.
        memory.me().sign(extent);
        Ok(Hold {
            memory: Arc::clone(memory),
            place,
            claim,
            bytes,
            departs: AtomicBool::new(false),
        })
    }

    /// Is it what the server means by this place?
    pub(in crate::io) fn is_at(&self, place: &Place) -> bool {
        self.place == *place
    }

    pub(in crate::io) fn bytes(&self) -> SharedBytes {
        self.bytes
    }

    /// This client is about to close its session: when it lets go, the server need not keep that.
    pub(in crate::io) fn departs(&self) {
        self.departs.store(true, Relaxed);
    }

    /// Can the kernel use it as the memory of a request?
    pub(in crate::io) fn has_pages(&self) -> bool {
        self.memory.is_file()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let extent = self.memory.extent(self.place.number);
        let last = match self.departs.load(Relaxed) {
            true => DEPARTED,
            false => LET_GO,
        };
        // Release: the server sees it after everything that this process did there.
        let _ = extent
            .claim
            .compare_exchange(self.claim, last, Release, Relaxed);
    }
}

/// A random number for a claim.
fn fresh_claim() -> memlane_sys::Result<u64> {
    loop {
        let bits = Token::fresh()?.bits() | 1;
        if is_claim(bits) {
            return Ok(bits);
        }
    }
}
