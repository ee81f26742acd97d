//! The requests of `/dev/net/tun` (`linux/if_tun.h`), whose descriptors are the other side of TAP devices.

use super::vnet;
use memlane_packet::Offloads;
use memlane_sys::iov::{self, Piece};
use memlane_sys::{Errno, Result};
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, major, minor, open};
use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl, opcode};
use std::os::fd::{AsRawFd, OwnedFd};

/// `IFF_TAP`, `IFF_NO_PI`, `IFF_VNET_HDR`, `IFF_MULTI_QUEUE`.
pub(super) const TAP: u16 = 0x0002;
const NO_PI: u16 = 0x1000;
const VNET_HDR: u16 = 0x4000;
pub(super) const MULTI_QUEUE: u16 = 0x0100;
/// Whole frames behind a [`vnet`] header.
pub(super) const FRAMES: u16 = TAP | NO_PI | VNET_HDR;
/// Numbers of the character device `/dev/net/tun` (Linux's `devices.txt`: misc, `TUN_MINOR`).
const TUN: (u32, u32) = (10, 200);
/// `TUNSETIFF`, `TUNGETIFF`, `TUNSETOFFLOAD`, `TUNSETVNETHDRSZ`.
const SET_INTERFACE: Opcode = opcode::write::<i32>(b'T', 202);
const GET_INTERFACE: Opcode = opcode::read::<u32>(b'T', 210);
const SET_OFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);
const SET_HEADER_LEN: Opcode = opcode::write::<i32>(b'T', 216);
/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6`.
const CSUM: usize = 1;
const TSO4: usize = 2;
const TSO6: usize = 4;

/// EOPNOTSUPP.
const NOT_SUPPORTED: Errno = Errno(95);

/// Bytes of an interface's name with its NUL (`IFNAMSIZ`).
const NAME: usize = 16;

/// `struct ifreq`, as far as `TUNSETIFF` and `TUNGETIFF` use it.
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

/// Opens a queue of a TAP device.
pub(super) fn attach(name: [u8; NAME], flags: u16) -> Result<OwnedFd> {
    let how = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = open("/dev/net/tun", how, Mode::empty()).map_err(errno)?;
    let mut request = Request {
        name,
        flags,
        rest: [0; 22],
    };
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which this is.
    unsafe { ioctl(&fd, Updater::<SET_INTERFACE, Request>::new(&mut request)) }.map_err(errno)?;
    set_header_len(&fd)?;
    Ok(fd)
}

/// The flags of the interface that a descriptor is attached to (`IFF_…`).
pub(super) fn flags_of(fd: &OwnedFd) -> Result<u16> {
    let mut request = Request {
        name: [0; NAME],
        flags: 0,
        rest: [0; 22],
    };
    // SAFETY: TUNGETIFF writes a `struct ifreq`, which this is.
    unsafe { ioctl(fd, Updater::<GET_INTERFACE, Request>::new(&mut request)) }.map_err(errno)?;
    Ok(request.flags)
}

/// Sets the length of the headers. An earlier user may have left another one: it is the device's, as the offloads are.
pub(super) fn set_header_len(fd: &OwnedFd) -> Result<()> {
    let mut len = i32::try_from(vnet::LEN).unwrap_or(0);
    // SAFETY: TUNSETVNETHDRSZ reads an int.
    unsafe { ioctl(fd, Updater::<SET_HEADER_LEN, i32>::new(&mut len)) }.map_err(errno)
}

/// Is it an open file of `/dev/net/tun`?
pub(super) fn is_tun(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let numbers = (major(stat.st_rdev), minor(stat.st_rdev));
        kind == FileType::CharacterDevice && numbers == TUN
    })
}

/// Does the kernel not know how to leave a call instead of waiting (before Linux 6.4)? It says so before it looks at the
/// frame, which is too short to be one.
pub(super) fn waits(fd: &OwnedFd) -> bool {
    let mut byte = 0;
    let piece = Piece {
        base: &raw mut byte,
        len: 1,
    };
    // SAFETY: the byte is ours, and lives until the call is back.
    let written = unsafe { iov::write_now(fd.as_raw_fd(), &[piece]) };
    written == Err(NOT_SUPPORTED)
}

/// Sets the open file's flag by which calls do not wait.
pub(super) fn set_nonblocking(fd: &OwnedFd) -> Result<()> {
    let flags = fcntl_getfl(fd).map_err(errno)?;
    fcntl_setfl(fd, flags | OFlags::NONBLOCK).map_err(errno)
}

/// From now on, frames that come from a TAP device may ask for what `takes` says, and for no more.
///
/// # Errors
/// The kernel's.
pub(super) fn set_offloads(fd: &OwnedFd, takes: Offloads) -> Result<()> {
    let bit = |set, bit| if set { bit } else { 0 };
    let value = CSUM | bit(takes.gso4, TSO4) | bit(takes.gso6, TSO6);
    // SAFETY: TUNSETOFFLOAD takes its value as the argument itself.
    let done = unsafe { ioctl(fd, IntegerSetter::<SET_OFFLOAD>::new_usize(value)) };
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
        assert_eq!(GET_INTERFACE, 0x8004_54d2);
        assert_eq!(SET_OFFLOAD, 0x4004_54d0);
        assert_eq!(SET_HEADER_LEN, 0x4004_54d8);
        assert_eq!(size_of::<Request>(), 40);
    }
}
