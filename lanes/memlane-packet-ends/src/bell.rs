//! The bell of memif and of vhost-user: an eventfd, which the other side makes for each ring (memif's client), and both
//! sides have.
//!
//! Whether a read or write of it may wait is a flag that both sides share. A read says for itself that it does not
//! wait; a write cannot, so it is looked at first whether it would (docs/limits.md says what is left).

use memlane_packet::error::AttachError;
use memlane_packet::io::socket::errno;
use memlane_sys::Result;
use memlane_sys::fd::event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{ReadWriteFlags, preadv2, write};
use std::fs::read_link;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// One ring's.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> Result<Bell> {
        // SAFETY: the number is given away by `into_raw`.
        Ok(Bell(unsafe { OwnedFd::from_raw_fd(event()?.into_raw()) }))
    }

    /// One that was handed over: nothing but an eventfd is one.
    pub(super) fn of(fd: OwnedFd) -> std::result::Result<Bell, AttachError> {
        let name = read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        if name.map_or(true, |name| name.as_os_str() != "anon_inode:[eventfd]") {
            return Err(AttachError::Descriptors("a bell that is no eventfd"));
        }
        let flags = fcntl_getfl(&fd).map_err(|error| AttachError::Memory(errno(error)))?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)
            .map_err(|error| AttachError::Memory(errno(error)))?;
        Ok(Bell(fd))
    }

    /// Wakes the other side, if it sleeps. One that is full has been rung.
    pub(super) fn ring(&self) {
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(&self.0, PollFlags::OUT)];
        if poll(&mut fds, Some(&at_once)) == Ok(1) && fds[0].revents().contains(PollFlags::OUT) {
            let _ = write(&self.0, &1_u64.to_ne_bytes());
        }
    }

    /// Forgets that it was rung.
    pub(super) fn hush(&self) {
        let mut count = [0; 8];
        let mut parts = [IoSliceMut::new(&mut count)];
        // An offset of -1: the file has no position.
        let _ = preadv2(&self.0, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_whose_other_side_makes_calls_wait_keeps_nobody_waiting() {
        let bell = Bell::new().unwrap();
        // As a hostile side would: calls may wait, and the counter is full.
        fcntl_setfl(&bell.0, OFlags::empty()).unwrap();
        write(&bell.0, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.ring();
        bell.hush();
        bell.hush();
        bell.ring();
        let mut fds = [PollFd::new(&bell.0, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(1));
    }

    #[test]
    fn what_is_no_eventfd_is_no_bell() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(
            Bell::of(file.into()),
            Err(AttachError::Descriptors(_))
        ));
        let bell = Bell::new().unwrap();
        assert!(Bell::of(bell.0.try_clone().unwrap()).is_ok());
    }
}
