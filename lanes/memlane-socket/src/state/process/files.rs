//! Shared mappings whose memfds are kept: a program that is started by exec can
//! be given them, and goes on where we stopped (see `hooks::handoff`).

use super::hidden::{hide, unhide};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use memlane_sys::fd::Fd;

/// Memfds that are kept at most; what lies in others cannot be carried.
const MOST: usize = 256;

/// One mapping; `base` 0 = free. Written under a lock of the process (pools,
/// groups), read at an exec.
struct Kept {
    base: AtomicUsize,
    len: AtomicUsize,
    fd: AtomicI32,
}

static FILES: [Kept; MOST] = [const {
    Kept {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        fd: AtomicI32::new(0),
    }
}; MOST];

/// Keeps `file`, which is mapped at `base`, among the hidden descriptors.
/// Returns its number; −1: there is no place, and it is closed.
pub fn keep_file(base: NonNull<u8>, len: usize, file: Fd) -> i32 {
    let n = hide(file);
    let free = FILES.iter().find(|f| f.base.load(Ordering::Relaxed) == 0);
    if let (Some(place), true) = (free, n > 0) {
        place.len.store(len, Ordering::Relaxed);
        place.fd.store(n, Ordering::Relaxed);
        place.base.store(base.as_ptr() as usize, Ordering::Release);
    }
    n
}

/// The mapping at `base` goes: so does its memfd. Was it kept?
pub fn drop_file(base: NonNull<u8>) -> bool {
    let at = base.as_ptr() as usize;
    let place = FILES.iter().find(|f| f.base.load(Ordering::Relaxed) == at);
    if let Some(f) = place {
        f.base.store(0, Ordering::Release);
        unhide(f.fd.load(Ordering::Relaxed));
    }
    place.is_some()
}

/// Is hidden descriptor `n` one of them?
pub fn is_kept_file(n: i32) -> bool {
    FILES
        .iter()
        .any(|f| f.base.load(Ordering::Acquire) != 0 && f.fd.load(Ordering::Relaxed) == n)
}

/// A hidden descriptor has got another number.
pub(super) fn renumbered(n: i32, new: i32) {
    for f in &FILES {
        let _ =
            f.fd.compare_exchange(n, new, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The memfd that `at` lies in, and where.
pub fn find_file(at: usize) -> Option<(i32, usize)> {
    FILES.iter().find_map(|f| {
        let base = f.base.load(Ordering::Acquire);
        let inside = base != 0 && at >= base && at - base < f.len.load(Ordering::Relaxed);
        inside.then(|| (f.fd.load(Ordering::Relaxed), at - base))
    })
}
