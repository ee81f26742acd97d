//! The server: doors, a thread for each client, and an orderly end.

use super::conn::{Around, Conn};
use super::handshake::{Doorman, Welcome};
use super::listen::{Door, Listen};
use super::lock::{RangeLock, Wakeup};
use super::negotiate::{Agreed, Offer};
use super::request::Terms;
use super::stats::{ConnStats, Connection, Counters, Snapshot};
use super::stream::Stream;
#[cfg(feature = "tls")]
use super::tls::TlsConfig;
use super::wire::MAX_STRING;
use memlane_block::volume::Volume;
use memlane_wait::event::EventFd;
use memlane_wait::mutex::{lock, wait};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// A client's thread needs little.
const STACK: usize = 256 * 1024;
/// After an accept that failed for want of descriptors or memory.
const BREATH: Duration = Duration::from_millis(20);

/// A volume, and how clients see it.
#[derive(Clone)]
pub struct Export {
    /// What clients ask for; the first export is also what they get if they name none.
    pub name: String,
    /// Words for a person; may be empty.
    pub description: String,
    /// What is exported.
    pub volume: Arc<dyn Volume>,
    /// Nothing can be written, whatever the volume allows.
    pub read_only: bool,
}

/// What to serve, where, and within which limits.
pub struct ServerConfig {
    /// Where to wait for clients.
    pub listen: Vec<Listen>,
    /// What there is.
    pub exports: Vec<Export>,
    /// Certificates.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsConfig>,
    /// Listens beyond this host without TLS.
    pub insecure: bool,
    /// Clients at a time; more are turned away.
    pub max_connections: usize,
    /// Requests of one client at a time; more wait in its socket.
    pub max_requests: usize,
    /// For a handshake.
    pub handshake_limit: Duration,
    /// For clients to go away by themselves, and to take their replies, after a stop.
    pub grace: Duration,
    /// How long to look for more before going to sleep, while traffic is dense.
    pub spin: Duration,
}

impl ServerConfig {
    /// With the usual limits.
    #[must_use]
    pub fn new(listen: Vec<Listen>, exports: Vec<Export>) -> ServerConfig {
        ServerConfig {
            listen,
            exports,
            #[cfg(feature = "tls")]
            tls: None,
            insecure: false,
            max_connections: 256,
            max_requests: 128,
            handshake_limit: Duration::from_secs(10),
            grace: Duration::from_millis(500),
            spin: Duration::from_micros(50),
        }
    }

    /// Must a client use TLS to get any information?
    fn is_closed(&self) -> bool {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.required;
        }
        false
    }

    fn check(&self) -> io::Result<()> {
        let mut names: Vec<&str> = self.exports.iter().map(|e| e.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() || names.len() != self.exports.len() {
            return Err(invalid("exports need names of their own"));
        }
        for export in &self.exports {
            if export.name.len().max(export.description.len()) > MAX_STRING {
                return Err(invalid("a name or description is too long"));
            }
            if Terms::whole_blocks(export.volume.info()).is_none() {
                return Err(invalid("a volume whose blocks NBD can't name"));
            }
        }
        let beyond = |l: &Listen| matches!(l, Listen::Tcp(address) if !address.ip().is_loopback());
        if self.listen.iter().any(beyond) && !self.is_closed() && !self.insecure {
            return Err(invalid("beyond this host only with TLS, or insecure"));
        }
        Ok(())
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// An NBD server.
pub struct Server {
    doors: Mutex<Vec<Door>>,
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
}

struct Shared {
    exports: Vec<(Export, RangeLock)>,
    #[cfg(feature = "tls")]
    tls: Option<(Arc<rustls::ServerConfig>, bool)>,
    max_connections: usize,
    max_requests: usize,
    handshake_limit: Duration,
    grace: Duration,
    spin: Duration,
    stop: AtomicBool,
    /// Wakes the thread that accepts clients.
    event: EventFd,
    book: Mutex<Book>,
    someone_left: Condvar,
}

/// Who is here, and who was.
#[derive(Default)]
struct Book {
    next: u64,
    here: BTreeMap<u64, Arc<Client>>,
    past: Counters,
    accepted: u64,
    turned_away: u64,
    failed: u64,
}

struct Client {
    peer: String,
    wakeup: Arc<Wakeup>,
    export: OnceLock<usize>,
    tls: AtomicBool,
    stats: ConnStats,
}

/// Ends a server from another thread, or looks at it.
#[derive(Clone)]
pub struct StopHandle(Arc<Shared>);

impl StopHandle {
    /// Lets nobody in any more; what is under way is finished, new requests end with `ESHUTDOWN`, and
    /// [`Server::run`] returns when all clients are gone.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::SeqCst);
        self.0.event.signal();
        for client in self.0.book().here.values() {
            client.wakeup.event.signal();
        }
    }

    /// The server, as it is now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }
}

impl Server {
    /// Opens the doors; clients are served once it [runs](Self::run).
    ///
    /// # Errors
    /// An address that can't be had, or a configuration that makes no sense: the text says which.
    pub fn bind(config: ServerConfig) -> io::Result<Server> {
        config.check()?;
        let shared = Shared {
            #[cfg(feature = "tls")]
            tls: match &config.tls {
                Some(tls) => Some((tls.load()?, tls.required)),
                None => None,
            },
            exports: config
                .exports
                .into_iter()
                .map(|export| (export, RangeLock::default()))
                .collect(),
            max_connections: config.max_connections,
            max_requests: config.max_requests.max(1),
            handshake_limit: config.handshake_limit,
            grace: config.grace,
            spin: config.spin,
            stop: AtomicBool::new(false),
            event: EventFd::new()?,
            book: Mutex::default(),
            someone_left: Condvar::new(),
        };
        let doors = config.listen.into_iter().map(Door::open);
        let doors = doors.collect::<io::Result<Vec<_>>>()?;
        Ok(Server {
            addresses: doors.iter().filter_map(Door::tcp_address).collect(),
            doors: Mutex::new(doors),
            shared: Arc::new(shared),
        })
    }

    /// TCP addresses that it listens at, with the ports that the kernel chose.
    #[must_use]
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Ends it from another thread.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(Arc::clone(&self.shared))
    }

    /// As it is now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot()
    }

    /// Serves a client of this machine that has its information by other means than a handshake (the kernel): requests
    /// come at once, replies are simple ones.
    ///
    /// # Errors
    /// No such export, too many clients, no memory, or the server is stopped.
    pub fn adopt(&self, socket: OwnedFd, name: &str) -> io::Result<()> {
        let mut exports = self.shared.exports.iter();
        let export = exports.position(|(export, _)| export.name == name);
        let agreed = Agreed {
            export: export.ok_or(io::ErrorKind::NotFound)?,
            structured: false,
            allocation: false,
        };
        if self.shared.stop.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let too_many = || io::Error::new(io::ErrorKind::QuotaExceeded, "too many clients");
        let (number, client) = self.shared.enter("kernel".into()).ok_or_else(too_many)?;
        self.shared.spawn(number, move |shared| {
            shared.requests(&client, agreed, Stream::Plain(socket), &[]);
        })
    }

    /// Serves until it is stopped. A request that its volume never finishes keeps it from returning.
    ///
    /// # Errors
    /// It can't wait for clients.
    pub fn run(&self) -> io::Result<()> {
        let doors = std::mem::take(&mut *lock(&self.doors));
        let served = self.shared.serve(&doors);
        drop(doors);
        let mut book = self.shared.book();
        while !book.here.is_empty() {
            book = wait(&self.shared.someone_left, book);
        }
        served
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    fn serve(self: &Arc<Shared>, doors: &[Door]) -> io::Result<()> {
        while !self.stop.load(Ordering::SeqCst) {
            let event = [self.event.as_fd()];
            let fds = event
                .into_iter()
                .chain(doors.iter().map(|door| door.as_fd()));
            let mut fds: Vec<PollFd<'_>> = fds
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> = fds[1..].iter().map(|f| !f.revents().is_empty()).collect();
            for (door, _) in doors.iter().zip(ready).filter(|(_, ready)| *ready) {
                self.admit(door);
            }
        }
        Ok(())
    }

    /// Takes in the next client of a door.
    fn admit(self: &Arc<Shared>, door: &Door) {
        let (fd, peer) = match door.accept() {
            Ok(client) => client,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // No descriptors, no memory, or a client that is gone already: others are served meanwhile.
            Err(_) => return std::thread::sleep(BREATH),
        };
        let Some((number, client)) = self.enter(peer) else {
            return;
        };
        // Without a thread it is turned away.
        let _ = self.spawn(number, move |shared| shared.client(&client, fd));
    }

    /// A client's thread.
    fn spawn(
        self: &Arc<Shared>,
        number: u64,
        life: impl FnOnce(&Shared) + Send + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(self);
        let serve = move || {
            life(&shared);
            shared.leave(number);
        };
        let thread = std::thread::Builder::new().name("memlane-nbd".into());
        let spawned = thread.stack_size(STACK).spawn(serve);
        if spawned.is_err() {
            self.leave(number);
        }
        spawned.map(drop)
    }

    fn enter(&self, peer: String) -> Option<(u64, Arc<Client>)> {
        let mut book = self.book();
        book.accepted += 1;
        let wakeup = Wakeup::new()
            .ok()
            .filter(|_| book.here.len() < self.max_connections);
        let Some(wakeup) = wakeup else {
            book.turned_away += 1;
            return None;
        };
        let client = Arc::new(Client {
            peer,
            wakeup,
            export: OnceLock::new(),
            tls: AtomicBool::new(false),
            stats: ConnStats::default(),
        });
        let number = book.next;
        book.next += 1;
        book.here.insert(number, Arc::clone(&client));
        Some((number, client))
    }

    fn leave(&self, number: u64) {
        let mut book = self.book();
        if let Some(client) = book.here.remove(&number) {
            book.past = book.past.and(client.stats.counters());
        }
        self.someone_left.notify_all();
    }

    /// One client's whole life.
    fn client(&self, client: &Client, fd: OwnedFd) {
        let offers: Vec<Offer> = self.exports.iter().filter_map(|(e, _)| e.offer()).collect();
        let doorman = Doorman {
            offers: &offers,
            #[cfg(feature = "tls")]
            tls: self.tls.as_ref(),
            event: &client.wakeup.event,
            stop: &self.stop,
            limit: self.handshake_limit,
            grace: self.grace,
        };
        let Welcome {
            stream,
            agreed,
            early,
            tls,
        } = match doorman.welcome(fd) {
            Ok(Some(welcome)) => welcome,
            Ok(None) => return,
            Err(_) => {
                self.book().failed += 1;
                return;
            }
        };
        // An offer may be missing, so its index is not the export's.
        let name = offers.get(agreed.export).map(|offer| &offer.name);
        let Some(export) = self.exports.iter().position(|(e, _)| Some(&e.name) == name) else {
            return;
        };
        client.tls.store(tls, Ordering::Relaxed);
        self.requests(client, Agreed { export, ..agreed }, stream, &early);
    }

    /// What comes behind the handshake; `agreed` names the export by its own index.
    fn requests(&self, client: &Client, agreed: Agreed, stream: Stream, early: &[u8]) {
        let Some((export, lock)) = self.exports.get(agreed.export) else {
            return;
        };
        let _ = client.export.set(agreed.export);
        let around = Around {
            volume: &*export.volume,
            lock,
            wakeup: &client.wakeup,
            stop: &self.stop,
            stats: &client.stats,
            read_only: export.read_only || export.volume.info().read_only,
            max_requests: self.max_requests,
            grace: self.grace,
            spin: self.spin,
        };
        if let Ok(conn) = Conn::new(around, stream, agreed, early) {
            conn.run();
        }
    }

    fn snapshot(&self) -> Snapshot {
        let book = self.book();
        let connections = book.here.values().map(|client| Connection {
            peer: client.peer.clone(),
            export: client
                .export
                .get()
                .and_then(|i| Some(self.exports.get(*i)?.0.name.clone())),
            tls: client.tls.load(Ordering::Relaxed),
            counters: client.stats.counters(),
        });
        let connections: Vec<Connection> = connections.collect();
        let counters = connections.iter().map(|c| c.counters);
        Snapshot {
            total: counters.fold(book.past, Counters::and),
            connections,
            accepted: book.accepted,
            turned_away: book.turned_away,
            failed_handshakes: book.failed,
        }
    }
}

impl Export {
    fn offer(&self) -> Option<Offer> {
        let info = Terms::whole_blocks(self.volume.info())?;
        Some(Offer {
            name: self.name.clone(),
            description: self.description.clone(),
            size: info.size,
            flags: Terms::offered(&info, self.read_only || info.read_only),
            blocks: (info.block, info.preferred.max(info.block)),
        })
    }
}
