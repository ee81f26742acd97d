//! Marks of the rings of this process that may have pages which nobody needs at the moment, by chunk and slot.
//!
//! A thread that parks a connection or frees a slot marks the slot; a thread that uses it unmarks it.
//! [`crate::protocol::lane::trim`] gives the pages of marked slots back.

use crate::faults;
use crate::state::far::far;
use crate::state::process::PROCESS;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memlane_sys::time::ticks;

/// The most chunks at a time, our own and attached ones together.
pub const CHUNKS: usize = 2048;

/// The time between two looks, in ms.
pub(crate) const EVERY_MS: u64 = if faults::ON { 5 } else { 1000 };
/// Marks of one chunk of ours, one bit for each slot.
pub(crate) struct Marks {
    /// The ring may have pages, and the slot was parked or free when this was noted.
    pub(crate) dirty: AtomicU64,
    /// The slot was already dirty at the last look and has not been used since.
    pub(crate) aged: AtomicU64,
}

far! {
    pub(crate) static MARKS: [Marks; CHUNKS] = [const {
        Marks {
            dirty: AtomicU64::new(0),
            aged: AtomicU64::new(0),
        }
    }; CHUNKS];
}

/// `ticks` of the next look; 0: no slot is marked that may soon give pages back.
pub(crate) static NEXT: AtomicU64 = AtomicU64::new(0);
/// The number of looks in a row that gave nothing back.
pub(crate) static IN_VAIN: AtomicU32 = AtomicU32::new(0);
pub(crate) fn per_ms() -> u64 {
    (PROCESS.ticks_per_us.load(Ordering::Relaxed) * 1000).max(1)
}

/// Marks a slot of ours: its ring may have pages that are not needed at the moment.
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

/// Unmarks a slot that is in use again.
#[inline]
pub fn used(chunk: u32, slot: u32) {
    let aged = &MARKS[chunk as usize].aged;
    let bit = 1u64 << (slot & 63);
    if aged.load(Ordering::Relaxed) & bit != 0 {
        aged.fetch_and(!bit, Ordering::AcqRel);
    }
}

/// Unmarks all slots of a chunk that is gone.
pub fn forget(chunk: usize) {
    MARKS[chunk].dirty.store(0, Ordering::Release);
    MARKS[chunk].aged.store(0, Ordering::Release);
}

pub(crate) fn arm(now: u64, in_ms: u64) {
    let then = (now + in_ms * per_ms()).max(1);
    let _ = NEXT.compare_exchange(0, then, Ordering::AcqRel, Ordering::Relaxed);
}
