//! One world, from its seed to its verdict: the clock, both drivers, the backend, the user.

mod user;

use crate::faults::{End, Fault, kills, plan, stops};
use crate::memory::{CHUNK, Memory};
use crate::net::{Frame, Link, Way, Wire};
use crate::oracle::{NOTHING, Op, Violation, judge};
use crate::report::Report;
use crate::rng::Rng;
use memlane_transport::engine::backoff::Backoff;
use memlane_transport::engine::client::{self, AfterRestart, AllDown, Client};
use memlane_transport::engine::path::{Conn, PathId};
use memlane_transport::engine::permits::Ticket;
use memlane_transport::engine::policy::Policy;
use memlane_transport::engine::pulse::Heartbeat;
use memlane_transport::engine::server::{self, Job, LinkId, Safety, Server, SessionId};
use memlane_transport::engine::{Direction, Inbound, Time};
use memlane_transport::wire::Geometry;
use std::collections::{BTreeMap, BTreeSet};

const BLOCKS: usize = 3;
/// Bytes of a request's data: the value.
const DATA: u32 = 8;
/// Faults begin, and users ask, until then.
const UNTIL: Time = Time::from_millis(1000);
/// By then everything is mended, and every request must be over.
const PATIENCE: Time = Time::from_secs(30);

/// What a world is run with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What the server does for safety: all, but in a canary.
    pub safety: Safety,
    /// Print what happens.
    pub trace: bool,
    /// Nothing goes wrong but that the client's process is stopped now and then.
    pub stops: bool,
}

#[derive(Debug)]
enum Happening {
    Arrives(usize, Way, Frame),
    /// An end of a link notices that the link is gone: the server's, if `Up`.
    Breaks(usize, Way),
    JobDone(u64),
    Goes(Fault),
    ServerBack,
    User,
}

/// What a client's user has asked for and was not answered.
#[derive(Clone, Copy, Debug)]
struct Asked {
    op: usize,
    /// Where a read goes to.
    buffer: u64,
    /// Its permit is its user's, who has put the data into the chunk itself.
    reserved: bool,
}

struct World {
    options: Options,
    rng: Rng,
    now: Time,
    sequence: u64,
    steps: u64,
    queue: BTreeMap<(Time, u64), Happening>,
    kills: Vec<(u64, Fault)>,
    wires: Vec<Wire>,
    links: Vec<Link>,
    client: Client,
    wire_of: BTreeMap<PathId, usize>,
    client_life: u32,
    buffers: BTreeMap<u64, u64>,
    asked: BTreeMap<Ticket, Asked>,
    /// Permits that the user has reserved, and that no request has.
    held: Vec<u16>,
    after_restart: AfterRestart,
    all_down: AllDown,
    policy: Policy,
    most_asked: usize,
    server: Option<Server>,
    server_life: u32,
    linger: Time,
    /// How many times slower than the client it is to give a path up.
    patient: u32,
    memory: Memory,
    jobs: BTreeMap<u64, Job>,
    stuck: Time,
    /// Until when each end is stopped.
    stopped: [Time; 2],
    slow: u64,
    disk: [u64; BLOCKS],
    executed: BTreeSet<(u32, SessionId, u16, u64)>,
    history: Vec<Op>,
    last_reads: usize,
    violation: Option<Violation>,
    report: Report,
}

/// Runs the world of a seed.
pub fn run(seed: u64, options: Options) -> Result<Report, Violation> {
    let mut world = World::new(seed, options);
    world.begin();
    while !world.is_over() {
        world.step()?;
    }
    world.count_server();
    judge(&world.history)?;
    Ok(world.report)
}

fn client(rng: &mut Rng, all_down: AllDown, after_restart: AfterRestart, policy: Policy) -> Client {
    let mut session = [0; 16];
    session[..8].copy_from_slice(&rng.any().to_le_bytes());
    session[8..].copy_from_slice(&rng.any().to_le_bytes());
    Client::new(client::Config {
        connections: 2,
        all_down,
        after_restart,
        policy,
        heartbeat: heartbeat(1),
        connect_timeout: Time::from_millis(150),
        backoff: Backoff {
            first: Time::from_millis(5),
            most: Time::from_millis(100),
        },
        ..client::Config::new("sim", session)
    })
}

fn heartbeat(times: u32) -> Heartbeat {
    Heartbeat {
        interval: Time::from_millis(30) * times,
        patience: Time::from_millis(90) * times,
    }
}

impl World {
    fn new(seed: u64, options: Options) -> Self {
        let mut rng = Rng::new(seed);
        let wires = 1 + usize::try_from(rng.below(3)).unwrap_or(0);
        let latency = |rng: &mut Rng| Wire {
            latency: 100 + rng.below(5_000),
            ..Wire::default()
        };
        let wires: Vec<_> = (0..wires).map(|_| latency(&mut rng)).collect();
        let after_restart = match rng.chance(50) {
            true => AfterRestart::Replay,
            false => AfterRestart::Fail,
        };
        let all_down = match rng.chance(70) {
            true => AllDown::Queue(rng.micros(20_000, 500_000)),
            false => AllDown::Fail,
        };
        let policies = [Policy::RoundRobin, Policy::MinInflight, Policy::MinLatency];
        let policy = policies[usize::try_from(rng.below(3)).unwrap_or(0)];
        let depth = 1 + u16::try_from(rng.below(4)).unwrap_or(0);
        World {
            options,
            client: client(&mut rng, all_down, after_restart, policy),
            now: Time::ZERO,
            sequence: 0,
            steps: 0,
            queue: BTreeMap::new(),
            kills: if options.stops {
                Vec::new()
            } else {
                kills(&mut rng)
            },
            wires,
            links: Vec::new(),
            wire_of: BTreeMap::new(),
            client_life: 0,
            buffers: BTreeMap::new(),
            asked: BTreeMap::new(),
            held: Vec::new(),
            after_restart,
            all_down,
            policy,
            most_asked: 1 + usize::try_from(rng.below(6)).unwrap_or(0),
            server: None,
            server_life: 0,
            linger: rng.micros(100_000, 5_000_000),
            patient: if rng.chance(50) { 1 } else { 8 },
            memory: Memory {
                depth,
                ..Memory::default()
            },
            jobs: BTreeMap::new(),
            stuck: Time::ZERO,
            stopped: [Time::ZERO; 2],
            slow: 100 + rng.below(20_000),
            disk: [NOTHING; BLOCKS],
            executed: BTreeSet::new(),
            history: Vec::new(),
            last_reads: 0,
            violation: None,
            report: Report::default(),
            rng,
        }
    }

    fn begin(&mut self) {
        self.start_server();
        for wire in 0..self.wires.len() {
            self.add_path(wire);
        }
        let planned = match self.options.stops {
            true => stops(&mut self.rng, self.wires.len()),
            false => plan(&mut self.rng, self.wires.len(), UNTIL),
        };
        for (at, fault) in planned {
            self.at(at, Happening::Goes(fault));
        }
        self.at(Time::from_millis(5), Happening::User);
        self.pump();
    }

    fn at(&mut self, time: Time, what: Happening) {
        self.sequence += 1;
        self.queue.insert((time, self.sequence), what);
    }

    fn is_over(&self) -> bool {
        self.last_reads == BLOCKS && self.asked.is_empty()
    }

    fn trace(&self, what: &dyn std::fmt::Debug) {
        if self.options.trace {
            eprintln!("{:>12.6} {what:?}", self.now.as_secs_f64());
        }
    }

    // ---- one step ----

    fn step(&mut self) -> Result<(), Violation> {
        self.steps += 1;
        let client = self.client.deadline();
        let client = client.map(|at| at.max(self.polled_again(End::Client)));
        let server = self.server.as_ref().and_then(Server::deadline);
        let server = server.map(|at| at.max(self.polled_again(End::Server)));
        let deadline = [client, server].into_iter().flatten().min();
        let next = self.queue.first_key_value().map(|((time, _), _)| *time);
        let at = [deadline, next].into_iter().flatten().min();
        self.now = at.map_or(self.now, |at| at.max(self.now));
        if self.now > UNTIL + PATIENCE || at.is_none() || self.steps > 1_000_000 {
            let text = format!(
                "{:?} after {} steps: {:?}",
                self.now, self.steps, self.asked
            );
            return Err(Violation::Hang(text));
        }
        if next.is_some_and(|next| deadline.is_none_or(|deadline| next < deadline)) {
            if let Some((_, what)) = self.queue.pop_first() {
                self.happens(what);
            }
        } else {
            if self.now >= self.polled_again(End::Client) {
                self.client.poll(self.now);
            }
            let polls = self.now >= self.polled_again(End::Server);
            if let Some(server) = self.server.as_mut().filter(|_| polls) {
                server.poll(self.now);
            }
        }
        self.pump();
        let due = self.kills.iter().position(|(step, _)| *step <= self.steps);
        if let Some(at) = due.filter(|_| self.now < UNTIL) {
            let (_, fault) = self.kills.swap_remove(at);
            self.goes(fault);
            self.pump();
        }
        self.violation.take().map_or(Ok(()), Err)
    }

    /// An end that was stopped first reads what arrived meanwhile, a moment after it resumes; then it reads the clock.
    fn polled_again(&self, end: End) -> Time {
        let stopped = self.stopped[end as usize];
        stopped + Time::from_nanos(if stopped.is_zero() { 0 } else { 2 })
    }

    /// When it will be noticed, if whoever it is for is stopped.
    fn postponed(&self, what: &Happening) -> Option<Time> {
        let end = match what {
            Happening::Arrives(_, Way::Up, _)
            | Happening::Breaks(_, Way::Up)
            | Happening::JobDone(_) => End::Server,
            Happening::Arrives(_, Way::Down, _)
            | Happening::Breaks(_, Way::Down)
            | Happening::User => End::Client,
            Happening::Goes(_) | Happening::ServerBack => return None,
        };
        let stopped = self.stopped[end as usize];
        (self.now <= stopped && !stopped.is_zero()).then(|| stopped + Time::from_nanos(1))
    }

    fn happens(&mut self, what: Happening) {
        if let Some(later) = self.postponed(&what) {
            self.at(later, what);
            return;
        }
        match what {
            Happening::Arrives(link, way, frame) => self.arrives(link, way, frame),
            Happening::Breaks(link, Way::Down) => self.client_end(link),
            Happening::Breaks(link, Way::Up) => self.server_end(link),
            Happening::JobDone(id) => self.job_done(id),
            Happening::Goes(fault) => self.goes(fault),
            Happening::ServerBack => self.start_server(),
            Happening::User => self.user(),
        }
    }

    /// Does what the engines say, until they are silent.
    fn pump(&mut self) {
        loop {
            if let Some(action) = self.client.poll_action() {
                self.trace(&action);
                self.do_client(action);
            } else if let Some(action) = self.server.as_mut().and_then(Server::poll_action) {
                self.trace(&action);
                self.do_server(action);
            } else if let Some(event) = self.client.poll_event() {
                self.trace(&event);
                self.on_event(event);
            } else {
                break;
            }
        }
        while let Some(event) = self.server.as_mut().and_then(Server::poll_event) {
            self.trace(&event);
        }
    }

    // ---- the network ----

    fn send(&mut self, link: usize, way: Way, frame: Frame) {
        let wire = &self.wires[self.links[link].wire];
        let arrival = self.links[link].arrival(self.now, way, wire, &mut self.rng);
        if let Some(at) = arrival {
            self.at(at, Happening::Arrives(link, way, frame));
        }
    }

    fn link_of(&self, conn: Conn) -> Option<usize> {
        let found = self.links.iter().rposition(|link| link.conn == conn);
        found.filter(|at| self.links[*at].lives.0 == self.client_life)
    }

    fn arrives(&mut self, at: usize, way: Way, frame: Frame) {
        let link = self.links[at];
        let there = match way {
            Way::Up => self.server.is_some() && link.lives.1 == self.server_life,
            Way::Down => link.lives.0 == self.client_life,
        };
        // A connection that nobody answers is refused by the machine.
        if !there && matches!(frame, Frame::Connect(_)) {
            let later = self.now + self.rng.micros(20, 500);
            self.at(later, Happening::Breaks(at, Way::Down));
        }
        let end = if way == Way::Up { 1 } else { 0 };
        if there && link.open[end] && !link.broken {
            match way {
                Way::Up => self.server_gets(at, frame),
                Way::Down => self.client_gets(at, link.conn, frame),
            }
        }
    }

    fn client_gets(&mut self, at: usize, conn: Conn, frame: Frame) {
        let (now, client) = (self.now, &mut self.client);
        match frame {
            Frame::Accept(private) => client.on_accepted(now, conn, &private),
            Frame::Reject(private) => client.on_rejected(now, conn, &private),
            Frame::Send(bytes) => client.on_message(now, conn, Inbound::Send(&bytes)),
            Frame::Immediate(imm) => client.on_message(now, conn, Inbound::Immediate(imm)),
            Frame::Reply(data, imm) => {
                if let Some((addr, bytes)) = data {
                    let value = bytes.try_into().map_or(u64::MAX, u64::from_le_bytes);
                    self.buffers.insert(addr, value);
                }
                client.on_message(now, conn, Inbound::Immediate(imm));
            }
            Frame::End => self.client_end(at),
            Frame::Connect(_) | Frame::Post(..) => unreachable!("these go up"),
        }
    }

    fn server_gets(&mut self, at: usize, frame: Frame) {
        let Some(server) = &mut self.server else {
            return;
        };
        let (now, link) = (self.now, LinkId(at as u64));
        let mut message = |inbound| server.on_message(now, link, inbound, &self.memory);
        match frame {
            Frame::Send(bytes) => message(Inbound::Send(&bytes)),
            Frame::Immediate(imm) => message(Inbound::Immediate(imm)),
            Frame::Post(post, data) => {
                let session = SessionId(u64::from(post.chunk.key));
                let addr = post.chunk.addr;
                self.memory.place(session, addr, &data);
                let tail = addr + u64::from(post.tail_at);
                self.memory.place(session, tail, &post.tail);
                server.on_message(now, link, Inbound::Immediate(post.imm), &self.memory);
            }
            Frame::Connect(private) => server.on_connect(now, link, &private),
            Frame::End => self.server_end(at),
            _ => unreachable!("these go down"),
        }
    }

    fn client_end(&mut self, at: usize) {
        let link = &mut self.links[at];
        if link.lives.0 == self.client_life && std::mem::take(&mut link.open[0]) {
            let conn = link.conn;
            self.client.on_closed(self.now, conn);
        }
    }

    fn server_end(&mut self, at: usize) {
        let link = &mut self.links[at];
        let mine = link.lives.1 == self.server_life && std::mem::take(&mut link.open[1]);
        if let Some(server) = self.server.as_mut().filter(|_| mine) {
            server.on_closed(self.now, LinkId(at as u64));
        }
    }

    // ---- the drivers ----

    fn do_client(&mut self, action: client::Action) {
        match action {
            client::Action::Connect { conn, private } => {
                let wire = self.wire_of[&conn.path];
                let lives = (self.client_life, self.server_life);
                self.links.push(Link::new(wire, conn, lives));
                let at = self.links.len() - 1;
                if self.now < self.wires[wire].cut {
                    let later = self.now + self.rng.micros(20, 500);
                    self.at(later, Happening::Breaks(at, Way::Down));
                } else {
                    self.send(at, Way::Up, Frame::Connect(private));
                }
            }
            client::Action::Send { conn, bytes } => self.up(conn, Frame::Send(bytes)),
            client::Action::Immediate { conn, imm } => self.up(conn, Frame::Immediate(imm)),
            client::Action::Post(post) => {
                let asked = self.asked.get(&post.ticket);
                let value = asked.map_or(NOTHING, |asked| self.history[asked.op].value);
                let reserved = asked.is_some_and(|asked| asked.reserved);
                let data = match (post.data > 0, reserved) {
                    (true, false) => value.to_le_bytes().to_vec(),
                    (true, true) => {
                        // It lies there at once, whatever becomes of the message.
                        let session = SessionId(u64::from(post.chunk.key));
                        let value = value.to_le_bytes();
                        self.memory.place(session, post.chunk.addr, &value);
                        Vec::new()
                    }
                    (false, _) => Vec::new(),
                };
                self.up(post.conn, Frame::Post(post, data));
            }
            client::Action::Close { path, epoch } => {
                let mine = |link: &Link| {
                    let same = (link.conn.path, link.conn.epoch) == (path, epoch);
                    same && link.lives.0 == self.client_life
                };
                let links = self.links.iter().enumerate().filter(|(_, link)| mine(link));
                let links: Vec<_> = links.map(|(at, _)| at).collect();
                for at in links {
                    self.links[at].open[0] = false;
                    self.send(at, Way::Up, Frame::End);
                }
            }
        }
    }

    fn up(&mut self, conn: Conn, frame: Frame) {
        if let Some(at) = self.link_of(conn).filter(|at| self.links[*at].open[0]) {
            self.send(at, Way::Up, frame);
        }
    }

    fn down(&mut self, link: LinkId, frame: Frame) {
        let at = usize::try_from(link.0).unwrap_or(usize::MAX);
        if self.links[at].open[1] {
            self.send(at, Way::Down, frame);
        }
    }

    fn do_server(&mut self, action: server::Action) {
        use server::Action;
        match action {
            Action::Open(session) => {
                let bytes = usize::from(self.memory.depth) * CHUNK as usize;
                self.memory.sessions.insert(session, vec![0; bytes]);
            }
            Action::Free(session) => drop(self.memory.sessions.remove(&session)),
            Action::Accept(link, private) => self.down(link, Frame::Accept(private)),
            Action::Reject(link, private) => self.down(link, Frame::Reject(private)),
            Action::Send(link, bytes) => self.down(link, Frame::Send(bytes)),
            Action::Immediate(link, imm) => self.down(link, Frame::Immediate(imm)),
            Action::Close(link) => {
                self.down(link, Frame::End);
                self.links[usize::try_from(link.0).unwrap_or(usize::MAX)].open[1] = false;
            }
            Action::Reply {
                invalidate: _,
                link,
                session,
                permit,
                data,
                imm,
            } => {
                let value = self.memory.value(session, permit).to_le_bytes().to_vec();
                let data = data.map(|(into, _)| (into.addr, value));
                self.down(link, Frame::Reply(data, imm));
            }
            Action::Execute(job) => {
                let quick = self.now + self.rng.micros(10, self.slow);
                let stuck = self.stuck + self.rng.micros(10, 50_000);
                let at = if self.now < self.stuck { stuck } else { quick };
                self.sequence += 1;
                let id = self.sequence;
                self.jobs.insert(id, job);
                self.at(at, Happening::JobDone(id));
            }
        }
    }

    // ---- the backend ----

    fn job_done(&mut self, id: u64) {
        let Some(job) = self.jobs.remove(&id) else {
            return;
        };
        self.execute(&job);
        if let Some(server) = &mut self.server {
            server.finished(job.session, job.permit, job.generation, 0);
        }
    }

    /// The disk's part of a job. It works out of the chunk, so what lies there at that moment counts.
    fn execute(&mut self, job: &Job) {
        let block = usize::from(job.usr.first().copied().unwrap_or(0)) % BLOCKS;
        match job.direction {
            Direction::Write => {
                let once = (self.server_life, job.session, job.permit, job.generation);
                if !self.executed.insert(once) {
                    let twice = Violation::ExecutedTwice(format!("{once:?}"));
                    self.violation.get_or_insert(twice);
                }
                self.disk[block] = self.memory.value(job.session, job.permit);
            }
            Direction::Read => {
                let at = u64::from(job.permit) * u64::from(CHUNK);
                let value = self.disk[block].to_le_bytes();
                self.memory.place(job.session, at, &value);
            }
        }
    }

    // ---- life and death ----

    fn start_server(&mut self) {
        self.server_life += 1;
        let geometry = Geometry::new(self.memory.depth, CHUNK, 4096).expect("a valid geometry");
        self.server = Some(Server::new(server::Config {
            heartbeat: heartbeat(self.patient),
            connect_timeout: Time::from_millis(300),
            linger: self.linger,
            safety: self.options.safety,
            ..server::Config::new(geometry, self.rng.any())
        }));
    }

    fn count_server(&mut self) {
        for session in self.memory.sessions.keys() {
            let stats = self
                .server
                .as_ref()
                .and_then(|server| server.stats(*session));
            let stats = stats.unwrap_or_default();
            self.report.joined += stats.joined;
            self.report.answered += stats.answered;
            self.report.settled += stats.settled;
            self.report.fenced += stats.fenced;
        }
    }

    fn kill_server(&mut self, back: Time) {
        if self.server.is_none() {
            return;
        }
        self.report.kills += 1;
        self.count_server();
        // The disk may still finish what it had begun; nobody learns of it.
        for job in std::mem::take(&mut self.jobs).into_values() {
            if self.rng.chance(50) {
                self.execute(&job);
            }
        }
        self.server = None;
        self.stopped[End::Server as usize] = Time::ZERO;
        self.memory.sessions.clear();
        for at in 0..self.links.len() {
            if std::mem::take(&mut self.links[at].open[1]) {
                self.send(at, Way::Down, Frame::End);
            }
        }
        self.at(self.now + back, Happening::ServerBack);
    }

    fn kill_client(&mut self) {
        self.report.kills += 1;
        for at in 0..self.links.len() {
            if std::mem::take(&mut self.links[at].open[0]) {
                self.send(at, Way::Up, Frame::End);
            }
        }
        self.client_life += 1;
        self.stopped[End::Client as usize] = Time::ZERO;
        // What it had asked for has no end in the history.
        self.asked.clear();
        self.held.clear();
        self.buffers.clear();
        self.wire_of.clear();
        let (all_down, after_restart) = (self.all_down, self.after_restart);
        self.client = client(&mut self.rng, all_down, after_restart, self.policy);
        for wire in 0..self.wires.len() {
            self.add_path(wire);
        }
    }

    fn add_path(&mut self, wire: usize) {
        if let Some(path) = self.client.add_path(self.now) {
            self.wire_of.insert(path, wire);
        }
    }

    fn goes(&mut self, fault: Fault) {
        self.trace(&fault);
        let now = self.now;
        match fault {
            Fault::Stall(wire, long) => self.wires[wire].stalled = now + long,
            Fault::StallOne(wire, cid, long) => self.wires[wire].one = (cid, now + long),
            Fault::Hole(wire, way, long) => {
                for one in [Way::Up, Way::Down] {
                    if way.is_none_or(|way| way == one) {
                        self.wires[wire].hole[one as usize] = now + long;
                    }
                }
            }
            Fault::Cut(wire, long) => self.cut(wire, now + long),
            Fault::Stuck(long) => self.stuck = now + long,
            Fault::KillServer(back) => self.kill_server(back),
            Fault::KillClient => self.kill_client(),
            Fault::Stop(end, long) => {
                let until = &mut self.stopped[end as usize];
                *until = (*until).max(now + long);
            }
            Fault::Replace(wire) => {
                let of_wire = self.wire_of.iter().find(|(_, at)| **at == wire);
                if let Some(path) = of_wire.map(|(path, _)| *path) {
                    self.client.remove_path(now, path);
                    // Its links are closed while one still knows the wire.
                    self.pump();
                    self.wire_of.remove(&path);
                    self.add_path(wire);
                }
            }
        }
    }

    fn cut(&mut self, wire: usize, until: Time) {
        self.wires[wire].cut = until;
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            if link.wire == wire && !link.broken {
                link.broken = true;
                let soon = [self.rng.micros(10, 2_000), self.rng.micros(10, 2_000)];
                self.at(self.now + soon[0], Happening::Breaks(at, Way::Up));
                self.at(self.now + soon[1], Happening::Breaks(at, Way::Down));
            }
        }
    }
}
