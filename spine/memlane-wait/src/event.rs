//! Waking a thread that sleeps in the kernel: eventfds, and `poll(2)` with a time-out.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A descriptor that becomes readable when it is signalled, and stays so until it is drained.
///
/// Any number of signals before a [`drain`](Self::drain) count as one. No call but [`wait`](Self::wait) blocks.
///
/// It is for threads of one process. Of an eventfd that another process holds as well, that process could clear
/// `O_NONBLOCK`, which both share, and fill the counter: then [`signal`](Self::signal) would block. The packet lane has
/// a type of its own for those that a peer hands over.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Makes one that has not been signalled: non-blocking, closed on exec.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM`, from `eventfd(2)`.
    pub fn new() -> Result<EventFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(EventFd)
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        // The write fails only if the counter is at its maximum. Then the descriptor is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable again. Returns whether it was readable.
    pub fn drain(&self) -> bool {
        rustix::io::read(&self.0, &mut [0_u8; 8]).is_ok()
    }

    /// Waits until the descriptor is readable; returns whether it is. `None` waits without a limit. A signal handler
    /// that runs meanwhile ends the wait early.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, limit).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> OwnedFd {
        event.0
    }
}

/// Whether a descriptor that came from another process is an eventfd. A file of another kind may block whatever its
/// flags say.
pub fn is_eventfd(fd: impl AsFd) -> bool {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()));
    name.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

/// Waits until one of the descriptors is ready; returns how many are. `None` waits without a limit. Returns 0 when
/// `limit` has passed, and when a signal handler ran meanwhile.
///
/// # Errors
/// `EINVAL` (more descriptors than the process may open) or `ENOMEM`, from `ppoll(2)`.
pub fn poll(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> Result<usize> {
    match rustix::event::poll(fds, limit.map(timespec).as_ref()) {
        Err(Errno::INTR) => {
            fds.iter_mut().for_each(PollFd::clear_revents);
            Ok(0)
        }
        polled => polled,
    }
}

/// The kernel's form of a duration. One beyond its range (292 billion years) becomes the longest that it has.
#[must_use]
pub fn timespec(limit: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn many_signals_are_drained_at_once() {
        let event = EventFd::new().unwrap();
        assert!(!event.wait(NOW) && !event.drain());
        event.signal();
        event.signal();
        assert!(event.wait(None));
        assert!(event.drain());
        assert!(!event.drain() && !event.wait(NOW));
    }

    #[test]
    fn a_full_counter_neither_blocks_nor_is_lost() {
        let event = EventFd::new().unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        event.signal();
        assert!(event.wait(NOW) && event.drain());
        assert!(!event.wait(NOW));
    }

    #[test]
    fn a_poll_ends_with_its_limit_or_with_the_first_descriptor() {
        let (a, b) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let mut fds = [&a, &b].map(|event| PollFd::new(event, PollFlags::IN));
        assert_eq!(poll(&mut fds, Some(Duration::from_millis(1))), Ok(0));
        b.signal();
        assert_eq!(poll(&mut fds, Some(Duration::MAX)), Ok(1));
        assert_eq!(fds.map(|fd| fd.revents().is_empty()), [true, false]);
    }

    #[test]
    fn only_an_eventfd_is_taken_for_one() {
        assert!(is_eventfd(EventFd::new().unwrap()));
        assert!(!is_eventfd(std::fs::File::open("/dev/null").unwrap()));
    }
}
