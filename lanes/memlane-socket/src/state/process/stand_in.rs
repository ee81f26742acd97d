//! Hidden descriptors that stand in for a connection or a set where an entry of io_uring is to have a certain result.
//!
//! Each is made when it is first asked for. If the program wants its number it moves, as all hidden descriptors do.

use super::hidden::{hide, unhide};
use core::sync::atomic::{AtomicI32, Ordering};
use memlane_sys::Result;
use memlane_sys::fd::{self, Fd};

/// /dev/null, which takes as many bytes as are to be told; 0: not open.
static NULL: AtomicI32 = AtomicI32::new(0);
/// An eventfd with nothing to read, which does not wait; 0: not open.
static NEVER: AtomicI32 = AtomicI32::new(0);
/// An epoll set in which `NEVER` is, and nothing else; 0: not made.
static SET: AtomicI32 = AtomicI32::new(0);

/// A descriptor whose writes succeed, of any length.
pub fn null() -> i32 {
    of(&NULL, || fd::open_write(c"/dev/null"))
}

/// A descriptor whose reads fail with `EAGAIN`.
pub fn never() -> i32 {
    of(&NEVER, fd::event)
}

/// A set to which [`never`] cannot be added, because it is there, and from which nothing else can be taken.
pub fn set() -> i32 {
    of(&SET, || set_with(never()))
}

/// The descriptor in this place. −1, which every operation refuses with `EBADF`: it cannot be made.
fn of(place: &AtomicI32, make: impl Fn() -> Result<Fd>) -> i32 {
    let known = place.load(Ordering::Acquire);
    if known > 0 {
        return known;
    }
    let made = make().map_or(-1, hide);
    if made <= 0 {
        return -1;
    }
    match place.compare_exchange(0, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(another) => {
            unhide(made);
            another
        }
    }
}

fn set_with(fd: i32) -> Result<Fd> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let set = fd::epoll()?;
    // SAFETY: `event` lives until the call returns.
    unsafe {
        memlane_sys::syscall!(
            libc::SYS_epoll_ctl,
            set.raw(),
            libc::EPOLL_CTL_ADD,
            fd,
            &raw mut event
        )
    }?;
    Ok(set)
}

/// A hidden descriptor has got another number; −1: it is gone. A set knows its member by the number, so it is made anew.
pub fn renumbered(n: i32, new: i32) {
    if NEVER.load(Ordering::Relaxed) == n {
        unhide(SET.swap(0, Ordering::AcqRel));
    }
    for place in [&NULL, &NEVER, &SET] {
        let _ = place.compare_exchange(n, new.max(0), Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Forgets all of them in the child of a fork, whose hidden descriptors are about to be closed.
pub fn forget_all() {
    for place in [&NULL, &NEVER, &SET] {
        // A write would give the child a page of its own.
        if place.load(Ordering::Relaxed) != 0 {
            place.store(0, Ordering::Relaxed);
        }
    }
}
