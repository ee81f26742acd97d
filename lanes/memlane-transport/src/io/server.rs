//! A server: listens, lets connections in one by one, and hands each to the worker that has its session.

use super::across::{Lot, SharedMemory};
use super::address::{self, Address, Epoll, Inherited, Interest, Ready, listening};
use super::admission::{ConnectionSlot, Counts, Limits, Peer};
use super::frame::{MAX_MESSAGE_TO_SERVER, MAX_TAIL, Step};
use super::inflow::{Nothing, Received};
use super::link_error::LinkError;
use super::memory::len_of;
use super::shared;
use super::stream::StreamLink;
use super::tls::{ServerTls, Tls};
use super::verbs::VerbsLink;
use super::worker::{Arrival, Mailbox, SessionInfo, Worker};
use crate::engine::server::Config;
use crate::error::{EBUSY, ENOKEY, EPROTONOSUPPORT, TlsError};
use crate::port::{Identity, Service};
use crate::wire::{CONN_LEN, ConnReq, ConnRsp};
use memlane_core::region::Pages;
use memlane_verbs::{Event, Id, Verbs};
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use rustix::net::{Shutdown, SocketAddrAny, SocketFlags, acceptfrom_with, shutdown, sockopt};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a server is started.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where it listens.
    pub listen: Vec<Address>,
    /// A socket on which a service manager listens already.
    pub inherited: Vec<Inherited>,
    /// The engine's settings.
    pub engine: Config,
    /// Threads that serve, at least one.
    pub workers: usize,
    /// What strangers may use up.
    pub limits: Limits,
    /// What pages sessions' memory is made of. A session for which too few huge ones are free is refused (`ENOMEM`).
    pub pages: Pages,
    /// Over TCP, clients must show a certificate, and all is encrypted. `None`: nobody is asked.
    pub tls: Option<ServerTls>,
    /// Memory that other machines have, too: sessions of clients there lie in it.
    pub shares: Option<Arc<SharedMemory>>,
}

impl ServerConfig {
    /// The defaults.
    #[must_use]
    pub fn new(listen: Vec<Address>, engine: Config) -> ServerConfig {
        ServerConfig {
            listen,
            inherited: Vec::new(),
            engine,
            workers: 1,
            limits: Limits::default(),
            pages: Pages::Plain,
            tls: None,
            shares: None,
        }
    }

    /// Takes possession of the memory that other machines have, too, if there is any.
    fn lot(&self) -> io::Result<Option<Arc<Lot>>> {
        let geometry = &self.engine.geometry;
        let queues = shared::len_of(shared::slots_for(geometry.depth()));
        // One session with one connection.
        let least = len_of(geometry) + queues;
        let taken = |memory: &Arc<SharedMemory>| {
            Lot::take(Arc::clone(memory), least).map_err(io::Error::other)
        };
        self.shares.as_ref().map(taken).transpose()
    }
}

/// How full the memory is that a server shares with other machines, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedMemoryUse {
    /// All of it.
    pub size: usize,
    /// What sessions have, or clients that have not let go of it yet.
    pub used: usize,
}

/// A server that runs. Stopped when dropped.
#[derive(Debug)]
pub struct Server {
    lot: Option<Arc<Lot>>,
    addresses: Vec<Address>,
    mailboxes: Vec<Arc<Mailbox>>,
    stop: Arc<(AtomicBool, EventFd)>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Starts a server. `make` makes the service of a worker, in its thread; its argument is the worker's number.
///
/// # Errors
/// An address is taken, a service cannot be made, threads or descriptors are used up, or requests of this geometry
/// do not fit into frames.
pub fn serve<S, F>(config: ServerConfig, make: F) -> io::Result<Server>
where
    S: Service,
    F: Fn(usize) -> io::Result<S> + Send + Sync + 'static,
{
    let (mut server, listeners) = Server::listening(&config)?;
    let make = Arc::new(make);
    for number in 0..config.workers.max(1) {
        server.start_worker(number, &config, Arc::clone(&make))?;
    }
    server.let_in(listeners, config)?;
    Ok(server)
}

/// A server whose one worker runs in its owner's thread, a pass at a time: what it executes does not depend on time.
/// Programs that count instructions use it (`docs/inside/profiling.md`). It never sleeps.
#[derive(Debug)]
pub struct SteppedServer<S> {
    worker: Worker<S>,
    server: Server,
}

impl<S: Service> SteppedServer<S> {
    /// Starts a server with this service. Connections are let in by a thread; everything else is up to [`step`](Self::step).
    ///
    /// # Errors
    /// Those of [`serve`].
    pub fn new(config: ServerConfig, service: S) -> io::Result<SteppedServer<S>> {
        let (mut server, listeners) = Server::listening(&config)?;
        let mailbox = Arc::new(Mailbox::new()?);
        server.mailboxes.push(Arc::clone(&mailbox));
        let means = (config.engine, config.pages, server.lot.clone());
        let worker = Worker::new(0, means, service, mailbox)?;
        server.let_in(listeners, config)?;
        Ok(SteppedServer { worker, server })
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        self.server.addresses()
    }

    /// Takes what connections have brought, serves it, and answers what is done.
    pub fn step(&mut self) {
        self.worker.step();
    }
}

impl Server {
    /// One that nobody works for yet, and where its clients come in.
    fn listening(config: &ServerConfig) -> io::Result<(Server, Vec<Listener>)> {
        if config.engine.geometry.header() as usize > MAX_TAIL {
            return Err(io::Error::other(
                "headers of chunks are too long for frames",
            ));
        }
        let opened: io::Result<Vec<_>> = config.listen.iter().map(Listener::at).collect();
        let opened = opened?.into_iter();
        let inherited = config.inherited.iter();
        let inherited = inherited.map(|known| {
            let socket = Arc::clone(&known.socket);
            (Listener::Socket(socket), known.address().clone())
        });
        let (listeners, addresses): (Vec<_>, Vec<_>) = inherited.chain(opened).unzip();
        let server = Server {
            lot: config.lot()?,
            addresses,
            mailboxes: Vec::new(),
            stop: Arc::new((AtomicBool::new(false), EventFd::new()?)),
            threads: Mutex::default(),
        };
        Ok((server, listeners))
    }

    /// Starts the thread that lets connections in, and hands them to the workers.
    fn let_in(&self, listeners: Vec<Listener>, config: ServerConfig) -> io::Result<()> {
        let acceptor = Acceptor::new(listeners, config.limits, config.tls, self)?;
        self.start("memlane-accept", move || acceptor.run())
    }

    fn start(&self, name: &str, what: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(what)?;
        let mut threads = lock(&self.threads);
        threads.push(thread);
        Ok(())
    }

    fn start_worker<S, F>(
        &mut self,
        number: usize,
        config: &ServerConfig,
        make: Arc<F>,
    ) -> io::Result<()>
    where
        S: Service,
        F: Fn(usize) -> io::Result<S> + Send + Sync + 'static,
    {
        let mailbox = Arc::new(Mailbox::new()?);
        self.mailboxes.push(Arc::clone(&mailbox));
        let (mut engine, pages, lot) = (config.engine, config.pages, self.lot.clone());
        engine.born = engine.born.wrapping_add(number as u64);
        let (tell, told) = sync_channel(1);
        self.start("memlane-worker", move || {
            let worker = make(number).and_then(|service| {
                let worker = Worker::new(number, (engine, pages, lot), service, mailbox)?;
                Ok(worker)
            });
            // Who waits for this is there.
            match worker {
                Ok(worker) => {
                    let _ = tell.send(Ok(()));
                    worker.run();
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        })?;
        told.recv().map_err(io::Error::other)?
    }

    /// Where it listens, with the ports that the kernel chose.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// How full the memory is that it shares with other machines, if it shares any.
    #[must_use]
    pub fn shared_memory(&self) -> Option<SharedMemoryUse> {
        self.lot.as_ref().map(|lot| SharedMemoryUse {
            size: lot.len(),
            used: lot.used(),
        })
    }

    /// The sessions that there are. A worker that does not answer within a second is left out.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let (tell, told) = channel();
        for mailbox in &self.mailboxes {
            mailbox.ask(tell.clone());
        }
        drop(tell);
        let mut sessions = Vec::new();
        while let Ok(some) = told.recv_timeout(Duration::from_secs(1)) {
            sessions.extend(some);
        }
        sessions
    }

    /// Stops: nobody is let in any more, connections are closed, jobs that run are finished. Clients are not told
    /// that it is for good; they try again.
    pub fn stop(&self) {
        self.stop.0.store(true, Ordering::Release);
        self.stop.1.signal();
        self.mailboxes.iter().for_each(|mailbox| mailbox.stop());
        let mut threads = lock(&self.threads);
        for thread in threads.drain(..) {
            // They do not panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Where clients come in.
#[derive(Debug)]
enum Listener {
    Socket(Arc<OwnedFd>),
    Rdma(Id, SocketAddr),
    /// The device of this address was taken away.
    Gone(SocketAddr),
}

/// Connections over RDMA that were asked for and not looked at yet, as for a socket.
const BACKLOG: i32 = 256;

impl Listener {
    /// One at this address, which is told back as the kernel has made it.
    fn at(address: &Address) -> io::Result<(Listener, Address)> {
        if let Address::Rdma(at) = address {
            let id = Id::listening(Verbs::find()?, at, BACKLOG)?;
            let bound = id.local().unwrap_or(*at);
            return Ok((Listener::Rdma(id, bound), Address::Rdma(bound)));
        }
        let (socket, address) = listening(address)?;
        Ok((Listener::Socket(Arc::new(socket)), address))
    }

    /// Readable when somebody comes.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Listener::Socket(socket) => Some(socket.as_fd()),
            Listener::Rdma(id, _) => Some(id.as_fd()),
            Listener::Gone(_) => None,
        }
    }
}

/// A connection that has not said yet what it wants.
#[derive(Debug)]
struct Guest {
    link: StreamLink,
    who: Identity,
    name: String,
    place: ConnectionSlot,
    until: Instant,
    /// It was told why it must go; what it still says is not heard.
    leaves: bool,
}

/// The thread that lets connections in.
#[derive(Debug)]
struct Acceptor {
    listeners: Vec<Listener>,
    limits: Limits,
    tls: Option<ServerTls>,
    counts: Arc<Mutex<Counts>>,
    workers: Vec<Arc<Mailbox>>,
    stop: Arc<(AtomicBool, EventFd)>,
    epoll: Epoll,
    guests: HashMap<u64, Guest>,
    next_guest: u64,
    /// Descriptors were used up: nobody is let in until then.
    paused: Option<Instant>,
    /// Some listeners' devices are gone: when they are looked for next.
    looks_for_devices: Option<Instant>,
}

/// The stop bell, in the set of what is waited for; listeners come from here, guests far above.
const STOP: u64 = 0;
const FIRST_LISTENER: u64 = 1;
const FIRST_GUEST: u64 = 1 << 32;
/// How long nobody is let in when descriptors are used up.
const PAUSE: Duration = Duration::from_millis(100);
/// How often devices that were taken away are looked for.
const DEVICES_EVERY: Duration = Duration::from_secs(1);
/// How long a guest that was told why it must go may take to.
const FAREWELL: Duration = Duration::from_secs(1);
/// With what a client begins that wants TLS (RFC 8446, 5.1: handshake, and the version's first byte).
const TLS_HANDSHAKE: [u8; 2] = [22, 3];

impl Acceptor {
    fn new(
        listeners: Vec<Listener>,
        limits: Limits,
        tls: Option<ServerTls>,
        server: &Server,
    ) -> io::Result<Acceptor> {
        let (epoll, stop) = (Epoll::new()?, Arc::clone(&server.stop));
        epoll.add(&stop.1, STOP, Interest::READ)?;
        for (data, listener) in (FIRST_LISTENER..).zip(&listeners) {
            if let Some(fd) = listener.fd() {
                epoll.add(fd, data, Interest::READ)?;
            }
        }
        Ok(Acceptor {
            listeners,
            limits,
            tls,
            counts: Arc::default(),
            workers: server.mailboxes.clone(),
            stop,
            epoll,
            guests: HashMap::new(),
            next_guest: FIRST_GUEST,
            paused: None,
            looks_for_devices: None,
        })
    }

    fn run(mut self) {
        let mut ready: Vec<Ready> = Vec::new();
        while !self.stop.0.load(Ordering::Acquire) {
            let limit = self.next_deadline();
            self.epoll.wait(limit, &mut ready);
            for found in &ready {
                match found.data {
                    STOP => {}
                    FIRST_LISTENER..FIRST_GUEST => self.accept(found.data),
                    guest => self.hear(guest),
                }
            }
            self.send_away();
            self.look_for_devices();
        }
    }

    fn next_deadline(&self) -> Option<Duration> {
        let guests = self.guests.values().map(|guest| guest.until);
        let next = guests.chain(self.paused).chain(self.looks_for_devices);
        let next = next.min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Guests who said nothing for too long.
    fn send_away(&mut self) {
        let now = Instant::now();
        self.guests.retain(|_, guest| guest.until > now);
        if self.paused.is_some_and(|until| now >= until) {
            self.paused = None;
            self.listen(Interest::READ);
        }
    }

    /// Listens again at addresses whose device has come back.
    fn look_for_devices(&mut self) {
        let now = Instant::now();
        if self.looks_for_devices.is_none_or(|at| now < at) {
            return;
        }
        let mut some_are_gone = false;
        for (data, listener) in (FIRST_LISTENER..).zip(&mut self.listeners) {
            let Listener::Gone(at) = *listener else {
                continue;
            };
            match Listener::at(&Address::Rdma(at)) {
                Ok((back, _)) => {
                    let added = back.fd().map(|fd| self.epoll.add(fd, data, Interest::READ));
                    match added {
                        Some(Ok(())) => *listener = back,
                        _ => some_are_gone = true,
                    }
                }
                Err(_) => some_are_gone = true,
            }
        }
        self.looks_for_devices = some_are_gone.then(|| now + DEVICES_EVERY);
    }

    fn listen(&self, interest: Interest) {
        for (data, listener) in (FIRST_LISTENER..).zip(&self.listeners) {
            if let Some(fd) = listener.fd() {
                self.epoll.change(fd, data, interest);
            }
        }
    }

    fn accept(&mut self, data: u64) {
        let at = usize::try_from(data - FIRST_LISTENER).unwrap_or(usize::MAX);
        let accepted = match self.listeners.get(at) {
            Some(Listener::Socket(listener)) => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                acceptfrom_with(listener, flags)
            }
            Some(Listener::Rdma(..)) => return self.hear_asking(at),
            Some(Listener::Gone(_)) | None => return,
        };
        match accepted {
            Ok((socket, from)) => self.welcome(socket, from),
            Err(error) if is_passing(error) => {}
            Err(_) => {
                self.paused = Some(Instant::now() + PAUSE);
                self.listen(Interest {
                    read: false,
                    write: false,
                });
            }
        }
    }

    /// Over RDMA, a client says with its first words what it wants.
    fn hear_asking(&mut self, number: usize) {
        let Some(Listener::Rdma(listener, address)) = self.listeners.get(number) else {
            return;
        };
        // What else happens to a listener ends nothing that is there; an error of the channel comes again.
        while let Ok(Some(event)) = listener.event() {
            match event {
                Event::Request(id, private) => self.welcome_over_rdma(id, &private),
                Event::DeviceRemoved => {
                    // The kernel waits until nothing uses the device, and the listener does.
                    self.listeners[number] = Listener::Gone(*address);
                    self.looks_for_devices = Some(Instant::now() + DEVICES_EVERY);
                    return;
                }
                _ => {}
            }
        }
    }

    /// If there is a place for it. Dropped, it is refused.
    fn welcome_over_rdma(&self, id: Id, private: &[u8]) {
        let (Some(peer), Some(private)) = (id.peer(), private.first_chunk()) else {
            return;
        };
        let host = Peer::Host(peer.ip());
        let Some(place) = ConnectionSlot::take(&self.counts, host, &self.limits) else {
            // A client that has gone does not hear it.
            let _ = id.reject(&ConnRsp::refusal(EBUSY));
            return;
        };
        if let Ok(link) = VerbsLink::asked(id, private) {
            self.bring(Arrival {
                link: link.into(),
                who: Identity::Unknown,
                peer: format!("rdma:{peer}"),
                place,
                private: *private,
            });
        }
    }

    /// If there is a place for it.
    fn welcome(&mut self, socket: OwnedFd, from: Option<SocketAddrAny>) {
        if self.guests.len() >= self.limits.half_open {
            return;
        }
        let address = from.and_then(|from| SocketAddr::try_from(from).ok());
        let tls = address.and(self.tls.as_ref());
        let (peer, who, name) = match address {
            Some(address) => {
                address::tune(&socket);
                let kind = if tls.is_some() { "tls" } else { "tcp" };
                let name = format!("{kind}:{address}");
                (Peer::Host(address.ip()), Identity::Unknown, name)
            }
            None => match sockopt::socket_peercred(&socket) {
                Ok(cred) => {
                    let (uid, pid) = (cred.uid.as_raw(), cred.pid.as_raw_nonzero().get());
                    let pid = u32::try_from(pid).unwrap_or(0);
                    let name = format!("local:uid={uid},pid={pid}");
                    (Peer::User(uid), Identity::Local { uid, pid }, name)
                }
                Err(_) => return,
            },
        };
        let mut guests = self.guests.values();
        let known = guests.by_ref().filter(|guest| guest.place.peer == peer);
        if known.count() >= self.limits.half_open_per_peer {
            return;
        }
        let Some(place) = ConnectionSlot::take(&self.counts, peer, &self.limits) else {
            return;
        };
        let mut link = StreamLink::new(socket, MAX_MESSAGE_TO_SERVER);
        match tls.map(Tls::server) {
            None => {}
            Some(Ok(tls)) => link.encrypts(tls),
            Some(Err(_)) => return,
        }
        let data = self.next_guest;
        self.next_guest += 1;
        if self.epoll.add(&link, data, Interest::READ).is_err() {
            return;
        }
        let guest = Guest {
            link,
            who,
            name,
            place,
            until: Instant::now() + self.limits.handshake,
            leaves: false,
        };
        self.guests.insert(data, guest);
    }

    /// The first thing that a guest says, once it has proven who it is, must be what it wants.
    fn hear(&mut self, data: u64) {
        let Some(guest) = self.guests.get_mut(&data) else {
            return;
        };
        if guest.leaves {
            if guest.link.is_drained() {
                self.guests.remove(&data);
            }
            return;
        }
        guest.link.turn(true);
        match guest.link.next(&mut Nothing) {
            Ok(None) => self.answer(data),
            Ok(Some(Received::Step(Step::Connect, private))) => {
                if let Some(guest) = self.guests.remove(&data) {
                    self.epoll.remove(&guest.link);
                    self.introduce(guest, private);
                }
            }
            Err(error) => self.turn_away(data, error),
            // Dropped, it is closed.
            Ok(Some(_)) => drop(self.guests.remove(&data)),
        }
    }

    /// What the encryption has to say before anything else.
    fn answer(&mut self, data: u64) {
        let Some(guest) = self.guests.get_mut(&data).filter(|guest| guest.link.owes()) else {
            return;
        };
        match guest.link.flush() {
            Ok(all) => {
                let interest = Interest {
                    read: true,
                    write: !all,
                };
                self.epoll.change(&guest.link, data, interest);
            }
            Err(error) => self.turn_away(data, error),
        }
    }

    /// Who made a mistake that a person can put right is told so. It is closed when the guest has closed: a reset,
    /// for what it said meanwhile, could be faster than the message.
    fn turn_away(&mut self, data: u64, why: LinkError) {
        let Some(guest) = self.guests.get_mut(&data) else {
            return;
        };
        let link = &mut guest.link;
        match why {
            LinkError::Tls(TlsError::NotTls) => {
                link.gives_up_tls();
                link.step(Step::Reject, &ConnRsp::refusal(ENOKEY));
            }
            LinkError::Frame(_) if link.waiting().starts_with(&TLS_HANDSHAKE) => {
                link.step(Step::Reject, &ConnRsp::refusal(EPROTONOSUPPORT));
            }
            LinkError::Tls(_) => link.say_why(),
            _ => {
                self.guests.remove(&data);
                return;
            }
        }
        // There is room: nothing was sent before.
        let said = link.is_plain().then(|| link.flush());
        if said.is_some_and(|said| said.is_err()) || shutdown(&*link, Shutdown::Write).is_err() {
            self.guests.remove(&data);
            return;
        }
        guest.leaves = true;
        guest.until = guest.until.min(Instant::now() + FAREWELL);
    }

    fn introduce(&self, mut guest: Guest, private: [u8; CONN_LEN]) {
        if let Some(sessions) = guest.link.certified() {
            guest.who = Identity::Certificate(sessions);
        }
        self.bring(Arrival {
            link: guest.link.into(),
            who: guest.who,
            peer: guest.name,
            place: guest.place,
            private,
        });
    }

    /// To the worker that has its session.
    fn bring(&self, arrival: Arrival) {
        // What cannot be read is refused by any worker.
        let session = ConnReq::decode(&arrival.private).map_or([0; 16], |req| req.session);
        let number = u128::from_le_bytes(session) % self.workers.len() as u128;
        let worker = usize::try_from(number).ok();
        if let Some(mailbox) = worker.and_then(|at| self.workers.get(at)) {
            mailbox.bring(arrival);
        }
    }
}

/// Is it about one connection only, or nothing at all?
fn is_passing(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    [Errno::AGAIN, Errno::INTR, Errno::CONNABORTED, Errno::PROTO].contains(&error)
}
