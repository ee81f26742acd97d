//! Time for limits: the machine's, or a test's.

use memlane_transport::engine::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time since any fixed moment. Clones show the same time.
#[derive(Clone, Debug)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug)]
enum ClockSource {
    Real(Instant),
    Set(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock.
    #[must_use]
    pub fn real() -> Clock {
        Clock(ClockSource::Real(Instant::now()))
    }

    /// One that stands still until [`advance`](Self::advance): a world out of a seed has its own time.
    #[must_use]
    pub fn manual() -> Clock {
        Clock(ClockSource::Set(Arc::default()))
    }

    /// Moves a manual clock on; a real one takes no notice.
    pub fn advance(&self, by: Duration) {
        if let ClockSource::Set(nanos) = &self.0 {
            nanos.fetch_add(nanos_of(by), Ordering::Relaxed);
        }
    }

    pub(super) fn now(&self) -> Time {
        match &self.0 {
            ClockSource::Real(origin) => origin.elapsed(),
            ClockSource::Set(nanos) => Duration::from_nanos(nanos.load(Ordering::Relaxed)),
        }
    }
}

/// As nanoseconds; what does not fit is as good as for ever.
pub(super) fn nanos_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
