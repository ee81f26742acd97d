//! The look of a receiver that is about to sleep, beside a sender that may be in the middle of a write.

use crate::state::conn::Dmb;
use memlane_core::ring::{ParkCheck, Rx};

/// Spins of a receiver that waits for a sender in the middle of a write.
const WRITER_TURNS: u32 = 2000;
/// Calls of `sched_yield` after those spins.
const WRITER_YIELDS: u32 = 50;

/// Waits, for a bounded time, until the sender is no longer in the middle of a write.
pub(super) fn settle(rx: &Rx, words: &Dmb) -> ParkCheck {
    for turn in 0..WRITER_TURNS + WRITER_YIELDS {
        match rx.check_park(words) {
            ParkCheck::WriterBusy if turn >= WRITER_TURNS => memlane_sys::proc::yield_now(),
            ParkCheck::WriterBusy => core::hint::spin_loop(),
            other => return other,
        }
    }
    ParkCheck::WriterBusy
}
