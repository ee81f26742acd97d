//! What processes have counted since they began.
//!
//! These numbers only grow, so that two readings have a difference.

use std::collections::BTreeMap;

use memlane_core::stats::{Counter, SIZE_CLASSES};
use serde::{Deserialize, Serialize};

use crate::page::Page;

pub mod table;

/// Counters of one process, or of many added up.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Debug)]
pub struct Counters {
    /// Indexed by [`Counter`]; they include bytes and calls of open connections. A missing one is 0.
    counters: Vec<u64>,
    /// How often each reason for staying on TCP was given, by its code: on connections that the process made, and on
    /// those that it accepted.
    pub reasons: BTreeMap<u32, (u64, u64)>,
    /// Send calls on the memory lane by size class.
    pub tx_sizes: [u64; SIZE_CLASSES],
    /// Receive calls on the memory lane by size class.
    pub rx_sizes: [u64; SIZE_CLASSES],
}

impl Counters {
    /// The counters of one process: those of its page's header, plus bytes and calls of its open connections.
    pub fn of(page: &Page) -> Counters {
        let mut counters = Counters {
            counters: page.counters().to_vec(),
            tx_sizes: page.tx_sizes,
            rx_sizes: page.rx_sizes,
            ..Counters::default()
        };
        for one in &page.fallbacks {
            let (client, server) = counters.reasons.entry(one.reason.0).or_default();
            *client = client.saturating_add(one.client);
            *server = server.saturating_add(one.server);
        }
        // The header covers connections that have ended.
        for conn in &page.conns {
            for (counter, value) in [
                (Counter::TxRingBytes, conn.tx.ring_bytes),
                (Counter::TxTcpBytes, conn.tx.tcp_bytes),
                (Counter::TxCalls, conn.tx.calls),
                (Counter::RxRingBytes, conn.rx.ring_bytes),
                (Counter::RxTcpBytes, conn.rx.tcp_bytes),
                (Counter::RxCalls, conn.rx.calls),
            ] {
                let sum = &mut counters.counters[counter as usize];
                *sum = sum.saturating_add(value);
            }
        }
        counters
    }

    /// One counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters.get(counter as usize).copied().unwrap_or(0)
    }

    /// Adds those of another process. A sum that does not fit stays at the largest number.
    pub fn add(&mut self, more: &Counters) {
        self.each(more, u64::saturating_add);
    }

    /// Raises each number to that of `other`, if that is larger.
    pub fn raise(&mut self, other: &Counters) {
        self.each(other, u64::max);
    }

    /// Sets one counter.
    pub fn set(&mut self, counter: Counter, value: u64) {
        let len = self.counters.len().max(counter as usize + 1);
        self.counters.resize(len, 0);
        self.counters[counter as usize] = value;
    }

    /// What was counted since `before`. A process may write anything to its page: a number that has shrunk gives 0.
    pub fn since(&self, before: &Counters) -> Counters {
        let mut difference = self.clone();
        difference.each(before, u64::saturating_sub);
        difference.reasons.retain(|_, times| *times != (0, 0));
        difference
    }

    fn each(&mut self, other: &Counters, change: impl Fn(u64, u64) -> u64) {
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

    fn some(n: u64) -> Counters {
        Counters {
            counters: vec![n; 3],
            reasons: [(7, (n, 0)), (8, (1, 1))].into(),
            tx_sizes: [n; SIZE_CLASSES],
            rx_sizes: [0; SIZE_CLASSES],
        }
    }

    #[test]
    fn a_difference_has_what_came_since_and_never_wraps() {
        let since = some(9).since(&some(4));
        assert_eq!((since.counters[2], since.tx_sizes[7]), (5, 5));
        assert_eq!(since.reasons, [(7, (5, 0))].into());
        assert_eq!(some(4).since(&some(9)).counters, [0; 3]);
        assert_eq!(some(4).since(&Counters::default()), some(4));
    }

    #[test]
    fn sums_saturate_and_grow_with_the_longer_list() {
        let mut sum = Counters::default();
        sum.add(&some(u64::MAX));
        sum.add(&some(2));
        assert_eq!(sum.counters, [u64::MAX; 3]);
        assert_eq!(sum.reasons[&7].0, u64::MAX);
        assert_eq!(sum.get(Counter::LinkGroups), 0);
    }
}
