//! Sockets: addresses, options, TCP's own counts, and AF_UNIX messages that
//! carry descriptors and credentials.

use crate::errno::{Errno, Result};
use crate::fd::{Fd, as_fd};
use crate::syscall;
use core::mem::{MaybeUninit, size_of};

/// One end of a TCP connection. IPv4 addresses (mapped ones too) are kept as
/// `::ffff:a.b.c.d`, so that a v4-mapped socket and its v4 peer mirror each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Addr {
    /// IPv6 or v4-mapped address, network order.
    pub ip: [u8; 16],
    /// Port, host order.
    pub port: u16,
}

impl Addr {
    /// Is this an IPv4 (or v4-mapped) address?
    pub fn is_v4(&self) -> bool {
        self.ip[..12] == V4_PREFIX
    }
}

const V4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Both ends of a TCP connection as this side sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Tuple {
    /// This side.
    pub local: Addr,
    /// The other side.
    pub remote: Addr,
}

impl Tuple {
    /// The same connection as the other side sees it.
    pub fn mirrored(&self) -> Tuple {
        Tuple {
            local: self.remote,
            remote: self.local,
        }
    }
}

/// Address of this end.
pub fn local_addr(fd: i32) -> Result<Addr> {
    name_by(libc::SYS_getsockname, fd)
}

/// Address of the other end.
pub fn remote_addr(fd: i32) -> Result<Addr> {
    name_by(libc::SYS_getpeername, fd)
}

fn name_by(call: i64, fd: i32) -> Result<Addr> {
    let mut ss = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    #[allow(clippy::cast_possible_truncation)] // 128
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: `ss` is writable for `len` bytes.
    unsafe { syscall!(call, fd, ss.as_mut_ptr(), &raw mut len) }?;
    // SAFETY: all-zero was a valid value and the kernel only overwrote bytes.
    decode_addr(unsafe { ss.assume_init_ref() })
}

fn decode_addr(ss: &libc::sockaddr_storage) -> Result<Addr> {
    let mut addr = Addr::default();
    match i32::from(ss.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a sockaddr_in, which is smaller and no stricter aligned.
            let sin = unsafe { &*core::ptr::from_ref(ss).cast::<libc::sockaddr_in>() };
            addr.ip[..12].copy_from_slice(&V4_PREFIX);
            addr.ip[12..].copy_from_slice(&sin.sin_addr.s_addr.to_ne_bytes());
            addr.port = u16::from_be(sin.sin_port);
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is a sockaddr_in6, which is smaller and no stricter aligned.
            let sin6 = unsafe { &*core::ptr::from_ref(ss).cast::<libc::sockaddr_in6>() };
            addr.ip = sin6.sin6_addr.s6_addr;
            addr.port = u16::from_be(sin6.sin6_port);
        }
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    }
    Ok(addr)
}

/// A socket option whose value is a plain number type.
pub fn option<T: Copy + Default>(fd: i32, level: i32, name: i32) -> Result<T> {
    let mut value = T::default();
    #[allow(clippy::cast_possible_truncation)] // a few bytes
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is writable for `len` bytes; any bytes are a valid number.
    unsafe {
        syscall!(
            libc::SYS_getsockopt,
            fd,
            level,
            name,
            &raw mut value,
            &raw mut len
        )
    }?;
    if len as usize == size_of::<T>() {
        Ok(value)
    } else {
        Err(Errno::PROTO)
    }
}

/// Sets a socket option whose value is a plain number type.
pub fn set_option<T: Copy>(fd: i32, level: i32, name: i32, value: T) -> Result<()> {
    // SAFETY: `value` is readable for its size.
    unsafe {
        syscall!(
            libc::SYS_setsockopt,
            fd,
            level,
            name,
            &raw const value,
            size_of::<T>()
        )
    }
    .map(|_| ())
}

/// Sets a socket option whose value is an array; what the call returns.
pub fn set_bytes(fd: i32, level: i32, name: i32, value: &[u8]) -> Result<usize> {
    // SAFETY: `value` is readable for its length.
    unsafe {
        syscall!(
            libc::SYS_setsockopt,
            fd,
            level,
            name,
            value.as_ptr(),
            value.len()
        )
    }
}

/// The network namespace's cookie (Linux 5.14+).
pub fn netns_cookie(fd: i32) -> Result<u64> {
    option(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE)
}

/// The socket's own cookie, as sock_diag shows it.
pub fn socket_cookie(fd: i32) -> Result<u64> {
    option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// Is `fd` a TCP stream socket over IPv4 or IPv6?
pub fn is_tcp(fd: i32) -> bool {
    option::<i32>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
        && option::<i32>(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Ok(libc::SOCK_STREAM)
        && is_internet(fd)
}

/// Is `fd` a socket over IPv4 or IPv6?
pub fn is_internet(fd: i32) -> bool {
    matches!(
        option::<i32>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN),
        Ok(libc::AF_INET | libc::AF_INET6)
    )
}

/// `TCP_ESTABLISHED` of the kernel's `include/net/tcp_states.h`.
pub const TCP_ESTABLISHED: u8 = 1;

/// What the kernel counts about a TCP stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpCounts {
    /// `tcpi_state`.
    pub state: u8,
    /// Bytes that the application has taken: `tcpi_bytes_received` − `SIOCINQ`.
    pub taken: u64,
    /// Bytes that the application has written: `tcpi_bytes_sent` −
    /// `tcpi_bytes_retrans` + `tcpi_notsent_bytes`.
    pub written: u64,
}

/// Offsets in the kernel's `struct tcp_info` (include/uapi/linux/tcp.h).
const TCPI_BYTES_RECEIVED: usize = 128;
const TCPI_NOTSENT_BYTES: usize = 144;
const TCPI_BYTES_SENT: usize = 200;
const TCPI_BYTES_RETRANS: usize = 208;
const TCP_INFO_LEN: usize = 216;

/// Tries to see the receive queue standing still around `TCP_INFO`.
const COUNT_TRIES: u32 = 200;

/// Reads the kernel's counts. `TCP_INFO` is one consistent picture of what was
/// written; what was taken needs the receive queue's length too, so it is read
/// again until no data has arrived in between.
pub fn tcp_counts(fd: i32) -> Result<TcpCounts> {
    for _ in 0..COUNT_TRIES {
        let before = queue_len(fd, libc::FIONREAD)?;
        let mut info = [0u8; TCP_INFO_LEN];
        let mut len = TCP_INFO_LEN as libc::socklen_t;
        // SAFETY: `info` is writable for `len` bytes.
        unsafe {
            syscall!(
                libc::SYS_getsockopt,
                fd,
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr(),
                &raw mut len
            )
        }?;
        if len as usize != TCP_INFO_LEN {
            return Err(Errno::NOTSUP);
        }
        if queue_len(fd, libc::FIONREAD)? == before {
            let sent =
                u64_at(&info, TCPI_BYTES_SENT).wrapping_sub(u64_at(&info, TCPI_BYTES_RETRANS));
            let mut waiting = [0u8; 4];
            waiting.copy_from_slice(&info[TCPI_NOTSENT_BYTES..TCPI_NOTSENT_BYTES + 4]);
            return Ok(TcpCounts {
                state: info[0],
                taken: u64_at(&info, TCPI_BYTES_RECEIVED).wrapping_sub(before),
                written: sent.wrapping_add(u64::from(u32::from_ne_bytes(waiting))),
            });
        }
    }
    Err(Errno::AGAIN)
}

fn u64_at(bytes: &[u8; TCP_INFO_LEN], at: usize) -> u64 {
    let mut b = [0u8; 8];
    b.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(b)
}

/// Bytes in the receive (`FIONREAD`) or send (`TIOCOUTQ`) queue.
pub fn queue_len(fd: i32, what: libc::c_ulong) -> Result<u64> {
    let mut n: i32 = 0;
    // SAFETY: both requests fill one int.
    unsafe { syscall!(libc::SYS_ioctl, fd, what, &raw mut n) }?;
    Ok(u64::try_from(n).unwrap_or(0))
}

/// Has the other side ended its stream, or is the connection gone? Bytes that came before may still be unread.
pub fn has_peer_ended(fd: i32) -> bool {
    let mut p = libc::pollfd {
        fd,
        events: libc::POLLRDHUP,
        revents: 0,
    };
    let at_once = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both structures live over the call.
    let told = unsafe { syscall!(libc::SYS_ppoll, &raw mut p, 1, &raw const at_once, 0, 0) };
    told == Ok(1) && p.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// What the first byte of the receive queue is, without taking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peeked {
    /// Data is waiting.
    Data,
    /// Nothing yet.
    Nothing,
    /// The other side has ended its stream.
    End,
    /// The socket has an error pending (not consumed as data would be).
    Error(Errno),
}

/// Looks at the receive queue without taking anything.
pub fn peek(fd: i32) -> Peeked {
    let mut byte = 0u8;
    // SAFETY: one byte is writable.
    let r = unsafe {
        syscall!(
            libc::SYS_recvfrom,
            fd,
            &raw mut byte,
            1,
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
            0,
            0
        )
    };
    match r {
        Ok(0) => Peeked::End,
        Ok(_) => Peeked::Data,
        Err(Errno::AGAIN) => Peeked::Nothing,
        Err(e) => Peeked::Error(e),
    }
}

/// Credentials as the kernel vouches for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cred {
    /// Process id in our pid namespace (0 if it has none there).
    pub pid: i32,
    /// User id in our user namespace.
    pub uid: u32,
    /// Group id likewise.
    pub gid: u32,
}

/// Longest abstract name (`sun_path` less its leading NUL).
pub const NAME_MAX: usize = 107;

/// An abstract AF_UNIX name: scoped by network namespace, gone with its socket.
#[derive(Clone, Copy)]
pub struct UnixName {
    len: usize,
    bytes: [u8; NAME_MAX],
}

impl UnixName {
    /// The abstract name made of `bytes` (at most `NAME_MAX`).
    pub fn abstract_name(bytes: &[u8]) -> Result<UnixName> {
        let mut name = UnixName {
            len: bytes.len(),
            bytes: [0; NAME_MAX],
        };
        name.bytes
            .get_mut(..bytes.len())
            .ok_or(Errno::INVAL)?
            .copy_from_slice(bytes);
        Ok(name)
    }

    /// The name's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn sockaddr(&self) -> (libc::sockaddr_un, libc::socklen_t) {
        // SAFETY: an all-zero sockaddr_un is a valid value.
        let mut sun: libc::sockaddr_un = unsafe { core::mem::zeroed() };
        sun.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (dst, src) in sun.sun_path[1..].iter_mut().zip(self.as_bytes()) {
            *dst = libc::c_char::from_ne_bytes([*src]);
        }
        #[allow(clippy::cast_possible_truncation)] // at most 110
        let len = (size_of::<libc::sa_family_t>() + 1 + self.len) as libc::socklen_t;
        (sun, len)
    }
}

/// A non-blocking AF_UNIX datagram socket that learns its senders' credentials.
/// `name`: bind there; `None`: the kernel picks an abstract name.
pub fn unix_datagram(name: Option<&UnixName>) -> Result<Fd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let n = unsafe { syscall!(libc::SYS_socket, libc::AF_UNIX, kind, 0) }?;
    // SAFETY: the kernel just made this number for us.
    let fd = unsafe { Fd::from_raw(as_fd(n)) };
    set_option(fd.raw(), libc::SOL_SOCKET, libc::SO_PASSCRED, 1i32)?;
    let (sun, len) = match name {
        Some(name) => name.sockaddr(),
        None => {
            // SAFETY: an all-zero sockaddr_un is a valid value.
            let mut sun: libc::sockaddr_un = unsafe { core::mem::zeroed() };
            sun.sun_family = libc::AF_UNIX as libc::sa_family_t;
            (sun, size_of::<libc::sa_family_t>() as libc::socklen_t)
        }
    };
    // SAFETY: `sun` is readable for `len` bytes.
    unsafe { syscall!(libc::SYS_bind, fd.raw(), &raw const sun, len) }?;
    Ok(fd)
}

/// The abstract name that `fd` is bound to.
pub fn unix_name_of(fd: i32) -> Result<UnixName> {
    // SAFETY: an all-zero sockaddr_un is a valid value.
    let mut sun: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `sun` is writable for `len` bytes.
    unsafe { syscall!(libc::SYS_getsockname, fd, &raw mut sun, &raw mut len) }?;
    unix_name_from(&sun, len as usize)
}

fn unix_name_from(sun: &libc::sockaddr_un, len: usize) -> Result<UnixName> {
    let path_len = len
        .checked_sub(size_of::<libc::sa_family_t>())
        .ok_or(Errno::PROTO)?;
    let path = sun.sun_path.get(..path_len).ok_or(Errno::PROTO)?;
    if path.first() != Some(&0) {
        return Err(Errno::PROTO); // not abstract: not one of ours
    }
    let mut name = UnixName {
        len: path_len - 1,
        bytes: [0; NAME_MAX],
    };
    for (dst, src) in name.bytes.iter_mut().zip(&path[1..]) {
        [*dst] = src.to_ne_bytes();
    }
    Ok(name)
}

/// Most descriptors that one message carries. An even number: the kernel rounds the room for them up to 8 bytes.
pub const MAX_FDS: usize = 6;

const CMSG_HDR: usize = size_of::<libc::cmsghdr>();
const CMSG_CRED: usize = CMSG_HDR + 16; // struct ucred is 12 bytes, cmsg data is padded to 8
const CMSG_FDS: usize = CMSG_HDR + (MAX_FDS * 4).next_multiple_of(8);
const CONTROL_LEN: usize = CMSG_CRED + CMSG_FDS + 64; // room for what a future kernel adds

#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

/// A connection to whoever listens at an abstract name. Never waits.
pub fn unix_stream_to(name: &UnixName) -> Result<Fd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let n = unsafe { syscall!(libc::SYS_socket, libc::AF_UNIX, kind, 0) }?;
    // SAFETY: the kernel just made this number for us.
    let fd = unsafe { Fd::from_raw(as_fd(n)) };
    let (sun, len) = name.sockaddr();
    // SAFETY: `sun` is readable for `len` bytes.
    unsafe { syscall!(libc::SYS_connect, fd.raw(), &raw const sun, len) }?;
    Ok(fd)
}

/// A connection to whoever listens with SEQPACKET at a path of the file system (at most `NAME_MAX` bytes). Never waits:
/// `EAGAIN` if too many others are waiting there.
pub fn unix_seqpacket_to(path: &[u8]) -> Result<Fd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    if path.is_empty() || path.len() > NAME_MAX {
        return Err(Errno::INVAL);
    }
    // SAFETY: no pointers are passed.
    let n = unsafe { syscall!(libc::SYS_socket, libc::AF_UNIX, kind, 0) }?;
    // SAFETY: the kernel just made this number for us.
    let fd = unsafe { Fd::from_raw(as_fd(n)) };
    // SAFETY: an all-zero sockaddr_un is a valid value.
    let mut sun: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    sun.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (dst, src) in sun.sun_path.iter_mut().zip(path) {
        *dst = libc::c_char::from_ne_bytes([*src]);
    }
    // SAFETY: `sun` is readable for its length; the path ends with a NUL in it, as it is shorter than `sun_path`.
    unsafe {
        syscall!(
            libc::SYS_connect,
            fd.raw(),
            &raw const sun,
            size_of::<libc::sockaddr_un>()
        )
    }?;
    Ok(fd)
}

/// Is it a connection-oriented AF_UNIX socket whose messages keep their bounds?
pub fn is_unix_seqpacket(fd: i32) -> bool {
    option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
        && option(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Ok(libc::SOCK_SEQPACKET)
}

/// Is it a connection-oriented AF_UNIX socket that carries bytes without bounds?
pub fn is_unix_stream(fd: i32) -> bool {
    option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
        && option(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Ok(libc::SOCK_STREAM)
}

/// Two ends of a private AF_UNIX channel. Neither waits, and messages keep their bounds.
pub fn unix_channel() -> Result<(Fd, Fd)> {
    unix_pair(libc::SOCK_SEQPACKET)
}

/// Two ends of a private AF_UNIX stream. Neither waits.
pub fn unix_stream() -> Result<(Fd, Fd)> {
    unix_pair(libc::SOCK_STREAM)
}

/// Sends one byte to the connected peer. Never blocks, even if the peer has changed the flags of the file; never raises
/// SIGPIPE.
pub fn send_byte(sock: i32) -> Result<()> {
    let byte = 1u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one byte that lives until the call returns; no address.
    unsafe { syscall!(libc::SYS_sendto, sock, &raw const byte, 1, flags, 0, 0) }.map(|_| ())
}

/// Makes an edge at the other end of a pair, without sending anything: shuts the receiving side of this end, again if it has
/// been shut before. The kernel tells those who wait for the other end that its state has changed, even if it has not, and an
/// edge-triggered epoll set then reports whatever is true of it. Both ends can still send; this one can no longer receive.
/// Never blocks.
pub fn make_edge(sock: i32) -> Result<()> {
    // SAFETY: no pointers are passed.
    unsafe { syscall!(libc::SYS_shutdown, sock, libc::SHUT_RD) }.map(|_| ())
}

/// Takes up to 256 bytes that have come and forgets them. Never blocks.
pub fn discard(sock: i32) -> Result<usize> {
    let mut bytes = [0u8; 256];
    let (at, len) = (bytes.as_mut_ptr(), bytes.len());
    // SAFETY: the array lives until the call returns; no address is asked for.
    unsafe { syscall!(libc::SYS_recvfrom, sock, at, len, libc::MSG_DONTWAIT, 0, 0) }
}

fn unix_pair(kind: i32) -> Result<(Fd, Fd)> {
    let kind = kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let mut ends = [0i32; 2];
    // SAFETY: `ends` has room for two descriptors.
    unsafe {
        syscall!(
            libc::SYS_socketpair,
            libc::AF_UNIX,
            kind,
            0,
            ends.as_mut_ptr()
        )
    }?;
    // SAFETY: the kernel just made these numbers for us.
    Ok(unsafe { (Fd::from_raw(ends[0]), Fd::from_raw(ends[1])) })
}

/// Is the network interface of this name up, in the network namespace of this socket? (`SIOCGIFFLAGS`, netdevice(7).)
pub fn interface_is_up(fd: i32, name: &[u8]) -> Result<bool> {
    // SAFETY: an all-zero `ifreq` is a valid value.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    // The last byte stays NUL.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    // SAFETY: the call reads the name and writes the flags of a structure that is alive and as long as it expects.
    unsafe { syscall!(libc::SYS_ioctl, fd, libc::SIOCGIFFLAGS, &raw mut request) }?;
    // SAFETY: the call has succeeded: it has written this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(i32::from(flags) & libc::IFF_UP != 0)
}

/// Has the other end of a connected socket been closed, by everybody who had it?
pub fn has_hung_up(fd: i32) -> bool {
    let mut asked = libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    };
    let at_once = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: one pollfd, writable; a time that is readable; no signal mask.
    let n = unsafe { syscall!(libc::SYS_ppoll, &raw mut asked, 1, &raw const at_once, 0, 0) };
    n.is_ok() && asked.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
}

/// Who connected an AF_UNIX socket, or listened for it, by the kernel's word. The process is zero if it is of a namespace that this
/// one cannot see into.
pub fn peer_cred(fd: i32) -> Result<Cred> {
    // As `ucred`: process, user, group.
    let [pid, uid, gid]: [u32; 3] = option(fd, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
    let pid = pid.cast_signed();
    Ok(Cred { pid, uid, gid })
}

/// The user at the other end of a connected AF_UNIX socket, by the kernel's word.
pub fn peer_uid(fd: i32) -> Result<u32> {
    Ok(peer_cred(fd)?.uid)
}

/// `SO_PEERPIDFD` (include/uapi/asm-generic/socket.h), since Linux 6.5.
const SO_PEERPIDFD: i32 = 77;

/// A pidfd of the process that connected an AF_UNIX socket, or that listened for it. It stays that process's whatever becomes of
/// its number.
///
/// # Errors
/// `ESRCH`: the process has ended, or is of a process namespace that this one cannot see into.
pub fn peer_pidfd(fd: i32) -> Result<Fd> {
    if let Ok(pidfd) = option::<i32>(fd, libc::SOL_SOCKET, SO_PEERPIDFD) {
        // SAFETY: a new descriptor, nobody else's.
        return Ok(unsafe { Fd::from_raw(pidfd) });
    }
    // An older kernel: by its number.
    let pid = peer_cred(fd)?.pid;
    if pid <= 0 {
        return Err(Errno(libc::ESRCH));
    }
    // SAFETY: two numbers.
    let pidfd = as_fd(unsafe { syscall!(libc::SYS_pidfd_open, pid, 0) }?);
    // SAFETY: a new descriptor, nobody else's.
    let pidfd = unsafe { Fd::from_raw(pidfd) };
    // While the connection stands, its process lives, so its number was not another one's.
    match has_hung_up(fd) {
        true => Err(Errno(libc::ESRCH)),
        false => Ok(pidfd),
    }
}

/// Sends `data` with `fds` to `to`. Never blocks, never raises SIGPIPE.
pub fn send_with_fds(sock: i32, to: &UnixName, data: &[u8], fds: &[i32]) -> Result<()> {
    send_message(sock, Some(to), data, fds)
}

/// Sends `data` with `fds` to the connected peer. Never blocks, never raises SIGPIPE.
pub fn send_to_peer(sock: i32, data: &[u8], fds: &[i32]) -> Result<()> {
    send_message(sock, None, data, fds)
}

fn send_message(sock: i32, to: Option<&UnixName>, data: &[u8], fds: &[i32]) -> Result<()> {
    if fds.len() > MAX_FDS {
        return Err(Errno::INVAL);
    }
    let mut name = to.map(UnixName::sockaddr);
    let mut iov = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    let mut control = Control([0; CONTROL_LEN]);
    // SAFETY: an all-zero msghdr is a valid value.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    if let Some((sun, len)) = &mut name {
        msg.msg_name = core::ptr::from_mut(sun).cast();
        msg.msg_namelen = *len;
    }
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    if !fds.is_empty() {
        let hdr = libc::cmsghdr {
            cmsg_len: CMSG_HDR + fds.len() * 4,
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        };
        // SAFETY: `control` is aligned for a cmsghdr and has room for it and MAX_FDS ints behind it.
        unsafe {
            let at = control.0.as_mut_ptr();
            at.cast::<libc::cmsghdr>().write(hdr);
            for (i, fd) in fds.iter().enumerate() {
                at.add(CMSG_HDR + 4 * i).cast::<i32>().write(*fd);
            }
        }
        msg.msg_control = control.0.as_mut_ptr().cast();
        msg.msg_controllen = CMSG_HDR + (fds.len() * 4).next_multiple_of(8);
    }
    // SAFETY: every pointer in `msg` lives over the call and has the length stated.
    unsafe {
        syscall!(
            libc::SYS_sendmsg,
            sock,
            &raw const msg,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL
        )
    }
    .map(|_| ())
}

/// A received message's envelope.
pub struct Received {
    /// Bytes of the message that fitted; `None` if it was longer than the buffer.
    pub len: Option<usize>,
    /// Who sent it, by the kernel's word.
    pub cred: Cred,
    /// Where it came from, to answer to.
    pub from: Option<UnixName>,
    /// Descriptors that came along (closed when dropped).
    pub fds: [Option<Fd>; MAX_FDS],
}

/// Takes one message. Never blocks. Descriptors beyond `MAX_FDS` are closed by the kernel.
pub fn recv_with_fds(sock: i32, buf: &mut [u8]) -> Result<Received> {
    let mut iov = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    let mut control = Control([0; CONTROL_LEN]);
    // SAFETY: an all-zero sockaddr_un and msghdr are valid values.
    let (mut sun, mut msg): (libc::sockaddr_un, libc::msghdr) = unsafe { core::mem::zeroed() };
    msg.msg_name = (&raw mut sun).cast();
    msg.msg_namelen = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.0.as_mut_ptr().cast();
    msg.msg_controllen = CMSG_CRED + CMSG_FDS;
    // SAFETY: every pointer in `msg` lives over the call and has the length stated.
    let n = unsafe {
        syscall!(
            libc::SYS_recvmsg,
            sock,
            &raw mut msg,
            libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC
        )
    }?;
    let mut got = Received {
        len: Some(n),
        cred: Cred::default(),
        from: None,
        fds: [const { None }; MAX_FDS],
    };
    take_control(&control, msg.msg_controllen, &mut got);
    if msg.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        got.len = None;
    }
    got.from = unix_name_from(&sun, msg.msg_namelen as usize).ok();
    Ok(got)
}

fn take_control(control: &Control, len: usize, got: &mut Received) {
    let mut at = 0;
    let mut slot = 0;
    while at + CMSG_HDR <= len.min(CONTROL_LEN) {
        // SAFETY: within `control`, aligned to 8 as every cmsg is.
        let hdr = unsafe { control.0.as_ptr().add(at).cast::<libc::cmsghdr>().read() };
        if hdr.cmsg_len < CMSG_HDR || at + hdr.cmsg_len > len.min(CONTROL_LEN) {
            return;
        }
        let data = &control.0[at + CMSG_HDR..at + hdr.cmsg_len];
        match (hdr.cmsg_level, hdr.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for raw in data.chunks_exact(4) {
                    // SAFETY: the kernel installed this descriptor for us just now.
                    let fd = unsafe {
                        Fd::from_raw(i32::from_ne_bytes([raw[0], raw[1], raw[2], raw[3]]))
                    };
                    if let Some(place) = got.fds.get_mut(slot) {
                        *place = Some(fd);
                        slot += 1;
                    }
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if data.len() >= 12 => {
                let word =
                    |i: usize| u32::from_ne_bytes([data[i], data[i + 1], data[i + 2], data[i + 3]]);
                got.cred = Cred {
                    pid: word(0).cast_signed(),
                    uid: word(4),
                    gid: word(8),
                };
            }
            _ => {}
        }
        at += hdr.cmsg_len.next_multiple_of(8);
    }
}
