//! What a client's driver does while it drives: one engine, its connections, requests on their way through both.
//!
//! One thread at a time is in here (`engine::leader` says which). It does what the engine says, in order, and keeps its
//! promises: a connection that was closed is dropped, with all that it had in its buffers.

mod data;
mod fetch;
mod pass;

pub(super) use self::pass::Reads;

use super::across::SharedMemory;
use super::address::{Address, Epoll, Interest, PathAddr, Ready, connecting};
use super::chunks::Chunks;
use super::frame::{MAX_MESSAGE, MAX_TAIL, Step, WriteTarget};
use super::inflow::Received;
use super::link::Link;
use super::link_error::LinkError;
use super::pool::{self, ByReads, Pool, Reading};
use super::port_state::PortState;
use super::stream::StreamLink;
use super::tls::{ClientTls, Tls};
use super::verbs::{Reaches, VerbsLink};
use crate::engine::client::{Action, AfterRestart, AllDown, Client, Config, Event, Post, Request};
use crate::engine::path::{Conn, PathId};
use crate::engine::permits::Ticket;
use crate::engine::{Direction, Inbound, Time};
use crate::error::{PathError, RequestError, SubmitError};
use crate::lease::{Detour, Lease};
use crate::port::{Completion, News, Submission};
use crate::wire::{
    CAP_BY_MEMORY, CAP_SHARED_MEMORY, CONN_LEN, Geometry, MAX_REQUEST_HEADER, add_caps,
};
use memlane_core::region::Pages;
use memlane_sys::Errno;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// A request on its way in.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) port: Arc<PortState>,
    pub(super) submission: Submission,
}

/// A request that the engine has.
#[derive(Debug)]
struct Flight {
    ticket: Ticket,
    port: Arc<PortState>,
    tag: u64,
    lease: Option<Lease>,
    reads: bool,
    /// Its permit is its lease's.
    reserved: bool,
}

#[derive(Debug)]
struct Entry {
    conn: Conn,
    /// Never used again: which of the kernel's answers are about this connection.
    serial: u64,
    link: Link,
    /// Requests under way by it.
    busy: u32,
    interest: Interest,
    /// There may be something to flush.
    dirty: bool,
}

/// Results of driving the session that other threads wait for.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    pub(super) news: Vec<News>,
    /// The session's memory is there.
    pub(super) pool: Option<Arc<Pool>>,
}

/// Engine, connections, requests.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) engine: Client,
    started: Instant,
    all_down: AllDown,
    after_restart: AfterRestart,
    pub(super) addresses: BTreeMap<PathId, PathAddr>,
    /// For paths over TCP.
    tls: Option<ClientTls>,
    /// Memory that the server's machine may have, too.
    shares: Option<Arc<SharedMemory>>,
    /// The chunks that were found there last. They are kept until the server names others: the session may come back to
    /// them.
    found: Option<Arc<Chunks>>,
    links: Vec<Option<Entry>>,
    next_serial: u64,
    epoll: Arc<Epoll>,
    ready: Vec<Ready>,
    pool: Option<Arc<Pool>>,
    /// What that is made of.
    pages: Pages,
    /// What connections of today share, if any does: where leases lie.
    chunks: Option<Arc<Chunks>>,
    /// Devices by which the server writes to leases itself.
    reaches: Arc<Reaches>,
    /// By permit.
    flights: Vec<Option<Flight>>,
    /// By slot.
    reading: Vec<Option<Reading>>,
    /// Taken from ports, not yet by the engine; since when.
    backlog: VecDeque<(Time, Queued)>,
    /// Connections that failed while actions were carried out.
    failed: Vec<(Conn, PathError)>,
    pub(super) told: Delivery,
    passes: u32,
    /// Something has come, if only a part, since this was taken away.
    pub(super) has_moved: bool,
    /// What `deadline` said last, until something happens.
    due: Cell<Option<Option<Time>>>,
}

impl Core {
    pub(super) fn new(
        config: Config,
        epoll: Arc<Epoll>,
        (tls, pages, shares): (Option<ClientTls>, Pages, Option<Arc<SharedMemory>>),
    ) -> Core {
        Core {
            all_down: config.all_down,
            after_restart: config.after_restart,
            engine: Client::new(config),
            started: Instant::now(),
            addresses: BTreeMap::new(),
            tls,
            shares,
            found: None,
            pages,
            links: Vec::new(),
            next_serial: 0,
            epoll,
            ready: Vec::new(),
            pool: None,
            chunks: None,
            reaches: Arc::default(),
            flights: Vec::new(),
            reading: Vec::new(),
            backlog: VecDeque::new(),
            failed: Vec::new(),
            told: Delivery::default(),
            passes: 0,
            has_moved: false,
            due: Cell::new(None),
        }
    }

    pub(super) fn now(&self) -> Time {
        self.started.elapsed()
    }

    pub(super) fn instant(&self, at: Time) -> Instant {
        self.started + at
    }

    // ---- one pass ----

    /// Requests from ports come in; nothing is read.
    pub(super) fn take_in(&mut self, queued: &mut Vec<Queued>) {
        let now = self.now();
        self.happens();
        let stamped = queued.drain(..).map(|queued| (now, queued));
        self.backlog.extend(stamped);
        self.submit(now);
        self.flush(now);
    }

    /// From here on another deadline may be the first.
    pub(super) fn happens(&mut self) {
        self.due.set(None);
    }

    /// When `pass` is to be called at the latest.
    pub(super) fn deadline(&self) -> Option<Time> {
        let due = self.due.get().unwrap_or_else(|| self.first_deadline());
        self.due.set(Some(due));
        due
    }

    fn first_deadline(&self) -> Option<Time> {
        let engine = self.engine.deadline();
        match (self.backlog.front(), self.all_down) {
            (Some((since, _)), AllDown::Queue(limit)) if self.pool.is_none() => {
                let expiry = *since + limit;
                Some(engine.map_or(expiry, |engine| engine.min(expiry)))
            }
            _ => engine,
        }
    }

    /// What waits for the first path for too long.
    fn expire(&mut self, now: Time) {
        let AllDown::Queue(limit) = self.all_down else {
            return;
        };
        let over = |since: Time| now >= since + limit;
        while self.pool.is_none()
            && self.backlog.front().is_some_and(|(since, _)| over(*since))
            && let Some((_, queued)) = self.backlog.pop_front()
        {
            queued.fails(RequestError::TimedOut);
        }
    }

    // ---- requests ----

    fn submit(&mut self, now: Time) {
        while let Some((since, queued)) = self.backlog.pop_front() {
            self.happens();
            if let Some((error, queued)) = self.submit_one(now, queued) {
                let waits = error == SubmitError::NoPermit
                    || (error == SubmitError::NoPath && self.all_down != AllDown::Fail);
                if waits {
                    self.backlog.push_front((since, queued));
                    break;
                }
                queued.fails(match error {
                    SubmitError::NoPermit | SubmitError::NoPath => RequestError::NoPath,
                    SubmitError::TooLong | SubmitError::Destination => RequestError::TooLong,
                    SubmitError::BeyondCpu => RequestError::BeyondCpu,
                    SubmitError::Closed => RequestError::Closed,
                });
            }
        }
    }

    /// Gives a request to the engine, or back, with the reason.
    fn submit_one(&mut self, now: Time, mut queued: Queued) -> Option<(SubmitError, Queued)> {
        let reserved = self.reserved(&mut queued.submission);
        let submission = &queued.submission;
        let lent = submission.lease.as_ref();
        if lent.map_or(0, |lease| lease.bytes().len()) < submission.len as usize {
            return Some((SubmitError::Destination, queued));
        }
        let reads = submission.direction == Direction::Read;
        if !reads && lent.is_some_and(Lease::is_beyond_cpu) {
            return Some((SubmitError::BeyondCpu, queued));
        }
        if submission.usr.len() + MAX_REQUEST_HEADER > MAX_TAIL {
            return Some((SubmitError::TooLong, queued));
        }
        let pool = self.pool.as_ref();
        let describe =
            |lease: &Lease| pool.map(|pool| pool.describe(lease.number(), submission.len));
        let request = Request {
            direction: submission.direction,
            usr: submission.usr.clone(),
            len: submission.len,
            into: lent.filter(|_| reads).and_then(describe),
            hint: queued.port.hint,
        };
        let ticket = match self.engine.submit_with(now, request, reserved) {
            Ok(ticket) => ticket,
            Err(error) => return Some((error, queued)),
        };
        let Queued { port, submission } = queued;
        if let Some(flight) = self.flights.get_mut(usize::from(ticket.permit)) {
            *flight = Some(Flight {
                ticket,
                port,
                tag: submission.tag,
                lease: submission.lease,
                reads,
                reserved: reserved.is_some(),
            });
        }
        // Now, while the flight is known and no other has its permit.
        self.carry_out(now);
        None
    }

    /// The permit of a request whose lease lies in a chunk. The request's tail comes behind its data: so it has to be
    /// the whole lease. What lies in chunks of the past goes home.
    fn reserved(&self, submission: &mut Submission) -> Option<u16> {
        let lease = submission.lease.as_mut()?;
        let claim = lease.claim()?;
        if !self.chunks.as_ref().is_some_and(|now| claim.is_of(now)) {
            // No request has its permit: it is given back.
            drop(self.pool.as_ref()?.bring_home(lease));
            return None;
        }
        let whole = lease.bytes().len() == submission.len as usize;
        whole.then(|| claim.permit())
    }

    /// The lease of a request that is under way leaves its chunk, whose permit the engine then has.
    fn bring_home(&mut self, permit: u16) {
        let flight = self.flights.get_mut(usize::from(permit));
        let flight = flight.and_then(Option::as_mut);
        let (Some(flight), Some(pool)) = (flight.filter(|f| f.reserved), &self.pool) else {
            return;
        };
        if let Some(claim) = flight.lease.as_mut().and_then(|l| pool.bring_home(l)) {
            self.engine.keep(permit);
            claim.hand_over();
            flight.reserved = false;
        }
    }

    /// Do connections still share the chunks in which leases lie?
    fn look_at_chunks(&mut self) {
        let mut shared = self
            .links
            .iter()
            .flatten()
            .filter_map(|entry| entry.link.chunks())
            .filter(|chunks| chunks.takes_leases());
        let first = shared.clone().next().cloned();
        let still = |chunks: &Arc<Chunks>| shared.any(|other| Arc::ptr_eq(chunks, other));
        if !self.chunks.as_ref().is_some_and(still) {
            self.chunks = first;
        }
        if let Some(pool) = &self.pool {
            pool.lie_in(self.chunks.clone());
        }
    }

    // ---- what the engine says ----

    pub(super) fn carry_out(&mut self, now: Time) {
        self.happens();
        loop {
            while let Some(action) = self.engine.poll_action() {
                self.act(action);
            }
            while let Some(event) = self.engine.poll_event() {
                self.heed(event);
            }
            let Some((conn, why)) = self.failed.pop() else {
                break;
            };
            self.engine.on_broken(now, conn, why);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Connect { conn, private } => self.connect(conn, &private),
            Action::Send { conn, bytes } => {
                if let Some(entry) = self.entry(conn) {
                    entry.link.send(&bytes);
                    entry.dirty = true;
                }
            }
            Action::Immediate { conn, imm } => {
                if let Some(entry) = self.entry(conn) {
                    entry.link.immediate(imm);
                    entry.dirty = true;
                }
            }
            Action::Post(mut post) => {
                self.post(&mut post);
                self.engine.take_back(post.tail);
            }
            Action::Close { path, epoch } => {
                self.close_all(|conn| conn.path == path && conn.epoch == epoch);
            }
        }
    }

    fn entry(&mut self, conn: Conn) -> Option<&mut Entry> {
        let mut entries = self.links.iter_mut().flatten();
        entries.find(|entry| entry.conn == conn)
    }

    fn connect(&mut self, conn: Conn, private: &[u8; CONN_LEN]) {
        let mut private = *private;
        let link = match self.addresses.get(&conn.path) {
            Some(path) => self.begin(path, &mut private),
            None => Err(LinkError::Ended),
        };
        let link = match link {
            Ok(link) => link,
            Err(error) => {
                self.failed.push((conn, error.for_path()));
                return;
            }
        };
        let serial = self.next_serial;
        self.next_serial += 1;
        let interest = Interest {
            read: true,
            write: true,
        };
        if let Err(errno) = self.epoll.add(&link, serial, interest) {
            let why = PathError::Os(errno.raw_os_error());
            self.failed.push((conn, why));
            return;
        }
        let entry = Entry {
            conn,
            serial,
            link,
            busy: 0,
            interest,
            // Once the kernel says that it is there.
            dirty: false,
        };
        match self.links.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(entry),
            None => self.links.push(Some(entry)),
        }
    }

    /// A connection that is on its way.
    fn begin(&self, path: &PathAddr, private: &mut [u8; CONN_LEN]) -> Result<Link, LinkError> {
        let by_memory = matches!(path.dst, Address::Ivshmem(_));
        match (&self.shares, by_memory) {
            (None, true) => return Err(LinkError::NoMemory),
            (Some(_), true) => add_caps(private, CAP_SHARED_MEMORY | CAP_BY_MEMORY),
            (Some(_), false) => add_caps(private, CAP_SHARED_MEMORY),
            (None, false) => {}
        }
        if let Address::Rdma(to) = &path.dst {
            let from = path.src.map(|ip| SocketAddr::new(ip, 0));
            return Ok(VerbsLink::to(from, to, private, &self.reaches)?.into());
        }
        let socket =
            connecting(path).map_err(|errno| LinkError::Os(Errno(errno.raw_os_error())))?;
        let mut link = StreamLink::new(socket, MAX_MESSAGE);
        match (&path.dst, &self.tls) {
            (Address::Local(_), _) => link.awaits_descriptors(),
            (Address::Tcp(to) | Address::Ivshmem(to), Some(tls)) => {
                link.encrypts(Tls::client(tls, to.ip()).map_err(LinkError::Tls)?);
            }
            _ => {}
        }
        if by_memory {
            link.awaits_place();
        }
        link.step(Step::Connect, private);
        Ok(link.into())
    }

    fn post(&mut self, post: &mut Post) {
        let permit = post.ticket.permit;
        let claim_is_good = |flight: &Flight, chunks: Option<&Arc<Chunks>>| {
            let claim = flight.lease.as_ref().and_then(Lease::claim);
            claim
                .zip(chunks)
                .is_some_and(|(claim, now)| claim.is_of(now))
        };
        let flight = self
            .flights
            .get(usize::from(permit))
            .and_then(Option::as_ref);
        let reserved = flight.filter(|flight| flight.ticket == post.ticket && flight.reserved);
        let good = reserved.map(|flight| claim_is_good(flight, self.chunks.as_ref()));
        if good == Some(false) {
            self.bring_home(permit);
        }
        let mut entries = self.links.iter_mut().flatten();
        let Some(entry) = entries.find(|entry| entry.conn == post.conn) else {
            return;
        };
        let there = entry.link.chunks().zip(self.chunks.as_ref());
        let in_place = good == Some(true)
            && there.is_some_and(|(there, now)| Arc::ptr_eq(there, now))
            && entry.link.has_chunk(post.chunk.addr, permit);
        let flight = self
            .flights
            .get(usize::from(permit))
            .and_then(Option::as_ref);
        let flight = flight.filter(|flight| flight.ticket == post.ticket);
        let lease = flight.and_then(|flight| flight.lease.as_ref());
        let by_device = match (entry.link.reach(), lease, &self.pool) {
            (Some(reach), Some(lease), Some(pool)) => {
                match data::for_device(reach, pool, lease, post) {
                    Ok(data) => Some(data),
                    Err(error) => {
                        self.failed.push((post.conn, error.for_path()));
                        return;
                    }
                }
            }
            _ => None,
        };
        if let (Some(lease), true) = (lease, flight.is_some_and(|flight| flight.reads))
            && let Some(reading) = self.reading.get_mut(lease.number() as usize)
        {
            *reading = Some(Reading {
                by: post.conn,
                // A read's tail lies where its data would end.
                len: post.tail_at,
                into: lease.bytes(),
                in_place,
                by_slot: by_device.is_some_and(|data| data.by_slot),
                detour: match by_device {
                    Some(data) => data.detour,
                    None => lease.is_beyond_cpu().then_some(Detour::NoDevice),
                },
            });
        }
        let data = lease.map(Lease::bytes).filter(|_| !in_place);
        let data = by_device.map_or(data, |data| data.bytes);
        let place = WriteTarget {
            addr: post.chunk.addr,
            key: post.chunk.key,
            // What is in place is not written.
            len: if in_place { 0 } else { post.data },
            tail_at: post.tail_at,
            // `submit_one` has compared it with `MAX_TAIL`.
            tail: u16::try_from(post.tail.len()).unwrap_or(0),
        };
        entry.link.post(place, data, &post.tail, post.imm);
        entry.busy += 1;
        entry.dirty = true;
    }

    fn close_all(&mut self, which: impl Fn(Conn) -> bool) {
        for slot in &mut self.links {
            if slot.as_ref().is_some_and(|entry| which(entry.conn)) {
                // Dropped, it is closed, and out of the set of those that are waited for.
                *slot = None;
            }
        }
        self.look_at_chunks();
    }

    fn heed(&mut self, event: Event) {
        match event {
            Event::PathUp(path) => {
                self.told.news.push(News::PathUp(path));
                self.make_pool(path);
                self.let_reach(path);
                self.look_at_chunks();
            }
            Event::PathDown { path, why, .. } => {
                self.told.news.push(News::PathDown(path, why));
            }
            Event::ServerRestarted => {
                self.told.news.push(News::ServerRestarted);
                self.forget_backlog();
                self.look_at_chunks();
            }
            Event::Notice(what) => self.told.news.push(News::Notice(what)),
            Event::Done { ticket, result } => self.done(ticket, result),
        }
    }

    /// What no permit was found for yet was meant for the server that is no more.
    fn forget_backlog(&mut self) {
        if self.after_restart == AfterRestart::Fail {
            for (_, queued) in self.backlog.drain(..) {
                queued.fails(RequestError::OutcomeUnknown);
            }
        }
    }

    /// Without memory no request with data can be made: the path is down until there is some.
    fn make_pool(&mut self, path: PathId) {
        let Some(geometry) = self.engine.geometry().filter(|_| self.pool.is_none()) else {
            return;
        };
        match Pool::new(&geometry, self.pages) {
            Ok(pool) => {
                self.reading.resize_with(pool.slots(), || None);
                self.flights
                    .resize_with(usize::from(geometry.depth()), || None);
                self.told.pool = Some(Arc::clone(&pool));
                self.pool = Some(pool);
            }
            Err(errno) => {
                let why = no_memory(self.pages, &geometry, errno);
                let links = self.links.iter().flatten();
                let of_it = links.map(|entry| entry.conn).find(|conn| conn.path == path);
                self.failed.extend(of_it.map(|conn| (conn, why)));
            }
        }
    }

    fn done(&mut self, ticket: Ticket, result: Result<(), RequestError>) {
        let slot = self.flights.get_mut(usize::from(ticket.permit));
        let Some(mut flight) = slot.and_then(|slot| slot.take_if(|flight| flight.ticket == ticket))
        else {
            return;
        };
        let answered = matches!(result, Ok(()) | Err(RequestError::Remote(_)));
        if flight.reserved && !answered {
            self.leave_chunk(&mut flight);
        }
        let number = flight.lease.as_ref().map(Lease::number);
        let reading = number.and_then(|number| self.reading.get_mut(number as usize));
        if let Some(reading) = reading {
            *reading = None;
        }
        flight.port.complete(Completion {
            tag: flight.tag,
            result,
            lease: flight.lease,
        });
    }

    /// A request failed, and the server may still have it: nobody's lease may lie where that works.
    fn leave_chunk(&self, flight: &mut Flight) {
        let (Some(lease), Some(pool)) = (flight.lease.as_mut(), &self.pool) else {
            return;
        };
        if let Some(claim) = pool.bring_home(lease)
            && self.engine.holds(claim.permit())
        {
            claim.hand_over();
        }
    }

    // ---- connections ----

    /// Takes what has come by one connection. It may be gone after any of it.
    fn read(&mut self, now: Time, at: usize, readable: bool) {
        let Some(entry) = self.links[at].as_mut() else {
            return;
        };
        let (conn, serial) = (entry.conn, entry.serial);
        if self.pool.as_ref().is_some_and(|pool| pool.has_memories()) {
            entry.link.narrows();
        }
        entry.link.turn(readable);
        while let Some(entry) = self.links[at].as_mut()
            && entry.serial == serial
        {
            let mut granted = ByReads {
                pool: self.pool.as_deref(),
                reading: &self.reading,
                by: conn,
            };
            let next = entry.link.next(&mut granted);
            match self.see(at, conn, next) {
                Ok(Some(received)) => {
                    self.hand_over(now, conn, received);
                }
                Ok(None) => {
                    if let Some(entry) = &mut self.links[at] {
                        self.has_moved |= entry.link.has_moved();
                        entry.dirty |= entry.link.owes();
                    }
                    return;
                }
                Err(error) => self.engine.on_broken(now, conn, error.for_path()),
            }
            self.carry_out(now);
        }
    }

    /// What the device has to do with it before the engine hears of it.
    fn see(
        &mut self,
        at: usize,
        conn: Conn,
        next: Result<Option<Received>, LinkError>,
    ) -> Result<Option<Received>, LinkError> {
        let Some(entry) = self.links[at].as_mut() else {
            return Ok(None);
        };
        match next {
            Ok(Some(Received::Share(slots, base))) => {
                let geometry = self.engine.geometry().ok_or(LinkError::Queue)?;
                let permits = self.engine.permits();
                let entries = self.links.iter().flatten();
                let known = entries.filter_map(|entry| entry.link.chunks());
                let known: Vec<_> = known.cloned().collect();
                if let Some(entry) = self.links[at].as_mut() {
                    entry.link.join(slots, base, |fd| {
                        Chunks::attach(fd, &geometry, permits, &known)
                    })?;
                }
            }
            Ok(Some(Received::Place(slots, base, places))) => {
                self.join_at(at, (slots, base), &places)?;
            }
            Ok(Some(Received::Step(Step::Accept, _)))
                if conn.cid > 0 && entry.link.misses_its_place() =>
            {
                return Err(LinkError::NotShared);
            }
            Ok(Some(Received::Immediate(imm))) => {
                // At worst a heartbeat: then it is looked at a little later.
                entry.busy = entry.busy.saturating_sub(1);
                self.brought(at, conn, imm)?;
            }
            _ => {}
        }
        next
    }

    /// A connection by memory that both machines have is told where in it.
    fn join_at(
        &mut self,
        at: usize,
        queues: (u32, u64),
        places: &[u8; CONN_LEN],
    ) -> Result<(), LinkError> {
        let memory = self.shares.as_ref().ok_or(LinkError::Queue)?;
        let geometry = self.engine.geometry().ok_or(LinkError::Queue)?;
        let permits = self.engine.permits();
        let found = &mut self.found;
        let Some(entry) = self.links[at].as_mut() else {
            return Ok(());
        };
        entry.link.join_at(queues, places, memory, |place| {
            let known = found.as_slice();
            let chunks = Chunks::claim_at(memory, place, (&geometry, permits), known)?;
            *found = Some(Arc::clone(&chunks));
            Ok(chunks)
        })
    }

    /// Parks the connections: from now on what comes makes a socket readable. `false`: something has come already.
    pub(super) fn park(&mut self) -> bool {
        let mut quiet = true;
        for entry in self.links.iter_mut().flatten() {
            // Each of them, whatever the others say.
            quiet &= entry.link.park();
        }
        quiet
    }

    fn hand_over(&mut self, now: Time, conn: Conn, received: Received) {
        let engine = &mut self.engine;
        match received {
            Received::Step(Step::Accept, private) => engine.on_accepted(now, conn, &private),
            Received::Step(Step::Reject, private) => engine.on_rejected(now, conn, &private),
            Received::Step(Step::Connect, _) => {
                let why = PathError::Misbehaved("a server that wants to connect");
                engine.on_broken(now, conn, why);
            }
            Received::Send(bytes, None) => engine.on_message(now, conn, Inbound::Send(&bytes)),
            Received::Send(bytes, Some(imm)) => {
                engine.on_message(now, conn, Inbound::SendImmediate(&bytes, imm));
            }
            Received::Immediate(imm) => engine.on_message(now, conn, Inbound::Immediate(imm)),
            Received::Share(..) | Received::Place(..) => {}
        }
    }

    /// Sends what there is to send. One that does not take it all is waited for.
    pub(super) fn flush(&mut self, now: Time) {
        for slot in &mut self.links {
            let Some(entry) = slot.as_mut().filter(|entry| entry.dirty) else {
                continue;
            };
            entry.dirty = false;
            let sent = match entry.link.flush() {
                Ok(false) if entry.link.is_clogged() => Err(LinkError::Clogged),
                sent => sent,
            };
            match sent {
                Ok(all) => {
                    let interest = Interest {
                        read: true,
                        write: !all,
                    };
                    if entry.interest != interest {
                        entry.interest = interest;
                        self.epoll.change(&entry.link, entry.serial, interest);
                    }
                }
                Err(error) => self.failed.push((entry.conn, error.for_path())),
            }
        }
        if !self.failed.is_empty() {
            self.carry_out(now);
            // What went elsewhere goes out with the next pass, which is at once.
            let again = self.links.iter().flatten().any(|entry| entry.dirty);
            if again {
                self.flush(now);
            }
        }
    }

    // ---- the end ----

    /// Everything fails; nothing more is connected.
    pub(super) fn close(&mut self) {
        let now = self.now();
        self.engine.close(now);
        self.carry_out(now);
        for (_, queued) in self.backlog.drain(..) {
            queued.fails(RequestError::Closed);
        }
        if let Some(chunks) = self.found.take() {
            chunks.client_departs();
        }
        self.close_all(|_| true);
    }
}

impl Queued {
    pub(super) fn fails(self, error: RequestError) {
        self.port.complete(Completion {
            tag: self.submission.tag,
            result: Err(error),
            lease: self.submission.lease,
        });
    }
}

/// Why a session has no memory.
fn no_memory(pages: Pages, geometry: &Geometry, errno: Errno) -> PathError {
    match pages {
        Pages::Plain => PathError::Os(errno.0),
        Pages::Huge => {
            let needed = pages.huge_for(pool::len_of(geometry));
            PathError::HugePages(u32::try_from(needed).unwrap_or(u32::MAX))
        }
    }
}
