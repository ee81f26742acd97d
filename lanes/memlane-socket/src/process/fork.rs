//! What happens to all this at a fork and at the end.

use super::*;

/// Is this the child of a vfork (or of another call that shares our memory)?
/// Then nothing of ours may be changed.
pub fn is_borrowed() -> bool {
    proc::pid() != PROCESS.pid.load(Ordering::Relaxed)
}

/// Before a fork: nobody is in the middle of anything that the child needs
/// whole, and every socket has one more holder.
pub fn before_fork() {
    if !PROCESS.tables.load(Ordering::Acquire) {
        return;
    }
    be_quiet();
    for_live(|conn| {
        conn.cell().procs.fetch_add(1, Ordering::AcqRel);
    });
}

fn be_quiet() {
    each_ep(crate::wait::epoll::flush);
    core::mem::forget(PROCESS.pool_lock.lock());
    core::mem::forget(PROCESS.group_lock.lock());
    each_ep(|ep| core::mem::forget(ep.lock.lock()));
}

/// Before a fork of a program that calls this library by name: its child gets no streams.
pub fn before_fork_alone() {
    if PROCESS.tables.load(Ordering::Acquire) {
        be_quiet();
    }
}

/// After it, in the child: it has copies of the sockets' descriptors, and nothing else of them.
pub fn in_child_alone() {
    after_fork_child();
    if !PROCESS.tables.load(Ordering::Acquire) {
        return;
    }
    for n in 0..fd_high() {
        if let Some(entry) = slot(i32::try_from(n).unwrap_or(-1)) {
            entry.store(0, Ordering::Release);
        }
    }
    // Never used again here: holds on them may still be dropped.
    for_live(|conn| conn.refs.store(0, Ordering::Release));
}

/// After a fork, in the parent.
pub fn after_fork_parent() {
    if !PROCESS.tables.load(Ordering::Acquire) {
        return;
    }
    each_ep(|ep| ep.lock.reset());
    PROCESS.group_lock.reset();
    PROCESS.pool_lock.reset();
}

/// After a fork, in the child: it has the parent's sockets, but a life of its own.
pub fn after_fork_child() {
    thread::current().tid.store(0, Ordering::Relaxed);
    PROCESS.pid.store(proc::pid(), Ordering::Relaxed);
    if !PROCESS.tables.load(Ordering::Acquire) {
        return;
    }
    each_ep(|ep| {
        ep.lock.reset();
        ep.sleepers.store(0, Ordering::Relaxed);
        ep.inherited.store(1, Ordering::Relaxed);
        ep.bell.store(0, Ordering::Relaxed); // the parent's: closed below
    });
    PROCESS.group_lock.reset();
    PROCESS.pool_lock.reset();
    crate::group::forget_all();
    crate::upgrade::forget_all();
    PROCESS.mailbox.store(-1, Ordering::Relaxed);
    PROCESS.waiting.store(0, Ordering::Relaxed);
    crate::trace::forget();
    memory::forget();
    PROCESS
        .gid
        .store(proc::random_u64().unwrap_or(0), Ordering::Relaxed);
    close_hidden();
    new_cells_for_child();
    PROCESS
        .stats
        .store(core::ptr::null_mut(), Ordering::Relaxed);
    make_stats_page();
    crate::trace::start();
    for_live(|conn| {
        conn.inherited.store(1, Ordering::Relaxed);
        conn.holds.store(0, Ordering::Relaxed);
        conn.hs_lock.reset();
        // SAFETY: the child has one thread.
        unsafe { *conn.hs.get() = Handshake::NEW };
        crate::stats::open_entry(conn);
    });
}

/// New connections of a child take cells of its own; the parent's stay mapped
/// for the sockets that both hold.
fn new_cells_for_child() {
    if let Ok(cells) = make_cells() {
        PROCESS.cells.store(cells, Ordering::Relaxed);
    }
}

/// Calls `f` with every connection in use.
pub fn for_live(mut f: impl FnMut(&'static Conn)) {
    let base = PROCESS.conns.load(Ordering::Relaxed);
    for i in 0..PROCESS.conn_high.load(Ordering::Relaxed) {
        // SAFETY: below conn_high, inside the pool.
        let conn = unsafe { &*base.add(i as usize) };
        if conn.refs.load(Ordering::Acquire) != 0 {
            f(conn);
        }
    }
}

/// The process ends in an orderly way: its holds on shared sockets are over.
pub fn at_exit() {
    if !PROCESS.tables.load(Ordering::Acquire) || is_borrowed() {
        return;
    }
    if config().stats_on_exit {
        crate::stats::print_summary();
    }
    for_live(|conn| {
        if crate::trace::on() {
            crate::trace::closing(conn, true);
        }
        crate::lane::closing(conn);
        conn.cell().procs.fetch_sub(1, Ordering::AcqRel);
    });
}

/// State that `ConnEntry` shows.
pub fn show(conn: &Conn, state: ConnState, reason: Reason) {
    if let Some(e) = entry(conn) {
        e.reason.store(reason.0, Ordering::Relaxed);
        e.state.store(state as u32, Ordering::Relaxed);
    }
}
