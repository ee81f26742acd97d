//! sock_diag: what the kernel says about the *other* end of a TCP connection.
//!
//! Layouts: include/uapi/linux/{netlink,sock_diag,inet_diag}.h. Exact lookups
//! need no privilege and answer in ~5 µs.

use crate::errno::{Errno, Result};
use crate::fd::{Fd, as_fd};
use crate::sock::{Addr, Tuple};
use crate::syscall;

/// What sock_diag says of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiagSocket {
    /// `idiag_state` (1 = ESTABLISHED).
    pub state: u8,
    /// Owner of the socket.
    pub uid: u32,
    /// Inode, as `fstat` of a descriptor of it shows.
    pub inode: u32,
    /// Cookie, as `SO_COOKIE` shows.
    pub cookie: u64,
}

/// `SOCK_DIAG_BY_FAMILY` of include/uapi/linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
/// nlmsghdr 16 + inet_diag_req_v2 56.
const REQUEST_LEN: usize = 72;
/// nlmsghdr 16 + inet_diag_msg 72.
const REPLY_MIN: usize = 88;

/// Asks the kernel of this network namespace for the socket whose own view of
/// the connection is `tuple` (IPv4 or IPv6 by `v4`).
pub fn lookup_tcp(tuple: &Tuple, v4: bool) -> Result<DiagSocket> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let n = unsafe {
        syscall!(
            libc::SYS_socket,
            libc::AF_NETLINK,
            kind,
            libc::NETLINK_SOCK_DIAG
        )
    }?;
    // SAFETY: the kernel just made this number for us.
    let nl = unsafe { Fd::from_raw(as_fd(n)) };
    let request = build_request(tuple, v4);
    // SAFETY: `request` is readable for its length; a netlink socket needs no address to reach the kernel.
    unsafe {
        syscall!(
            libc::SYS_sendto,
            nl.raw(),
            request.as_ptr(),
            request.len(),
            0,
            0,
            0
        )
    }?;
    let mut reply = [0u8; 1024];
    // The kernel answers within sendto: no wait is needed, so none is made.
    // SAFETY: `reply` is writable for its length.
    let len = unsafe {
        syscall!(
            libc::SYS_recvfrom,
            nl.raw(),
            reply.as_mut_ptr(),
            reply.len(),
            libc::MSG_DONTWAIT,
            0,
            0
        )
    }?;
    parse_reply(reply.get(..len).ok_or(Errno::PROTO)?, tuple, v4)
}

/// Builds an exact (not dump) inet_diag_req_v2.
pub fn build_request(tuple: &Tuple, v4: bool) -> [u8; REQUEST_LEN] {
    let mut b = [0u8; REQUEST_LEN];
    b[0..4].copy_from_slice(&(REQUEST_LEN as u32).to_ne_bytes());
    b[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    b[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    b[16] = if v4 {
        libc::AF_INET as u8
    } else {
        libc::AF_INET6 as u8
    };
    b[17] = libc::IPPROTO_TCP as u8;
    b[20..24].copy_from_slice(&u32::MAX.to_ne_bytes()); // any state
    b[24..26].copy_from_slice(&tuple.local.port.to_be_bytes());
    b[26..28].copy_from_slice(&tuple.remote.port.to_be_bytes());
    write_ip(&mut b[28..44], &tuple.local, v4);
    write_ip(&mut b[44..60], &tuple.remote, v4);
    b[64..72].fill(0xff); // INET_DIAG_NOCOOKIE
    b
}

fn write_ip(out: &mut [u8], addr: &Addr, v4: bool) {
    if v4 {
        out[..4].copy_from_slice(&addr.ip[12..]);
    } else {
        out.copy_from_slice(&addr.ip);
    }
}

/// Parses the reply; checks that it speaks of the connection that was asked for
/// (a lookup can also answer with the listener).
pub fn parse_reply(b: &[u8], tuple: &Tuple, v4: bool) -> Result<DiagSocket> {
    let u32_at = |at: usize| -> Result<u32> {
        let s = b.get(at..at + 4).ok_or(Errno::PROTO)?;
        Ok(u32::from_ne_bytes([s[0], s[1], s[2], s[3]]))
    };
    let kind = u32_at(4)? & 0xffff;
    if kind == u32::from(NLMSG_ERROR) {
        let code = u32_at(16)?.cast_signed();
        return Err(Errno(if code < 0 {
            code.wrapping_neg()
        } else {
            libc::EPROTO
        }));
    }
    if kind != u32::from(SOCK_DIAG_BY_FAMILY) || b.len() < REPLY_MIN {
        return Err(Errno::PROTO);
    }
    // inet_diag_msg starts at 16: family, state, timer, retrans, then id at 20.
    let mut want = [0u8; 36];
    want[0..2].copy_from_slice(&tuple.local.port.to_be_bytes());
    want[2..4].copy_from_slice(&tuple.remote.port.to_be_bytes());
    write_ip(&mut want[4..20], &tuple.local, v4);
    write_ip(&mut want[20..36], &tuple.remote, v4);
    if b[20..56] != want {
        return Err(Errno::NOENT);
    }
    Ok(DiagSocket {
        state: b[17],
        cookie: u64::from(u32_at(60)?) | u64::from(u32_at(64)?) << 32,
        uid: u32_at(80)?,
        inode: u32_at(84)?,
    })
}
