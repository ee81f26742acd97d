//! A queue's doorbell: a pair of connected sockets, each end's one for each side.
//!
//! Not an eventfd: whether a write to one may wait is a flag that both sides share, so that a hostile side could fill
//! the counter, clear the flag, and have us sleep in our own ring of the doorbell. On a socket each call says for itself
//! that it does not wait. And the end of the other process is seen at the very descriptor that one sleeps on.

use super::socket::errno;
use memlane_sys::{Errno, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// One side's end.
#[derive(Debug)]
pub(super) struct Doorbell(OwnedFd);

impl Doorbell {
    /// A doorbell, and the other side's end of it.
    pub(super) fn pair() -> Result<(Doorbell, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (ours, theirs) = pair.map_err(errno)?;
        Ok((Doorbell(ours), theirs))
    }

    /// One that was handed over: another kind of descriptor is no doorbell.
    pub(super) fn of(fd: OwnedFd) -> Result<Doorbell> {
        let domain = socket_domain(&fd).map_err(errno)?;
        let kind = socket_type(&fd).map_err(errno)?;
        if domain != AddressFamily::UNIX || kind != SocketType::STREAM {
            return Err(Errno::INVAL);
        }
        Ok(Doorbell(fd))
    }

    /// What to sleep on, together with others.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Wakes the other side, if it sleeps. A doorbell that is full has been rung; one without another end is noticed by
    /// `drain`.
    pub(super) fn ring(&self) {
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Forgets that it was rung. `false`: the other side is gone.
    pub(super) fn drain(&self) -> bool {
        match recv(&self.0, &mut [0; 512][..], RecvFlags::DONTWAIT) {
            Ok((n, _)) => n > 0,
            Err(error) => error == rustix::io::Errno::AGAIN || error == rustix::io::Errno::INTR,
        }
    }

    /// Sleeps until it is rung, not longer than `limit`; `false`: that was it.
    pub(super) fn sleep(&self, limit: Duration) -> Result<bool> {
        let limit = Timespec::try_from(limit).map_err(|_| Errno::INVAL)?;
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Ok(n) => Ok(n > 0),
            Err(rustix::io::Errno::INTR) => Ok(true),
            Err(error) => Err(errno(error)),
        }
    }
}
