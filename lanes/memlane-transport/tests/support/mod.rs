//! A disk that remembers what was done to it, users that check every byte, and a proxy that breaks things.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::cast_possible_truncation,
    reason = "each test program uses a part of it"
)]

pub mod proxy;

use memlane_core::access::SharedBytes;
use memlane_transport::engine::client::Config as ClientEngine;
use memlane_transport::engine::pulse::Heartbeat;
use memlane_transport::engine::server::{Config as ServerEngine, Job, SessionId};
use memlane_transport::engine::{Direction, backoff::Backoff};
use memlane_transport::io::{
    Address, ClientConfig, ClientSession, PathAddr, Server, ServerConfig, open, serve,
};
use memlane_transport::lease::Lease;
use memlane_transport::message::Message;
use memlane_transport::port::{
    Completion, Finished, Identity, News, Port, Service, Session, Submission,
};
use memlane_transport::wire::Geometry;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const CHUNK: u32 = 64 << 10;
pub const HEADER: u32 = 4096;
pub const MOST: u32 = CHUNK - HEADER;
/// No wait in a test is longer.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// splitmix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let a = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        b ^ (b >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Blocks by number, and how often each request was executed.
#[derive(Default)]
pub struct Disk {
    pub blocks: Mutex<HashMap<u64, Vec<u8>>>,
    pub executed: Mutex<HashMap<u64, u32>>,
    pub gone: AtomicU64,
    pub notice: Mutex<Option<u32>>,
}

/// How a service of a disk behaves.
#[derive(Clone, Copy, Default)]
pub struct Manners {
    /// Jobs take so long, by turns.
    pub slow: Option<Duration>,
    /// Names that begin with `!` are refused.
    pub picky: bool,
}

pub struct DiskService {
    disk: Arc<Disk>,
    manners: Manners,
    bell: OwnedFd,
    late: Vec<(Instant, Job, SharedBytes)>,
    done: Vec<Finished>,
    sessions: Vec<SessionId>,
}

impl DiskService {
    pub fn new(disk: Arc<Disk>, manners: Manners) -> DiskService {
        DiskService {
            disk,
            manners,
            // A slow one is asked all the time: its descriptor is always readable.
            bell: eventfd(
                u32::from(manners.slow.is_some()),
                EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC,
            )
            .expect("an eventfd"),
            late: Vec::new(),
            done: Vec::new(),
            sessions: Vec::new(),
        }
    }

    fn perform(&mut self, job: &Job, chunk: SharedBytes) {
        let word = |at: usize| u64::from_le_bytes(job.usr[at..at + 8].try_into().expect("8 bytes"));
        let (block, id) = (word(0), word(8));
        *self.disk.executed.lock().unwrap().entry(id).or_insert(0) += 1;
        let mut blocks = self.disk.blocks.lock().unwrap();
        let mut bytes = vec![0; job.len as usize];
        match job.direction {
            Direction::Write => {
                // SAFETY: `bytes` is as long as is said.
                assert!(unsafe { chunk.copy_out(0, bytes.as_mut_ptr(), bytes.len()) });
                blocks.insert(block, bytes);
            }
            Direction::Read => {
                let have = blocks.get(&block).cloned().unwrap_or_default();
                let len = have.len().min(bytes.len());
                bytes[..len].copy_from_slice(&have[..len]);
                // SAFETY: as above.
                assert!(unsafe { chunk.copy_in(0, bytes.as_ptr(), bytes.len()) });
            }
        }
        self.done.push(Finished {
            session: job.session,
            permit: job.permit,
            generation: job.generation,
            errno: if block == u64::MAX { 28 } else { 0 },
        });
    }
}

impl Service for DiskService {
    fn opened(&mut self, session: SessionId, name: &str, _: &Identity) -> bool {
        let welcome = !(self.manners.picky && name.starts_with('!'));
        if welcome && !self.sessions.contains(&session) {
            self.sessions.push(session);
        }
        welcome
    }

    fn execute(&mut self, job: Job, chunk: SharedBytes) {
        match self.manners.slow {
            Some(time) if job.generation.is_multiple_of(2) => {
                self.late.push((Instant::now() + time, job, chunk));
            }
            _ => self.perform(&job, chunk),
        }
    }

    fn finished(&mut self, into: &mut Vec<Finished>) {
        let now = Instant::now();
        let (due, late) = std::mem::take(&mut self.late)
            .into_iter()
            .partition(|(at, ..)| *at <= now);
        self.late = late;
        let due: Vec<_> = due;
        due.iter()
            .for_each(|(_, job, chunk)| self.perform(job, *chunk));
        into.append(&mut self.done);
    }

    fn notices(&mut self, into: &mut Vec<(SessionId, u32)>) {
        if let Some(what) = self.disk.notice.lock().unwrap().take() {
            into.extend(self.sessions.iter().map(|session| (*session, what)));
        }
    }

    fn gone(&mut self, _: SessionId) {
        self.disk.gone.fetch_add(1, Ordering::SeqCst);
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }
}

pub fn heartbeat() -> Heartbeat {
    Heartbeat {
        interval: Duration::from_millis(150),
        patience: Duration::from_millis(600),
    }
}

pub fn server_engine(born: u64) -> ServerEngine {
    let geometry = Geometry::new(32, CHUNK, HEADER).expect("a geometry");
    ServerEngine {
        heartbeat: heartbeat(),
        ..ServerEngine::new(geometry, born)
    }
}

pub fn tcp() -> Address {
    Address::Tcp(([127, 0, 0, 1], 0).into())
}

pub fn local() -> Address {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Address::Local(format!("memlane-test-{}-{count}", std::process::id()))
}

pub fn start(disk: &Arc<Disk>, listen: Vec<Address>, manners: Manners) -> Server {
    start_with(disk, ServerConfig::new(listen, server_engine(1)), manners)
}

/// A server that never asks whether anybody is there: when it closes a connection, that is for what came by it.
pub fn start_patient(disk: &Arc<Disk>, listen: Vec<Address>) -> Server {
    let mut config = ServerConfig::new(listen, server_engine(1));
    config.engine.heartbeat = Heartbeat {
        interval: Duration::from_secs(1000),
        patience: Duration::from_secs(1000),
    };
    start_with(disk, config, Manners::default())
}

pub fn start_with(disk: &Arc<Disk>, config: ServerConfig, manners: Manners) -> Server {
    let disk = Arc::clone(disk);
    serve(config, move |_| {
        Ok(DiskService::new(Arc::clone(&disk), manners))
    })
    .expect("a server")
}

pub fn client_engine(name: &str) -> ClientEngine {
    let mut uuid = [7; 16];
    uuid[..8].copy_from_slice(
        &memlane_sys::proc::random_u64()
            .expect("random")
            .to_le_bytes(),
    );
    ClientEngine {
        heartbeat: heartbeat(),
        backoff: Backoff {
            first: Duration::from_millis(20),
            most: Duration::from_millis(200),
        },
        ..ClientEngine::new(name, uuid)
    }
}

pub fn connect(paths: &[&Address]) -> Arc<ClientSession> {
    let engine = client_engine("test");
    let paths = paths.iter().map(|to| PathAddr::to((*to).clone())).collect();
    open(ClientConfig { engine, paths }).expect("a session")
}

/// Waits until `what` says so.
#[track_caller]
pub fn until(name: &str, mut what: impl FnMut() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < PATIENCE, "never: {name}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The next news that `wanted` wants.
#[track_caller]
pub fn hear(session: &ClientSession, wanted: impl Fn(&News) -> bool) -> News {
    let mut heard = None;
    until("the news", || {
        heard = session.news().filter(|news| wanted(news));
        heard.is_some()
    });
    heard.expect("heard")
}

static IDS: AtomicU64 = AtomicU64::new(1);

/// One thread's port, with what it knows about its blocks.
pub struct User {
    pub port: Box<dyn Port>,
    first_block: u64,
    known: HashMap<u64, Vec<u8>>,
    under_way: HashMap<u64, (u64, Option<Vec<u8>>)>,
    pub ids: Vec<u64>,
    rng: Rng,
    done: Vec<Completion>,
}

pub fn usr(block: u64, id: u64) -> Message {
    let mut usr = block.to_le_bytes().to_vec();
    usr.extend(id.to_le_bytes());
    usr.into()
}

impl User {
    pub fn new(session: &dyn Session, seed: u64) -> User {
        User {
            port: session.port().expect("a port"),
            first_block: seed << 16,
            known: HashMap::new(),
            under_way: HashMap::new(),
            ids: Vec::new(),
            rng: Rng(seed),
            done: Vec::new(),
        }
    }

    #[track_caller]
    pub fn lease(&mut self, len: u32) -> Lease {
        let start = Instant::now();
        loop {
            if let Some(lease) = self.port.lease(len).expect("not too long") {
                return lease;
            }
            assert!(start.elapsed() < PATIENCE, "no lease");
            self.port.wait(Some(Duration::from_millis(20)));
            self.reap();
        }
    }

    /// Puts in a write or a read of a block that nothing is under way for.
    pub fn ask(&mut self) {
        let blocks = 64;
        let block = self.first_block + self.rng.below(blocks);
        if self.under_way.values().any(|(busy, _)| *busy == block) {
            return;
        }
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let known = self.known.get(&block).map(Vec::len);
        let write = known.is_none() || self.rng.below(2) == 0;
        let len = match (write, known) {
            (false, Some(len)) => len,
            _ => match self.rng.below(4) {
                0 => self.rng.below(u64::from(MOST) + 1) as usize,
                1 => MOST as usize,
                _ => self.rng.below(5000) as usize,
            },
        };
        let lease = self.lease(len as u32);
        let data = write.then(|| {
            let seed = self.rng.next();
            let bytes: Vec<u8> = (0..len)
                .map(|n| (seed.rotate_left(n as u32 & 63) as u8) ^ (n >> 6) as u8)
                .collect();
            assert!(lease.fill(0, &bytes));
            bytes
        });
        if data.is_none() {
            // What is read must come from the server, not be there already.
            assert!(lease.fill(0, &vec![0xEE; len]));
        }
        self.port.submit(Submission {
            tag: id,
            direction: if write {
                Direction::Write
            } else {
                Direction::Read
            },
            usr: usr(block, id),
            len: len as u32,
            lease: Some(lease),
        });
        self.ids.push(id);
        self.under_way.insert(id, (block, data));
    }

    /// Takes what is done, and checks it.
    #[track_caller]
    pub fn reap(&mut self) -> usize {
        let mut done = std::mem::take(&mut self.done);
        let count = self.port.reap(&mut done);
        for completion in done.drain(..) {
            let (block, data) = self.under_way.remove(&completion.tag).expect("mine, once");
            completion
                .result
                .unwrap_or_else(|e| panic!("request {}: {e}", completion.tag));
            match data {
                Some(data) => drop(self.known.insert(block, data)),
                None => {
                    let known = &self.known[&block];
                    let mut read = vec![0; known.len()];
                    let lease = completion.lease.expect("it comes back");
                    assert!(lease.take(0, &mut read));
                    assert!(read == *known, "block {block:#x} is not what was written");
                }
            }
        }
        self.done = done;
        count
    }

    /// Goes on until `count` requests are done, with up to `depth` under way.
    #[track_caller]
    pub fn work(&mut self, count: usize, depth: usize) {
        let (mut done, start) = (0, Instant::now());
        while done < count {
            while self.under_way.len() < depth {
                let before = self.under_way.len();
                self.ask();
                if self.under_way.len() == before {
                    break;
                }
            }
            self.port.push();
            self.port.wait(Some(Duration::from_secs(1)));
            done += self.reap();
            assert!(start.elapsed() < PATIENCE, "{done} of {count} were done");
        }
        self.drain();
    }

    /// Waits for what is under way.
    #[track_caller]
    pub fn drain(&mut self) {
        let start = Instant::now();
        while !self.under_way.is_empty() {
            self.port.wait(Some(Duration::from_secs(1)));
            self.reap();
            assert!(
                start.elapsed() < PATIENCE,
                "{} are never done",
                self.under_way.len()
            );
        }
    }
}

/// Each of these requests was executed, once.
#[track_caller]
pub fn each_once(disk: &Disk, ids: &[u64]) {
    let executed = disk.executed.lock().unwrap();
    for id in ids {
        assert_eq!(executed.get(id), Some(&1), "request {id}");
    }
}
