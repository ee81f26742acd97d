//! Payload into pinned memory of our own first, then into the region, by an engine that copies while the next bytes are
//! received: for regions that the kernel cannot write to.
//!
//! The staging memory is a ring: bytes that came, in order, until they are in the region. When it is full nothing is
//! received, and TCP holds the sender up. What came has its place in the region and its token at once, but nobody gets
//! the fragment before its bytes are there ([`Coming`](super::coming::Coming)).

use super::binding::Binding;
use super::copy::{Copier, CopyEngine, JOBS, Job, Piece};
use super::path::Path;
use super::stage::Stage;
use super::ways::{Came, Late, Source};
use crate::engine::inflow::Room;
use crate::error::{AccessError, ReceiveError};
use crate::region::DeviceRegion;
use memlane_sys::Errno;
use memlane_sys::iov;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// Bytes of the staging memory: one burst that comes, one that is copied, one in between.
pub(super) const STAGE: usize = 3 << 20;

#[derive(Debug)]
pub(super) struct Staged {
    /// `None`: it has been stopped. Dropped before the memory that it reads.
    engine: Option<Box<dyn CopyEngine>>,
    stage: Arc<Stage>,
    /// Where the next bytes go.
    head: usize,
    /// Bytes that came, in all.
    came: u64,
    /// Where in that each job ends that may be under way.
    jobs: VecDeque<u64>,
    /// Why the engine took no more.
    refused: Option<AccessError>,
}

impl Staged {
    pub(super) fn new(stage: Stage, engine: Box<dyn CopyEngine>) -> Staged {
        Staged {
            stage: Arc::new(stage),
            engine: Some(engine),
            head: 0,
            came: 0,
            jobs: VecDeque::new(),
            refused: None,
        }
    }

    /// With the engine that suits the region.
    pub(super) fn open(binding: &Arc<Binding>) -> Box<dyn Source> {
        match parts(binding) {
            Ok((stage, engine)) => Box::new(Staged::new(stage, engine)),
            Err(why) => Box::new(Broken(why)),
        }
    }

    fn copied(&self) -> u64 {
        self.engine
            .as_ref()
            .map_or(self.came, |engine| engine.done())
    }

    /// The length of the stretch for the next bytes, at the head, once `copied` bytes are copied.
    fn free(&self, copied: u64) -> usize {
        let done = self.jobs.partition_point(|end| *end <= copied);
        if self.jobs.len() - done == JOBS {
            return 0;
        }
        // More is not to be had from an engine than it was given.
        let under_way = usize::try_from(self.came.saturating_sub(copied)).unwrap_or(usize::MAX);
        let free = self.stage.len().saturating_sub(under_way);
        free.min(self.stage.len() - self.head)
    }

    /// Forgets jobs that are done.
    fn tidy(&mut self, copied: u64) {
        while self.jobs.front().is_some_and(|end| *end <= copied) {
            self.jobs.pop_front();
        }
        if self.jobs.is_empty() {
            // What was used last is the likeliest to be in a cache.
            self.head = 0;
        }
    }

    /// How the `bytes` that lie at the head go into `rooms`.
    fn pieces(&self, mut bytes: usize, rooms: &[Room]) -> Vec<Piece> {
        let (mut pieces, mut from) = (Vec::new(), self.head);
        for room in rooms {
            let len = bytes.min(room.len as usize);
            if len == 0 {
                break;
            }
            let to = room.offset;
            pieces.push(Piece { from, to, len });
            (from, bytes) = (from + len, bytes - len);
        }
        pieces
    }
}

fn parts(binding: &Arc<Binding>) -> Result<(Stage, Box<dyn CopyEngine>), AccessError> {
    let stage = Stage::for_region(STAGE, binding.region()).map_err(AccessError::Device)?;
    #[cfg(feature = "cuda")]
    if let Some(dma) = crate::cuda::dma::Dma::new(binding)? {
        return Ok((stage, Box::new(dma)));
    }
    let engine = Copier::by_cpu(binding).map_err(AccessError::Device)?;
    Ok((stage, Box::new(engine)))
}

/// No memory, or no thread: said when somebody receives.
#[derive(Debug)]
struct Broken(AccessError);

impl Source for Broken {
    fn path(&self) -> Path {
        Path::Staged
    }

    fn receive(
        &mut self,
        _: BorrowedFd<'_>,
        _: &DeviceRegion,
        _: &[Room],
    ) -> Result<Came, ReceiveError> {
        Err(ReceiveError::Copy(self.0))
    }
}

impl Source for Staged {
    fn path(&self) -> Path {
        Path::Staged
    }

    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        _region: &DeviceRegion,
        rooms: &[Room],
    ) -> Result<Came, ReceiveError> {
        let copied = self.copied();
        self.tidy(copied);
        let most: usize = rooms.iter().map(|room| room.len as usize).sum();
        let most = most.min(self.free(copied));
        let bytes = self.stage.bytes();
        let window = bytes.part(self.head, most).filter(|_| most > 0);
        let window = window.ok_or(ReceiveError::WouldBlock)?;
        let piece = iov::Piece {
            base: window.as_ptr(),
            len: window.len(),
        };
        // SAFETY: a stretch of the ring that no job names: those before it are done, by the engine's count.
        let came = unsafe { iov::receive(socket.as_raw_fd(), &[piece]) };
        let came = came.map_err(|errno| match errno {
            Errno::AGAIN => ReceiveError::WouldBlock,
            errno => ReceiveError::Kernel(errno),
        })?;
        if came > 0 {
            let job = Job::new(&self.stage, self.pieces(came, rooms));
            let engine = self.engine.as_mut().ok_or(AccessError::Gone);
            // The bytes are there, whatever becomes of the copy: what fails is told behind those that are whole.
            self.refused = engine
                .and_then(|engine| engine.begin(job))
                .err()
                .or(self.refused);
            self.head = (self.head + came) % self.stage.len();
            self.came += came as u64;
            self.jobs.push_back(self.came);
        }
        Ok(Came {
            bytes: came as u64,
            bounced: 0,
        })
    }

    fn late(&self) -> Option<&dyn Late> {
        Some(self)
    }

    fn stop(&mut self) {
        self.engine = None;
    }
}

impl Late for Staged {
    fn done(&self) -> u64 {
        self.copied()
    }

    fn failed(&self) -> Option<ReceiveError> {
        let engine = self.engine.as_ref();
        let why = engine.and_then(|engine| engine.failed()).or(self.refused);
        why.map(ReceiveError::Copy)
    }

    fn want(&self) {
        if let Some(engine) = &self.engine {
            engine.want();
        }
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.engine.as_ref().map(|engine| engine.bell())
    }

    fn is_full(&self) -> bool {
        self.free(self.copied()) == 0
    }
}
