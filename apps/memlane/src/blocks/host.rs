//! The process behind a session: it holds the session and shows its volumes, and obeys the verbs.

use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use memlane_block::client::{self, Changes, Client, RemoteVolume, Status};
use memlane_block::volume::Volume as _;
use memlane_observe::control::{self, Role};
use memlane_transport::engine::client::{AfterRestart, AllDown, Config};
use memlane_transport::engine::path::PathState;
use memlane_transport::engine::policy;
use memlane_transport::engine::pulse::Heartbeat;
use memlane_transport::io::tls::ClientTls;
use memlane_transport::io::{ClientConfig, ClientSession, PathInfo};
use memlane_transport::port::Session as _;

use super::documents::{self, Counters, Event};
use super::frontend::{self, Shown};
use super::metrics;
use super::requests::Request;
use super::spec::{Access, HostSpec, MapSpec, OnDisconnect, PathSpec, Policy};
use super::tls::{self, Renewal, TlsSpec};
use crate::cli::exit::{Exit, fail};

/// Events that are remembered.
const MOST_EVENTS: usize = 64;
/// A process without volumes ends after so long.
const IDLE: Duration = Duration::from_secs(10);

/// The hidden verb: becomes the process behind a session.
pub(crate) fn in_background() -> anyhow::Result<()> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    let spec: HostSpec = serde_json::from_slice(&text).context("what to do")?;
    let _ = rustix::process::setsid();
    let Ok(listener) = control::Listener::bind(Role::Session, &spec.session) else {
        println!("taken");
        return Ok(());
    };
    let host = Arc::new(Mutex::new(Host::open(&spec)?));
    watch(&host, true)?;
    serve_metrics(&host, spec.metrics)?;
    println!("ready");
    leave_the_terminal()?;
    listener.serve_until(
        |request| crate::cli::exit::reply(locked(&host).obey(request)),
        || locked(&host).ends_at_once,
    );
    locked(&host).close()
}

/// The verb stays: maps one volume, and ends the mapping when it is interrupted.
pub(super) fn in_foreground(spec: &HostSpec, mapping: MapSpec, json: bool) -> anyhow::Result<()> {
    let listener = control::Listener::bind(Role::Session, &spec.session).with_context(|| {
        format!(
            "session {:?} is already open: choose another --session",
            spec.session
        )
    })?;
    let mut host = Host::open(spec)?;
    let volume = mapping.volume.clone();
    let shown = host.map(mapping)?;
    let host = Arc::new(Mutex::new(host));
    watch(&host, false)?;
    serve_metrics(&host, spec.metrics)?;
    documents::tell_place(&spec.session, &volume, &shown, json)?;
    crate::daemon::service::ready();
    let obeyed = Arc::clone(&host);
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            listener.serve(move |request| crate::cli::exit::reply(locked(&obeyed).obey(request)))
        })?;
    crate::daemon::service::wait_for_the_end()?;
    locked(&host).close()
}

fn locked(host: &Mutex<Host>) -> std::sync::MutexGuard<'_, Host> {
    host.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whoever started us may close the terminal.
fn leave_the_terminal() -> anyhow::Result<()> {
    std::io::stdout().flush()?;
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

fn serve_metrics(host: &Arc<Mutex<Host>>, at: Option<std::net::SocketAddr>) -> anyhow::Result<()> {
    let Some(at) = at else { return Ok(()) };
    let host = Arc::clone(host);
    metrics::serve(at, move || {
        metrics::of_sessions(&[locked(&host).describe()])
    })
    .map(drop)
    .with_context(|| format!("metrics at {at}"))
}

/// A thread that notices what changes; if `ends`, it ends the process when nothing is mapped any more.
fn watch(host: &Arc<Mutex<Host>>, ends: bool) -> anyhow::Result<()> {
    let host = Arc::clone(host);
    let changes = Arc::clone(&locked(&host).changes);
    std::thread::Builder::new()
        .name("watch".into())
        .spawn(move || {
            loop {
                let left = {
                    let mut host = locked(&host);
                    host.look();
                    host.next_look(ends)
                };
                changes.wait(left);
                let mut host = locked(&host);
                if ends && host.idle_left().is_some_and(|left| left.is_zero()) {
                    let _ = host.close();
                    std::process::exit(0);
                }
            }
        })?;
    Ok(())
}

struct Mapping {
    spec: MapSpec,
    volume: Arc<RemoteVolume>,
    shown: Box<dyn Shown>,
    /// As it was at the last look.
    size: u64,
    status: String,
}

struct Host {
    spec: HostSpec,
    session: Arc<ClientSession>,
    client: Client,
    tls: Option<(ClientTls, Renewal)>,
    mappings: Vec<Mapping>,
    events: Vec<Event>,
    /// Signalled when a path or a volume has changed.
    changes: Arc<Changes>,
    /// Paths, as they were at the last look.
    paths: Vec<(String, String)>,
    /// Since when nothing is mapped.
    idle: Instant,
    /// If nothing is mapped.
    ends_at_once: bool,
}

impl Host {
    fn open(spec: &HostSpec) -> anyhow::Result<Host> {
        let tls = spec.tls.as_ref().map(tls::client).transpose()?;
        let config = ClientConfig {
            engine: engine_config(spec)?,
            paths: spec.paths.iter().map(|path| path.0.clone()).collect(),
        };
        let credentials = tls.as_ref().map(|(tls, _)| tls.clone());
        let session = memlane_transport::io::open_over_tls(config, credentials)?;
        let changes = Arc::new(Changes::new()?);
        let options = client::Options {
            changes: Some(Arc::clone(&changes)),
            patience: patience(spec.on_disconnect),
            open_limit: spec.wait,
            ..client::Options::default()
        };
        let shared: Arc<dyn memlane_transport::port::Session> = Arc::clone(&session) as _;
        Ok(Host {
            spec: spec.clone(),
            client: Client::with(shared, options)?,
            session,
            changes,
            tls,
            mappings: Vec::new(),
            events: Vec::new(),
            paths: Vec::new(),
            idle: Instant::now(),
            ends_at_once: false,
        })
    }

    fn obey(&mut self, request: Request) -> anyhow::Result<serde_json::Value> {
        match request {
            Request::Describe => Ok(serde_json::to_value(self.describe())?),
            Request::Map {
                spec, paths, tls, ..
            } => {
                self.must_go_to(&paths)?;
                self.must_be_as_secure(tls.as_ref())?;
                let mapped = self.map(spec);
                // If nothing came of it, whoever tries again may want another session.
                self.ends_at_once = mapped.is_err() && self.mappings.is_empty();
                mapped.map(Into::into)
            }
            Request::Unmap { volume, force } => self.unmap(&volume, force).map(Into::into),
            Request::Remap { volume } => self.remap(&volume).map(Into::into),
            Request::AddPath { path } => self.add_path(&path).map(Into::into),
            Request::RemovePath { path } => self.remove_path(&path).map(Into::into),
            Request::Resize { .. } | Request::Release { .. } => {
                Err(fail(Exit::Usage, "run this on the server's machine"))
            }
        }
    }

    /// The same name with another server is a mistake, not a wish for this one's volumes.
    fn must_go_to(&self, paths: &[PathSpec]) -> anyhow::Result<()> {
        let known = self.session.paths();
        let meant = |path: &PathInfo| paths.iter().any(|spec| spec.0.dst == path.address.dst);
        if known.iter().any(meant) {
            return Ok(());
        }
        let all: Vec<String> = known.iter().map(|path| path.address.to_string()).collect();
        let (name, all) = (&self.spec.session, all.join(", "));
        let text = format!("session {name:?} is open, and goes to {all}: choose another --session");
        Err(fail(Exit::Usage, text))
    }

    /// Nor is it a wish for a volume without the encryption that was asked for, or with another.
    fn must_be_as_secure(&self, tls: Option<&TlsSpec>) -> anyhow::Result<()> {
        let text = match (&self.spec.tls, tls) {
            (known, asked) if known.as_ref() == asked => return Ok(()),
            (None, _) => "is open without TLS",
            (Some(_), None) => "is open with TLS: say --tls, too",
            (Some(_), Some(_)) => "is open with other certificates, or another name of the server",
        };
        let name = &self.spec.session;
        let text = format!("session {name:?} {text}; or choose another --session");
        Err(fail(Exit::Usage, text))
    }

    fn map(&mut self, spec: MapSpec) -> anyhow::Result<String> {
        if self.find(&spec.volume).is_some() {
            let text = format!(
                "{:?} is mapped already; `memlane vol show` says where",
                spec.volume
            );
            return Err(fail(Exit::Failed, text));
        }
        if spec.nbd_tls.is_some() && !spec.frontend.is_nbd() {
            let text = format!(
                "{} is not an NBD export: --nbd-tls means nothing to it",
                spec.frontend
            );
            return Err(fail(Exit::Usage, text));
        }
        if !self.session.wait_for_a_path(self.spec.wait) {
            let text = format!(
                "{}: no path to the server{}",
                spec.volume,
                self.why_no_path()
            );
            return Err(fail(Exit::PeerRefused, text));
        }
        let volume = self.open_volume(&spec.volume, spec.access, spec.take_over)?;
        let shared: Arc<dyn memlane_block::volume::Volume> = Arc::clone(&volume) as _;
        let owner = format!("{}/{}", self.spec.session, spec.volume);
        let shown = frontend::show(shared, &owner, &spec);
        let shown = shown.inspect_err(|_| volume.close())?;
        let place = shown.place();
        self.note(format!("{} mapped as {place}", spec.volume));
        self.mappings.push(Mapping {
            size: volume.info().size,
            status: "ok".into(),
            spec,
            volume,
            shown,
        });
        Ok(place)
    }

    fn open_volume(
        &self,
        name: &str,
        access: Access,
        take_over: bool,
    ) -> anyhow::Result<Arc<RemoteVolume>> {
        use client::error::OpenError::{NoPath, TimedOut};
        let access = match access {
            Access::Ro => client::Access::ReadOnly,
            Access::Rw => client::Access::ReadWrite,
            Access::Migration => client::Access::Migration,
        };
        let opened = match take_over {
            true => self.client.take_over(name, access),
            false => self.client.open(name, access),
        };
        opened.map_err(|error| {
            let exit = match error {
                TimedOut | NoPath => Exit::Failed,
                _ => Exit::PeerRefused,
            };
            fail(exit, format!("{name}: {error}{}", self.why_no_path()))
        })
    }

    /// What is said of paths that are down, for an error.
    fn why_no_path(&self) -> String {
        let paths = self.session.paths();
        if paths.iter().any(|path| path.state == PathState::Connected) {
            return String::new();
        }
        let texts = paths
            .iter()
            .map(|path| format!("{}: {}", path.address, state_text(path)));
        format!(" ({})", texts.collect::<Vec<_>>().join("; "))
    }

    fn find(&self, volume: &str) -> Option<usize> {
        self.mappings
            .iter()
            .position(|mapping| mapping.spec.volume == volume)
    }

    fn known(&self, volume: &str) -> anyhow::Result<usize> {
        self.find(volume)
            .ok_or_else(|| anyhow::anyhow!("{volume:?} is not mapped by this session"))
    }

    fn unmap(&mut self, volume: &str, force: bool) -> anyhow::Result<String> {
        let at = self.known(volume)?;
        self.mappings[at].shown.end(force)?;
        let mapping = self.mappings.remove(at);
        mapping.volume.close();
        self.idle = Instant::now();
        self.changes.signal();
        self.note(format!("{volume} unmapped"));
        Ok(format!("{volume} is not mapped any more"))
    }

    fn remap(&mut self, volume: &str) -> anyhow::Result<String> {
        let at = self.known(volume)?;
        // Each path begins anew; the reopener then opens what the server has forgotten.
        for path in self.session.paths() {
            if path.state != PathState::Connected {
                self.session.reconnect(path.id);
            }
        }
        self.mappings[at].volume.look_again();
        Ok(format!("{volume} is being opened anew"))
    }

    fn add_path(&mut self, path: &PathSpec) -> anyhow::Result<String> {
        let address = &path.0;
        if self
            .session
            .paths()
            .iter()
            .any(|known| known.address == *address)
        {
            return Err(anyhow::anyhow!(
                "{address} is already a path of this session"
            ));
        }
        let Some(_) = self.session.add_path(address.clone()) else {
            return Err(anyhow::anyhow!(
                "a session can have 128 paths at most: remove one with `memlane session rm-path`"
            ));
        };
        self.note(format!("path {address} added"));
        Ok(format!("{address} added"))
    }

    fn remove_path(&mut self, name: &str) -> anyhow::Result<String> {
        let paths = self.session.paths();
        let meant = |path: &&PathInfo| path.address.to_string() == name;
        let parsed = || {
            let address = name.parse::<PathSpec>().ok()?.0;
            paths.iter().find(|path| path.address == address)
        };
        let Some(path) = paths.iter().find(meant).or_else(parsed) else {
            return Err(anyhow::anyhow!(
                "no path {name:?}; `memlane session show` lists the paths"
            ));
        };
        self.session.remove_path(path.id);
        self.note(format!("path {name} removed"));
        Ok(format!("{name} removed"))
    }

    /// Ends all mappings, whoever uses them.
    fn close(&mut self) -> anyhow::Result<()> {
        while let Some(mut mapping) = self.mappings.pop() {
            mapping.shown.end(true)?;
            mapping.volume.close();
        }
        self.session.close();
        Ok(())
    }

    /// How long it goes on without a volume, if it has none.
    fn idle_left(&self) -> Option<Duration> {
        let idle = self.mappings.is_empty();
        idle.then(|| IDLE.saturating_sub(self.idle.elapsed()))
    }

    /// When to look again, whatever happens.
    fn next_look(&self, ends: bool) -> Option<Duration> {
        let idle = self.idle_left().filter(|_| ends);
        let files = self.tls.is_some().then_some(tls::LOOK);
        idle.into_iter().chain(files).min()
    }

    fn note(&mut self, text: String) {
        if self.events.len() == MOST_EVENTS {
            self.events.remove(0);
        }
        let at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        self.events.push(Event { at, text });
    }

    /// Notices what has changed.
    fn look(&mut self) {
        self.renew();
        let now: Vec<(String, String)> = self
            .session
            .paths()
            .iter()
            .map(|path| (path.address.to_string(), state_text(path)))
            .collect();
        let before = std::mem::replace(&mut self.paths, now.clone());
        for (path, state) in now.iter().filter(|path| !before.contains(path)) {
            self.note(format!("path {path}: {state}"));
        }
        for at in 0..self.mappings.len() {
            self.look_at(at);
        }
    }

    /// Certificates that were renewed are shown by connections that are made from now on.
    fn renew(&mut self) {
        let Some((tls, renewal)) = &mut self.tls else {
            return;
        };
        match renewal.due().map(|files| tls.reload(&files)) {
            None => {}
            Some(Ok(())) => self.note("new certificates are in use".into()),
            Some(Err(error)) => self.note(format!("the old certificates stay in use: {error}")),
        }
    }

    fn look_at(&mut self, at: usize) {
        let mapping = &mut self.mappings[at];
        let (size, status) = (mapping.volume.info().size, status_text(&mapping.volume));
        let name = mapping.spec.volume.clone();
        if size != std::mem::replace(&mut mapping.size, size) {
            mapping.shown.resized();
            self.note(format!("{name} has {size} bytes now"));
        }
        let mapping = &mut self.mappings[at];
        if status != mapping.status {
            mapping.status.clone_from(&status);
            self.note(format!("{name}: {status}"));
        }
    }

    fn describe(&self) -> documents::Session {
        let geometry = self.session.geometry();
        documents::Session {
            schema: "memlane.session/1".into(),
            name: self.spec.session.clone(),
            pid: std::process::id(),
            policy: self.spec.policy.word().into(),
            on_disconnect: match self.spec.on_disconnect {
                OnDisconnect::Queue(time) => format!("queue:{}ms", time.as_millis()),
                OnDisconnect::Fail => "fail".into(),
            },
            queue_depth: geometry.map(|g| u32::from(g.depth())),
            max_io: geometry.map(|g| g.max_io()),
            paths: self.session.paths().iter().map(path_document).collect(),
            volumes: self
                .mappings
                .iter()
                .map(|m| self.volume_document(m))
                .collect(),
            events: self.events.clone(),
        }
    }

    fn volume_document(&self, mapping: &Mapping) -> documents::Volume {
        let (info, stats) = (mapping.volume.info(), mapping.volume.stats());
        documents::Volume {
            volume: mapping.spec.volume.clone(),
            session: self.spec.session.clone(),
            access: mapping.spec.access,
            frontend: mapping.spec.frontend.to_string(),
            shown_as: mapping.shown.place(),
            size: info.size,
            block: info.block,
            read_only: info.read_only,
            state: status_text(&mapping.volume),
            counters: Counters {
                reads: stats.reads,
                read_bytes: stats.read_bytes,
                writes: stats.writes,
                written_bytes: stats.write_bytes,
                flushes: stats.flushes,
                trims: stats.trims,
                errors: stats.errors,
                replays: stats.replays,
            },
        }
    }
}

fn engine_config(spec: &HostSpec) -> anyhow::Result<Config> {
    let mut uuid = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut uuid)?;
    let mut config = Config::new(&spec.session, uuid);
    config.connections = spec.connections;
    config.policy = match spec.policy {
        Policy::Rr => policy::Policy::RoundRobin,
        Policy::MinInflight => policy::Policy::MinInflight,
        Policy::MinLatency => policy::Policy::MinLatency,
    };
    config.all_down = patience(spec.on_disconnect);
    config.heartbeat = Heartbeat::within(spec.heartbeat);
    config.after_restart = AfterRestart::Fail;
    Ok(config)
}

fn patience(on_disconnect: OnDisconnect) -> AllDown {
    match on_disconnect {
        OnDisconnect::Queue(time) => AllDown::Queue(time),
        OnDisconnect::Fail => AllDown::Fail,
    }
}

fn state_word(state: PathState) -> &'static str {
    match state {
        PathState::Connecting => "connecting",
        PathState::Connected => "connected",
        PathState::Reconnecting => "reconnecting",
        PathState::Closed => "closed",
    }
}

/// For people. A path that is tried again and again is down all the while, for the same reason.
fn state_text(path: &PathInfo) -> String {
    match (path.state, path.why) {
        (PathState::Connected | PathState::Closed, _) | (_, None) => state_word(path.state).into(),
        (PathState::Connecting | PathState::Reconnecting, Some(why)) => format!("down: {why}"),
    }
}

fn status_text(volume: &RemoteVolume) -> String {
    match volume.status() {
        Status::Open => "ok".into(),
        Status::Reopening(None) => "being opened again".into(),
        Status::Reopening(Some(why)) => format!("being opened again: {why}"),
        Status::Failed(why) => format!("failed: {why}"),
        Status::Closed => "closed".into(),
    }
}

fn path_document(path: &PathInfo) -> documents::Path {
    let stats = &path.stats;
    documents::Path {
        path: path.address.to_string(),
        state: state_word(path.state).into(),
        inflight: path.inflight,
        reads: stats.reads,
        read_bytes: stats.read_bytes,
        writes: stats.writes,
        written_bytes: stats.write_bytes,
        failed_over: stats.failed_over,
        reconnects: stats.connected.saturating_sub(1),
        failed_connects: stats.failed,
        last_error: path.why.map(|why| why.to_string()),
        latency_log2_us: stats.latency.counts().to_vec(),
    }
}

/// One volume of one server, without a process behind it: for measurements.
pub(crate) struct One {
    volume: Arc<RemoteVolume>,
    session: Arc<ClientSession>,
    _client: Client,
}

impl One {
    pub(crate) fn volume(&self) -> Arc<dyn memlane_block::volume::Volume> {
        Arc::clone(&self.volume) as _
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.volume.close();
        self.session.close();
    }
}

/// Opens it; `servers` as `map` takes them, each a path.
pub(crate) fn open_one(
    servers: &[String],
    volume: &str,
    access: Access,
    connections: u16,
) -> anyhow::Result<One> {
    let paths: Result<Vec<PathSpec>, String> = servers.iter().map(|at| at.parse()).collect();
    let spec = HostSpec {
        session: format!("one-{}", std::process::id()),
        paths: paths.map_err(|error| fail(Exit::Usage, error))?,
        policy: Policy::MinInflight,
        on_disconnect: OnDisconnect::Queue(Duration::from_secs(30)),
        heartbeat: super::spec::HEARTBEAT,
        wait: Duration::from_secs(10),
        connections,
        tls: None,
        metrics: None,
    };
    let host = Host::open(&spec)?;
    let volume = host.open_volume(volume, access, false)?;
    Ok(One {
        volume,
        session: host.session,
        _client: host.client,
    })
}
