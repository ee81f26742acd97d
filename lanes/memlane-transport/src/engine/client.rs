//! A client's session: requests in, one result for each out, whatever its paths do meanwhile.
//!
//! What happens when a path goes down is in `failover.rs`.

use super::backoff::{Backoff, Jitter};
use super::memory::flags;
use super::path::{Conn, Path, PathId, PathState};
use super::permits::{Free, Permits, Ticket};
use super::policy::{Policy, pick};
use super::pulse::Heartbeat;
use super::{Direction, Inbound, Time};
use crate::error::{PathError, RequestError, SubmitError};
use crate::message::Message;
use crate::stats::PathStats;
use crate::wire::{
    CAPS, CONN_LEN, Caps, ConnReq, ConnRsp, Control, Geometry, Immediate, MAX_PATHS,
    MAX_REQUEST_HEADER, READ_LEN, Replay, Request as Header, RequestKind, SgDesc, Uuid,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

/// Tails whose memory is kept: as many as a driver has at a time, which carries out one action after the other.
const SPARE_TAILS: usize = 16;

/// What to do with requests while no path is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllDown {
    /// Keep them for so long.
    Queue(Duration),
    /// Fail them at once.
    Fail,
}

/// What to do with requests that were meant for a server that has restarted: it cannot say whether it executed them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterRestart {
    /// Send them again: right where executing one twice in a row is the same as once, as on a disk.
    Replay,
    /// Fail them with [`RequestError::OutcomeUnknown`], also what was not sent yet: what they name may be another thing
    /// to the new server.
    Fail,
}

/// A session's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name.
    pub name: String,
    /// Its identity: another one for each start of each client.
    pub session: Uuid,
    /// Connections for requests, of each path; there is one more, for control.
    pub connections: u16,
    /// Which path takes a request.
    pub policy: Policy,
    /// What to do while no path is up.
    pub all_down: AllDown,
    /// What to do with requests that a restarted server had.
    pub after_restart: AfterRestart,
    /// Replay also to a server that cannot tell a replay from a new request, as mainline does. A late first
    /// copy may then overwrite newer data.
    pub replay_unfenced: bool,
    /// When a path counts as dead.
    pub heartbeat: Heartbeat,
    /// How long a path may take to come up.
    pub connect_timeout: Duration,
    /// When to try again.
    pub backoff: Backoff,
    /// How often to try again; `None`: for ever.
    pub attempts: Option<u32>,
    /// For jitter.
    pub seed: u64,
}

impl Config {
    /// The defaults.
    #[must_use]
    pub fn new(name: &str, session: Uuid) -> Self {
        Config {
            name: name.into(),
            session,
            connections: 1,
            policy: Policy::default(),
            all_down: AllDown::Queue(Duration::from_secs(30)),
            after_restart: AfterRestart::Replay,
            replay_unfenced: false,
            heartbeat: Heartbeat::default(),
            connect_timeout: Duration::from_secs(2),
            backoff: Backoff::default(),
            attempts: None,
            seed: u64::from_le_bytes(session[..8].try_into().unwrap_or_default()),
        }
    }
}

/// A request to the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Which way the data goes.
    pub direction: Direction,
    /// The message beside the data.
    pub usr: Message,
    /// Bytes of data.
    pub len: u32,
    /// Where the server is to put what is read.
    pub into: Option<SgDesc>,
    /// Requests with the same number take the same connection of a path: the CPU, for example.
    pub hint: u16,
}

/// What the driver is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Make this connection, with this private data; then `on_accepted`, `on_rejected` or `on_closed`.
    Connect {
        /// Which.
        conn: Conn,
        /// A [`ConnReq`].
        private: [u8; CONN_LEN],
    },
    /// Send a message.
    Send {
        /// By which connection.
        conn: Conn,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Send an immediate alone.
    Immediate {
        /// By which connection.
        conn: Conn,
        /// The immediate.
        imm: u32,
    },
    /// Write a request into its chunk.
    Post(Post),
    /// Close all connections of an incarnation, at once.
    Close {
        /// The path.
        path: PathId,
        /// The incarnation.
        epoch: u64,
    },
}

/// A request on its way into its chunk: its data to the beginning, `tail` at `tail_at`, then the immediate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Post {
    /// By which connection.
    pub conn: Conn,
    /// Whose data.
    pub ticket: Ticket,
    /// The chunk, as the server counts.
    pub chunk: SgDesc,
    /// Bytes of the request's data to write; none for a read.
    pub data: u32,
    /// Where the tail goes, from the chunk's beginning.
    pub tail_at: u32,
    /// User message and header.
    pub tail: Vec<u8>,
    /// Where in the tail the description of a read's destination begins: a device may know it by another name.
    pub into_at: Option<NonZeroU16>,
    /// The immediate that tells the server.
    pub imm: u32,
}

/// What the user of a session is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A path is up.
    PathUp(PathId),
    /// A path went down, or failed to come up.
    PathDown {
        /// Which.
        path: PathId,
        /// Why.
        why: PathError,
        /// Requests that go elsewhere.
        failed_over: usize,
    },
    /// The server has forgotten the session: devices are to be opened anew.
    ServerRestarted,
    /// The server's service calls. May come more than once, and not at all if a path goes down meanwhile.
    Notice(u32),
    /// A request is over; its permit may be in use again.
    Done {
        /// Which.
        ticket: Ticket,
        /// How it went.
        result: Result<(), RequestError>,
    },
}

/// Where a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestState {
    Waiting,
    Sent { by: Conn, at: Time },
}

/// A request that was taken and is not over.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) request: Request,
    pub(super) ticket: Ticket,
    pub(super) place: RequestState,
    /// Since when it waits, if it does.
    pub(super) since: Time,
    /// In which order requests were taken.
    pub(super) order: u64,
    /// Its permit is its user's, also when it is over.
    pub(super) reserved: bool,
    /// A copy may have reached the server.
    pub(super) sent: bool,
    /// Its user was told that it failed. The permit stays taken until the server says that no copy is left.
    pub(super) abandoned: bool,
}

/// The client's engine.
#[derive(Debug)]
pub struct Client {
    pub(super) config: Config,
    pub(super) jitter: Jitter,
    pub(super) geometry: Option<Geometry>,
    /// The server counts generations and knows fences.
    pub(super) can_replay: bool,
    /// The server's instance of this session.
    pub(super) instance: Option<u64>,
    /// Instances that are no more.
    pub(super) gone: VecDeque<u64>,
    pub(super) paths: BTreeMap<PathId, Path>,
    next_path: u32,
    pub(super) epoch: u64,
    pub(super) permits: Permits,
    pub(super) flights: Vec<Option<Flight>>,
    pub(super) waiting: VecDeque<u16>,
    /// Epochs that died with requests on them, and that the server has not fenced yet.
    pub(super) dead: BTreeSet<u64>,
    turn: usize,
    taken: u64,
    closed: bool,
    pub(super) actions: VecDeque<Action>,
    pub(super) events: VecDeque<Event>,
    /// Memory of tails that were sent, to be used again.
    spare: Vec<Vec<u8>>,
}

impl Client {
    /// A session without paths.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Client {
            jitter: Jitter(config.seed),
            config,
            geometry: None,
            can_replay: false,
            instance: None,
            gone: VecDeque::new(),
            paths: BTreeMap::new(),
            next_path: 0,
            epoch: 0,
            permits: Permits::default(),
            flights: Vec::new(),
            waiting: VecDeque::new(),
            dead: BTreeSet::new(),
            turn: 0,
            taken: 0,
            closed: false,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    // ---- what the user does ----

    /// Adds a path and begins to connect it. `None`: there are as many as there may be, or the session is closed.
    pub fn add_path(&mut self, now: Time) -> Option<PathId> {
        if self.closed || self.paths.len() >= MAX_PATHS {
            return None;
        }
        let id = PathId(self.next_path);
        self.next_path += 1;
        self.paths.insert(id, Path::new(id, &self.config.session));
        self.connect(now, id);
        Some(id)
    }

    /// Takes a path away; its requests go elsewhere.
    pub fn remove_path(&mut self, now: Time, id: PathId) {
        self.disconnect(now, id);
        self.paths.remove(&id);
    }

    /// Takes a path down until [`reconnect`](Self::reconnect).
    pub fn disconnect(&mut self, now: Time, id: PathId) {
        self.path_down(now, id, PathError::Requested);
        let path = self.paths.get_mut(&id);
        if let Some(path) = path.filter(|path| path.state() == PathState::Reconnecting) {
            path.becomes(PathState::Closed);
        }
    }

    /// Connects a path anew, now.
    pub fn reconnect(&mut self, now: Time, id: PathId) {
        self.disconnect(now, id);
        if !self.closed {
            self.connect(now, id);
        }
    }

    /// Ends the session. What was not over fails; whether it was executed is not known.
    pub fn close(&mut self, now: Time) {
        self.closed = true;
        let all: Vec<_> = self.paths.keys().copied().collect();
        for id in all {
            self.disconnect(now, id);
        }
        self.waiting.clear();
        for flight in std::mem::take(&mut self.flights).into_iter().flatten() {
            if !flight.abandoned {
                self.tell(flight.ticket, Err(RequestError::Closed));
            }
        }
    }

    /// Takes a request. The driver keeps what is to be written, unchanged, until it is told [`Event::Done`].
    pub fn submit(&mut self, now: Time, request: Request) -> Result<Ticket, SubmitError> {
        self.submit_with(now, request, None)
    }

    /// Takes a request with a permit that the driver has reserved, and that no request has. It stays the driver's, unless the
    /// engine [`holds`](Self::holds) it when it has told that the request failed.
    pub fn submit_with(
        &mut self,
        now: Time,
        request: Request,
        reserved: Option<u16>,
    ) -> Result<Ticket, SubmitError> {
        if self.closed {
            return Err(SubmitError::Closed);
        }
        let geometry = self.geometry.ok_or(SubmitError::NoPath)?;
        let header = geometry.header() as usize;
        if request.len > geometry.max_io() || request.usr.len() + MAX_REQUEST_HEADER > header {
            return Err(SubmitError::TooLong);
        }
        let room = request.into.map_or(0, |into| into.len);
        if request.direction == Direction::Read && room < request.len {
            return Err(SubmitError::Destination);
        }
        let path = self.choose();
        if path.is_none() && self.config.all_down == AllDown::Fail {
            return Err(SubmitError::NoPath);
        }
        let ticket = match reserved {
            Some(permit) if !self.holds(permit) => self.permits.again(permit),
            Some(_) => None,
            None => self.permits.take(),
        };
        let ticket = ticket.ok_or(SubmitError::NoPermit)?;
        self.taken += 1;
        self.flights[usize::from(ticket.permit)] = Some(Flight {
            request,
            ticket,
            place: RequestState::Waiting,
            since: now,
            order: self.taken,
            reserved: reserved.is_some(),
            sent: false,
            abandoned: false,
        });
        match path {
            Some(path) => self.post(now, ticket.permit, path),
            None => self.waiting.push_back(ticket.permit),
        }
        Ok(ticket)
    }

    /// What the driver is to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The driver is done with a [`Post::tail`]: its memory is used again.
    pub fn take_back(&mut self, tail: Vec<u8>) {
        if self.spare.len() < SPARE_TAILS {
            self.spare.push(tail);
        }
    }

    /// What the user is told next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // ---- what the driver tells ----

    /// Time has passed.
    pub fn poll(&mut self, now: Time) {
        let all: Vec<_> = self.paths.keys().copied().collect();
        for id in all {
            self.poll_path(now, id);
        }
        self.expire(now);
    }

    fn poll_path(&mut self, now: Time, id: PathId) {
        let Some(path) = self.paths.get_mut(&id) else {
            return;
        };
        match path.state() {
            PathState::Connecting if now >= path.at => {
                self.path_down(now, id, PathError::ConnectTimeout);
            }
            PathState::Reconnecting if now >= path.at => self.connect(now, id),
            PathState::Connected => {
                let asked = path.beat(now, &self.config.heartbeat, self.can_replay);
                for cid in asked.iter().flatten() {
                    let (conn, imm) = (path.conn(*cid), Immediate::Heartbeat.encode());
                    self.actions.push_back(Action::Immediate { conn, imm });
                }
                if asked.is_none() {
                    self.path_down(now, id, PathError::Silent);
                }
            }
            _ => {}
        }
    }

    /// When to call [`poll`](Self::poll) at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let paths = self.paths.values().filter_map(|path| match path.state() {
            PathState::Connecting | PathState::Reconnecting => Some(path.at),
            PathState::Connected => path.next_beat(&self.config.heartbeat, self.can_replay),
            PathState::Closed => None,
        });
        paths.chain(self.next_expiry()).min()
    }

    /// A connection was accepted, with this private data.
    pub fn on_accepted(&mut self, now: Time, conn: Conn, private: &[u8]) {
        if self
            .live(conn)
            .is_some_and(|path| path.accepted == conn.cid)
            && let Err(why) = self.accepted(now, conn, private)
        {
            self.path_down(now, conn.path, why);
        }
    }

    fn accepted(&mut self, now: Time, conn: Conn, private: &[u8]) -> Result<(), PathError> {
        let rsp = ConnRsp::decode(private)?;
        if rsp.errno != 0 {
            return Err(PathError::Refused(rsp.errno));
        }
        self.adopt(now, conn, &rsp)?;
        let count = self.config.connections + 1;
        let name = self.config.name.clone();
        let Some(path) = self.live(conn) else {
            return Ok(());
        };
        path.new_keys = rsp.flags & crate::wire::NEW_RKEY != 0;
        path.accepted += 1;
        let next = path.accepted;
        if next < count {
            self.ask(conn.path, next);
        } else {
            let (conn, bytes) = (path.conn(0), Control::InfoReq { name }.encode());
            self.actions.push_back(Action::Send { conn, bytes });
        }
        Ok(())
    }

    /// A connection was refused, with this private data.
    pub fn on_rejected(&mut self, now: Time, conn: Conn, private: &[u8]) {
        if self.live(conn).is_some() {
            let rsp = ConnRsp::decode(private);
            let why = rsp.map_or_else(PathError::Wire, |rsp| PathError::Refused(rsp.errno));
            self.path_down(now, conn.path, why);
        }
    }

    /// A connection is gone.
    pub fn on_closed(&mut self, now: Time, conn: Conn) {
        self.on_broken(now, conn, PathError::Closed);
    }

    /// A connection is gone, and this is why.
    pub fn on_broken(&mut self, now: Time, conn: Conn, why: PathError) {
        if self.live(conn).is_some() {
            self.path_down(now, conn.path, why);
        }
    }

    /// A connection has delivered something.
    pub fn on_message(&mut self, now: Time, conn: Conn, inbound: Inbound<'_>) {
        if self.live(conn).is_none() {
            return;
        }
        let handled = match inbound {
            Inbound::Send(bytes) => self.on_send(now, conn, bytes),
            Inbound::SendImmediate(bytes, imm) => self.on_key(now, conn, bytes, imm),
            Inbound::Immediate(imm) => self.on_immediate(now, conn, imm),
        };
        if let Err(why) = handled {
            self.path_down(now, conn.path, why);
        }
    }

    fn on_send(&mut self, now: Time, conn: Conn, bytes: &[u8]) -> Result<(), PathError> {
        let (connections, geometry) = (self.config.connections, self.geometry);
        let message = Control::decode(bytes)?;
        let Some(path) = self.live(conn) else {
            return Ok(());
        };
        path.sign(now, conn.cid);
        match message {
            Control::InfoRsp { chunks } => {
                let due = !path.is_up() && path.accepted == connections + 1 && conn.cid == 0;
                let geometry = geometry.filter(|_| due);
                let geometry = geometry.ok_or(PathError::Misbehaved("chunks told out of turn"))?;
                path.learn(&chunks, &geometry)?;
                path.comes_up(now);
                self.events.push_back(Event::PathUp(conn.path));
                self.dispatch_waiting(now);
                Ok(())
            }
            Control::FenceAck { epoch } if self.can_replay => {
                self.dead.remove(&epoch);
                Ok(())
            }
            Control::Refused { errno } => Err(PathError::Refused(errno)),
            _ => Err(PathError::Misbehaved("a message that only clients send")),
        }
    }

    fn on_key(&mut self, now: Time, conn: Conn, bytes: &[u8], imm: u32) -> Result<(), PathError> {
        let Control::RkeyRsp { id, key } = Control::decode(bytes)? else {
            return Err(PathError::Misbehaved("a message with an immediate"));
        };
        if let Some(path) = self.live(conn) {
            path.new_key(id, key)?;
        }
        self.on_immediate(now, conn, imm)
    }

    fn on_immediate(&mut self, now: Time, conn: Conn, imm: u32) -> Result<(), PathError> {
        let Some(path) = self.live(conn) else {
            return Ok(());
        };
        match Immediate::decode(imm)? {
            Immediate::Heartbeat => {
                let imm = Immediate::HeartbeatAck.encode();
                self.actions.push_back(Action::Immediate { conn, imm });
                Ok(())
            }
            Immediate::HeartbeatAck => {
                path.sign(now, conn.cid);
                Ok(())
            }
            Immediate::Response { id, errno, .. } => {
                path.sign(now, conn.cid);
                self.on_response(now, conn, id, errno)
            }
            Immediate::Notice(what) => {
                path.sign(now, conn.cid);
                self.events.push_back(Event::Notice(what));
                Ok(())
            }
            Immediate::Request(_) => Err(PathError::Misbehaved("a request to a client")),
        }
    }

    fn on_response(&mut self, now: Time, conn: Conn, id: u32, errno: u16) -> Result<(), PathError> {
        let stranger = PathError::Misbehaved("a response to no request");
        let permit = u16::try_from(id).map_err(|_| stranger)?;
        let slot = self.flights.get_mut(usize::from(permit)).ok_or(stranger)?;
        let at = match slot.as_ref().map(|flight| flight.place) {
            Some(RequestState::Sent { by, at }) if by == conn => at,
            _ => return Err(stranger),
        };
        let flight = slot.take().ok_or(stranger)?;
        if !flight.reserved {
            self.permits.put(permit);
        }
        if let Some(path) = self.paths.get_mut(&conn.path) {
            path.returns(conn.cid);
            path.took(now.saturating_sub(at));
            let (count, bytes) = match flight.request.direction {
                Direction::Read => (&mut path.stats.reads, &mut path.stats.read_bytes),
                Direction::Write => (&mut path.stats.writes, &mut path.stats.write_bytes),
            };
            if !flight.abandoned {
                *count += 1;
                *bytes += u64::from(flight.request.len);
            }
        }
        if !flight.abandoned {
            let result = match errno {
                0 => Ok(()),
                errno => Err(RequestError::Remote(errno)),
            };
            self.tell(flight.ticket, result);
        }
        Ok(())
    }

    // ---- inside ----

    pub(super) fn tell(&mut self, ticket: Ticket, result: Result<(), RequestError>) {
        self.events.push_back(Event::Done { ticket, result });
    }

    /// The request is over and no copy of it is left anywhere that counts.
    pub(super) fn release(&mut self, permit: u16) {
        let flight = self.flights[usize::from(permit)].take();
        if flight.is_some_and(|flight| !flight.reserved) {
            self.permits.put(permit);
        }
    }

    pub(super) fn first_geometry(&mut self, geometry: Geometry) {
        self.geometry = Some(geometry);
        self.permits = Permits::new(geometry.depth());
        self.flights.clear();
        self.flights
            .resize_with(usize::from(geometry.depth()), || None);
    }

    /// The path, if this incarnation of it is the present one and not down.
    pub(super) fn live(&mut self, conn: Conn) -> Option<&mut Path> {
        let path = self.paths.get_mut(&conn.path)?;
        (path.is_live() && path.epoch == conn.epoch).then_some(path)
    }

    pub(super) fn choose(&mut self) -> Option<PathId> {
        let up = self.paths.values().filter(|path| path.is_up());
        pick(self.config.policy, up.map(Path::candidate), &mut self.turn)
    }

    pub(super) fn connect(&mut self, now: Time, id: PathId) {
        let give_up = now + self.config.connect_timeout;
        if let Some(path) = self.paths.get_mut(&id) {
            self.epoch += 1;
            path.begin(self.epoch, give_up);
            self.ask(id, 0);
        }
    }

    /// Asks for one connection. Only a session without a path that is up may be created: if one is up, a server
    /// that does not know us is another one than we talk to.
    fn ask(&mut self, id: PathId, cid: u16) {
        let first_conn = !self.paths.values().any(Path::is_up);
        let Some(path) = self.paths.get(&id) else {
            return;
        };
        let reconnects = u16::try_from(path.stats.connected).unwrap_or(u16::MAX);
        let request = ConnReq {
            cid,
            cid_num: self.config.connections + 1,
            recon_cnt: reconnects,
            path: path.uuid,
            session: self.config.session,
            first_conn,
            caps: Some(Caps {
                bits: CAPS,
                number: path.epoch,
            }),
        };
        let (conn, private) = (path.conn(cid), request.encode());
        self.actions.push_back(Action::Connect { conn, private });
    }

    /// Sends a copy of a request by a path that is up: the first one by one of its connections for requests, any
    /// other behind the fences that it needs, on connection 0.
    pub(super) fn post(&mut self, now: Time, permit: u16, id: PathId) {
        let (Some(flight), Some(path), Some(geometry)) = (
            self.flights[usize::from(permit)].as_mut(),
            self.paths.get_mut(&id),
            self.geometry,
        ) else {
            return;
        };
        let again = flight.sent;
        if again && self.can_replay {
            for epoch in &self.dead {
                if path.fences.insert(*epoch) {
                    let (conn, epoch) = (path.conn(0), *epoch);
                    let bytes = Control::Fence { epoch }.encode();
                    self.actions.push_back(Action::Send { conn, bytes });
                }
            }
        }
        let request = &flight.request;
        let cid = if again {
            0
        } else {
            1 + request.hint % self.config.connections.max(1)
        };
        let read = request.direction == Direction::Read && !flight.abandoned;
        let kind = if read {
            let into = request.into;
            RequestKind::Read { flags: 0, into }
        } else {
            RequestKind::Write
        };
        // Fits: `submit` has compared it with the chunk's header.
        let usr_len = u16::try_from(request.usr.len()).unwrap_or(u16::MAX);
        let replay = self.can_replay.then(|| Replay {
            generation: flight.ticket.generation,
            flags: flags(again, flight.abandoned),
        });
        let header = Header {
            usr_len,
            kind,
            replay,
        };
        let mut tail = self.spare.pop().unwrap_or_default();
        tail.clear();
        tail.extend_from_slice(&request.usr);
        header.append(&mut tail);
        // A settle leaves the data alone: the first copy may be under way.
        let writes = request.direction == Direction::Write && !flight.abandoned;
        let offset = request.len + u32::from(usr_len);
        let post = Post {
            conn: path.conn(cid),
            ticket: flight.ticket,
            chunk: path.chunk(permit),
            data: if writes { request.len } else { 0 },
            tail_at: request.len,
            tail,
            into_at: u16::try_from(READ_LEN + usize::from(usr_len))
                .ok()
                .and_then(NonZeroU16::new)
                .filter(|_| read && request.into.is_some()),
            imm: geometry.request(permit, offset).encode(),
        };
        flight.sent = true;
        flight.place = RequestState::Sent {
            by: post.conn,
            at: now,
        };
        path.leaves(now, cid);
        self.actions.push_back(Action::Post(post));
    }

    // ---- what one can see ----

    /// Chunks and their size, once a server has told them.
    #[must_use]
    pub fn geometry(&self) -> Option<Geometry> {
        self.geometry
    }

    /// Every path and its state.
    pub fn paths(&self) -> impl Iterator<Item = (PathId, PathState)> + '_ {
        self.paths.values().map(|path| (path.id, path.state()))
    }

    /// What a path counts.
    #[must_use]
    pub fn stats(&self, id: PathId) -> Option<&PathStats> {
        self.paths.get(&id).map(|path| &path.stats)
    }

    /// Why a path is not up, if that was tried and failed.
    #[must_use]
    pub fn why_down(&self, id: PathId) -> Option<PathError> {
        self.paths.get(&id)?.why
    }

    /// Requests under way by a path.
    #[must_use]
    pub fn inflight(&self, id: PathId) -> Option<u32> {
        self.paths.get(&id).map(|path| path.inflight)
    }

    /// Permits that are free.
    #[must_use]
    pub fn free_permits(&self) -> u32 {
        self.permits.free()
    }
}

impl Client {
    /// Where permits are reserved; none before there is a geometry.
    #[must_use]
    pub fn permits(&self) -> &Arc<Free> {
        self.permits.shared()
    }

    /// Does a request have this permit, if only one whose user was told that it failed?
    #[must_use]
    pub fn holds(&self, permit: u16) -> bool {
        let flight = self.flights.get(usize::from(permit));
        flight.is_some_and(Option::is_some)
    }

    /// A request's permit is not its user's any more, from now on.
    pub fn keep(&mut self, permit: u16) {
        if let Some(Some(flight)) = self.flights.get_mut(usize::from(permit)) {
            flight.reserved = false;
        }
    }
}
