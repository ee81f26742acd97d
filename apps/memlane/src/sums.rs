//! What a process has counted since it began: numbers that only grow, so that two looks have a difference.

use std::collections::BTreeMap;

use memlane_core::stats::{Counter, SIZE_CLASSES};
use serde::{Deserialize, Serialize};

use crate::page::Page;

/// Counters of one process, or of many.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Debug)]
pub(crate) struct Sums {
    /// By `Counter`; bytes and calls of open connections are in them. One that is not there is 0.
    counters: Vec<u64>,
    /// By code: on connections that the process had made, and accepted.
    pub(crate) reasons: BTreeMap<u32, (u64, u64)>,
    pub(crate) tx_sizes: [u64; SIZE_CLASSES],
    pub(crate) rx_sizes: [u64; SIZE_CLASSES],
}

impl Sums {
    pub(crate) fn of(page: &Page) -> Sums {
        let mut sums = Sums {
            counters: page.counters().to_vec(),
            tx_sizes: page.tx_sizes,
            rx_sizes: page.rx_sizes,
            ..Sums::default()
        };
        for one in &page.fallbacks {
            let (client, server) = sums.reasons.entry(one.reason.0).or_default();
            *client = client.saturating_add(one.client);
            *server = server.saturating_add(one.server);
        }
        // The header counts connections that have ended; the open ones are added to it.
        for conn in &page.conns {
            for (counter, value) in [
                (Counter::TxRingBytes, conn.tx.ring_bytes),
                (Counter::TxTcpBytes, conn.tx.tcp_bytes),
                (Counter::TxCalls, conn.tx.calls),
                (Counter::RxRingBytes, conn.rx.ring_bytes),
                (Counter::RxTcpBytes, conn.rx.tcp_bytes),
                (Counter::RxCalls, conn.rx.calls),
            ] {
                let sum = &mut sums.counters[counter as usize];
                *sum = sum.saturating_add(value);
            }
        }
        sums
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.counters.get(counter as usize).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, more: &Sums) {
        self.each(more, u64::saturating_add);
    }

    /// Each number is at least that of `other`.
    pub(crate) fn raise(&mut self, other: &Sums) {
        self.each(other, u64::max);
    }

    #[cfg(test)]
    pub(crate) fn set(&mut self, counter: Counter, value: u64) {
        let len = self.counters.len().max(counter as usize + 1);
        self.counters.resize(len, 0);
        self.counters[counter as usize] = value;
    }

    /// What was counted since `before`. Nobody vouches for the numbers: one that has shrunk is 0.
    pub(crate) fn less(&self, before: &Sums) -> Sums {
        let mut since = self.clone();
        since.each(before, u64::saturating_sub);
        since.reasons.retain(|_, times| *times != (0, 0));
        since
    }

    fn each(&mut self, other: &Sums, change: impl Fn(u64, u64) -> u64) {
        let len = self.counters.len().max(other.counters.len());
        self.counters.resize(len, 0);
        let pairs = self.counters.iter_mut().zip(&other.counters);
        let sizes = self.tx_sizes.iter_mut().zip(&other.tx_sizes);
        let sizes = sizes.chain(self.rx_sizes.iter_mut().zip(&other.rx_sizes));
        for (mine, theirs) in pairs.chain(sizes) {
            *mine = change(*mine, *theirs);
        }
        for (code, theirs) in &other.reasons {
            let mine = self.reasons.entry(*code).or_default();
            *mine = (change(mine.0, theirs.0), change(mine.1, theirs.1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(n: u64) -> Sums {
        Sums {
            counters: vec![n; 3],
            reasons: [(7, (n, 0)), (8, (1, 1))].into(),
            tx_sizes: [n; SIZE_CLASSES],
            rx_sizes: [0; SIZE_CLASSES],
        }
    }

    #[test]
    fn a_difference_has_what_came_since_and_never_wraps() {
        let since = some(9).less(&some(4));
        assert_eq!((since.counters[2], since.tx_sizes[7]), (5, 5));
        assert_eq!(since.reasons, [(7, (5, 0))].into());
        assert_eq!(some(4).less(&some(9)).counters, [0; 3]);
        assert_eq!(some(4).less(&Sums::default()), some(4));
    }

    #[test]
    fn sums_saturate_and_grow_with_the_longer_list() {
        let mut sum = Sums::default();
        sum.add(&some(u64::MAX));
        sum.add(&some(2));
        assert_eq!(sum.counters, [u64::MAX; 3]);
        assert_eq!(sum.reasons[&7].0, u64::MAX);
        assert_eq!(sum.get(Counter::LinkGroups), 0);
    }
}
