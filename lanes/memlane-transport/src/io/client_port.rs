//! A port of a client's session: what one thread puts in and takes out.

use super::address::Ready;
use super::client::Queued;
use super::port_state::PortState;
use super::session::inner::Inner;
use crate::lease::{Lease, Memory};
use crate::port::{ChunkFile, Completion, LeaseError, Port, Submission};
use memlane_wait::spin::{Policy, Spin};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A thread's way into a client's session, as [`Port`] says.
#[derive(Debug)]
pub(super) struct ClientPort {
    inner: Arc<Inner>,
    state: Arc<PortState>,
    staged: Vec<Queued>,
    ready: Vec<Ready>,
    spin: Spin,
    /// It sleeps while the background poller leads for all, or is about to.
    follows: bool,
}

impl ClientPort {
    pub(super) fn new(inner: Arc<Inner>, state: Arc<PortState>) -> ClientPort {
        let spin = Spin::new(Policy::default());
        ClientPort {
            inner,
            state,
            staged: Vec::new(),
            ready: Vec::new(),
            spin,
            follows: false,
        }
    }

    /// Gets ready to sleep until a result wakes it, while the background poller leads. Is there something to reap
    /// already? `None`: the background poller does not lead for all.
    fn arm_as_follower(&mut self) -> Option<bool> {
        if !self.inner.follow(self.state.number) {
            return None;
        }
        self.follows = true;
        self.inner.yields_to_background(&self.state);
        let quiet = self.state.arm();
        let something = !quiet || self.state.has_done() || self.inner.can_lend_again(&self.state);
        if something {
            self.state.take(None);
            self.unfollow();
        }
        Some(something)
    }

    fn unfollow(&mut self) {
        if std::mem::take(&mut self.follows) {
            self.inner.leadership.unfollow();
        }
    }

    fn is_shared(&self) -> bool {
        self.inner.leadership.is_shared()
    }

    /// Waits while the background poller leads; `false`: it does not, or no longer.
    fn waits_as_follower(&mut self, start: Instant, limit: Option<Duration>) -> bool {
        while let Some(something) = self.arm_as_follower() {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            if !something && left != Some(Duration::ZERO) {
                self.state.epoll.wait(left, &mut self.ready);
            }
            self.state.take(None);
            self.unfollow();
            if something || left == Some(Duration::ZERO) || self.state.has_done() {
                return true;
            }
        }
        false
    }

    /// Leads again and again for a while; is there something to reap?
    fn spins(&mut self, limit: Option<Duration>) -> bool {
        let Some(spins) = self.inner.spins() else {
            self.inner.share();
            return self.state.has_done();
        };
        self.inner.becomes_poller(&self.state);
        self.inner.is_back(&self.state);
        self.spin.start(limit.unwrap_or(Duration::MAX));
        let found = loop {
            let moved = self.inner.drive_on();
            if self.state.has_done() {
                break true;
            }
            if self.spin.is_over() {
                break false;
            }
            if !moved {
                self.spin.pause();
            }
        };
        if found {
            self.spin.found();
        }
        drop(spins);
        self.inner.park();
        found
    }
}

impl Port for ClientPort {
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, LeaseError> {
        self.inner.lease(&self.state, len)
    }

    fn lease_in(
        &mut self,
        memory: &Arc<dyn Memory>,
        place: (usize, u32),
    ) -> Result<Option<Lease>, LeaseError> {
        self.inner.lease_in(&self.state, memory, place)
    }

    fn chunk_file(&self) -> std::io::Result<Option<ChunkFile>> {
        self.inner.chunk_file()
    }

    fn submit(&mut self, submission: Submission) {
        let port = Arc::clone(&self.state);
        self.staged.push(Queued { port, submission });
    }

    fn push(&mut self) {
        if !self.staged.is_empty() {
            self.inner.submit(&mut self.staged);
        }
    }

    fn reap(&mut self, into: &mut Vec<Completion>) -> usize {
        self.push();
        self.unfollow();
        if self.is_shared() && !self.state.sleeps.load(Ordering::Relaxed) {
            return self.state.take(Some(into));
        }
        match self.state.sleeps.load(Ordering::Relaxed) {
            true => self.inner.drive_woken(),
            false => self.inner.drive(),
        }
        let count = self.state.take(Some(into));
        self.inner.awake(&self.state);
        count
    }

    fn arm(&mut self) -> bool {
        if self.is_shared() {
            self.push();
            self.unfollow();
            if let Some(something) = self.arm_as_follower() {
                return something;
            }
        }
        self.inner.is_back(&self.state);
        self.inner.asleep(&self.state);
        // From now on a completion signals. What has come before is looked for once more.
        let quiet = self.state.arm();
        self.inner.drive_and_sleep(&mut self.staged);
        if quiet && !self.state.has_done() && !self.inner.can_lend_again(&self.state) {
            return false;
        }
        self.state.take(None);
        self.inner.awake(&self.state);
        true
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.state.epoll.as_fd()
    }

    fn wait(&mut self, limit: Option<Duration>) {
        let start = Instant::now();
        self.push();
        self.unfollow();
        if self.is_shared() && (self.state.has_done() || self.waits_as_follower(start, limit)) {
            return;
        }
        if self.spins(limit) {
            self.inner.awake(&self.state);
            return;
        }
        while !self.arm() {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) {
                break;
            }
            self.state.epoll.wait(left, &mut self.ready);
            self.inner.drive_woken();
            if self.state.has_done() {
                break;
            }
        }
        self.state.take(None);
        self.inner.awake(&self.state);
    }
}

impl Drop for ClientPort {
    fn drop(&mut self) {
        // What was submitted is submitted, and what comes of it is for the background.
        self.push();
        self.unfollow();
        self.inner.drive_and_sleep(&mut self.staged);
        self.inner.awake(&self.state);
        self.inner.forget(&self.state);
    }
}
