//! Descriptors of our own, kept out of the program's sight.

use super::*;

/// Descriptors of our own (mailbox, stats page, name sockets), which the
/// program must neither see nor close. 0 = free.
static HIDDEN: [AtomicI32; 1024] = [const { AtomicI32::new(0) }; 1024];
static HIDDEN_COUNT: AtomicU32 = AtomicU32::new(0);
/// The lowest number that was ever one of them.
static HIDDEN_FROM: AtomicI32 = AtomicI32::new(i32::MAX);

/// Moves one of our descriptors out of the program's way and remembers it.
/// Returns its number; closed (and −1) if there is no place to remember it.
pub fn hide(own: fd::Fd) -> i32 {
    let top = fd_limit();
    let own = fd::move_high(own, (top - top / 8).max(3));
    let raw = own.raw();
    for place in &HIDDEN {
        if place
            .compare_exchange(0, raw, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            HIDDEN_COUNT.fetch_add(1, Ordering::Relaxed);
            HIDDEN_FROM.fetch_min(raw, Ordering::Relaxed);
            return own.into_raw();
        }
    }
    -1
}

/// Descriptor numbers are below this.
pub fn fd_limit() -> i32 {
    let limit = proc::limit(libc::RLIMIT_NOFILE);
    i32::try_from(limit.min(FDS as u64)).unwrap_or(1024)
}

/// Closes a hidden descriptor.
pub fn unhide(n: i32) {
    for place in &HIDDEN {
        if n > 0
            && place
                .compare_exchange(n, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            HIDDEN_COUNT.fetch_sub(1, Ordering::Relaxed);
            fd::close(n);
            return;
        }
    }
}

/// Is `n` one of ours?
#[inline]
pub fn is_hidden(n: i32) -> bool {
    n >= HIDDEN_FROM.load(Ordering::Relaxed)
        && HIDDEN_COUNT.load(Ordering::Relaxed) != 0
        && HIDDEN.iter().any(|p| p.load(Ordering::Relaxed) == n)
}

/// The lowest hidden descriptor at or above `n`.
pub fn next_hidden(n: i32) -> Option<i32> {
    HIDDEN
        .iter()
        .map(|p| p.load(Ordering::Relaxed))
        .filter(|&h| h > 2 && h >= n)
        .min()
}

/// The program wants number `n`, where one of ours lies: ours moves.
pub fn evade(n: i32) {
    for place in &HIDDEN {
        if place.load(Ordering::Relaxed) == n {
            // SAFETY: no pointers are passed.
            let moved =
                unsafe { memlane_sys::syscall!(libc::SYS_fcntl, n, libc::F_DUPFD_CLOEXEC, n + 1) };
            let Ok(moved) = moved.map(fd::as_fd) else {
                return;
            };
            place.store(moved, Ordering::Relaxed);
            files::renumbered(n, moved);
            each_ep(|ep| {
                let _ = ep
                    .bell
                    .compare_exchange(n, moved, Ordering::Relaxed, Ordering::Relaxed);
            });
            for known in [&PROCESS.mailbox, &PROCESS.agent, &PROCESS.trace_fd] {
                let _ = known.compare_exchange(n, moved, Ordering::AcqRel, Ordering::Relaxed);
            }
            return;
        }
    }
}

/// In the child of a fork: the parent's hidden descriptors are not ours, but for
/// those of memory that inherited connections may need.
pub fn close_hidden() {
    for place in &HIDDEN {
        let n = place.load(Ordering::Relaxed);
        if n > 2 && !files::is_kept_file(n) {
            unhide(n);
        }
    }
}
