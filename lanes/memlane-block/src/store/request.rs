//! A request to a backing, its result, and the trait of what carries it out.

use super::backing::Backing;
use super::wakeup::{Completion, Wakeup};
use crate::volume::{Flags, Op};
use memlane_core::access::SharedBytes;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A request, checked already (see [`Backing::check`]).
#[derive(Debug)]
pub struct StoreRequest {
    /// Comes back with the result.
    pub id: u64,
    /// The backing that it is for.
    pub backing: Arc<Backing>,
    /// What.
    pub op: Op,
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u32,
    /// How.
    pub flags: Flags,
    /// Read, write: `len` bytes of memory. Extents: room for the answer. It stays mapped until the request is done.
    pub data: Option<SharedBytes>,
}

/// One thread's way to files.
pub trait Store: Send {
    /// Takes a request; it begins with the next [`complete`](Self::complete), at the latest.
    fn submit(&mut self, request: StoreRequest);

    /// Begins what was submitted, and appends what is done. Never waits.
    fn complete(&mut self, into: &mut Vec<Completion>);

    /// Readable when a result is there that `complete` has not returned, or another thread has signalled.
    fn fd(&self) -> BorrowedFd<'_>;

    /// What makes `fd` readable from another thread.
    fn wakeup(&self) -> Arc<Wakeup>;
}
