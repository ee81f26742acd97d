//! A server's engine: sessions, their paths, and requests that are each executed once.

use super::backoff::Jitter;
use super::memory::{Slot, Verdict};
use super::pulse::{Beat, Heartbeat, Pulse};
use super::{Direction, Inbound, Time};
use crate::error::PathError;
use crate::message::Message;
use crate::stats::ServerStats;
use crate::wire::{
    CAP_NOTICE, CAP_REPLAY, CAPS, CONN_LEN, Caps, ConnReq, ConnRsp, Control, Geometry, Immediate,
    MAX_PATHS, MAX_REQUEST_HEADER, NEED_INVAL, Request as Header, RequestKind, SETTLE, SgDesc,
    Uuid,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

// Linux's error numbers that a refusal carries.
const ENXIO: u16 = 6;
const ENOMEM: u16 = 12;
const EBUSY: u16 = 16;
const EINVAL: u16 = 22;

/// One connection, as the driver counts them; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u64);

/// One session; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// What keeps data safe. Nobody turns it off but the simulator, to see that its oracle would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Safety {
    /// A fence closes what is left of an incarnation.
    pub fencing: bool,
    /// A second copy of a request is recognised.
    pub memory: bool,
}

impl Default for Safety {
    fn default() -> Self {
        Safety {
            fencing: true,
            memory: true,
        }
    }
}

/// A server's settings.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Chunks of each session.
    pub geometry: Geometry,
    /// Most sessions at a time.
    pub sessions: usize,
    /// Most connections of a path.
    pub connections: u16,
    /// When a path counts as dead.
    pub heartbeat: Heartbeat,
    /// How long a path may take to come up.
    pub connect_timeout: Duration,
    /// How long a session without a path is remembered. Its chunks live as long.
    pub linger: Duration,
    /// A number that differs for each start of each server: it tells a client that this is another one.
    pub born: u64,
    /// All on.
    pub safety: Safety,
}

impl Config {
    /// The defaults.
    #[must_use]
    pub fn new(geometry: Geometry, born: u64) -> Self {
        Config {
            geometry,
            sessions: 64,
            connections: 256,
            heartbeat: Heartbeat::of_servers(),
            connect_timeout: Duration::from_secs(5),
            linger: Duration::from_secs(120),
            born,
            safety: Safety::default(),
        }
    }
}

/// The memory of a session, which the driver has.
pub trait Chunks {
    /// Where a session's chunks are, as [`Control::InfoRsp`] tells it by this connection.
    fn table(&self, session: SessionId, link: LinkId) -> Vec<SgDesc>;
    /// Copies bytes out of a chunk: once, for a client can write there at any time.
    fn copy(&self, session: SessionId, chunk: u16, at: u32, into: &mut [u8]);
    /// May the client behind this connection have a session of this name? If not: a Linux error number.
    fn admits(&self, _session: SessionId, _link: LinkId, _name: &str) -> Result<(), u16> {
        Ok(())
    }
}

/// What the backend is to do with a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// Whose.
    pub session: SessionId,
    /// In which chunk.
    pub permit: u16,
    /// To be handed back with the result.
    pub generation: u64,
    /// Which way the data goes.
    pub direction: Direction,
    /// Bytes of data, at the chunk's beginning.
    pub len: u32,
    /// The message beside it.
    pub usr: Message,
}

/// What the driver is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Make memory for a session.
    Open(SessionId),
    /// Accept a connection, with this private data.
    Accept(LinkId, [u8; CONN_LEN]),
    /// Refuse it.
    Reject(LinkId, [u8; CONN_LEN]),
    /// Send a message.
    Send(LinkId, Vec<u8>),
    /// Send an immediate alone.
    Immediate(LinkId, u32),
    /// Hand a job to the backend; then [`Server::finished`].
    Execute(Job),
    /// Copy the beginning of a chunk to the client, if asked; then the immediate.
    Reply {
        /// By which connection.
        link: LinkId,
        /// Whose.
        session: SessionId,
        /// Out of which chunk.
        permit: u16,
        /// To where, and how many bytes.
        data: Option<(SgDesc, u32)>,
        /// A key of the client's that its device is to forget before the immediate. A connection without devices only says so.
        invalidate: Option<u32>,
        /// The immediate.
        imm: u32,
    },
    /// Close a connection, at once.
    Close(LinkId),
    /// Free a session's memory.
    Free(SessionId),
}

/// What the operator is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A path of a session is up.
    PathUp {
        /// Whose.
        session: SessionId,
        /// The session's name, as the client tells it: the driver has to know whether it may.
        name: String,
    },
    /// A path is down.
    PathDown {
        /// Whose.
        session: SessionId,
        /// Why.
        why: PathError,
    },
    /// A session is forgotten.
    SessionGone(SessionId),
}

/// Who waits for a result.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    link: LinkId,
    data: Option<(SgDesc, u32)>,
    /// A key that the client wants to be invalidated, as mainline's does.
    invalidate: Option<u32>,
}

#[derive(Debug)]
struct Path {
    epoch: u64,
    can_replay: bool,
    can_notice: bool,
    cid_num: u16,
    links: Vec<LinkId>,
    up: bool,
    give_up: Time,
    pulse: Pulse,
}

#[derive(Debug)]
struct Session {
    uuid: Uuid,
    instance: u64,
    name: Option<String>,
    paths: BTreeMap<Uuid, Path>,
    slots: Vec<Slot<Waiter>>,
    /// Since when it has no path.
    empty: Time,
    /// Its client will not come back.
    is_departed: bool,
    stats: ServerStats,
}

impl Session {
    /// How long it is remembered without a path. One that nobody introduced has nothing to remember.
    fn linger(&self, config: &Config) -> Duration {
        match self.name {
            _ if self.is_departed => Duration::ZERO,
            Some(_) => config.linger,
            None => config.connect_timeout,
        }
    }
}

/// Where a link belongs.
#[derive(Clone, Copy, Debug)]
struct Home {
    session: SessionId,
    path: Uuid,
    cid: u16,
}

/// The server's engine.
#[derive(Debug)]
pub struct Server {
    config: Config,
    sessions: BTreeMap<SessionId, Session>,
    links: BTreeMap<LinkId, Home>,
    next: u64,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
}

impl Server {
    /// A server without sessions.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Server {
            config,
            sessions: BTreeMap::new(),
            links: BTreeMap::new(),
            next: 0,
            actions: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// What the driver is to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What the operator is told next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What a session counts.
    #[must_use]
    pub fn stats(&self, session: SessionId) -> Option<ServerStats> {
        self.sessions.get(&session).map(|session| session.stats)
    }

    /// How many paths of a session are up.
    #[must_use]
    pub fn paths_up(&self, session: SessionId) -> usize {
        let found = self.sessions.get(&session).into_iter();
        let paths = found.flat_map(|session| session.paths.values());
        paths.filter(|path| path.up).count()
    }

    /// Whose a connection is.
    #[must_use]
    pub fn session_of(&self, link: LinkId) -> Option<SessionId> {
        self.links.get(&link).map(|home| home.session)
    }

    /// Is a client connected to this session? If not, its deadline may come with its last result.
    #[must_use]
    pub fn is_connected(&self, session: SessionId) -> bool {
        let session = self.sessions.get(&session);
        session.is_some_and(|session| !session.paths.is_empty())
    }

    // ---- connections ----

    /// Handles a connection request with this private data.
    pub fn on_connect(&mut self, now: Time, link: LinkId, private: &[u8]) {
        match self.admit(now, link, private) {
            Ok(rsp) => self.actions.push_back(Action::Accept(link, rsp.encode())),
            Err(errno) => {
                let rsp = ConnRsp {
                    errno,
                    ..ConnRsp::default()
                };
                self.actions.push_back(Action::Reject(link, rsp.encode()));
            }
        }
    }

    fn admit(&mut self, now: Time, link: LinkId, private: &[u8]) -> Result<ConnRsp, u16> {
        let req = ConnReq::decode(private).map_err(|_| EINVAL)?;
        if req.cid_num < 2 || req.cid_num > self.config.connections {
            return Err(EINVAL);
        }
        if self.links.contains_key(&link) {
            return Err(EINVAL);
        }
        let known = self.sessions.iter().find(|(_, s)| s.uuid == req.session);
        let id = match known.map(|(id, _)| *id) {
            Some(id) => id,
            None if req.first_conn && req.cid == 0 => self.open(now, req.session)?,
            None => return Err(ENXIO),
        };
        let caps = req.caps.filter(|caps| caps.bits & CAP_REPLAY != 0);
        let epoch = caps.map_or(0, |caps| caps.number);
        if req.cid == 0 {
            self.first_link(now, id, &req, epoch, caps.map(|caps| caps.bits))?;
        }
        let session = self.sessions.get_mut(&id).ok_or(ENXIO)?;
        let path = session.paths.get_mut(&req.path).ok_or(EINVAL)?;
        let fits = path.epoch == epoch && path.cid_num == req.cid_num;
        if !fits || path.up || path.links.len() != usize::from(req.cid) {
            return Err(EINVAL);
        }
        path.links.push(link);
        let home = Home {
            session: id,
            path: req.path,
            cid: req.cid,
        };
        self.links.insert(link, home);
        let geometry = self.config.geometry;
        Ok(ConnRsp {
            errno: 0,
            queue_depth: geometry.depth(),
            max_io_size: geometry.max_io(),
            max_hdr_size: geometry.header(),
            flags: 0,
            caps: caps.map(|_| Caps {
                bits: CAPS,
                number: session.instance,
            }),
        })
    }

    fn open(&mut self, now: Time, uuid: Uuid) -> Result<SessionId, u16> {
        if self.sessions.len() >= self.config.sessions {
            return Err(ENOMEM);
        }
        self.next += 1;
        let id = SessionId(self.next);
        let mut slots = Vec::new();
        slots.resize_with(usize::from(self.config.geometry.depth()), Slot::default);
        let session = Session {
            uuid,
            instance: Jitter(self.config.born ^ self.next.rotate_left(32)).next(),
            name: None,
            paths: BTreeMap::new(),
            slots,
            empty: now,
            is_departed: false,
            stats: ServerStats::default(),
        };
        self.sessions.insert(id, session);
        self.actions.push_back(Action::Open(id));
        Ok(id)
    }

    /// Makes room for an incarnation of a path. One that counts epochs replaces its own older ones.
    fn first_link(
        &mut self,
        now: Time,
        id: SessionId,
        req: &ConnReq,
        epoch: u64,
        caps: Option<u16>,
    ) -> Result<(), u16> {
        let can_replay = caps.is_some();
        let session = self.sessions.get(&id).ok_or(ENXIO)?;
        if let Some(old) = session.paths.get(&req.path) {
            if !can_replay || old.epoch >= epoch {
                return Err(EBUSY);
            }
            self.close_path(now, id, &req.path, PathError::Superseded);
        } else if session.paths.len() >= MAX_PATHS {
            return Err(ENOMEM);
        }
        let path = Path {
            epoch,
            can_replay,
            can_notice: caps.is_some_and(|bits| bits & CAP_NOTICE != 0),
            cid_num: req.cid_num,
            links: Vec::new(),
            up: false,
            give_up: now + self.config.connect_timeout,
            pulse: Pulse::new(now),
        };
        if let Some(session) = self.sessions.get_mut(&id) {
            session.paths.insert(req.path, path);
        }
        Ok(())
    }

    /// A connection is gone.
    pub fn on_closed(&mut self, now: Time, link: LinkId) {
        self.on_broken(now, link, PathError::Closed);
    }

    /// A connection is gone, and this is why.
    pub fn on_broken(&mut self, now: Time, link: LinkId, why: PathError) {
        if let Some(home) = self.links.get(&link).copied() {
            self.close_path(now, home.session, &home.path, why);
        }
    }

    /// The client of a session will not come back: nothing of it is remembered once it has no path.
    pub fn depart(&mut self, session: SessionId) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.is_departed = true;
        }
    }

    /// Ends a session's paths; their client is free to come back.
    pub fn drop_paths(&mut self, now: Time, session: SessionId) {
        let found = self.sessions.get(&session);
        let all = found.map(|found| found.paths.keys().copied().collect::<Vec<_>>());
        for uuid in all.unwrap_or_default() {
            self.close_path(now, session, &uuid, PathError::Requested);
        }
    }

    /// Calls a session's client, by every path that is up: 28 bits. It hears it once or more, or not at all if no
    /// path is up, or the last one goes down now.
    pub fn notice(&mut self, session: SessionId, what: u32) {
        let Some(session) = self.sessions.get(&session) else {
            return;
        };
        let imm = Immediate::Notice(what).encode();
        let hear = |path: &&Path| path.up && path.can_notice;
        for path in session.paths.values().filter(hear) {
            let link = path.links[0];
            self.actions.push_back(Action::Immediate(link, imm));
        }
    }

    fn close_path(&mut self, now: Time, id: SessionId, uuid: &Uuid, why: PathError) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(path) = session.paths.remove(uuid) else {
            return;
        };
        session.empty = now;
        for link in path.links {
            self.links.remove(&link);
            self.actions.push_back(Action::Close(link));
        }
        let session = id;
        self.events.push_back(Event::PathDown { session, why });
    }

    // ---- time ----

    /// Time has passed.
    pub fn poll(&mut self, now: Time) {
        let mut down = Vec::new();
        for (id, session) in &mut self.sessions {
            for (uuid, path) in &mut session.paths {
                let beat = if path.up {
                    path.pulse.check(now, &self.config.heartbeat)
                } else {
                    Beat::Quiet
                };
                if beat == Beat::Ask {
                    let imm = Immediate::Heartbeat.encode();
                    self.actions
                        .push_back(Action::Immediate(path.links[0], imm));
                }
                if beat == Beat::Dead {
                    down.push((*id, *uuid, PathError::Silent));
                } else if !path.up && now >= path.give_up {
                    down.push((*id, *uuid, PathError::ConnectTimeout));
                }
            }
        }
        for (id, uuid, why) in down {
            self.close_path(now, id, &uuid, why);
        }
        self.forget(now);
    }

    /// Sessions that nobody came back to. One whose requests the backend still has is kept: its chunks are in use.
    fn forget(&mut self, now: Time) {
        let linger = |session: &Session| session.linger(&self.config);
        let over = |session: &Session| {
            let idle = session.paths.is_empty() && now >= session.empty + linger(session);
            idle && !session.slots.iter().any(Slot::is_running)
        };
        let over = self.sessions.iter().filter(|(_, session)| over(session));
        let over: Vec<_> = over.map(|(id, _)| *id).collect();
        for id in over {
            self.sessions.remove(&id);
            self.actions.push_back(Action::Free(id));
            self.events.push_back(Event::SessionGone(id));
        }
    }

    /// When to call [`poll`](Self::poll) at the latest. A session that is kept for its backend is looked at when
    /// that is done.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let sessions = self.sessions.values();
        let running = |session: &Session| session.slots.iter().any(Slot::is_running);
        let idle = sessions.clone().filter(|session| session.paths.is_empty());
        let idle = idle.filter(|session| !running(session));
        let forget = idle.map(|session| session.empty + session.linger(&self.config));
        let paths = sessions.flat_map(|session| session.paths.values());
        let paths = paths.map(|path| match path.up {
            true => path.pulse.deadline(&self.config.heartbeat),
            false => path.give_up,
        });
        paths.chain(forget).min()
    }

    // ---- messages ----

    /// A connection has delivered something.
    pub fn on_message(
        &mut self,
        now: Time,
        link: LinkId,
        inbound: Inbound<'_>,
        chunks: &impl Chunks,
    ) {
        let Some(home) = self.links.get(&link).copied() else {
            return;
        };
        let handled = match inbound {
            Inbound::Send(bytes) => self.on_send(now, link, home, bytes, chunks),
            Inbound::SendImmediate(..) => Err(PathError::Misbehaved("a message that servers send")),
            Inbound::Immediate(imm) => self.on_immediate(now, link, home, imm, chunks),
        };
        if let Err(why) = handled {
            self.close_path(now, home.session, &home.path, why);
        }
    }

    fn path(&mut self, home: &Home) -> Result<&mut Path, PathError> {
        let session = self.sessions.get_mut(&home.session);
        let path = session.and_then(|session| session.paths.get_mut(&home.path));
        path.ok_or(PathError::Closed)
    }

    fn on_send(
        &mut self,
        now: Time,
        link: LinkId,
        home: Home,
        bytes: &[u8],
        chunks: &impl Chunks,
    ) -> Result<(), PathError> {
        let message = Control::decode(bytes)?;
        if home.cid != 0 {
            return Err(PathError::Misbehaved("a message on a connection for data"));
        }
        match message {
            Control::InfoReq { name } => self.introduce(now, link, home, name, chunks),
            Control::Fence { epoch } => self.fence(now, link, home, epoch),
            _ => Err(PathError::Misbehaved("a message that only servers send")),
        }
    }

    fn introduce(
        &mut self,
        now: Time,
        link: LinkId,
        home: Home,
        name: String,
        chunks: &impl Chunks,
    ) -> Result<(), PathError> {
        let admitted = chunks.admits(home.session, link, &name);
        let session = self.sessions.get_mut(&home.session);
        let session = session.ok_or(PathError::Closed)?;
        if let Err(errno) = admitted {
            let path = session.paths.get(&home.path);
            if path.is_some_and(|path| path.can_notice) {
                let bytes = Control::Refused { errno }.encode();
                self.actions.push_back(Action::Send(link, bytes));
            }
            return Err(PathError::Refused(errno));
        }
        let known = session.name.get_or_insert_with(|| name.clone());
        if *known != name {
            return Err(PathError::Misbehaved("another name for the same session"));
        }
        let path = self.path(&home)?;
        if path.up || path.links.len() != usize::from(path.cid_num) {
            return Err(PathError::Misbehaved("an introduction out of turn"));
        }
        path.up = true;
        path.pulse.sign(now);
        let table = chunks.table(home.session, link);
        let bytes = Control::InfoRsp { chunks: table }.encode();
        self.actions.push_back(Action::Send(link, bytes));
        let session = home.session;
        self.events.push_back(Event::PathUp { session, name });
        Ok(())
    }

    fn fence(&mut self, now: Time, link: LinkId, home: Home, epoch: u64) -> Result<(), PathError> {
        let path = self.path(&home)?;
        if !path.up || !path.can_replay || path.epoch == epoch {
            return Err(PathError::Misbehaved("a fence out of turn"));
        }
        path.pulse.sign(now);
        let session = self.sessions.get_mut(&home.session);
        let session = session.ok_or(PathError::Closed)?;
        let named = |path: &Path| path.can_replay && path.epoch == epoch;
        let fenced = session.paths.iter().find(|(_, path)| named(path));
        if let Some(uuid) = fenced.map(|(uuid, _)| *uuid)
            && self.config.safety.fencing
        {
            session.stats.fenced += 1;
            self.close_path(now, home.session, &uuid, PathError::Superseded);
        }
        let bytes = Control::FenceAck { epoch }.encode();
        self.actions.push_back(Action::Send(link, bytes));
        Ok(())
    }

    fn on_immediate(
        &mut self,
        now: Time,
        link: LinkId,
        home: Home,
        imm: u32,
        chunks: &impl Chunks,
    ) -> Result<(), PathError> {
        let immediate = Immediate::decode(imm)?;
        let path = self.path(&home)?;
        if !path.up {
            return Err(PathError::Misbehaved("traffic before the introduction"));
        }
        match immediate {
            Immediate::Heartbeat => {
                let imm = Immediate::HeartbeatAck.encode();
                self.actions.push_back(Action::Immediate(link, imm));
                Ok(())
            }
            Immediate::HeartbeatAck => {
                path.pulse.sign(now);
                Ok(())
            }
            Immediate::Request(payload) => {
                path.pulse.sign(now);
                let can_replay = path.can_replay;
                self.on_request(link, home, payload, can_replay, chunks)
            }
            Immediate::Response { .. } | Immediate::Notice(_) => {
                Err(PathError::Misbehaved("what only servers say"))
            }
        }
    }

    // ---- requests ----

    fn on_request(
        &mut self,
        link: LinkId,
        home: Home,
        payload: u32,
        can_replay: bool,
        chunks: &impl Chunks,
    ) -> Result<(), PathError> {
        let geometry = self.config.geometry;
        let (permit, offset) = geometry.split(payload)?;
        let room = (geometry.chunk() - offset) as usize;
        let mut bytes = [0; MAX_REQUEST_HEADER];
        let bytes = &mut bytes[..room.min(MAX_REQUEST_HEADER)];
        chunks.copy(home.session, permit, offset, bytes);
        let header = Header::decode(bytes, can_replay)?;
        let usr_len = u32::from(header.usr_len);
        let len = offset.checked_sub(usr_len);
        let len = len.filter(|len| *len <= geometry.max_io());
        let len = len.ok_or(PathError::Misbehaved("a request longer than its chunk"))?;
        let settles = header.replay.is_some_and(|r| r.flags & SETTLE != 0);
        let (direction, data, invalidate) = match header.kind {
            RequestKind::Write => (Direction::Write, None, None),
            RequestKind::Read { into, flags } => {
                if into.map_or(0, |into| into.len) < len && !settles {
                    return Err(PathError::Misbehaved("a read into too little room"));
                }
                let key = into.filter(|_| flags & NEED_INVAL != 0);
                let key = key.map(|into| into.key);
                (Direction::Read, into.map(|into| (into, len)), key)
            }
        };
        let session = self.sessions.get_mut(&home.session);
        let session = session.ok_or(PathError::Closed)?;
        let slot = session.slots.get_mut(usize::from(permit));
        let slot = slot.ok_or(PathError::Misbehaved("no such chunk"))?;
        let waiter = Waiter {
            link,
            data,
            invalidate,
        };
        let verdict = match self.config.safety.memory {
            true => slot.arrive(header.replay, waiter),
            false => slot.forget_and_begin(header.replay, waiter),
        };
        match verdict {
            Verdict::Begin(generation) => {
                session.stats.begun += 1;
                let mut usr = Message::zeroed(usize::from(header.usr_len));
                chunks.copy(home.session, permit, len, &mut usr);
                self.actions.push_back(Action::Execute(Job {
                    session: home.session,
                    permit,
                    generation,
                    direction,
                    len,
                    usr,
                }));
            }
            Verdict::Join => session.stats.joined += 1,
            Verdict::Answer(errno) => {
                session.stats.answered += 1;
                self.reply(home.session, permit, waiter, errno);
            }
            Verdict::Settled => {
                session.stats.settled += 1;
                self.reply(home.session, permit, waiter, super::memory::ECANCELED);
            }
            Verdict::Stale => session.stats.stale += 1,
            Verdict::Reused => return Err(PathError::Misbehaved("a permit that is in use")),
        }
        Ok(())
    }

    /// The backend is done with a job; its data, if it is a read, is in the chunk.
    pub fn finished(&mut self, session: SessionId, permit: u16, generation: u64, errno: u16) {
        let found = self.sessions.get_mut(&session);
        let slot = found.and_then(|found| found.slots.get_mut(usize::from(permit)));
        if let Some(waiter) = slot.and_then(|slot| slot.finish(generation, errno)) {
            self.reply(session, permit, waiter, errno);
        }
    }

    /// If the one who waits is gone, the result stays where a replay finds it.
    fn reply(&mut self, session: SessionId, permit: u16, waiter: Waiter, errno: u16) {
        let Waiter {
            link,
            data,
            invalidate,
        } = waiter;
        if !self.links.contains_key(&link) {
            return;
        }
        let imm = Immediate::Response {
            id: u32::from(permit),
            errno,
            invalidated: invalidate.is_some(),
        };
        self.actions.push_back(Action::Reply {
            link,
            session,
            permit,
            data: data.filter(|(_, len)| errno == 0 && *len > 0),
            invalidate,
            imm: imm.encode(),
        });
    }
}
