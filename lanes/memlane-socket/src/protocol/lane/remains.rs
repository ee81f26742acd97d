//! What is left in the ring of a lane that has ended, before the connection is given away: to a new program by exec, to
//! another process by `SCM_RIGHTS`, to stdio.

use super::in_ring;
use crate::state::conn::{Conn, LaneView, RxMode};
use crate::state::guard::lock_rx;
use memlane_core::ring::ParkCheck;

/// How long one call waits for senders in the middle of a write, in milliseconds, however many there are: some slices
/// of the scheduler.
const WRITERS_MS: u32 = 100;

/// What is left of the time that one call waits for senders.
#[derive(Debug)]
pub struct Patience(u32);

impl Patience {
    /// All of it.
    pub fn fresh() -> Patience {
        Patience(WRITERS_MS)
    }
}

/// Does the ring of a lane that has ended hold bytes, or may it yet? A sender in the middle of a write may copy
/// megabytes, or wait for a CPU, so this waits for it while there is `patience`. If it is stopped in there, its bytes
/// count as in the ring.
pub fn holds_bytes(conn: &Conn, patience: &mut Patience) -> bool {
    while is_being_written(conn) {
        if patience.0 == 0 {
            return true;
        }
        patience.0 -= 1;
        memlane_sys::time::nap_ms(1);
    }
    in_ring(conn) > 0
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
