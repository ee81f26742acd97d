//! One volume of one server, opened over the API of the block lane.

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) use memlane_block::client::Access;
use memlane_block::client::{Client, Options, RemoteVolume};
use memlane_block::volume::Volume;
use memlane_transport::engine::client::{AfterRestart, AllDown, Config};
use memlane_transport::engine::path::PathState;
use memlane_transport::engine::policy::Policy;
use memlane_transport::engine::pulse::Heartbeat;
use memlane_transport::io::{ClientConfig, ClientSession, PathAddr, PathInfo};

use crate::exit::{Exit, fail};

/// What `memlane map` takes if it is not told otherwise.
const HEARTBEAT: Duration = Duration::from_millis(800);
/// For requests while no path is up.
const PATIENCE: Duration = Duration::from_secs(30);
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// An open volume, with the session that it is used over.
pub(super) struct OpenVolume {
    volume: Arc<RemoteVolume>,
    session: Arc<ClientSession>,
    _client: Client,
}

impl OpenVolume {
    /// Opens `volume`; `servers` are paths to one server, as `memlane map` takes them.
    pub(super) fn open(
        servers: &[String],
        volume: &str,
        access: Access,
        connections: u16,
    ) -> anyhow::Result<OpenVolume> {
        let paths: Result<Vec<PathAddr>, String> = servers.iter().map(|at| at.parse()).collect();
        let paths = paths.map_err(|error| fail(Exit::Usage, error))?;
        let engine = session_config(connections)?;
        let session = memlane_transport::io::open(ClientConfig { engine, paths })?;
        let options = Options {
            patience: AllDown::Queue(PATIENCE),
            open_limit: OPEN_LIMIT,
            ..Options::default()
        };
        let client = Client::with(Arc::clone(&session) as _, options)?;
        let opened = client.open(volume, access);
        Ok(OpenVolume {
            volume: opened.map_err(|error| anyhow::anyhow!("{volume}: {error}"))?,
            session,
            _client: client,
        })
    }

    /// The volume, for requests.
    pub(super) fn volume(&self) -> Arc<dyn Volume> {
        Arc::clone(&self.volume) as _
    }

    /// Waits until all paths are up; the volume is open as soon as one of them is.
    pub(super) fn wait_for_paths(&self, limit: Duration) -> anyhow::Result<()> {
        let begin = Instant::now();
        let is_down = |path: &PathInfo| path.state != PathState::Connected;
        while let Some(path) = self.session.paths().into_iter().find(is_down) {
            let (address, state) = (&path.address, path.state);
            anyhow::ensure!(
                begin.elapsed() < limit,
                "path {address} is still {state:?} after {limit:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// How often a path that was up went down.
    pub(super) fn paths_lost(&self) -> u64 {
        let lost = |path: &PathInfo| {
            let down = u64::from(path.state != PathState::Connected);
            (path.stats.connected + down).saturating_sub(1)
        };
        self.session.paths().iter().map(lost).sum()
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        self.volume.close();
        self.session.close();
    }
}

fn session_config(connections: u16) -> anyhow::Result<Config> {
    let mut uuid = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut uuid)?;
    let mut config = Config::new(&format!("bench-{}", std::process::id()), uuid);
    config.connections = connections;
    config.policy = Policy::MinInflight;
    config.all_down = AllDown::Queue(PATIENCE);
    config.heartbeat = Heartbeat::within(HEARTBEAT);
    config.after_restart = AfterRestart::Fail;
    Ok(config)
}
