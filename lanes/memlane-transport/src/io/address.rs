//! Where a server is, and sockets to it.

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    sockopt,
};
use std::fmt;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// One address of a server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// Over TCP.
    Tcp(SocketAddr),
    /// On this host: a path if it begins with `/` or `.`, else a name in the abstract namespace.
    Local(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(addr) => write!(f, "tcp:{addr}"),
            Address::Local(name) => write!(f, "local:{name}"),
        }
    }
}

/// Both ends of a path.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PathAddr {
    /// From which address of this host; `None`: the kernel chooses.
    pub src: Option<IpAddr>,
    /// To where.
    pub dst: Address,
}

impl PathAddr {
    /// A path to here, from wherever the kernel likes.
    #[must_use]
    pub fn to(dst: Address) -> PathAddr {
        PathAddr { src: None, dst }
    }
}

impl fmt::Display for PathAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.src {
            Some(src) => write!(f, "{src}@{}", self.dst),
            None => write!(f, "{}", self.dst),
        }
    }
}

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn family(addr: &SocketAddr) -> AddressFamily {
    match addr {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

fn is_path(name: &str) -> bool {
    name.starts_with(['/', '.'])
}

fn unix(name: &str) -> rustix::io::Result<SocketAddrUnix> {
    match is_path(name) {
        true => SocketAddrUnix::new(name),
        false => SocketAddrUnix::new_abstract_name(name.as_bytes()),
    }
}

/// A socket that is on its way to `path`: writable when it is there, or has failed.
pub(super) fn connecting(path: &PathAddr) -> rustix::io::Result<OwnedFd> {
    let (socket, asked) = match &path.dst {
        Address::Tcp(addr) => {
            let socket = socket_with(family(addr), SocketType::STREAM, FLAGS, None)?;
            sockopt::set_tcp_nodelay(&socket, true)?;
            if let Some(src) = path.src {
                bind(&socket, &SocketAddr::new(src, 0))?;
            }
            let asked = connect(&socket, addr);
            (socket, asked)
        }
        Address::Local(name) => {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
            let asked = connect(&socket, &unix(name)?);
            (socket, asked)
        }
    };
    match asked {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// A socket that listens at `address`, which is told back as the kernel has made it (port 0 becomes a port). A path
/// at which nobody listens any more is taken over.
pub(super) fn listening(address: &Address) -> rustix::io::Result<(OwnedFd, Address)> {
    const BACKLOG: i32 = 256;
    match address {
        Address::Tcp(addr) => {
            let socket = socket_with(family(addr), SocketType::STREAM, FLAGS, None)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            bind(&socket, addr)?;
            listen(&socket, BACKLOG)?;
            let bound = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
            Ok((socket, Address::Tcp(bound)))
        }
        Address::Local(name) => {
            let addr = unix(name)?;
            let open = || socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None);
            let socket = open()?;
            match bind(&socket, &addr) {
                Err(Errno::ADDRINUSE) if is_path(name) => {
                    if connect(open()?, &addr) != Err(Errno::CONNREFUSED) {
                        return Err(Errno::ADDRINUSE);
                    }
                    rustix::fs::unlink(name.as_str())?;
                    bind(&socket, &addr)?;
                }
                bound => bound?,
            }
            listen(&socket, BACKLOG)?;
            Ok((socket, address.clone()))
        }
    }
}

/// A bell: readable when it was rung and not hushed.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> rustix::io::Result<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(Bell)
    }

    pub(super) fn ring(&self) {
        // It fails only when it has been rung 2^64 times: then it rings already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A set of descriptors that somebody waits for.
#[derive(Debug)]
pub(super) struct Waits(OwnedFd);

/// What a descriptor is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Interest {
    pub(super) read: bool,
    pub(super) write: bool,
}

impl Interest {
    pub(super) const READ: Interest = Interest {
        read: true,
        write: false,
    };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.read);
        flags.set(EventFlags::OUT, self.write);
        flags
    }
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) data: u64,
    /// Not only writable: something to read, an end, or an error.
    pub(super) read: bool,
    pub(super) write: bool,
}

impl Waits {
    pub(super) fn new() -> rustix::io::Result<Waits> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(Waits)
    }

    pub(super) fn add(&self, fd: impl AsFd, data: u64, what: Interest) -> rustix::io::Result<()> {
        epoll::add(&self.0, fd, EventData::new_u64(data), what.flags())
    }

    pub(super) fn change(&self, fd: impl AsFd, data: u64, what: Interest) {
        // It fails only for descriptors that are not in the set.
        let _ = epoll::modify(&self.0, fd, EventData::new_u64(data), what.flags());
    }

    pub(super) fn remove(&self, fd: impl AsFd) {
        // Likewise.
        let _ = epoll::delete(&self.0, fd);
    }

    /// What is ready; waits for it, but not longer than `limit` (`None`: for ever).
    pub(super) fn wait(&self, limit: Option<Duration>, into: &mut Vec<Ready>) {
        into.clear();
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut room = [MaybeUninit::<epoll::Event>::uninit(); 64];
        // An interrupted wait found nothing.
        let Ok((events, _)) = epoll::wait(&self.0, &mut room, limit.as_ref()) else {
            return;
        };
        into.extend(events.iter().map(|event| {
            let flags = event.flags;
            Ready {
                data: event.data.u64(),
                read: flags.intersects(!EventFlags::OUT),
                write: flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP),
            }
        }));
    }
}

impl AsFd for Waits {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_name_with_a_slash_in_it_is_a_name() {
        let name = format!("memlane/tests/{}", std::process::id());
        let (_socket, bound) = listening(&Address::Local(name.clone())).expect("a name");
        assert_eq!(bound, Address::Local(name.clone()));
        connecting(&PathAddr::to(bound)).expect("somebody listens");
        assert!(!std::path::Path::new(&name).exists());
    }
}
