//! Sockets and descriptors of vhost-user.

use memlane_wait::event::is_eventfd;
use rustix::fs::{Mode, OFlags, fchmod, fcntl_getfl, fcntl_setfl};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Makes a socket that only its owner may connect to. Replaces a socket whose process is gone.
///
/// # Errors
/// `AddrInUse`: a process listens there. `AlreadyExists`: something other than a socket is there. Other errors are the
/// kernel's.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Ok(there) = std::fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the path exists and is not a socket: remove it, or choose another path",
            ));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        // Its process is gone.
        std::fs::remove_file(path)?;
    }
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Before it has a name: the file gets the socket's mode.
    fchmod(socket.as_fd(), Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 8)?;
    Ok(UnixListener::from(socket))
}

/// Makes an eventfd from a front end non-blocking. `None`: it is another kind of file, which may block whatever its flags
/// say.
pub fn eventfd(file: File) -> Option<File> {
    if !is_eventfd(&file) {
        return None;
    }
    let flags = fcntl_getfl(&file).ok()?;
    fcntl_setfl(&file, flags | OFlags::NONBLOCK).ok()?;
    Some(file)
}
