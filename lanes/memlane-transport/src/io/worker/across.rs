//! Sessions that lie in memory which machines share.

use super::super::memory::Memory;
use super::Worker;
use crate::engine::Time;
use crate::engine::server::SessionId;
use crate::port::Service;
use std::sync::Arc;
use std::time::Duration;

/// How often sessions without a path are looked at whose clients are on other machines.
pub(super) const DEPARTED_EVERY: Duration = Duration::from_millis(100);
/// How often extents are looked at whose clients have not let go of them: their machines may be paused for hours.
const HELD_EVERY: Duration = Duration::from_secs(1);

impl<S: Service> Worker<S> {
    /// The memory of a client that is on another machine is scarce: its session is not remembered for longer than it can
    /// come back.
    pub(super) fn look_for_departed(&mut self, now: Time) {
        self.memories.tidy_up();
        for session in self.memories.departed() {
            self.engine.depart(session);
        }
        self.due = None;
        self.engine.poll(now);
        self.carry_out();
        let is_away = |session| !self.engine.is_connected(session);
        let some_are_away = self.memories.lent().any(is_away);
        let next = match self.memories.tidy_up() {
            _ if some_are_away => Some(DEPARTED_EVERY),
            true => Some(HELD_EVERY),
            false => None,
        };
        self.looks_for_departed = next.map(|next| now + next);
        self.due = None;
    }

    /// A session that began while the memory that machines share was full may have its part of it later, as long as nothing
    /// has happened in it.
    pub(super) fn move_across(&mut self, session: SessionId) -> Option<Arc<Memory>> {
        let untouched = self.engine.stats(session).is_some_and(|s| s.begun == 0);
        let moved = untouched
            .then(|| self.memories.move_across(session))
            .flatten();
        moved.or_else(|| self.memories.get(session).cloned())
    }
}
