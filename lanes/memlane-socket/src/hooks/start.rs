//! How the library begins.

use crate::config::{self, Config};
use crate::hooks::handoff;
use crate::protocol::lane;
use crate::protocol::upgrade;
use crate::state::conn::{Conn, Role};
use crate::state::large;
use crate::state::process::{self, Above, payback};
use crate::state::stats;
use crate::state::trace;
use core::sync::atomic::Ordering;

static ABOVE: Above = Above {
    is_wanted: trace::is_wanted,
    appeared,
    gone,
};

/// Shows the connections that a forked child has from its parent, and makes the trace's page.
fn appeared() {
    process::for_live(stats::open_missing_entry);
    trace::start();
}

/// Gives back whatever a connection without holds still has.
fn gone(conn: &'static Conn, is_as_made: bool) {
    remember_how_it_paid(conn);
    if !is_as_made {
        let_go_of_lane(conn);
    }
    stats::close_entry(conn, is_as_made);
}

#[inline(never)]
fn let_go_of_lane(conn: &'static Conn) {
    upgrade::abandon(conn);
    lane::detach(conn);
    large::end(conn, conn.tx_size.load(Ordering::Relaxed) as usize);
}

/// Remembers for later connections whether the handshake of this one, which ends here, has paid. Another process that holds it may
/// go on using it, and remembers then.
pub(super) fn remember_how_it_paid(conn: &Conn) {
    if conn.shared().procs.load(Ordering::Acquire) != 1 {
        return;
    }
    let accepted = conn.role.load(Ordering::Relaxed) == Role::Accepted;
    let first = process::config().first_step(accepted);
    if conn.ops() >= first || conn.upgraded() {
        payback::ended(conn, first, stats::ring_bytes(conn));
    }
}

/// Reads the settings, and takes over what the previous program of this process has left. The preload library's
/// constructor calls it, or the first hook if that runs earlier.
///
/// `knows_libc`: the program's libc is the one that the hooks were written for. If it is not, they pass every call on.
pub fn start(knows_libc: bool) {
    let mut settings = Config::read(config::env);
    settings.disabled |= !knows_libc;
    if process::begin(settings, &ABOVE) && process::enabled() {
        handoff::adopt();
    }
}

/// Starts with these settings, for a program that calls this library by name. There is nothing to take over: an exec
/// has closed the descriptors of the program before it.
pub fn start_by_name(settings: Config) {
    process::begin(settings, &ABOVE);
    process::set_by_name();
}
