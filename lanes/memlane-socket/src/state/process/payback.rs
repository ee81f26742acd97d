//! Whether handshakes pay: where connections end soon after their handshake, later ones begin theirs later.
//!
//! A handshake costs both ends about as much time as thirty exchanges over TCP save later. A program whose connections
//! are all short would be slower with memlane than without it. So each side of the handshake (connecting, accepting)
//! remembers how its last connections ended. [`VAIN_MOST`] handshakes in vain double the number of calls before the next
//! one, and one that has paid halves it.
//!
//! A process and those that it has forked remember together. A server that forks a child for each connection would learn
//! nothing otherwise: its children have one connection each.
//!
//! The counts of a side are written without a lock: an update that is lost moves a later handshake by a few connections.

use crate::config;
use crate::state::conn::{Conn, Role};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// So many handshakes in vain, more than those that paid, double the calls before the next one.
const VAIN_MOST: u32 = 8;
/// A lane that has carried the bytes of so many calls has paid: 64 exchanges of one send and one receive.
const PAYS_CALLS: u64 = 128;
/// So has one that has carried so many bytes, however few the calls were.
const PAYS_BYTES: u64 = 1 << 20;

/// The most that a client's calls (and bytes) before a handshake are doubled: 16 to 512 calls.
const MOST_CONNECTING: u32 = 5;
/// The most of a server's: 8 to 64 calls. A client whose handshakes begin early gives up after its eighth try, at its 80th call
/// or later, and must find the server listening by then.
const MOST_ACCEPTING: u32 = 3;

/// What is remembered of one side of the handshake. Any process of the family writes and reads the words, in no order.
#[repr(C)]
#[derive(Debug)]
struct Side {
    /// The calls (and bytes) before a handshake are doubled so often.
    doubled: AtomicU32,
    /// Handshakes in vain since the last change of `doubled`.
    vain: AtomicU32,
}

/// What a process and those that it has forked remember, in memory that they share. All-zero is a fresh value.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Family {
    connecting: Side,
    accepting: Side,
}

/// What this process's family remembers; null: it has made no connection yet. Written once, before the first connection. A forked
/// child keeps its parent's.
static FAMILY: AtomicPtr<Family> = AtomicPtr::new(null_mut());

/// Remembers there what comes, unless this process has a family. The memory is never unmapped.
pub(super) fn begin(family: NonNull<Family>) {
    let none = null_mut();
    let _ = FAMILY.compare_exchange(none, family.as_ptr(), Ordering::Release, Ordering::Relaxed);
}

impl Side {
    fn paid(&self) {
        let now = self.doubled.load(Ordering::Relaxed);
        self.doubled.store(now.saturating_sub(1), Ordering::Relaxed);
        self.vain.store(0, Ordering::Relaxed);
    }

    fn in_vain(&self, most: u32) {
        let vain = self.vain.load(Ordering::Relaxed).saturating_add(1);
        if vain < VAIN_MOST {
            self.vain.store(vain, Ordering::Relaxed);
            return;
        }
        let now = self.doubled.load(Ordering::Relaxed);
        self.doubled
            .store(now.saturating_add(1).min(most), Ordering::Relaxed);
        self.vain.store(0, Ordering::Relaxed);
    }
}

fn most(role: Role) -> u32 {
    match role {
        Role::Connected => MOST_CONNECTING,
        Role::Accepted => MOST_ACCEPTING,
    }
}

fn side(role: Role) -> Option<&'static Side> {
    // SAFETY: null, or memory that is never unmapped and consists of atomics.
    let family = unsafe { FAMILY.load(Ordering::Acquire).as_ref() }?;
    Some(match role {
        Role::Connected => &family.connecting,
        Role::Accepted => &family.accepting,
    })
}

/// How often the calls and bytes before the handshake of a new connection are doubled.
pub fn doubled(role: Role) -> u32 {
    let doubled = side(role).map_or(0, |side| side.doubled.load(Ordering::Relaxed));
    doubled.min(most(role)) // another process may have written anything
}

/// The number of bytes that make a handshake due which is otherwise due at call `first`. Both sides have the same ratio of bytes
/// and calls, but a server puts off fewer calls than its clients: its bytes are doubled twice as often, so that it listens only to
/// clients that may propose. At the most, both wait for 2 MiB.
pub fn least_bytes(role: Role, first: u64) -> u64 {
    let bytes = first * (config::AUTO_BYTES / config::AUTO_OPS);
    match role {
        Role::Connected => bytes,
        Role::Accepted => bytes * (first / config::AUTO_OPS_ACCEPTING).max(1),
    }
}

/// Notes how a connection has ended whose lane has carried `by_ring` bytes. `first` is the number of calls before a
/// handshake that is not put off.
pub fn ended(conn: &Conn, first: u64, by_ring: u64) {
    let role = conn.role.load(Ordering::Relaxed);
    let Some(side) = side(role) else { return };
    let begun = conn.hs_first.load(Ordering::Relaxed);
    let calls = conn.ops();
    if conn.upgraded() && (calls >= begun + PAYS_CALLS || by_ring >= PAYS_BYTES) {
        side.paid();
    } else if calls >= first && calls < begun + PAYS_CALLS {
        side.in_vain(most(role));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Side {
        Side {
            doubled: AtomicU32::new(0),
            vain: AtomicU32::new(0),
        }
    }

    fn after(side: &Side, vain: u32, most: u32) -> u32 {
        (0..vain).for_each(|_| side.in_vain(most));
        side.doubled.load(Ordering::Relaxed)
    }

    #[test]
    fn handshakes_in_vain_put_the_next_ones_off_up_to_a_bound() {
        let side = fresh();
        assert_eq!(after(&side, VAIN_MOST - 1, 5), 0);
        assert_eq!(after(&side, 1, 5), 1);
        assert_eq!(after(&side, VAIN_MOST, 5), 2);
        assert_eq!(after(&side, 100 * VAIN_MOST, 5), 5);
    }

    #[test]
    fn a_handshake_that_has_paid_brings_the_next_ones_forward() {
        let side = fresh();
        after(&side, 100 * VAIN_MOST, 3);
        for left in [2, 1, 0, 0] {
            side.paid();
            assert_eq!(after(&side, 0, 3), left);
        }
    }

    #[test]
    fn a_server_that_puts_its_handshakes_off_waits_for_as_many_bytes_as_its_clients() {
        let least = least_bytes;
        let client = config::AUTO_OPS << MOST_CONNECTING;
        let server = config::AUTO_OPS_ACCEPTING << MOST_ACCEPTING;
        assert_eq!(least(Role::Connected, client), 2 << 20);
        assert_eq!(least(Role::Accepted, server), 2 << 20);
        assert_eq!(least(Role::Connected, config::AUTO_OPS), config::AUTO_BYTES);
        assert_eq!(
            least(Role::Accepted, config::AUTO_OPS_ACCEPTING),
            config::AUTO_BYTES / 2,
            "and listens earlier, if it puts nothing off"
        );
    }

    #[test]
    fn a_few_short_connections_among_long_ones_put_nothing_off() {
        let side = fresh();
        for _ in 0..1000 {
            assert_eq!(after(&side, VAIN_MOST - 1, 5), 0);
            side.paid();
        }
    }
}
