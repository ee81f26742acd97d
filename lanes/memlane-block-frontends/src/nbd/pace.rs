//! Sleep, or look again? To be woken by another core costs tens of microseconds; to look again costs this core.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Between two looks: each takes locks of the socket that who sends needs as well.
const BREATH: u32 = 16;

/// From then on the core is offered to others, after so many looks each time: on a full machine whoever is to answer
/// may be one of them.
const ALONE: Duration = Duration::from_micros(3);
const YIELD: u32 = 4;

/// Threads of this process that look again and again.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// One is left to those who are waited for.
fn most() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    *CORES.get_or_init(cores) - 1
}

/// How long things usually take to come, and what follows from it.
#[derive(Debug)]
pub(super) struct Pace {
    limit: Duration,
    /// Nothing has come since then.
    since: Option<Instant>,
    /// Mean of the last pauses.
    pause: Duration,
    spinning: bool,
    looks: u32,
}

impl Pace {
    /// Looks again for `limit` at most.
    pub(super) fn new(limit: Duration) -> Pace {
        Pace {
            limit,
            since: None,
            pause: limit * 4,
            spinning: false,
            looks: 0,
        }
    }

    /// Something came.
    pub(super) fn busy(&mut self) {
        if let Some(since) = self.since.take() {
            let pause = since.elapsed().min(self.limit * 16);
            self.pause = (self.pause * 7 + pause) / 8;
        }
        self.stop();
    }

    /// Nothing came: look again (or sleep)?
    pub(super) fn spin(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        // A pause that we slept through is longer by the time it takes to be woken.
        let gone = since.elapsed();
        let again = self.pause < self.limit * 2 && gone < self.limit && self.start();
        if again {
            self.breathe(gone);
        } else {
            self.stop();
        }
        again
    }

    /// Between two looks, so long after the first.
    fn breathe(&mut self, gone: Duration) {
        self.looks = self.looks.wrapping_add(1);
        if gone > ALONE && self.looks.is_multiple_of(YIELD) {
            std::thread::yield_now();
        } else {
            (0..BREATH).for_each(|_| std::hint::spin_loop());
        }
    }

    /// Nothing came, or is about to: is it better to wait at once?
    pub(super) fn rests(&mut self) -> bool {
        let slow = self.pause >= self.limit * 2;
        let crowded = !self.spinning && SPINNING.load(Ordering::Relaxed) >= most();
        if slow || crowded {
            self.since.get_or_insert_with(Instant::now);
        }
        slow || crowded
    }

    fn start(&mut self) -> bool {
        if !self.spinning {
            let before = SPINNING.fetch_add(1, Ordering::Relaxed);
            self.spinning = true;
            if before >= most() {
                self.stop();
            }
        }
        self.spinning
    }

    fn stop(&mut self) {
        if self.spinning {
            SPINNING.fetch_sub(1, Ordering::Relaxed);
            self.spinning = false;
        }
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.stop();
    }
}
