//! A port of a client's session: what one thread puts in and takes out.

use super::address::Ready;
use super::client::{Queued, Reads};
use super::port_state::PortState;
use super::session::inner::Inner;
use crate::lease::{Lease, Memory};
use crate::port::{ChunkFile, Completion, LeaseError, Port, Submission};
use memlane_wait::spin::{Policy, Spin};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The longest time in which a thread takes turns at leading while others get their results, before it sleeps.
const MOST_TURNS: Duration = Duration::from_millis(5);

/// A thread's way into a client's session, as [`Port`] says.
#[derive(Debug)]
pub(super) struct ClientPort {
    inner: Arc<Inner>,
    state: Arc<PortState>,
    staged: Vec<Queued>,
    ready: Vec<Ready>,
    spin: Spin,
    /// What has come was read a moment ago, or is not there yet: the next [`reap`](Port::reap) reads no socket.
    has_looked: bool,
    /// The last `reap` read no socket.
    has_not_asked: bool,
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
            has_looked: false,
            has_not_asked: false,
        }
    }

    /// Leads for a while, in turns with all other threads that wait; is there something to reap?
    fn takes_turns(&mut self, limit: Option<Duration>) -> bool {
        let until = Instant::now() + limit.unwrap_or(Duration::MAX).min(MOST_TURNS);
        let mut threads = self.inner.leadership.spin();
        if threads == 1 {
            self.inner.becomes_poller(&self.state);
        }
        self.inner.is_back(&self.state);
        let mut moves = self.inner.moves.load(Ordering::Relaxed);
        self.spin.start_among(threads, MOST_TURNS);
        let found = loop {
            let moved = self.inner.drive_on();
            self.has_looked = true;
            if self.state.has_done() {
                break true;
            }
            let now = self.inner.moves.load(Ordering::Relaxed);
            if threads > 1 && now != moves {
                // Somebody gets something: the turns go round.
                moves = now;
                threads = self.inner.leadership.spinners();
                let left = until.saturating_duration_since(Instant::now());
                self.spin.start_among(threads, left);
            }
            if self.spin.is_over() {
                break false;
            }
            if !moved || threads > 1 {
                self.spin.pause();
            }
        };
        if found {
            self.spin.found();
        }
        if self.inner.leadership.stop_spinning() {
            self.inner.parks_for_all(&self.state);
        }
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
            // By a socket, no answer is there so soon.
            self.has_looked = true;
        }
    }

    fn reap(&mut self, into: &mut Vec<Completion>) -> usize {
        self.push();
        // A caller that pushes and reaps in turns gets what has come every second time.
        let has_looked = std::mem::take(&mut self.has_looked) && !self.has_not_asked;
        self.has_not_asked = has_looked;
        match self.state.sleeps.load(Ordering::Relaxed) {
            true => {
                // Awake: what comes by the pass below need not be signalled to this very thread.
                self.state.take(None);
                self.inner.drive_woken();
            }
            false if has_looked => self.inner.drive(Reads::Memory),
            false => self.inner.drive(Reads::Busy),
        }
        let count = self.state.take(Some(into));
        self.inner.awake(&self.state);
        count
    }

    fn arm(&mut self) -> bool {
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
        if self.takes_turns(limit) {
            self.inner.awake(&self.state);
            return;
        }
        while !self.arm() {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) {
                break;
            }
            self.state.epoll.wait(left, &mut self.ready);
            // This thread is awake, and looks at its results below: nobody, itself included, need signal them.
            self.state.take(None);
            let led = self.inner.drive_woken();
            self.has_looked = true;
            if self.state.has_done() || (!led && self.takes_turns(left)) {
                break;
            }
        }
        self.state.take(None);
        self.inner.awake(&self.state);
    }

    fn linger(&mut self, limit: Duration) -> bool {
        self.push();
        let found = self.state.has_done() || self.takes_turns(Some(limit));
        self.inner.awake(&self.state);
        found
    }
}

impl Drop for ClientPort {
    fn drop(&mut self) {
        // What was submitted is submitted, and what comes of it is for the background.
        self.push();
        self.inner.drive_and_sleep(&mut self.staged);
        self.inner.awake(&self.state);
        self.inner.forget(&self.state);
    }
}
