//! A connection with nothing to do leaves its queue alone, and hears it once when it rings.

mod nbd_support;

use memlane_block::volume::mem::MemVolume;
use memlane_block::volume::{Done, Errno, Info, Io, Lease, Queue, Volume};
use nbd_support::{PATIENCE, Served};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SIZE: u64 = 1 << 20;

/// How often a queue was asked, and what wakes who sleeps on it.
struct Counts {
    reaps: AtomicU64,
    arms: AtomicU64,
    bell: OwnedFd,
}

struct Counted {
    volume: MemVolume,
    counts: Arc<Counts>,
}

struct CountedQueue {
    queue: Box<dyn Queue>,
    counts: Arc<Counts>,
}

impl Volume for Counted {
    fn info(&self) -> Info {
        self.volume.info()
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        let (queue, counts) = (self.volume.queue()?, Arc::clone(&self.counts));
        Ok(Box::new(CountedQueue { queue, counts }))
    }
}

impl Queue for CountedQueue {
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, Errno> {
        self.queue.lease(len)
    }

    fn submit(&mut self, io: Io) {
        self.queue.submit(io);
    }

    fn push(&mut self) {
        self.queue.push();
    }

    /// Whatever rang was for this.
    fn reap(&mut self, into: &mut Vec<Done>) -> usize {
        self.counts.reaps.fetch_add(1, Ordering::SeqCst);
        let _ = rustix::io::read(&self.counts.bell, &mut [0; 8]);
        self.queue.reap(into)
    }

    fn arm(&mut self) -> bool {
        self.counts.arms.fetch_add(1, Ordering::SeqCst);
        self.queue.arm()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.counts.bell.as_fd()
    }

    fn wait(&mut self, limit: Option<Duration>) {
        self.queue.wait(limit);
    }
}

fn counted() -> (Served, Arc<Counts>) {
    let counts = Arc::new(Counts {
        reaps: AtomicU64::new(0),
        arms: AtomicU64::new(0),
        bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
    });
    let volume = Counted {
        volume: MemVolume::new(SIZE).unwrap(),
        counts: Arc::clone(&counts),
    };
    (Served::volume(volume), counts)
}

#[test]
fn a_queue_is_asked_only_while_something_is_under_way() {
    const READS: u64 = 200;
    let (served, counts) = counted();
    let mut raw = served.client(true);
    for n in 0..READS {
        assert_eq!(raw.read(n * 512, 512).error, 0);
    }
    // One time for each, and one more for each before which the connection slept.
    let reaps = counts.reaps.load(Ordering::SeqCst);
    assert!(reaps < 2 * READS, "{reaps} times for {READS} reads");
}

#[test]
fn a_queue_that_rings_for_nothing_wakes_an_idle_connection_once() {
    let (served, counts) = counted();
    let mut raw = served.client(true);
    assert_eq!(raw.read(0, 512).error, 0);
    let arms = || counts.arms.load(Ordering::SeqCst);
    let begin = Instant::now();
    while arms() == 0 {
        assert!(begin.elapsed() < PATIENCE, "it never sleeps on its queue");
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = (arms(), counts.reaps.load(Ordering::SeqCst));
    rustix::io::write(&counts.bell, &1_u64.to_ne_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let (armed, reaped) = (
        arms() - before.0,
        counts.reaps.load(Ordering::SeqCst) - before.1,
    );
    assert!(reaped >= 1, "nobody came");
    assert!(armed + reaped < 50, "{armed} + {reaped} times");
    assert_eq!(raw.read(512, 512).error, 0);
}
