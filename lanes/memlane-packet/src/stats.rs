//! What a queue counts.

/// Plain numbers of one queue, its owner's. Grants are counted in
/// [`GrantCounts`](crate::engine::cache::GrantCounts).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueStats {
    /// Frames that came.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames that went.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that were not taken, as the ring was full or no buffers were posted.
    pub full: u64,
    /// Frames that the other side says it could not use.
    pub failed: u64,
    /// Doorbells that were due.
    pub doorbells: u64,
    /// Times that something was shown to the other side and no doorbell was needed: it had not asked for one yet.
    pub quiet: u64,
    /// Fragments that the kernel copied.
    pub copied: u64,
}
