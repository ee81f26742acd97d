//! TCP or UNIX domain sockets of the standard library, by an address as text: blocking, and nothing of memlane's.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

/// `127.0.0.1:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum At {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl std::str::FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<At, String> {
        match text.strip_prefix("unix:") {
            Some(path) => Ok(At::Unix(path.into())),
            None => text
                .parse()
                .map(At::Tcp)
                .map_err(|_| format!("{text:?} is neither ADDRESS:PORT nor unix:PATH")),
        }
    }
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            At::Tcp(address) => address.fmt(f),
            At::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A listener.
pub(super) enum Door {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Door {
    pub(super) fn open(at: &At) -> io::Result<Door> {
        Ok(match at {
            At::Tcp(address) => Door::Tcp(TcpListener::bind(address)?),
            At::Unix(path) => Door::Unix(UnixListener::bind(path)?),
        })
    }

    pub(super) fn accept(&self) -> io::Result<Wire> {
        match self {
            Door::Tcp(listener) => Wire::tcp(listener.accept()?.0),
            Door::Unix(listener) => Ok(Wire::Unix(listener.accept()?.0)),
        }
    }

    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Door::Tcp(listener) => listener.set_nonblocking(true),
            Door::Unix(listener) => listener.set_nonblocking(true),
        }
    }
}

impl AsRawFd for Door {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Door::Tcp(listener) => listener.as_raw_fd(),
            Door::Unix(listener) => listener.as_raw_fd(),
        }
    }
}

/// A connection.
pub(super) enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Wire {
    pub(super) fn connect(at: &At) -> io::Result<Wire> {
        match at {
            At::Tcp(address) => Wire::tcp(TcpStream::connect(address)?),
            At::Unix(path) => Ok(Wire::Unix(UnixStream::connect(path)?)),
        }
    }

    fn tcp(stream: TcpStream) -> io::Result<Wire> {
        stream.set_nodelay(true)?;
        Ok(Wire::Tcp(stream))
    }

    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Wire::Tcp(stream) => stream.set_nonblocking(true),
            Wire::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    /// As `read_exact`. Between two programs with sockmap, the kernel ends a blocking read with EAGAIN once in a while: then
    /// it is made again.
    pub(super) fn read_whole(&self, into: &mut [u8]) -> io::Result<()> {
        let (mut this, mut have) = (self, 0);
        while have < into.len() {
            match this.read(&mut into[have..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => have += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// No more will be written.
    pub(super) fn finish(&self) -> io::Result<()> {
        match self {
            Wire::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Wire::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

/// Two threads may have an end each.
impl Read for &Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Tcp(stream) => (&mut &*stream).read(into),
            Wire::Unix(stream) => (&mut &*stream).read(into),
        }
    }
}

impl Write for &Wire {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Tcp(stream) => (&mut &*stream).write(from),
            Wire::Unix(stream) => (&mut &*stream).write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(into)
    }
}

impl Write for Wire {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&mut &*self).write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRawFd for Wire {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Wire::Tcp(stream) => stream.as_raw_fd(),
            Wire::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

/// For tests: over TCP and over a socket file.
#[cfg(test)]
pub(super) fn each_way(test: impl Fn(At)) {
    let scratch = crate::runner::proc::Scratch::new().expect("a folder");
    let port = crate::runner::proc::free_port().expect("a port");
    test(At::Tcp(([127, 0, 0, 1], port).into()));
    test(At::Unix(scratch.name("socket")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_two_kinds() {
        let tcp = "127.0.0.1:80".parse();
        assert_eq!(tcp, Ok(At::Tcp(([127, 0, 0, 1], 80).into())));
        assert_eq!("unix:/a b".parse(), Ok(At::Unix("/a b".into())));
        for text in ["127.0.0.1:80", "unix:/a b"] {
            assert_eq!(text.parse::<At>().expect("an address").to_string(), text);
        }
        assert!("localhost".parse::<At>().is_err());
    }
}
