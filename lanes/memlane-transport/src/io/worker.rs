//! One thread of a server: an engine, a service, the connections and the memory of their sessions.

mod across;
mod asks;

use self::across::DEPARTED_EVERY;
use self::asks::Asks;
use super::across::Lot;
use super::address::{Epoll, Interest, Ready};
use super::admission::ConnectionSlot;
use super::frame::{self, Step};
use super::inflow::Received;
use super::link::Link;
use super::link_error::LinkError;
use super::memory::{Memories, Memory};
use super::verbs::Reach;
use crate::engine::server::{Action, Chunks, Config, Event, Job, LinkId, Server, SessionId};
use crate::engine::{Inbound, Time};
use crate::error::{ENOMEM, ENOSPC, EOPNOTSUPP, PathError};
use crate::port::{Finished, Identity, Service};
use crate::stats::ServerStats;
use crate::wire::{CONN_LEN, ConnRsp, SgDesc};
use memlane_core::region::Pages;
use memlane_sys::Errno;
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use memlane_wait::spin::{Policy, Spin};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// One session, as it is now.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// Which worker has it, and what that calls it.
    pub id: (usize, SessionId),
    /// Its name, once it was told.
    pub name: Option<String>,
    /// Its paths.
    pub paths: Vec<ServedPath>,
    /// What it has counted.
    pub stats: ServerStats,
}

/// One path of a session.
#[derive(Clone, Debug)]
pub struct ServedPath {
    /// From where.
    pub peer: String,
    /// Whose.
    pub who: Identity,
    /// Its connections.
    pub connections: usize,
}

/// A connection that has said what it wants.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) link: Link,
    pub(super) who: Identity,
    pub(super) peer: String,
    pub(super) place: ConnectionSlot,
    pub(super) private: [u8; CONN_LEN],
}

#[derive(Debug, Default)]
struct Mail {
    arrivals: Vec<Arrival>,
    asks: Vec<Sender<Vec<SessionInfo>>>,
    stop: bool,
}

/// What other threads have for a worker.
#[derive(Debug)]
pub(super) struct Mailbox {
    mail: Mutex<Mail>,
    event: EventFd,
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Mailbox> {
        let event = EventFd::new()?;
        let mail = Mutex::default();
        Ok(Mailbox { mail, event })
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        lock(&self.mail)
    }

    pub(super) fn bring(&self, arrival: Arrival) {
        self.mail().arrivals.push(arrival);
        self.event.signal();
    }

    pub(super) fn ask(&self, tell: Sender<Vec<SessionInfo>>) {
        self.mail().asks.push(tell);
        self.event.signal();
    }

    pub(super) fn stop(&self) {
        self.mail().stop = true;
        self.event.signal();
    }
}

#[derive(Debug)]
struct Entry {
    id: LinkId,
    link: Link,
    who: Identity,
    peer: String,
    memory: Option<Arc<Memory>>,
    session: Option<SessionId>,
    asks: Asks,
    interest: Interest,
    dirty: bool,
    /// Reads left, all in vain, before this connection is read only when its socket is readable.
    warm: u32,
    _place: ConnectionSlot,
}

impl Entry {
    /// Before it is accepted: what both ends, or the device, share of the session's memory.
    fn make_ready(&mut self) -> Result<(), LinkError> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        match &mut self.link {
            Link::Verbs(link) => link.make_ready(memory.reach(link.id())?, memory.depth()),
            Link::Stream(_) if !self.asks.carries_requests => Ok(()),
            Link::Stream(_) if self.asks.by_memory => memory.place(&mut self.link),
            Link::Stream(_) if self.asks.is_local => memory.share(&mut self.link),
            Link::Stream(_) => Ok(()),
        }
    }
}

/// What the engine sees of sessions, and of the service.
struct View<'a, S> {
    memories: &'a Memories,
    service: &'a RefCell<S>,
    names: &'a RefCell<BTreeMap<SessionId, String>>,
    who: &'a Identity,
    /// Of the connection that asks, if it is one over RDMA.
    reach: Option<&'a Reach>,
}

impl<S: Service> Chunks for View<'_, S> {
    fn table(&self, session: SessionId, _: LinkId) -> Vec<SgDesc> {
        let memory = self.memories.get(session);
        let table = memory.map(|memory| memory.table(self.reach));
        table.unwrap_or_default()
    }

    fn copy(&self, session: SessionId, chunk: u16, at: u32, into: &mut [u8]) {
        if let Some(memory) = self.memories.get(session) {
            memory.copy(chunk, at, into);
        }
    }

    fn admits(&self, session: SessionId, _: LinkId, name: &str) -> Result<(), u16> {
        /// Linux's.
        const EACCES: u16 = 13;
        const ENOMEM: u16 = 12;
        const EINVAL: u16 = 22;
        if self.memories.get(session).is_none() {
            return Err(ENOMEM);
        }
        let mut names = self.names.borrow_mut();
        if names.get(&session).is_some_and(|known| known != name) {
            return Err(EINVAL);
        }
        let mut service = self.service.borrow_mut();
        if !service.opened(session, name, self.who) {
            return Err(EACCES);
        }
        names.entry(session).or_insert_with(|| name.into());
        Ok(())
    }
}

// What is waited for beside connections, whose numbers begin above.
const MAIL: u64 = 0;
const SERVICE: u64 = 1;
const FIRST_LINK: u64 = 2;
/// A connection's number is a count, and its place in the table.
const PLACE_BITS: u32 = 20;
/// A connection is looked at so often in vain before only the kernel tells that something has come.
const WARM: u32 = 64;
/// Passes over warm connections until the kernel is asked about all; one that asks the kernel anyway counts more.
const LOOK_AROUND: u32 = 512;
const COSTS: u32 = 16;
/// Looks at shared connections between two passes, when nothing comes.
const LOOKS: u32 = 32;
/// So many jobs in one pass come from threads that had this thread's core.
const MANY: u32 = 24;
/// How long jobs that run may take when the server stops.
const LAST_JOBS: Duration = Duration::from_secs(30);
/// A service without a descriptor that has not finished all is asked so often.
const ASK: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Worker<S> {
    number: usize,
    engine: Server,
    service: RefCell<S>,
    mailbox: Arc<Mailbox>,
    started: Instant,
    epoll: Epoll,
    ready: Vec<Ready>,
    links: Vec<Option<Entry>>,
    next: u64,
    memories: Memories,
    /// Of the sessions that the service knows.
    names: RefCell<BTreeMap<SessionId, String>>,
    /// The client that connects now has memory that machines share.
    opens_across: bool,
    /// When to look next whether clients of other machines have departed.
    looks_for_departed: Option<Time>,
    /// Connections that failed while actions were carried out.
    failed: Vec<(LinkId, PathError)>,
    /// Jobs that the service has.
    running: usize,
    /// Jobs that were handed over since it was last told to start them.
    handed_over: bool,
    finished: Vec<Finished>,
    notices: Vec<(SessionId, u32)>,
    passes: u32,
    /// What the engine said of its deadline, until something changes that.
    due: Option<Option<Time>>,
    /// Something happened in this pass.
    stirred: bool,
    /// Jobs that came in this pass.
    taken: u32,
}

impl<S: Service> Worker<S> {
    pub(super) fn new(
        number: usize,
        (config, pages, lot): (Config, Pages, Option<Arc<Lot>>),
        service: S,
        mailbox: Arc<Mailbox>,
    ) -> io::Result<Worker<S>> {
        let epoll = Epoll::new()?;
        epoll.add(&mailbox.event, MAIL, Interest::READ)?;
        if let Some(fd) = service.fd() {
            epoll.add(fd, SERVICE, Interest::READ)?;
        }
        Ok(Worker {
            number,
            engine: Server::new(config),
            service: RefCell::new(service),
            mailbox,
            started: Instant::now(),
            epoll,
            ready: Vec::new(),
            links: Vec::new(),
            next: 1,
            memories: Memories::new(config.geometry, pages, lot),
            names: RefCell::default(),
            opens_across: false,
            looks_for_departed: None,
            failed: Vec::new(),
            running: 0,
            handed_over: false,
            finished: Vec::new(),
            notices: Vec::new(),
            passes: 0,
            due: None,
            stirred: false,
            taken: 0,
        })
    }

    // ---- the loop ----

    pub(super) fn run(mut self) {
        let mut spin = Spin::new(Policy::default());
        let mut idle = false;
        loop {
            self.stirred = false;
            self.taken = 0;
            if idle {
                self.look();
            }
            let over = idle && spin.is_over();
            // From here on, a client that has something wakes this thread.
            let sleeps = over && self.park();
            let limit = match sleeps {
                true => self.until_deadline(),
                false => Some(Duration::ZERO),
            };
            if self.pass(limit, sleeps) {
                break;
            }
            match (self.stirred, idle) {
                (true, true) => {
                    spin.found();
                    if self.taken >= MANY {
                        spin.was_lent();
                    }
                }
                (false, true) if !over => spin.pause(),
                _ => {}
            }
            idle = !self.stirred;
        }
        self.finish();
    }

    /// One pass that does not sleep, by a thread that does other things between two of them.
    pub(super) fn step(&mut self) {
        self.pass(Some(Duration::ZERO), false);
    }

    /// Looks for a moment, as long as nothing comes: less than a pass, which would find nothing.
    fn look(&mut self) {
        for _ in 0..LOOKS {
            if self.running > 0 || self.has_ready() {
                return;
            }
            std::hint::spin_loop();
        }
    }

    fn has_ready(&mut self) -> bool {
        let links = self.links.iter_mut().flatten();
        let mut warm = links.filter(|entry| entry.warm > 0);
        warm.any(|entry| entry.link.has_ready().unwrap_or(true))
    }

    /// When to call the engine's `poll`. What requests do makes it only later.
    fn deadline(&mut self) -> Option<Time> {
        if self.due.is_none() {
            let due = self.engine.deadline().into_iter();
            self.due = Some(due.chain(self.looks_for_departed).min());
        }
        self.due.flatten()
    }

    /// One pass; is it to stop?
    fn pass(&mut self, limit: Option<Duration>, sleeps: bool) -> bool {
        // The time before reading: what has come since then does not count as silence.
        let before = self.started.elapsed();
        self.passes += 1;
        let due = self.deadline().is_some_and(|due| before >= due);
        if sleeps || due || self.passes >= LOOK_AROUND {
            self.passes = 0;
            let stop = self.look_around(limit);
            if stop {
                return true;
            }
        }
        if !sleeps {
            self.read_warm(before);
        }
        self.serve();
        // After a sleep, the next pass does it: what came meanwhile is read first.
        if self.deadline().is_some_and(|due| before >= due) {
            self.due = None;
            self.engine.poll(before);
            self.carry_out();
            if self.looks_for_departed.is_some_and(|at| before >= at) {
                self.look_for_departed(before);
            }
        }
        self.flush();
        false
    }

    fn until_deadline(&mut self) -> Option<Duration> {
        let now = self.started.elapsed();
        self.due = None;
        let deadline = self.deadline();
        let left = deadline.map(|deadline| deadline.saturating_sub(now));
        let asks = self.running > 0 && self.service.borrow().fd().is_none();
        match asks {
            true => Some(left.unwrap_or(ASK).min(ASK)),
            false => left,
        }
    }

    fn look_around(&mut self, limit: Option<Duration>) -> bool {
        let mut ready = std::mem::take(&mut self.ready);
        self.epoll.wait(limit, &mut ready);
        let now = self.started.elapsed();
        let mut stop = false;
        for found in &ready {
            match found.data {
                MAIL => stop = self.read_mail(now),
                SERVICE => (self.stirred, self.handed_over) = (true, true),
                number => {
                    let link = LinkId(number);
                    if found.write
                        && let Some(entry) = self.entry(link)
                    {
                        entry.dirty = true;
                    }
                    if found.read {
                        self.read(now, link, true);
                    }
                }
            }
        }
        self.ready = ready;
        stop
    }

    fn read_warm(&mut self, now: Time) {
        for at in 0..self.links.len() {
            if let Some(entry) = self.links[at].as_mut().filter(|entry| entry.warm > 0) {
                entry.warm -= 1;
                self.passes += if entry.link.is_looked_at() { 0 } else { COSTS };
                let id = entry.id;
                self.read(now, id, false);
                // Not looked at any more: from now on it rings.
                if let Some(entry) = self.entry(id).filter(|entry| entry.warm == 0)
                    && !entry.link.park()
                {
                    entry.warm = WARM;
                }
            }
        }
    }

    /// Parks the connections: from now on what comes makes a socket readable. `false`: something has come already.
    fn park(&mut self) -> bool {
        let links = self.links.iter_mut().flatten();
        let mut quiet = true;
        for entry in links {
            if !entry.link.park() {
                entry.warm = WARM;
                quiet = false;
            }
        }
        quiet
    }

    fn read_mail(&mut self, now: Time) -> bool {
        let mailbox = Arc::clone(&self.mailbox);
        mailbox.event.drain();
        let mail = std::mem::take(&mut *mailbox.mail());
        self.stirred = true;
        for arrival in mail.arrivals {
            self.adopt(now, arrival);
        }
        for ask in mail.asks {
            // Who does not wait any more does not hear it.
            let _ = ask.send(self.sessions());
        }
        mail.stop
    }

    // ---- connections ----

    fn entry(&mut self, link: LinkId) -> Option<&mut Entry> {
        let place = usize::try_from(link.0 & ((1 << PLACE_BITS) - 1)).ok()?;
        let entry = self.links.get_mut(place)?.as_mut()?;
        (entry.id == link).then_some(entry)
    }

    fn adopt(&mut self, now: Time, arrival: Arrival) {
        let free = self.links.iter().position(Option::is_none);
        let place = free.unwrap_or(self.links.len());
        if place >= 1 << PLACE_BITS {
            return;
        }
        if free.is_none() {
            self.links.push(None);
        }
        let id = LinkId((self.next << PLACE_BITS) | place as u64);
        debug_assert!(id.0 >= FIRST_LINK);
        self.next += 1;
        let interest = Interest::READ;
        if self.epoll.add(&arrival.link, id.0, interest).is_err() {
            return;
        }
        let asks = Asks::of(&arrival.private, &arrival.who);
        self.links[place] = Some(Entry {
            id,
            asks,
            link: arrival.link,
            who: arrival.who,
            peer: match asks.by_memory {
                true => format!("ivshmem+{}", arrival.peer),
                false => arrival.peer,
            },
            memory: None,
            session: None,
            interest,
            dirty: false,
            // Until it is parked, what comes by shared memory rings no bell.
            warm: WARM,
            _place: arrival.place,
        });
        self.due = None;
        self.opens_across = asks.has_memory;
        if asks.has_memory && self.memories.has_lot() {
            self.look_for_departed(now);
        }
        self.engine.on_connect(now, id, &arrival.private);
        self.carry_out();
        self.read(now, id, false);
    }

    fn drop_link(&mut self, link: LinkId) {
        let Some(entry) = self.entry(link) else {
            return;
        };
        // The last thing said is often why: it goes out if there is room.
        let _ = entry.link.flush();
        let place = usize::try_from(link.0 & ((1 << PLACE_BITS) - 1)).unwrap_or(usize::MAX);
        if let Some(slot) = self.links.get_mut(place) {
            *slot = None;
        }
    }

    /// Takes what has come by one connection. It may be gone after any of it.
    fn read(&mut self, now: Time, id: LinkId, readable: bool) {
        let Some(entry) = self.entry(id) else {
            return;
        };
        if entry.link.is_clogged() {
            return;
        }
        entry.link.turn(readable);
        while let Some(entry) = self.entry(id) {
            let Entry { link, memory, .. } = entry;
            let mut granted = super::memory::BySession(memory.as_deref());
            let received = match link.next(&mut granted) {
                Ok(Some(received)) => received,
                Ok(None) => {
                    entry.dirty |= link.owes();
                    if link.has_moved() {
                        entry.warm = WARM;
                        self.stirred = true;
                    }
                    return;
                }
                Err(error) => {
                    self.broken(now, id, error.for_path());
                    return;
                }
            };
            self.hand_over(now, id, &received);
            self.carry_out();
        }
    }

    fn hand_over(&mut self, now: Time, id: LinkId, received: &Received) {
        let inbound = match received {
            Received::Send(bytes, None) => Inbound::Send(bytes),
            Received::Send(bytes, Some(imm)) => Inbound::SendImmediate(bytes, *imm),
            Received::Immediate(imm) => Inbound::Immediate(*imm),
            Received::Step(..) | Received::Share(..) | Received::Place(..) => {
                let why = PathError::Misbehaved("a connection that begins twice");
                self.engine.on_broken(now, id, why);
                return;
            }
        };
        let place = usize::try_from(id.0 & ((1 << PLACE_BITS) - 1)).unwrap_or(usize::MAX);
        if let Some(Some(entry)) = self.links.get(place) {
            let view = View {
                memories: &self.memories,
                service: &self.service,
                names: &self.names,
                who: &entry.who,
                reach: entry.link.reach(),
            };
            self.engine.on_message(now, id, inbound, &view);
        }
    }

    fn broken(&mut self, now: Time, id: LinkId, why: PathError) {
        self.engine.on_broken(now, id, why);
        self.carry_out();
        // The engine does not know those that it has refused.
        self.drop_link(id);
    }

    fn flush(&mut self) {
        for slot in &mut self.links {
            let Some(entry) = slot.as_mut().filter(|entry| entry.dirty) else {
                continue;
            };
            entry.dirty = false;
            match entry.link.flush() {
                Ok(all) => {
                    let interest = Interest {
                        read: !entry.link.is_clogged(),
                        write: !all,
                    };
                    if entry.interest != interest {
                        entry.interest = interest;
                        self.epoll.change(&entry.link, entry.id.0, interest);
                    }
                }
                Err(error) => self.failed.push((entry.id, LinkError::for_path(error))),
            }
        }
        while let Some((link, why)) = self.failed.pop() {
            let now = self.started.elapsed();
            self.broken(now, link, why);
        }
    }

    // ---- what the engine says ----

    fn carry_out(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            self.act(action);
        }
        while let Some(event) = self.engine.poll_event() {
            self.due = None;
            match event {
                Event::SessionGone(session) => {
                    if self.names.borrow_mut().remove(&session).is_some() {
                        self.service.borrow_mut().gone(session);
                    }
                }
                Event::PathUp { session, .. } | Event::PathDown { session, .. } => {
                    if self.memories.has_lot() {
                        let soon = self.started.elapsed() + DEPARTED_EVERY;
                        self.looks_for_departed.get_or_insert(soon);
                    }
                    let paths = self.engine.paths_up(session);
                    self.service.borrow_mut().reached(session, paths);
                }
            }
        }
    }

    fn act(&mut self, action: Action) {
        let of_a_request = matches!(
            action,
            Action::Execute(_) | Action::Reply { .. } | Action::Immediate(..)
        );
        if !of_a_request {
            self.due = None;
        }
        match action {
            // Without memory, the session is refused: see `Accept`.
            Action::Open(session) => drop(self.memories.open(session, self.opens_across)),
            Action::Accept(link, private) => self.accept(link, &private),
            Action::Reject(link, private) => {
                if let Some(entry) = self.entry(link) {
                    entry.link.step(Step::Reject, &private);
                }
                self.drop_link(link);
            }
            Action::Send(link, bytes) => {
                if let Some(entry) = self.entry(link) {
                    entry.link.send(&bytes);
                    entry.dirty = true;
                }
            }
            Action::Immediate(link, imm) => {
                if let Some(entry) = self.entry(link) {
                    entry.link.immediate(imm);
                    entry.dirty = true;
                }
            }
            Action::Execute(job) => self.execute(job),
            Action::Reply {
                link,
                session: _,
                permit,
                data,
                invalidate,
                imm,
            } => self.reply(link, permit, data, invalidate, imm),
            Action::Close(link) => self.drop_link(link),
            Action::Free(session) => self.memories.free(session),
        }
    }

    fn accept(&mut self, link: LinkId, private: &[u8; CONN_LEN]) {
        let session = self.engine.session_of(link);
        let across = self.opens_across;
        let memory = session.and_then(|session| self.memories.of(session, across));
        if session.is_some() && memory.is_none() {
            return self.refuse(link, ENOMEM);
        }
        let has_lot = self.memories.has_lot();
        let asks = self.entry(link).map(|entry| entry.asks);
        let by_memory = asks.is_some_and(|asks| asks.by_memory);
        let memory = match (session, memory) {
            (Some(session), Some(memory)) if by_memory && !memory.is_lent() => {
                drop(memory);
                self.move_across(session)
            }
            (_, memory) => memory,
        };
        if by_memory && !memory.as_ref().is_some_and(|memory| memory.is_lent()) {
            let why = if has_lot { ENOSPC } else { EOPNOTSUPP };
            return self.refuse(link, why);
        }
        let Some(entry) = self.entry(link) else {
            return;
        };
        (entry.session, entry.memory) = (session, memory);
        match entry.make_ready() {
            Ok(()) => {
                entry.link.step(Step::Accept, private);
                entry.dirty = true;
            }
            Err(LinkError::Os(Errno(libc::ENOSPC))) => self.refuse(link, ENOSPC),
            Err(error) => self.failed.push((link, error.for_path())),
        }
    }

    /// Refuses a connection that the engine would accept.
    fn refuse(&mut self, link: LinkId, errno: u16) {
        if let Some(entry) = self.entry(link) {
            entry.link.step(Step::Reject, &ConnRsp::refusal(errno));
            entry.dirty = true;
        }
        self.failed.push((link, PathError::Refused(errno)));
    }

    fn execute(&mut self, job: Job) {
        let memory = self.memories.get(job.session);
        let Some(chunk) = memory.and_then(|memory| memory.chunk(job.permit)) else {
            return;
        };
        self.running += 1;
        self.taken += 1;
        self.handed_over = true;
        self.service.borrow_mut().execute(job, chunk);
    }

    fn reply(
        &mut self,
        link: LinkId,
        permit: u16,
        data: Option<(SgDesc, u32)>,
        invalidate: Option<u32>,
        imm: u32,
    ) {
        let Some(entry) = self.entry(link) else {
            return;
        };
        // The connection keeps the session's memory until it is dropped, with all that it has to send.
        let memory = entry.memory.as_ref();
        let chunk = memory.and_then(|memory| memory.chunk(permit));
        let place = data.map(|(into, len)| frame::WriteTarget {
            addr: into.addr,
            key: into.key,
            len,
            tail_at: 0,
            tail: 0,
        });
        match (&mut entry.link, place, invalidate) {
            (Link::Verbs(link), place, Some(key)) => {
                link.reply_and_invalidate(place, chunk, key, imm)
            }
            (link, Some(place), _) => link.reply(place, chunk, imm),
            (link, None, _) => link.immediate(imm),
        }
        entry.dirty = true;
    }

    // ---- the service ----

    fn serve(&mut self) {
        if self.running > 0 || self.handed_over {
            self.handed_over = false;
            let mut finished = std::mem::take(&mut self.finished);
            self.service.borrow_mut().finished(&mut finished);
            self.stirred |= !finished.is_empty();
            for done in finished.drain(..) {
                self.running = self.running.saturating_sub(1);
                let Finished {
                    session,
                    permit,
                    generation,
                    errno,
                } = done;
                self.engine.finished(session, permit, generation, errno);
                if !self.engine.is_connected(session) {
                    self.due = None;
                }
            }
            self.finished = finished;
            self.carry_out();
        }
        let mut notices = std::mem::take(&mut self.notices);
        self.service.borrow_mut().notices(&mut notices);
        if !notices.is_empty() {
            for (session, what) in notices.drain(..) {
                self.engine.notice(session, what);
            }
            self.carry_out();
        }
        self.notices = notices;
    }

    // ---- what one can see ----

    fn sessions(&self) -> Vec<SessionInfo> {
        let info = |id: SessionId| {
            let mut paths: Vec<ServedPath> = Vec::new();
            let links = self.links.iter().flatten();
            for entry in links.filter(|entry| entry.session == Some(id)) {
                // Connections of one path come from one host, each from a port of its own.
                let host = match entry.who {
                    Identity::Local { .. } => &entry.peer,
                    _ => entry.peer.rsplit_once(':').map_or("", |(host, _)| host),
                };
                let known = paths.iter_mut().find(|path| path.peer == host);
                match known {
                    Some(path) => path.connections += 1,
                    None => paths.push(ServedPath {
                        peer: host.into(),
                        who: entry.who.clone(),
                        connections: 1,
                    }),
                }
            }
            SessionInfo {
                id: (self.number, id),
                name: self.names.borrow().get(&id).cloned(),
                paths,
                stats: self.engine.stats(id).unwrap_or_default(),
            }
        };
        self.memories.sessions().map(info).collect()
    }

    // ---- the end ----

    /// No connection is left; what the service has is finished, before its memory goes.
    fn finish(mut self) {
        self.links.clear();
        let until = Instant::now() + LAST_JOBS;
        while self.running > 0 && Instant::now() < until {
            self.serve();
            if self.running > 0 {
                self.wait_for_service();
            }
        }
        let Worker {
            service,
            memories,
            running,
            ..
        } = self;
        drop(service);
        if running > 0 {
            // The kernel may still write there: it stays mapped until the process ends.
            std::mem::forget(memories);
        }
    }

    fn wait_for_service(&self) {
        let service = self.service.borrow();
        let Some(fd) = service.fd() else {
            std::thread::sleep(ASK);
            return;
        };
        // SAFETY: the service, which owns it, lives, and is not asked for anything meanwhile.
        let fd = unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) };
        let mut ready = Vec::new();
        if let Ok(epoll) = Epoll::new()
            && epoll.add(fd, SERVICE, Interest::READ).is_ok()
        {
            epoll.wait(Some(Duration::from_millis(100)), &mut ready);
        }
    }
}
