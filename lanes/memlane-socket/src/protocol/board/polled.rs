//! How a thread that polls hears the edge of a bell: by an epoll set that holds the bell alone.
//!
//! poll reports what is true, and a bell that has been rung by an [edge](memlane_core::bell::Ring::Edge) looks as before. An
//! edge-triggered set keeps the edge until the thread takes it, so the thread polls the set. A set takes a descriptor, so it is
//! made when a thread first polls for the chunk, and closed when the bell wakes somebody else.

use super::number_of;
use crate::state::far::far;
use crate::state::idle::CHUNKS;
use crate::state::process;
use crate::state::sets::{self, Bell};
use core::sync::atomic::{AtomicI32, Ordering};
use memlane_core::bell::Ring;
use memlane_sys::{Result, epoll, sock};

far! {
    /// The set of each chunk's bell; 0: none. Written by the thread that the bell wakes, or under the groups' lock while nobody
    /// polls for the chunk.
    static SETS: [AtomicI32; CHUNKS] = [const { AtomicI32::new(0) }; CHUNKS];
}

/// What to poll for a bell.
#[derive(Clone, Copy, Debug)]
pub struct Ear {
    /// The bell.
    pub bell: Bell,
    /// The bell's set, or the bell itself.
    pub fd: i32,
    /// How the bell is to be rung.
    pub ring: Ring,
}

impl Ear {
    /// Takes what has been heard: the next ring is heard again. Returns whether the sender may still ring.
    pub fn take(&self) -> bool {
        let events = match self.ring {
            Ring::Byte => None,
            Ring::Edge => epoll::take_edge(self.fd),
        };
        // A sender that may make no edge has sent a byte.
        if self.ring == Ring::Byte || events.is_some_and(epoll::has_bytes) {
            let _ = sock::discard(self.bell.fd);
        }
        !events.is_some_and(epoll::has_hung_up)
    }
}

/// What the calling thread, which this bell wakes, is to poll. Makes the bell's set if there is none.
pub fn ear_of(bell: &Bell) -> Ear {
    let set = &SETS[number_of(bell.chunk) as usize % CHUNKS];
    let known = set.load(Ordering::Relaxed);
    let fd = if known == 0 { make(bell, set) } else { known };
    let (fd, ring) = if fd > 0 {
        (fd, Ring::Edge)
    } else {
        (bell.fd, Ring::Byte)
    };
    Ear {
        bell: *bell,
        fd,
        ring,
    }
}

/// Returns the set, or −1.
#[cold]
fn make(bell: &Bell, set: &AtomicI32) -> i32 {
    let made = || -> Result<_> {
        let made = epoll::create()?;
        epoll::add_edges(made.raw(), bell.fd, 0)?;
        // A bell that comes into a set is reported once.
        let _ = epoll::take_edge(made.raw());
        Ok(made)
    };
    let fd = if sets::are_edges_heard() {
        made().map_or(-1, process::hide)
    } else {
        -1
    };
    match set.compare_exchange(0, fd, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fd,
        // A signal handler that polled meanwhile has made one.
        Err(known) => {
            process::unhide(fd);
            known
        }
    }
}

/// Closes the set of a chunk's bell: nobody polls for it any more.
pub fn close(chunk: u32) {
    process::unhide(SETS[chunk as usize].swap(0, Ordering::Relaxed));
}

/// Descriptor `n` of the library has the number `new` from now on; −1: it is gone.
pub fn renumbered(n: i32, new: i32) {
    for set in &SETS[..super::chunks_in_use()] {
        let _ = set.compare_exchange(n, new.max(0), Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Forgets the parent's sets in the child of a fork.
pub(super) fn forget(chunk: usize) {
    SETS[chunk].store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::sets::Sleeper;

    fn polls_readable(fd: i32) -> bool {
        let mut one = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry that lives until the call returns.
        unsafe { libc::poll(&raw mut one, 1, 0) == 1 }
    }

    /// Chunks that no other test uses.
    fn bell(chunk: u32, fd: i32) -> Bell {
        Bell {
            chunk,
            fd,
            sleeper: Sleeper::NOBODY,
        }
    }

    #[test]
    fn a_polled_bell_is_heard_once_for_each_edge_until_its_sender_is_gone() {
        let (ours, theirs) = sock::unix_stream().expect("a pair");
        let ear = ear_of(&bell(1900, ours.raw()));
        assert_eq!(ear.ring, Ring::Edge);
        assert_eq!(ear_of(&bell(1900, ours.raw())).fd, ear.fd, "one set");
        let is_heard = || polls_readable(ear.fd);
        assert!(!is_heard(), "nothing has rung");
        for _ in 0..2 {
            sock::make_edge(theirs.raw()).expect("an edge");
            assert!(is_heard() && ear.take() && !is_heard());
        }
        // A sender that may make no edge sends bytes, and never finds their place full.
        for _ in 0..1000 {
            sock::send_byte(theirs.raw()).expect("a byte");
            assert!(is_heard() && ear.take() && !is_heard());
        }
        drop(theirs);
        assert!(is_heard() && !ear.take());
        close(1900);
    }

    #[test]
    fn a_bell_that_is_in_no_set_is_rung_by_bytes() {
        let (ours, theirs) = sock::unix_stream().expect("a pair");
        let set = &SETS[1901];
        set.store(-1, Ordering::Relaxed); // no descriptor was left
        let ear = ear_of(&bell(1901, ours.raw()));
        assert_eq!((ear.fd, ear.ring), (ours.raw(), Ring::Byte));
        sock::send_byte(theirs.raw()).expect("a byte");
        assert!(polls_readable(ear.fd) && ear.take() && !polls_readable(ear.fd));
    }
}
