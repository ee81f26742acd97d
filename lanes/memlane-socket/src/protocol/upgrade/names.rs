//! How the two sides of a connection find each other: by rendezvous names or, where these run out, by the mailbox of a
//! process that is known already.
//!
//! A rendezvous name is a socket of its own for each accepted connection, until the Proposal has come. Thousands of
//! young connections would take thousands of descriptors from the program, so only [`most`] names exist at a time. A
//! connection without a name is *expected* nevertheless: a client that has a link group with this process sends its
//! Proposal to the mailbox, and this process finds the connection by its addresses. If it finds none, it says so, and
//! the client tries by name again.

use super::messages::{Sent, To, send};
use crate::config::Upgrade;
use crate::protocol::group;
use crate::protocol::wire::{self, Message};
use crate::state::conn::{Conn, Handshake, Stage};
use crate::state::far::far;
use crate::state::process::ConnRef;
use crate::state::process::{self, CONNS, PROCESS};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use memlane_sys::sock::{self, Tuple, UnixName};
use memlane_sys::{Errno, time};

/// The most rendezvous names at a time, whatever the limit on descriptors …
const MOST: usize = if cfg!(test) { 8 } else { 256 };
/// … and this fraction of that limit.
const OF_LIMIT: usize = 16;
/// A name that has waited this long in vain, in ns, goes to a connection that has none.
const STALE_NS: u64 = 2_000_000_000;

/// With so many names in use, and a Proposal over a life line in the last [`LATELY_NS`], a connection listens without a
/// name at first …
const NAMES_AT_ONCE: u32 = 16;
/// … for so many looks. A client that tries by name tries at its 1st, 2nd, 3rd, 5th, 9th and 17th call.
const NAME_AFTER: u32 = 12;
/// How long a Proposal over a life line speaks for more of them to come, in ns: many turns of a CPU that both ends share.
const LATELY_NS: u64 = 20_000_000;
/// How many names are in use.
static NAMES: AtomicU32 = AtomicU32::new(0);
/// When a Proposal last came over a life line, in monotonic ns. Written by whoever takes it, read when a connection
/// begins to listen; nothing depends on its order.
static BY_LINE: AtomicU64 = AtomicU64::new(0);

far! {
    /// The connections that have a name, by `process::id_of`; 0: free.
    static NAMED: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
}
/// The position in [`NAMED`] that is examined next.
static NEXT_PLACE: AtomicU32 = AtomicU32::new(0);

far! {
    /// Expected connections by their addresses: the first index + 1 of each list; 0: none. The lock of the groups guards
    /// this and `NEXT`.
    static FIRST: [AtomicU32; LISTS] = [const { AtomicU32::new(0) }; LISTS];
}
far! {
    /// The next connection of the same list: index + 1; `LAST`: none; 0: it is in no list.
    static NEXT: [AtomicU32; CONNS] = [const { AtomicU32::new(0) }; CONNS];
}
/// Has any connection begun to listen since this process began? If not, none has a name or is expected. A thread that begins to
/// listen sets it. The child of a fork, which has one thread, reads and clears it.
static HAVE_LISTENED: AtomicBool = AtomicBool::new(false);
const LISTS: usize = 4096;
const LAST: u32 = u32::MAX;

/// The most names that this process may have now.
fn most() -> usize {
    let limit = usize::try_from(process::fd_limit()).unwrap_or(0);
    (limit / OF_LIMIT).clamp(1, MOST)
}

/// Begins to listen on the accepting side: takes a name if one is free, and expects the connection in any case.
pub(super) fn listen_for(conn: &ConnRef, hs: &mut Handshake, tuple: &Tuple) -> Result<(), Errno> {
    HAVE_LISTENED.store(true, Ordering::Relaxed);
    if !is_told_by_line() {
        take_name(conn, hs, tuple)?;
    }
    if let Some(_held) = group::lock() {
        expect(conn, tuple);
    }
    hs.stage = Stage::Listening;
    Ok(())
}

/// Is a new connection likely to be one of many that a known process proposes over its life line? Then a name of its own
/// would be in vain; it takes one later.
fn is_told_by_line() -> bool {
    group::any_speaks()
        && NAMES.load(Ordering::Relaxed) >= NAMES_AT_ONCE
        && time::now_ns().saturating_sub(BY_LINE.load(Ordering::Relaxed)) < LATELY_NS
}

/// Notes that a Proposal has come over a life line.
pub(super) fn told_by_line() {
    BY_LINE.store(time::now_ns(), Ordering::Relaxed);
}

/// May a connection that listens without a name take one now?
pub(super) fn wants_name(hs: &Handshake) -> bool {
    hs.looks >= NAME_AFTER || !is_told_by_line()
}

/// Takes a name for a connection that has none; without a free name it goes on without one.
pub(super) fn take_name(conn: &ConnRef, hs: &mut Handshake, tuple: &Tuple) -> Result<(), Errno> {
    let Some(place) = free_place() else {
        return Ok(());
    };
    let name = UnixName::abstract_name(&wire::rendezvous_name(&tuple.mirrored()))
        .map_err(|_| Errno::INVAL);
    let own = name.and_then(|name| sock::unix_datagram(Some(&name)));
    let fd = match own {
        Ok(own) => process::hide(own),
        Err(e) => {
            place.store(0, Ordering::Release);
            return Err(e);
        }
    };
    if fd < 0 {
        place.store(0, Ordering::Release);
        return Ok(()); // there is no room among the library's descriptors
    }
    hs.name_fd = fd;
    NAMES.fetch_add(1, Ordering::Relaxed);
    place.store(process::id_of(conn), Ordering::Release);
    Ok(())
}

/// Claims a position in `NAMED`: a free one, or that of a connection that has waited long enough.
fn free_place() -> Option<&'static AtomicU64> {
    let free = |place: &AtomicU64| place.load(Ordering::Relaxed) == 0;
    let claim = |place: &&AtomicU64| {
        let taken = place.compare_exchange(0, u64::MAX, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    };
    let places = NAMED.get(..most())?;
    if let Some(place) = places.iter().find(|place| free(place) && claim(place)) {
        return Some(place);
    }
    let next = NEXT_PLACE.fetch_add(1, Ordering::Relaxed) as usize;
    let place = &places[next % places.len()];
    take_back(place);
    Some(place).filter(claim)
}

/// Takes a name back that has waited in vain for too long. Its connection stays expected.
fn take_back(place: &AtomicU64) {
    let Some(conn) = process::conn_by_id(place.load(Ordering::Acquire)) else {
        return;
    };
    let Some(_held) = conn.hs_lock.try_lock() else {
        return;
    };
    // SAFETY: hs_lock is held.
    let hs = unsafe { &mut *conn.hs.get() };
    let stale = hs.stage == Stage::Listening && time::now_ns().saturating_sub(hs.since) > STALE_NS;
    if stale && sock::peek(hs.name_fd) == sock::Peeked::Nothing {
        let_go(&conn, hs);
    }
}

/// Gives the connection's name up.
pub(super) fn let_go(conn: &Conn, hs: &mut Handshake) {
    let fd = core::mem::replace(&mut hs.name_fd, -1);
    if fd < 0 {
        return;
    }
    process::unhide(fd);
    NAMES.fetch_sub(1, Ordering::Relaxed);
    let id = process::id_of(conn);
    if let Some(place) = NAMED.iter().find(|p| p.load(Ordering::Relaxed) == id) {
        place.store(0, Ordering::Release);
    }
}

// --- expected connections ---------------------------------------------------

fn list_of(tuple: &Tuple) -> &'static AtomicU32 {
    let ports = usize::from(tuple.remote.port) ^ usize::from(tuple.local.port) << 5;
    let low = |ip: &[u8; 16]| usize::from(ip[15]) ^ usize::from(ip[14]) << 3;
    &FIRST[(ports ^ low(&tuple.remote.ip) << 7 ^ low(&tuple.local.ip) << 2) % LISTS]
}

/// Adds a connection to the expected ones. The caller holds the lock of the groups.
fn expect(conn: &Conn, tuple: &Tuple) {
    let index = conn.index.load(Ordering::Relaxed);
    let (first, next) = (list_of(tuple), &NEXT[index as usize]);
    if next.load(Ordering::Relaxed) != 0 {
        return;
    }
    let before = first.load(Ordering::Relaxed);
    next.store(if before == 0 { LAST } else { before }, Ordering::Relaxed);
    first.store(index + 1, Ordering::Relaxed);
    PROCESS.waiting.fetch_add(1, Ordering::Relaxed);
}

/// Removes a connection from the expected ones.
pub(super) fn expect_no_more(conn: &Conn) {
    let index = conn.index.load(Ordering::Relaxed);
    if NEXT[index as usize].load(Ordering::Relaxed) == 0 {
        return;
    }
    let Some(_held) = group::lock() else { return };
    let next = NEXT[index as usize].swap(0, Ordering::Relaxed);
    let after = if next == LAST { 0 } else { next };
    // SAFETY: the connection is expected: its tuple has been learnt, and stays.
    let first = list_of(unsafe { &*conn.tuple.get() });
    if first.load(Ordering::Relaxed) == index + 1 {
        first.store(after, Ordering::Relaxed);
    } else {
        let mut at = first.load(Ordering::Relaxed);
        for _ in 0..CONNS {
            if at == 0 || at == LAST {
                break;
            }
            let link = &NEXT[at as usize - 1];
            at = link.load(Ordering::Relaxed);
            if at == index + 1 {
                link.store(next, Ordering::Relaxed);
                break;
            }
        }
    }
    PROCESS.waiting.fetch_sub(1, Ordering::Relaxed);
}

/// The connection that is expected with these addresses.
pub(super) fn expected(tuple: &Tuple) -> Option<ConnRef> {
    let _held = group::lock()?;
    let mut at = list_of(tuple).load(Ordering::Relaxed);
    for _ in 0..CONNS {
        if at == 0 || at == LAST {
            break;
        }
        let conn = process::conn_at(at as usize - 1)?;
        // SAFETY: the connection is expected: its tuple has been learnt, and stays.
        if unsafe { *conn.tuple.get() } == *tuple {
            conn.holds.fetch_add(1, Ordering::AcqRel);
            return Some(ConnRef::counted(conn));
        }
        at = NEXT[at as usize - 1].load(Ordering::Relaxed);
    }
    None
}

/// Forgets all expected connections, in the child of a fork, which has one thread and no handshake in progress.
pub fn forget_all() {
    // A write would give the child a page of its own.
    if !HAVE_LISTENED.load(Ordering::Relaxed) {
        return;
    }
    HAVE_LISTENED.store(false, Ordering::Relaxed);
    for word in FIRST.iter().chain(&NEXT[..process::conns_made()]) {
        word.store(0, Ordering::Relaxed);
    }
    for place in &NAMED {
        place.store(0, Ordering::Relaxed);
    }
    NAMES.store(0, Ordering::Relaxed);
}

// --- Proposals by mail ------------------------------------------------------

/// The result of [`propose`].
pub(super) enum Mailed {
    /// The Proposal is on its way.
    Sent,
    /// The mailbox is full at the moment.
    Full,
    /// No known process serves that address.
    Nobody,
}

/// Sends a Proposal to a process with which there is a link group and that serves this address.
pub(super) fn propose(conn: &ConnRef, hs: &mut Handshake, m: &Message) -> Mailed {
    let known = group::lock().and_then(|mut l| group::server_at(&mut l, &m.tuple.remote, hs.tries));
    let Some(server) = known else {
        return Mailed::Nobody;
    };
    // Who is known to serve there alone is told at once, if there is a line to it and it may have begun: under
    // `--upgrade eager`, it has not read anything before this side's second call. Otherwise the first tries go by name;
    // so does every other one after a process has said that it is not the other end.
    let has_begun = process::config().upgrade == Upgrade::Auto || hs.tries > 0;
    let at_once = server.alone && server.line.is_some() && has_begun;
    if hs.tries < 2 && !at_once || core::mem::replace(&mut hs.by_name, false) {
        return Mailed::Nobody;
    }
    let to = server.line.map_or(To::Name(server.mailbox), To::Line);
    match send(conn, &to, m, [None; 3]) {
        Ok(()) => Mailed::Sent,
        Err(Sent::Later) => Mailed::Full,
        Err(Sent::Never(_)) => Mailed::Nobody,
    }
}
