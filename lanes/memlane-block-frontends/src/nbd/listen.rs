//! Where clients come in.

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, bind, listen, socket_with, sockopt,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

const BACKLOG: i32 = 128;
/// Bytes of replies that the kernel keeps for a local client, if it may.
const SOCKET_BUFFER: usize = 1 << 20;

/// Where to wait for clients.
#[derive(Debug)]
pub enum Listen {
    /// A socket in the file system. One that a dead server left is replaced. Who may connect is who may write to it:
    /// its mode is what the umask makes of it.
    Unix(PathBuf),
    /// TCP. Beyond this host only with TLS, or with [`super::ServerConfig::insecure`].
    Tcp(SocketAddr),
    /// A socket that listens already: see [`activated`].
    Socket(OwnedFd),
}

/// The sockets that systemd (or another one that knows `LISTEN_FDS`) has opened for this process; none if it did
/// not. To be called once, before other threads run.
///
/// # Errors
/// A descriptor that was promised is no listening socket.
pub fn activated() -> io::Result<Vec<Listen>> {
    // sd_listen_fds(3): the first is 3, and LISTEN_PID says whom they are meant for.
    const FIRST: i32 = 3;
    const MOST: i32 = 64;
    let number = |name| std::env::var(name).ok()?.parse::<i32>().ok();
    let ours = number("LISTEN_PID").is_some_and(|pid| u32::try_from(pid) == Ok(std::process::id()));
    let count = number("LISTEN_FDS").filter(|_| ours).unwrap_or(0);
    let mut sockets = Vec::new();
    for raw in FIRST..FIRST + count.clamp(0, MOST) {
        // SAFETY: `fcntl` with F_GETFD looks at a number and at nothing else.
        if unsafe { libc::fcntl(raw, libc::F_GETFD) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: open, as just seen, and given to this process to own.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        sockets.push(Listen::Socket(fd));
    }
    Ok(sockets)
}

/// A socket that listens, and the file that goes with it.
#[derive(Debug)]
pub(super) struct Door {
    fd: OwnedFd,
    _file: Option<SocketFile>,
}

/// A socket's file, which is removed when it is over: if it still is the same.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).ok() == Some(self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Door {
    pub(super) fn open(listen: Listen) -> io::Result<Door> {
        let door = match listen {
            Listen::Unix(path) => unix(&path).map_err(|e| at(path.display(), &e))?,
            Listen::Tcp(address) => tcp(address).map_err(|e| at(address, &e))?,
            Listen::Socket(fd) => {
                if !sockopt::socket_acceptconn(&fd)? {
                    let why = format!("descriptor {} does not listen", fd.as_raw_fd());
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
                }
                Door { fd, _file: None }
            }
        };
        rustix::io::ioctl_fionbio(&door.fd, true)?;
        Ok(door)
    }

    /// The next client, and what to call it.
    pub(super) fn accept(&self) -> io::Result<(OwnedFd, String)> {
        let client = accept_with(&self.fd, SocketFlags::CLOEXEC)?;
        let family = rustix::net::getsockname(&client)?.address_family();
        // All of these make things better, and none is needed. (TCP's buffers grow by themselves, if left alone.)
        if family == AddressFamily::UNIX {
            let _ = sockopt::set_socket_send_buffer_size(&client, SOCKET_BUFFER);
            return Ok((client, "unix".into()));
        }
        let _ = sockopt::set_tcp_nodelay(&client, true);
        let _ = sockopt::set_socket_keepalive(&client, true);
        let peer = rustix::net::getpeername(&client).ok().flatten();
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        Ok((client, peer.map_or_else(|| "tcp".into(), |p| p.to_string())))
    }

    /// Its address, if it is one of TCP.
    pub(super) fn tcp_address(&self) -> Option<SocketAddr> {
        let name = rustix::net::getsockname(&self.fd).ok()?;
        SocketAddr::try_from(name).ok()
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn at(place: impl std::fmt::Display, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{place}: {error}"))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

fn unix(path: &Path) -> io::Result<Door> {
    let address = rustix::net::SocketAddrUnix::new(path)?;
    let open = || -> io::Result<OwnedFd> {
        let kind = SocketType::STREAM;
        let fd = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        bind(&fd, &address)?;
        listen(&fd, BACKLOG)?;
        Ok(fd)
    };
    let fd = match open() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path)?;
            open()?
        }
        other => other?,
    };
    let file = SocketFile {
        id: identity(path)?,
        path: path.to_path_buf(),
    };
    Ok(Door {
        fd,
        _file: Some(file),
    })
}

/// Removes a socket on which no process listens any more. Leaves anything else alone.
fn remove_stale(path: &Path) -> io::Result<()> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        let why = "exists and is not a socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another server listens there",
        )),
        Err(error) => Err(error),
    }
}

fn tcp(address: SocketAddr) -> io::Result<Door> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let fd = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    bind(&fd, &address)?;
    listen(&fd, BACKLOG)?;
    Ok(Door { fd, _file: None })
}
