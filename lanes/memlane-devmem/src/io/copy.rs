//! Who copies from staging memory into a region, beside the thread that receives.

use super::binding::Binding;
use super::stage::Stage;
use crate::error::AccessError;
use crate::region::DeviceRegion;
use memlane_core::access::SharedBytes;
use memlane_sys::Errno;
use memlane_wait::event::EventFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// One stretch of staging memory, and where its bytes go.
#[derive(Clone, Debug)]
pub struct Job {
    stage: Arc<Stage>,
    pieces: Vec<Piece>,
}

/// One piece of a [`Job`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// In the staging memory.
    pub(super) from: usize,
    /// In the region.
    pub(super) to: u64,
    pub(super) len: usize,
}

impl Job {
    pub(super) fn new(stage: &Arc<Stage>, pieces: Vec<Piece>) -> Job {
        Job {
            stage: Arc::clone(stage),
            pieces,
        }
    }

    /// What is to be copied: bytes, and where they go in the region.
    pub fn pieces(&self) -> impl Iterator<Item = (SharedBytes, u64)> {
        let part = |piece: &Piece| self.stage.bytes().part(piece.from, piece.len);
        let both = move |piece: &Piece| part(piece).map(|bytes| (bytes, piece.to));
        self.pieces.iter().filter_map(both)
    }

    /// Bytes in all.
    pub fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len as u64).sum()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Copies by the CPU.
    ///
    /// # Errors
    /// The region's.
    pub fn copy_to(&self, region: &DeviceRegion) -> Result<(), AccessError> {
        let mut pieces = self.pieces();
        pieces.try_for_each(|(bytes, to)| region.write_shared(to, &bytes))
    }
}

/// Copies [`Job`]s into a region, in order, while others work.
///
/// Once it is dropped it reads no staging memory and writes to no region any more, whatever was under way.
pub trait CopyEngine: Send + core::fmt::Debug {
    /// Begins. Never waits for the copy.
    ///
    /// # Errors
    /// It takes no more.
    fn begin(&mut self, job: Job) -> Result<(), AccessError>;

    /// Bytes of jobs that are whole in the region, counted from the first job; they are whole in the order in which they
    /// were begun.
    fn done(&self) -> u64;

    /// Why those behind them will never be.
    fn failed(&self) -> Option<AccessError>;

    /// Has [`bell`](Self::bell) become readable at the next change. Ask [`done`](Self::done) again behind it.
    fn want(&self);

    /// Readable when there is a change that was wanted.
    fn bell(&self) -> BorrowedFd<'_>;
}

/// Jobs that may be under way at a time: an engine has room for all of them.
pub const JOBS: usize = 256;

/// An engine that is a thread: it works at one job behind the other.
#[derive(Debug)]
pub struct Copier<T: Send = Job> {
    jobs: Option<SyncSender<(T, u64)>>,
    told: Arc<CopyProgress>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread tells.
#[derive(Debug)]
struct CopyProgress {
    /// Written by the thread alone, read by the stream: bytes that are in the region. `SeqCst`, with `wanted`: either the
    /// stream sees the new count after it has said what it wants, or the thread sees that.
    done: AtomicU64,
    /// Written by the thread alone, once, before it tells.
    failed: OnceLock<AccessError>,
    /// Set by the stream, taken by the thread.
    wanted: AtomicBool,
    changed: EventFd,
}

impl CopyProgress {
    fn tell(&self) {
        if self.wanted.swap(false, Ordering::SeqCst) {
            self.changed.signal();
        }
    }

    fn fail(&self, why: AccessError) {
        let _ = self.failed.set(why);
        self.tell();
    }
}

/// Says that the thread is gone, also if it panics.
struct Ends(Arc<CopyProgress>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.fail(AccessError::Gone);
    }
}

impl<T: Send + 'static> Copier<T> {
    /// Starts a thread for which `work` is one job. The first one that fails is the last one.
    ///
    /// # Errors
    /// No thread, no descriptor.
    pub fn of(
        name: &str,
        work: impl FnMut(&T) -> Result<(), AccessError> + Send + 'static,
    ) -> Result<Copier<T>, Errno> {
        let changed = EventFd::new().map_err(|error| Errno(error.raw_os_error()))?;
        let told = Arc::new(CopyProgress {
            done: AtomicU64::new(0),
            failed: OnceLock::new(),
            wanted: AtomicBool::new(false),
            changed,
        });
        let (jobs, taken) = sync_channel(JOBS);
        let ends = Ends(Arc::clone(&told));
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || works(&taken, &ends, work));
        let thread = thread.map_err(|error| Errno(error.raw_os_error().unwrap_or(0)))?;
        Ok(Copier {
            jobs: Some(jobs),
            told,
            thread: Some(thread),
        })
    }

    /// Takes a job of `bytes` bytes.
    ///
    /// # Errors
    /// It takes no more.
    pub fn take(&mut self, job: T, bytes: u64) -> Result<(), AccessError> {
        let gone = self.told.failed.get().copied();
        let jobs = self.jobs.as_ref().filter(|_| gone.is_none());
        let sent = jobs.map(|jobs| jobs.send((job, bytes)));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(gone.unwrap_or(AccessError::Gone)),
        }
    }

    /// As [`CopyEngine::done`].
    pub fn done(&self) -> u64 {
        self.told.done.load(Ordering::SeqCst)
    }

    /// As [`CopyEngine::failed`].
    pub fn failed(&self) -> Option<AccessError> {
        self.told.failed.get().copied()
    }

    /// As [`CopyEngine::want`].
    pub fn want(&self) {
        if self.told.wanted.load(Ordering::SeqCst) {
            return;
        }
        // A change that was told of before is no news.
        self.told.changed.drain();
        self.told.wanted.store(true, Ordering::SeqCst);
    }

    /// As [`CopyEngine::bell`].
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.told.changed.as_fd()
    }
}

impl Copier {
    /// The CPU copies.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn by_cpu(binding: &Arc<Binding>) -> Result<Copier, Errno> {
        let binding = Arc::clone(binding);
        Copier::of("memlane-copy", move |job: &Job| {
            job.copy_to(binding.region())
        })
    }
}

fn works<T>(
    jobs: &Receiver<(T, u64)>,
    ends: &Ends,
    mut work: impl FnMut(&T) -> Result<(), AccessError>,
) {
    while let Ok((job, bytes)) = jobs.recv() {
        if let Err(why) = work(&job) {
            return ends.0.fail(why);
        }
        ends.0.done.fetch_add(bytes, Ordering::SeqCst);
        ends.0.tell();
    }
}

impl CopyEngine for Copier {
    fn begin(&mut self, job: Job) -> Result<(), AccessError> {
        let bytes = job.len();
        self.take(job, bytes)
    }

    fn done(&self) -> u64 {
        self.done()
    }

    fn failed(&self) -> Option<AccessError> {
        self.failed()
    }

    fn want(&self) {
        self.want();
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell()
    }
}

impl<T: Send> Drop for Copier<T> {
    fn drop(&mut self) {
        // No more jobs: the thread ends behind the last one.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
