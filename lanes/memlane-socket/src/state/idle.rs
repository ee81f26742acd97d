//! Which rings of ours may have pages that nobody needs for now: marks, by chunk and slot.
//!
//! Whoever parks a connection or frees a slot marks it here; whoever uses it unmarks it. [`crate::protocol::lane::trim`] looks
//! after what is marked.

use crate::faults;
use crate::state::process::PROCESS;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memlane_sys::time::ticks;

/// Chunks of our own, and attached ones, at a time.
pub const CHUNKS: usize = 2048;

/// Between two looks.
pub(crate) const EVERY_MS: u64 = if faults::ON { 5 } else { 1000 };
/// Slots of one chunk of ours, a bit each.
pub(crate) struct Marks {
    /// Its ring may have pages, and it was parked or free when that was noted.
    pub(crate) dirty: AtomicU64,
    /// It was so at the last look, and has not been used since.
    pub(crate) aged: AtomicU64,
}

pub(crate) static MARKS: [Marks; CHUNKS] = [const {
    Marks {
        dirty: AtomicU64::new(0),
        aged: AtomicU64::new(0),
    }
}; CHUNKS];

/// `ticks` at which to look next; 0 = nothing is marked that may go soon.
pub(crate) static NEXT: AtomicU64 = AtomicU64::new(0);
/// Looks in a row that gave nothing back.
pub(crate) static IN_VAIN: AtomicU32 = AtomicU32::new(0);
pub(crate) fn per_ms() -> u64 {
    (PROCESS.ticks_per_us.load(Ordering::Relaxed) * 1000).max(1)
}

/// The ring of a slot of ours may have pages that are not needed for now.
pub fn mark(chunk: u32, slot: u32) {
    let dirty = &MARKS[chunk as usize].dirty;
    let bit = 1u64 << (slot & 63);
    if dirty.load(Ordering::Relaxed) & bit == 0 {
        dirty.fetch_or(bit, Ordering::AcqRel);
    }
    if IN_VAIN.load(Ordering::Relaxed) != 0 {
        IN_VAIN.store(0, Ordering::Relaxed);
    }
    if NEXT.load(Ordering::Acquire) == 0 {
        arm(ticks(), EVERY_MS);
    }
}

/// It is in use (again).
#[inline]
pub fn used(chunk: u32, slot: u32) {
    let aged = &MARKS[chunk as usize].aged;
    let bit = 1u64 << (slot & 63);
    if aged.load(Ordering::Relaxed) & bit != 0 {
        aged.fetch_and(!bit, Ordering::AcqRel);
    }
}

/// The chunk is gone.
pub fn forget(chunk: usize) {
    MARKS[chunk].dirty.store(0, Ordering::Release);
    MARKS[chunk].aged.store(0, Ordering::Release);
}

pub(crate) fn arm(now: u64, in_ms: u64) {
    let then = (now + in_ms * per_ms()).max(1);
    let _ = NEXT.compare_exchange(0, then, Ordering::AcqRel, Ordering::Relaxed);
}
