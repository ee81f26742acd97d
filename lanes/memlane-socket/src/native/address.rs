//! Addresses, as `core` and as the kernel have them; sockets.

use super::retried;
use super::start::start;
use crate::real;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use libc::{sockaddr, socklen_t};
use memlane_sys::fd::Fd;
use memlane_sys::sock::{Addr, local_addr, remote_addr};
use memlane_sys::{Errno, Result};

#[derive(Clone, Copy)]
pub(super) enum Address {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl Address {
    #[allow(clippy::cast_possible_truncation)] // 2 and 10
    pub(super) fn new(from: &SocketAddr) -> Address {
        match from {
            SocketAddr::V4(v4) => Address::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Address::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }

    #[allow(clippy::cast_possible_truncation)] // 16 and 28
    pub(super) fn as_raw(&self) -> (*const sockaddr, socklen_t) {
        match self {
            Address::V4(v4) => (
                core::ptr::from_ref(v4).cast(),
                size_of::<libc::sockaddr_in>() as socklen_t,
            ),
            Address::V6(v6) => (
                core::ptr::from_ref(v6).cast(),
                size_of::<libc::sockaddr_in6>() as socklen_t,
            ),
        }
    }

    fn family(&self) -> i32 {
        match self {
            Address::V4(_) => libc::AF_INET,
            Address::V6(_) => libc::AF_INET6,
        }
    }
}

pub(super) fn socket(of: &Address) -> Result<Fd> {
    start();
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let fd = retried(|| real!(socket(of.family(), kind, libc::IPPROTO_TCP)))?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { Fd::from_raw(fd) })
}

/// Gives it a name, and listens there.
pub(super) fn bind(fd: &Fd, at: &Address) -> Result<()> {
    let (at, len) = at.as_raw();
    // SAFETY: an address of this length, which lives over the call.
    unsafe { memlane_sys::syscall!(libc::SYS_bind, fd.raw(), at, len) }?;
    retried(|| real!(listen(fd.raw(), 128))).map(|_| ())
}

pub(super) fn local(fd: &Fd) -> Result<SocketAddr> {
    as_core(fd, &local_addr(fd.raw())?)
}

pub(super) fn remote(fd: &Fd) -> Result<SocketAddr> {
    as_core(fd, &remote_addr(fd.raw())?)
}

fn as_core(fd: &Fd, addr: &Addr) -> Result<SocketAddr> {
    let v6 = Ipv6Addr::from(addr.ip);
    let family: i32 = memlane_sys::sock::option(fd.raw(), libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    let ip = match (v6.to_ipv4_mapped(), family) {
        (Some(v4), libc::AF_INET) => IpAddr::V4(v4),
        (_, libc::AF_INET6) => IpAddr::V6(v6),
        _ => return Err(Errno::INVAL),
    };
    Ok(SocketAddr::new(ip, addr.port))
}
