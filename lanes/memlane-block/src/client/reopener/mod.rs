//! Opens a session's volumes, and opens them again after a restart of the server: a state machine over one port of the session, and the thread that runs it.
//!
//! A thread of its own, because volumes are to be opened again also while every user of them sleeps on a descriptor or
//! is busy elsewhere; and one for the whole session, because there it is nearly always asleep. It asks asynchronously:
//! an answer that does not come (a hung disk under one volume) keeps nothing else waiting. Its leases it takes once,
//! beforehand: requests that wait for a volume hold theirs, and may hold all.
//!
//! An **era** is the time between two restarts of the server. What was asked in an earlier one is not listened to. The
//! session tells a restart before anything that the new server answered, so news are read first.

mod answers;

use super::answer::Server;
use super::clock::Clock;
use super::error::OpenError;
use super::handle::Options;
use super::mail::{Claim, Command, Mail};
use super::remote::{Remote, State, Status, Under};
use crate::wire::{
    Access, CAP_LOAN, CAP_TAKE_OVER, CAPS, Close, OPEN_RSP_LEN, Open, SESS_INFO_LEN, SessInfo,
    VERSION,
};
use memlane_transport::engine::backoff::{Backoff, Jitter};
use memlane_transport::engine::{Direction, Time};
use memlane_transport::lease::Lease;
use memlane_transport::message::Message;
use memlane_transport::port::{Completion, LeaseError, Port, Session, Submission};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// The number of leases that are kept, and so of requests that can be in flight.
const LEASES: usize = 4;
/// The size of each lease, in bytes.
const LEASE_LEN: u32 = 56;
/// A server that calls without end is looked after so often.
const NOTICE_GAP: Duration = Duration::from_millis(10);
/// How long the reopener goes on when it is to stop, for the answers to its CLOSEs.
const STOP_LIMIT: Duration = Duration::from_millis(500);
/// When to try again what the server refused.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(20),
    most: Duration::from_secs(2),
};

const _: () = assert!(SESS_INFO_LEN <= LEASE_LEN as usize);
const _: () = assert!(OPEN_RSP_LEN <= LEASE_LEN as usize);

/// A volume that is open, is to be opened again, or has a caller that waits for it.
#[derive(Debug)]
struct Entry {
    key: u64,
    name: String,
    access: Access,
    who: Who,
    /// OPEN is to be asked, not before `at`.
    wanted: bool,
    /// OPEN is asked, in the present era.
    asked: bool,
    /// It was asked because the server did not know the volume.
    doubted: bool,
    at: Time,
    /// When it was asked last.
    last: Time,
    failures: u32,
}

#[derive(Debug)]
enum Who {
    Opening {
        reply: Sender<Result<Claim, OpenError>>,
        until: Time,
        take_over: bool,
        /// The error that it gets if the time runs out.
        late: OpenError,
    },
    Open {
        remote: Arc<Remote>,
        under: Under,
        /// Since when the server refuses it.
        refused: Option<Time>,
        /// Another client has it now: it is not opened again, whatever server comes.
        taken: bool,
    },
}

/// What was asked.
#[derive(Debug)]
enum Ask {
    SessInfo,
    Open { key: u64, name: String },
    Close { reply: Option<Sender<()>> },
}

#[derive(Debug)]
struct Asked {
    tag: u64,
    era: u64,
    ask: Ask,
}

/// Is it known whom one talks to?
#[derive(Clone, Copy, Debug)]
enum Known {
    /// SESS_INFO is to be asked, not before then.
    No(Time),
    Asked,
    Yes(Server),
}

/// Opens a session's volumes, and opens them again after a restart of the server.
pub struct Reopener {
    session: Arc<dyn Session>,
    port: Box<dyn Port>,
    mail: Arc<Mail>,
    options: Options,
    clock: Clock,
    jitter: Jitter,
    leases: Vec<Lease>,
    /// How many there are, with those under way.
    owned: usize,
    era: u64,
    known: Known,
    info_failures: u32,
    entries: Vec<Entry>,
    asked: Vec<Asked>,
    next: u64,
    completions: Vec<Completion>,
    closed: bool,
    /// An epoll set of the loans' sockets, readable when one is over.
    loans: OwnedFd,
    /// News of paths that were read.
    heard: u64,
    /// For code that shows volumes: news, and changes of volumes.
    told: u64,
    /// To be over by then.
    stop: Option<Time>,
}

impl std::fmt::Debug for Reopener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reopener")
            .field("era", &self.era)
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}

impl Reopener {
    pub(super) fn new(
        session: &Arc<dyn Session>,
        mail: Arc<Mail>,
        options: Options,
    ) -> io::Result<Reopener> {
        Ok(Reopener {
            session: Arc::clone(session),
            port: session.port()?,
            mail,
            clock: options.clock.clone(),
            options,
            jitter: Jitter(std::process::id().into()),
            leases: Vec::new(),
            owned: 0,
            era: 1,
            known: Known::No(Time::ZERO),
            info_failures: 0,
            entries: Vec::new(),
            asked: Vec::new(),
            next: 0,
            completions: Vec::new(),
            closed: false,
            loans: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            heard: 0,
            told: 0,
            stop: None,
        })
    }

    /// Runs until the client and its volumes are gone.
    pub fn run(mut self) {
        while let Some(limit) = self.step() {
            self.sleep(limit);
        }
    }

    /// Does what is to be done now. For how long is there nothing more? `None`: it is over.
    pub fn step(&mut self) -> Option<Option<Duration>> {
        self.read_news();
        self.port_answers();
        for command in self.mail.take() {
            self.obey(command);
        }
        let now = self.clock.now();
        self.stock_up();
        self.look_for_doubts(now);
        self.look_at_loans();
        self.give_up_openings(now);
        self.ask_what_is_due(now);
        self.tell_changes();
        let overdue = self.signal_overdue(now);
        self.port.push();
        if self.is_over(now) {
            return None;
        }
        let next = self.next_time().into_iter().chain(overdue).min();
        Some(next.map(|next| next.saturating_sub(now)))
    }

    fn sleep(&mut self, limit: Option<Duration>) {
        // Who sleeps on a port may be woken by what comes for others: not without a reason.
        let expects = !self.asked.is_empty() || self.leases.is_empty();
        if expects && self.port.arm() {
            return;
        }
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let (news, mail) = (self.session.news_fd(), self.mail.fd());
        let fds = [news, mail, self.loans.as_fd(), self.port.fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let used = if expects { 4 } else { 3 };
        // A signal, or whatever else: the next step looks at everything.
        let _ = poll(&mut fds[..used], limit.as_ref());
    }

    fn is_over(&self, now: Time) -> bool {
        let Some(until) = self.stop else {
            return false;
        };
        let closing = |asked: &Asked| matches!(asked.ask, Ask::Close { .. });
        now >= until || !self.asked.iter().any(closing)
    }

    fn next_time(&self) -> Option<Time> {
        let info = match self.known {
            Known::No(at) if !self.entries.is_empty() => Some(at),
            _ => None,
        };
        let known = matches!(self.known, Known::Yes(_));
        let opens = self.entries.iter().filter_map(|entry| {
            // Without a lease it cannot be asked; the port tells when there is one.
            let due = known && entry.wanted && !entry.asked && !self.leases.is_empty();
            due.then_some(entry.at)
        });
        let openings = self.entries.iter().filter_map(|entry| match &entry.who {
            Who::Opening { until, .. } => Some(*until),
            Who::Open { .. } => None,
        });
        let info = info.filter(|_| !self.leases.is_empty());
        let all = info.into_iter().chain(opens).chain(openings);
        all.chain(self.stop).min()
    }

    // ---- what others want ----

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open {
                name,
                access,
                take_over,
                reply,
            } => self.begin_open(name, access, take_over, reply),
            Command::Close { remote, reply } => self.close(&remote, reply),
            Command::Again { remote } => self.open_again(&remote),
            Command::Stop => {
                let now = self.clock.now();
                self.stop.get_or_insert(now.saturating_add(STOP_LIMIT));
            }
        }
    }

    fn begin_open(
        &mut self,
        name: String,
        access: Access,
        take_over: bool,
        reply: Sender<Result<Claim, OpenError>>,
    ) {
        let valid = Open::new(access, &name);
        let known = self.entries.iter().any(|entry| entry.name == name);
        let error = match valid.encode() {
            Err(error) => Some(error.into()),
            Ok(_) if self.closed => Some(OpenError::Closed),
            Ok(_) if known => Some(OpenError::AlreadyOpen),
            Ok(_) => None,
        };
        if let Some(error) = error {
            let _ = reply.send(Err(error));
            return;
        }
        let now = self.clock.now();
        self.next += 1;
        self.entries.push(Entry {
            key: self.next,
            name,
            access,
            who: Who::Opening {
                reply,
                until: now.saturating_add(self.options.open_limit),
                take_over,
                late: OpenError::TimedOut,
            },
            wanted: true,
            asked: false,
            doubted: false,
            at: now,
            last: Time::ZERO,
            failures: 0,
        });
    }

    fn close(&mut self, remote: &Arc<Remote>, reply: Option<Sender<()>>) {
        let place = self.entries.iter().position(|entry| match &entry.who {
            Who::Open { remote: other, .. } => Arc::ptr_eq(remote, other),
            Who::Opening { .. } => false,
        });
        let Some(place) = place else {
            // It was closed before.
            let _ = reply.map(|reply| reply.send(()));
            return;
        };
        let entry = self.entries.swap_remove(place);
        let gate = remote.gate();
        remote.becomes(State::Closed);
        remote.show(Status::Closed);
        let here = matches!(&entry.who, Who::Open { under, .. } if under.era == self.era);
        if here && gate.state == State::Open {
            self.ask_close(gate.device_id, reply);
        } else {
            // A server that restarted does not have it open.
            let _ = reply.map(|reply| reply.send(()));
        }
    }

    /// To open twice is to open once: the answer says what has changed.
    fn open_again(&mut self, remote: &Arc<Remote>) {
        let now = self.clock.now();
        let entry = self.entries.iter_mut().find(|entry| match &entry.who {
            Who::Open { remote: other, .. } => Arc::ptr_eq(remote, other),
            Who::Opening { .. } => false,
        });
        if let Some(entry) = entry {
            entry.wanted = true;
            entry.at = now;
        }
    }

    fn look_for_doubts(&mut self, now: Time) {
        for entry in &mut self.entries {
            if let Who::Open { remote, .. } = &entry.who
                && !entry.wanted
                && !(entry.asked && entry.doubted)
                && remote.is_doubted()
            {
                entry.wanted = true;
                entry.at = now.max(entry.last.saturating_add(NOTICE_GAP));
            }
        }
    }

    fn look_at_loans(&self) {
        for entry in &self.entries {
            if let Who::Open { remote, .. } = &entry.who {
                remote.look_at_loan();
            }
        }
    }

    fn give_up_openings(&mut self, now: Time) {
        let late = |entry: &Entry| match &entry.who {
            Who::Opening { until, late, .. } => Some(*late).filter(|_| now >= *until),
            Who::Open { .. } => None,
        };
        while let Some((place, error)) = self
            .entries
            .iter()
            .enumerate()
            .find_map(|(place, entry)| Some((place, late(entry)?)))
        {
            self.answer_opening(place, error);
        }
    }

    /// Makes code that shows paths and volumes look again.
    fn tell_changes(&mut self) {
        let volumes = self.entries.iter().map(|entry| match &entry.who {
            Who::Open { remote, .. } => remote.changes(),
            Who::Opening { .. } => 0,
        });
        let seen = volumes.fold(self.heard, u64::wrapping_add);
        if seen != self.told
            && let Some(changes) = &self.options.changes
        {
            changes.signal();
        }
        self.told = seen;
    }

    fn signal_overdue(&self, now: Time) -> Option<Time> {
        let volumes = self.entries.iter().filter_map(|entry| match &entry.who {
            Who::Open { remote, .. } => Some(remote),
            Who::Opening { .. } => None,
        });
        volumes
            .filter_map(|remote| remote.signal_overdue(now))
            .min()
    }

    // ---- what goes out ----

    fn ask_what_is_due(&mut self, now: Time) {
        if self.closed {
            return;
        }
        match self.known {
            Known::No(at) if at <= now && !self.entries.is_empty() => self.ask_server(),
            Known::Yes(_) => {
                for place in 0..self.entries.len() {
                    // One that cannot be asked for goes.
                    let entry = self.entries.get(place);
                    if entry.is_some_and(|entry| entry.wanted && !entry.asked && entry.at <= now) {
                        self.ask_open(place);
                    }
                }
            }
            _ => {}
        }
    }

    fn ask_server(&mut self) {
        let Some(lease) = self.lease() else {
            return;
        };
        self.known = Known::Asked;
        let borrows = if self.options.borrow { CAP_LOAN } else { 0 };
        let hello = SessInfo {
            version: VERSION,
            caps: CAPS & !CAP_LOAN | borrows,
        };
        let usr = hello.encode().into();
        self.ask(Ask::SessInfo, usr, SESS_INFO_LEN, Some(lease));
    }

    fn ask_open(&mut self, place: usize) {
        let entry = &self.entries[place];
        let mut message = Open::new(entry.access, &entry.name);
        let knows = self.caps() & CAP_TAKE_OVER != 0;
        match &entry.who {
            Who::Opening {
                take_over: true, ..
            } if !knows => {
                return self.answer_opening(place, OpenError::CannotTakeOver);
            }
            Who::Open { taken: true, .. } => {
                self.entries[place].wanted = false;
                return;
            }
            Who::Opening { take_over, .. } if knows => message.wish.take_over = *take_over,
            Who::Open { remote, .. } if knows => {
                message.wish.again = Some(remote.gate().device_id);
            }
            _ => {}
        }
        // The name was looked at when it came.
        let Ok(usr) = message.encode() else {
            return;
        };
        let Some(lease) = self.lease() else {
            return;
        };
        let entry = &mut self.entries[place];
        (entry.asked, entry.wanted) = (true, false);
        entry.last = self.clock.now();
        entry.doubted = match &entry.who {
            Who::Open { remote, .. } => remote.is_doubted(),
            Who::Opening { .. } => false,
        };
        let ask = Ask::Open {
            key: entry.key,
            name: message.name,
        };
        self.ask(ask, usr.into(), OPEN_RSP_LEN, Some(lease));
    }

    fn ask_close(&mut self, device_id: u32, reply: Option<Sender<()>>) {
        let usr = Close { device_id }.encode().into();
        self.ask(Ask::Close { reply }, usr, 0, None);
    }

    fn ask(&mut self, ask: Ask, usr: Message, len: usize, lease: Option<Lease>) {
        self.next += 1;
        let tag = self.next;
        let era = self.era;
        let direction = match ask {
            Ask::Close { .. } => Direction::Write,
            Ask::SessInfo | Ask::Open { .. } => Direction::Read,
        };
        self.asked.push(Asked { tag, era, ask });
        self.port.submit(Submission {
            tag,
            direction,
            usr,
            // At most `LEASE_LEN`.
            len: u32::try_from(len).unwrap_or(LEASE_LEN),
            lease,
        });
    }

    /// Takes leases, until there are enough: few, of a server that has few.
    fn stock_up(&mut self) {
        let depth = self.session.geometry().map_or(0, |g| g.depth());
        let enough = usize::from(depth / 32).clamp(1, LEASES);
        while self.owned < enough && !self.closed {
            match self.port.lease(LEASE_LEN) {
                Ok(Some(lease)) => self.leases.push(lease),
                Err(LeaseError::Closed) => return self.session_closed(),
                Ok(None) | Err(_) => return,
            }
            self.owned += 1;
        }
    }

    /// One that is free, with nothing of the past in it.
    fn lease(&mut self) -> Option<Lease> {
        let lease = self.leases.pop()?;
        lease.fill(0, &[0; LEASE_LEN as usize]);
        Some(lease)
    }
}
