//! How much memory a peer of another network namespace may make this process pay for.
//!
//! The kernel charges a page of a ring to the process that touches it first, which is the sender; the receiver can keep it. Two
//! processes of one network namespace are mostly of one owner. Two that an agent has introduced are mostly of two containers,
//! each with its own limit of memory. So all rings into which this process sends to one such peer process have a bound
//! together: beyond it a ring keeps the window that it has, and TCP takes what does not fit.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Link groups of a process (`protocol::group`).
pub const GROUPS: usize = 1024;
/// Bytes of windows, beyond the first of each ring, that one peer process of another network namespace may have: 256 rings of
/// the default size.
const MOST: u64 = 64 << 20;

/// What each link group's peer has. Senders whose window grows add to it, under the connection's `tx_lock`; the thread that gives
/// the connection's memory back subtracts. A count: nothing is ordered by it.
static HAS: [Account; GROUPS] = [const { Account(AtomicU64::new(0)) }; GROUPS];

struct Account(AtomicU64);

impl Account {
    fn take(&self, bytes: u64) -> bool {
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |has| {
                has.checked_add(bytes).filter(|&sum| sum <= MOST)
            });
        taken.is_ok()
    }

    fn give(&self, bytes: u64) {
        let less = |has: u64| Some(has.saturating_sub(bytes));
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// What a connection's ring costs its sender, where its peer is foreign.
#[derive(Default, Debug)]
pub struct Cost {
    /// Index of the peer's link group + 1; 0: the peer is not foreign. Set before the lane opens.
    group: AtomicU32,
    /// Bytes that were added for this connection. Only the holder of `tx_lock` adds.
    bytes: AtomicU64,
}

impl Cost {
    fn account(&self) -> Option<&'static Account> {
        let group = self.group.load(Ordering::Relaxed) as usize;
        HAS.get(group.checked_sub(1)?)
    }

    /// The connection's peer, in link group `group`, is foreign.
    pub fn begin(&self, group: u32) {
        self.bytes.store(0, Ordering::Relaxed);
        self.group.store(group + 1, Ordering::Relaxed);
    }

    /// May the window grow by `more` bytes? The caller holds `tx_lock`. The ring has `size` bytes, and is never counted for more,
    /// however often its window shrinks and grows: a peer that says it has given pages back may have kept them.
    pub fn allows(&self, more: usize, size: usize) -> bool {
        let Some(account) = self.account() else {
            return true;
        };
        let bytes = self.bytes.load(Ordering::Relaxed);
        let more = (more as u64).min((size as u64).saturating_sub(bytes));
        if !account.take(more) {
            return false;
        }
        self.bytes.store(bytes + more, Ordering::Relaxed);
        true
    }

    /// The connection is over: its ring may serve another one.
    pub fn end(&self) {
        if let Some(account) = self.account() {
            self.group.store(0, Ordering::Relaxed);
            account.give(self.bytes.swap(0, Ordering::Relaxed));
        }
    }
}

/// Forgets the parent's connections in the child of a fork, which has one thread: what it inherits stays on TCP.
pub fn forget_all() {
    for account in &HAS {
        account.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_counted_once_however_often_its_window_grows() {
        let (cost, other) = (Cost::default(), Cost::default());
        assert!(cost.allows(usize::MAX, usize::MAX), "not foreign");
        cost.begin(7);
        other.begin(7);
        for _ in 0..100 {
            assert!(cost.allows(1 << 20, 4 << 20));
        }
        assert!(other.allows(60 << 20, 64 << 20));
        assert!(!other.allows(1, 64 << 20));
        cost.end();
        assert!(other.allows(4 << 20, 64 << 20));
        other.end();
        assert_eq!(HAS[7].0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_account_never_has_more_than_the_bound_and_takes_back_what_was_given() {
        let account = Account(AtomicU64::new(0));
        assert!(account.take(MOST - 10));
        assert!(!account.take(11));
        assert!(account.take(10));
        assert!(!account.take(1));
        account.give(5);
        assert!(account.take(5));
        assert!(!account.take(u64::MAX));
        account.give(u64::MAX);
        assert!(account.take(MOST));
    }
}
