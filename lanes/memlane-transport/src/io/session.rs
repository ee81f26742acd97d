//! A client's session: who drives it, and what its owner can do.
//!
//! *Whoever waits, drives.* The engine and its connections are behind one lock; a thread that wants a result takes it,
//! and does for the others what comes along. Who finds it taken leaves its requests at the door: who has it looks there
//! before and after. A thread that sleeps on its port's descriptor is woken by the sockets themselves, if it is the one
//! that *watches*; the others are woken by whoever brings their results. When no port cares, a thread in the
//! background does: it keeps paths alive.

mod lending;

use super::address::{Interest, PathAddr, Waits};
use super::client::{Core, Queued, Told};
use super::client_port::{ClientPort, PortState};
use super::crowd::Crowd;
use super::pool::Pool;
use super::tls::ClientTls;
use super::watch::{Watch, WatchedBy};
use crate::engine::client::Config;
use crate::engine::path::{PathId, PathState};
use crate::error::PathError;
use crate::port::{News, Port, Session};
use crate::stats::PathStats;
use crate::wire::Geometry;
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use memlane_wait::spin::{Policy, Spin};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// News that nobody listens to: the oldest are dropped.
const MOST_NEWS: usize = 1024;
/// While ports drive, the background thread looks so often whether they still do.
const ASIDE: Duration = Duration::from_millis(10);
/// Somebody sleeps, and who is to drive for him went away for a moment: is he back?
const TICK: Duration = Duration::from_micros(500);
/// Passes before others have their turn, when there is always something.
const TURNS: u32 = 64;
/// Who is back after so long was away for a moment.
const QUICK: Duration = Duration::from_micros(30);
/// Looks at what comes without a kernel, between two passes of who spins.
const LOOKS: u32 = 32;
/// While one watches, it is woken by what comes; this is for what it then leaves.
const WATCHED: Duration = Duration::from_millis(100);

/// How a session is opened.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The engine's settings.
    pub engine: Config,
    /// Its first paths; none is fine.
    pub paths: Vec<PathAddr>,
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

/// What a thread does when it has driven.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    /// Drives again, at once.
    Again,
    /// Something else: whoever sleeps is to be woken by what comes.
    Away,
    /// Sleeps.
    Sleep,
}

/// What ports, session and background thread share.
#[derive(Debug)]
pub(super) struct Inner {
    core: Mutex<Core>,
    /// Requests that wait for whoever drives.
    door: Mutex<Vec<Queued>>,
    knocked: AtomicBool,
    pool: OnceLock<Arc<Pool>>,
    ports: Mutex<Vec<Arc<PortState>>>,
    next_port: AtomicU64,
    /// All sockets.
    sockets: Arc<Waits>,
    watch: Mutex<Watch>,
    /// The port that watches; `NOBODY`.
    holder: AtomicU64,
    sleepers: AtomicUsize,
    /// Nobody looks at shared connections: what comes there rings. Written with `core` locked.
    rests: AtomicBool,
    /// The background thread looks every `TICK`.
    ticking: AtomicBool,
    spinning: AtomicBool,
    pub(super) crowd: Crowd,
    /// Counts what ports have driven.
    driven: AtomicU64,
    /// When the background thread looks again, in nanoseconds since `started`.
    looks_again: AtomicU64,
    started: Instant,
    /// For the background thread.
    wake: EventFd,
    news: Mutex<VecDeque<News>>,
    news_bell: EventFd,
    closed: AtomicBool,
}

/// No port has this number.
const NOBODY: u64 = u64::MAX;

/// That one thread is looking, so that no other need.
#[derive(Debug)]
pub(super) struct Spinner<'a>(&'a AtomicBool);

impl Drop for Spinner<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Inner {
    // ---- driving ----

    pub(super) fn hand_in(&self, staged: &mut Vec<Queued>) {
        if !staged.is_empty() {
            lock(&self.door).append(staged);
            self.knocked.store(true, Ordering::SeqCst);
            // Whoever finds the lock taken from here on is seen by who leaves it: see `knocks`.
            fence(Ordering::SeqCst);
        }
    }

    /// Sends what a port has: straight, or, if somebody else is inside, by way of the door.
    pub(super) fn send_all(&self, staged: &mut Vec<Queued>) {
        match self.core.try_lock() {
            Ok(mut core) => {
                self.let_in(&mut core);
                core.take_in(staged);
                self.leave(core);
            }
            Err(_) => self.hand_in(staged),
        }
        self.send();
    }

    /// Is somebody at the door who may have found it shut? To be asked after each unlock.
    fn knocks(&self) -> bool {
        fence(Ordering::SeqCst);
        self.knocked.load(Ordering::SeqCst)
    }

    /// Sends what is at the door.
    pub(super) fn send(&self) {
        while self.knocks() {
            let Ok(mut core) = self.core.try_lock() else {
                return;
            };
            self.let_in(&mut core);
            self.leave(core);
        }
    }

    /// One pass, if something has come, by a thread that goes on with something else.
    pub(super) fn drive(&self) {
        let Ok(mut core) = self.core.try_lock() else {
            return;
        };
        let some = core.has_some();
        drop(core);
        if some || self.knocks() || self.owes_rest() {
            self.drive_and(Then::Away, false);
        }
    }

    /// One pass, unless somebody else is at it. Then nobody looks, until the kernel says so.
    pub(super) fn drive_and_sleep(&self) {
        self.drive_and(Then::Sleep, false);
    }

    /// One pass, or as many looks as cost no more; more follow at once. Has something come?
    pub(super) fn drive_on(&self) -> bool {
        self.drive_and(Then::Again, false)
    }

    /// By a thread that was woken: whatever woke it is read, so that it does not wake it again.
    pub(super) fn drive_woken(&self) {
        self.drive_and(Then::Away, true);
    }

    fn drive_and(&self, then: Then, mut all: bool) -> bool {
        loop {
            let Ok(mut core) = self.core.try_lock() else {
                return false;
            };
            self.driven.fetch_add(1, Ordering::Relaxed);
            self.let_in(&mut core);
            if then == Then::Again {
                self.look(&core);
            }
            core.pass(std::mem::take(&mut all));
            let rests = then == Then::Sleep
                || (then == Then::Away && self.sleepers.load(Ordering::SeqCst) > 0);
            // A server that never ends is left to the next pass.
            let mut turns = 0;
            while rests && turns < TURNS && !core.naps() {
                core.pass(false);
                turns += 1;
            }
            self.rests.store(rests, Ordering::Relaxed);
            let moved = std::mem::take(&mut core.has_moved);
            self.leave(core);
            if !self.knocks() && (then == Then::Again || !self.owes_rest()) {
                return moved;
            }
        }
    }

    /// Looks for a moment, until something has come, by a connection or to the door.
    fn look(&self, core: &Core) {
        for _ in 0..LOOKS {
            if core.glances() || self.knocked.load(Ordering::Relaxed) {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Somebody sleeps who would not be woken. After `knocks`, which orders what it reads: who is about to sleep has
    /// said so before it finds the lock taken.
    fn owes_rest(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0 && !self.rests.load(Ordering::Relaxed)
    }

    /// This thread looks no more. Whoever sleeps is woken by the kernel.
    pub(super) fn rest(&self) {
        if self.knocks() || self.owes_rest() {
            self.drive_and(Then::Away, false);
        }
    }

    fn let_in(&self, core: &mut Core) {
        // Who is not seen here is seen when leaving.
        let some = self.knocked.load(Ordering::Relaxed);
        if !some || !self.knocked.swap(false, Ordering::SeqCst) {
            return;
        }
        let mut queued = std::mem::take(&mut *lock(&self.door));
        core.take_in(&mut queued);
        // Its memory is used again.
        let mut door = lock(&self.door);
        if door.is_empty() {
            *door = queued;
        }
    }

    /// Tells what came of it, after the lock.
    fn leave(&self, mut core: MutexGuard<'_, Core>) {
        let told = std::mem::take(&mut core.told);
        let deadline = core.deadline().map(|deadline| core.instant(deadline));
        drop(core);
        if let Some(deadline) = deadline {
            let at = deadline.saturating_duration_since(self.started);
            if nanos(at) < self.looks_again.load(Ordering::Relaxed) {
                self.looks_again.store(nanos(at), Ordering::Relaxed);
                self.wake.signal();
            }
        }
        self.tell(told);
    }

    fn tell(&self, told: Told) {
        if let Some(pool) = told.pool {
            // There is one in a session's life.
            let _ = self.pool.set(pool);
            lock(&self.ports).iter().for_each(|port| port.call());
        }
        if !told.news.is_empty() {
            let mut news = lock(&self.news);
            news.extend(told.news);
            let many = news.len().saturating_sub(MOST_NEWS);
            news.drain(..many);
            drop(news);
            self.news_bell.signal();
        }
    }

    /// With the lock, whoever has it; then as after any pass.
    fn with<R>(&self, what: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = lock(&self.core);
        let result = what(&mut core);
        let now = core.now();
        core.carry_out(now);
        core.flush(now);
        self.leave(core);
        self.send();
        result
    }

    // ---- ports ----

    /// Nobody else looks: this thread may, until it drops what it gets.
    pub(super) fn spinner(&self) -> Option<Spinner<'_>> {
        let free = !self.spinning.swap(true, Ordering::Acquire);
        free.then_some(Spinner(&self.spinning))
    }

    /// The spinner sees what comes: nobody else is to be woken by it.
    pub(super) fn takes_watch(&self, port: &Arc<PortState>) {
        if [NOBODY, port.number].contains(&self.holder.load(Ordering::Acquire)) {
            return;
        }
        let mut watch = lock(&self.watch);
        if let Some((holder, true)) = &watch.holder {
            holder.waits.remove(&*self.sockets);
        }
        self.hold(&mut watch, port, false);
    }

    fn hold(&self, watch: &mut Watch, port: &Arc<PortState>, added: bool) {
        self.holder.store(port.number, Ordering::Release);
        watch.holder = Some((Arc::clone(port), added));
    }

    /// A port wants something again.
    pub(super) fn is_back(&self, port: &PortState) {
        // It matters to those who sleep only.
        if self.sleepers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let away = nanos(self.started.elapsed()).saturating_sub(port.left.load(Ordering::Relaxed));
        let quick = away < nanos(QUICK);
        port.is_quick.store(quick, Ordering::Relaxed);
    }

    /// A port is about to sleep. If none watches that sleeps, too, and none looks, it does.
    pub(super) fn asleep(&self, port: &Arc<PortState>) {
        let mut watch = lock(&self.watch);
        watch.asleep.insert(port.number, Arc::clone(port));
        self.sleepers.store(watch.asleep.len(), Ordering::SeqCst);
        port.sleeps.store(true, Ordering::Relaxed);
        let watched = watch.holder.as_ref().is_some_and(|(holder, _)| {
            holder.number != port.number && watch.asleep.contains_key(&holder.number)
        });
        // Who looks hands over when leaving.
        if !watched && !self.spinning.load(Ordering::SeqCst) {
            self.watches(&mut watch, port);
        }
    }

    /// A port is awake. If it was the one that watched or looked, another one that sleeps watches from now on; but not
    /// if it will be back at once: then the background thread sees to it that it is.
    pub(super) fn awake(&self, port: &Arc<PortState>) {
        if self.crowd.is_there() {
            return self.lets_go(port);
        }
        if port.sleeps.load(Ordering::Relaxed) {
            port.sleeps.store(false, Ordering::Relaxed);
            let mut watch = lock(&self.watch);
            watch.asleep.remove(&port.number);
            self.sleepers.store(watch.asleep.len(), Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        port.left
            .store(nanos(self.started.elapsed()), Ordering::Relaxed);
        let mine = [NOBODY, port.number].contains(&self.holder.load(Ordering::Acquire));
        if !mine {
            return;
        }
        if port.is_quick.load(Ordering::Relaxed) {
            if !self.ticking.load(Ordering::SeqCst) {
                self.wake.signal();
            }
            return;
        }
        self.hand_over(&mut lock(&self.watch));
    }

    /// The first that sleeps watches.
    fn hand_over(&self, watch: &mut Watch) {
        if let Some(other) = watch.asleep.values().next().cloned() {
            self.watches(watch, &other);
        }
    }

    fn watches(&self, watch: &mut Watch, port: &Arc<PortState>) {
        match &watch.holder {
            Some((holder, true)) if holder.number == port.number => return,
            Some((holder, true)) => holder.waits.remove(&*self.sockets),
            _ => {}
        }
        let added = port.waits.add(&*self.sockets, 1, Interest::READ).is_ok();
        self.hold(watch, port, added);
    }

    /// A port is no more.
    pub(super) fn forget(&self, port: &Arc<PortState>) {
        self.drop_watch(&mut lock(&self.watch), port);
        lock(&self.ports).retain(|other| other.number != port.number);
    }

    fn drop_watch(&self, watch: &mut Watch, port: &Arc<PortState>) {
        if let Some((holder, added)) = &watch.holder
            && holder.number == port.number
        {
            if *added {
                holder.waits.remove(&*self.sockets);
            }
            watch.holder = None;
            self.holder.store(NOBODY, Ordering::Release);
        }
    }

    /// Who sees to it that what comes is read?
    fn watched_by(&self) -> WatchedBy {
        let watch = lock(&self.watch);
        if watch.asleep.is_empty() {
            return WatchedBy::Nobody;
        }
        let sleeps = |(holder, added): &(Arc<PortState>, bool)| {
            *added && watch.asleep.contains_key(&holder.number)
        };
        match watch.holder.as_ref().is_some_and(sleeps) {
            true => WatchedBy::Sleeper,
            false => WatchedBy::WhoWentAway,
        }
    }

    /// Since it is known that nobody ticks: who went away before has not rung.
    fn somebody_went_away(&self) -> bool {
        fence(Ordering::SeqCst);
        self.watched_by() == WatchedBy::WhoWentAway
    }

    // ---- a crowd ----

    /// Two ports wait at a time.
    pub(super) fn gathers(&self) {
        if self.crowd.gathers() {
            self.wake.signal();
        }
    }

    /// A port that is about to sleep on its bell alone: others see to the sockets.
    pub(super) fn lets_go(&self, port: &Arc<PortState>) {
        if port.sleeps.load(Ordering::Relaxed) || self.holder.load(Ordering::Acquire) == port.number
        {
            port.sleeps.store(false, Ordering::Relaxed);
            let mut watch = lock(&self.watch);
            watch.asleep.remove(&port.number);
            self.sleepers.store(watch.asleep.len(), Ordering::SeqCst);
            self.drop_watch(&mut watch, port);
            drop(watch);
            self.wake.signal();
        }
    }

    /// Drives for all, as long as something comes, and for a while longer; but not when there is no crowd any more.
    fn drives_for_all(&self, spin: &mut Spin) {
        let Some(_turn) = self.spinner() else {
            return;
        };
        let mut seen = self.crowd.seen();
        spin.start(Duration::MAX);
        while !self.closed.load(Ordering::Acquire) {
            let moved = self.drive_on();
            let over = !moved && spin.is_over();
            if self.crowd.dissolves(&mut seen) || over {
                break;
            }
            if moved {
                spin.found();
                spin.start(Duration::MAX);
            } else {
                spin.pause();
            }
        }
    }

    // ---- the background ----

    fn background(&self) {
        let Ok(waits) = Waits::new() else {
            return;
        };
        let added = waits.add(&self.wake, 0, Interest::READ);
        if added.is_err() {
            return;
        }
        let (mut seen, mut with_sockets) = (0, false);
        let mut ready = Vec::new();
        let (mut spin, mut crowd) = (Spin::new(Policy::default()), self.crowd.seen());
        while !self.closed.load(Ordering::Acquire) {
            let crowded = self.crowd.is_there() && !self.crowd.dissolves(&mut crowd);
            if crowded {
                self.drives_for_all(&mut spin);
            }
            self.drive_and(Then::Sleep, true);
            let driven = self.driven.load(Ordering::Relaxed);
            // Its own pass is one.
            let by_others = driven != seen + 1 && !crowded;
            seen = driven;
            let mut watched_by = self.watched_by();
            if watched_by == WatchedBy::WhoWentAway && !by_others {
                self.hand_over(&mut lock(&self.watch));
                watched_by = WatchedBy::Sleeper;
            }
            let with = crowded || (!by_others && watched_by == WatchedBy::Nobody);
            if with != with_sockets {
                match with {
                    true => drop(waits.add(&*self.sockets, 1, Interest::READ)),
                    false => waits.remove(&*self.sockets),
                }
                with_sockets = with;
            }
            let most = match (watched_by, by_others) {
                _ if crowded => Some(ASIDE),
                (WatchedBy::WhoWentAway, _) => Some(TICK),
                (WatchedBy::Sleeper, _) => Some(WATCHED),
                (WatchedBy::Nobody, true) => Some(ASIDE),
                (WatchedBy::Nobody, false) => None,
            };
            let ticks = watched_by == WatchedBy::WhoWentAway;
            self.ticking.store(ticks, Ordering::SeqCst);
            let limit = match !ticks && self.somebody_went_away() {
                true => Some(Duration::ZERO),
                false => self.until_deadline(most),
            };
            waits.wait(limit, &mut ready);
            self.wake.drain();
        }
    }

    /// How long the background thread sleeps, told to those who make a deadline that is nearer.
    fn until_deadline(&self, most: Option<Duration>) -> Option<Duration> {
        // Until it is told otherwise: for ever. Then nobody who drives meanwhile misses that it sleeps.
        self.looks_again.store(u64::MAX, Ordering::Relaxed);
        let Ok(core) = self.core.try_lock() else {
            // Who has the lock tells, when leaving.
            return most;
        };
        let deadline = core.deadline().map(|deadline| core.instant(deadline));
        let now = Instant::now();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let limit = [left, most].into_iter().flatten().min();
        if let Some(limit) = limit {
            let at = now.saturating_duration_since(self.started) + limit;
            self.looks_again.store(nanos(at), Ordering::Relaxed);
        }
        drop(core);
        match self.knocks() {
            true => Some(Duration::ZERO),
            false => limit,
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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

/// As [`open`]; paths over TCP are encrypted, and both ends show who they are, if there is a `tls`.
///
/// # Errors
/// As of [`open`].
pub fn open_over_tls(
    config: ClientConfig,
    tls: Option<ClientTls>,
) -> io::Result<Arc<ClientSession>> {
    let sockets = Arc::new(Waits::new()?);
    let inner = Arc::new(Inner {
        core: Mutex::new(Core::new(config.engine, Arc::clone(&sockets), tls)),
        door: Mutex::default(),
        knocked: AtomicBool::new(false),
        pool: OnceLock::new(),
        ports: Mutex::default(),
        next_port: AtomicU64::new(0),
        sockets,
        watch: Mutex::default(),
        holder: AtomicU64::new(NOBODY),
        sleepers: AtomicUsize::new(0),
        rests: AtomicBool::new(false),
        ticking: AtomicBool::new(false),
        spinning: AtomicBool::new(false),
        crowd: Crowd::new(),
        driven: AtomicU64::new(0),
        looks_again: AtomicU64::new(u64::MAX),
        started: Instant::now(),
        wake: EventFd::new()?,
        news: Mutex::default(),
        news_bell: EventFd::new()?,
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

    /// Waits until a path is up, but not longer than `limit`, nor for paths that are all down for a reason that only a
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
            inner.let_in(core);
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
            self.inner.news_bell.drain();
        }
        next
    }

    fn news_fd(&self) -> BorrowedFd<'_> {
        self.inner.news_bell.as_fd()
    }
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        self.close();
    }
}
