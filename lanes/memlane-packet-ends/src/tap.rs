//! TAP devices: interfaces of the kernel whose other side is a descriptor.

use super::kernel::{DescriptorKind, Interface};
use super::tun;
use memlane_sys::{Errno, Result};
use std::os::fd::OwnedFd;

/// Opens `queues` queues of a TAP device, which is made if there is none of that name, and then goes with its last
/// queue.
/// What it may ask for is said by [`limit`](super::End::limit).
///
/// # Errors
/// The kernel's: EPERM (no `CAP_NET_ADMIN`, and not its owner), EBUSY (another process has it), EINVAL (no such name,
/// or a device of another kind: one of several queues for one, …), ENOENT (no `/dev/net/tun`).
pub fn open_queues(device: &str, queues: u16) -> Result<Vec<Interface>> {
    let name = tun::name_of(device).ok_or(Errno::INVAL)?;
    let one = tun::FRAMES;
    let mut found = Vec::new();
    for n in 0..queues.max(1) {
        let several = queues > 1;
        let fd = match tun::attach(name, if several { one | tun::MULTI_QUEUE } else { one }) {
            // A device that was made for several queues must be opened as one of several.
            Err(Errno::INVAL) if !several => tun::attach(name, one | tun::MULTI_QUEUE)?,
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

/// Why a descriptor that another process handed over is of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unusable {
    /// It belongs to no TAP device.
    NoTap,
    /// Its frames have no [`vnet`](super::vnet) header.
    NoHeader,
}

/// Takes a queue of a TAP device that another process has opened as [`open_queues`] does.
///
/// # Errors
/// It is none.
pub(super) fn adopt(fd: OwnedFd, label: String) -> core::result::Result<Interface, Unusable> {
    // Before any request: what a request means to another kind of device is that device's own affair.
    let flags = tun::is_tun(&fd).then(|| tun::flags_of(&fd).ok()).flatten();
    let Some(flags) = flags.filter(|flags| flags & tun::TAP != 0) else {
        return Err(Unusable::NoTap);
    };
    if flags & tun::FRAMES != tun::FRAMES || tun::set_header_len(&fd).is_err() {
        return Err(Unusable::NoHeader);
    }
    let kind = match tun::waits(&fd) {
        false => DescriptorKind::Lent,
        // Then only the flag of the open file says that calls do not wait, and the other process can clear it at any time.
        true => {
            tun::set_nonblocking(&fd).map_err(|_| Unusable::NoTap)?;
            DescriptorKind::Device
        }
    };
    Ok(Interface::new(fd, kind, label))
}
