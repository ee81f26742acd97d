//! From a volume's name to what it stands for: a path below the server's root, and nothing else.
//!
//! A session may have a folder of its own ([`Names`]'s template). What is found is looked at before it is opened, and
//! then that very thing is opened: a name that points elsewhere a moment later changes nothing.

use crate::volume::Errno;
use core::fmt;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

/// What a template has where the session's name belongs (as `dev_search_path` of Linux's rnbd-server).
const SESSION: &str = "%SESSNAME%";
/// Most bytes of a volume in memory, and of one of nothing.
const MOST_MEMORY: u64 = 64 << 30;
const MOST_NOTHING: u64 = 1 << 50;
/// The number of tries of a look-up that a rename has disturbed.
const TRIES: u32 = 16;

/// Why a name gives no volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameError {
    /// Nothing is left of it.
    Empty,
    /// It holds NUL or another control character.
    Control,
    /// It holds `..`.
    Parent,
    /// There is no such file.
    NotFound,
    /// It leads out of the root, or out of the session's folder.
    Outside,
    /// The server's user may not.
    Denied,
    /// It is a directory.
    Directory,
    /// It is a FIFO.
    Fifo,
    /// It is a socket.
    Socket,
    /// It is a character device.
    Character,
    /// It is a block device, and the server is not set to serve these.
    Device,
    /// It is a volume for tests, and the server is not set to serve these.
    Test,
    /// The size of a volume for tests is none.
    Size,
    /// The session's name cannot be a folder's.
    Session,
    /// A client to which the volume is lent does not give it back.
    Lent,
    /// What else the kernel says.
    Os(Errno),
}

impl NameError {
    /// The error that the client gets.
    #[must_use]
    pub fn errno(self) -> Errno {
        Errno(match self {
            NameError::Empty | NameError::Control | NameError::Parent | NameError::Size => {
                libc::EINVAL
            }
            NameError::NotFound => libc::ENOENT,
            NameError::Outside | NameError::Denied | NameError::Session => libc::EACCES,
            NameError::Directory => libc::EISDIR,
            NameError::Fifo | NameError::Socket | NameError::Character => libc::ENOTBLK,
            NameError::Device | NameError::Test => libc::EPERM,
            NameError::Lent => libc::EBUSY,
            NameError::Os(errno) => errno.0,
        })
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NameError::Empty => "the name is empty",
            NameError::Control => "the name holds control characters",
            NameError::Parent => "the name holds '..'",
            NameError::NotFound => "there is no such file below the root",
            NameError::Outside => "the name leads out of what this session may see",
            NameError::Denied => "the server may not open it",
            NameError::Directory => "it is a directory",
            NameError::Fifo => "it is a FIFO",
            NameError::Socket => "it is a socket",
            NameError::Character => "it is a character device",
            NameError::Device => "it is a block device; the server gives those with --devices",
            NameError::Test => "volumes for tests are given with --test-volumes",
            NameError::Size => "no size, or more than there can be",
            NameError::Session => "the session's name cannot name a folder",
            NameError::Lent => {
                "a client to which it is lent does not give it back: end that mapping"
            }
            NameError::Os(errno) => return write!(f, "{errno}"),
        })
    }
}

impl core::error::Error for NameError {}

/// What a name stands for.
#[derive(Debug)]
pub enum Found {
    /// A file or a block device: an `O_PATH` descriptor.
    Path(OwnedFd),
    /// Memory of this many bytes.
    Memory(u64),
    /// A volume of this many zero bytes, which drops what is written.
    Nothing(u64),
}

/// Where volumes are looked for.
#[derive(Debug)]
pub struct Names {
    root: OwnedFd,
    template: Option<String>,
    devices: bool,
    test_volumes: bool,
}

impl Names {
    /// Below `root`; with a `template`, below that folder of it, where `%SESSNAME%` stands for the session's name.
    ///
    /// # Errors
    /// There is no such folder; the template is no path; the kernel is too old to keep names below it (`ENOSYS`; with test
    /// volumes, that is the error of every other name).
    pub fn new(
        root: &Path,
        template: Option<&str>,
        devices: bool,
        test_volumes: bool,
    ) -> io::Result<Names> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty())?;
        // Without this call there is no safe way to files: rather nothing than nearly. Test volumes do without it, so
        // that a server can run under valgrind, which does not know the call (3.19).
        match below(root.as_fd(), ".", flags) {
            Err(rustix::io::Errno::NOSYS) if test_volumes => {}
            result => drop(result?),
        }
        let template = template
            .map(|template| clean(template).map_err(|why| io::Error::other(why.to_string())))
            .transpose()?;
        Ok(Names {
            root,
            template,
            devices,
            test_volumes,
        })
    }

    /// May a session have this name?
    ///
    /// # Errors
    /// [`NameError::Session`].
    pub fn session(&self, session: &str) -> Result<(), NameError> {
        let bad = |c: char| c == '/' || c == '.' || c == '%' || c.is_control();
        if session.is_empty() || session.contains(bad) {
            return Err(NameError::Session);
        }
        Ok(())
    }

    /// The name below the root: the session's folder, and the name without what says nothing.
    ///
    /// # Errors
    /// What is wrong with the name itself.
    pub fn full(&self, session: &str, name: &str) -> Result<String, NameError> {
        let name = clean(name)?;
        Ok(match self.folder(session)? {
            Some(folder) if test_volume(&name).is_none() => format!("{folder}/{name}"),
            _ => name,
        })
    }

    fn folder(&self, session: &str) -> Result<Option<String>, NameError> {
        let Some(template) = &self.template else {
            return Ok(None);
        };
        self.session(session)?;
        Ok(Some(template.replace(SESSION, session)))
    }

    /// What a name stands for, for a session.
    ///
    /// # Errors
    /// Why it stands for nothing.
    pub fn find(&self, session: &str, name: &str) -> Result<Found, NameError> {
        let name = clean(name)?;
        if let Some((kind, size)) = test_volume(&name) {
            return self.find_test(kind, size);
        }
        let folder = self.folder(session)?;
        let folder = folder.map(|folder| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            below(self.root.as_fd(), &folder, flags).map_err(why)
        });
        let folder = folder.transpose()?;
        let folder = folder.as_ref().unwrap_or(&self.root);
        self.open(folder.as_fd(), &name)
    }

    /// What a name stands for, for the server's owner: without a session's folder.
    ///
    /// # Errors
    /// Why it stands for nothing.
    pub fn find_for_owner(&self, name: &str) -> Result<Found, NameError> {
        let name = clean(name)?;
        match test_volume(&name) {
            Some((kind, size)) => self.find_test(kind, size),
            None => self.open(self.root.as_fd(), &name),
        }
    }

    fn open(&self, folder: BorrowedFd<'_>, name: &str) -> Result<Found, NameError> {
        let path = below(folder, name, OFlags::PATH | OFlags::CLOEXEC).map_err(why)?;
        let stat = rustix::fs::fstat(&path).map_err(why)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Found::Path(path)),
            FileType::BlockDevice if self.devices => Ok(Found::Path(path)),
            FileType::BlockDevice => Err(NameError::Device),
            FileType::Directory => Err(NameError::Directory),
            FileType::Fifo => Err(NameError::Fifo),
            FileType::Socket => Err(NameError::Socket),
            _ => Err(NameError::Character),
        }
    }

    fn find_test(&self, kind: Test, size: &str) -> Result<Found, NameError> {
        if !self.test_volumes {
            return Err(NameError::Test);
        }
        let size = parse_size(size).ok_or(NameError::Size)?;
        match kind {
            Test::Memory if size <= MOST_MEMORY => Ok(Found::Memory(size)),
            Test::Nothing if size <= MOST_NOTHING => Ok(Found::Nothing(size)),
            _ => Err(NameError::Size),
        }
    }
}

#[derive(Clone, Copy)]
enum Test {
    Memory,
    Nothing,
}

/// `mem:64M`, `null:1T`.
fn test_volume(name: &str) -> Option<(Test, &str)> {
    let memory = name.strip_prefix("mem:").map(|size| (Test::Memory, size));
    memory.or_else(|| Some((Test::Nothing, name.strip_prefix("null:")?)))
}

/// Reads the size of a test volume, such as `64M` or `1T`, in whole blocks of 512 bytes.
fn parse_size(text: &str) -> Option<u64> {
    let size = memlane_core::size::parse(text).ok()?;
    (size > 0 && size.is_multiple_of(512)).then_some(size)
}

/// Without slashes and dots that say nothing; relative.
fn clean(name: &str) -> Result<String, NameError> {
    if name.contains(char::is_control) {
        return Err(NameError::Control);
    }
    let mut clean = String::with_capacity(name.len());
    for part in name.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." {
            return Err(NameError::Parent);
        }
        if !clean.is_empty() {
            clean.push('/');
        }
        clean.push_str(part);
    }
    if clean.is_empty() {
        return Err(NameError::Empty);
    }
    Ok(clean)
}

/// Opens what lies below a folder: links may lead anywhere below it, and no further.
fn below(folder: BorrowedFd<'_>, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut tries = 0;
    loop {
        tries += 1;
        match rustix::fs::openat2(folder, path, flags, Mode::empty(), how) {
            // Something was renamed meanwhile, and the kernel cannot tell whether it still lies below.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) if tries < TRIES => {}
            result => return result,
        }
    }
}

fn why(error: rustix::io::Errno) -> NameError {
    match error {
        rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::NAMETOOLONG => {
            NameError::NotFound
        }
        rustix::io::Errno::XDEV | rustix::io::Errno::LOOP => NameError::Outside,
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => NameError::Denied,
        other => NameError::Os(Errno(other.raw_os_error())),
    }
}
