//! The device fetches by itself: copies are queued by whoever receives, and a thread sleeps until each is done.

use super::driver::Context;
use super::memory::refused;
use crate::error::AccessError;
use crate::io::Binding;
use crate::io::copy::{Copier, CopyEngine, Job};
use crate::region::DeviceRegion;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Copies into a CUDA region.
#[derive(Debug)]
pub struct Dma {
    /// `None`: it is being dropped. The thread that waits for events, in order.
    waits: Option<Copier<Begun>>,
    context: Arc<Context>,
    stream: usize,
    binding: Arc<Binding>,
}

/// A job under way. It holds the staging memory.
#[derive(Debug)]
struct Begun {
    context: Arc<Context>,
    event: usize,
    _job: Job,
}

impl Drop for Begun {
    fn drop(&mut self) {
        // SAFETY: its own event.
        unsafe { self.context.forget(self.event) };
    }
}

impl Dma {
    /// For a region of CUDA's; `None`: it is of other memory.
    ///
    /// # Errors
    /// The driver's; no thread.
    pub fn new(binding: &Arc<Binding>) -> Result<Option<Dma>, AccessError> {
        let Some(memory) = binding.region().cuda() else {
            return Ok(None);
        };
        let context = Arc::clone(memory.context());
        let waits = Copier::of("memlane-dma", |begun: &Begun| {
            begun.context.wait(begun.event).map_err(refused)
        });
        let waits = waits.map_err(AccessError::Device)?;
        let stream = context.stream().map_err(refused)?;
        Ok(Some(Dma {
            waits: Some(waits),
            context,
            stream,
            binding: Arc::clone(binding),
        }))
    }

    fn waits(&self) -> &Copier<Begun> {
        self.waits.as_ref().expect("until it is dropped")
    }
}

/// Where the pieces of a job are, and go.
fn copies(region: &DeviceRegion, job: &Job) -> Result<Vec<(u64, *const u8, usize)>, AccessError> {
    let memory = region.cuda().ok_or(AccessError::Outside)?;
    let copy = |(bytes, to): (memlane_core::access::SharedBytes, u64)| {
        let to = memory.place(to, bytes.len())?;
        Ok((to, bytes.as_ptr().cast_const(), bytes.len()))
    };
    job.pieces().map(copy).collect()
}

impl CopyEngine for Dma {
    fn begin(&mut self, job: Job) -> Result<(), AccessError> {
        let copies = copies(self.binding.region(), &job)?;
        let bytes = job.len();
        // SAFETY: the job holds the staging memory until its event has come, and nobody writes to its stretch before
        // that is counted; a copy that was begun and has no event ends before `self` does (`drop`).
        let event = unsafe { self.context.begin(self.stream, copies.into_iter()) };
        let event = event.map_err(refused)?;
        let waits = self.waits.as_mut().ok_or(AccessError::Gone)?;
        let begun = Begun {
            context: Arc::clone(&self.context),
            event,
            _job: job,
        };
        waits.take(begun, bytes)
    }

    fn done(&self) -> u64 {
        self.waits().done()
    }

    fn failed(&self) -> Option<AccessError> {
        self.waits().failed()
    }

    fn want(&self) {
        self.waits().want();
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.waits().bell()
    }
}

impl Drop for Dma {
    fn drop(&mut self) {
        // Nothing that was begun reads staging memory behind this, nor writes to the region.
        let _ = self.context.drain(self.stream);
        self.waits = None;
        // SAFETY: ours, and used by nobody after this.
        unsafe { self.context.close_stream(self.stream) };
    }
}
