//! What is counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of one connection. Only its thread writes them.
#[derive(Debug, Default)]
pub(super) struct ConnStats {
    pub(super) requests: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
}

/// Adds without a locked instruction: there is one writer.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    let now = counter.load(Ordering::Relaxed);
    counter.store(now.wrapping_add(n), Ordering::Relaxed);
}

impl ConnStats {
    pub(super) fn counters(&self) -> Counters {
        Counters {
            requests: self.requests.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }
}

/// What was done for clients.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Requests that came.
    pub requests: u64,
    /// Those that ended with an error.
    pub errors: u64,
    /// Bytes of successful reads.
    pub read_bytes: u64,
    /// Bytes of successful writes.
    pub written_bytes: u64,
}

impl Counters {
    pub(super) fn and(self, other: Counters) -> Counters {
        Counters {
            requests: self.requests.wrapping_add(other.requests),
            errors: self.errors.wrapping_add(other.errors),
            read_bytes: self.read_bytes.wrapping_add(other.read_bytes),
            written_bytes: self.written_bytes.wrapping_add(other.written_bytes),
        }
    }
}

/// One client, as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Its address, or `unix`.
    pub peer: String,
    /// The export that it uses; none while it negotiates.
    pub export: Option<String>,
    /// Encrypted.
    pub tls: bool,
    /// What was done for it.
    pub counters: Counters,
}

/// A server, as it is now.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Snapshot {
    /// Clients.
    pub connections: Vec<Connection>,
    /// Clients since the server began, also those that are gone.
    pub accepted: u64,
    /// Those that were sent away because there were too many.
    pub turned_away: u64,
    /// Those whose handshake failed or took too long.
    pub failed_handshakes: u64,
    /// What was done for all of them.
    pub total: Counters,
}
