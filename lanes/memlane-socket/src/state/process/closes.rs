//! How often descriptors have been closed, as far as a waiting thread wants to know.
//!
//! A call of poll or select that sleeps in pieces gives the kernel its numbers anew for each piece. Between two of them,
//! another thread may have closed one, and opened something else by the same number.

use super::is_borrowed;
use crate::state::far::far;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Closes of numbers from this one on are not counted.
const MOST: usize = 4096;

far! {
    /// The closes of each number. A thread that closes writes, before the kernel's call, and one that replaces
    /// writes after it; a thread that waits reads.
    static CLOSES: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
}

/// Closes of numbers from this one on need not be counted: nobody has asked for them. Only raised.
static END: AtomicI32 = AtomicI32::new(0);

/// How often descriptor `n` has been closed since it was first asked for. `None`: closes of such a number are not counted.
pub fn closes(n: i32) -> Option<u32> {
    let place = CLOSES.get(usize::try_from(n).ok()?)?;
    if n >= END.load(Ordering::Relaxed) {
        END.fetch_max(n + 1, Ordering::SeqCst);
    }
    Some(place.load(Ordering::SeqCst))
}

/// Notes that descriptor `n` is about to be closed, or has just been replaced.
#[inline(always)]
pub fn will_close(n: i32) {
    if n < END.load(Ordering::Relaxed) {
        count(n);
    }
}

/// Notes the same of all descriptors from `first` to `last`.
pub fn will_close_all(first: u32, last: u32) {
    let last = last.min(
        END.load(Ordering::Relaxed)
            .cast_unsigned()
            .saturating_sub(1),
    );
    (first..=last).for_each(|n| will_close(n.cast_signed()));
}

#[cold]
fn count(n: i32) {
    let place = usize::try_from(n).ok().and_then(|n| CLOSES.get(n));
    // The child of a vfork has descriptors of its own.
    if let Some(place) = place.filter(|_| !is_borrowed()) {
        place.fetch_add(1, Ordering::SeqCst);
    }
}
