//! A connection with nothing to do leaves its queue alone, and hears it once when it rings; one with something under way
//! works for it before it sleeps.

mod nbd_support;

use memlane_block::volume::mem::MemVolume;
use memlane_block::volume::{Done, Errno, Info, Io, Lease, Queue, Volume};
use memlane_block_frontends::nbd::wire::cmd;
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
    lingers: AtomicU64,
    /// What is done becomes known only in `linger`.
    lazy: bool,
    bell: OwnedFd,
}

struct Counted {
    volume: MemVolume,
    counts: Arc<Counts>,
}

struct CountedQueue {
    queue: Box<dyn Queue>,
    counts: Arc<Counts>,
    hidden: bool,
}

impl Volume for Counted {
    fn info(&self) -> Info {
        self.volume.info()
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        let (queue, counts) = (self.volume.queue()?, Arc::clone(&self.counts));
        Ok(Box::new(CountedQueue {
            queue,
            counts,
            hidden: false,
        }))
    }
}

impl Queue for CountedQueue {
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, Errno> {
        self.queue.lease(len)
    }

    fn submit(&mut self, io: Io) {
        self.hidden = self.counts.lazy;
        self.queue.submit(io);
    }

    fn push(&mut self) {
        self.queue.push();
    }

    /// Whatever rang was for this.
    fn reap(&mut self, into: &mut Vec<Done>) -> usize {
        self.counts.reaps.fetch_add(1, Ordering::SeqCst);
        let _ = rustix::io::read(&self.counts.bell, &mut [0; 8]);
        if self.hidden {
            0
        } else {
            self.queue.reap(into)
        }
    }

    fn arm(&mut self) -> bool {
        self.counts.arms.fetch_add(1, Ordering::SeqCst);
        !self.hidden && self.queue.arm()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.counts.bell.as_fd()
    }

    fn wait(&mut self, limit: Option<Duration>) {
        self.queue.wait(limit);
    }

    fn linger(&mut self, _: Duration) -> bool {
        self.counts.lingers.fetch_add(1, Ordering::SeqCst);
        std::mem::take(&mut self.hidden)
    }
}

fn counted(lazy: bool) -> (Served, Arc<Counts>) {
    let counts = Arc::new(Counts {
        reaps: AtomicU64::new(0),
        arms: AtomicU64::new(0),
        lingers: AtomicU64::new(0),
        lazy,
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
    let (served, counts) = counted(false);
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
    let (served, counts) = counted(false);
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

#[test]
fn a_connection_works_for_what_is_under_way_before_it_sleeps() {
    const READS: u64 = 20;
    let (served, counts) = counted(true);
    let mut raw = served.client(true);
    for n in 0..READS {
        // Nothing else would ever bring the answer.
        assert_eq!(raw.read(n * 512, 512).error, 0);
    }
    let lingers = counts.lingers.load(Ordering::SeqCst);
    assert!(lingers >= READS, "{lingers} times for {READS} reads");
    // With nothing under way, it does not.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(counts.lingers.load(Ordering::SeqCst), lingers);
}

#[test]
fn a_connection_takes_a_payload_that_comes_before_it_works_for_what_is_under_way() {
    let (served, counts) = counted(true);
    let mut raw = served.client(true);
    let payload = vec![7; usize::try_from(SIZE).unwrap()];
    let (most, rest) = payload.split_at(payload.len() / 8 * 7);
    let len = u32::try_from(SIZE).unwrap();
    let cookie = raw.ask(cmd::WRITE, 0, 0, len, most);
    let begin = Instant::now();
    // A queue is asked only while something is under way: the first pieces of the payload.
    while counts.reaps.load(Ordering::SeqCst) == 0 {
        assert!(begin.elapsed() < PATIENCE, "no piece was given out");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(counts.lingers.load(Ordering::SeqCst), 0);
    raw.send(rest);
    let (told, reply) = raw.reply();
    assert_eq!((told, reply.error), (cookie, 0));
    assert!(counts.lingers.load(Ordering::SeqCst) > 0);
}
