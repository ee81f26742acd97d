//! How large the windows of this process's connections may be.
//!
//! Windows of up to [`SMALL`] bytes grow freely, unless many streams have such windows ([`crowd`](super::crowd)). Larger ones
//! have two bounds:
//!
//! * **Caches.** The bytes of a stream are fast as long as its window stays in the caches that both CPUs share. So the
//!   streams that use large windows now share [`ROOM`] bytes in equal parts. A stream has a place here while it does,
//!   and for [`UNUSED_US`] afterwards. Each new one makes the others' windows smaller (`Tx::reserve_if`).
//! * **Memory.** A connection whose window grows beyond [`SMALL`] counts until it ends, with the whole of its ring,
//!   since its window may grow and shrink many times.

use crate::state::conn::{Conn, SEEN_LARGE};
use crate::state::crowd::{Crowd, MEDIUM};
use crate::state::process::PROCESS;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use memlane_sys::proc;

/// The largest window that is not counted, in bytes.
const SMALL: usize = 256 * 1024;
/// The bytes that the large windows of a process share, unless one ring has more: the default ring, which is as much as
/// one stream gains from (decision 0042).
const ROOM: usize = 4 << 20;
/// Each of the streams that share has an equal part of the room, rounded down to one of these steps: windows grow by the
/// same factor, and one that shrinks by it soon has its first bytes free.
const STEP: usize = 4;
/// Streams that can have a large window. There is no room for more.
const PLACES: usize = ROOM / SMALL;
/// A stream that has used its large window is counted for this long, in microseconds: longer than the scheduler keeps it
/// waiting, or than it waits for an answer.
const UNUSED_US: u64 = 100_000;
/// The rings of a process's large connections take at most this part of the machine's memory. Linux gives TCP's buffers
/// of all processes about a tenth (`net.ipv4.tcp_mem`).
const SHARE: u64 = 32;

/// The streams that use a large window now.
struct Streams([Place; PLACES]);

/// A stream that uses a large window.
struct Place {
    /// Null: nobody. A sender puts its connection here. The sender of any other stream takes it away when it was not
    /// used for a while, and the end of the connection does. Only ever compared: nothing is ordered by it.
    conn: AtomicPtr<Conn>,
    /// The `ticks` at which its sender last filled its window. A time, by which nothing is ordered.
    used: AtomicU64,
}

static STREAMS: Streams = Streams::new();
/// The streams that use windows of more than [`MEDIUM`] bytes now.
static CROWD: Crowd = Crowd::new();
/// The bytes of the rings of large connections. Each connection adds its own once and takes it back once, by its bit in
/// `Conn::seen`; nothing is ordered by the sum.
static BYTES: AtomicU64 = AtomicU64::new(0);
/// The machine's memory in MiB; 0: not asked yet.
static MEMORY: AtomicU32 = AtomicU32::new(0);

impl Streams {
    const fn new() -> Streams {
        Streams([const { Place::free() }; PLACES])
    }

    /// How many streams share the room with this one, which uses a large window at `now` and counts itself. `None`: all
    /// places are taken. A stream that has not used its window for `unused` loses its place. Times are in `ticks`.
    fn sharing(&self, own: *mut Conn, now: u64, unused: u64) -> Option<usize> {
        let (mut others, mut has_place, mut free) = (0, false, None);
        for place in &self.0 {
            let holder = place.conn.load(Ordering::Relaxed);
            if holder == own {
                place.used.store(now, Ordering::Relaxed);
                has_place = true;
            } else if holder.is_null() || place.is_lost(holder, now, unused) {
                free = Some(place);
            } else {
                others += 1;
            }
        }
        let takes = |place: &Place| {
            place.used.store(now, Ordering::Relaxed);
            place.pass_on(null_mut(), own)
        };
        (has_place || free.is_some_and(takes)).then_some(others + 1)
    }

    fn end(&self, own: *mut Conn) {
        for place in &self.0 {
            place.pass_on(own, null_mut());
        }
    }
}

impl Place {
    const fn free() -> Place {
        Place {
            conn: AtomicPtr::new(null_mut()),
            used: AtomicU64::new(0),
        }
    }

    /// Takes the place away from a stream that has not used its window for `unused`, and returns whether it did.
    fn is_lost(&self, holder: *mut Conn, now: u64, unused: u64) -> bool {
        let since = now.saturating_sub(self.used.load(Ordering::Relaxed));
        since > unused && self.pass_on(holder, null_mut())
    }

    /// Gives the place from one connection, or nobody, to another, or nobody. Returns whether `from` had it.
    fn pass_on(&self, from: *mut Conn, to: *mut Conn) -> bool {
        let passed = self
            .conn
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
        passed.is_ok()
    }
}

/// The window that this connection may have, which wants `wanted` bytes of a ring of `ring` bytes for a write of `write`
/// bytes. The caller has filled its window, and holds `tx_lock`; `now` is in `ticks`.
#[inline]
pub fn window(conn: &Conn, wanted: usize, write: usize, ring: usize, now: u64) -> usize {
    if wanted <= MEDIUM {
        wanted
    } else {
        bounded_window(conn, wanted, write, ring, now)
    }
}

#[cold]
fn bounded_window(conn: &Conn, wanted: usize, write: usize, ring: usize, now: u64) -> usize {
    let unused = UNUSED_US * PROCESS.ticks_per_us.load(Ordering::Relaxed);
    let holds_a_write = conn.tx_writes.window(write);
    let mut wanted = wanted;
    if CROWD.joins(conn.index.load(Ordering::Relaxed), now, unused) {
        wanted = wanted.min(holds_a_write);
    }
    if wanted <= SMALL {
        return wanted;
    }
    match STREAMS.sharing(address(conn), now, unused) {
        Some(streams) if has_memory(conn, ring) => wanted.min(part(ring.max(ROOM), streams)),
        _ => SMALL,
    }
}

/// May the window of this connection grow to `window` bytes, in a ring of `ring` bytes, as far as memory goes? The
/// caller holds `tx_lock`.
pub fn allows(conn: &Conn, window: usize, ring: usize) -> bool {
    window <= SMALL || has_memory(conn, ring)
}

fn has_memory(conn: &Conn, ring: usize) -> bool {
    if conn.seen.load(Ordering::Relaxed) & SEEN_LARGE != 0 {
        return true;
    }
    let most = (u64::from(memory_mib()) << 20) / SHARE;
    let more = |bytes: u64| bytes.checked_add(ring as u64).filter(|&sum| sum <= most);
    let taken = BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    if taken.is_ok() {
        conn.seen.fetch_or(SEEN_LARGE, Ordering::Relaxed);
    }
    taken.is_ok()
}

/// The part of a room of `room` bytes that each of `streams` streams gets, in bytes: at least [`SMALL`].
fn part(room: usize, streams: usize) -> usize {
    let mut part = room;
    while part * streams > room {
        part /= STEP;
    }
    part.max(SMALL)
}

fn address(conn: &Conn) -> *mut Conn {
    core::ptr::from_ref(conn).cast_mut()
}

/// The connection is over, and no thread uses it: its ring of `ring` bytes does not count any more.
pub fn end(conn: &Conn, ring: usize) {
    if conn.seen.load(Ordering::Relaxed) & SEEN_LARGE == 0 {
        return;
    }
    conn.seen.fetch_and(!SEEN_LARGE, Ordering::Relaxed);
    BYTES.fetch_sub(ring as u64, Ordering::Relaxed);
    STREAMS.end(address(conn));
}

fn memory_mib() -> u32 {
    let known = MEMORY.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mib = u32::try_from(proc::memory() >> 20)
        .unwrap_or(u32::MAX)
        .max(1);
    MEMORY.store(mib, Ordering::Relaxed);
    mib
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNUSED: u64 = 100;

    fn conn(n: usize) -> *mut Conn {
        core::ptr::without_provenance_mut(n)
    }

    #[test]
    fn streams_share_the_room_in_equal_parts_that_are_windows() {
        let parts = [1, 2, 4, 5, 8, 16].map(|streams| part(ROOM, streams));
        assert_eq!(parts, [ROOM, ROOM / 4, ROOM / 4, SMALL, SMALL, SMALL]);
        assert_eq!(
            part(64 << 20, 16),
            4 << 20,
            "rings that the user made larger"
        );
        for streams in 1..=PLACES {
            assert!(part(ROOM, streams) * streams <= ROOM);
        }
    }

    #[test]
    fn a_stream_counts_while_it_uses_its_window_and_a_while_longer() {
        let streams = Streams::new();
        let at = |n, now| streams.sharing(conn(n), now, UNUSED);
        assert_eq!(
            (at(1, 10), at(1, 20), at(2, 30)),
            (Some(1), Some(1), Some(2))
        );
        assert_eq!(at(1, 130), Some(2), "unused for exactly that long");
        assert_eq!(at(1, 131), Some(1), "alone again");
        assert_eq!(at(2, 132), Some(2), "it comes back");
        streams.end(conn(1));
        assert_eq!(at(2, 133), Some(1));
        // Clocks of two CPUs may differ.
        assert_eq!(at(3, 20), Some(2));
    }

    #[test]
    fn a_stream_for_which_there_is_no_place_waits_until_one_is_free() {
        let streams = Streams::new();
        let at = |n, now| streams.sharing(conn(n), now, UNUSED);
        for n in 1..=PLACES {
            assert_eq!(at(n, 5), Some(n));
        }
        assert_eq!(at(PLACES + 1, 6), None);
        streams.end(conn(7));
        assert_eq!(at(PLACES + 1, 6), Some(PLACES));
        assert_eq!(at(PLACES + 2, 106), Some(2), "all but one are over");
    }

    #[test]
    fn threads_that_come_and_go_at_once_leave_no_place_behind() {
        let streams = Streams::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let streams = &streams;
                scope.spawn(move || {
                    for turn in 0..20_000 {
                        let own = conn(1 + thread + 4 * (turn % 8));
                        // Each takes places away from the others, which may be in the middle of it.
                        let sharing = streams.sharing(own, turn as u64, 1);
                        assert!(sharing.is_none_or(|n| n <= PLACES));
                        if turn % 3 == 0 {
                            streams.end(own);
                        }
                    }
                });
            }
        });
        assert_eq!(streams.sharing(conn(99), u64::MAX, 1), Some(1));
    }
}
