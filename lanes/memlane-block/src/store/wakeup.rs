//! How results reach an engine's thread from others.

use crate::volume::Errno;
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Whose.
    pub id: u64,
    /// How it went: a disk's errors.
    pub result: Result<(), Errno>,
}

/// Wakes an engine's thread: a request is done, or another thread wants the engine's user to look at something.
#[derive(Debug)]
pub struct Wakeup {
    event: EventFd,
    /// Whether `told` has anything, so that a look at nothing takes no lock. Written with the lock held, by
    /// `tell` (release) and `take`; read without it by the engine's thread (acquire).
    pending: AtomicBool,
    told: Mutex<PoolResults>,
}

#[derive(Debug, Default)]
struct PoolResults {
    done: Vec<Completion>,
    /// The descriptor is readable.
    signalled: bool,
}

impl Wakeup {
    pub(super) fn new() -> io::Result<Wakeup> {
        Ok(Wakeup {
            event: EventFd::new()?,
            pending: AtomicBool::new(false),
            told: Mutex::default(),
        })
    }

    /// Makes the engine's descriptor readable.
    pub fn signal(&self) {
        self.tell(None);
    }

    pub(super) fn tell(&self, done: Option<Completion>) {
        let mut told = lock(&self.told);
        told.done.extend(done);
        self.pending.store(true, Ordering::Release);
        if !told.signalled {
            self.event.signal();
            told.signalled = true;
        }
    }

    /// Appends what is done, and makes the descriptor unreadable again.
    pub(super) fn take(&self, into: &mut Vec<Completion>) {
        if !self.pending.load(Ordering::Acquire) {
            return;
        }
        let mut told = lock(&self.told);
        if told.signalled {
            self.event.drain();
            told.signalled = false;
        }
        self.pending.store(false, Ordering::Release);
        into.append(&mut told.done);
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
