//! Whether a network interface is there, and up: what a packet socket is not told.

use memlane_sys::sock::interface_is_up;
use rustix::net::netdevice;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// How often to look whether an interface that went down is still there.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Is there no interface of this number any more, where the socket is?
pub(super) fn is_gone(socket: &OwnedFd, index: u32) -> bool {
    netdevice::index_to_name(socket, index) == Err(rustix::io::Errno::NODEV)
}

/// Is the interface of this number up?
pub(super) fn is_up(socket: &OwnedFd, index: u32) -> bool {
    let Ok(name) = netdevice::index_to_name(socket, index) else {
        return false;
    };
    interface_is_up(socket.as_raw_fd(), name.as_bytes()).unwrap_or(false)
}
