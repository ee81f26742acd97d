//! What a fork, and the end of the process, mean for connections.

use crate::hooks::start::remember_how_it_paid;
use crate::state::conn::Handshake;
use crate::state::process::{
    PROCESS, appear, close_hidden, config, each_ep, for_live, forget_all_fds, has_tables,
    is_borrowed, keep_agent, leave_to_parent, memory,
};
use crate::state::sets;
use crate::state::thread;
use core::sync::atomic::Ordering;
use memlane_sys::proc;

/// Prepares a fork: waits until no thread is in the middle of anything that the child needs whole, and counts one more
/// holder for every socket.
pub fn before_fork() {
    if !has_tables() {
        return;
    }
    be_quiet();
    for_live(|conn| {
        conn.shared().worn.store(1, Ordering::Relaxed);
        conn.shared().procs.fetch_add(1, Ordering::AcqRel);
    });
}

fn be_quiet() {
    each_ep(sets::flush_dirty);
    core::mem::forget(PROCESS.pool_lock.lock());
    core::mem::forget(PROCESS.group_lock.lock());
    each_ep(|ep| core::mem::forget(ep.lock.lock()));
}

/// Prepares a fork of a program that calls this library by name: the child gets no streams.
pub fn before_fork_alone() {
    if has_tables() {
        be_quiet();
    }
}

/// Forgets all connections in the child of such a fork: it has only copies of the sockets' descriptors.
pub fn in_child_alone() {
    after_fork_child();
    if !has_tables() {
        return;
    }
    forget_all_fds();
    // Connections are never used again here, but holds on them may still be dropped.
    for_live(|conn| conn.refs.store(0, Ordering::Release));
}

/// Ends what [`before_fork`] began, in the parent.
pub fn after_fork_parent() {
    if !has_tables() {
        return;
    }
    each_ep(|ep| ep.lock.reset());
    PROCESS.group_lock.reset();
    PROCESS.pool_lock.reset();
}

/// Makes the child of a fork a process of its own, which shares its sockets with the parent.
pub fn after_fork_child() {
    thread::current().tid.store(0, Ordering::Relaxed);
    PROCESS.pid.store(proc::pid(), Ordering::Relaxed);
    if !has_tables() {
        return;
    }
    each_ep(|ep| {
        ep.lock.reset();
        ep.sleepers.store(0, Ordering::Relaxed);
        ep.inherited.store(1, Ordering::Relaxed);
        ep.bell.store(0, Ordering::Relaxed); // it is the parent's: closed below
    });
    PROCESS.group_lock.reset();
    PROCESS.mail_lock.reset();
    PROCESS.pool_lock.reset();
    if crate::protocol::group::shares_with_machines() {
        keep_agent(PROCESS.agent.load(Ordering::Relaxed));
    }
    crate::protocol::group::forget_all();
    crate::state::foreign::forget_all();
    crate::state::uring::forget_all();
    crate::state::process::stand_in::forget_all();
    crate::protocol::upgrade::forget_all();
    PROCESS.mailbox.store(-1, Ordering::Relaxed);
    PROCESS.agent.store(-1, Ordering::Relaxed);
    PROCESS.loadavg.store(-1, Ordering::Relaxed);
    PROCESS.waiting.store(0, Ordering::Relaxed);
    let mut is_shown = crate::state::trace::is_wanted() || config().stats_on_exit;
    crate::state::trace::forget();
    memory::forget();
    PROCESS
        .gid
        .store(proc::random_u64().unwrap_or(0), Ordering::Relaxed);
    close_hidden();
    leave_to_parent();
    for_live(|conn| {
        conn.inherited.store(1, Ordering::Relaxed);
        conn.worn.store(1, Ordering::Relaxed);
        conn.holds.store(0, Ordering::Relaxed);
        conn.cost.forget();
        conn.naps.reset(); // the thread that naps is the parent's
        conn.hs_lock.reset();
        // SAFETY: the child has one thread.
        unsafe { *conn.hs.get() = Handshake::NEW };
        // No later step of this connection would show the child.
        is_shown |= conn.upgraded() || conn.hs_due.load(Ordering::Relaxed) == u64::MAX;
    });
    if is_shown {
        appear();
    }
}

/// Gives up the process's holds on shared sockets when it exits in an orderly way.
pub fn at_exit() {
    if !has_tables() || is_borrowed() {
        return;
    }
    if config().stats_on_exit {
        crate::state::stats::print_summary();
    }
    for_live(|conn| {
        if crate::state::trace::on() {
            crate::state::trace::closing(conn, true, crate::protocol::lane::unread(conn) > 0);
        }
        crate::protocol::lane::closing(conn);
        remember_how_it_paid(conn);
        conn.shared().procs.fetch_sub(1, Ordering::AcqRel);
    });
}
