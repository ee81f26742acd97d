//! The library's own descriptors, which the program does not see.

use super::numbers::Numbers;
use super::*;
use crate::state::far::far;
use crate::state::sets::Hiding;

/// The library's own descriptors (mailbox, stats page, name sockets), which the program must neither see nor close. 0: free.
/// These are the first places: most processes need no more.
static FIRST: [AtomicI32; 8] = [const { AtomicI32::new(0) }; 8];
far! {
    /// The places behind [`FIRST`].
    static OTHERS: [AtomicI32; 2040] = [const { AtomicI32::new(0) }; 2040];
}
far! {
    /// The numbers that are in these places. Whoever writes a place there writes this, too. Read at each close of the program's.
    static NUMBERS: Numbers = Numbers::NONE;
}

/// Places from this one on were never used. Raised before a place is taken; to look at the others costs a forked
/// child page faults.
static USED: AtomicUsize = AtomicUsize::new(0);

fn places() -> impl Iterator<Item = &'static AtomicI32> {
    FIRST.iter().chain(&OTHERS)
}

fn used() -> impl Iterator<Item = &'static AtomicI32> {
    places().take(USED.load(Ordering::Relaxed))
}

/// The library's descriptors lie from here on if the limit is twice this or more. A program that uses `select` can have no numbers
/// beyond (`FD_SETSIZE`). The kernel's table of descriptors is as long as the highest number in use: each fork copies it, and each
/// look of the agent walks through it. From 2^14 on, a fork took 40 µs longer, and from 3,584 on 20 µs. A program with more
/// descriptors finds these numbers taken, and the kernel gives it the next ones.
const LOWEST_MOST: i32 = 1024;

/// From which number on the library's descriptors lie, if the limit of descriptors is `limit`: in the top eighth of a low limit,
/// where few programs come.
pub(super) fn lowest_for_own(limit: i32) -> i32 {
    if limit >= 2 * LOWEST_MOST {
        return LOWEST_MOST;
    }
    (limit - limit / 8).max(3)
}

/// Moves a descriptor of the library out of the program's way and remembers it. Returns its number; −1: the table is
/// full, and the descriptor is closed.
pub fn hide(own: fd::Fd) -> i32 {
    let own = fd::move_high(own, lowest_for_own(fd_limit()));
    let raw = own.raw();
    if !NUMBERS.add(raw) {
        return -1;
    }
    for (i, place) in places().enumerate() {
        if place.load(Ordering::Relaxed) != 0 {
            continue;
        }
        USED.fetch_max(i + 1, Ordering::Relaxed);
        if place
            .compare_exchange(0, raw, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return own.into_raw();
        }
    }
    NUMBERS.remove(raw);
    -1
}

/// How an epoll set gets an eventfd that the program does not see.
pub static HIDING: Hiding = Hiding {
    make: || fd::event().map_or(-1, hide),
    close: unhide,
};

/// The limit of descriptor numbers: they are all below it.
pub fn fd_limit() -> i32 {
    let limit = proc::limit(libc::RLIMIT_NOFILE);
    i32::try_from(limit.min(FDS as u64)).unwrap_or(1024)
}

/// Closes a hidden descriptor.
pub fn unhide(n: i32) {
    for place in used() {
        if n > 0
            && place
                .compare_exchange(n, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            NUMBERS.remove(n);
            fd::close(n);
            return;
        }
    }
}

/// Does descriptor `n` belong to the library?
#[inline]
pub fn is_hidden(n: i32) -> bool {
    NUMBERS.has(n)
}

/// The lowest hidden descriptor at or above `n`.
pub fn next_hidden(n: i32) -> Option<i32> {
    used()
        .map(|p| p.load(Ordering::Relaxed))
        .filter(|&h| h > 2 && h >= n)
        .min()
}

/// Moves the library's descriptor `n`, because the program wants this number. Returns its new number: −1 if there is no
/// other, and then it is gone. `None`: `n` is not the library's.
///
/// The tables of the process know the new number then; what the protocol keeps does not, see `upgrade::renumbered`.
pub fn evade(n: i32) -> Option<i32> {
    let place = used().find(|p| p.load(Ordering::Relaxed) == n)?;
    let moved = copied_from(n, n + 1).or_else(|| copied_from(n, 3));
    let moved = moved.filter(|&moved| {
        let marked = NUMBERS.add(moved);
        if !marked {
            fd::close(moved);
        }
        marked
    });
    place.store(moved.unwrap_or(0), Ordering::Release);
    NUMBERS.remove(n);
    let moved = moved.unwrap_or(-1);
    files::renumbered(n, moved);
    bells::renumbered(n, moved);
    stand_in::renumbered(n, moved);
    agents::renumbered(n, moved);
    each_ep(|ep| {
        ep.bells.renumbered(n, moved);
        let bell = &ep.bell;
        let _ = bell.compare_exchange(n, moved.max(0), Ordering::Relaxed, Ordering::Relaxed);
    });
    for known in [
        &PROCESS.mailbox,
        &PROCESS.agent,
        &PROCESS.trace_fd,
        &PROCESS.stats_fd,
        &PROCESS.loadavg,
    ] {
        let _ = known.compare_exchange(n, moved, Ordering::AcqRel, Ordering::Relaxed);
    }
    Some(moved)
}

/// A duplicate of descriptor `n` at a free number, not below `least`.
fn copied_from(n: i32, least: i32) -> Option<i32> {
    // SAFETY: no pointers are passed.
    let copied = unsafe { memlane_sys::syscall!(libc::SYS_fcntl, n, libc::F_DUPFD_CLOEXEC, least) };
    copied.map(fd::as_fd).ok()
}

/// Closes the parent's hidden descriptors in the child of a fork, except for those that inherited connections may need:
/// memory, bells of peers, and connections to agents that have allotted memory.
pub fn close_hidden() {
    for place in used() {
        let n = place.load(Ordering::Relaxed);
        // Most places are free, and to look whether a descriptor is kept takes long.
        if n > 2 && !files::is_kept_file(n) && !bells::is_bell(n) && !agents::is_kept(n) {
            unhide(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{copied_from, hide, is_hidden, lowest_for_own, unhide};
    use memlane_sys::fd;

    #[test]
    fn a_descriptor_is_the_librarys_from_when_it_is_hidden_until_it_is_closed() {
        let of_program = fd::event().expect("a descriptor");
        let own: Vec<i32> = (0..3)
            .map(|_| hide(fd::event().expect("a descriptor")))
            .collect();
        assert!(own.iter().all(|&n| n > 0 && is_hidden(n)), "{own:?}");
        let others = [-1, 0, of_program.raw(), i32::MAX];
        assert!(!others.into_iter().any(is_hidden));
        // A number that is free again belongs to whoever gets it.
        unhide(own[1]);
        let again = copied_from(of_program.raw(), own[1]).expect("a number");
        assert!(is_hidden(own[0]) && is_hidden(own[2]) && !is_hidden(again));
        fd::close(again);
        [own[0], own[2]].into_iter().for_each(unhide);
    }

    #[test]
    fn descriptors_of_the_library_lie_high_but_never_make_the_table_long() {
        assert_eq!(lowest_for_own(0), 3);
        assert_eq!(lowest_for_own(1_024), 896);
        assert_eq!(lowest_for_own(2_047), 1_792);
        for limit in [2_048, 1 << 12, 1 << 20] {
            assert_eq!(lowest_for_own(limit), 1_024);
        }
    }
}
