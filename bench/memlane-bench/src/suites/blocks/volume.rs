//! One volume of one server, opened over the API of the block lane.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) use memlane_block::client::Access;
use memlane_block::client::{Client, Options, RemoteVolume};
use memlane_block::volume::Volume;
use memlane_transport::engine::client::{AfterRestart, AllDown, Config};
use memlane_transport::engine::path::PathState;
use memlane_transport::engine::policy::Policy;
use memlane_transport::engine::pulse::Heartbeat;
use memlane_transport::io::{
    ClientConfig, ClientSession, Holder, Means, PathAddr, PathInfo, SharedMemory, open_with,
};

use crate::exit::{Exit, fail};

/// What `memlane map` takes if it is not told otherwise.
const HEARTBEAT: Duration = Duration::from_millis(800);
/// For requests while no path is up.
const PATIENCE: Duration = Duration::from_secs(30);
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// How a server is reached.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    /// Paths to one server, as `memlane map` takes them.
    pub(super) servers: &'a [String],
    /// Memory that the server shares with other machines.
    pub(super) device: Option<&'a Path>,
    /// Connections of each path, for requests.
    pub(super) connections: u16,
}

/// An open volume, with the session that it is used over.
pub(super) struct OpenVolume {
    volume: Arc<RemoteVolume>,
    session: Arc<ClientSession>,
    _client: Client,
}

impl OpenVolume {
    /// Opens `volume`.
    pub(super) fn open(way: Way<'_>, volume: &str, access: Access) -> anyhow::Result<OpenVolume> {
        let paths = way.servers.iter().map(|at| at.parse());
        let paths: Result<Vec<PathAddr>, String> = paths.collect();
        let paths = paths.map_err(|error| fail(Exit::Usage, error))?;
        let engine = session_config(way.connections)?;
        let means = Means {
            shares: way.device.map(shared).transpose()?,
            ..Means::default()
        };
        let borrow = paths.iter().any(PathAddr::is_local);
        let session = open_with(ClientConfig { engine, paths }, means)?;
        let options = Options {
            patience: AllDown::Queue(PATIENCE),
            open_limit: OPEN_LIMIT,
            borrow,
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

/// The memory of a region, as another machine has it.
fn shared(path: &Path) -> anyhow::Result<Arc<SharedMemory>> {
    let file = File::options().read(true).write(true).open(path)?;
    let another = Holder {
        machine: 2,
        boot: 1,
    };
    Ok(Arc::new(SharedMemory::map(file.into(), another)?))
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
