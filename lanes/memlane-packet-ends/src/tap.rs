//! TAP devices: interfaces of the kernel whose other side is a descriptor (`linux/if_tun.h`).

use super::kernel::{DescriptorKind, Interface};
use memlane_packet::Offloads;
use memlane_sys::{Errno, Result};
use rustix::fs::{Mode, OFlags, open};
use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl, opcode};
use std::os::fd::OwnedFd;

/// `IFF_TAP`, `IFF_NO_PI`, `IFF_VNET_HDR`, `IFF_MULTI_QUEUE`.
const TAP: u16 = 0x0002;
const NO_PI: u16 = 0x1000;
const VNET_HDR: u16 = 0x4000;
const MULTI_QUEUE: u16 = 0x0100;
/// `TUNSETIFF`, `TUNSETOFFLOAD`, `TUNSETVNETHDRSZ`.
const SET_INTERFACE: Opcode = opcode::write::<i32>(b'T', 202);
const SET_OFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);
const SET_HEADER_LEN: Opcode = opcode::write::<i32>(b'T', 216);
/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6`.
const CSUM: usize = 1;
const TSO4: usize = 2;
const TSO6: usize = 4;

/// Bytes of an interface's name with its NUL (`IFNAMSIZ`).
const NAME: usize = 16;

/// `struct ifreq`, as far as `TUNSETIFF` uses it.
#[repr(C)]
struct Request {
    name: [u8; NAME],
    flags: u16,
    rest: [u8; 22],
}

/// A name of an interface, as the kernel takes it; `None`: it is none.
pub(super) fn name_of(text: &str) -> Option<[u8; NAME]> {
    let wrong = |c: u8| c == b'/' || c == b':' || c == b'%' || !c.is_ascii_graphic();
    if text.is_empty()
        || text.len() >= NAME
        || text.bytes().any(wrong)
        || text == "."
        || text == ".."
    {
        return None;
    }
    let mut name = [0; NAME];
    name[..text.len()].copy_from_slice(text.as_bytes());
    Some(name)
}

/// Opens `queues` queues of a TAP device, which is made if there is none of that name, and then goes with its last
/// queue.
/// What it may ask for is said by [`limit`](super::End::limit).
///
/// # Errors
/// The kernel's: EPERM (no `CAP_NET_ADMIN`, and not its owner), EBUSY (another process has it), EINVAL (no such name,
/// or a device of another kind: one of several queues for one, …), ENOENT (no `/dev/net/tun`).
pub fn open_queues(device: &str, queues: u16) -> Result<Vec<Interface>> {
    let name = name_of(device).ok_or(Errno::INVAL)?;
    let one = TAP | NO_PI | VNET_HDR;
    let mut found = Vec::new();
    for n in 0..queues.max(1) {
        let several = queues > 1;
        let fd = match attach(name, if several { one | MULTI_QUEUE } else { one }) {
            // A device that was made for several queues must be opened as one of several.
            Err(Errno::INVAL) if !several => attach(name, one | MULTI_QUEUE)?,
            fd => fd?,
        };
        let label = match several {
            true => format!("tap:{device}/{n}"),
            false => format!("tap:{device}"),
        };
        found.push(Interface::new(fd, DescriptorKind::Device, label));
    }
    Ok(found)
}

fn attach(name: [u8; NAME], flags: u16) -> Result<OwnedFd> {
    let how = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = open("/dev/net/tun", how, Mode::empty()).map_err(errno)?;
    let mut request = Request {
        name,
        flags,
        rest: [0; 22],
    };
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which this is.
    unsafe { ioctl(&fd, Updater::<SET_INTERFACE, Request>::new(&mut request)) }.map_err(errno)?;
    // An earlier user may have left another length: it is the device's, as the offloads are.
    let mut len = i32::try_from(super::vnet::LEN).unwrap_or(0);
    // SAFETY: TUNSETVNETHDRSZ reads an int.
    unsafe { ioctl(&fd, Updater::<SET_HEADER_LEN, i32>::new(&mut len)) }.map_err(errno)?;
    Ok(fd)
}

/// From now on, frames that come from a TAP device may ask for what `takes` says, and for no more.
///
/// # Errors
/// The kernel's.
pub(super) fn set_offloads(interface: &Interface, takes: Offloads) -> Result<()> {
    let bit = |set, bit| if set { bit } else { 0 };
    let value = CSUM | bit(takes.gso4, TSO4) | bit(takes.gso6, TSO6);
    // SAFETY: TUNSETOFFLOAD takes its value as the argument itself.
    let done = unsafe {
        ioctl(
            interface.fd(),
            IntegerSetter::<SET_OFFLOAD>::new_usize(value),
        )
    };
    done.map_err(errno)
}

pub(super) fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_kernel_s() {
        assert_eq!(&name_of("tap0").unwrap()[..5], b"tap0\0");
        assert!(name_of("a23456789012345").is_some());
        for wrong in [
            "",
            "a234567890123456",
            "a/b",
            "a b",
            "a:1",
            "tap%d",
            "ä",
            ".",
            "..",
        ] {
            assert_eq!(name_of(wrong), None, "{wrong}");
        }
    }

    /// Numbers from `linux/if_tun.h`, as x86-64 and arm64 compile them.
    #[test]
    fn requests_are_the_kernel_s() {
        assert_eq!(SET_INTERFACE, 0x4004_54ca);
        assert_eq!(SET_OFFLOAD, 0x4004_54d0);
        assert_eq!(SET_HEADER_LEN, 0x4004_54d8);
        assert_eq!(size_of::<Request>(), 40);
    }
}
