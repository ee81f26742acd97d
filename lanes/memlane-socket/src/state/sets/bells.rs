//! The bells of a set: the chunks whose connections stay awake while a thread sleeps on the set.
//!
//! The set's descriptor in the kernel holds the bell of each such chunk, beside the program's own descriptors. How a bell
//! is asked for and rung is in [`memlane_core::bell`]. A connection stays awake only if this is its one set, and if it
//! waits for input without `EPOLLONESHOT`; all others are parked before a sleep.

use super::*;
use memlane_core::bell::Ring;

/// The most chunks of one set whose bells it waits for: 2,048 connections. Others are parked before a sleep.
const BELLS: usize = u32::BITS as usize;
/// A bell's bytes are taken after this many rings. A call takes the kernel 1 µs and 1 µs more for each byte, for which the
/// thread that has been rung for waits. The kernel has room for about 280 bytes (`net.core.wmem_default`, and 768 for each).
const TAKEN_EVERY: u32 = 8;

/// The events by which the kernel reports the bytes of a bell.
pub(super) const BYTES: u32 = libc::EPOLLIN as u32 | ET;

/// The bell of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct Bell {
    /// The chunk's name.
    pub chunk: u32,
    /// The descriptor that a thread waits for.
    pub fd: i32,
    /// Whom it wakes.
    pub sleeper: Sleeper,
}

/// A chunk whose bell is in the set.
#[derive(Debug)]
pub(super) struct Place {
    /// The chunk's name, +1; 0: free.
    pub(super) chunk: AtomicU64,
    pub(super) fd: AtomicI32,
    /// The number of rings since its bytes were last taken.
    rings: AtomicU32,
}

/// The bells of a set. Guarded by the set's lock, but for what [`take_down`] does.
#[derive(Debug)]
#[repr(C)]
pub struct Bells {
    /// The number of threads that sleep on the set and rely on its bells.
    pub sleepers: AtomicU32,
    /// A bit for each place that has had a bell since the set was made; it may be free again. A wait looks at these places
    /// only: all of them are 12 cache lines.
    pub(super) used: AtomicU32,
    /// Those of them whose bell the kernel reports [at an edge](edges).
    pub(super) edges: AtomicU32,
    /// Those of which the kernel has been asked to report edges, whether it does or not.
    pub(super) asked: AtomicU32,
    /// `ticks` at which a thread last parked the connections that had been idle.
    pub swept: AtomicU64,
    places: [Place; BELLS],
}

impl Bells {
    pub(super) fn reset(&self) {
        for (_, place) in self.places_used() {
            place.chunk.store(0, Ordering::Relaxed);
        }
        self.used.store(0, Ordering::Relaxed);
        self.edges.store(0, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
        self.sleepers.store(0, Ordering::Relaxed);
        self.swept.store(0, Ordering::Relaxed);
    }

    pub(super) fn places_used(&self) -> impl Iterator<Item = (usize, &Place)> {
        let mut left = self.used.load(Ordering::Relaxed);
        core::iter::from_fn(move || {
            let n = left.trailing_zeros() as usize;
            let place = self.places.get(n)?;
            left &= left - 1;
            Some((n, place))
        })
    }

    /// The names of the chunks, and how their bells are to be rung.
    pub fn chunks(&self) -> impl Iterator<Item = (u32, Ring)> {
        let edges = self.edges.load(Ordering::Relaxed);
        self.places_used().filter_map(move |(n, place)| {
            let name = place.chunk.load(Ordering::Relaxed).checked_sub(1)?;
            let ring = if edges & 1 << n != 0 {
                Ring::Edge
            } else {
                Ring::Byte
            };
            Some((u32::try_from(name).ok()?, ring))
        })
    }

    /// How the bell of this chunk is to be rung.
    pub fn ring_of(&self, chunk: u32) -> Ring {
        let known = self.chunks().find(|(name, _)| *name == chunk);
        known.map_or(Ring::Byte, |(_, ring)| ring)
    }

    /// Descriptor `n` of the library has the number `new` from now on.
    pub fn renumbered(&self, n: i32, new: i32) {
        for (_, place) in self.places_used() {
            let known = &place.fd;
            let _ = known.compare_exchange(n, new, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// May a thread that sleeps on the set rely on bells? If the set lies in another one, or a fork has shared it, the kernel would
/// report a bell to others as news of the set.
pub fn may_have_bells(ep: &Ep) -> bool {
    ep.nested.load(Ordering::Relaxed) == 0 && ep.inherited.load(Ordering::Relaxed) == 0
}

/// Puts a chunk's bell into the set, unless it is there. `is_gone` tells of a chunk whether it is gone. Returns whether
/// the bell is in the set. The caller holds the set's lock.
pub fn hang(ep: &Ep, bell: &Bell, is_gone: impl Fn(u32) -> bool) -> bool {
    let name = u64::from(bell.chunk) + 1;
    let mut used = ep.bells.places_used();
    if used.any(|(_, p)| p.chunk.load(Ordering::Relaxed) == name) {
        return true;
    }
    let is_free = |p: &Place| match p.chunk.load(Ordering::Relaxed) {
        0 => true,
        other => is_gone((other - 1) as u32),
    };
    let mut places = ep.bells.places.iter().enumerate();
    let Some((n, place)) = places.find(|(_, place)| is_free(place)) else {
        return false;
    };
    let added = ctl(ep, libc::EPOLL_CTL_ADD, bell.fd, (BYTES, data_of(name)));
    if !matches!(added, Ok(_) | Err(memlane_sys::Errno(libc::EEXIST))) {
        return false;
    }
    place.fd.store(bell.fd, Ordering::Relaxed);
    place.rings.store(0, Ordering::Relaxed);
    place.chunk.store(name, Ordering::Relaxed);
    ep.bells.edges.fetch_and(!(1 << n), Ordering::Relaxed);
    ep.bells.asked.fetch_and(!(1 << n), Ordering::Relaxed);
    ep.bells.used.fetch_or(1 << n, Ordering::Relaxed);
    true
}

/// The `data` that the kernel keeps for the bell of the chunk with this name, +1.
pub(super) fn data_of(name: u64) -> u64 {
    base() ^ (BELL + name) << GENERATION_BITS
}

/// Takes a chunk's bell out of a set that it no longer wakes: a thread that sleeps there would get up for others' news, and
/// might take the bell's bytes before the thread that they are for has seen them.
///
/// It takes no lock. The chunk has no connections, so nobody hangs its bell, and the place may be another chunk's already.
pub fn take_down(ep: &Ep, bell: &Bell) {
    let name = u64::from(bell.chunk) + 1;
    for (_, place) in ep.bells.places_used() {
        let chunk = &place.chunk;
        let _ = chunk.compare_exchange(name, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
    let _ = ctl(ep, libc::EPOLL_CTL_DEL, bell.fd, (0, 0));
}

/// Notes that the bell of this chunk has rung, as the kernel's `events` tell, and takes its bytes now and then: the kernel
/// reports each ring once, also if the bytes of earlier ones are still there. The caller holds the set's lock.
pub(crate) fn rung(ep: &Ep, chunk: u32, events: u32) {
    if events & libc::EPOLLIN as u32 == 0 {
        return; // an edge has no byte
    }
    let name = u64::from(chunk) + 1;
    let is_it = |(_, p): &(usize, &Place)| p.chunk.load(Ordering::Relaxed) == name;
    let Some((_, place)) = ep.bells.places_used().find(is_it) else {
        return;
    };
    let rings = place.rings.load(Ordering::Relaxed) + 1;
    if rings >= TAKEN_EVERY {
        let _ = memlane_sys::sock::discard(place.fd.load(Ordering::Relaxed));
    }
    place.rings.store(rings % TAKEN_EVERY, Ordering::Relaxed);
}

/// Did the connection have a bell in its set when it last woke up? Takes no lock: a wrong answer costs a wake-up.
pub fn has_bell(regs: &Regs) -> bool {
    regs.iter()
        .any(|reg| marked(reg, REG_BELL) && !reg.ep.load(Ordering::Relaxed).is_null())
}

/// A connection is about to wake up while threads sleep on the set. If it is the only one that is awake, the threads sleep
/// without end: one of them gets up, so that it looks now and then. The caller holds the set's lock.
pub fn count_on_bell(ep: &Ep, hiding: &Hiding) {
    if ep.belled.load(Ordering::Relaxed).is_null() {
        ring_bell(ep, hiding);
    }
}

#[cfg(test)]
mod tests;
