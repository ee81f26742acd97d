//! Packet sockets: a copy of each frame that an interface takes in, and a way to have it send others (packet(7)).
//!
//! The kernel's own stack gets the frames too: give the interface no address, or the host answers as well.
//!
//! Several queues are several sockets that share what comes (`PACKET_FANOUT`): the kernel's hash of a flow's addresses
//! and ports says which one gets a frame, the same for both directions of a flow. A frame goes by the queue that it was
//! given to.
//!
//! An interface that goes down may come up again: the socket goes on then. One that is removed says `ENETDOWN`, as one
//! that goes down does, and then nothing for ever; so after that word we look from time to time whether it still exists.

use super::kernel::{DescriptorKind, Interface};
use super::tun::{errno, name_of};
use memlane_sys::iov::ControlMessage;
use memlane_sys::sock::{option, set_option};
use memlane_sys::{Errno, Result};
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, netdevice, socket_with};
use std::os::fd::{AsRawFd, OwnedFd};

/// `SOL_PACKET` and its options (`linux/if_packet.h`).
const SOL_PACKET: i32 = 263;
const AUXDATA: i32 = 8;
const VNET_HDR: i32 = 15;
const FANOUT: i32 = 18;
const IGNORE_OUTGOING: i32 = 23;
/// Of `PACKET_FANOUT`, above the group's 16 bits: by hash, `FLAG_UNIQUEID` (the kernel finds a number for the group),
/// `FLAG_IGNORE_OUTGOING` (the socket's own option does not count in a group).
const FANOUT_HASH: u32 = 0;
const FANOUT_NEW: u32 = 0x2000 << 16;
const FANOUT_INCOMING: u32 = 0x4000 << 16;
/// `SOL_SOCKET`; `SO_ATTACH_FILTER`, `SO_DETACH_FILTER` (`asm-generic/socket.h`).
const SOL_SOCKET: i32 = 1;
const ATTACH_FILTER: i32 = 26;
const DETACH_FILTER: i32 = 27;
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
pub(super) fn tag_of(told: ControlMessage) -> Option<[u8; 4]> {
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

/// `struct sock_filter`, one instruction of classic BPF; `struct sock_fprog`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    jumps: [u8; 2],
    value: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Program {
    len: u16,
    first: *const Instruction,
}

/// `BPF_RET | BPF_K`, 0 bytes: nothing is taken in.
static NOTHING: Instruction = Instruction {
    code: 0x06,
    jumps: [0; 2],
    value: 0,
};

/// A packet socket on an interface.
///
/// # Errors
/// The kernel's: EPERM (no `CAP_NET_RAW`), ENODEV (no such interface), EINVAL (no name of one).
pub fn open(device: &str) -> Result<Interface> {
    let (socket, index) = socket_on(device, false)?;
    let kind = DescriptorKind::Socket { index };
    Ok(Interface::new(socket, kind, format!("afpacket:{device}")))
}

/// Several, which share what comes by flows.
///
/// # Errors
/// As [`open`].
pub fn open_queues(device: &str, queues: u16) -> Result<Vec<Interface>> {
    if queues <= 1 {
        return Ok(vec![open(device)?]);
    }
    let mut sockets = Vec::new();
    let mut group = FANOUT_NEW;
    for _ in 0..queues {
        let (socket, index) = socket_on(device, true)?;
        let fd = socket.as_raw_fd();
        let how = group | FANOUT_HASH << 16 | FANOUT_INCOMING;
        set_option(fd, SOL_PACKET, FANOUT, how)?;
        // What the kernel has called it, for the others.
        group = option::<u32>(fd, SOL_PACKET, FANOUT)? & 0xffff;
        sockets.push((socket, index));
    }
    // Deaf until all were in the group: no frame came to two of them.
    let mut found = Vec::new();
    for (n, (socket, index)) in sockets.into_iter().enumerate() {
        set_option(socket.as_raw_fd(), SOL_SOCKET, DETACH_FILTER, 0_i32)?;
        let label = format!("afpacket:{device}/{n}");
        found.push(Interface::new(
            socket,
            DescriptorKind::Socket { index },
            label,
        ));
    }
    Ok(found)
}

/// A socket that is bound to an interface, and the interface's number; `deaf`: nothing comes yet.
fn socket_on(device: &str, deaf: bool) -> Result<(OwnedFd, u32)> {
    name_of(device).ok_or(Errno::INVAL)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol nothing comes until it is bound: nothing of other interfaces.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(errno)?;
    let fd = socket.as_raw_fd();
    let index = netdevice::name_to_index(&socket, device).map_err(errno)?;
    set_option(fd, SOL_PACKET, VNET_HDR, 1_i32)?;
    set_option(fd, SOL_PACKET, AUXDATA, 1_i32)?;
    set_option(fd, SOL_PACKET, IGNORE_OUTGOING, 1_i32)?;
    if deaf {
        let program = Program {
            len: 1,
            first: &raw const NOTHING,
        };
        set_option(fd, SOL_SOCKET, ATTACH_FILTER, program)?;
    }
    // SO_RCVBUFFORCE, for which root is needed; SO_RCVBUF gives what is allowed.
    let _ = set_option(fd, SOL_SOCKET, 33, QUEUE).or_else(|_| set_option(fd, SOL_SOCKET, 8, QUEUE));
    let number = i32::try_from(index).map_err(|_| Errno::INVAL)?;
    bind(&socket, &Address::of(number)).map_err(errno)?;
    Ok((socket, index))
}
