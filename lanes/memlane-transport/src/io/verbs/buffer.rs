//! Memory of one connection, registered for it alone.

use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use memlane_core::token::Token;
use memlane_verbs::{Domain, Piece, Registration, VerbsError};
use std::sync::Arc;

/// A region, and its registration.
#[derive(Debug)]
pub(super) struct Buffer {
    registration: Registration,
    region: Arc<Region>,
}

impl Buffer {
    /// One of at least `len` bytes.
    pub(super) fn new(domain: &Arc<Domain>, len: usize) -> Result<Buffer, VerbsError> {
        let region = Region::create(c"memlane-messages", len, false);
        let failed = |errno: memlane_sys::Errno| VerbsError::Failed {
            function: "memfd_create",
            errno: errno.0,
        };
        let region = Arc::new(region.map_err(failed)?);
        // No peer is told this name.
        let named = Token::fresh().map_err(failed)?.bits() >> 1 & !4095;
        // SAFETY: the region is mapped as long as it lives.
        let registered =
            unsafe { domain.register(region.bytes(), named, Arc::clone(&region) as _) };
        Ok(Buffer {
            registration: registered?,
            region,
        })
    }

    pub(super) fn bytes(&self) -> SharedBytes {
        self.region.bytes()
    }

    /// `len` bytes from `at` on, for a work request.
    pub(super) fn piece(&self, at: usize, len: usize) -> Option<Piece> {
        self.registration.piece(&self.bytes().part(at, len)?)
    }
}
