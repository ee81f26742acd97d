//! What a volume has done, readable at any time without a lock.

use super::Op;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of shards that queues write to, so that two threads seldom share a cache line.
const SHARDS: usize = 16;

/// A moment's counts. Requests are counted when they are over, as often as their user asked for them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VolumeStats {
    /// Reads that succeeded.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Trims and write-zeroes that succeeded.
    pub trims: u64,
    /// Their bytes.
    pub trim_bytes: u64,
    /// Questions for extents that succeeded.
    pub extents: u64,
    /// Requests that failed, of any kind.
    pub errors: u64,
    /// Requests that were sent again after the server had restarted.
    pub replays: u64,
    /// How often a request had to wait for its volume to be opened again.
    pub waits: u64,
    /// For how long, all together.
    pub waited: Duration,
}

/// One thread's counts, mostly: on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Shard {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    flushes: AtomicU64,
    trims: AtomicU64,
    trim_bytes: AtomicU64,
    extents: AtomicU64,
    errors: AtomicU64,
    replays: AtomicU64,
    waits: AtomicU64,
    waited: AtomicU64,
    /// Writes that were acknowledged, and are in a cache of the server's until a flush.
    dirtied: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Shard {
    pub(crate) fn done(&self, op: Op, bytes: u32) {
        let bytes = u64::from(bytes);
        match op {
            Op::Read => {
                add(&self.reads, 1);
                add(&self.read_bytes, bytes);
            }
            Op::Write => {
                add(&self.writes, 1);
                add(&self.write_bytes, bytes);
            }
            Op::Flush => add(&self.flushes, 1),
            Op::Trim | Op::WriteZeroes => {
                add(&self.trims, 1);
                add(&self.trim_bytes, bytes);
            }
            Op::Extents => add(&self.extents, 1),
        }
    }

    /// Bytes of a request whose rest is yet to be [`done`](Self::done).
    pub(crate) fn moved(&self, op: Op, bytes: usize) {
        match op {
            Op::Read => add(&self.read_bytes, bytes as u64),
            Op::Write => add(&self.write_bytes, bytes as u64),
            _ => {}
        }
    }

    pub(crate) fn failed(&self) {
        add(&self.errors, 1);
    }

    pub(crate) fn replayed(&self) {
        add(&self.replays, 1);
    }

    pub(crate) fn waits(&self) {
        add(&self.waits, 1);
    }

    pub(crate) fn waited(&self, time: Duration) {
        add(
            &self.waited,
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        );
    }

    /// Sequentially consistent: see `Durability::dirty`.
    pub(crate) fn dirtied(&self) {
        self.dirtied.fetch_add(1, Ordering::SeqCst);
    }
}

/// All shards of a volume.
#[derive(Debug, Default)]
pub(crate) struct Counters([Shard; SHARDS]);

impl Counters {
    pub(crate) fn shard(&self, queue: usize) -> &Shard {
        &self.0[queue % SHARDS]
    }

    /// Writes that were acknowledged without being durable. Those that had been when this was called are all in it.
    pub(crate) fn dirtied(&self) -> u64 {
        let each = self.0.iter().map(|s| s.dirtied.load(Ordering::SeqCst));
        each.sum()
    }

    pub(crate) fn snapshot(&self) -> VolumeStats {
        let sum = |of: fn(&Shard) -> &AtomicU64| {
            let each = self.0.iter().map(|s| of(s).load(Ordering::Relaxed));
            each.sum::<u64>()
        };
        VolumeStats {
            reads: sum(|s| &s.reads),
            read_bytes: sum(|s| &s.read_bytes),
            writes: sum(|s| &s.writes),
            write_bytes: sum(|s| &s.write_bytes),
            flushes: sum(|s| &s.flushes),
            trims: sum(|s| &s.trims),
            trim_bytes: sum(|s| &s.trim_bytes),
            extents: sum(|s| &s.extents),
            errors: sum(|s| &s.errors),
            replays: sum(|s| &s.replays),
            waits: sum(|s| &s.waits),
            waited: Duration::from_nanos(sum(|s| &s.waited)),
        }
    }
}
