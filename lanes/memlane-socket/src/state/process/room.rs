//! Room for the library's descriptors in the kernel's table.

use super::hidden::lowest_for_own;
use super::{PROCESS, enabled, fd_limit};
use core::sync::atomic::{AtomicI32, Ordering};
use memlane_sys::fd;

/// The process whose table of descriptors is long enough, by its id. Any thread writes it; nothing is ordered by it.
static ROOMY: AtomicI32 = AtomicI32::new(0);

/// Makes the kernel's table of descriptors long enough for the library's own. Call it before a second thread begins: it takes
/// some µs then. Later, the kernel waits until no thread can be reading the old table (`expand_fdtable`), and the program's
/// first socket takes 10 to 20 ms.
pub fn make_room() {
    let pid = PROCESS.pid.load(Ordering::Relaxed);
    let is_wanted = enabled() && PROCESS.frozen.load(Ordering::Relaxed) == 0;
    if !is_wanted || ROOMY.swap(pid, Ordering::Relaxed) == pid {
        return;
    }
    if let Ok(any) = fd::event() {
        drop(fd::move_high(any, lowest_for_own(fd_limit())));
    }
}
