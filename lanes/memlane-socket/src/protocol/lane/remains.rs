//! What is left in the ring of a lane that has ended, before the connection is given away: to a new program by exec, to
//! another process by `SCM_RIGHTS`, to stdio.

use super::in_ring;
use crate::state::conn::{Conn, LaneView, RxMode};
use crate::state::guard::lock_rx;
use memlane_core::ring::ParkCheck;

/// How long a sender in the middle of a write is waited for, in milliseconds, before a connection is given away: some
/// slices of the scheduler.
const WRITER_MS: u32 = 100;

/// Does the ring of a lane that has ended hold bytes, or may it yet? A sender in the middle of a write has until
/// [`WRITER_MS`] from now to finish it: it may copy megabytes, or wait for a CPU. If it is stopped in there, its bytes
/// count as in the ring.
pub fn holds_bytes(conn: &Conn) -> bool {
    for _ in 0..WRITER_MS {
        if !is_being_written(conn) {
            return in_ring(conn) > 0;
        }
        memlane_sys::time::nap_ms(1);
    }
    true
}

/// Is the sender still in the middle of a write that began before the lane ended?
fn is_being_written(conn: &Conn) -> bool {
    if !conn.upgraded() || conn.rx_mode() != RxMode::Drain {
        return false;
    }
    let Some(held) = lock_rx(conn) else {
        return false;
    };
    let busy = |lane: LaneView| held.check_park(lane.words) == ParkCheck::WriterBusy;
    held.lane().is_some_and(busy)
}
