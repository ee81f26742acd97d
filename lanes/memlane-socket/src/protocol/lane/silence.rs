//! Whether a read that finds its ring empty may believe the last wait on the connection's set (see [`sets::last_asked`]).

use crate::state::conn::Conn;
use crate::state::process::PROCESS;
use crate::state::sets::Asked;
use core::sync::atomic::Ordering;
use memlane_sys::time::ticks;

/// For how long the kernel's silence counts, in µs: as long as a blocking read naps, which finds out of a death as late.
const SILENCE_US: u64 = 10_000;

/// Has the kernel just been asked, and told the program nothing since TCP was last looked at?
pub(super) fn counts(conn: &Conn, asked: Asked) -> bool {
    let most = SILENCE_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    conn.looked_after.load(Ordering::Relaxed) == asked.report && asked.is_within(most, ticks())
}

/// TCP has been looked at, and had nothing. The kernel had been `asked` before.
pub(super) fn begins(conn: &Conn, asked: Asked) {
    conn.looked_after.store(asked.report, Ordering::Relaxed);
}
