//! Of a session's ports that sleep, one *watches*: the sockets are in its set. Who does, and who sleeps.

use super::client_port::PortState;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Who is woken by the sockets.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The port that watches, and whether the sockets are in its set.
    pub(super) holder: Option<(Arc<PortState>, bool)>,
    /// Ports that sleep.
    pub(super) asleep: BTreeMap<u64, Arc<PortState>>,
}

/// Who sees to it that what comes is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WatchedBy {
    /// No port needs it.
    Nobody,
    /// A port that sleeps, with the sockets in its set.
    Sleeper,
    /// Ports sleep, and the one that looked for them is away.
    WhoWentAway,
}
