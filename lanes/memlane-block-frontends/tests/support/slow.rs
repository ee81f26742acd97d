//! A volume that is late: it lends few leases, and what it is asked is done by a thread, last first.

use memlane_block::volume::mem::MemVolume;
use memlane_block::volume::{Done, Errno, Info, Io, Lease, Queue, Volume};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Over a volume in memory.
pub(crate) struct SlowVolume {
    pub(crate) memory: MemVolume,
    pub(crate) leases: usize,
    /// Requests that came.
    pub(crate) submitted: Arc<AtomicUsize>,
    /// Nothing is done any more.
    pub(crate) stuck: Arc<AtomicBool>,
}

impl SlowVolume {
    pub(crate) fn new(memory: MemVolume, leases: usize) -> SlowVolume {
        SlowVolume {
            memory,
            leases,
            submitted: Arc::default(),
            stuck: Arc::default(),
        }
    }
}

struct SlowQueue {
    under: Box<dyn Queue>,
    work: Sender<Io>,
    done: Arc<Mutex<VecDeque<Done>>>,
    ready: Arc<OwnedFd>,
    lent: Arc<Mutex<usize>>,
    leases: usize,
    refused: bool,
    submitted: Arc<AtomicUsize>,
}

impl Volume for SlowVolume {
    fn info(&self) -> Info {
        self.memory.info()
    }

    fn queue(&self) -> std::io::Result<Box<dyn Queue>> {
        let (work, todo) = channel::<Io>();
        let ready = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let done: Arc<Mutex<VecDeque<Done>>> = Arc::default();
        let lent: Arc<Mutex<usize>> = Arc::default();
        let mut under = self.memory.queue()?;
        let (tell, finished, given, stuck) = (
            Arc::clone(&ready),
            Arc::clone(&done),
            Arc::clone(&lent),
            Arc::clone(&self.stuck),
        );
        std::thread::spawn(move || {
            while let Ok(first) = todo.recv() {
                std::thread::sleep(Duration::from_micros(50));
                let mut ios: Vec<Io> = std::iter::once(first).chain(todo.try_iter()).collect();
                ios.reverse();
                while stuck.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                for io in ios {
                    under.submit(io);
                }
                let mut some = Vec::new();
                under.reap(&mut some);
                let mut given = given.lock().unwrap();
                *given -= some.iter().filter(|done| done.lease.is_some()).count();
                finished.lock().unwrap().extend(some);
                let _ = rustix::io::write(&*tell, &1_u64.to_ne_bytes());
            }
        });
        Ok(Box::new(SlowQueue {
            under: self.memory.queue()?,
            work,
            done,
            ready,
            lent,
            leases: self.leases,
            refused: false,
            submitted: Arc::clone(&self.submitted),
        }))
    }
}

impl Queue for SlowQueue {
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, Errno> {
        let mut lent = self.lent.lock().unwrap();
        if *lent >= self.leases {
            self.refused = true;
            return Ok(None);
        }
        self.refused = false;
        let lease = self.under.lease(len)?;
        *lent += usize::from(lease.is_some());
        Ok(lease)
    }

    fn submit(&mut self, io: Io) {
        self.work.send(io).unwrap();
        self.submitted.fetch_add(1, Ordering::SeqCst);
    }

    fn push(&mut self) {}

    fn reap(&mut self, into: &mut Vec<Done>) -> usize {
        let mut bytes = [0; 8];
        let _ = rustix::io::read(&*self.ready, &mut bytes);
        let mut done = self.done.lock().unwrap();
        let n = done.len();
        into.extend(done.drain(..));
        n
    }

    fn arm(&mut self) -> bool {
        let more = !self.done.lock().unwrap().is_empty();
        more || self.refused && *self.lent.lock().unwrap() < self.leases
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn wait(&mut self, _limit: Option<Duration>) {
        let mut fds = [PollFd::from_borrowed_fd(self.ready.as_fd(), PollFlags::IN)];
        let _ = poll(&mut fds, None);
    }
}
