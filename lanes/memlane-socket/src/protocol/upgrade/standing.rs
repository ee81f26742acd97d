//! The state of an upgrade as users see it, and the calls that restart, refuse or end it.

use super::refuse;
use crate::config::Upgrade;
use crate::state::conn::{Conn, RxMode, Stage, TxMode};
use crate::state::process;
use core::sync::atomic::Ordering;
use memlane_core::reason::Reason;
use memlane_core::stats::{ConnState, Counter};
use memlane_sys::time;

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// On TCP; the handshake is not over.
    Pending,
    /// The memory lane is open.
    Memory,
    /// On TCP for good, with the reason.
    Tcp(Reason),
}

/// Where does this connection stand? For a lane that has ended, the reason comes from the stats page if it is there.
pub fn standing(conn: &Conn) -> Standing {
    let barred = Reason(conn.barred.load(Ordering::Acquire));
    let shown =
        || process::entry(conn).map_or(barred, |e| Reason(e.reason.load(Ordering::Relaxed)));
    if conn.upgraded() {
        let over = matches!(conn.rx_mode(), RxMode::Drain | RxMode::Ended);
        return match (over && conn.tx_mode() == TxMode::Ended, barred) {
            (false, _) => Standing::Memory,
            (true, Reason::NONE) => Standing::Tcp(shown()),
            (true, why) => Standing::Tcp(why),
        };
    }
    match barred {
        Reason::NONE => Standing::Pending,
        // The peer declined: its own reason says more.
        Reason::PEER_DECLINED => {
            let peers = process::entry(conn).map_or(0, |e| e.peer_reason.load(Ordering::Relaxed));
            Standing::Tcp(if peers == 0 { barred } else { Reason(peers) })
        }
        why => Standing::Tcp(why),
    }
}

/// Starts the count of tries anew: the other side has only now begun to use the connection, so earlier tries do not
/// count.
pub fn hope_again(conn: &Conn) {
    if let Some(_held) = conn.hs_lock.try_lock() {
        // SAFETY: hs_lock is held.
        let hs = unsafe { &mut *conn.hs.get() };
        if matches!(hs.stage, Stage::Idle | Stage::Listening) && hs.since != 0 {
            (hs.tries, hs.looks, hs.since) = (0, 0, time::now_ns());
        }
    }
}

/// Notes that the connection is connected.
pub fn connected(conn: &Conn) {
    crate::state::stats::connected(conn);
    if process::config().upgrade == Upgrade::Off {
        bar(conn, Reason::CNF_ERR);
    }
}

/// Bars the connection like [`bar`], and ends a handshake that is in progress.
pub fn give_up(conn: &Conn, why: Reason) {
    if let Some(_held) = conn.hs_lock.try_lock() {
        // SAFETY: hs_lock is held.
        let hs = unsafe { &mut *conn.hs.get() };
        if !matches!(
            hs.stage,
            Stage::Idle | Stage::Confirming | Stage::Open | Stage::Over
        ) {
            refuse(conn, hs, why, true);
        }
    }
    conn.hs_due.store(u64::MAX, Ordering::Relaxed);
    bar(conn, why);
}

/// Keeps this connection on TCP for good, and ends its lane if it is open.
pub fn bar(conn: &Conn, why: Reason) {
    if conn
        .barred
        .compare_exchange(0, why.0, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
        && !conn.upgraded()
    {
        process::appear();
        process::show(conn, ConnState::Tcp, why);
        crate::state::stats::count_reason(conn, why);
        process::count(Counter::Fallbacks, 1);
    }
    crate::protocol::lane::end(conn, why);
}

/// Stops all upgrades of this process from now on, and ends open lanes. This happens before a filter forbids the calls
/// that it needs, and before the descriptors are used without the hooks.
pub fn freeze(why: Reason) {
    if process::is_borrowed() {
        return; // this is the child of a vfork: the filter holds for the child only
    }
    process::appear();
    let _ = process::PROCESS
        .frozen
        .compare_exchange(0, why.0, Ordering::AcqRel, Ordering::Relaxed);
    if let Some(h) = process::header() {
        h.flags.fetch_or(1, Ordering::Relaxed);
    }
    process::each_conn(0, i32::MAX, |_, conn| give_up(conn, why));
}
