//! How busy a session's ports are, while the background poller leads for all of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When nobody but one port has waited for so long, the background poller leads for all no longer.
const ALONE: Duration = Duration::from_millis(20);

/// Which ports wait, while the background poller leads for all. Written by ports, read by the background poller; it only
/// tells how busy they are, so no order is needed.
#[derive(Debug)]
pub(super) struct Turns {
    /// The port that waited last.
    last: AtomicU64,
    /// How often that was another one than before.
    count: AtomicU64,
}

/// What the background poller has seen of them.
#[derive(Debug)]
pub(super) struct Seen {
    turns: u64,
    at: Instant,
}

impl Turns {
    pub(super) fn new() -> Turns {
        Turns {
            last: AtomicU64::new(u64::MAX),
            count: AtomicU64::new(0),
        }
    }

    pub(super) fn note(&self, port: u64) {
        if self.last.swap(port, Ordering::Relaxed) != port {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn seen(&self) -> Seen {
        Seen {
            turns: self.count.load(Ordering::Relaxed),
            at: Instant::now(),
        }
    }

    /// Has nobody but one port waited for a while? Starts a new while.
    pub(super) fn is_alone(&self, seen: &mut Seen) -> bool {
        let now = self.seen();
        let another = now.turns != seen.turns;
        if !another && now.at - seen.at < ALONE {
            return false;
        }
        *seen = now;
        !another
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_port_alone_is_noticed_after_a_while() {
        let turns = Turns::new();
        turns.note(1);
        turns.note(2);
        let mut seen = turns.seen();
        let later = |seen: &mut Seen| seen.at = seen.at.checked_sub(ALONE).expect("a time");
        assert!(!turns.is_alone(&mut seen), "too soon");
        turns.note(1);
        later(&mut seen);
        assert!(!turns.is_alone(&mut seen), "another one than before");
        turns.note(1);
        assert!(!turns.is_alone(&mut seen), "too soon again");
        later(&mut seen);
        assert!(turns.is_alone(&mut seen));
    }
}
