//! Where a stream's fragments are looked at and handed back.

use super::shared::{Owned, Shared};
use crate::engine::{Fragment, Range};
use crate::error::{AccessError, ReleaseError};
use std::sync::Arc;

/// The part of a stream that other threads use while one receives or waits.
#[derive(Clone, Debug)]
pub struct Desk {
    shared: Arc<Shared>,
}

impl Desk {
    pub(super) fn new(shared: &Arc<Shared>) -> Desk {
        Desk {
            shared: Arc::clone(shared),
        }
    }

    /// As [`Stream::release`](super::Stream::release).
    ///
    /// # Errors
    /// Those of [`Stream::release`](super::Stream::release).
    pub fn release(&self, ranges: &[Range]) -> Result<u32, ReleaseError> {
        self.shared.release(ranges)
    }

    /// As [`Stream::own`](super::Stream::own).
    pub fn own(&self, fragment: Fragment) -> Option<Owned> {
        let kept = self.shared.given().tokens.keep(fragment);
        kept.then(|| Owned::new(fragment, &self.shared))
    }

    /// As [`Stream::read`](super::Stream::read).
    ///
    /// # Errors
    /// Those of [`Stream::read`](super::Stream::read).
    pub fn read(&self, token: u32, at: u32, into: &mut [u8]) -> Result<(), AccessError> {
        let fragment = self.shared.given().tokens.find(token);
        let fragment = fragment.ok_or(AccessError::NoSuchToken(token))?;
        let end = u64::from(at) + into.len() as u64;
        if end > u64::from(fragment.len) {
            return Err(AccessError::Outside);
        }
        let region = self.shared.binding.region();
        region.read(fragment.offset + u64::from(at), into)
    }

    /// Fragments that were given back, and those that are out.
    pub fn released_and_out(&self) -> (u64, u32) {
        let given = self.shared.given();
        (given.released, given.out())
    }
}
