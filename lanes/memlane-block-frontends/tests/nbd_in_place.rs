//! Large payloads that are received to where the volume has their bytes, and sent from there, while the volume changes its mind
//! about whether that can be done.

mod nbd_support;

use memlane_block::store::{Backing, StoreKind};
use memlane_block::volume::local::LocalVolume;
use memlane_block::volume::{Done, Errno, Info, Io, Lease, Op, Queue, Volume};
use memlane_block_frontends::nbd::wire::{cmd, error};
use memlane_core::access::SharedBytes;
use nbd_support::{PATIENCE, Served, noise};
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SIZE: usize = 8 << 20;
const MIB: u32 = 1 << 20;

/// What a volume says to those who want its memory.
#[derive(Clone, Debug)]
enum Mind {
    Yes,
    No,
    /// One answer after the other, and again from the first on. `None`: no; else as many bytes at most.
    ByTurns(Vec<Option<u16>>),
    /// What was moved is lost.
    Lost,
}

/// A volume as its test sees and changes it.
struct Whims {
    mind: Mutex<Mind>,
    /// How often its memory was asked for.
    asked: AtomicU64,
    /// Bytes that were moved there.
    moved: AtomicU64,
    /// Ordinary requests.
    submitted: AtomicU64,
    /// They fail.
    fails: AtomicBool,
    /// Writes among them are begun later.
    holds: AtomicBool,
    /// There is no lease.
    is_full: AtomicBool,
    /// Of all queues. It rings on once it has been rung: whoever waits for a queue looks again and again.
    bell: OwnedFd,
}

impl Whims {
    fn change(&self, to: Mind) {
        *self.mind.lock().unwrap() = to;
    }

    fn set(&self, what: &AtomicBool, to: bool) {
        what.store(to, Ordering::SeqCst);
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).unwrap();
    }

    fn moved(&self) -> u64 {
        self.moved.load(Ordering::SeqCst)
    }

    /// Waits until `count` has grown, and then does not grow any more.
    fn settle(&self, count: &AtomicU64) -> u64 {
        let (begin, mut last, mut since) = (Instant::now(), 0, Instant::now());
        while last == 0 || since.elapsed() < Duration::from_millis(100) {
            assert!(begin.elapsed() < PATIENCE, "nothing happens");
            let now = count.load(Ordering::SeqCst);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        last
    }
}

struct Fickle {
    volume: LocalVolume,
    whims: Arc<Whims>,
}

struct FickleQueue {
    queue: Box<dyn Queue>,
    whims: Arc<Whims>,
    held: Vec<Io>,
    failed: Vec<Done>,
}

impl Volume for Fickle {
    fn info(&self) -> Info {
        self.volume.info()
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(FickleQueue {
            queue: self.volume.queue()?,
            whims: Arc::clone(&self.whims),
            held: Vec::new(),
            failed: Vec::new(),
        }))
    }
}

impl FickleQueue {
    fn is(&self, what: &AtomicBool) -> bool {
        what.load(Ordering::SeqCst)
    }

    fn begin_held(&mut self) {
        if !self.is(&self.whims.holds) {
            for io in self.held.drain(..) {
                self.queue.submit(io);
            }
        }
    }
}

impl Queue for FickleQueue {
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, Errno> {
        match self.is(&self.whims.is_full) {
            true => Ok(None),
            false => self.queue.lease(len),
        }
    }

    fn in_place(
        &mut self,
        op: Op,
        place: (u64, u32),
        moves: &mut dyn FnMut(SharedBytes) -> usize,
    ) -> Result<Option<usize>, Errno> {
        let asked = self.whims.asked.fetch_add(1, Ordering::SeqCst);
        let mind = self.whims.mind.lock().unwrap().clone();
        let most = match &mind {
            Mind::Yes | Mind::Lost => usize::MAX,
            Mind::No => return Ok(None),
            Mind::ByTurns(answers) => {
                let turn = usize::try_from(asked).unwrap() % answers.len();
                match answers[turn] {
                    None => return Ok(None),
                    Some(most) => usize::from(most),
                }
            }
        };
        let moved = self.queue.in_place(op, place, &mut |bytes| {
            let len = bytes.len().min(most);
            moves(bytes.part(0, len).unwrap())
        })?;
        let n = moved.unwrap_or(0);
        self.whims.moved.fetch_add(n as u64, Ordering::SeqCst);
        match (mind, n) {
            (Mind::Lost, 1..) => Err(Errno(libc::EIO)),
            _ => Ok(moved),
        }
    }

    fn submit(&mut self, io: Io) {
        self.whims.submitted.fetch_add(1, Ordering::SeqCst);
        if io.op == Op::Write && self.is(&self.whims.holds) {
            self.held.push(io);
        } else if self.is(&self.whims.fails) {
            self.failed.push(Done {
                tag: io.tag,
                result: Err(Errno(libc::EIO)),
                lease: io.lease,
            });
        } else {
            self.queue.submit(io);
        }
    }

    fn push(&mut self) {
        self.queue.push();
    }

    fn reap(&mut self, into: &mut Vec<Done>) -> usize {
        self.begin_held();
        let failed = self.failed.len();
        into.append(&mut self.failed);
        failed + self.queue.reap(into)
    }

    fn arm(&mut self) -> bool {
        let can_begin = !self.held.is_empty() && !self.is(&self.whims.holds);
        can_begin || !self.failed.is_empty() || self.queue.arm()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.whims.bell.as_fd()
    }

    fn wait(&mut self, limit: Option<Duration>) {
        self.queue.wait(limit);
    }
}

fn served(mind: Mind) -> (Served, Arc<Whims>, LocalVolume) {
    let whims = Arc::new(Whims {
        mind: Mutex::new(mind),
        asked: AtomicU64::new(0),
        moved: AtomicU64::new(0),
        submitted: AtomicU64::new(0),
        fails: AtomicBool::new(false),
        holds: AtomicBool::new(false),
        is_full: AtomicBool::new(false),
        bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
    });
    let memory = Backing::memory(SIZE as u64, "fickle").unwrap();
    let volume = LocalVolume::over(memory, StoreKind::Threads);
    let fickle = Fickle {
        volume: volume.clone(),
        whims: Arc::clone(&whims),
    };
    (Served::volume(fickle), whims, volume)
}

#[test]
fn a_large_payload_needs_a_lease_only_for_its_end() {
    let (served, whims, volume) = served(Mind::Yes);
    for structured in [true, false] {
        let mut raw = served.client(structured);
        let (moved, submitted) = (whims.moved(), whims.submitted.load(Ordering::SeqCst));
        let (at, bytes) = (3 * u64::from(MIB), noise(2 << 20, u64::from(structured)));
        assert_eq!(raw.write(at, &bytes).error, 0);
        let reply = raw.read(at, 2 * MIB);
        assert!(reply.data == bytes, "what was written");
        assert_eq!(reply.chunks, u32::from(structured));
        // Both ends, what was read ahead with the request, and blocks of which a part had come.
        let ordinary = 2 * (2 << 20) - (whims.moved() - moved);
        assert!((2 * 4096..256 << 10).contains(&ordinary), "{ordinary}");
        let submitted = whims.submitted.load(Ordering::SeqCst) - submitted;
        assert!((2..32).contains(&submitted), "{submitted}");
    }
    let stats = volume.stats();
    assert_eq!(stats.reads, 2);
    let bytes = 2 * (2 << 20);
    assert_eq!((stats.read_bytes, stats.write_bytes), (bytes, bytes));
}

#[test]
fn a_reply_that_is_half_sent_goes_on_by_leases_when_the_volume_is_taken_back() {
    let (served, whims, _) = served(Mind::Yes);
    let bytes = noise(4 << 20, 1);
    for structured in [true, false] {
        whims.change(Mind::Yes);
        let mut raw = served.client(structured);
        assert_eq!(raw.write(0, &bytes).error, 0);
        let moved = whims.moved();
        let cookie = raw.ask(cmd::READ, 0, 0, 4 * MIB, &[]);
        whims.settle(&whims.asked);
        let sent = whims.moved() - moved;
        assert!((1..4 << 20).contains(&sent), "{sent}");
        whims.change(Mind::No);
        // For a while, there is no memory either.
        whims.set(&whims.is_full, true);
        let before = whims.submitted.load(Ordering::SeqCst);
        let late = Arc::clone(&whims);
        let relief = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            late.set(&late.is_full, false);
        });
        let (told, reply) = raw.reply();
        relief.join().unwrap();
        assert_eq!((told, reply.error), (cookie, 0));
        assert!(reply.data == bytes, "the same bytes");
        let fetched = whims.submitted.load(Ordering::SeqCst) - before;
        assert!((2..=17).contains(&fetched), "by {fetched} requests");
        assert!(raw.read(1 << 20, MIB).data == bytes[1 << 20..2 << 20]);
    }
}

#[test]
fn a_reply_that_cannot_be_ended_ends_the_connection() {
    let (served, whims, _) = served(Mind::Yes);
    let mut raw = served.client(true);
    raw.ask(cmd::READ, 0, 0, 4 * MIB, &[]);
    whims.settle(&whims.asked);
    whims.change(Mind::No);
    whims.set(&whims.fails, true);
    let mut came = 0;
    while let Ok(n @ 1..) = io::Read::read(&mut raw.stream, &mut [0; 4096]) {
        came += n;
    }
    assert!((1..4 << 20).contains(&came), "{came} bytes came");
    served.until("nobody is there", |now| now.connections.is_empty());
    whims.set(&whims.fails, false);
    assert_eq!(served.client(true).read(0, MIB).error, 0);
}

#[test]
fn a_reply_whose_bytes_were_zeroes_of_a_file_that_became_shorter_is_not_ended() {
    let (served, whims, _) = served(Mind::Lost);
    let mut raw = served.client(true);
    raw.ask(cmd::READ, 0, 0, MIB, &[]);
    let mut came = 0;
    while let Ok(n @ 1..) = io::Read::read(&mut raw.stream, &mut [0; 4096]) {
        came += n;
    }
    assert!(came < MIB as usize, "{came} bytes came");
    whims.change(Mind::Yes);
    assert_eq!(served.client(true).read(0, MIB).error, 0);
}

#[test]
fn a_payload_that_is_lost_fails_its_request_and_the_next_is_served() {
    let (served, whims, _) = served(Mind::Lost);
    let mut raw = served.client(true);
    let bytes = noise(1 << 20, 2);
    assert_eq!(raw.write(0, &bytes).error, error::EIO);
    whims.change(Mind::Yes);
    assert_eq!(raw.write(0, &bytes).error, 0);
    assert!(raw.read(0, MIB).data == bytes);
}

#[test]
fn a_client_that_stops_amid_a_payload_keeps_nobody_from_its_blocks() {
    let (served, whims, _) = served(Mind::Yes);
    let (mut stops, mut other) = (served.client(true), served.client(true));
    let (bytes, part) = (noise(1 << 20, 3), noise(100, 4));
    let (first, rest) = bytes.split_at(300_000);
    let cookie = stops.ask(cmd::WRITE, 0, 0, MIB, first);
    assert!(whims.settle(&whims.moved) > 1 << 17);
    assert_eq!(other.write(1000, &part).error, 0);
    stops.send(rest);
    let (told, reply) = stops.reply();
    assert_eq!((told, reply.error), (cookie, 0));
    let mut expected = bytes;
    expected[1000..1100].copy_from_slice(&part);
    assert!(stops.read(0, MIB).data == expected);
}

#[test]
fn a_client_that_dies_amid_a_payload_leaves_no_block_half_written() {
    let (served, _, _) = served(Mind::Yes);
    for (round, sent) in [
        (1_u8, 300_000),
        (2, 200_001),
        (3, 512 * 300 + 17),
        (4, 131_100),
    ] {
        let at = u64::from(round) * u64::from(MIB);
        let mut dies = served.client(true);
        dies.ask(cmd::WRITE, 0, at, MIB, &[]);
        for part in vec![round; sent].chunks(70_001) {
            dies.send(part);
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(dies);
        served.until("it is gone", |now| now.connections.is_empty());
        let found = served.client(true).read(at, MIB).data;
        let whole = found.iter().take_while(|byte| **byte == round).count();
        assert_eq!(whole % 512, 0, "{sent} bytes were sent");
        assert!((sent / 2..=sent).contains(&whole), "{whole} of {sent}");
        assert!(found[whole..].iter().all(|byte| *byte == 0));
        served.until("it is gone", |now| now.connections.is_empty());
    }
}

#[test]
fn a_part_of_a_block_that_is_being_changed_does_not_undo_a_payload() {
    let (served, whims, _) = served(Mind::Yes);
    let (mut patches, mut writes) = (served.client(true), served.client(true));
    let (bytes, part) = (noise(1 << 20, 5), noise(100, 6));
    whims.set(&whims.holds, true);
    let of_part = patches.ask(cmd::WRITE, 0, 600_200, 100, &part);
    assert_eq!(whims.settle(&whims.submitted), 2, "it has read the block");
    let of_all = writes.ask(cmd::WRITE, 0, 0, MIB, &bytes);
    whims.settle(&whims.asked);
    whims.set(&whims.holds, false);
    for (client, cookie) in [(&mut patches, of_part), (&mut writes, of_all)] {
        let (told, reply) = client.reply();
        assert_eq!((told, reply.error), (cookie, 0));
    }
    assert!(writes.read(0, MIB).data == bytes, "the later write counts");
}

#[derive(Clone, Debug)]
struct Step {
    writes: bool,
    at: usize,
    len: usize,
    seed: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let at = prop_oneof![0..SIZE, (0..SIZE / 512).prop_map(|n| n * 512)];
    let len = prop_oneof![1..600_000_usize, (1..1200_usize).prop_map(|n| n * 512)];
    (any::<bool>(), at, len, any::<u64>()).prop_map(|(writes, at, len, seed)| Step {
        writes,
        at,
        len: len.min(SIZE - at),
        seed,
    })
}

fn answer() -> impl Strategy<Value = Option<u16>> {
    prop_oneof![2 => Just(Some(u16::MAX)), 2 => (1..u16::MAX).prop_map(Some), 1 => Just(None)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn whatever_the_volume_says_its_bytes_are_those_of_a_plain_vector(
        steps in prop::collection::vec(step(), 1..24),
        answers in prop::collection::vec(answer(), 1..9),
        structured in any::<bool>(),
    ) {
        let (served, _, _) = served(Mind::ByTurns(answers));
        let mut raw = served.client(structured);
        let mut model = vec![0; SIZE];
        for step in &steps {
            let (at, end) = (step.at as u64, step.at + step.len);
            if step.writes {
                let bytes = noise(step.len, step.seed);
                prop_assert_eq!(raw.write(at, &bytes).error, 0);
                model[step.at..end].copy_from_slice(&bytes);
            } else {
                let reply = raw.read(at, u32::try_from(step.len).unwrap());
                prop_assert_eq!(reply.error, 0);
                prop_assert!(reply.data == model[step.at..end], "{:?}", step);
            }
        }
        let whole = raw.read(0, u32::try_from(SIZE).unwrap());
        prop_assert!(whole.data == model, "in the end");
    }
}
