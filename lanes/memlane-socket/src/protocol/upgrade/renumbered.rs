//! The program wants a descriptor number that the library has, and the library moves its file out of the way.

use crate::protocol::group;
use crate::state::process::{self, PROCESS};

/// Descriptor `n` of the library has the number `new` from now on; −1: it is gone. Whoever reads from `n` after this, or
/// closes it, does that to a file of the program's.
///
/// Waits for every step of a handshake that is under way in another thread and may have read the old number. A step of this
/// very thread, which a signal handler has interrupted, cannot be waited for.
pub fn renumbered(n: i32, new: i32) {
    drop(PROCESS.mail_lock.lock());
    let all = (0..process::conns_made()).filter_map(process::conn_at);
    for conn in all.filter_map(|conn| process::conn_by_id(process::id_of(conn))) {
        let Some(_held) = conn.hs_lock.lock() else {
            continue;
        };
        // SAFETY: hs_lock is held.
        let hs = unsafe { &mut *conn.hs.get() };
        for known in [&mut hs.name_fd, &mut hs.channel] {
            if *known == n {
                *known = new;
            }
        }
    }
    if let Some(mut locked) = group::lock() {
        group::renumbered(&mut locked, n, new);
    }
}
