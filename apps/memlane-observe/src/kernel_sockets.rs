//! Addresses from the kernel's own socket table, `/proc/PID/net/tcp{,6}`.
//!
//! A process writes addresses to its stats page once it has asked the kernel for them. For connections whose addresses
//! it has not asked for, this table has them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use crate::page::plain;

/// `st` of a listening socket: `TCP_LISTEN` of the kernel's `include/net/tcp_states.h`.
const LISTEN: u8 = 0x0a;

/// One TCP socket, as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its own address.
    pub local: SocketAddr,
    /// The peer's address; port 0 for a socket that is not connected.
    pub peer: SocketAddr,
    /// Whether it listens.
    pub listening: bool,
}

/// The kernel's TCP sockets. Each network namespace is read once, when it is first needed.
#[derive(Default, Debug)]
pub struct KernelSockets {
    /// By network namespace (the link target of `/proc/PID/ns/net`), then by inode.
    by_netns: HashMap<PathBuf, HashMap<u64, Socket>>,
}

impl KernelSockets {
    /// Inode and addresses of the TCP socket behind descriptor `fd` of process `pid`. `None`: the descriptor is no TCP
    /// socket, or this user may not look.
    pub fn find(&mut self, pid: u32, fd: u32) -> Option<(u64, Socket)> {
        let link = std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
        let inode = link
            .to_str()?
            .strip_prefix("socket:[")?
            .strip_suffix(']')?
            .parse()
            .ok()?;
        let netns = std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
        let sockets = self.by_netns.entry(netns).or_insert_with(|| read(pid));
        Some((inode, *sockets.get(&inode)?))
    }
}

fn read(pid: u32) -> HashMap<u64, Socket> {
    ["tcp", "tcp6"]
        .iter()
        .filter_map(|name| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).ok())
        .flat_map(|text| text.lines().skip(1).filter_map(parse).collect::<Vec<_>>())
        .collect()
}

fn parse(line: &str) -> Option<(u64, Socket)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let socket = Socket {
        local: address(fields.get(1)?)?,
        peer: address(fields.get(2)?)?,
        listening: u8::from_str_radix(fields.get(3)?, 16).ok()? == LISTEN,
    };
    Some((fields.get(9)?.parse().ok()?, socket))
}

/// Parses `0100007F:1F90`: the address as words in memory order, the port in host order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |i: usize| {
        let digits = ip.get(8 * i..8 * i + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            plain(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_line_of_the_kernels_table_is_understood_in_both_families() {
        let v4 = "   1: 0100007F:1F90 0200007F:C350 01 00000000:00000000 00:00000000 00000000  \
                  1000        0 4711 1 0000000000000000 20 4 30 10 -1";
        let (inode, socket) = parse(v4).unwrap();
        assert_eq!(inode, 4711);
        assert_eq!(socket.local, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(socket.peer, "127.0.0.2:50000".parse().unwrap());
        assert!(!socket.listening);
        let v6 = address("00000000000000000000000001000000:0050");
        assert_eq!(v6, Some("[::1]:80".parse().unwrap()));
        let mapped = address("0000000000000000FFFF00000100007F:0050");
        assert_eq!(mapped, Some("127.0.0.1:80".parse().unwrap()));
    }

    #[test]
    fn a_broken_line_is_skipped() {
        for line in [
            "",
            "1:",
            "1: zz:zz x y",
            "1: é100007F:1F90 0:0 01",
            "1: 01:02 03:04 05",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn our_own_sockets_are_found_by_descriptor() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let stream = TcpStream::connect(at).unwrap();
        let fd = |raw: i32| u32::try_from(raw).unwrap();
        let mut sockets = KernelSockets::default();
        let pid = std::process::id();
        let (_, found) = sockets.find(pid, fd(stream.as_raw_fd())).unwrap();
        assert_eq!(found.peer, at);
        assert_eq!(found.local, stream.local_addr().unwrap());
        let (_, found) = sockets.find(pid, fd(listener.as_raw_fd())).unwrap();
        assert!(found.listening);
        assert_eq!(sockets.find(pid, 1_000_000), None);
    }
}
