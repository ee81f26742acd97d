//! What the leader of a session needs of each port: its results, and how to wake its thread.

use super::address::{Epoll, Interest};
use crate::port::Completion;
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard};

/// What the leader of the session needs of a port.
#[derive(Debug)]
pub(super) struct PortState {
    /// Which of a session's ports.
    pub(super) number: u64,
    /// Which connection its requests prefer.
    pub(super) hint: u16,
    done: Mutex<Done>,
    /// Signalled when there is something to reap and its owner sleeps.
    event: EventFd,
    /// That event, and, if this port is the poller, the session's sockets.
    pub(super) epoll: Epoll,
    /// It is among those that sleep. Written and read by its own thread.
    pub(super) sleeps: AtomicBool,
    /// When it was last awake with something to do, in nanoseconds. Its own thread's, as the next.
    pub(super) left: AtomicU64,
    /// Last time it was back at once.
    pub(super) is_quick: AtomicBool,
}

#[derive(Debug, Default)]
struct Done {
    completions: Vec<Completion>,
    /// Its owner is about to sleep.
    armed: bool,
    /// The event was signalled, and not drained yet.
    signalled: bool,
}

impl PortState {
    pub(super) fn new(number: u64) -> rustix::io::Result<PortState> {
        let (event, epoll) = (EventFd::new()?, Epoll::new()?);
        epoll.add(&event, 0, Interest::READ)?;
        Ok(PortState {
            number,
            hint: u16::try_from(number % (1 << 16)).unwrap_or(0),
            done: Mutex::default(),
            event,
            epoll,
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
        self.signal(&mut done);
    }

    /// There is something else to come for.
    pub(super) fn call(&self) {
        self.signal(&mut self.done());
    }

    fn signal(&self, done: &mut Done) {
        if std::mem::take(&mut done.armed) && !std::mem::replace(&mut done.signalled, true) {
            self.event.signal();
        }
    }

    pub(super) fn has_done(&self) -> bool {
        !self.done().completions.is_empty()
    }

    /// About to sleep; unless there is something.
    pub(super) fn arm(&self) -> bool {
        let mut done = self.done();
        done.armed = done.completions.is_empty();
        done.armed
    }

    /// Awake; takes what is there.
    pub(super) fn take(&self, into: Option<&mut Vec<Completion>>) -> usize {
        let mut done = self.done();
        done.armed = false;
        if std::mem::take(&mut done.signalled) {
            self.event.drain();
        }
        into.map_or(0, |into| {
            let count = done.completions.len();
            into.append(&mut done.completions);
            count
        })
    }
}
