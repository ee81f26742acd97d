//! Which lane the bytes took, by the servers' own stats pages.

use std::collections::{BTreeMap, HashSet};

use memlane_core::stats::Counter;
use memlane_observe::page::Page;
use memlane_observe::processes;

/// Totals over all connections of some processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes sent and received through the ring.
    pub(crate) ring: u64,
    /// Bytes sent and received through TCP.
    pub(crate) tcp: u64,
    /// Stats pages found: without one nothing is known.
    pub(crate) pages: usize,
    /// Connections that stayed on or went back to TCP, by reason code.
    pub(crate) reasons: BTreeMap<u32, u64>,
}

impl Usage {
    /// What was added since `before`.
    pub(crate) fn since(&self, before: &Usage) -> Usage {
        let reasons = self.reasons.iter().filter_map(|(&code, &count)| {
            let more = count.saturating_sub(before.reasons.get(&code).copied().unwrap_or(0));
            (more > 0).then_some((code, more))
        });
        Usage {
            ring: self.ring.saturating_sub(before.ring),
            tcp: self.tcp.saturating_sub(before.tcp),
            pages: self.pages,
            reasons: reasons.collect(),
        }
    }

    /// Adds another round's, or another server's.
    pub(crate) fn add(&mut self, other: &Usage) {
        self.ring = self.ring.saturating_add(other.ring);
        self.tcp = self.tcp.saturating_add(other.tcp);
        self.pages = self.pages.max(other.pages);
        for (&code, &count) in &other.reasons {
            let sum = self.reasons.entry(code).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    fn of_page(page: &Page) -> Usage {
        let ended = |counters: [Counter; 2]| {
            let [first, second] = counters.map(|counter| page.counter(counter));
            first.saturating_add(second)
        };
        // The counters hold connections that have ended; the others are summed here.
        let mut usage = Usage {
            ring: ended([Counter::TxRingBytes, Counter::RxRingBytes]),
            tcp: ended([Counter::TxTcpBytes, Counter::RxTcpBytes]),
            pages: 1,
            reasons: BTreeMap::new(),
        };
        for flow in page.conns.iter().flat_map(|conn| [conn.tx, conn.rx]) {
            usage.ring = usage.ring.saturating_add(flow.ring_bytes);
            usage.tcp = usage.tcp.saturating_add(flow.tcp_bytes);
        }
        for fallback in &page.fallbacks {
            let count = fallback.client.saturating_add(fallback.server);
            usage.reasons.insert(fallback.reason.0, count);
        }
        usage
    }
}

/// Reads the pages of `pids`; one that several processes show is counted once.
pub(crate) fn usage_of(pids: &[u32]) -> Usage {
    let mut seen = HashSet::new();
    let mut sum = Usage::default();
    for process in pids.iter().filter_map(|&pid| processes::process(pid)) {
        if seen.insert((process.page.gid, process.page.pid)) {
            let pages = sum.pages + 1;
            sum.add(&Usage::of_page(&process.page));
            sum.pages = pages;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(ring: u64, tcp: u64, code: u32, count: u64) -> Usage {
        Usage {
            ring,
            tcp,
            pages: 1,
            reasons: [(code, count)].into(),
        }
    }

    #[test]
    fn a_process_without_a_page_is_known_by_that() {
        // This one may have a page: other tests open lanes by name.
        let mut other = std::process::Command::new("sleep");
        let mut other = other.arg("60").spawn().expect("sleep runs");
        let usage = usage_of(&[other.id()]);
        other.kill().expect("it is there");
        other.wait().expect("it ends");
        assert_eq!(usage.pages, 0);
    }

    #[test]
    fn a_row_is_charged_only_what_was_added_while_it_ran() {
        let row = usage(900, 100, 7, 3).since(&usage(400, 100, 7, 3));
        assert_eq!((row.ring, row.tcp), (500, 0));
        assert!(row.reasons.is_empty());
    }

    #[test]
    fn rounds_add_up_by_reason() {
        let mut sum = usage(90, 10, 7, 1);
        sum.add(&usage(0, 100, 8, 2));
        sum.add(&usage(0, 0, 7, 2));
        assert_eq!((sum.ring, sum.tcp), (90, 110));
        assert_eq!(sum.reasons, [(7, 3), (8, 2)].into());
    }
}
