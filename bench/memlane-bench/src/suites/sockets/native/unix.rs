//! UNIX domain sockets: streams, and those that keep messages apart. Blocking, as programs use them.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};

use super::turns::End;

const PATIENCE: Duration = Duration::from_secs(10);
/// So that a message of 4 MiB fits, where the kernel lets us.
const ROOM: usize = 9 << 20;

/// A listener, or where one is.
pub(super) struct Door {
    listener: Option<OwnedFd>,
    at: PathBuf,
    kind: SocketType,
}

impl Door {
    pub(super) fn new(serves: bool, messages: bool, folder: &Path) -> anyhow::Result<Door> {
        let at = folder.join("socket");
        let kind = match messages {
            true => SocketType::SEQPACKET,
            false => SocketType::STREAM,
        };
        let listener = match serves {
            true => {
                let fd = net::socket(AddressFamily::UNIX, kind, None)?;
                net::bind(&fd, &SocketAddrUnix::new(&at)?)?;
                net::listen(&fd, 8)?;
                Some(fd)
            }
            false => None,
        };
        Ok(Door { listener, at, kind })
    }

    pub(super) fn end(&self) -> anyhow::Result<Unix> {
        let fd = match &self.listener {
            Some(listener) => net::accept(listener)?,
            None => self.connect()?,
        };
        let messages = self.kind == SocketType::SEQPACKET;
        if messages && set_socket_send_buffer_size_force(&fd, ROOM).is_err() {
            set_socket_send_buffer_size(&fd, ROOM)?;
        }
        Ok(Unix {
            fd,
            messages,
            buffer: Vec::new(),
        })
    }

    fn connect(&self) -> anyhow::Result<OwnedFd> {
        let begin = Instant::now();
        loop {
            let fd = net::socket(AddressFamily::UNIX, self.kind, None)?;
            match net::connect(&fd, &SocketAddrUnix::new(&self.at)?) {
                Ok(()) => return Ok(fd),
                Err(Errno::NOENT | Errno::CONNREFUSED) if begin.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// One connection. What is given has to be sent, and what is taken received: there is no other way.
pub(super) struct Unix {
    fd: OwnedFd,
    messages: bool,
    buffer: Vec<u8>,
}

impl Unix {
    fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(bytes, 0);
        buffer
    }
}

impl End for Unix {
    fn give(&mut self, bytes: usize) -> anyhow::Result<()> {
        let buffer = self.buffer(bytes);
        self.send(&buffer)?;
        self.buffer = buffer;
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> anyhow::Result<bool> {
        let mut buffer = self.buffer(bytes);
        let some = self.receive(&mut buffer)?;
        self.buffer = buffer;
        Ok(some)
    }

    fn send(&mut self, from: &[u8]) -> anyhow::Result<()> {
        let mut done = 0;
        while done < from.len() {
            match net::send(&self.fd, &from[done..], SendFlags::NOSIGNAL) {
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(error) => return Err(std::io::Error::from(error).into()),
            }
        }
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8]) -> anyhow::Result<bool> {
        let mut done = 0;
        while done < into.len() {
            let got = net::recv(&self.fd, &mut into[done..], RecvFlags::empty());
            match got.map_err(std::io::Error::from) {
                Ok((0, _)) => return Ok(false),
                Ok((n, _)) => {
                    ensure!(!self.messages || n == into.len(), "a message of {n} bytes");
                    done += n;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        Ok(net::shutdown(&self.fd, net::Shutdown::Write)?)
    }
}
