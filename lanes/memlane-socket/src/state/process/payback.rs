//! Whether handshakes pay: where connections end soon after their handshake, later ones begin theirs later.
//!
//! A handshake costs both ends about as much time as thirty exchanges over TCP save later. A program whose connections
//! are all short would be slower with memlane than without it. So each side of the handshake (connecting, accepting)
//! remembers how its last connections ended. [`VAIN_MOST`] handshakes in vain double the number of calls before the next
//! one, and one that has paid halves it.
//!
//! The counts of a side are written without a lock: an update that is lost moves a later handshake by a few connections.

use crate::config;
use crate::state::conn::{Conn, Role};
use core::sync::atomic::{AtomicU32, Ordering};

/// So many handshakes in vain, more than those that paid, double the calls before the next one.
const VAIN_MOST: u32 = 8;
/// A lane that has carried the bytes of so many calls has paid: 64 exchanges of one send and one receive.
const PAYS_CALLS: u64 = 128;
/// So has one that has carried so many bytes, however few the calls were.
const PAYS_BYTES: u64 = 1 << 20;

/// What one side of the handshake remembers.
#[derive(Debug)]
struct Side {
    /// The calls (and bytes) before a handshake are doubled so often.
    doubled: AtomicU32,
    /// Handshakes in vain since the last change of `doubled`.
    vain: AtomicU32,
    /// The most that `doubled` may be.
    most: u32,
}

/// 16 to 512 calls.
static CONNECTING: Side = Side::new(5);
/// 8 to 64 calls. A client whose handshakes begin early gives up after its eighth try, at its 80th call or later, and
/// must find the server listening by then.
static ACCEPTING: Side = Side::new(3);

impl Side {
    const fn new(most: u32) -> Side {
        Side {
            doubled: AtomicU32::new(0),
            vain: AtomicU32::new(0),
            most,
        }
    }

    fn paid(&self) {
        let now = self.doubled.load(Ordering::Relaxed);
        self.doubled.store(now.saturating_sub(1), Ordering::Relaxed);
        self.vain.store(0, Ordering::Relaxed);
    }

    fn in_vain(&self) {
        let vain = self.vain.load(Ordering::Relaxed) + 1;
        if vain < VAIN_MOST {
            self.vain.store(vain, Ordering::Relaxed);
            return;
        }
        let now = self.doubled.load(Ordering::Relaxed);
        self.doubled
            .store((now + 1).min(self.most), Ordering::Relaxed);
        self.vain.store(0, Ordering::Relaxed);
    }
}

fn side(role: Role) -> &'static Side {
    match role {
        Role::Connected => &CONNECTING,
        Role::Accepted => &ACCEPTING,
    }
}

/// How often the calls and bytes before the handshake of a new connection are doubled.
pub fn doubled(role: Role) -> u32 {
    side(role).doubled.load(Ordering::Relaxed)
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
    let side = side(conn.role.load(Ordering::Relaxed));
    let begun = conn.hs_first.load(Ordering::Relaxed);
    let calls = conn.ops();
    if conn.upgraded() && (calls >= begun + PAYS_CALLS || by_ring >= PAYS_BYTES) {
        side.paid();
    } else if calls >= first && calls < begun + PAYS_CALLS {
        side.in_vain();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(side: &Side, vain: u32) -> u32 {
        (0..vain).for_each(|_| side.in_vain());
        side.doubled.load(Ordering::Relaxed)
    }

    #[test]
    fn handshakes_in_vain_put_the_next_ones_off_up_to_a_bound() {
        let side = Side::new(5);
        assert_eq!(after(&side, VAIN_MOST - 1), 0);
        assert_eq!(after(&side, 1), 1);
        assert_eq!(after(&side, VAIN_MOST), 2);
        assert_eq!(after(&side, 100 * VAIN_MOST), 5);
    }

    #[test]
    fn a_handshake_that_has_paid_brings_the_next_ones_forward() {
        let side = Side::new(3);
        after(&side, 100 * VAIN_MOST);
        for left in [2, 1, 0, 0] {
            side.paid();
            assert_eq!(after(&side, 0), left);
        }
    }

    #[test]
    fn a_server_that_puts_its_handshakes_off_waits_for_as_many_bytes_as_its_clients() {
        let least = least_bytes;
        let put_off = |side: &Side, calls| calls << after(side, 100 * VAIN_MOST);
        let client = put_off(&Side::new(CONNECTING.most), config::AUTO_OPS);
        let server = put_off(&Side::new(ACCEPTING.most), config::AUTO_OPS_ACCEPTING);
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
        let side = Side::new(5);
        for _ in 0..1000 {
            assert_eq!(after(&side, VAIN_MOST - 1), 0);
            side.paid();
        }
    }
}
