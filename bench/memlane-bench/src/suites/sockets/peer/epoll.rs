//! epoll, by libc's names, not by rustix: a preloaded library sees no others.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

/// Events of one wait.
pub(super) const EVENTS: u16 = 128;

pub(super) struct Epoll(OwnedFd);

impl Epoll {
    pub(super) fn new() -> std::io::Result<Epoll> {
        // SAFETY: takes a number and makes a descriptor, which is ours alone.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: as above.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(super) fn add(&self, fd: RawFd, number: u64) -> std::io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN.cast_unsigned(),
            u64: number,
        };
        let epoll = self.0.as_raw_fd();
        // SAFETY: `event` lives; the kernel only reads it.
        match unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    pub(super) fn wait(
        &self,
        events: &mut [libc::epoll_event; EVENTS as usize],
    ) -> std::io::Result<usize> {
        let most = libc::c_int::from(EVENTS);
        let epoll = self.0.as_raw_fd();
        // SAFETY: there is room for `EVENTS` events.
        let n = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), most, -1) };
        match usize::try_from(n) {
            Ok(n) => Ok(n),
            Err(_) => match std::io::Error::last_os_error() {
                error if error.kind() == ErrorKind::Interrupted => Ok(0),
                error => Err(error),
            },
        }
    }
}

/// For an array of them.
pub(super) const NO_EVENT: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };
