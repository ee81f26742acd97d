//! When each peer process was last seen to read.
//!
//! A process that receives many streams comes back to one of them after it has read from the others, which may take long. Senders
//! that wait for room note what they see it read. So the sender of a stream that is not read can tell a receiver that is busy with
//! other streams from one that has stopped.

use super::foreign::GROUPS;
use crate::state::far::far;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

far! {
    /// `ticks` at which the peer of each link group was last seen to read. Any thread that waits for room writes and reads it, relaxed:
    /// it only says how long to wait.
    static SEEN: [AtomicU64; GROUPS] = [const { AtomicU64::new(0) }; GROUPS];
}

/// The process that receives from a connection.
#[derive(Default, Debug)]
pub struct Reader {
    /// Index of its link group + 1; 0: not known. Set before the lane opens.
    group: AtomicU32,
}

impl Reader {
    /// The connection's peer is in link group `group` − 1; 0: it is in none.
    pub fn begin(&self, group: u32) {
        self.group.store(group, Ordering::Relaxed);
    }

    /// The peer has been seen to read, at this time in `ticks`.
    pub fn has_read(&self, now: u64) {
        if let Some(seen) = self.seen() {
            seen.store(now, Ordering::Relaxed);
        }
    }

    /// Was the peer seen to read in the last `within` ticks before `now`?
    pub fn reads(&self, now: u64, within: u64) -> bool {
        // Another thread may have noted a time behind `now`.
        self.seen()
            .is_some_and(|seen| now.saturating_sub(seen.load(Ordering::Relaxed)) <= within)
    }

    fn seen(&self) -> Option<&'static AtomicU64> {
        let group = self.group.load(Ordering::Relaxed) as usize;
        SEEN.get(group.checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_reads_for_a_while_after_it_was_seen_to_by_any_of_its_connections() {
        let readers = [const {
            Reader {
                group: AtomicU32::new(0),
            }
        }; 3];
        readers[0].begin(900);
        readers[1].begin(900);
        readers[2].begin(901);
        assert!(!readers[0].reads(1_000_000, 100), "it was never seen");
        readers[1].has_read(1_000_000);
        assert!(readers[0].reads(1_000_100, 100));
        assert!(!readers[0].reads(1_000_101, 100));
        assert!(readers[0].reads(999_999, 100), "another thread was faster");
        assert!(!readers[2].reads(1_000_000, 100), "that is another peer");
        let none = Reader::default();
        none.has_read(1_000_000);
        assert!(!none.reads(1_000_000, 100));
    }
}
