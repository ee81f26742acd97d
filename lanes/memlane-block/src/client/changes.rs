//! A bell for whoever shows paths and volumes to people: it rings when one of them may have changed.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Rung by the reopener when a path came or went, or a volume's size or status changed; heard by one thread.
#[derive(Debug)]
pub struct Changes(OwnedFd);

impl Changes {
    /// One that was not rung.
    ///
    /// # Errors
    /// Descriptors are used up.
    pub fn new() -> io::Result<Changes> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Changes(eventfd(0, flags)?))
    }

    /// Something may have changed.
    pub fn ring(&self) {
        // If it fails, it rings already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Waits until it is rung, but not longer than `limit`; it may also come back for nothing.
    pub fn wait(&self, limit: Option<Duration>) {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], limit.as_ref());
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}
