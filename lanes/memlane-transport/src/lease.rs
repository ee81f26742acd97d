//! Memory for the data of one request, lent by a session.

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
}

impl Lease {
    /// A lease of `bytes`, which `owner` knows by `number` and keeps mapped.
    #[must_use]
    pub fn new(bytes: SharedBytes, number: u32, owner: Arc<dyn Lender>) -> Lease {
        Lease {
            bytes,
            number,
            owner,
        }
    }

    /// Its memory. A peer may be able to write it: see [`SharedBytes`].
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
