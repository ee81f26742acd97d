//! A session in the process behind it: its volumes are shown from here, and its paths change here.

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memlane_block::client::{self, Changes, Client, RemoteVolume};
use memlane_transport::engine::client::{AfterRestart, AllDown, Config};
use memlane_transport::engine::path::PathState;
use memlane_transport::engine::policy;
use memlane_transport::engine::pulse::Heartbeat;
use memlane_transport::io::tls::ClientTls;
use memlane_transport::io::{ClientConfig, ClientSession, Means, PathInfo};
use memlane_transport::port::Session as _;

use super::{Events, Host};
use crate::blocks::across;
use crate::blocks::documents;
use crate::blocks::mapping::{self, Mapping};
use crate::blocks::requests::Request;
use crate::blocks::spec::{Access, HostSpec, MapSpec, Memory, OnDisconnect, PathSpec, Policy};
use crate::blocks::tls::{self, Renewal, TlsSpec};
use crate::cli::device::Device;
use crate::cli::exit::{Exit, fail};

/// A session, and the volumes that are shown of it.
pub(crate) struct SessionHost {
    spec: HostSpec,
    session: Arc<ClientSession>,
    client: Client,
    tls: Option<(ClientTls, Renewal)>,
    mappings: Vec<Mapping<RemoteVolume>>,
    events: Events,
    /// Signalled when a path or a volume has changed.
    changes: Arc<Changes>,
    /// Paths, as they were at the last look.
    paths: Vec<(String, String)>,
    /// Since when nothing is mapped.
    idle: Instant,
    /// If nothing is mapped.
    ends_at_once: bool,
}

impl SessionHost {
    pub(in crate::blocks) fn open(spec: &HostSpec) -> anyhow::Result<SessionHost> {
        let tls = spec.tls.as_ref().map(tls::client).transpose()?;
        let config = ClientConfig {
            engine: engine_config(spec)?,
            paths: spec.paths.iter().map(|path| path.0.clone()).collect(),
        };
        let means = Means {
            tls: tls.as_ref().map(|(tls, _)| tls.clone()),
            pages: spec.memory.unwrap_or_default().pages(),
            shares: spec.device.as_ref().map(across::share).transpose()?,
        };
        // For copies to and from volumes that a server lends.
        memlane_block::store::allow_mappings();
        let session = memlane_transport::io::open_with(config, means)?;
        let changes = Arc::new(Changes::new()?);
        let options = client::Options {
            changes: Some(Arc::clone(&changes)),
            patience: patience(spec.on_disconnect),
            open_limit: spec.wait,
            borrow: spec.paths.iter().any(|path| path.0.is_local()),
            ..client::Options::default()
        };
        let shared: Arc<dyn memlane_transport::port::Session> = Arc::clone(&session) as _;
        Ok(SessionHost {
            spec: spec.clone(),
            client: Client::with(shared, options)?,
            session,
            changes,
            tls,
            mappings: Vec::new(),
            events: Events::default(),
            paths: Vec::new(),
            idle: Instant::now(),
            ends_at_once: false,
        })
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

    /// Memory is made once in a session's life.
    fn must_have(&self, memory: Option<Memory>) -> anyhow::Result<()> {
        let has = self.spec.memory.unwrap_or_default();
        if memory.is_none_or(|asked| asked == has) {
            return Ok(());
        }
        let (name, has) = (&self.spec.session, has.words());
        let text = format!(
            "session {name:?} is open, and its memory is made of {has}: choose another --session"
        );
        Err(fail(Exit::Usage, text))
    }

    /// So is memory mapped that other machines have, too.
    fn must_share(&self, device: Option<&Device>) -> anyhow::Result<()> {
        let has = self.spec.device.as_ref();
        if device.is_none() || device == has {
            return Ok(());
        }
        let has = has.map_or("no --device".to_owned(), |has| format!("--device {has}"));
        let name = &self.spec.session;
        let text = format!("session {name:?} is open with {has}: choose another --session");
        Err(fail(Exit::Usage, text))
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
        self.events.note(format!("{volume} unmapped"));
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
        self.events.note(format!("path {address} added"));
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
        self.events.note(format!("path {name} removed"));
        Ok(format!("{name} removed"))
    }

    /// Certificates that were renewed are shown by connections that are made from now on.
    fn renew(&mut self) {
        let Some((tls, renewal)) = &mut self.tls else {
            return;
        };
        match renewal.due().map(|files| tls.reload(&files)) {
            None => {}
            Some(Ok(())) => self.events.note("new certificates are in use".into()),
            Some(Err(error)) => self
                .events
                .note(format!("the old certificates stay in use: {error}")),
        }
    }
}

impl Host for SessionHost {
    fn map(&mut self, spec: MapSpec) -> anyhow::Result<String> {
        if self.find(&spec.volume).is_some() {
            return Err(mapping::is_mapped(&spec.volume));
        }
        mapping::check_frontend(&spec)?;
        if !self.session.wait_for_a_path(self.spec.wait) {
            let text = format!(
                "{}: no path to the server{}",
                spec.volume,
                self.why_no_path()
            );
            return Err(fail(Exit::PeerRefused, text));
        }
        let volume = self.open_volume(&spec.volume, spec.access, spec.take_over)?;
        let owner = format!("{}/{}", self.spec.session, spec.volume);
        let name = spec.volume.clone();
        let shown = Mapping::show(Arc::clone(&volume), &name, &owner, spec);
        let mapping = shown.inspect_err(|_| volume.close())?;
        let place = mapping.shown.place();
        self.events.note(format!("{name} mapped as {place}"));
        self.mappings.push(mapping);
        Ok(place)
    }

    fn obey(&mut self, request: Request) -> anyhow::Result<serde_json::Value> {
        match request {
            Request::Describe => Ok(serde_json::to_value(self.describe())?),
            Request::Map {
                spec,
                paths,
                tls,
                memory,
                device,
                wait: _,
            } => {
                self.must_go_to(&paths)?;
                self.must_be_as_secure(tls.as_ref())?;
                self.must_have(memory)?;
                self.must_share(device.as_ref())?;
                let mapped = self.map(spec);
                // If nothing came of it, whoever tries again may want another session.
                self.ends_at_once = mapped.is_err() && self.mappings.is_empty();
                mapped.map(Into::into)
            }
            // Only a process in the background does, and it answers this itself.
            Request::GiveWay => Ok(false.into()),
            Request::Unmap { volume, force } => self.unmap(&volume, force).map(Into::into),
            Request::Remap { volume } => self.remap(&volume).map(Into::into),
            Request::AddPath { path } => self.add_path(&path).map(Into::into),
            Request::RemovePath { path } => self.remove_path(&path).map(Into::into),
            Request::Resize { .. } | Request::Release { .. } => {
                Err(fail(Exit::Usage, "run this on the server's machine"))
            }
        }
    }

    fn describe(&self) -> documents::Session {
        let (geometry, name) = (self.session.geometry(), &self.spec.session);
        let mappings = self.mappings.iter();
        documents::Session {
            policy: self.spec.policy.word().into(),
            on_disconnect: match self.spec.on_disconnect {
                OnDisconnect::Queue(time) => format!("queue:{}ms", time.as_millis()),
                OnDisconnect::Fail => "fail".into(),
            },
            queue_depth: geometry.map(|g| u32::from(g.depth())),
            max_io: geometry.map(|g| g.max_io()),
            paths: self.session.paths().iter().map(path_document).collect(),
            volumes: mappings.map(|mapping| mapping.document(name)).collect(),
            events: self.events.list(),
            ..documents::Session::new(name)
        }
    }

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
            self.events.note(format!("path {path}: {state}"));
        }
        let news = self.mappings.iter_mut().flat_map(Mapping::look);
        for text in news.collect::<Vec<_>>() {
            self.events.note(text);
        }
    }

    fn looks_every(&self) -> Option<Duration> {
        self.tls.is_some().then_some(tls::LOOK)
    }

    fn changes(&self) -> Arc<Changes> {
        Arc::clone(&self.changes)
    }

    fn idle_since(&self) -> Option<Instant> {
        self.mappings.is_empty().then_some(self.idle)
    }

    fn ends_at_once(&self) -> bool {
        self.ends_at_once
    }

    fn close(&mut self) -> anyhow::Result<()> {
        while let Some(mut mapping) = self.mappings.pop() {
            mapping.shown.end(true)?;
            mapping.volume.close();
        }
        self.session.close();
        Ok(())
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
        heartbeat: crate::blocks::spec::HEARTBEAT,
        wait: Duration::from_secs(10),
        connections,
        memory: None,
        device: None,
        tls: None,
        metrics: None,
    };
    let host = SessionHost::open(&spec)?;
    let volume = host.open_volume(volume, access, false)?;
    Ok(One {
        volume,
        session: host.session,
        _client: host.client,
    })
}
