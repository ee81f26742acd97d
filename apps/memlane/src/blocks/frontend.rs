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
use super::users;
use crate::cli::exit::{Exit, fail};

/// How long a device that goes may be held by who only looks at it.
const MOMENT: Duration = Duration::from_secs(5);

/// A volume that programs can use.
pub(super) trait Shown: Send {
    /// What to give to a program: a device, a file, a URI.
    fn place(&self) -> String;

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

fn in_use(place: &str, users: &str) -> anyhow::Error {
    let named = match users.is_empty() {
        true => String::new(),
        false => format!(" ({users})"),
    };
    anyhow::anyhow!("{place} is in use{named}: end this use first, or use --force")
}

/// What the kernel says of a block device that stays, with the users' names.
fn device_in_use(path: &Path) -> anyhow::Error {
    let users = users::device(path).map(users::of).unwrap_or_default();
    in_use(&path.display().to_string(), &users)
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

    fn end(&mut self, force: bool) -> anyhow::Result<()> {
        let clients = self.stop.snapshot().connections.len();
        if clients > 0 && !force {
            return Err(in_use(&self.place, &format!("{clients} connections")));
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

    fn resized(&mut self) {
        self.0.refresh();
    }

    fn end(&mut self, force: bool) -> anyhow::Result<()> {
        match force {
            true => self.0.unmount_now(),
            false => self.0.unmount().map_err(|error| self.why_it_stays(error))?,
        }
        Ok(())
    }
}

impl File {
    fn why_it_stays(&self, error: MountError) -> anyhow::Error {
        let users = self.0.device().map(users::open).unwrap_or_default();
        match error {
            MountError::InUse(_) | MountError::InUseElsewhere(_) => in_use(&self.place(), &users),
            other => other.into(),
        }
    }
}

/// A loop device over a FUSE file that nobody else sees.
struct Loop {
    path: PathBuf,
    /// None: it is detached, or will be when nobody has it open any more.
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
            path: device.path().to_owned(),
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
        self.path.display().to_string()
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
            false => unmount_once_let_go(&mut self.file).map_err(|error| match error {
                MountError::InUse(_) => device_in_use(&self.path),
                other => other.into(),
            })?,
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

    fn end(&mut self, force: bool) -> anyhow::Result<()> {
        if self.0.has_machine() && !force {
            return Err(in_use(&self.place(), "a virtual machine"));
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

    fn resized(&mut self) {
        // The device stays as it was; its users see the old size.
        let _ = self.0.resized();
    }

    fn end(&mut self, force: bool) -> anyhow::Result<()> {
        self.0.detach(force).map_err(|error| match error {
            nbd_kernel::NbdError::InUse(path) => device_in_use(&path),
            other => other.into(),
        })
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

    fn resized(&mut self) {
        // Before Linux 6.16 the device stays as it was, and its users see the old size.
        let _ = self.0.resized();
    }

    fn end(&mut self, force: bool) -> anyhow::Result<()> {
        self.0.detach(force).map_err(|error| match error {
            ublk::UblkError::InUse(path) => device_in_use(&path),
            other => other.into(),
        })
    }
}
