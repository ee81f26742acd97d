//! Sessions and volumes of this process: jobs that name the same server share one session, those that name the same
//! volume share that.

use crate::address;
use memlane_block::client::error::OpenError;
use memlane_block::client::{Access, Client, Options, RemoteVolume};
use memlane_core::token::Token;
use memlane_transport::engine::client::{AfterRestart, Config};
use memlane_transport::engine::policy::Policy;
use memlane_transport::io::tls::{ClientTls, TlsFiles};
use memlane_transport::io::{ClientConfig, ClientSession, PathAddr, open_over_tls};
use memlane_transport::port::Session as _;
use memlane_transport::wire::Control;
use memlane_wait::mutex::lock;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// What a user wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) address: String,
    pub(crate) session: String,
    /// A folder of certificates.
    pub(crate) tls: Option<PathBuf>,
    /// The server's name, if not its address.
    pub(crate) tls_name: Option<String>,
    pub(crate) policy: Policy,
    pub(crate) connections: u16,
    pub(crate) timeout: Duration,
}

/// A session, as long as a job uses it.
pub(crate) struct Shared {
    settings: Settings,
    client: Client,
    session: Arc<ClientSession>,
    volumes: Mutex<Vec<(String, Access, Weak<RemoteVolume>)>>,
    /// Leases that buffers of jobs consist of.
    held: AtomicU32,
}

/// A volume of a session.
pub(crate) struct Attached {
    // First: a volume is closed by its session.
    pub(crate) volume: Arc<RemoteVolume>,
    pub(crate) shared: Arc<Shared>,
}

static SESSIONS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Opens a volume, or finds that a job has it open.
pub(crate) fn attach(settings: &Settings, name: &str, access: Access) -> Result<Attached, String> {
    if name.is_empty() {
        return Err("volume= is not set".into());
    }
    let shared = {
        let mut sessions = lock(&SESSIONS);
        sessions.retain(|session| session.strong_count() > 0);
        let mut alive = sessions.iter().filter_map(Weak::upgrade);
        match alive.find(|session| session.settings == *settings) {
            Some(session) => session,
            None => {
                let session = Arc::new(Shared::open(settings)?);
                sessions.push(Arc::downgrade(&session));
                session
            }
        }
    };
    let volume = shared.volume(name, access)?;
    Ok(Attached { volume, shared })
}

/// Would a server take this name? It would not say why not.
fn check_name(name: &str) -> Result<(), String> {
    let told = Control::InfoReq { name: name.into() };
    match Control::decode(&told.encode()) {
        Ok(heard) if heard == told => Ok(()),
        _ => Err(format!("session={name}: no name that a session may have")),
    }
}

/// Another one for each start of each client.
fn identity() -> Result<[u8; 16], String> {
    let fresh = || Token::fresh().map_err(|errno| format!("no random bytes: {errno:?}"));
    let (low, high) = (fresh()?.bits(), fresh()?.bits());
    Ok(((u128::from(high) << 64) | u128::from(low)).to_le_bytes())
}

impl Shared {
    fn open(settings: &Settings) -> Result<Shared, String> {
        check_name(&settings.session)?;
        let paths = address::paths(&settings.address)?;
        address::somebody_listens(&paths)?;
        let mut engine = Config::new(&settings.session, identity()?);
        engine.connections = settings.connections;
        engine.policy = settings.policy;
        // The client sends such requests again by itself.
        engine.after_restart = AfterRestart::Fail;
        let told = |error| format!("no session: {error}");
        let tls = settings.tls.as_ref().map(|folder| {
            let files = TlsFiles::of_client(folder);
            ClientTls::load(&files, settings.tls_name.as_deref())
        });
        let tls = tls.transpose().map_err(|error| format!("tls: {error}"))?;
        let is_local = paths.iter().any(PathAddr::is_local);
        let session = open_over_tls(ClientConfig { engine, paths }, tls).map_err(told)?;
        let options = Options {
            open_limit: settings.timeout,
            borrow: is_local,
            ..Options::default()
        };
        let client = Client::with(Arc::clone(&session) as _, options).map_err(told)?;
        Ok(Shared {
            settings: settings.clone(),
            client,
            session,
            volumes: Mutex::default(),
            held: AtomicU32::new(0),
        })
    }

    fn volume(&self, name: &str, access: Access) -> Result<Arc<RemoteVolume>, String> {
        let mut volumes = lock(&self.volumes);
        volumes.retain(|(_, _, volume)| volume.strong_count() > 0);
        let known = volumes.iter().find(|(other, ..)| other == name);
        if let Some((_, how, volume)) = known
            && let Some(volume) = volume.upgrade()
        {
            return match *how == access {
                true => Ok(volume),
                false => Err(format!("jobs want volume {name} with different access=")),
            };
        }
        if !self.session.wait_for_a_path(self.settings.timeout) {
            return Err(self.explain(name, OpenError::NoPath));
        }
        let volume = self.client.open(name, access);
        let volume = volume.map_err(|error| self.explain(name, error))?;
        volumes.push((name.into(), access, Arc::downgrade(&volume)));
        Ok(volume)
    }

    fn explain(&self, name: &str, error: OpenError) -> String {
        let mut text = format!("volume {name} at {}: {error}", self.settings.address);
        if matches!(error, OpenError::TimedOut | OpenError::NoPath) {
            for path in self.session.paths() {
                let failed = path.stats.failed;
                text += &format!("; path {}: failed {failed} times", path.address);
                text += &path.why.map(|why| format!(": {why}")).unwrap_or_default();
            }
        }
        text
    }

    /// May one more buffer be a lease? Half of them at most: a job that holds none must get on, too.
    pub(crate) fn may_hold(&self) -> bool {
        let depth = self
            .session
            .geometry()
            .map_or(0, |geometry| geometry.depth());
        let most = u32::from(depth) / 2;
        let more = |held| (held < most).then_some(held + 1);
        let changed = self
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        changed.is_ok()
    }

    /// This many leases are no longer held.
    pub(crate) fn holds_no_more(&self, count: u32) {
        self.held.fetch_sub(count, Ordering::Relaxed);
    }
}
