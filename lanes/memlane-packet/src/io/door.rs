//! How a front finds a back: a path or an abstract name, where a back listens.

use super::attach::{self, BackTerms, FrontTerms};
use super::link::Link;
use super::queue::{BackQueue, FrontQueue};
use super::socket::{errno, sleep};
use crate::error::AttachError;
use memlane_sys::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The first pause before another try to connect, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// A back's door. The name is removed when it is dropped.
#[derive(Debug)]
pub struct Listener(Door);

/// A socket that listens, of this protocol or another.
#[derive(Debug)]
pub struct Door {
    socket: OwnedFd,
    /// `None`: the name is abstract, and has no permissions.
    path: Option<PathBuf>,
}

/// A path, or `@name` for one that is no file (and goes with its last user).
fn address(text: &str) -> Result<SocketAddrUnix, AttachError> {
    let address = match text.strip_prefix('@') {
        Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
        None => SocketAddrUnix::new(text),
    };
    address.map_err(|error| AttachError::Socket(errno(error)))
}

fn socket(more: SocketFlags) -> Result<OwnedFd, AttachError> {
    let made = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | more,
        None,
    );
    made.map_err(|error| AttachError::Socket(errno(error)))
}

/// Does not wait: the listening process may be stopped, with a full queue of connections.
fn connected(address: &SocketAddrUnix) -> Result<OwnedFd, AttachError> {
    let socket = socket(SocketFlags::NONBLOCK)?;
    let done = rustix::net::connect(&socket, address);
    done.map_err(|error| AttachError::Socket(errno(error)))?;
    Ok(socket)
}

impl Door {
    /// Listens at a path, or at `@name`.
    pub fn open(at: &str) -> Result<Door, AttachError> {
        let address = address(at)?;
        let socket = socket(SocketFlags::empty())?;
        let path = (!at.starts_with('@')).then(|| PathBuf::from(at));
        let mut bound = bind(&socket, &address);
        if let (Err(rustix::io::Errno::ADDRINUSE), Some(path)) = (&bound, &path)
            && is_left_over(path, &address)
        {
            let _ = std::fs::remove_file(path);
            bound = bind(&socket, &address);
        }
        bound.map_err(|error| AttachError::Socket(errno(error)))?;
        listen(&socket, 16).map_err(|error| AttachError::Socket(errno(error)))?;
        Ok(Door { socket, path })
    }

    /// Waits for a connection until `end`.
    pub fn come_in(&self, end: Instant) -> Result<OwnedFd, AttachError> {
        sleep(&self.socket, end)?;
        let came = accept_with(&self.socket, SocketFlags::CLOEXEC);
        let came = came.map_err(|error| AttachError::Socket(errno(error)))?;
        if self.path.is_none() {
            no_stranger(&came)?;
        }
        Ok(came)
    }
}

/// A socket that is connected to the process that listens there.
pub fn knock(at: &str) -> Result<OwnedFd, AttachError> {
    let socket = connected(&address(at)?)?;
    if at.starts_with('@') {
        no_stranger(&socket)?;
    }
    Ok(socket)
}

impl Listener {
    /// Listens at a path, or at `@name`. A file that a dead back left there is replaced; one where a process listens is
    /// not.
    ///
    /// # Errors
    /// The socket's.
    pub fn bind(at: &str) -> Result<Listener, AttachError> {
        Ok(Listener(Door::open(at)?))
    }

    /// Waits for a front, not longer than `limit`, and attaches it.
    ///
    /// # Errors
    /// [`AttachError::Timeout`], or what became of the front that came: the door stays open.
    pub fn accept(
        &self,
        terms: &BackTerms,
        limit: Duration,
    ) -> Result<(Link, Vec<BackQueue>), AttachError> {
        attach::back(self.0.come_in(Instant::now() + limit)?, terms)
    }
}

/// A path has permissions. Anyone may take an abstract name, and anyone may connect to it. There both ends must be of
/// one user, or the other one root, by the kernel's word.
fn no_stranger(socket: &OwnedFd) -> Result<(), AttachError> {
    let peer = socket_peercred(socket).map_err(|error| AttachError::Socket(errno(error)))?;
    let peer = peer.uid.as_raw();
    if peer == 0 || peer == memlane_sys::proc::euid() {
        return Ok(());
    }
    Err(AttachError::Stranger(peer))
}

/// Is it a socket behind which nobody listens? (To connect to any other file is refused too.)
fn is_left_over(path: &Path, address: &SocketAddrUnix) -> bool {
    let kind = std::fs::symlink_metadata(path);
    if !kind.is_ok_and(|kind| kind.file_type().is_socket()) {
        return false;
    }
    let refused = Errno(rustix::io::Errno::CONNREFUSED.raw_os_error());
    matches!(connected(address), Err(AttachError::Socket(error)) if error == refused)
}

impl AsFd for Listener {
    /// Readable when a front comes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Connects to a back that listens at a path or `@name`.
///
/// # Errors
/// No link came to be.
pub fn connect(at: &str, terms: &FrontTerms) -> Result<(Link, Vec<FrontQueue>), AttachError> {
    attach::front(knock(at)?, terms)
}

/// Connects to a back, trying again until `end`: for a back that is not there yet, or comes back. What was in the rings of an
/// earlier link is lost, as frames can be on any wire.
///
/// # Errors
/// The last try's, or one that another try would not mend.
pub fn connect_until(
    at: &str,
    terms: &FrontTerms,
    end: Instant,
) -> Result<(Link, Vec<FrontQueue>), AttachError> {
    let mends =
        |error: &AttachError| matches!(error, AttachError::Socket(_) | AttachError::Timeout);
    again_until(end, mends, || connect(at, terms))
}

/// Tries until it goes or no other try `mends` it, with pauses that grow.
pub fn again_until<T, E>(
    end: Instant,
    mends: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let [mut pause, longest] = PAUSES;
    loop {
        let error = match attempt() {
            Err(error) if mends(&error) => error,
            done => return done,
        };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(error);
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(longest);
    }
}
