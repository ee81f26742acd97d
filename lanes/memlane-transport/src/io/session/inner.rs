//! What ports, session and background poller share.

use super::super::address::Epoll;
use super::super::client::{Core, Queued};
use super::super::pool::Pool;
use super::super::port_state::PortState;
use crate::engine::leader::Leadership;
use crate::port::News;
use memlane_wait::event::EventFd;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// No port has this number.
pub(super) const NOBODY: u64 = u64::MAX;

/// The poller, and the ports that sleep.
#[derive(Debug, Default)]
pub(super) struct Poller {
    /// The port that is the poller, and whether the sockets are in its epoll set.
    pub(super) port: Option<(Arc<PortState>, bool)>,
    /// Ports that sleep. As many as the word of leadership counts, whenever this is unlocked.
    pub(super) asleep: BTreeMap<u64, Arc<PortState>>,
}

/// What ports, session and background poller share.
///
/// The locks are never held together, but for `ports` and `poller`, under which a port's own are taken.
#[derive(Debug)]
pub(in crate::io) struct Inner {
    /// Who leads, who sleeps, who spins.
    pub(in crate::io) leadership: Leadership<AtomicU64>,
    /// For the leader; and, for a moment, for the session's owner.
    pub(super) core: Mutex<Core>,
    /// The submit queue: requests for the leader.
    pub(super) queue: Mutex<Vec<Queued>>,
    pub(super) pool: OnceLock<Arc<Pool>>,
    pub(super) ports: Mutex<Vec<Arc<PortState>>>,
    pub(super) next_port: AtomicU64,
    /// All sockets.
    pub(super) sockets: Arc<Epoll>,
    pub(super) poller: Mutex<Poller>,
    /// The number of the port in `poller`, or `NOBODY`. Written with that locked; read without, by ports that look for
    /// their own number, which only they write.
    pub(super) poller_number: AtomicU64,
    /// The background poller looks for a poller that is away, every `TICK`. Written by the background poller; `SeqCst`
    /// with `poller`: either it sees that the poller went away, or that port sees that nobody ticks, and wakes it.
    pub(super) ticking: AtomicBool,
    /// Passes of all leaders. Added to by them, read by the background poller: do others lead?
    pub(super) passes: AtomicU64,
    /// Of those, passes that something had come for. Added to by leaders, read by threads that spin: does anybody get
    /// anything?
    pub(in crate::io) moves: AtomicU64,
    /// When the background poller looks again, in nanoseconds since `started`. Written by it, before it tries `core`;
    /// read by leaders after they have unlocked `core`, and made nearer.
    pub(super) looks_again: AtomicU64,
    pub(super) started: Instant,
    /// Wakes the background poller.
    pub(super) wake: EventFd,
    pub(super) news: Mutex<VecDeque<News>>,
    pub(super) has_news: EventFd,
    /// Written once, by the session's owner, with `core` locked.
    pub(super) closed: AtomicBool,
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
