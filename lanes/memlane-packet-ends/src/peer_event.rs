//! An eventfd that a peer holds as well: memif's client makes one for each ring, and a machine monitor hands over those of
//! a guest.
//!
//! Whether a read or a write of it may block is a flag that both sides share, so a hostile peer can change it at any time. A
//! read says for itself that it does not block. A write cannot, so a poll comes before it (docs/limits/packets.md says what
//! is left). [`memlane_wait::event::EventFd`] is for eventfds of one process.

use memlane_packet::error::AttachError;
use memlane_packet::io::socket::errno;
use memlane_sys::Result;
use memlane_sys::fd::event;
use memlane_wait::event::is_eventfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{ReadWriteFlags, preadv2, write};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// The eventfd of one ring.
#[derive(Debug)]
pub(super) struct PeerEventFd(OwnedFd);

impl PeerEventFd {
    pub(super) fn new() -> Result<PeerEventFd> {
        // SAFETY: the number is given away by `into_raw`.
        Ok(PeerEventFd(unsafe {
            OwnedFd::from_raw_fd(event()?.into_raw())
        }))
    }

    /// Takes one that the peer handed over. Refuses any other kind of file.
    pub(super) fn of(fd: OwnedFd) -> std::result::Result<PeerEventFd, AttachError> {
        if !is_eventfd(&fd) {
            return Err(AttachError::Descriptors("a doorbell that is no eventfd"));
        }
        let flags = fcntl_getfl(&fd).map_err(|error| AttachError::Memory(errno(error)))?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)
            .map_err(|error| AttachError::Memory(errno(error)))?;
        Ok(PeerEventFd(fd))
    }

    /// Wakes the other side, if it sleeps. One whose counter is full has been signalled.
    pub(super) fn signal(&self) {
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(&self.0, PollFlags::OUT)];
        if poll(&mut fds, Some(&at_once)) == Ok(1) && fds[0].revents().contains(PollFlags::OUT) {
            let _ = write(&self.0, &1_u64.to_ne_bytes());
        }
    }

    /// Makes it unreadable again.
    pub(super) fn drain(&self) {
        let mut count = [0; 8];
        let mut parts = [IoSliceMut::new(&mut count)];
        // An offset of -1: the file has no position.
        let _ = preadv2(&self.0, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT);
    }
}

impl AsFd for PeerEventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_whose_other_side_makes_calls_wait_keeps_nobody_waiting() {
        let doorbell = PeerEventFd::new().unwrap();
        // As a hostile side would: calls may wait, and the counter is full.
        fcntl_setfl(&doorbell.0, OFlags::empty()).unwrap();
        write(&doorbell.0, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        doorbell.signal();
        doorbell.drain();
        doorbell.drain();
        doorbell.signal();
        let mut fds = [PollFd::new(&doorbell.0, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(1));
    }

    #[test]
    fn what_is_no_eventfd_is_no_doorbell() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(
            PeerEventFd::of(file.into()),
            Err(AttachError::Descriptors(_))
        ));
        let doorbell = PeerEventFd::new().unwrap();
        assert!(PeerEventFd::of(doorbell.0.try_clone().unwrap()).is_ok());
    }
}
