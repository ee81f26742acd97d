//! A process that has no handshake of its own under way still hears what others say.

use super::mail::drain_mailbox;
use crate::protocol::group;
use crate::state::process::PROCESS;
use core::sync::atomic::{AtomicU64, Ordering};

/// How often a process whose own handshakes are over looks for what others have said, in µs. A look takes two system calls; a
/// client waits for 200 ms before it asks elsewhere.
const LOOK_EVERY_US: u64 = 50_000;
/// `ticks` of the last such look. Any thread writes it, relaxed: it only spaces the looks.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// Takes what has come, also if no handshake of this process is under way: a peer may take this process for the other end
/// of a connection that another worker of the same server has accepted. `now` is in `ticks`.
#[inline]
pub fn look(now: u64) {
    let every = LOOK_EVERY_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    if group::any_speaks() && now.wrapping_sub(LOOKED.load(Ordering::Relaxed)) > every {
        look_now(now);
    }
}

#[cold]
fn look_now(now: u64) {
    LOOKED.store(now, Ordering::Relaxed);
    // While a handshake is under way, its steps take what comes.
    if PROCESS.waiting.load(Ordering::Relaxed) == 0
        && let Some(_held) = PROCESS.mail_lock.try_lock()
    {
        let keep = crate::real::errno();
        drain_mailbox();
        crate::real::set_errno(keep);
    }
}
