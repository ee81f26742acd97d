//! What the reopener and the queues of one volume share: words that are read for each request without a lock.

use super::answer::{Opened, Server, Steps};
use super::clock::nanos_of;
use super::error::OpenError;
use super::lent::{Lent, Share};
use crate::volume::Info;
use crate::volume::stats::Counters;
use crate::wire::Access;
use memlane_transport::engine::Time;
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// May requests go to the server?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Not now: the server has restarted. They wait.
    Waiting,
    /// Yes.
    Open,
    /// It could not be opened again: they fail.
    Refused,
    /// Its user has closed it.
    Closed,
}

/// A volume's state, its generation, and its number there, in one word.
///
/// A **generation** of the volume begins each time the server opens it and gives it a number, which may be another one.
/// A request that was sent in one generation is sent again in a later one only. So it never goes twice to the same
/// server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gate {
    pub(super) state: State,
    pub(super) generation: u32,
    pub(super) device_id: u32,
}

impl Gate {
    fn pack(self) -> u64 {
        let state = match self.state {
            State::Waiting => 0,
            State::Open => 1,
            State::Refused => 2,
            State::Closed => 3,
        };
        (u64::from(self.generation) << 34) | (state << 32) | u64::from(self.device_id)
    }

    fn unpack(word: u64) -> Gate {
        let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or_default();
        Gate {
            state: match (word >> 32) & 3 {
                0 => State::Waiting,
                1 => State::Open,
                2 => State::Refused,
                _ => State::Closed,
            },
            generation: low(word >> 34),
            device_id: low(word),
        }
    }
}

/// How a volume is, for display.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Open.
    Open,
    /// Being opened again; requests wait. Why it did not work so far.
    Reopening(Option<OpenError>),
    /// Could not be opened again; requests fail, and it is tried further.
    Failed(OpenError),
    /// Closed.
    Closed,
}

/// Wakes a queue that sleeps while some of its requests wait for the volume.
#[derive(Debug)]
pub(super) struct Alarm {
    pub(super) event: EventFd,
    /// Whether `event` is to be drained. The thread that signals sets it, after the signal; cleared by the queue before
    /// it drains. So a queue that was not woken makes no system call.
    signalled: AtomicBool,
    /// Requests wait.
    waits: AtomicBool,
    /// When the first of them has waited for too long, in nanoseconds.
    due: AtomicU64,
}

impl Alarm {
    fn new() -> io::Result<Alarm> {
        Ok(Alarm {
            event: EventFd::new()?,
            signalled: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            due: AtomicU64::new(u64::MAX),
        })
    }

    pub(super) fn signal(&self) {
        self.event.signal();
        self.signalled.store(true, Ordering::SeqCst);
    }

    /// Makes the descriptor unreadable again.
    pub(super) fn drain(&self) {
        if self.signalled.load(Ordering::Relaxed) && self.signalled.swap(false, Ordering::SeqCst) {
            self.event.drain();
        }
    }

    /// The owner's requests wait (or none does), the first of them until `due`. To be called before the gate is
    /// looked at for the last time before a sleep.
    pub(super) fn expect(&self, due: Option<Time>) {
        let due = due.map_or(u64::MAX, |due| nanos_of(due).min(u64::MAX - 1));
        self.due.store(due, Ordering::SeqCst);
        self.waits.store(due < u64::MAX, Ordering::SeqCst);
    }

    /// One more waits. Is it the first to be late?
    pub(super) fn expect_also(&self, due: Time) -> bool {
        let due = nanos_of(due).min(u64::MAX - 1);
        self.waits.store(true, Ordering::SeqCst);
        self.due.fetch_min(due, Ordering::SeqCst) > due
    }
}

/// One volume of a session.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) name: String,
    pub(super) access: Access,
    /// As it was when it was opened. Only `size` changes: see `size`.
    first: Info,
    size: AtomicU64,
    trim_step: AtomicU32,
    zero_step: AtomicU32,
    fast: AtomicBool,
    gate: AtomicU64,
    /// Requests of generations up to this one that the server does not know the volume of are at an end.
    denied: AtomicU32,
    /// The generation in which the server said that it does not know the volume.
    doubted: AtomicU32,
    pub(super) durable: Durability,
    pub(super) counters: Counters,
    changes: AtomicU64,
    status: Mutex<Status>,
    alarms: Mutex<Vec<Weak<Alarm>>>,
    queues: AtomicUsize,
    /// The volume's memory, while the server lends it.
    lent: Mutex<Lent>,
}

impl Remote {
    pub(super) fn new(name: String, access: Access, opened: &Opened) -> Remote {
        let gate = Gate {
            state: State::Open,
            generation: 1,
            device_id: opened.device_id,
        };
        let mut first = opened.info;
        first.read_only |= access == Access::ReadOnly;
        Remote {
            name,
            access,
            first,
            size: AtomicU64::new(first.size),
            trim_step: AtomicU32::new(opened.steps.trim),
            zero_step: AtomicU32::new(opened.steps.zeroes),
            fast: AtomicBool::new(opened.steps.fast),
            gate: AtomicU64::new(gate.pack()),
            denied: AtomicU32::new(0),
            doubted: AtomicU32::new(0),
            durable: Durability::default(),
            counters: Counters::default(),
            changes: AtomicU64::new(0),
            status: Mutex::new(Status::Open),
            alarms: Mutex::default(),
            queues: AtomicUsize::new(0),
            lent: Mutex::default(),
        }
    }

    // ---- what everybody reads ----

    pub(super) fn gate(&self) -> Gate {
        Gate::unpack(self.gate.load(Ordering::SeqCst))
    }

    pub(super) fn info(&self) -> Info {
        Info {
            size: self.size.load(Ordering::Relaxed),
            ..self.first
        }
    }

    pub(super) fn steps(&self) -> Steps {
        Steps {
            trim: self.trim_step.load(Ordering::Relaxed),
            zeroes: self.zero_step.load(Ordering::Relaxed),
            fast: self.fast.load(Ordering::Relaxed),
        }
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(super) fn status(&self) -> Status {
        *lock(&self.status)
    }

    pub(super) fn is_denied(&self, generation: u32) -> bool {
        generation <= self.denied.load(Ordering::SeqCst)
    }

    // ---- what a queue does ----

    /// A queue's number, its alarm, and its share in what is borrowed.
    pub(super) fn enter(&self) -> io::Result<(usize, Arc<Alarm>, Arc<Share>)> {
        let alarm = Arc::new(Alarm::new()?);
        let mut alarms = lock(&self.alarms);
        alarms.retain(|alarm| alarm.strong_count() > 0);
        alarms.push(Arc::downgrade(&alarm));
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        Ok((number, alarm, lock(&self.lent).enter()))
    }

    /// The server does not know the volume in this generation. Returns whether that is news, so that the reopener must
    /// learn of it.
    pub(super) fn doubt(&self, generation: u32) -> bool {
        self.doubted.fetch_max(generation, Ordering::SeqCst) < generation
    }

    // ---- what the reopener does ----

    /// Has a queue doubted the present generation?
    pub(super) fn is_doubted(&self) -> bool {
        let generation = self.gate().generation;
        self.doubted.load(Ordering::SeqCst) >= generation && !self.is_denied(generation)
    }

    /// The server has insisted that it has no such volume, right after it opened it.
    pub(super) fn deny(&self) {
        self.denied.store(self.gate().generation, Ordering::SeqCst);
        self.signal_waiting();
    }

    /// A volume's size and limits, as they are now.
    pub(super) fn learn(&self, opened: &Opened) {
        self.trim_step.store(opened.steps.trim, Ordering::Relaxed);
        self.zero_step.store(opened.steps.zeroes, Ordering::Relaxed);
        self.fast.store(opened.steps.fast, Ordering::Relaxed);
        if self.size.swap(opened.info.size, Ordering::Relaxed) != opened.info.size {
            lock(&self.lent).resized(opened.info.size);
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Takes the volume's memory, if the server offers it; what was borrowed before goes back. If it cannot be had, all
    /// requests go to the server. `epoll` wakes up when the loan is over.
    pub(super) fn borrow(&self, opened: &Opened, epoll: &OwnedFd) {
        let mut lent = lock(&self.lent);
        let taken = lent.take(opened, self.access);
        if taken.and_then(|()| lent.watch(epoll)).is_err() {
            lent.give_back();
        }
    }

    /// Gives back what is borrowed if the server wants that, or has ended.
    pub(super) fn look_at_loan(&self) {
        lock(&self.lent).look();
    }

    /// Is the volume's memory borrowed?
    pub(super) fn is_lent(&self) -> bool {
        lock(&self.lent).is_lent()
    }

    /// Begins a generation: the volume is open, as `device_id`.
    pub(super) fn revive(&self, device_id: u32) {
        let generation = self.gate().generation.wrapping_add(1);
        self.set(Gate {
            state: State::Open,
            generation,
            device_id,
        });
    }

    /// Changes the state within the generation. Nothing stays borrowed of a volume that is not open.
    pub(super) fn becomes(&self, state: State) {
        if state != State::Open {
            lock(&self.lent).give_back();
        }
        self.set(Gate {
            state,
            ..self.gate()
        });
    }

    fn set(&self, gate: Gate) {
        if self.gate.swap(gate.pack(), Ordering::SeqCst) != gate.pack() {
            self.signal_waiting();
        }
    }

    pub(super) fn show(&self, status: Status) {
        let before = std::mem::replace(&mut *lock(&self.status), status);
        if before != status {
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Tells queues with requests that wait.
    fn signal_waiting(&self) {
        for alarm in lock(&self.alarms).iter().filter_map(Weak::upgrade) {
            if alarm.waits.load(Ordering::SeqCst) {
                alarm.signal();
            }
        }
    }

    /// Tells queues of which a request has waited for too long; when is the next one's turn?
    pub(super) fn signal_overdue(&self, now: Time) -> Option<Time> {
        let mut next = u64::MAX;
        for alarm in lock(&self.alarms).iter().filter_map(Weak::upgrade) {
            let due = alarm.due.load(Ordering::SeqCst);
            if due > nanos_of(now) {
                next = next.min(due);
            } else if alarm
                .due
                .compare_exchange(due, u64::MAX, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
            {
                alarm.signal();
            }
        }
        (next < u64::MAX).then(|| Time::from_nanos(next))
    }
}

/// Is what was acknowledged still there? See `docs/decisions/0006-a-server-that-lost-its-memory.md`.
///
/// A server's machine that starts anew has lost what its cache held. The next flush of each queue then fails, unless
/// everything that was acknowledged had been flushed.
#[derive(Debug, Default)]
pub(super) struct Durability {
    /// Starts of the server's machine, as far as they matter here.
    boots: AtomicU32,
    /// How many of the acknowledged writes that are not durable by themselves a flush has covered.
    flushed: AtomicU64,
    /// How often acknowledged writes were lost.
    losses: AtomicU32,
    /// Notes that a flush has reported the last loss.
    told: AtomicBool,
}

impl Durability {
    pub(super) fn boots(&self) -> u32 {
        self.boots.load(Ordering::SeqCst)
    }

    pub(super) fn losses(&self) -> u32 {
        self.losses.load(Ordering::SeqCst)
    }

    /// The losses that a new queue need not report: all, or all but one that was never reported (as in Linux's errseq).
    pub(super) fn losses_told(&self) -> u32 {
        let untold = !self.told.load(Ordering::SeqCst);
        self.losses() - u32::from(untold && self.losses() > 0)
    }

    /// The server's machine has lost its memory. The number of boots first: a queue that acknowledges a write counts it,
    /// then looks at that number, so one of both notices.
    pub(super) fn rebooted(&self, counters: &Counters) -> bool {
        self.boots.fetch_add(1, Ordering::SeqCst);
        let dirtied = counters.dirtied();
        let lost = dirtied > self.flushed.fetch_max(dirtied, Ordering::SeqCst);
        if lost {
            self.told.store(false, Ordering::SeqCst);
            self.losses.fetch_add(1, Ordering::SeqCst);
        }
        lost
    }

    /// Notes that a flush is done which covers this many writes.
    pub(super) fn covers(&self, dirtied: u64) {
        self.flushed.fetch_max(dirtied, Ordering::SeqCst);
    }

    /// A queue that knew of `seen` losses has flushed: was something lost meanwhile?
    pub(super) fn tell(&self, seen: &mut u32) -> bool {
        let losses = self.losses();
        let lost = losses != *seen;
        if lost {
            *seen = losses;
            self.told.store(true, Ordering::SeqCst);
        }
        lost
    }
}

/// What the reopener remembers of the server under a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Under {
    pub(super) era: u64,
    pub(super) server: Server,
}
