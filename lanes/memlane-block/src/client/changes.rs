//! Signals to code that shows paths and volumes to people that one of them may have changed.

use memlane_wait::event::EventFd;
use std::io;
use std::time::Duration;

/// Signalled by the reopener when a path came or went, or when a volume's size or status changed. One thread waits for
/// it.
#[derive(Debug)]
pub struct Changes(EventFd);

impl Changes {
    /// Makes one that has not been signalled.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM`, from `eventfd(2)`.
    pub fn new() -> io::Result<Changes> {
        Ok(Changes(EventFd::new()?))
    }

    /// Tells that something may have changed.
    pub fn signal(&self) {
        self.0.signal();
    }

    /// Waits until it is signalled, but not longer than `limit`. It may also return without a signal.
    pub fn wait(&self, limit: Option<Duration>) {
        self.0.wait(limit);
        self.0.drain();
    }
}
