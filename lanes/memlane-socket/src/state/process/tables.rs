//! The memory of the tables: connections, sets and descriptors. It is reserved whole, and takes only the pages in use.

use super::payback::{self, Family};
use super::{CONNS, EPS, FDS, PROCESS, keep_file};
use crate::state::conn::{Conn, SharedState};
use crate::state::sets::Ep;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use memlane_core::region::Region;
use memlane_core::stats;
use memlane_sys::{Errno, mem, proc};

/// The tables that no other process sees lie behind each other in one mapping: a fork copies it as one. The longest is the
/// last, so that the beginnings of the others, which nearly every process uses, share page tables. These are their lengths, in bytes.
const CONNS_LEN: usize = whole_pages(CONNS * size_of::<Conn>());
const EPS_LEN: usize = whole_pages(EPS * size_of::<Ep>());
const FDS_LEN: usize = whole_pages(FDS * size_of::<usize>());
const FREE_LEN: usize = whole_pages(CONNS * size_of::<u32>());
const OWN_LEN: usize = CONNS_LEN + EPS_LEN + FDS_LEN + FREE_LEN;
/// What forked children see, too. All-zero is a fresh value.
#[repr(C)]
struct Shared {
    family: Family,
    states: [SharedState; CONNS],
}
const SHARED_LEN: usize = size_of::<Shared>();
/// The address space that all of them take, and the stats page.
const TABLES_LEN: usize = OWN_LEN + SHARED_LEN + stats::PAGE_LEN;

const fn whole_pages(len: usize) -> usize {
    len.next_multiple_of(mem::PAGE)
}

/// Does the limit on address space leave room for the tables? A program with a tight limit may need all of it.
fn leaves_room() -> bool {
    let limits = [libc::RLIMIT_AS, libc::RLIMIT_DATA].map(proc::limit);
    limits.iter().all(|limit| TABLES_LEN as u64 <= limit / 4)
}

/// Makes all tables, zeroed. Where it fails, none is left behind.
pub(super) fn make() -> memlane_sys::Result<()> {
    if !leaves_room() {
        return Err(Errno(libc::ENOMEM));
    }
    let own = mem::map_anon(OWN_LEN, false)?;
    let shared = make_shared_states();
    // SAFETY: the mapping from above, which nobody knows of yet.
    let shared = shared.inspect_err(|_| unsafe { mem::unmap(own, OWN_LEN) })?;
    // SAFETY: each table begins within the mapping, whose length is the sum of theirs.
    let at = |offset| unsafe { own.add(offset) };
    set(&PROCESS.conn_free, at(0));
    set(&PROCESS.eps, at(FREE_LEN));
    set(&PROCESS.fds, at(FREE_LEN + EPS_LEN));
    #[allow(clippy::cast_possible_truncation)] // 2^20
    PROCESS.fds_len.store(FDS as u32, Ordering::Release);
    set(&PROCESS.conns, at(FREE_LEN + EPS_LEN + FDS_LEN));
    PROCESS.shared_states.store(shared, Ordering::Relaxed);
    Ok(())
}

fn set<T>(table: &AtomicPtr<T>, at: NonNull<u8>) {
    table.store(at.cast().as_ptr(), Ordering::Relaxed);
}

/// Makes the shared states of connections, in memory shared with forked children and, where a memfd can be had, with
/// programs started by exec. In the first process of a family, what the family remembers lies there, too.
pub(super) fn make_shared_states() -> memlane_sys::Result<*mut SharedState> {
    let shared: NonNull<Shared> = map_shared()?.cast();
    // SAFETY: the mapping has the length of a `Shared`, is page aligned and zeroed, and is never unmapped.
    let shared = unsafe { shared.as_ref() };
    payback::begin(NonNull::from(&shared.family));
    Ok(shared.states.as_ptr().cast_mut())
}

/// Maps a zeroed [`Shared`].
fn map_shared() -> memlane_sys::Result<NonNull<u8>> {
    let Ok(mut region) = Region::create(c"memlane-state", SHARED_LEN, false) else {
        return mem::map_anon(SHARED_LEN, true);
    };
    let file = region.take_fd();
    let (base, _) = region.leak();
    if let Some(file) = file {
        keep_file(base, SHARED_LEN, file);
    }
    Ok(base)
}
