//! A port of a client's session: what one thread puts in and takes out.

use super::address::{Interest, Ready, Waits};
use super::client::Queued;
use super::session::Inner;
use crate::lease::{Lease, Memory};
use crate::port::{ChunkFile, Completion, LeaseError, Port, Submission};
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use memlane_wait::spin::{Policy, Spin};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What whoever drives the session needs of a port.
#[derive(Debug)]
pub(super) struct PortState {
    /// Which of a session's ports.
    pub(super) number: u64,
    /// Which connection its requests prefer.
    pub(super) hint: u16,
    done: Mutex<Done>,
    bell: EventFd,
    /// The bell, and, if this port is the one that watches, what the session waits for.
    pub(super) waits: Waits,
    /// It is among those that sleep.
    pub(super) sleeps: AtomicBool,
    /// When it was last awake with something to do, in nanoseconds.
    pub(super) left: AtomicU64,
    /// Last time it was back at once.
    pub(super) is_quick: AtomicBool,
}

#[derive(Debug, Default)]
struct Done {
    completions: Vec<Completion>,
    /// Its owner is about to sleep.
    armed: bool,
    /// The bell was rung, and not hushed yet.
    rung: bool,
}

impl PortState {
    pub(super) fn new(number: u64) -> rustix::io::Result<PortState> {
        let (bell, waits) = (EventFd::new()?, Waits::new()?);
        waits.add(&bell, 0, Interest::READ)?;
        Ok(PortState {
            number,
            hint: u16::try_from(number % (1 << 16)).unwrap_or(0),
            done: Mutex::default(),
            bell,
            waits,
            sleeps: AtomicBool::new(false),
            left: AtomicU64::new(0),
            is_quick: AtomicBool::new(false),
        })
    }

    fn done(&self) -> MutexGuard<'_, Done> {
        lock(&self.done)
    }

    /// A request is over.
    pub(super) fn complete(&self, completion: Completion) {
        let mut done = self.done();
        done.completions.push(completion);
        self.ring(&mut done);
    }

    /// There is something else to come for.
    pub(super) fn call(&self) {
        self.ring(&mut self.done());
    }

    fn ring(&self, done: &mut Done) {
        if std::mem::take(&mut done.armed) && !std::mem::replace(&mut done.rung, true) {
            self.bell.signal();
        }
    }

    fn has_done(&self) -> bool {
        !self.done().completions.is_empty()
    }

    /// About to sleep; unless there is something.
    fn arm(&self) -> bool {
        let mut done = self.done();
        done.armed = done.completions.is_empty();
        done.armed
    }

    /// Awake; takes what is there.
    fn take(&self, into: Option<&mut Vec<Completion>>) -> usize {
        let mut done = self.done();
        done.armed = false;
        if std::mem::take(&mut done.rung) {
            self.bell.drain();
        }
        into.map_or(0, |into| {
            let count = done.completions.len();
            into.append(&mut done.completions);
            count
        })
    }
}

/// See [`Port`].
#[derive(Debug)]
pub(super) struct ClientPort {
    inner: Arc<Inner>,
    state: Arc<PortState>,
    staged: Vec<Queued>,
    ready: Vec<Ready>,
    spin: Spin,
    /// It sleeps in a crowd, or is about to.
    in_crowd: bool,
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
            in_crowd: false,
        }
    }

    /// In a crowd others drive, and ring. `None`: there is no crowd.
    fn arm_in_crowd(&mut self) -> Option<bool> {
        if !self.inner.crowd.joins(self.state.number) {
            return None;
        }
        self.in_crowd = true;
        self.inner.lets_go(&self.state);
        let quiet = self.state.arm();
        let something = !quiet || self.state.has_done() || self.inner.can_lend_again(&self.state);
        if something {
            self.state.take(None);
            self.leave_crowd();
        }
        Some(something)
    }

    fn leave_crowd(&mut self) {
        if std::mem::take(&mut self.in_crowd) {
            self.inner.crowd.leaves();
        }
    }

    /// `false`: there is no crowd, or none any more.
    fn waits_in_crowd(&mut self, start: Instant, limit: Option<Duration>) -> bool {
        while let Some(something) = self.arm_in_crowd() {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            if !something && left != Some(Duration::ZERO) {
                self.state.waits.wait(left, &mut self.ready);
            }
            self.state.take(None);
            self.leave_crowd();
            if something || left == Some(Duration::ZERO) || self.state.has_done() {
                return true;
            }
        }
        false
    }

    /// Drives for a while; is there something to reap?
    fn spins(&mut self, limit: Option<Duration>) -> bool {
        let Some(turn) = self.inner.spinner() else {
            self.inner.gathers();
            return self.state.has_done();
        };
        self.inner.takes_watch(&self.state);
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
        drop(turn);
        self.inner.rest();
        if found {
            self.spin.found();
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
            self.inner.send_all(&mut self.staged);
        }
    }

    fn reap(&mut self, into: &mut Vec<Completion>) -> usize {
        self.push();
        self.leave_crowd();
        if self.inner.crowd.is_there() && !self.state.sleeps.load(Ordering::Relaxed) {
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
        if self.inner.crowd.is_there() {
            self.push();
            self.leave_crowd();
            if let Some(something) = self.arm_in_crowd() {
                return something;
            }
        }
        self.inner.hand_in(&mut self.staged);
        self.inner.is_back(&self.state);
        self.inner.asleep(&self.state);
        // From now on a completion rings. What has come before is looked for once more.
        let quiet = self.state.arm();
        self.inner.drive_and_sleep();
        if quiet && !self.state.has_done() && !self.inner.can_lend_again(&self.state) {
            return false;
        }
        self.state.take(None);
        self.inner.awake(&self.state);
        true
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.state.waits.as_fd()
    }

    fn wait(&mut self, limit: Option<Duration>) {
        let start = Instant::now();
        self.push();
        self.leave_crowd();
        if self.inner.crowd.is_there()
            && (self.state.has_done() || self.waits_in_crowd(start, limit))
        {
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
            self.state.waits.wait(left, &mut self.ready);
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
        self.leave_crowd();
        self.inner.drive_and_sleep();
        self.inner.awake(&self.state);
        self.inner.forget(&self.state);
    }
}
