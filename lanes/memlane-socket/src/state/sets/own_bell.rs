//! The set's own bell: an eventfd by which a thread of this process wakes another one that sleeps on the set. The program never
//! sees it.

use super::*;
use libc::c_int;

/// A number that no registration has: it stands for the set's eventfd. The numbers behind it stand for the bells of chunks.
pub(super) const BELL: u64 = 1 << 40;

/// How a descriptor is made that the program does not see, and closed again.
#[derive(Debug)]
pub struct Hiding {
    /// Makes an eventfd; −1: there is none.
    pub make: fn() -> c_int,
    /// Closes it.
    pub close: fn(c_int),
}

/// The set's eventfd. It is made when it is first needed. The caller holds the set's lock.
fn bell(ep: &Ep, hiding: &Hiding) -> Option<c_int> {
    let known = ep.bell.load(Ordering::Relaxed);
    if known > 0 {
        return Some(known);
    }
    let fresh = (hiding.make)();
    let data = base() ^ (BELL << GENERATION_BITS);
    let added = ctl(ep, libc::EPOLL_CTL_ADD, fresh, (libc::EPOLLIN as u32, data));
    if fresh < 0 || added.is_err() {
        (hiding.close)(fresh);
        return None;
    }
    ep.bell.store(fresh, Ordering::Relaxed);
    Some(fresh)
}

/// Who has rung, if an event with this `data` is not the program's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rung {
    /// Another thread of this process, by the set's eventfd.
    Own,
    /// The peer of the chunk with this name.
    Chunk(u32),
}

/// Is this certainly the program's own `data`? It is, unless it lies where the library's numbers lie. With a random
/// [`BASE`], one value in 256 does.
#[inline]
pub(crate) fn is_programs(data: u64) -> bool {
    const LAST: u64 = BELL + 1 + u32::MAX as u64;
    (data ^ BASE.load(Ordering::Relaxed)) >> GENERATION_BITS > LAST
}

/// Who has rung; `None`: the event is the program's.
pub(crate) fn rung_by(data: u64) -> Option<Rung> {
    let number = data ^ BASE.load(Ordering::Relaxed);
    if number & ((1 << GENERATION_BITS) - 1) != 0 {
        return None;
    }
    match (number >> GENERATION_BITS).checked_sub(BELL)? {
        0 => Some(Rung::Own),
        name => u32::try_from(name - 1).ok().map(Rung::Chunk),
    }
}

/// Reads the set's eventfd after it has fired. Returns whether it had.
pub(crate) fn silence(ep: &Ep) -> bool {
    let mut count = 0u64;
    let bell = ep.bell.load(Ordering::Relaxed);
    if bell <= 0 {
        return false; // the eventfd of another process that shares the set, which reads it itself
    }
    // SAFETY: eight bytes, as an eventfd returns them; it does not block.
    let read = unsafe { memlane_sys::syscall!(libc::SYS_read, bell, &raw mut count, 8) };
    read.is_ok()
}

/// The value that is written to a set's eventfd.
static ONE: u64 = 1;

/// Wakes a thread that sleeps on the set, so that it looks at the rings. The library keeps an eventfd of its own in the
/// set, which the program never sees. The caller holds the set's lock.
pub(crate) fn ring_bell(ep: &Ep, hiding: &Hiding) {
    if let Some(bell) = bell(ep, hiding) {
        // SAFETY: eight bytes, as an eventfd takes them.
        let _ = unsafe { memlane_sys::syscall!(libc::SYS_write, bell, &raw const ONE, 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_the_library_passes_for_the_program_s_own_data() {
        let least_and_most = [0, u64::from(u32::MAX)];
        for n in least_and_most {
            for number in [n, BELL + 1 + n] {
                for generation in [0, 0xffff] {
                    let data = base() ^ (number << GENERATION_BITS | generation);
                    assert!(!is_programs(data), "{number} {generation}");
                }
            }
        }
        let beyond = BELL + 2 + u64::from(u32::MAX);
        assert!(is_programs(base() ^ beyond << GENERATION_BITS));
    }
}
