//! Memory for the data of one request, lent by a session.

mod memory;

use crate::io::Claim;
use memlane_core::access::SharedBytes;
use std::sync::Arc;

pub use crate::io::InChunks;
pub use memory::{Detour, Memory};

/// Who gets a lease's memory back.
pub trait Lender: Send + Sync {
    /// The lease with this number is over. Called once for each, from any thread.
    fn give_back(&self, number: u32);
}

/// Memory for the data of one request; goes back to its owner when dropped.
pub struct Lease {
    bytes: SharedBytes,
    number: u32,
    owner: Arc<dyn Lender>,
    /// Where it lies, if that is a chunk of the server's.
    claim: Option<Claim>,
    /// Whose memory it is, if it is its user's.
    memory: Option<Arc<dyn Memory>>,
    /// Where in that memory.
    at: usize,
    /// The CPU does not reach that memory: `bytes` is what a detour takes.
    is_beyond_cpu: bool,
    detour: Option<Detour>,
    copied: u32,
}

impl Lease {
    /// A lease of `bytes`, which `owner` knows by `number` and keeps mapped.
    #[must_use]
    pub fn new(bytes: SharedBytes, number: u32, owner: Arc<dyn Lender>) -> Lease {
        Lease {
            bytes,
            number,
            owner,
            claim: None,
            memory: None,
            at: 0,
            is_beyond_cpu: false,
            detour: None,
            copied: 0,
        }
    }

    /// One of `len` bytes of its user's memory, from `at` on. `None`: it has no such bytes.
    #[must_use]
    pub fn of(
        memory: &Arc<dyn Memory>,
        (at, len): (usize, usize),
        number: u32,
        owner: Arc<dyn Lender>,
    ) -> Option<Lease> {
        let bytes = memory.bytes().part(at, len)?;
        let mut lease = Lease::new(bytes, number, owner);
        (lease.memory, lease.at) = (Some(Arc::clone(memory)), at);
        Some(lease)
    }

    /// The same, if only a device reaches that memory. `home`: as many bytes, which data comes to that does not come by a device.
    pub(crate) fn beyond_cpu(
        memory: &Arc<dyn Memory>,
        at: usize,
        home: SharedBytes,
        number: u32,
        owner: Arc<dyn Lender>,
    ) -> Lease {
        let mut lease = Lease::new(home, number, owner);
        (lease.memory, lease.at) = (Some(Arc::clone(memory)), at);
        lease.is_beyond_cpu = true;
        lease
    }

    /// Does only a device reach its memory?
    pub(crate) fn is_beyond_cpu(&self) -> bool {
        self.is_beyond_cpu
    }

    /// Where in its user's memory it begins.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Why what was read last did not go straight to its user's memory, as far as it concerns RDMA devices. `None`: it did, or it was
    /// never to.
    ///
    /// Memory that is mapped has the data all the same, by a copy ([`copied`](Self::copied)). Memory that the CPU does not reach has not:
    /// the data is in [`bytes`](Self::bytes), and its user takes it from there.
    #[must_use]
    pub fn detour(&self) -> Option<Detour> {
        self.detour
    }

    pub(crate) fn note_detour(&mut self, detour: Option<Detour>) {
        self.detour = detour;
    }

    /// Does its data lie in memory of its user's ([`Memory`]), which the CPU may not reach?
    #[must_use]
    pub fn is_of_its_user(&self) -> bool {
        self.memory.is_some()
    }

    /// Whose memory it is, if it is its user's.
    pub(crate) fn memory(&self) -> Option<&Arc<dyn Memory>> {
        self.memory.as_ref()
    }

    /// The same lease, in a chunk.
    pub(crate) fn in_chunk(self, claim: Claim, bytes: SharedBytes) -> Lease {
        let mut lease = self;
        (lease.claim, lease.bytes) = (Some(claim), bytes);
        lease
    }

    /// The chunk that it lies in.
    pub(crate) fn claim(&self) -> Option<&Claim> {
        self.claim.as_ref()
    }

    /// Copies what it has to `home`, where it lies from now on; what it lay in.
    pub(crate) fn move_to(&mut self, home: SharedBytes) -> Option<Claim> {
        // SAFETY: what it lay in is mapped as long as the claim lives; `home` is no part of it.
        unsafe { home.copy_in(0, self.bytes.as_ptr(), self.bytes.len()) };
        self.bytes = home;
        self.claim.take()
    }

    /// Where in the chunks of a server of this host it lies, if it does.
    #[must_use]
    pub fn in_chunks(&self) -> Option<InChunks> {
        self.claim().and_then(Claim::place)
    }

    /// Of what was read into it last: bytes that were copied from one place of this process's memory to another, on
    /// their way here. What is encrypted is decrypted in between, which is not counted.
    #[must_use]
    pub fn copied(&self) -> u32 {
        self.copied
    }

    /// Notes what [`copied`](Self::copied) tells; for whoever has read into it.
    pub fn note_copied(&mut self, bytes: u32) {
        self.copied = bytes;
    }

    /// Is it lent by this one?
    pub(crate) fn is_from<L>(&self, owner: &Arc<L>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.owner), Arc::as_ptr(owner))
    }

    /// Its memory, which may be elsewhere when a request is over. A peer may be able to write it: see [`SharedBytes`].
    #[must_use]
    pub fn bytes(&self) -> SharedBytes {
        self.bytes
    }

    /// How its owner calls it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Copies bytes in; `false`, and nothing is copied, if they do not fit.
    pub fn fill(&self, at: usize, from: &[u8]) -> bool {
        // SAFETY: `from` is readable for its length.
        unsafe { self.bytes.copy_in(at, from.as_ptr(), from.len()) }
    }

    /// Copies bytes out. `false`: there are not that many, and nothing is copied.
    pub fn take(&self, at: usize, into: &mut [u8]) -> bool {
        // SAFETY: `into` is writable for its length.
        unsafe { self.bytes.copy_out(at, into.as_mut_ptr(), into.len()) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.owner.give_back(self.number);
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("number", &self.number)
            .field("len", &self.bytes.len())
            .finish_non_exhaustive()
    }
}
