//! A volume as a regular file (FUSE), for programs that take files: `fuse:PATH`.
//!
//! PATH is the file itself: FUSE mounts on a regular file when its root inode is one. It has the volume's size, can
//! be read, written, mapped, punched and searched for holes, and does not grow or shrink. `O_DIRECT` goes past the
//! kernel's cache. A write is answered when the volume has it (the cache is not written back later), `fsync` when
//! the volume has flushed.
//!
//! The kernel's **cache** is used when this is the only writer: then programs may map the file on any kernel, and
//! what is read twice is fetched once. On a volume that is only read here, others may write, so nothing is kept.
//!
//! The bytes are copied once between the kernel and us, and once between us and the lease (a read's for the kernel
//! to take from private memory; a write's because the kernel's message is in fuser's buffer).

mod connection;
mod file;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod lane;
mod left;
mod ranges;
mod seek;
mod unmount;

pub use file::Cache;
pub use left::{clear, left};
pub use unmount::MountError;

use self::connection::Connection;
use self::unmount::{fusermount, unmount_idle};
use file::{File, Shared};
use fuser::{BackgroundSession, Config, INodeNo, MountOption, Session, SessionACL};
use memlane_block::volume::Volume;
use rustix::mount::{UnmountFlags, unmount};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The kernel ends a connection with the last mount. Its threads notice when they next run.
const ENDING: Duration = Duration::from_millis(200);

/// How to mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Shown in `/proc/mounts`.
    pub name: String,
    /// Threads that take requests, each with a queue of the volume.
    pub threads: usize,
    /// Default: the kernel's, if the volume can be written.
    pub cache: Option<Cache>,
    /// Other users may open it (as `mode` allows). For others than root, only with `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Default: 0600, or 0400 if the volume cannot be written.
    pub mode: Option<u16>,
}

impl Default for Options {
    fn default() -> Options {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            name: "volume".into(),
            threads: cpus.min(4),
            cache: None,
            allow_other: false,
            mode: None,
        }
    }
}

/// A volume that is a file. Dropped, it is taken away, even from programs that have it open.
pub struct Mounted {
    path: PathBuf,
    /// The file was made for the mount.
    made: bool,
    /// It is mounted at `path`, unless somebody else has unmounted it. Once it is not, what is there is not ours.
    is_here: bool,
    file: Arc<File>,
    connection: Option<Connection>,
    session: Option<BackgroundSession>,
    answering: Vec<JoinHandle<()>>,
}

/// Makes `path` the volume. An empty file may be there; without one, it is made, and removed in the end.
///
/// # Errors
/// [`MountError`].
pub fn mount(
    volume: Arc<dyn Volume>,
    path: &Path,
    options: &Options,
) -> Result<Mounted, MountError> {
    let made = prepare(path)?;
    let mounted = start(volume, path, options, made);
    if mounted.is_err() && made {
        let _ = std::fs::remove_file(path);
    }
    mounted
}

fn start(
    volume: Arc<dyn Volume>,
    path: &Path,
    options: &Options,
    made: bool,
) -> Result<Mounted, MountError> {
    let failed = |error| MountError::Io(path.to_owned(), error);
    // Where it is, also when our folder changes.
    let path = path.canonicalize().map_err(failed)?;
    let read_only = volume.info().read_only;
    let by_default = if read_only {
        Cache::None
    } else {
        Cache::Kernel
    };
    let mode = options
        .mode
        .unwrap_or(if read_only { 0o400 } else { 0o600 });
    let cache = options.cache.unwrap_or(by_default);
    let file = File::new(volume, options.threads, cache, mode).map_err(failed)?;
    let file = Arc::new(file);
    let session = Session::new(
        Shared(Arc::clone(&file)),
        &path,
        &config(options, read_only),
    );
    let mut mounted = Mounted {
        path: path.clone(),
        made,
        is_here: true,
        connection: None,
        session: None,
        answering: Vec::new(),
        file,
    };
    mounted.session = Some(session.and_then(Session::spawn).map_err(failed)?);
    mounted.connection = Connection::of(&path);
    for lane in &mounted.file.lanes {
        let lane = Arc::clone(lane);
        let name = std::thread::Builder::new().name("memlane-fuse".into());
        let thread = name.spawn(move || lane.serve()).map_err(failed)?;
        mounted.answering.push(thread);
    }
    Ok(mounted)
}

fn config(options: &Options, read_only: bool) -> Config {
    // A comma would begin another mount option.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%".contains(c);
    let name: String = options.name.chars().filter(|c| plain(*c)).collect();
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("memlane:{name}")),
        MountOption::DefaultPermissions,
        MountOption::NoExec,
        MountOption::NoAtime,
    ];
    if read_only {
        config.mount_options.push(MountOption::RO);
    }
    if options.allow_other {
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = true;
    config
}

/// Can volumes be mounted as files here?
///
/// # Errors
/// Why not.
pub fn probe() -> Result<(), MountError> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.map(drop).map_err(MountError::NoFuse)?;
    let helper = ["/bin", "/usr/bin", "/usr/local/bin"]
        .iter()
        .any(|folder| Path::new(folder).join("fusermount3").exists());
    match helper || rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(MountError::NoHelper),
    }
}

/// Looks at what is at `path`; says whether a file was made there.
fn prepare(path: &Path) -> Result<bool, MountError> {
    let failed = |error| MountError::Io(path.to_owned(), error);
    std::fs::metadata("/dev/fuse").map_err(MountError::NoFuse)?;
    match std::fs::metadata(path) {
        Ok(there) if !there.is_file() => Err(MountError::NotAFile(path.to_owned())),
        Ok(there) if there.len() > 0 => Err(MountError::NotEmpty(path.to_owned())),
        Ok(_) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            // The mount of a killed process: programs that have the file open get errors already.
            match left::clear(path)? {
                true => prepare(path),
                false => Err(MountError::Stale(path.to_owned())),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            options.open(path).map(|_| true).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

impl Mounted {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Is it still there? Anybody with the right to may unmount it.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| !session.guard.is_finished())
    }

    /// The volume's size has changed: the kernel forgets what it knew.
    pub fn refresh(&self) {
        if let Some(session) = &self.session {
            // Attributes only. A kernel that has nothing in its cache says so, and that is no failure.
            let _ = session.notifier().inval_inode(INodeNo::ROOT, -1, 0);
        }
    }

    /// The number of the file system, as `stat` tells it: major and minor.
    #[must_use]
    pub fn device(&self) -> Option<(u32, u32)> {
        self.connection.map(Connection::device)
    }

    /// Takes it away, if nobody has it open.
    ///
    /// # Errors
    /// [`MountError::InUse`]; it is then still mounted, and served. [`MountError::InUseElsewhere`]; it is then not mounted
    /// here any more, and served until a later call finds that nobody has it open.
    pub fn unmount(&mut self) -> Result<(), MountError> {
        if self.is_mounted() {
            self.unmount_here()?;
            if !self.ends_soon() && !self.end_copies()? {
                self.abandon();
                return Ok(());
            }
        }
        self.finish();
        Ok(())
    }

    fn unmount_here(&mut self) -> Result<(), MountError> {
        if self.is_here {
            unmount_idle(&self.path)?;
            self.is_here = false;
        }
        Ok(())
    }

    /// Whether the kernel ends the connection by itself, which it does if no other mount namespace has a copy of the mount.
    fn ends_soon(&self) -> bool {
        let end = Instant::now() + ENDING;
        while self.is_mounted() {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(ENDING / 200);
        }
        true
    }

    /// Ends copies of the mount that other mount namespaces have, if nobody has the file open there. `false`: the kernel
    /// does not let us, since we are not root.
    fn end_copies(&self) -> Result<bool, MountError> {
        match self.file.is_open() {
            true => Err(MountError::InUseElsewhere(self.path.clone())),
            false => Ok(self.end_connection()),
        }
    }

    fn end_connection(&self) -> bool {
        self.connection.is_some_and(|it| it.end().is_ok())
    }

    /// Unmounts it at once: programs that have the file open get errors.
    pub fn unmount_now(&mut self) {
        let gone = !self.is_mounted() || (self.unmount_here().is_ok() && self.ends_soon());
        match gone || self.cut() {
            true => self.finish(),
            false => self.abandon(),
        }
    }

    /// Ends the connection although the file is open, and takes its name away. `false`: the connection lives.
    fn cut(&self) -> bool {
        // Nobody waits for an answer any more …
        for lane in &self.file.lanes {
            lane.stop();
        }
        // … and nobody can ask. For root of a user namespace, the second way works and the first does not.
        let ended = self.end_connection();
        if !self.is_here {
            return ended;
        }
        let _ = unmount(&self.path, UnmountFlags::FORCE);
        let detached = unmount(&self.path, UnmountFlags::DETACH).is_ok();
        if !detached {
            let _ = fusermount(&self.path, &["-u", "-z"]);
        }
        ended || detached
    }

    /// Without root the connection lives while any program has the file open, or a mount of it. Its requests fail.
    fn abandon(&mut self) {
        for lane in &self.file.lanes {
            lane.stop();
        }
        drop(self.session.take());
        self.forget();
    }

    /// After the unmount.
    fn finish(&mut self) {
        for lane in &self.file.lanes {
            lane.stop();
        }
        if let Some(session) = self.session.take() {
            // An error says how the connection ended; it has.
            let _ = session.join();
        }
        self.forget();
    }

    fn forget(&mut self) {
        for thread in self.answering.drain(..) {
            let _ = thread.join();
        }
        if std::mem::take(&mut self.made) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.unmount_now();
    }
}
