//! Memory for the data of one request, lent by a session.

use crate::io::Claim;
use memlane_core::access::SharedBytes;
use std::sync::Arc;

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
        }
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

    /// Copies bytes out; `false`, and nothing is copied, if there are not so many.
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
