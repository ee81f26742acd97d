//! What all services of a process share: the names of its volumes, and who has which of them open.

use super::registry::{Opener, Refusal, Registry, VolumeView};
use crate::loan::Handover;
use crate::names::{Found, NameError, Names};
use crate::store::wakeup::Wakeup;
use crate::store::{Backing, Direct, Mode, StoreKind};
use crate::volume::Errno;
use memlane_wait::mutex::lock;
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// A client gives back what it has borrowed within milliseconds, unless it is stopped.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(2);

/// A server's settings.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where volumes are.
    pub root: PathBuf,
    /// A folder of it for each session: a path in which `%SESSNAME%` stands for the session's name.
    pub namespace: Option<String>,
    /// Block devices are given too.
    pub devices: bool,
    /// `mem:SIZE` and `null:SIZE` are given too.
    pub test_volumes: bool,
    /// May the page cache be passed by?
    pub direct: Direct,
    /// How files are reached.
    pub store: StoreKind,
    /// Most bytes of data of one request: what fits into a chunk beside its header.
    pub max_io: u32,
    /// Most volumes that one session has open.
    pub volumes: usize,
    /// How often sizes are looked at.
    pub look_every: Duration,
    /// Which clients of this host get the memory of a volume, if it is in memory.
    pub lend: Lend,
}

/// To which clients of its host a server lends volumes in memory, so that they read and write them without asking.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Lend {
    /// To none.
    #[default]
    Never,
    /// To those that run as the same user, or as root, and may trace this process (`ptrace(2)`, `PTRACE_MODE_ATTACH_REALCREDS`).
    /// They could change its memory anyway, so they get nothing that they did not have before.
    ToTracers,
    /// To all that run as the same user, or as root.
    ToUser,
}

impl Lend {
    /// How clients get what is lent. `None`: nothing is.
    pub(super) fn handover(self) -> Option<Handover> {
        match self {
            Lend::Never => None,
            Lend::ToTracers => Some(Handover::Taken),
            Lend::ToUser => Some(Handover::Sent),
        }
    }
}

impl ServerConfig {
    /// The defaults.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        ServerConfig {
            root,
            namespace: None,
            devices: false,
            test_volumes: false,
            direct: Direct::Auto,
            store: StoreKind::Auto,
            // RTRS's 128 KiB chunk, less its header's page.
            max_io: 126_976,
            volumes: 256,
            look_every: Duration::from_secs(1),
            lend: Lend::Never,
        }
    }
}

/// What a server looks like at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What is open.
    pub volumes: Vec<VolumeView>,
    /// What was refused lately, oldest first.
    pub refusals: Vec<Refusal>,
}

/// What all services of a process share.
#[derive(Debug)]
pub struct Shared {
    pub(super) config: ServerConfig,
    pub(super) names: Names,
    /// The machine's, if it tells.
    pub(super) boot: Option<[u8; 16]>,
    registry: Mutex<Registry>,
    /// Counts whenever a size may have changed or an opener was revoked, so that services look.
    pub(super) changed: AtomicU64,
    wakeups: Mutex<Vec<Weak<Wakeup>>>,
}

impl Shared {
    /// A server without a service yet.
    ///
    /// # Errors
    /// There is no such root; the namespace is no path; the kernel is too old; no random numbers.
    pub fn new(config: ServerConfig) -> io::Result<Arc<Shared>> {
        let names = Names::new(
            &config.root,
            config.namespace.as_deref(),
            config.devices,
            config.test_volumes,
        )?;
        let look_every = config.look_every;
        let shared = Arc::new(Shared {
            config,
            names,
            boot: boot_id(),
            registry: Mutex::new(Registry::new()?),
            changed: AtomicU64::new(0),
            wakeups: Mutex::default(),
        });
        let watched = Arc::downgrade(&shared);
        let name = std::thread::Builder::new().name("memlane-sizes".to_owned());
        name.spawn(move || watch(&watched, look_every))?;
        Ok(shared)
    }

    /// Signals `wakeup` from now on whenever a size may have changed or an opener was revoked.
    pub(super) fn tell_by(&self, wakeup: &Arc<Wakeup>) {
        let mut wakeups = lock(&self.wakeups);
        wakeups.retain(|wakeup| wakeup.strong_count() > 0);
        wakeups.push(Arc::downgrade(wakeup));
    }

    /// Which session has which volume open, results, and what was refused.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let registry = self.registry();
        Snapshot {
            volumes: registry.views(),
            refusals: registry.refusals(),
        }
    }

    /// Gives a file below the root another size; those who have it open are told. A file that is to become smaller is taken back
    /// from those to whom it is lent, who might make it longer again.
    ///
    /// # Errors
    /// Why there is no such volume; the kernel's; `EINVAL` if not in blocks; `EOPNOTSUPP` if it is no file; that
    /// somebody does not give it back.
    pub fn resize(&self, name: &str, size: u64) -> Result<(), NameError> {
        let Found::Path(path) = self.names.find_for_owner(name)? else {
            return Err(NameError::Os(Errno::NOTSUP));
        };
        let backing = Backing::open(path.as_fd(), Mode::Share, Direct::Off).map_err(os)?;
        match size < backing.info(0).size {
            true => self.shrink(&backing, size)?,
            false => backing.resize(size).map_err(os)?,
        }
        for opener in self.registry().openers_of(backing.key()) {
            opener.backing.resized();
        }
        self.tell_services();
        Ok(())
    }

    /// A file that is to become smaller is taken back first from those to whom it is lent.
    fn shrink(&self, backing: &Backing, size: u64) -> Result<(), NameError> {
        let openers = self.registry().will_shrink(backing.key());
        let back = wait_until_given_back(&openers);
        let shrunk = back.and_then(|()| backing.resize(size).map_err(os));
        self.registry().has_shrunk(backing.key());
        shrunk
    }

    /// Takes a volume (by its name below the root) from the sessions of this name, as if they had closed it: a client
    /// that is gone for good may have been its writer. How many had it open.
    pub fn force_close(&self, name: &str, session: &str) -> usize {
        let revoked = self.registry().revoke(name, session);
        if revoked > 0 {
            self.tell_services();
        }
        revoked
    }

    /// Looks at the sizes of all that is open.
    pub fn look(&self) {
        let over = self.registry().forget_what_is_over();
        drop(over);
        let backings = self.registry().backings();
        // Not while the registry is locked: a file system may take its time.
        let mut changed = false;
        for backing in backings {
            changed |= backing.look();
        }
        if changed {
            self.tell_services();
        }
    }

    pub(super) fn tell_services(&self) {
        self.changed.fetch_add(1, Ordering::AcqRel);
        for wakeup in lock(&self.wakeups).iter().filter_map(Weak::upgrade) {
            wakeup.signal();
        }
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}

fn wait_until_given_back(openers: &[Arc<Opener>]) -> Result<(), NameError> {
    let until = Instant::now() + GIVEN_BACK_WITHIN;
    while openers.iter().any(|opener| opener.is_lent()) {
        if Instant::now() >= until {
            return Err(NameError::Lent);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn watch(shared: &Weak<Shared>, every: Duration) {
    loop {
        std::thread::sleep(every);
        match shared.upgrade() {
            Some(shared) => shared.look(),
            None => return,
        }
    }
}

/// `/proc/sys/kernel/random/boot_id`: 32 digits and hyphens.
fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .filter_map(|digit| u8::try_from(digit).ok())
        .collect();
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|d| d[0] << 4 | d[1]).collect();
    bytes.try_into().ok()
}

fn os(error: io::Error) -> NameError {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    NameError::Os(Errno(errno))
}
