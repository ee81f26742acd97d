//! Counts of what happened in a world.

/// What happened in a world, to see that worlds are not dull.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Operations that were acknowledged.
    pub done: u64,
    /// Operations that failed, by timeout, restart or for want of a path.
    pub failed: u64,
    /// Requests that left a path that went down.
    pub failed_over: u64,
    /// Paths that a client gave up because nothing came.
    pub silent: u64,
    /// Servers that a client found to have forgotten it.
    pub restarts: u64,
    /// Ends that were killed.
    pub kills: u64,
    /// Replays that met their first copy.
    pub joined: u64,
    /// Replays that were given a result.
    pub answered: u64,
    /// Requests that were settled before they came.
    pub settled: u64,
    /// Incarnations of paths that a fence closed.
    pub fenced: u64,
    /// Requests whose permit was their user's.
    pub reserved: u64,
}

impl Report {
    /// Adds another world's.
    pub fn add(&mut self, other: &Report) {
        self.done += other.done;
        self.failed += other.failed;
        self.failed_over += other.failed_over;
        self.silent += other.silent;
        self.restarts += other.restarts;
        self.kills += other.kills;
        self.joined += other.joined;
        self.answered += other.answered;
        self.settled += other.settled;
        self.fenced += other.fenced;
        self.reserved += other.reserved;
    }
}
