//! A connection with nothing to do leaves its queue alone, and is not woken by it. One with something under way works for
//! it before it sleeps, and hears the queue once when it rings.

mod nbd_support;

use memlane_block::volume::mem::MemVolume;
use memlane_block::volume::{Done, Errno, Info, Io, Lease, Queue, Volume};
use memlane_block_frontends::nbd::wire::cmd;
use nbd_support::{PATIENCE, Served};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SIZE: u64 = 1 << 20;

/// How often a queue was asked, and what wakes who sleeps on it.
struct Counts {
    reaps: AtomicU64,
    arms: AtomicU64,
    lingers: AtomicU64,
    /// What is done becomes known only in `linger`.
    lazy: bool,
    /// Not even there.
    stuck: AtomicBool,
    /// All its memory is in use.
    full: AtomicBool,
    /// How often its descriptor was asked for: once for each sleep.
    sleeps: AtomicU64,
    bell: OwnedFd,
}

impl Counts {
    fn ring(&self) {
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).unwrap();
    }

    /// How often the queue was armed, and asked.
    fn armed_and_reaped(&self) -> (u64, u64) {
        let count = |of: &AtomicU64| of.load(Ordering::SeqCst);
        (count(&self.arms), count(&self.reaps))
    }
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
        match self.counts.full.load(Ordering::SeqCst) {
            true => Ok(None),
            false => self.queue.lease(len),
        }
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
        if self.is_hidden() {
            0
        } else {
            self.queue.reap(into)
        }
    }

    fn arm(&mut self) -> bool {
        self.counts.arms.fetch_add(1, Ordering::SeqCst);
        !self.is_hidden() && self.queue.arm()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.counts.sleeps.fetch_add(1, Ordering::SeqCst);
        self.counts.bell.as_fd()
    }

    fn wait(&mut self, limit: Option<Duration>) {
        self.queue.wait(limit);
    }

    fn linger(&mut self, _: Duration) -> bool {
        self.counts.lingers.fetch_add(1, Ordering::SeqCst);
        std::mem::take(&mut self.hidden) && !self.is_hidden()
    }
}

impl CountedQueue {
    fn is_hidden(&self) -> bool {
        self.hidden || self.counts.stuck.load(Ordering::SeqCst)
    }
}

fn counted(lazy: bool) -> (Served, Arc<Counts>) {
    let counts = Arc::new(Counts {
        reaps: AtomicU64::new(0),
        arms: AtomicU64::new(0),
        lingers: AtomicU64::new(0),
        lazy,
        stuck: AtomicBool::new(false),
        full: AtomicBool::new(false),
        sleeps: AtomicU64::new(0),
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
fn a_connection_with_nothing_under_way_is_not_woken_by_its_queue() {
    let (served, counts) = counted(false);
    let mut raw = served.client(true);
    assert_eq!(raw.read(0, 512).error, 0);
    std::thread::sleep(Duration::from_millis(100));
    let before = counts.armed_and_reaped();
    counts.ring();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(counts.armed_and_reaped(), before);
    let sleeps = counts.sleeps.load(Ordering::SeqCst);
    assert!(sleeps < 50, "it lay down {sleeps} times");
    assert_eq!(raw.read(512, 512).error, 0);
}

#[test]
fn a_connection_that_waits_for_memory_is_woken_by_its_queue() {
    let (served, counts) = counted(false);
    counts.full.store(true, Ordering::SeqCst);
    let mut raw = served.client(true);
    let cookie = raw.ask(cmd::READ, 0, 0, 512, &[]);
    let begin = Instant::now();
    while counts.armed_and_reaped().0 == 0 {
        assert!(begin.elapsed() < PATIENCE, "it never sleeps on its queue");
        std::thread::sleep(Duration::from_millis(1));
    }
    counts.full.store(false, Ordering::SeqCst);
    counts.ring();
    let (told, reply) = raw.reply();
    assert_eq!((told, reply.error), (cookie, 0));
}

#[test]
fn a_queue_that_rings_for_nothing_wakes_a_connection_that_waits_for_it_once() {
    let (served, counts) = counted(false);
    counts.stuck.store(true, Ordering::SeqCst);
    let mut raw = served.client(true);
    let cookie = raw.ask(cmd::READ, 0, 0, 512, &[]);
    let begin = Instant::now();
    while counts.armed_and_reaped().0 == 0 {
        assert!(begin.elapsed() < PATIENCE, "it never sleeps on its queue");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(100));
    let before = counts.armed_and_reaped();
    counts.ring();
    std::thread::sleep(Duration::from_millis(300));
    let after = counts.armed_and_reaped();
    let (armed, reaped) = (after.0 - before.0, after.1 - before.1);
    assert!(reaped >= 1, "nobody came");
    assert!(armed + reaped < 50, "{armed} + {reaped} times");
    counts.stuck.store(false, Ordering::SeqCst);
    counts.ring();
    let (told, reply) = raw.reply();
    assert_eq!((told, reply.error), (cookie, 0));
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
