//! A volume as a block device by the kernel's nbd driver: `/dev/nbdN`, for root.
//!
//! The kernel is a client of our own NBD server, over socket pairs that it is handed by generic netlink; so nothing
//! listens, and no `nbd-client` is needed. The handshake is left out: netlink says what it would say.
//!
//! ```text
//!   /dev/nbdN ── kernel's nbd ══ socket pair (one for each connection) ══ nbd::Server ── Volume
//! ```
//!
//! If this process dies, the device stays for [`Options::patience`]: its requests wait, and [`recover`] in a new
//! process goes on with them. After that they fail with `EIO`.
//!
//! Commands, attributes and flags: the kernel's `include/uapi/linux/nbd-netlink.h` and `nbd.h`; what they do:
//! `drivers/block/nbd.c`. Linux 6.1 or later.

use crate::nbd::request::Terms;
use crate::nbd::{Export, Server, ServerConfig, Snapshot, StopHandle};
use memlane_block::volume::{Info, Volume};
use memlane_netlink::{Attributes, Family, Refused, find};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// `NBD_GENL_FAMILY_NAME`, `NBD_GENL_VERSION`.
const FAMILY: (&str, u8) = ("nbd", 1);

/// `NBD_CMD_*` of netlink.
mod cmd {
    pub(super) const CONNECT: u8 = 1;
    pub(super) const DISCONNECT: u8 = 2;
    pub(super) const RECONFIGURE: u8 = 3;
}

/// `NBD_ATTR_*`, and what is nested in `NBD_ATTR_SOCKETS`.
mod attr {
    pub(super) const INDEX: u16 = 1;
    pub(super) const SIZE_BYTES: u16 = 2;
    pub(super) const BLOCK_SIZE_BYTES: u16 = 3;
    /// Seconds; 0, as without it: a request's connection is not given up (if it is the only one).
    pub(super) const TIMEOUT: u16 = 4;
    pub(super) const SERVER_FLAGS: u16 = 5;
    pub(super) const SOCKETS: u16 = 7;
    /// Seconds.
    pub(super) const DEAD_CONN_TIMEOUT: u16 = 8;
    /// Since Linux 5.14; shown in `/sys/block/nbdN/backend`.
    pub(super) const BACKEND_IDENTIFIER: u16 = 10;
    /// `NBD_SOCK_ITEM`.
    pub(super) const SOCKET_ITEM: u16 = 1;
    /// `NBD_SOCK_FD`.
    pub(super) const SOCKET_FD: u16 = 1;
}

/// The only export of our server.
const EXPORT: &str = "";
/// Bytes that the kernel keeps in each direction of a connection.
const SOCKET_BUFFER: usize = 1 << 20;
/// Connections, each with a hardware queue of the device and a thread here.
const MOST_CONNECTIONS: usize = 64;

/// How often, and after which pause, a device that is to be recovered is offered a connection.
const TRIES: usize = MOST_CONNECTIONS + 40;
const BREATH: Duration = Duration::from_millis(50);

/// How to attach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Connections: at least 1, at most 64. The kernel sends a request that was not answered for a time (never, if
    /// there is one connection) again on another one, though the volume may still be at work on the first copy. So
    /// more than one is only for volumes that answer always, with an error if need be, within
    /// [`replay_after`](Self::replay_after).
    pub connections: usize,
    /// That time, if there are several connections; in whole seconds. A request that was under way when this process
    /// died is sent again after it, too; with one connection, after up to half a minute.
    pub replay_after: Duration,
    /// How long requests wait when this process has died, in whole seconds.
    pub patience: Duration,
    /// Shown in `/sys/block/nbdN/backend`; who [recovers](recover) the device must name the same.
    pub name: String,
    /// Nothing can be written, whatever the volume allows.
    pub read_only: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: 1,
            replay_after: Duration::from_secs(3600),
            // A server keeps a dead session, and its claim to write, for two minutes.
            patience: Duration::from_secs(300),
            name: "memlane".into(),
            read_only: false,
        }
    }
}

impl Options {
    /// Seconds until a request is sent again; 0: never.
    fn timeout(&self) -> u64 {
        match self.connections {
            0 | 1 => 0,
            _ => self.replay_after.as_secs().max(1),
        }
    }
}

/// Why there is no device, or why it stays.
#[derive(Debug)]
pub enum NbdError {
    /// The kernel has no nbd driver, or has not loaded it.
    NoDriver,
    /// Not root: netlink's `CAP_SYS_ADMIN` is missing.
    NotPermitted,
    /// No generic netlink.
    NoNetlink(io::Error),
    /// The kernel has made a device, but its file is not here.
    NoFile(PathBuf),
    /// The volume cannot be a block device.
    Volume(&'static str),
    /// Something has it mounted, or open for itself alone.
    InUse(PathBuf),
    /// The device to be recovered does not wait for a server: it has a server, is gone, or belongs to another user.
    NotWaiting(u32),
    /// Threads, sockets or memory are used up.
    Server(io::Error),
    /// The kernel refuses; at which step.
    Kernel(&'static str, io::Error),
}

impl fmt::Display for NbdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdError::NoDriver => {
                f.write_str("the kernel's nbd driver is not loaded (`modprobe nbd`)")
            }
            NbdError::NotPermitted => f.write_str("nbd devices are for root only (CAP_SYS_ADMIN)"),
            NbdError::NoNetlink(error) => write!(f, "no generic netlink here: {error}"),
            NbdError::NoFile(path) => write!(
                f,
                "the kernel has {}, but there is no such file here (a container without the host's /dev?)",
                path.display()
            ),
            NbdError::Volume(why) => f.write_str(why),
            NbdError::InUse(path) => write!(f, "{} is in use", path.display()),
            NbdError::NotWaiting(index) => {
                write!(
                    f,
                    "/dev/nbd{index} is not a device that waits for its server"
                )
            }
            NbdError::Server(error) => write!(f, "nbd: {error}"),
            NbdError::Kernel(step, error) => write!(f, "nbd, {step}: {error}"),
        }
    }
}

impl std::error::Error for NbdError {}

/// Can there be nbd devices here?
///
/// # Errors
/// Why not.
pub fn probe() -> Result<(), NbdError> {
    family().map(drop)
}

fn family() -> Result<Family, NbdError> {
    use rustix::thread::{CapabilitySet, capabilities};
    let family = Family::open(FAMILY.0, FAMILY.1).map_err(|refused| match refused.errno {
        Errno::NOENT => NbdError::NoDriver,
        other => NbdError::NoNetlink(other.into()),
    })?;
    match capabilities(None) {
        Ok(sets) if !sets.effective.contains(CapabilitySet::SYS_ADMIN) => {
            Err(NbdError::NotPermitted)
        }
        _ => Ok(family),
    }
}

/// The device with this name in `/sys/block/nbdN/backend`, if there is one: perhaps one to be [recovered](recover).
#[must_use]
pub fn left(name: &str) -> Option<u32> {
    let entries = std::fs::read_dir("/sys/block").ok()?;
    let mut indices = entries.flatten().filter_map(|entry| {
        let file = entry.file_name();
        file.to_str()?.strip_prefix("nbd")?.parse::<u32>().ok()
    });
    indices.find(|index| {
        let backend = std::fs::read_to_string(format!("/sys/block/nbd{index}/backend"));
        backend.is_ok_and(|backend| backend.trim_end_matches('\n') == name)
    })
}

/// Makes a block device of a volume.
///
/// # Errors
/// [`NbdError`].
pub fn attach(volume: Arc<dyn Volume>, options: &Options) -> Result<Attached, NbdError> {
    let mut family = family()?;
    let shape = Shape::of(&*volume, options.read_only)?;
    let serving = Serving::start(volume, options)?;
    let sockets = serving.connect(options.connections)?;
    let request = shape
        .attributes(&options.name)
        .u64(attr::SERVER_FLAGS, shape.flags.into())
        .u64(attr::TIMEOUT, options.timeout())
        .u64(attr::DEAD_CONN_TIMEOUT, options.patience.as_secs())
        .nested(
            attr::SOCKETS,
            &list(&sockets.iter().map(OwnedFd::as_fd).collect::<Vec<_>>()),
        );
    let told = family.ask(cmd::CONNECT, &request);
    let told = told.map_err(|error| refused("attach", error))?;
    let index = find(&told, attr::INDEX).and_then(|value| Some(*value.first_chunk()?));
    let nothing = || NbdError::Kernel("attach", io::ErrorKind::InvalidData.into());
    let attached = Attached {
        index: u32::from_ne_bytes(index.ok_or_else(nothing)?),
        name: options.name.clone(),
        family,
        serving,
        path: PathBuf::new(),
        is_over: false,
    };
    attached.found()
}

/// Goes on with a device whose process has died; what waits in it is done with this volume.
///
/// # Errors
/// [`NbdError`].
pub fn recover(
    volume: Arc<dyn Volume>,
    index: u32,
    options: &Options,
) -> Result<Attached, NbdError> {
    let mut family = family()?;
    let shape = Shape::of(&*volume, options.read_only)?;
    let serving = Serving::start(volume, options)?;
    let wanted = connections_of(index).unwrap_or(options.connections);
    let mut taken = 0;
    for _ in 0..TRIES {
        let (ours, kernels) = pair().map_err(NbdError::Server)?;
        let request = shape
            .attributes(&options.name)
            .u32(attr::INDEX, index)
            .u64(attr::DEAD_CONN_TIMEOUT, options.patience.as_secs())
            .nested(attr::SOCKETS, &list(&[kernels.as_fd()]));
        match family.ask(cmd::RECONFIGURE, &request) {
            Ok(_) => {}
            Err(error) if error.errno == Errno::INVAL => return Err(NbdError::NotWaiting(index)),
            Err(error) => return Err(refused("recover", error)),
        }
        drop(kernels);
        if is_open(&ours) {
            serving.adopt(ours).map_err(NbdError::Server)?;
            taken += 1;
        } else {
            // The kernel may not have noticed yet that the old one is dead.
            std::thread::sleep(BREATH);
        }
        if taken == wanted {
            break;
        }
    }
    if taken == 0 {
        return Err(NbdError::NotWaiting(index));
    }
    let attached = Attached {
        index,
        name: options.name.clone(),
        family,
        serving,
        path: PathBuf::new(),
        is_over: false,
    };
    attached.found()
}

/// Connections that a device was made with: as many as it has hardware queues.
fn connections_of(index: u32) -> Option<usize> {
    let queues = std::fs::read_dir(format!("/sys/block/nbd{index}/mq")).ok()?;
    Some(queues.flatten().count()).filter(|count| *count > 0)
}

/// Both ends of a connection: ours, and the kernel's.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let (ours, kernels) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    for socket in [&ours, &kernels] {
        // Better, but not needed.
        let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER);
    }
    Ok((ours, kernels))
}

/// Does a process hold the other end? The kernel takes a socket only in place of a dead one, and gives no error.
fn is_open(ours: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(ours, PollFlags::empty())];
    let now = Timespec::default();
    poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().contains(PollFlags::HUP)
}

fn refused(step: &'static str, error: Refused) -> NbdError {
    match (error.errno, &error.words) {
        (Errno::PERM | Errno::ACCESS, _) => NbdError::NotPermitted,
        (errno, None) => NbdError::Kernel(step, errno.into()),
        (errno, Some(_)) => {
            let kind = io::Error::from(errno).kind();
            NbdError::Kernel(step, io::Error::new(kind, error))
        }
    }
}

fn list(sockets: &[BorrowedFd<'_>]) -> Attributes {
    sockets.iter().fold(Attributes::default(), |list, socket| {
        let number = u32::try_from(socket.as_raw_fd()).unwrap_or(u32::MAX);
        let item = Attributes::default().u32(attr::SOCKET_FD, number);
        list.nested(attr::SOCKET_ITEM, &item)
    })
}

/// The description of the volume for the kernel.
struct Shape {
    size: u64,
    block: u32,
    flags: u16,
}

impl Shape {
    fn of(volume: &dyn Volume, read_only: bool) -> Result<Shape, NbdError> {
        let info: Info = Terms::whole_blocks(volume.info())
            .ok_or(NbdError::Volume("a volume whose blocks NBD can't name"))?;
        // The kernel takes no blocks that are larger than its pages; our server puts parts of blocks together.
        let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
        Ok(Shape {
            size: info.size,
            block: info.block.min(page),
            flags: Terms::offered(&info, read_only || info.read_only),
        })
    }

    fn attributes(&self, name: &str) -> Attributes {
        Attributes::default()
            .u64(attr::SIZE_BYTES, self.size)
            .u64(attr::BLOCK_SIZE_BYTES, self.block.into())
            .text(attr::BACKEND_IDENTIFIER, name)
    }
}

/// The server behind a device.
struct Serving {
    server: Arc<Server>,
    stop: StopHandle,
    thread: Option<JoinHandle<io::Result<()>>>,
    volume: Arc<dyn Volume>,
}

impl Serving {
    fn start(volume: Arc<dyn Volume>, options: &Options) -> Result<Serving, NbdError> {
        let export = Export {
            name: EXPORT.into(),
            description: String::new(),
            volume: Arc::clone(&volume),
            read_only: options.read_only,
        };
        let server = Server::bind(ServerConfig::new(Vec::new(), vec![export]));
        let server = Arc::new(server.map_err(NbdError::Server)?);
        let runs = Arc::clone(&server);
        let thread = std::thread::Builder::new().name("memlane-nbd-kernel".into());
        let thread = thread.spawn(move || runs.run());
        Ok(Serving {
            stop: server.stop_handle(),
            server,
            thread: Some(thread.map_err(NbdError::Server)?),
            volume,
        })
    }

    /// The kernel's ends of this many connections. This process serves the other ends already.
    fn connect(&self, connections: usize) -> Result<Vec<OwnedFd>, NbdError> {
        let connect = |_| -> io::Result<OwnedFd> {
            let (ours, kernels) = pair()?;
            self.adopt(ours)?;
            Ok(kernels)
        };
        let connections = 0..connections.clamp(1, MOST_CONNECTIONS);
        let sockets: io::Result<Vec<OwnedFd>> = connections.map(connect).collect();
        sockets.map_err(NbdError::Server)
    }

    fn adopt(&self, ours: OwnedFd) -> io::Result<()> {
        self.server.adopt(ours, EXPORT)
    }
}

impl Drop for Serving {
    /// Waits for nobody: a volume that does not answer must not keep us.
    fn drop(&mut self) {
        self.stop.stop();
    }
}

/// A volume that is a block device. Dropped, it is taken away, even from programs that have it open.
pub struct Attached {
    index: u32,
    name: String,
    path: PathBuf,
    family: Family,
    serving: Serving,
    is_over: bool,
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached")
            .field("path", &self.path)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Attached {
    /// The device's file must be there, or nobody could use it.
    fn found(mut self) -> Result<Attached, NbdError> {
        self.path = PathBuf::from(format!("/dev/nbd{}", self.index));
        let metadata = std::fs::metadata(&self.path);
        match metadata {
            Ok(metadata) if metadata.file_type().is_block_device() => Ok(self),
            _ => Err(NbdError::NoFile(self.path.clone())),
        }
    }

    /// `/dev/nbdN`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// N.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What the kernel has asked for until now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.serving.server.snapshot()
    }

    /// The volume's size has changed: tells the kernel, which tells everybody who watches the device.
    ///
    /// # Errors
    /// The kernel's.
    pub fn resized(&mut self) -> Result<(), NbdError> {
        let shape = Shape::of(&*self.serving.volume, false)?;
        let request = shape.attributes(&self.name).u32(attr::INDEX, self.index);
        let answer = self.family.ask(cmd::RECONFIGURE, &request);
        answer.map(drop).map_err(|error| refused("resize", error))
    }

    /// Takes the device away. Orderly: when nobody has it mounted, and after a flush of all that was written.
    /// With `force`: at once; what is under way, and what those who have it open still want, ends with `EIO`.
    ///
    /// # Errors
    /// Why it stays: [`NbdError::InUse`], what was written could not be flushed, or the kernel refuses.
    pub fn detach(&mut self, force: bool) -> Result<(), NbdError> {
        if self.is_over {
            return Ok(());
        }
        let alone = self.alone(force)?;
        self.disconnect()?;
        drop(alone);
        self.serving.stop.stop();
        if !force && let Some(thread) = self.serving.thread.take() {
            let _ = thread.join();
        }
        Ok(())
    }

    /// Keeps others from mounting it while it goes, with everything flushed.
    fn alone(&self, force: bool) -> Result<Option<File>, NbdError> {
        if force {
            return Ok(None);
        }
        let mut options = OpenOptions::new();
        let device = options.read(true).custom_flags(libc::O_EXCL);
        let device = device.open(&self.path).map_err(|error| {
            match error.raw_os_error() == Some(libc::EBUSY) {
                true => NbdError::InUse(self.path.clone()),
                false => NbdError::Kernel("open", error),
            }
        })?;
        device
            .sync_all()
            .map_err(|error| NbdError::Kernel("flush", error))?;
        Ok(Some(device))
    }

    fn disconnect(&mut self) -> Result<(), NbdError> {
        let request = Attributes::default().u32(attr::INDEX, self.index);
        let answer = self.family.ask(cmd::DISCONNECT, &request);
        answer.map_err(|error| refused("detach", error))?;
        self.is_over = true;
        Ok(())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.disconnect();
        }
    }
}
