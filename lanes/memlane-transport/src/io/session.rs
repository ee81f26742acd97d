//! A client's session: what its threads share, and what its owner can do.
//!
//! *The thread that waits drives.* The engine and its connections (`Core`) are behind one lock. A thread that wants a
//! result becomes the leader, and does for the others what comes along; [`crate::engine::leader`] is that pattern.
//!
//! | part | what |
//! |---|---|
//! | `drive` | leading: passes, the submit queue, what others are told afterwards |
//! | `inner` | what all of them share |
//! | `poller` | which sleeping thread the sockets wake |
//! | `background` | the thread that leads when no port does, or for many ports at once |
//! | `lending` | memory for requests' data |

mod background;
mod drive;
pub(super) mod inner;
mod lending;
mod poller;

use self::inner::{Inner, NOBODY};
use super::across::SharedMemory;
use super::address::{Epoll, PathAddr};
use super::client::Core;
use super::client_port::ClientPort;
use super::port_state::PortState;
use super::tls::ClientTls;
use crate::engine::client::Config;
use crate::engine::leader::Leadership;
use crate::engine::path::{PathId, PathState};
use crate::error::PathError;
use crate::port::{News, Port, Session};
use crate::stats::PathStats;
use crate::wire::Geometry;
use memlane_core::region::Pages;
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a session is opened.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The engine's settings.
    pub engine: Config,
    /// Its first paths; none is fine.
    pub paths: Vec<PathAddr>,
}

/// By what means a session works; by default without encryption, in plain pages.
#[derive(Clone, Debug, Default)]
pub struct Means {
    /// Paths over TCP are encrypted, with both ends showing who they are.
    pub tls: Option<ClientTls>,
    /// What the memory for requests' data is made of. With too few huge pages, paths are down
    /// ([`PathError::HugePages`]).
    pub pages: Pages,
    /// Memory that the server's machine may have, too: for paths [`Address::Ivshmem`](super::Address::Ivshmem).
    pub shares: Option<Arc<SharedMemory>>,
}

/// One path, as it is now.
#[derive(Clone, Debug)]
pub struct PathInfo {
    /// Which.
    pub id: PathId,
    /// Where it goes.
    pub address: PathAddr,
    /// Where it stands.
    pub state: PathState,
    /// Why it is not up, if that was tried and failed.
    pub why: Option<PathError>,
    /// Requests under way by it.
    pub inflight: u32,
    /// What it has counted.
    pub stats: PathStats,
}

/// A session of a client. Closed when dropped; its ports live on, and say so.
#[derive(Debug)]
pub struct ClientSession {
    inner: Arc<Inner>,
    background: Mutex<Option<JoinHandle<()>>>,
}

/// Opens a session and begins to connect its paths.
///
/// # Errors
/// Descriptors, threads or memory are used up; more paths than there may be.
pub fn open(config: ClientConfig) -> io::Result<Arc<ClientSession>> {
    open_over_tls(config, None)
}

/// Opens a session whose paths over TCP are encrypted, with both ends showing who they are, if there is a `tls`.
///
/// # Errors
/// Descriptors, threads or memory are used up; more paths than there may be.
pub fn open_over_tls(
    config: ClientConfig,
    tls: Option<ClientTls>,
) -> io::Result<Arc<ClientSession>> {
    let means = Means {
        tls,
        ..Means::default()
    };
    open_with(config, means)
}

/// Opens a session that works by these means.
///
/// # Errors
/// Descriptors, threads or memory are used up; more paths than there may be.
pub fn open_with(config: ClientConfig, means: Means) -> io::Result<Arc<ClientSession>> {
    if let Some(memory) = &means.shares {
        memory.sweep();
    }
    let sockets = Arc::new(Epoll::new()?);
    let inner = Arc::new(Inner {
        leadership: Leadership::new(AtomicU64::new(0)),
        core: Mutex::new(Core::new(
            config.engine,
            Arc::clone(&sockets),
            (means.tls, means.pages, means.shares),
        )),
        queue: Mutex::default(),
        pool: OnceLock::new(),
        ports: Mutex::default(),
        next_port: AtomicU64::new(0),
        sockets,
        poller: Mutex::default(),
        poller_number: AtomicU64::new(NOBODY),
        ticking: AtomicBool::new(false),
        passes: AtomicU64::new(0),
        moves: AtomicU64::new(0),
        looks_again: AtomicU64::new(u64::MAX),
        started: Instant::now(),
        wake: EventFd::new()?,
        news: Mutex::default(),
        has_news: EventFd::new()?,
        closed: AtomicBool::new(false),
    });
    let session = Arc::new(ClientSession {
        inner: Arc::clone(&inner),
        background: Mutex::default(),
    });
    for path in config.paths {
        let added = session.add_path(path);
        added.ok_or_else(|| io::Error::other("more paths than a session may have"))?;
    }
    let thread = std::thread::Builder::new().name("memlane-session".into());
    let background = thread.spawn(move || inner.background())?;
    *lock(&session.background) = Some(background);
    Ok(session)
}

impl ClientSession {
    /// Adds a path and begins to connect it. `None`: there are as many as there may be, or the session is closed.
    pub fn add_path(&self, address: PathAddr) -> Option<PathId> {
        self.inner.with(|core| {
            let now = core.now();
            let id = core.engine.add_path(now)?;
            core.addresses.insert(id, address);
            Some(id)
        })
    }

    /// Takes a path away; its requests go elsewhere.
    pub fn remove_path(&self, id: PathId) {
        self.inner.with(|core| {
            let now = core.now();
            core.engine.remove_path(now, id);
            core.addresses.remove(&id);
        });
    }

    /// Takes a path down until [`reconnect`](Self::reconnect).
    pub fn disconnect(&self, id: PathId) {
        self.inner.with(|core| {
            let now = core.now();
            core.engine.disconnect(now, id);
        });
    }

    /// Connects a path anew, now.
    pub fn reconnect(&self, id: PathId) {
        self.inner.with(|core| {
            let now = core.now();
            core.engine.reconnect(now, id);
        });
    }

    /// Every path.
    #[must_use]
    pub fn paths(&self) -> Vec<PathInfo> {
        self.inner.with(|core| {
            let info = |(id, state)| {
                Some(PathInfo {
                    id,
                    address: core.addresses.get(&id)?.clone(),
                    state,
                    why: core.engine.why_down(id),
                    inflight: core.engine.inflight(id)?,
                    stats: core.engine.stats(id)?.clone(),
                })
            };
            core.engine.paths().filter_map(info).collect()
        })
    }

    /// Epoll until a path is up, but not longer than `limit`, nor for paths that are all down for a reason that only a
    /// person can put right: then it is `false`.
    #[must_use]
    pub fn wait_for_a_path(&self, limit: Duration) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < limit {
            let paths = self.paths();
            let in_vain = |path: &PathInfo| path.why.is_some_and(|why| why.wants_a_person());
            if paths.is_empty() || paths.iter().any(|path| path.state == PathState::Connected) {
                return true;
            }
            if paths.iter().all(in_vain) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Ends the session: what is not over fails with [`Closed`](crate::error::RequestError::Closed). Leases that are
    /// out stay what they are.
    pub fn close(&self) {
        let inner = &self.inner;
        inner.with(|core| {
            inner.closed.store(true, Ordering::Release);
            inner.take_queue(core);
            core.close();
        });
        inner.wake.signal();
        let background = lock(&self.background).take();
        if let Some(background) = background {
            // It does not panic.
            let _ = background.join();
        }
        lock(&inner.ports).iter().for_each(|port| port.call());
    }
}

impl Session for ClientSession {
    fn port(&self) -> io::Result<Box<dyn Port>> {
        let number = self.inner.next_port.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(PortState::new(number)?);
        lock(&self.inner.ports).push(Arc::clone(&state));
        let port = ClientPort::new(Arc::clone(&self.inner), state);
        Ok(Box::new(port))
    }

    fn geometry(&self) -> Option<Geometry> {
        self.inner.with(|core| core.engine.geometry())
    }

    fn news(&self) -> Option<News> {
        let mut news = lock(&self.inner.news);
        let next = news.pop_front();
        if news.is_empty() {
            self.inner.has_news.drain();
        }
        next
    }

    fn news_fd(&self) -> BorrowedFd<'_> {
        self.inner.has_news.as_fd()
    }
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        self.close();
    }
}
