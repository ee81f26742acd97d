//! When requests are due: a clock that goes on whatever their answers do.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// In a second.
const NANOSECONDS: u32 = 1_000_000_000;

/// Requests at fixed times, by a timer of the kernel.
pub(super) struct Clock {
    timer: OwnedFd,
    begin: Instant,
    interval: Duration,
    /// Requests that have become due.
    due: u64,
    /// How many there will be.
    all: u64,
}

impl Clock {
    /// `all` requests, `rate` of them in a second. The first is due after one interval.
    ///
    /// # Errors
    /// `rate` is 0, or the kernel has no timer left.
    pub(super) fn start(rate: u32, all: u64) -> io::Result<Clock> {
        let interval = NANOSECONDS.checked_div(rate);
        let interval = interval.ok_or_else(|| io::Error::other("0 requests a second"))?;
        let interval = Duration::from_nanos(interval.max(1).into());
        let time = libc::timespec {
            tv_sec: interval.as_secs().cast_signed(),
            tv_nsec: interval.subsec_nanos().into(),
        };
        let spec = libc::itimerspec {
            it_interval: time,
            it_value: time,
        };
        // SAFETY: takes two numbers and makes a descriptor, which is ours alone.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just made, and nobody else has it.
        let timer = unsafe { OwnedFd::from_raw_fd(fd) };
        let begin = Instant::now();
        // SAFETY: `spec` lives, the kernel only reads it, and the old value is not asked for.
        let done = unsafe { libc::timerfd_settime(fd, 0, &raw const spec, std::ptr::null_mut()) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Clock {
            timer,
            begin,
            interval,
            due: 0,
            all,
        })
    }

    /// Sleeps until a request is due that was not told yet; the numbers of all that are. None are left at the end.
    pub(super) fn next(&mut self) -> io::Result<std::ops::Range<u64>> {
        let before = self.due;
        if before < self.all {
            let mut ticks = 0u64;
            // SAFETY: a timer is read into eight bytes, which `ticks` has.
            let n = unsafe { libc::read(self.as_raw_fd(), (&raw mut ticks).cast(), 8) };
            if n < 0 {
                match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                }
            }
            self.due = before.saturating_add(ticks).min(self.all);
        }
        Ok(before..self.due)
    }

    /// Whether all requests have become due.
    pub(super) fn is_over(&self) -> bool {
        self.due == self.all
    }

    /// When a request is due, or was.
    pub(super) fn due_at(&self, number: u64) -> Instant {
        due_at(self.begin, self.interval, number)
    }

    /// The same, for another thread.
    pub(super) fn due_times(&self) -> impl Fn(u64) -> Instant + Send + use<> {
        let (begin, interval) = (self.begin, self.interval);
        move |number| due_at(begin, interval, number)
    }
}

fn due_at(begin: Instant, interval: Duration, number: u64) -> Instant {
    let seconds = interval.as_secs().saturating_mul(number + 1);
    let nanoseconds = u64::from(interval.subsec_nanos()).saturating_mul(number + 1);
    begin + Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds)
}

impl AsRawFd for Clock {
    fn as_raw_fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_request_is_told_before_it_is_due_and_none_is_left_out() {
        let mut clock = Clock::start(2000, 40).expect("a timer");
        let mut told = 0;
        loop {
            let due = clock.next().expect("a tick");
            assert_eq!(due.start, told);
            let Some(last) = due.clone().last() else {
                break;
            };
            assert!(Instant::now() >= clock.due_at(last), "{last} came early");
            told = due.end;
        }
        assert_eq!(told, 40);
        assert!(clock.begin.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn who_comes_late_is_told_all_requests_that_have_become_due_meanwhile() {
        let mut clock = Clock::start(1000, 100).expect("a timer");
        std::thread::sleep(Duration::from_millis(30));
        let due = clock.next().expect("ticks");
        assert!(due.end >= 29, "{due:?}");
    }

    #[test]
    fn requests_are_an_interval_apart_however_many_went_before() {
        let clock = Clock::start(10_000, 1).expect("a timer");
        let apart = clock.due_at(1_000_000) - clock.due_at(999_999);
        assert_eq!(apart, Duration::from_micros(100));
        assert_eq!(clock.due_times()(7), clock.due_at(7));
    }

    #[test]
    fn a_pace_of_nothing_is_refused() {
        assert!(Clock::start(0, 1).is_err());
    }
}
