//! A folder of domains: each directory in it is one, also one that appears later.
//!
//! Only root and the agent's user may be able to write to the folder. So nobody can exchange a directory between the moment at
//! which it is checked and that at which it is used.
//!
//! The folder may be `/run/memlane`, where the control sockets of root's processes lie, and which they lock while they make
//! them. So sockets and hidden files are no news, and the agent locks a file of its own.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FlockOperation;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Domains of one folder. A node of a cluster has far fewer namespaces with pods.
pub const DOMAINS: usize = 4_096;
/// What is locked as long as an agent serves the folder. Only root and the agent's user can open it.
const LOCK: &str = ".agent.lock";
/// How long another agent may take to end.
const PATIENCE: Duration = Duration::from_millis(500);
/// The longest label of a host name, and so of a namespace of Kubernetes (RFC 1123).
const LABEL: usize = 63;
/// Bits of a mode by which others than the owner may write.
const OTHERS_WRITE: u32 = 0o022;

/// A directory that may be served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    pub(crate) path: PathBuf,
    /// Which directory it is, whatever its name: device and inode.
    pub(crate) id: (u64, u64),
}

/// What is in the folder.
#[derive(PartialEq, Eq, Default, Debug)]
pub(crate) struct Content {
    pub(crate) members: Vec<Member>,
    /// What is not served, and why.
    pub(crate) others: Vec<(PathBuf, &'static str)>,
}

/// A folder that is watched.
pub(crate) struct Folder {
    path: PathBuf,
    watch: OwnedFd,
    _lock: File,
}

impl Folder {
    /// Makes the folder, if it is not there, and watches it. `AddrInUse`: another agent serves it.
    pub(crate) fn open(path: &Path) -> io::Result<Folder> {
        super::server::make_directory(path)?;
        if let Some(why) = untrusted(&std::fs::metadata(path)?) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let lock = lock(&path.join(LOCK))?;
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let events = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&watch, path, events)?;
        Ok(Folder {
            path: path.to_owned(),
            watch,
            _lock: lock,
        })
    }

    /// Readable when something has changed.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Forgets what has been told about changes: whoever looks after that sees all of them.
    pub(crate) fn hear(&self) {
        let mut bytes = [core::mem::MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watch, &mut bytes);
        while !matches!(events.next(), Err(e) if e != Errno::INTR) {}
    }

    /// Looks at everything in the folder.
    pub(crate) fn look(&self) -> io::Result<Content> {
        let mut content = Content::default();
        let mut entries: Vec<_> = std::fs::read_dir(&self.path)?.flatten().collect();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            // The entry itself: a link leads to nothing that was checked.
            let Ok(metadata) = path.symlink_metadata() else {
                continue; // gone meanwhile
            };
            if is_hidden(&entry.file_name()) || metadata.file_type().is_socket() {
                continue;
            }
            let why = (!is_name(&entry.file_name()))
                .then_some("its name is not that of a namespace")
                .or_else(|| (!metadata.is_dir()).then_some("it is no directory"))
                .or_else(|| untrusted(&metadata))
                .or_else(|| (content.members.len() >= DOMAINS).then_some("there are too many"));
            match why {
                Some(why) => content.others.push((path, why)),
                None => content.members.push(Member {
                    path,
                    id: (metadata.dev(), metadata.ino()),
                }),
            }
        }
        Ok(content)
    }
}

fn lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).mode(0o600);
    let file = file.open(path)?;
    let begin = Instant::now();
    while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begin.elapsed() >= PATIENCE {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::thread::sleep(PATIENCE / 20);
    }
    Ok(file)
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Why a directory is not to be trusted: somebody else could put himself in the agent's place.
fn untrusted(directory: &Metadata) -> Option<&'static str> {
    let ours = directory.uid() == 0 || directory.uid() == rustix::process::geteuid().as_raw();
    match (ours, directory.mode() & OTHERS_WRITE) {
        (false, _) => Some("it belongs to another user"),
        (true, 0) => None,
        (true, _) => Some("others may write to it"),
    }
}

/// The name of a namespace of Kubernetes, or of a domain that several share: `@` and such a name.
fn is_name(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    let label = name.strip_prefix(b"@").unwrap_or(name);
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    (1..=LABEL).contains(&label.len())
        && label.iter().all(inner)
        && !label.starts_with(b"-")
        && !label.ends_with(b"-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_has_the_name_of_a_namespace_or_a_shared_one() {
        for good in ["shop", "a", "kube-system", "@front", "0x1", &"n".repeat(63)] {
            assert!(is_name(OsStr::new(good)), "{good}");
        }
        let long = "n".repeat(64);
        for wrong in [
            "", ".", "..", ".hidden", "Shop", "-a", "a-", "@", "@@a", "a.b", "a b", "a\nb", "ü",
            &long,
        ] {
            assert!(!is_name(OsStr::new(wrong)), "{wrong:?}");
        }
    }
}
