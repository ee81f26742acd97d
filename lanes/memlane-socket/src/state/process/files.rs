//! Shared mappings whose memfds are kept, so that a program that is started by exec can get them and go on with them
//! (see `hooks::handoff`).

use super::hidden::{hide, unhide};
use crate::state::far::far;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use memlane_sys::fd::Fd;

/// The most memfds that are kept. Memory in other files cannot be handed over.
const MOST: usize = 256;

/// One mapping; `base` 0: free. Written under a lock of the process (pools, groups), read at an exec.
struct Kept {
    base: AtomicUsize,
    len: AtomicUsize,
    fd: AtomicI32,
}

impl Kept {
    #[allow(clippy::declare_interior_mutable_const)] // each use makes a value of its own
    const NONE: Kept = Kept {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        fd: AtomicI32::new(0),
    };
}

/// The first places: most processes need no more.
static FIRST: [Kept; 4] = [Kept::NONE; 4];
far! {
    /// The places behind [`FIRST`].
    static OTHERS: [Kept; MOST - 4] = [Kept::NONE; MOST - 4];
}

/// Places from this one on were never used. Raised before a place is taken; to look at the others costs a forked
/// child page faults.
static USED: AtomicUsize = AtomicUsize::new(0);

fn places() -> impl Iterator<Item = &'static Kept> {
    FIRST.iter().chain(&OTHERS)
}

fn used() -> impl Iterator<Item = &'static Kept> {
    places().take(USED.load(Ordering::Relaxed))
}

/// Keeps `file`, which is mapped at `base`, among the hidden descriptors. Returns its number; −1: the table is full,
/// and the file is closed.
pub fn keep_file(base: NonNull<u8>, len: usize, file: Fd) -> i32 {
    let n = hide(file);
    let free = places()
        .enumerate()
        .find(|(_, f)| f.base.load(Ordering::Relaxed) == 0);
    if let (Some((i, place)), true) = (free, n > 0) {
        USED.fetch_max(i + 1, Ordering::Relaxed);
        place.len.store(len, Ordering::Relaxed);
        place.fd.store(n, Ordering::Relaxed);
        place.base.store(base.as_ptr() as usize, Ordering::Release);
    }
    n
}

/// Closes the memfd of the mapping at `base`, which is about to go. Returns whether it was kept.
pub fn drop_file(base: NonNull<u8>) -> bool {
    let at = base.as_ptr() as usize;
    let place = used().find(|f| f.base.load(Ordering::Relaxed) == at);
    if let Some(f) = place {
        f.base.store(0, Ordering::Release);
        unhide(f.fd.load(Ordering::Relaxed));
    }
    place.is_some()
}

/// Is hidden descriptor `n` such a memfd?
pub fn is_kept_file(n: i32) -> bool {
    used().any(|f| f.base.load(Ordering::Acquire) != 0 && f.fd.load(Ordering::Relaxed) == n)
}

/// Notes that a hidden descriptor has got another number; −1: it is gone, and its memory cannot be handed over.
pub(super) fn renumbered(n: i32, new: i32) {
    for f in used() {
        let renumbered =
            f.fd.compare_exchange(n, new, Ordering::Relaxed, Ordering::Relaxed);
        if renumbered.is_ok() && new < 0 {
            f.base.store(0, Ordering::Release);
        }
    }
}

/// The memfd that holds address `at`, and the offset in it.
pub fn find_file(at: usize) -> Option<(i32, usize)> {
    used().find_map(|f| {
        let base = f.base.load(Ordering::Acquire);
        let inside = base != 0 && at >= base && at - base < f.len.load(Ordering::Relaxed);
        inside.then(|| (f.fd.load(Ordering::Relaxed), at - base))
    })
}
