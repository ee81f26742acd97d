//! What a client, its volumes and their queues hold: the session, the options, and the claim on an open volume.

use super::changes::Changes;
use super::clock::Clock;
use super::mail::{Claim, Command, Mail};
use super::remote::Remote;
use memlane_transport::engine::client::AllDown as Patience;
use memlane_transport::port::Session;
use memlane_wait::mutex::lock;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A client's settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// What requests do while their volume is being opened again: the session's own policy for requests while no path
    /// is up.
    pub patience: Patience,
    /// For how long a volume that a restarted server refuses counts as one that is not there yet: its file system may
    /// still be mounted, the last process's requests may still run. Then its requests fail, and it is tried further.
    pub grace: Duration,
    /// How long an [`open`](super::Client::open) may take.
    pub open_limit: Duration,
    /// Volumes in memory may be borrowed, if the server lends them. Not for a server of another host, whose offers mean nothing
    /// here.
    pub borrow: bool,
    /// Signalled when a path or a volume has changed.
    pub changes: Option<Arc<Changes>>,
    /// Time.
    pub clock: Clock,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            patience: Patience::Queue(Duration::from_secs(30)),
            grace: Duration::from_secs(3),
            open_limit: Duration::from_secs(30),
            borrow: false,
            changes: None,
            clock: Clock::real(),
        }
    }
}

/// What the client and its volumes share. The last of them drops it.
pub(super) struct Core {
    pub(super) session: Arc<dyn Session>,
    pub(super) mail: Arc<Mail>,
    pub(super) options: Options,
    pub(super) reopener: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.mail.send(Command::Stop);
        let reopener = lock(&self.reopener).take();
        if let Some(reopener) = reopener
            && reopener.thread().id() != std::thread::current().id()
        {
            // Its only end is the one that was asked for.
            let _ = reopener.join();
        }
    }
}

/// What a volume and its queues hold. The claim goes first, so that the reopener still closes the volume.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) claim: Claim,
    pub(super) core: Arc<Core>,
}

impl Handle {
    pub(super) fn remote(&self) -> &Remote {
        &self.claim.remote
    }

    pub(super) fn patience(&self) -> Patience {
        self.core.options.patience
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.core.options.clock
    }

    /// Something for the reopener to look at.
    pub(super) fn kick(&self) {
        self.core.mail.kick();
    }
}
