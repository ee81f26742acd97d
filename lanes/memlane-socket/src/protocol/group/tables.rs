//! What this process knows of its peers: their processes, and the chunks of both.
//!
//! The tables are long, and most processes use their first places only. So each has a mark behind the last place that was ever
//! used, and a search ends at the mark.

use super::Line;
use crate::protocol::agent::Across;
use crate::state::far::far;
use crate::state::foreign;
pub use crate::state::idle::CHUNKS;
use crate::state::process::PROCESS;
use crate::state::thread::SleepLockGuard;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use memlane_sys::sock::Addr;

/// The most peer processes at a time.
pub const GROUPS: usize = foreign::GROUPS;

/// The most bytes of a mailbox's name that are kept: the kernel makes names of 5.
const MAILBOX: usize = 8;

/// No chunk has this name: a chunk's number is below [`CHUNKS`].
pub(super) const NOT_TOLD: u32 = u32::MAX;

/// A peer process.
#[derive(Debug)]
pub(super) struct Group {
    /// 0: the place is free.
    pub(super) gid: u64,
    pub(super) pid: i32,
    pub(super) conns: u32,
    pub(super) idle_since: u64,
    /// The life line to that process: it ends with the process.
    pub(super) line: Line,
    /// Where the chunks of both lie, if the process runs on another machine.
    pub(super) across: Option<Across>,
    /// The address that it listens on, if it is a server that takes Proposals by mail …
    pub(super) serves: Addr,
    /// … and the name of its mailbox; length 0: not known.
    pub(super) mailbox: [u8; MAILBOX],
    pub(super) mailbox_len: u8,
}

impl Group {
    pub(super) const NONE: Group = Group {
        gid: 0,
        pid: 0,
        conns: 0,
        idle_since: 0,
        line: Line::NONE,
        across: None,
        serves: Addr {
            ip: [0; 16],
            port: 0,
        },
        mailbox: [0; MAILBOX],
        mailbox_len: 0,
    };
}

/// A chunk of ours.
#[derive(Debug)]
pub(super) struct OwnChunk {
    pub(super) group: u32,
    /// 0: the place is free.
    pub(super) ring_size: u32,
    pub(super) used: u64,
    pub(super) quarantine: u64,
    pub(super) fd: i32,
    /// The sender's end of the chunk's bell, until the sender has it; 0: none.
    pub(super) their_bell: i32,
    pub(super) acked: bool,
}

impl OwnChunk {
    pub(super) const NONE: OwnChunk = OwnChunk {
        group: 0,
        ring_size: 0,
        used: 0,
        quarantine: 0,
        fd: 0,
        their_bell: 0,
        acked: false,
    };
}

/// A chunk of a peer's.
#[derive(Debug)]
pub(super) struct PeerChunk {
    pub(super) group: u32,
    /// The peer's name of it; [`NOT_TOLD`]: the agent has shown it, and the peer has not named it yet.
    pub(super) id: u32,
    pub(super) ring_size: u32,
    /// `None`: the place is free.
    pub(super) base: Option<NonNull<u8>>,
    /// How this process rings its bell: a place in `state::process::bells`, +1; 0: not at all.
    pub(super) bell: u32,
}

impl PeerChunk {
    const NONE: PeerChunk = PeerChunk {
        group: 0,
        id: 0,
        ring_size: 0,
        base: None,
        bell: 0,
    };
}

struct Tables {
    groups: UnsafeCell<[Group; GROUPS]>,
    own: UnsafeCell<[OwnChunk; CHUNKS]>,
    peers: UnsafeCell<[PeerChunk; CHUNKS]>,
}

// SAFETY: guarded by PROCESS.group_lock.
unsafe impl Sync for Tables {}

far! {
    static TABLES: Tables = Tables {
        groups: UnsafeCell::new([const { Group::NONE }; GROUPS]),
        own: UnsafeCell::new([const { OwnChunk::NONE }; CHUNKS]),
        peers: UnsafeCell::new([const { PeerChunk::NONE }; CHUNKS]),
    };
}

/// The number of places of a table, from the first on, that have been used since the process began. Written and read with the
/// lock held, and in the child of a fork, which has one thread.
struct Mark(AtomicU32);

impl Mark {
    const fn new() -> Mark {
        Mark(AtomicU32::new(0))
    }

    fn below<'a, T>(&self, table: &'a mut [T]) -> &'a mut [T] {
        let used = (self.0.load(Ordering::Relaxed) as usize).min(table.len());
        &mut table[..used]
    }

    /// The first free place. It counts as used from now on.
    fn take<T>(&self, table: &[T], is_free: impl Fn(&T) -> bool) -> Option<usize> {
        let at = table.iter().position(is_free)?;
        self.0.fetch_max(at as u32 + 1, Ordering::Relaxed);
        Some(at)
    }
}

static USED_GROUPS: Mark = Mark::new();
static USED_OWN: Mark = Mark::new();
static USED_PEERS: Mark = Mark::new();

/// Proof that `PROCESS.group_lock` is held.
pub struct Locked<'a>(#[allow(dead_code)] SleepLockGuard<'a>);

/// Takes the lock. `None`: this thread holds it already, because a signal handler has interrupted it.
pub fn lock() -> Option<Locked<'static>> {
    PROCESS.group_lock.lock().map(Locked)
}

impl Locked<'_> {
    pub(super) fn groups(&mut self) -> &mut [Group; GROUPS] {
        // SAFETY: the lock is held, and `&mut self` allows one borrow at a time.
        unsafe { &mut *TABLES.groups.get() }
    }

    pub(super) fn own(&mut self) -> &mut [OwnChunk; CHUNKS] {
        // SAFETY: as in `groups`.
        unsafe { &mut *TABLES.own.get() }
    }

    pub(super) fn peers(&mut self) -> &mut [PeerChunk; CHUNKS] {
        // SAFETY: as in `groups`.
        unsafe { &mut *TABLES.peers.get() }
    }

    /// The groups up to the mark: those behind it are free.
    pub(super) fn used_groups(&mut self) -> &mut [Group] {
        USED_GROUPS.below(self.groups())
    }

    /// The chunks of ours up to the mark.
    pub(super) fn used_own(&mut self) -> &mut [OwnChunk] {
        USED_OWN.below(self.own())
    }

    /// The peers' chunks up to the mark.
    pub(super) fn used_peers(&mut self) -> &mut [PeerChunk] {
        USED_PEERS.below(self.peers())
    }

    /// A free group among the first `most`.
    pub(super) fn free_group(&mut self, most: usize) -> Option<usize> {
        USED_GROUPS.take(&self.groups()[..most], |g| g.gid == 0)
    }

    /// The number of a chunk of ours that is not in use.
    pub(super) fn free_own(&mut self) -> Option<usize> {
        USED_OWN.take(self.own(), |c| c.ring_size == 0)
    }

    /// A place for a peer's chunk.
    pub(super) fn free_peer(&mut self) -> Option<usize> {
        USED_PEERS.take(self.peers(), |c| c.base.is_none())
    }
}

/// Forgets the parent's peers in the child of a fork. Bells stay, for the connections that the child has inherited. `false`: there
/// were none, and nothing is written: that would give the child pages of its own.
pub(super) fn forget_all() -> bool {
    let marks = [&USED_GROUPS, &USED_OWN, &USED_PEERS];
    if marks.iter().all(|mark| mark.0.load(Ordering::Relaxed) == 0) {
        return false;
    }
    // SAFETY: the child has one thread, and nobody holds the lock.
    let (groups, own, peers) = unsafe {
        (
            &mut *TABLES.groups.get(),
            &mut *TABLES.own.get(),
            &mut *TABLES.peers.get(),
        )
    };
    for g in USED_GROUPS.below(groups) {
        if g.gid != 0 {
            *g = Group::NONE;
        }
    }
    for c in USED_OWN.below(own) {
        (c.ring_size, c.their_bell) = (0, 0);
    }
    for c in USED_PEERS.below(peers) {
        (c.base, c.bell) = (None, 0);
    }
    for mark in marks {
        mark.0.store(0, Ordering::Relaxed);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_looked_at_up_to_the_last_place_that_was_taken() {
        let mark = Mark::new();
        let mut table = [0; 8];
        assert!(mark.below(&mut table).is_empty());
        for place in [0, 1, 2] {
            assert_eq!(mark.take(&table, |&t| t == 0), Some(place));
            table[place] = 7;
            assert_eq!(mark.below(&mut table).len(), place + 1);
        }
        // A place that is free again is taken first, and the mark stays.
        table[1] = 0;
        assert_eq!(mark.take(&table, |&t| t == 0), Some(1));
        assert_eq!(mark.below(&mut table), [7, 0, 7]);
        assert_eq!(mark.take(&[7; 8], |&t| t == 0), None);
    }
}
