//! A session and a server for tests of the client: one world behind a lock, in which requests lie until something
//! happens to them: they are executed, answered, delayed, or their server dies, with or without its machine.
//!
//! It keeps the promises of the transport lane and no more: each request is executed once by one server; of a server
//! that died nobody knows what it executed; a restart is told before anything that the new server answers.

// Each test program takes it in as a module and uses a part.
#![allow(dead_code, unreachable_pub)]

pub mod machine;
pub mod rig;

use machine::{Machine, Verdict};
use memlane_block::client::clock::Clock;
use memlane_block::volume::{Lease, Lender};
use memlane_core::region::Region;
use memlane_sim::rng::Rng;
use memlane_transport::engine::{Direction, Time};
use memlane_transport::error::RequestError;
use memlane_transport::port::{Completion, LeaseError, News, Port, Session, Submission};
use memlane_transport::wire::Geometry;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a lease, and of a chunk's data.
pub const MAX_IO: u32 = 4096;

/// What a server that lies does with an answer: another error number, other bytes.
pub type Tamper = Box<dyn FnMut(&[u8], &mut Vec<u8>) -> Option<u16> + Send>;

/// What happens to a world.
pub type Happening = Box<dyn FnOnce(&mut World) + Send>;

/// Which messages are held.
pub type Hold = Box<dyn Fn(&[u8]) -> bool + Send>;

struct Flight {
    port: usize,
    submission: Submission,
    since: Time,
    /// A copy is at the server.
    sent: bool,
    /// How it was executed, by the server that has it.
    result: Option<(u16, Vec<u8>)>,
}

struct Inbox {
    done: Vec<Completion>,
    ready: OwnedFd,
    refused: bool,
}

pub struct World {
    pub rng: Rng,
    pub machine: Machine,
    pub clock: Clock,
    now: Time,
    pub tamper: Option<Tamper>,
    /// While no path is up.
    pub limit: Duration,
    /// A path is up.
    pub up: bool,
    /// Requests with such messages stay where they are.
    pub held: Option<Hold>,
    /// Happens before somebody next takes what is done out of a port.
    pub before_reap: Option<Happening>,
    closed: bool,
    flights: Vec<Flight>,
    inboxes: Vec<Inbox>,
    news: VecDeque<News>,
    free: Vec<u32>,
    pub lent: usize,
}

/// Everything that a test holds in its hand.
pub struct TestSession {
    world: Mutex<World>,
    changed: Condvar,
    memory: Region,
    news_ready: OwnedFd,
    over: AtomicBool,
}

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

fn ring(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

fn hush(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}

impl TestSession {
    pub fn new(seed: u64, leases: u32, clock: Clock) -> Arc<TestSession> {
        let memory = Region::create(c"test-leases", (leases * MAX_IO) as usize, false);
        let mut rng = Rng::new(seed);
        let machine = Machine::new(rng.any());
        let world = World {
            rng,
            machine,
            clock,
            now: Time::ZERO,
            tamper: None,
            limit: Duration::from_secs(30),
            up: true,
            held: None,
            before_reap: None,
            closed: false,
            flights: Vec::new(),
            inboxes: Vec::new(),
            news: VecDeque::new(),
            free: (0..leases).collect(),
            lent: 0,
        };
        Arc::new(TestSession {
            world: Mutex::new(world),
            changed: Condvar::new(),
            memory: memory.expect("memory"),
            news_ready: bell(),
            over: AtomicBool::new(false),
        })
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time passes, for the world and for the client.
    pub fn advance(&self, by: Duration) {
        let mut world = self.world();
        world.now += by;
        world.clock.advance(by);
        world.expire();
    }

    /// Something happens to one request. False: nothing could.
    pub fn happen(&self) -> bool {
        let happened = self.world().happen();
        self.changed.notify_all();
        happened
    }

    /// All that can happen, happens.
    pub fn settle(&self) {
        while self.happen() {}
    }

    /// The server dies; with it, its machine?
    pub fn kill(&self, machine_too: bool) {
        let mut world = self.world();
        world.kill(machine_too);
    }

    /// Another server is there.
    pub fn restart(&self) {
        let mut world = self.world();
        world.restart();
        ring(&self.news_ready);
        self.changed.notify_all();
    }

    pub fn tell(&self, news: News) {
        self.world().news.push_back(news);
        ring(&self.news_ready);
    }

    /// What happens, happens from now on by itself, until the last other owner is gone.
    pub fn live(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        std::thread::spawn(move || {
            while let Some(session) = weak.upgrade() {
                if session.over.load(Ordering::Relaxed) {
                    return;
                }
                session.settle();
                drop(session);
                std::thread::sleep(Duration::from_micros(50));
            }
        });
    }
}

impl World {
    pub fn happen(&mut self) -> bool {
        let (up, held) = (self.up, &self.held);
        let can = |flight: &Flight| {
            let message = &flight.submission.usr;
            let free = !held.as_ref().is_some_and(|held| held(message));
            free && (up || (flight.sent && flight.result.is_none()))
        };
        let able: Vec<usize> = (0..self.flights.len())
            .filter(|i| can(&self.flights[*i]))
            .collect();
        if able.is_empty() {
            return false;
        }
        let i = able[usize::try_from(self.rng.below(able.len() as u64)).expect("an index")];
        if !self.flights[i].sent {
            self.flights[i].sent = true;
        } else if self.flights[i].result.is_none() {
            self.execute(i);
        } else {
            self.answer(i);
        }
        true
    }

    fn execute(&mut self, i: usize) {
        let flight = &mut self.flights[i];
        let submission = &flight.submission;
        let lease = submission.lease.as_ref();
        let mut data = vec![0; submission.len as usize];
        if submission.direction == Direction::Write && !data.is_empty() {
            assert!(lease.expect("data without a lease").take(0, &mut data));
        }
        let Verdict { errno, mut answer } = self.machine.execute(&submission.usr, &data);
        let mut errno = errno;
        if let Some(tamper) = &mut self.tamper
            && let Some(other) = tamper(&submission.usr, &mut answer)
        {
            errno = other;
        }
        answer.truncate(submission.len as usize);
        flight.result = Some((errno, answer));
    }

    fn answer(&mut self, i: usize) {
        let flight = self.flights.swap_remove(i);
        let (errno, answer) = flight.result.expect("executed");
        if flight.submission.direction == Direction::Read {
            let lease = flight.submission.lease.as_ref().expect("room");
            assert!(lease.fill(0, &answer));
        }
        let result = match errno {
            0 => Ok(()),
            errno => Err(RequestError::Remote(errno)),
        };
        self.finish(flight.port, flight.submission, result);
    }

    fn finish(&mut self, port: usize, submission: Submission, result: Result<(), RequestError>) {
        let inbox = &mut self.inboxes[port];
        inbox.done.push(Completion {
            tag: submission.tag,
            result,
            lease: submission.lease,
        });
        ring(&inbox.ready);
    }

    pub fn kill(&mut self, machine_too: bool) {
        self.up = false;
        for i in 0..self.flights.len() {
            let flight = &self.flights[i];
            if flight.sent && flight.result.is_none() && self.rng.chance(50) {
                self.execute(i);
            }
        }
        // Whatever it executed and has not told, nobody knows.
        for flight in &mut self.flights {
            flight.result = None;
        }
        self.machine.die(machine_too, &mut self.rng);
    }

    pub fn restart(&mut self) {
        self.machine.start();
        self.news.push_back(News::ServerRestarted);
        let (sent, waiting) = std::mem::take(&mut self.flights)
            .into_iter()
            .partition(|flight| flight.sent);
        self.flights = waiting;
        let sent: Vec<Flight> = sent;
        for flight in sent {
            self.finish(
                flight.port,
                flight.submission,
                Err(RequestError::OutcomeUnknown),
            );
        }
        self.up = true;
    }

    /// Requests that have waited for a path for too long.
    fn expire(&mut self) {
        if self.up {
            return;
        }
        let (due, limit) = (self.now, self.limit);
        let late = |flight: &Flight| flight.since + limit <= due;
        while let Some(i) = self.flights.iter().position(late) {
            let flight = self.flights.swap_remove(i);
            self.finish(flight.port, flight.submission, Err(RequestError::TimedOut));
        }
    }

    pub fn close(&mut self) {
        self.closed = true;
        for flight in std::mem::take(&mut self.flights) {
            self.finish(flight.port, flight.submission, Err(RequestError::Closed));
        }
    }

    pub fn under_way(&self) -> usize {
        self.flights.len()
    }
}

/// The session as the client has it.
pub struct Shared(pub Arc<TestSession>);

impl Drop for Shared {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl Session for Shared {
    fn port(&self) -> std::io::Result<Box<dyn Port>> {
        let mut world = self.0.world();
        let ready = bell();
        let fd = ready.try_clone()?;
        world.inboxes.push(Inbox {
            done: Vec::new(),
            ready,
            refused: false,
        });
        Ok(Box::new(TestPort {
            session: Arc::clone(&self.0),
            number: world.inboxes.len() - 1,
            fd,
            held: Vec::new(),
        }))
    }

    fn geometry(&self) -> Option<Geometry> {
        Geometry::new(64, 8192, MAX_IO).ok()
    }

    fn news(&self) -> Option<News> {
        let mut world = self.0.world();
        let news = world.news.pop_front();
        if world.news.is_empty() {
            hush(&self.0.news_ready);
        }
        news
    }

    fn news_fd(&self) -> BorrowedFd<'_> {
        self.0.news_ready.as_fd()
    }
}

struct TestPort {
    session: Arc<TestSession>,
    number: usize,
    fd: OwnedFd,
    held: Vec<Submission>,
}

struct Pool(Arc<TestSession>);

impl Lender for Pool {
    fn give_back(&self, number: u32) {
        let mut world = self.0.world();
        world.free.push(number);
        world.lent -= 1;
        for inbox in world.inboxes.iter().filter(|inbox| inbox.refused) {
            ring(&inbox.ready);
        }
        drop(world);
        self.0.changed.notify_all();
    }
}

impl Port for TestPort {
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, LeaseError> {
        let mut world = self.session.world();
        if world.closed {
            return Err(LeaseError::Closed);
        }
        if len > MAX_IO {
            return Err(LeaseError::TooLong);
        }
        let number = world.free.pop();
        world.inboxes[self.number].refused = number.is_none();
        world.lent += usize::from(number.is_some());
        drop(world);
        Ok(number.map(|number| {
            let at = (number * MAX_IO) as usize;
            let bytes = self.session.memory.bytes().part(at, len as usize);
            let owner = Arc::new(Pool(Arc::clone(&self.session)));
            Lease::new(bytes.expect("within"), number, owner)
        }))
    }

    fn submit(&mut self, submission: Submission) {
        self.held.push(submission);
    }

    fn push(&mut self) {
        let mut world = self.session.world();
        let (now, port) = (world.now, self.number);
        for submission in self.held.drain(..) {
            if world.closed {
                world.finish(port, submission, Err(RequestError::Closed));
                continue;
            }
            world.flights.push(Flight {
                port,
                submission,
                since: now,
                sent: false,
                result: None,
            });
        }
    }

    fn reap(&mut self, into: &mut Vec<Completion>) -> usize {
        self.push();
        let mut world = self.session.world();
        if let Some(happens) = world.before_reap.take() {
            happens(&mut world);
            ring(&self.session.news_ready);
        }
        let inbox = &mut world.inboxes[self.number];
        let n = inbox.done.len();
        into.append(&mut inbox.done);
        n
    }

    fn arm(&mut self) -> bool {
        self.push();
        let mut world = self.session.world();
        let lease = !world.free.is_empty();
        let inbox = &mut world.inboxes[self.number];
        let some = !inbox.done.is_empty() || (inbox.refused && lease);
        if !some {
            hush(&inbox.ready);
        }
        some
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn wait(&mut self, limit: Option<Duration>) {
        self.push();
        let until = limit.map(|limit| Instant::now() + limit);
        let mut world = self.session.world();
        while world.inboxes[self.number].done.is_empty() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return;
            }
            let left = left.unwrap_or(Duration::from_secs(60));
            let waited = self.session.changed.wait_timeout(world, left);
            world = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
