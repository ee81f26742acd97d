//! What the process behind a mapping holds, and how it obeys the verbs: a session with a server, or a file.

pub(super) mod file;
mod session;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use memlane_block::client::Changes;

use super::documents::{self, Event};
use super::requests::Request;
use super::spec::MapSpec;

pub(super) use file::FileHost;
pub(crate) use session::{One, SessionHost, open_one};

/// Events that are remembered.
const MOST_EVENTS: usize = 64;

/// A session with its volumes, or a file.
pub(super) trait Host: Send + 'static {
    /// Shows a volume, and returns its place.
    fn map(&mut self, spec: MapSpec) -> anyhow::Result<String>;

    /// Does what a verb asks for.
    fn obey(&mut self, request: Request) -> anyhow::Result<serde_json::Value>;

    /// Everything about it.
    fn describe(&self) -> documents::Session;

    /// Notices what has changed.
    fn look(&mut self);

    /// When to look again, even without a signal.
    fn looks_every(&self) -> Option<Duration>;

    /// Signalled when something may have changed.
    fn changes(&self) -> Arc<Changes>;

    /// Since when nothing is mapped, if nothing is.
    fn idle_since(&self) -> Option<Instant>;

    /// Whether the process ends after the current request.
    fn ends_at_once(&self) -> bool;

    /// Ends all mappings, whoever uses them.
    fn close(&mut self) -> anyhow::Result<()>;
}

/// The last things that happened.
#[derive(Clone, Default)]
pub(super) struct Events(Vec<Event>);

impl Events {
    pub(super) fn note(&mut self, text: String) {
        if self.0.len() == MOST_EVENTS {
            self.0.remove(0);
        }
        let at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        self.0.push(Event { at, text });
    }

    /// Oldest first.
    pub(super) fn list(&self) -> Vec<Event> {
        self.0.clone()
    }
}
