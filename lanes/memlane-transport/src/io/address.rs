//! Where a server is: as people write it, and sockets to it.

use memlane_wait::event::timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::AsFd;
use rustix::io::{Errno, FdFlags, fcntl_setfd, ioctl_fionbio};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen,
    socket_with, sockopt,
};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The port where mainline's RNBD server listens by default (`RTRS_PORT` in drivers/block/rnbd/rnbd-srv.c), and ours.
pub const PORT: u16 = 1234;
/// The local server that is meant by `local` alone.
pub const LOCAL: &str = "default";
/// What the abstract names of local servers begin with.
const LOCAL_PREFIX: &str = "memlane/blocks/";
/// `sun_path` has 108 bytes (unix(7)); the first one of an abstract name is zero.
const LONGEST_NAME: usize = 107;

/// One address of a server.
///
/// Read from text as people write it, which is also what is shown: `tcp://HOST[:PORT]`, `HOST[:PORT]` ([`PORT`] by
/// default), `rdma://HOST[:PORT]`, `ivshmem://HOST[:PORT]`, `local[:NAME]`, `local:/PATH`, and `local:@NAME` for any other name in the abstract namespace. Reading a
/// host's name asks the resolver, which may take its time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// Over TCP.
    Tcp(SocketAddr),
    /// Over RDMA: an address of an interface that belongs to an RDMA device.
    Rdma(SocketAddr),
    /// By memory that both machines have; met, and woken, over TCP.
    Ivshmem(SocketAddr),
    /// On this host: a path if it begins with `/` or `.`, else a name in the abstract namespace.
    Local(String),
}

impl Address {
    /// The local server of this name: what `local:NAME` means.
    #[must_use]
    pub fn local(name: &str) -> Address {
        Address::Local(format!("{LOCAL_PREFIX}{name}"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(addr) => write!(f, "tcp://{addr}"),
            Address::Rdma(addr) => write!(f, "rdma://{addr}"),
            Address::Ivshmem(addr) => write!(f, "ivshmem://{addr}"),
            Address::Local(path) if is_path(path) => write!(f, "local:{path}"),
            Address::Local(name) => match name.strip_prefix(LOCAL_PREFIX) {
                Some(short) if is_plain(short) => write!(f, "local:{short}"),
                _ => write!(f, "local:@{name}"),
            },
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match text.strip_prefix("local") {
            Some("") => Ok(Address::local(LOCAL)),
            Some(rest) if rest.starts_with(':') => local(&rest[1..]),
            _ => remote(text, None),
        }
    }
}

/// `[tcp://|rdma://|ivshmem://]HOST[:PORT]`, to be reached from there.
fn remote(text: &str, from: Option<IpAddr>) -> Result<Address, String> {
    let (kind, host): (fn(SocketAddr) -> Address, &str) = match text.split_once(':') {
        Some(("tcp", host)) => (Address::Tcp, host),
        Some(("rdma", host)) => (Address::Rdma, host),
        Some(("ivshmem", host)) => (Address::Ivshmem, host),
        _ => (Address::Tcp, text),
    };
    resolve(host.strip_prefix("//").unwrap_or(host), from).map(kind)
}

fn local(name: &str) -> Result<Address, String> {
    if is_plain(name) {
        return Ok(Address::local(name));
    }
    let path = Some(name).filter(|name| name.starts_with('/'));
    let raw = name.strip_prefix('@').filter(|raw| !is_path(raw));
    let fits = |name: &&str| (1..=LONGEST_NAME).contains(&name.len()) && !name.contains('\0');
    path.or(raw)
        .filter(fits)
        .map(|name| Address::Local(name.into()))
        .ok_or_else(|| {
            format!(
                "{name:?}: up to 64 letters, digits, '-' and '_', or the path of a socket from / on"
            )
        })
}

fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.len() <= 64 && name.chars().all(plain)
}

/// `HOST`, `HOST:PORT`, `[V6]:PORT`, `[V6]`, `V6`; of the family of `from`, if one is to come from there.
fn resolve(text: &str, from: Option<IpAddr>) -> Result<SocketAddr, String> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    if let Ok(ip) = bare.unwrap_or(text).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    let with_port = match text.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => text.to_owned(),
        Some((_, port)) => return Err(format!("{port:?} is not a port")),
        None => format!("{text}:{PORT}"),
    };
    if with_port.starts_with(':') {
        return Err("a host is missing".into());
    }
    let found = with_port.to_socket_addrs();
    let found: Vec<_> = found
        .map_err(|error| format!("{text:?}: {error}"))?
        .collect();
    choose(&found, from).ok_or_else(|| format!("{text:?} has no address"))
}

/// The first, but where a choice is certain to be better: one that `from` can reach; and IPv4 for a name of this host,
/// as servers listen at 127.0.0.1 by default.
fn choose(found: &[SocketAddr], from: Option<IpAddr>) -> Option<SocketAddr> {
    let here = found.iter().all(|addr| addr.ip().is_loopback());
    let fits = |addr: &&SocketAddr| match from {
        Some(from) => from.is_ipv4() == addr.is_ipv4(),
        None => here && addr.is_ipv4(),
    };
    found.iter().find(fits).or(found.first()).copied()
}

/// Both ends of a path. As text: `[SRC@]DST`, as RTRS writes it.
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

    /// Does it lead to a server of this host, by a unix socket?
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.dst, Address::Local(_))
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

impl FromStr for PathAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<PathAddr, String> {
        // In `local:@NAME` it has another meaning.
        let parts = text.split_once('@').filter(|_| !text.starts_with("local:"));
        let Some((from, to)) = parts else {
            return text.parse().map(PathAddr::to);
        };
        let from = from.trim_matches(['[', ']']).parse::<IpAddr>();
        let from = from.map_err(|_| "before the @: an address of this machine")?;
        if to.starts_with("local")
            && to
                .parse::<Address>()
                .is_ok_and(|to| matches!(to, Address::Local(_)))
        {
            return Err("a local path has no address to come from".into());
        }
        let dst = remote(to, Some(from))?;
        if let Address::Tcp(to) | Address::Rdma(to) | Address::Ivshmem(to) = &dst
            && from.is_ipv4() != to.is_ipv4()
        {
            return Err(format!("{from} and {to} are not of one family"));
        }
        Ok(PathAddr {
            src: Some(from),
            dst,
        })
    }
}

/// A socket on which a service manager listens already.
#[derive(Clone, Debug)]
pub struct Inherited {
    pub(super) socket: Arc<OwnedFd>,
    address: Address,
}

impl Inherited {
    /// Takes a socket that listens.
    ///
    /// # Errors
    /// It is no socket, or not one of TCP or unix streams that listens, or its name is not text.
    pub fn new(socket: OwnedFd) -> io::Result<Inherited> {
        let listens = sockopt::socket_type(&socket)? == SocketType::STREAM
            && sockopt::socket_acceptconn(&socket)?;
        if !listens {
            return Err(io::Error::other("not a stream socket that listens"));
        }
        let address = address_of(rustix::net::getsockname(&socket)?)?;
        ioctl_fionbio(&socket, true)?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        Ok(Inherited {
            socket: Arc::new(socket),
            address,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }
}

fn address_of(name: SocketAddrAny) -> io::Result<Address> {
    if let Ok(addr) = SocketAddr::try_from(name.clone()) {
        return Ok(Address::Tcp(addr));
    }
    let name = SocketAddrUnix::try_from(name)?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let path = name.path().and_then(|path| text(path.to_bytes()));
    let name = path.or_else(|| name.abstract_name().and_then(text));
    name.map(Address::Local)
        .ok_or_else(|| io::Error::other("its name is not text"))
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

/// Bytes that a connection within one host has on their way (the kernel doubles it, for what it needs beside them).
const NEAR: usize = 256 << 10;

/// Makes a TCP connection quick. Without any of this it is only slower. (A connection that is on its way knows both
/// addresses, too.)
pub(super) fn tune(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    if is_near(socket) {
        // Here nothing is gained by having more on its way than the processor's cache holds: what has left it costs
        // the receiver twice the time. (decisions/0009)
        let _ = sockopt::set_socket_send_buffer_size(socket, NEAR);
    }
}

/// Is the other end of a TCP connection on this host, as far as addresses tell?
fn is_near(socket: &OwnedFd) -> bool {
    let ip = |name: rustix::net::SocketAddrAny| {
        Some(SocketAddr::try_from(name).ok()?.ip().to_canonical())
    };
    let here = rustix::net::getsockname(socket).ok().and_then(ip);
    let there = rustix::net::getpeername(socket).ok().flatten().and_then(ip);
    here.is_some_and(|here| Some(here) == there || here.is_loopback())
}

/// A socket that is on its way to `path`: writable when it is there, or has failed.
pub(super) fn connecting(path: &PathAddr) -> rustix::io::Result<OwnedFd> {
    let (socket, asked) = match &path.dst {
        Address::Tcp(addr) | Address::Ivshmem(addr) => {
            let socket = socket_with(family(addr), SocketType::STREAM, FLAGS, None)?;
            if let Some(src) = path.src {
                bind(&socket, &SocketAddr::new(src, 0))?;
            }
            let asked = connect(&socket, addr);
            tune(&socket);
            (socket, asked)
        }
        Address::Local(name) => {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
            let asked = connect(&socket, &unix(name)?);
            (socket, asked)
        }
        // It has no socket: see `verbs`.
        Address::Rdma(_) => return Err(Errno::PROTONOSUPPORT),
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
        // One has no socket: see `verbs`. Clients of the other come to a socket of TCP.
        Address::Rdma(_) | Address::Ivshmem(_) => Err(Errno::PROTONOSUPPORT),
    }
}

/// A set of descriptors to wait for.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

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

impl Epoll {
    pub(super) fn new() -> rustix::io::Result<Epoll> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(Epoll)
    }

    pub(super) fn add(&self, fd: impl AsFd, data: u64, what: Interest) -> rustix::io::Result<()> {
        epoll::add(&self.0, fd, EventData::new_u64(data), what.flags())
    }

    pub(super) fn change(&self, fd: impl AsFd, data: u64, what: Interest) {
        // It fails only for descriptors that are not in the set.
        let _ = epoll::modify(&self.0, fd, EventData::new_u64(data), what.flags());
    }

    pub(super) fn remove(&self, fd: impl AsFd) {
        // It fails only for descriptors that are not in the set.
        let _ = epoll::delete(&self.0, fd);
    }

    /// What is ready; waits for it, but not longer than `limit` (`None`: for ever).
    pub(super) fn wait(&self, limit: Option<Duration>, into: &mut Vec<Ready>) {
        into.clear();
        let limit = limit.map(timespec);
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

impl AsFd for Epoll {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_a_connection_within_this_host_has_little_on_its_way() {
        let buffer = |socket: &OwnedFd| sockopt::socket_send_buffer_size(socket).expect("a size");
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let (_listener, bound) = listening(&Address::Tcp(any)).expect("a port");
        let Address::Tcp(any) = bound else {
            panic!("not TCP: {bound}");
        };
        let here = SocketAddr::from(([127, 0, 0, 1], any.port()));
        let near = connecting(&PathAddr::to(Address::Tcp(here))).expect("somebody listens");
        assert!(is_near(&near));
        // The kernel doubles it.
        assert_eq!(buffer(&near), 2 * NEAR);
        let from = Some(IpAddr::from([127, 0, 0, 2]));
        let other = connecting(&PathAddr {
            src: from,
            dst: Address::Tcp(here),
        });
        assert!(is_near(&other.expect("somebody listens")));
        let unbound = socket_with(AddressFamily::INET, SocketType::STREAM, FLAGS, None);
        let unbound = unbound.expect("a socket");
        let before = buffer(&unbound);
        tune(&unbound);
        assert_eq!(buffer(&unbound), before, "nobody knows where it goes");
    }

    #[test]
    fn a_local_name_with_a_slash_in_it_is_a_name() {
        let name = format!("memlane/tests/{}", std::process::id());
        let (_socket, bound) = listening(&Address::Local(name.clone())).expect("a name");
        assert_eq!(bound, Address::Local(name.clone()));
        connecting(&PathAddr::to(bound)).expect("somebody listens");
        assert!(!std::path::Path::new(&name).exists());
    }

    fn tcp(text: &str) -> Address {
        Address::Tcp(text.parse().expect("an address"))
    }

    #[test]
    fn addresses_are_read_as_people_write_them_and_shown_so_that_they_can_be_read_again() {
        let local = |name: &str| Address::Local(name.into());
        for (text, meant, shown) in [
            ("127.0.0.1", tcp("127.0.0.1:1234"), "tcp://127.0.0.1:1234"),
            (
                "tcp://127.0.0.1:99",
                tcp("127.0.0.1:99"),
                "tcp://127.0.0.1:99",
            ),
            (
                "tcp:127.0.0.1:99",
                tcp("127.0.0.1:99"),
                "tcp://127.0.0.1:99",
            ),
            ("::1", tcp("[::1]:1234"), "tcp://[::1]:1234"),
            ("[::1]", tcp("[::1]:1234"), "tcp://[::1]:1234"),
            ("tcp://[::1]:7", tcp("[::1]:7"), "tcp://[::1]:7"),
            ("local", local("memlane/blocks/default"), "local:default"),
            ("local:x-1", local("memlane/blocks/x-1"), "local:x-1"),
            ("local:/run/x", local("/run/x"), "local:/run/x"),
            ("local:@any/name", local("any/name"), "local:@any/name"),
            (
                "local:@memlane/blocks/a",
                local("memlane/blocks/a"),
                "local:a",
            ),
        ] {
            assert_eq!(text.parse(), Ok(meant.clone()), "{text}");
            assert_eq!(meant.to_string(), shown);
            assert_eq!(shown.parse(), Ok(meant), "{shown}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_reason() {
        let long = format!("local:{}", "x".repeat(65));
        let long_path = format!("local:/{}", "x".repeat(107));
        for (text, why) in [
            ("", "missing"),
            ("tcp://", "missing"),
            (":5", "missing"),
            ("local:", "up to 64"),
            ("local:a/b", "up to 64"),
            ("local:.", "up to 64"),
            ("local:@/x", "up to 64"),
            ("local:@", "up to 64"),
            ("local:@a\0b", "up to 64"),
            (&long, "up to 64"),
            (&long_path, "up to 64"),
            ("127.0.0.1:99999", "not a port"),
            ("127.0.0.1:-1", "not a port"),
            ("host:", "not a port"),
        ] {
            let told = text.parse::<Address>().expect_err(text);
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    #[test]
    fn a_path_may_say_where_it_comes_from() {
        let path: PathAddr = "192.0.2.1@192.0.2.2:5".parse().expect("a path");
        assert_eq!(path.src, "192.0.2.1".parse().ok());
        assert_eq!(path.to_string(), "192.0.2.1@tcp://192.0.2.2:5");
        assert_eq!(path.to_string().parse(), Ok(path));
        let local: PathAddr = "local:@x@y".parse().expect("a local one");
        assert_eq!(local.dst, Address::Local("x@y".into()));
        for (text, why) in [
            ("::1@192.0.2.2", "one family"),
            ("x@192.0.2.2", "before the @"),
            ("192.0.2.1@local", "local"),
            ("192.0.2.1@", "missing"),
        ] {
            let told = text.parse::<PathAddr>().expect_err(text);
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    #[test]
    fn of_several_addresses_the_one_that_can_be_reached_is_taken() {
        let all = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| text.parse().expect(text)).collect()
        };
        let here = all(&["[::1]:5", "127.0.0.1:5"]);
        assert_eq!(choose(&here, None), Some(here[1]));
        assert_eq!(choose(&here, "::1".parse().ok()), Some(here[0]));
        let far = all(&["[2001:db8::1]:5", "192.0.2.1:5"]);
        assert_eq!(choose(&far, None), Some(far[0]));
        assert_eq!(choose(&far, "192.0.2.2".parse().ok()), Some(far[1]));
        assert_eq!(choose(&[], None), None);
    }

    /// Without names of hosts: no resolver is asked here.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            "local(:[@/.]{0,2}[a-z/@\\x00:.-]{0,120})?",
            any::<SocketAddr>().prop_map(|addr| format!("tcp://{addr}")),
            any::<IpAddr>().prop_map(|ip| ip.to_string()),
            any::<(IpAddr, SocketAddr)>().prop_map(|(from, to)| format!("{from}@{to}")),
        ]
    }

    proptest! {
        #[test]
        fn what_is_understood_is_shown_in_words_that_mean_the_same(text in text()) {
            if let Ok(path) = text.parse::<PathAddr>() {
                prop_assert_eq!(path.to_string().parse::<PathAddr>(), Ok(path));
            }
        }
    }
}
