//! Frontends: each shows a mapped volume to programs as a device, a file or an export.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use memlane_block::volume::Volume;
use memlane_block_frontends::fuse::{self, MountError, Mounted};
use memlane_block_frontends::loopdev::LoopDevice;
use memlane_block_frontends::nbd::{Export, Listen, Server, ServerConfig, StopHandle, TlsConfig};
use memlane_block_frontends::{nbd_kernel, ublk, vhost};

use super::leftovers::{self, Folder};
use super::spec::{Frontend, MapSpec};
use crate::cli::exit::{Exit, fail};

/// How long a device that goes may be held by who only looks at it.
const MOMENT: Duration = Duration::from_secs(5);

/// A volume that programs can use.
pub(super) trait Shown: Send {
    /// What to give to a program: a device, a file, a URI.
    fn place(&self) -> String;

    /// Programs that use it now, as far as is known.
    fn users(&self) -> usize;

    /// The volume's size has changed.
    fn resized(&mut self) {}

    /// Takes it away; without `force` only if nobody uses it.
    fn end(&mut self, force: bool) -> anyhow::Result<()>;
}

/// Shows `volume` by `name` as `spec` says; what outlives this process is found again by `owner`.
pub(super) fn show(
    volume: Arc<dyn Volume>,
    name: &str,
    owner: &str,
    spec: &MapSpec,
) -> anyhow::Result<Box<dyn Shown>> {
    Ok(match &spec.frontend {
        Frontend::NbdUnix(path) => {
            let listen = Listen::Unix(path.clone());
            Box::new(Nbd::start(volume, name, listen, spec.nbd_tls.as_deref())?)
        }
        Frontend::NbdTcp(address) => {
            let listen = Listen::Tcp(*address);
            Box::new(Nbd::start(volume, name, listen, spec.nbd_tls.as_deref())?)
        }
        Frontend::Fuse(path) => Box::new(File(mount(volume, name, path.clone())?)),
        Frontend::Loop => Box::new(Loop::start(volume, name)?),
        Frontend::NbdKernel => Box::new(KernelNbd::start(volume, owner)?),
        Frontend::Ublk => Box::new(Ublk::start(volume, owner)?),
        Frontend::VhostUser(path) => Box::new(Vhost::start(volume, name, path)?),
    })
}

fn busy(place: &str, users: usize) -> anyhow::Error {
    anyhow::anyhow!("{place} is in use ({users}): end these programs first, or use --force")
}

struct Nbd {
    place: String,
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
}

impl Nbd {
    fn start(
        volume: Arc<dyn Volume>,
        name: &str,
        listen: Listen,
        tls: Option<&Path>,
    ) -> anyhow::Result<Nbd> {
        let scheme = if tls.is_some() { "nbds" } else { "nbd" };
        let place = match &listen {
            Listen::Unix(path) => format!("{scheme}+unix:///?socket={}", path.display()),
            Listen::Tcp(address) => format!("{scheme}://{address}"),
            Listen::Socket(_) => format!("{scheme}, by a socket that was given"),
        };
        let export = Export {
            name: name.to_owned(),
            description: "memlane volume".into(),
            read_only: volume.info().read_only,
            volume,
        };
        let mut config = ServerConfig::new(vec![listen], vec![export]);
        config.tls = tls.map(TlsConfig::folder);
        let server = Server::bind(config).with_context(|| format!("cannot export at {place}"))?;
        let place = match server.tcp_addresses() {
            [address, ..] => format!("{scheme}://{address}"),
            [] => place,
        };
        let stop = server.stop_handle();
        let thread = std::thread::Builder::new()
            .name("nbd".into())
            .spawn(move || {
                // Clients that are connected go on without it; nobody new comes in.
                let _ = server.run();
            })?;
        Ok(Nbd {
            place,
            stop,
            thread: Some(thread),
        })
    }
}

impl Shown for Nbd {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn users(&self) -> usize {
        self.stop.snapshot().connections.len()
    }

    fn end(&mut self, force: bool) -> anyhow::Result<()> {
        let users = self.users();
        if users > 0 && !force {
            return Err(busy(&self.place, users));
        }
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        Ok(())
    }
}

fn mount(volume: Arc<dyn Volume>, name: &str, path: PathBuf) -> anyhow::Result<Mounted> {
    let options = fuse::Options {
        name: name.to_owned(),
        ..fuse::Options::default()
    };
    fuse::mount(volume, &path, &options).map_err(|error| match error {
        fuse::MountError::NoFuse(_) => fail(Exit::Unsupported, error.to_string()),
        other => other.into(),
    })
}

struct File(Mounted);

impl Shown for File {
    fn place(&self) -> String {
        self.0.path().display().to_string()
    }

    fn users(&self) -> usize {
        0 // the kernel knows, and says so when it is to be unmounted
    }

    fn resized(&mut self) {
        self.0.refresh();
    }

    fn end(&mut self, force: bool) -> anyhow::Result<()> {
        match force {
            true => self.0.unmount_now(),
            false => self.0.unmount()?,
        }
        Ok(())
    }
}

/// A loop device over a FUSE file that nobody else sees.
struct Loop {
    device: Option<LoopDevice>,
    file: Mounted,
    /// After the file: it goes when it is empty.
    _folder: Folder,
}

impl Loop {
    fn start(volume: Arc<dyn Volume>, name: &str) -> anyhow::Result<Loop> {
        leftovers::clear_folders();
        let folder = Folder::new(&format!("{}-{:x}", std::process::id(), hash(name)))?;
        let info = volume.info();
        let path = folder.volume();
        let file = mount(volume, name, path.clone())?;
        let device = LoopDevice::attach(&path, info.block, info.read_only)
            .map_err(|error| fail(Exit::Unsupported, error.to_string()))?;
        Ok(Loop {
            device: Some(device),
            file,
            _folder: folder,
        })
    }
}

/// A number for what must be told apart: two volumes of one session, two files of one name.
pub(super) fn hash(name: &str) -> u64 {
    use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
    BuildHasherDefault::<DefaultHasher>::default().hash_one(name)
}

impl Shown for Loop {
    fn place(&self) -> String {
        let device = self.device.as_ref().map(LoopDevice::path);
        device
            .map(|path| path.display().to_string())
            .unwrap_or_default()
    }

    fn users(&self) -> usize {
        0
    }

    fn resized(&mut self) {
        self.file.refresh();
        if let Some(device) = &self.device {
            let _ = device.refresh();
        }
    }

    fn end(&mut self, force: bool) -> anyhow::Result<()> {
        drop(self.device.take());
        match force {
            true => self.file.unmount_now(),
            false => unmount_once_let_go(&mut self.file)?,
        }
        Ok(())
    }
}

/// Unmounts the file of a device that goes. Who looks at devices that change, such as udev, may have it open for a moment.
fn unmount_once_let_go(file: &mut Mounted) -> Result<(), MountError> {
    let end = Instant::now() + MOMENT;
    loop {
        match file.unmount() {
            Err(MountError::InUse(_)) if Instant::now() < end => std::thread::sleep(MOMENT / 500),
            done => return done,
        }
    }
}

struct Vhost(vhost::Served);

impl Vhost {
    fn start(volume: Arc<dyn Volume>, name: &str, path: &std::path::Path) -> anyhow::Result<Vhost> {
        let options = vhost::Options {
            serial: name.chars().take(20).collect(),
            ..vhost::Options::default()
        };
        let served = vhost::serve(volume, path, &options);
        Ok(Vhost(served.with_context(|| {
            format!("cannot serve {}", path.display())
        })?))
    }
}

impl Shown for Vhost {
    fn place(&self) -> String {
        self.0.path().display().to_string()
    }

    fn users(&self) -> usize {
        usize::from(self.0.has_machine())
    }

    fn end(&mut self, force: bool) -> anyhow::Result<()> {
        if self.users() > 0 && !force {
            return Err(busy(&self.place(), 1));
        }
        self.0.stop();
        Ok(())
    }
}

struct KernelNbd(nbd_kernel::Attached);

impl KernelNbd {
    fn start(volume: Arc<dyn Volume>, name: &str) -> anyhow::Result<KernelNbd> {
        let options = nbd_kernel::Options {
            name: name.to_owned(),
            read_only: volume.info().read_only,
            ..nbd_kernel::Options::default()
        };
        nbd_kernel::probe().map_err(|error| fail(Exit::Unsupported, error.to_string()))?;
        // A device that outlived its process is taken over.
        let attached = match nbd_kernel::left(name) {
            Some(index) => nbd_kernel::recover(volume, index, &options),
            None => nbd_kernel::attach(volume, &options),
        };
        Ok(KernelNbd(attached?))
    }
}

impl Shown for KernelNbd {
    fn place(&self) -> String {
        self.0.path().display().to_string()
    }

    fn users(&self) -> usize {
        0 // the kernel knows, and says so when it is to be detached
    }

    fn resized(&mut self) {
        // The device stays as it was; its users see the old size.
        let _ = self.0.resized();
    }

    fn end(&mut self, force: bool) -> anyhow::Result<()> {
        Ok(self.0.detach(force)?)
    }
}

struct Ublk(ublk::Attached);

impl Ublk {
    fn start(volume: Arc<dyn Volume>, name: &str) -> anyhow::Result<Ublk> {
        let options = ublk::Options {
            name: name.to_owned(),
            read_only: volume.info().read_only,
            ..ublk::Options::default()
        };
        ublk::probe().map_err(|error| fail(Exit::Unsupported, error.to_string()))?;
        // A device that outlived its process is taken over.
        let attached = match ublk::left(name) {
            Some(id) => ublk::recover(volume, id, &options),
            None => ublk::attach(volume, &options),
        };
        Ok(Ublk(attached?))
    }
}

impl Shown for Ublk {
    fn place(&self) -> String {
        self.0.path().display().to_string()
    }

    fn users(&self) -> usize {
        0 // the kernel knows, and says so when it is to be detached
    }

    fn resized(&mut self) {
        // Before Linux 6.16 the device stays as it was, and its users see the old size.
        let _ = self.0.resized();
    }

    fn end(&mut self, force: bool) -> anyhow::Result<()> {
        Ok(self.0.detach(force)?)
    }
}
