//! Packet sockets: a copy of each frame that an interface takes in, and a way to have it send others (packet(7)).
//!
//! The kernel's own stack gets the frames too: give the interface no address, or the host answers as well.

use super::kernel::{Interface, Kind};
use super::tap::{errno, name_of};
use memlane_sys::iov::Told;
use memlane_sys::sock::set_option;
use memlane_sys::{Errno, Result};
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, netdevice, socket_with};
use std::os::fd::AsRawFd;

/// `SOL_PACKET` and its options (`linux/if_packet.h`).
const SOL_PACKET: i32 = 263;
const AUXDATA: i32 = 8;
const VNET_HDR: i32 = 15;
const IGNORE_OUTGOING: i32 = 23;
/// `ETH_P_ALL`.
const ALL: u16 = 3;
/// `TP_STATUS_VLAN_VALID`, `TP_STATUS_VLAN_TPID_VALID`.
const VLAN_VALID: u32 = 1 << 4;
const TPID_VALID: u32 = 1 << 6;

/// What the kernel puts into the queue of a socket before it drops frames.
const QUEUE: i32 = 4 << 20;

/// `struct sockaddr_ll`: a link layer address, to bind to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Address {
    family: u16,
    protocol: u16,
    index: i32,
    rest: [u8; 12],
}

impl Address {
    fn of(index: i32) -> Address {
        Address {
            family: AddressFamily::PACKET.as_raw(),
            protocol: ALL.to_be(),
            index,
            rest: [0; 12],
        }
    }
}

// SAFETY: the pointer is to a whole `sockaddr_ll`, of its length, for the time of the call.
unsafe impl SocketAddrArg for Address {
    unsafe fn with_sockaddr<R>(
        &self,
        call: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        const LEN: SocketAddrLen = 20;
        const _: () = assert!(size_of::<Address>() == LEN as usize);
        call((&raw const *self).cast(), LEN)
    }
}

/// The VLAN tag that the kernel has taken out of a frame, as it lay there (`struct tpacket_auxdata`: status, len,
/// snaplen u32, mac, net, vlan_tci, vlan_tpid u16).
pub(super) fn tag_of(told: Told) -> Option<[u8; 4]> {
    let data = told.data;
    let pair = |at: usize| u16::from_ne_bytes([data[at], data[at + 1]]);
    let status = u32::from_ne_bytes([data[0], data[1], data[2], data[3]]);
    let auxdata = (told.level, told.kind) == (SOL_PACKET, AUXDATA);
    if !auxdata || status & VLAN_VALID == 0 {
        return None;
    }
    let kind = if status & TPID_VALID == 0 {
        0x8100
    } else {
        pair(18)
    };
    let [a, b] = kind.to_be_bytes();
    let [c, d] = pair(16).to_be_bytes();
    Some([a, b, c, d])
}

/// A packet socket on an interface.
///
/// # Errors
/// The kernel's: EPERM (no `CAP_NET_RAW`), ENODEV (no such interface), EINVAL (no name of one).
pub fn open(device: &str) -> Result<Interface> {
    name_of(device).ok_or(Errno::INVAL)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol nothing comes until it is bound: nothing of other interfaces.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(errno)?;
    let fd = socket.as_raw_fd();
    let index = netdevice::name_to_index(&socket, device).map_err(errno)?;
    set_option(fd, SOL_PACKET, VNET_HDR, 1_i32)?;
    set_option(fd, SOL_PACKET, AUXDATA, 1_i32)?;
    set_option(fd, SOL_PACKET, IGNORE_OUTGOING, 1_i32)?;
    // SO_RCVBUFFORCE, for which root is needed; SO_RCVBUF gives what is allowed.
    let _ = set_option(fd, 1, 33, QUEUE).or_else(|_| set_option(fd, 1, 8, QUEUE));
    let index = i32::try_from(index).map_err(|_| Errno::INVAL)?;
    bind(&socket, &Address::of(index)).map_err(errno)?;
    Ok(Interface::new(
        socket,
        Kind::Socket,
        format!("afpacket:{device}"),
    ))
}
