//! How much memory a peer of another network namespace may make this process pay for.
//!
//! The kernel charges a page of a ring to the process that touches it first, which is the sender; the receiver can keep it. Two
//! processes of one network namespace are mostly of one owner. Two that an agent has introduced are mostly of two containers,
//! each with its own limit of memory. So all rings into which this process sends to one such peer process have a bound
//! together: beyond it a ring keeps the window that it has, and TCP takes what does not fit.

use crate::state::far::far;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Link groups of a process (`protocol::group`).
pub const GROUPS: usize = 1024;
/// Bytes of windows, beyond the first of each ring, that one peer process of another network namespace may have: 16 rings of
/// 4 MiB, the default.
const MOST: u64 = 64 << 20;

far! {
    /// What each link group's peer has. A count: nothing is ordered by it. What a connection adds here, it notes in its [`Cost`].
    static HAS: [Account; GROUPS] = [const { Account(AtomicU64::new(0)) }; GROUPS];
}

/// Has there been a foreign peer? Set before the connection counts anything, and cleared in the child of a fork.
static USED: AtomicBool = AtomicBool::new(false);

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

    fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// What a connection's ring costs its sender, where its peer is foreign.
///
/// A sender whose window grows, the holder of `tx_lock`, calls [`allows`](Cost::allows): it reads `group` and adds to `bytes`.
/// The thread that gives the connection's memory back calls [`end`](Cost::end), without that lock: it sets `group` to 0 and
/// takes all of `bytes`. The two may meet. The sender adds first and reads `group` again afterwards; the other sets `group`
/// first and takes afterwards; all four accesses are SeqCst. So either `end` takes what the sender has added, or the sender sees
/// that the connection is over and takes it itself. Each byte is taken once, and given back to the account by whoever took it.
#[derive(Default, Debug)]
pub struct Cost {
    /// Index of the peer's link group + 1; 0: the peer is not foreign, or the connection is over. Set before the lane opens.
    group: AtomicU32,
    /// Bytes that the account holds for this connection.
    bytes: AtomicU64,
}

impl Cost {
    fn account(&self) -> Option<&'static Account> {
        let group = self.group.load(Ordering::SeqCst) as usize;
        HAS.get(group.checked_sub(1)?)
    }

    /// The connection's peer, in link group `group`, is foreign. The connection has no sender yet.
    pub fn begin(&self, group: u32) {
        USED.store(true, Ordering::Relaxed);
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
        self.bytes.fetch_add(more, Ordering::SeqCst);
        let goes_on = self.account().is_some();
        if !goes_on {
            self.give_back(account);
        }
        goes_on
    }

    /// The connection is over: its ring may serve another one.
    pub fn end(&self) {
        if let Some(account) = self.account() {
            self.group.store(0, Ordering::SeqCst);
            self.give_back(account);
        }
    }

    fn give_back(&self, account: &Account) {
        account.give(self.bytes.swap(0, Ordering::SeqCst));
    }

    /// Forgets that the peer is foreign, in the child of a fork, which has one thread: it is the parent that sends.
    pub fn forget(&self) {
        self.group.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }
}

/// Forgets in the child of a fork, which has one thread, what the parent's connections cost: what the child inherits stays on
/// TCP. Each inherited connection must [`forget`](Cost::forget) as well: what it noted is in no account any more.
pub fn forget_all() {
    if USED.load(Ordering::Relaxed) {
        HAS.iter().for_each(Account::forget);
        USED.store(false, Ordering::Relaxed);
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
    fn what_is_added_while_the_connection_ends_is_given_back() {
        const GROUP: u32 = 8;
        let costs: Vec<Cost> = (0..20_000).map(|_| Cost::default()).collect();
        for cost in &costs {
            cost.begin(GROUP);
        }
        std::thread::scope(|both| {
            both.spawn(|| {
                for cost in &costs {
                    while cost.account().is_some() {
                        cost.allows(1, usize::MAX);
                    }
                }
            });
            for cost in &costs {
                while cost.bytes.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                cost.end();
            }
        });
        assert_eq!(HAS[GROUP as usize].0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_inherited_connection_takes_nothing_from_the_child_s_own() {
        const GROUP: u32 = 9;
        let (inherited, own) = (Cost::default(), Cost::default());
        inherited.begin(GROUP);
        assert!(inherited.allows(3 << 20, 4 << 20));
        let account = &HAS[GROUP as usize];
        account.forget();
        inherited.forget();
        own.begin(GROUP);
        assert!(own.allows(2 << 20, 4 << 20));
        assert!(inherited.allows(1 << 20, 4 << 20), "no longer foreign");
        inherited.end();
        assert_eq!(account.0.load(Ordering::Relaxed), 2 << 20);
        own.end();
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
