//! The client's half: volumes of a server, used here, over a session of the transport lane.
//!
//! ```text
//!  thread ── RemoteQueue ── Port ─┐                         requests: no lock, no other thread
//!  thread ── RemoteQueue ── Port ─┼── Session ── paths ── server
//!            Reopener ───── Port ─┘                         SESS_INFO, OPEN, CLOSE; news
//! ```
//!
//! A path that fails is the session's business: requests take another one, and nobody here notices. A **server that
//! restarted** has forgotten which volumes are open. The [`reopener`] opens them again. Then their queues send those
//! requests again whose outcome nobody knows, under the volume's new number: to their users they have only taken
//! longer. The session must be one that fails such requests with `OutcomeUnknown`
//! (`AfterRestart::Fail`), because the numbers in them mean nothing any more.
//!
//! Until its result is known a write may so be executed by two servers, one after the other; afterwards never again. Who
//! has two writes of the same bytes under way must not rely on which of them is the last.
//!
//! What a server's machine had in its cache when its power failed is lost, and then a flush says so: see
//! `docs/decisions/0006-a-server-that-lost-its-memory.md`.
//!
//! | room | what |
//! |---|---|
//! | [`reopener`] | opens, opens again, closes; one thread for each session |
//! | `queue`, `request` | a thread's requests: checked, sent, kept while the volume is not open |
//! | `remote` | the words that both share |
//! | `lent` | memory of a volume that the server lends, and what is done there |
//! | [`answer`], [`error`] | what a server says; what can go wrong |
//! | [`clock`], [`Changes`] | time; news for code that shows all this |

pub mod answer;
mod changes;
pub mod clock;
pub mod error;
mod handle;
mod lent;
mod mail;
mod queue;
mod remote;
pub mod reopener;
mod request;

use crate::volume::stats::VolumeStats;
use crate::volume::{Info, Queue, Volume};
use error::OpenError;
use handle::{Core, Handle};
use mail::{Claim, Command, Mail};
use memlane_transport::port::Session;
use memlane_wait::mutex::lock;
use reopener::Reopener;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use crate::wire::Access;
pub use changes::Changes;
pub use handle::Options;
pub use memlane_transport::engine::client::AllDown as Patience;
pub use remote::Status;

/// How long a `close` waits for the server's answer.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// All volumes that are used over one session.
#[derive(Clone, Debug)]
pub struct Client {
    core: Arc<Core>,
}

impl Client {
    /// Makes a client of `session` with default options, and starts its reopener in a thread of its own.
    ///
    /// # Errors
    /// The process has no descriptor, memory or thread left.
    pub fn new(session: Arc<dyn Session>) -> io::Result<Client> {
        Client::with(session, Options::default())
    }

    /// Makes a client with these options, and starts its reopener in a thread of its own.
    ///
    /// # Errors
    /// Fails like [`new`](Self::new).
    pub fn with(session: Arc<dyn Session>, options: Options) -> io::Result<Client> {
        let (client, reopener) = Client::driven(session, options)?;
        let thread = std::thread::Builder::new().name("memlane-volumes".into());
        let thread = thread.spawn(move || reopener.run())?;
        *lock(&client.core.reopener) = Some(thread);
        Ok(client)
    }

    /// Makes a client whose reopener the caller drives: by [`Reopener::run`], or step by step.
    ///
    /// # Errors
    /// Fails like [`new`](Self::new).
    pub fn driven(session: Arc<dyn Session>, options: Options) -> io::Result<(Client, Reopener)> {
        let mail = Arc::new(Mail::new()?);
        let reopener = Reopener::new(&session, Arc::clone(&mail), options.clone())?;
        let core = Core {
            session,
            mail,
            options,
            reopener: Mutex::new(None),
        };
        let core = Arc::new(core);
        Ok((Client { core }, reopener))
    }

    /// Opens a volume, and waits until that is done.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, name: &str, access: Access) -> Result<Arc<RemoteVolume>, OpenError> {
        self.begin_open(name, access).wait()
    }

    /// Opens a volume, and takes it from those who write it if the server has no path to them any more: what they ask
    /// of it later is refused, also if they come back. Waits until their last requests are over.
    ///
    /// # Errors
    /// See [`OpenError`]. `Held`: another client has the volume and is there, or this client may not take it over.
    pub fn take_over(&self, name: &str, access: Access) -> Result<Arc<RemoteVolume>, OpenError> {
        self.begin_take_over(name, access).wait()
    }

    /// Begins to take a volume over.
    #[must_use]
    pub fn begin_take_over(&self, name: &str, access: Access) -> Opening {
        self.begin(name, access, true)
    }

    /// Begins to open a volume.
    #[must_use]
    pub fn begin_open(&self, name: &str, access: Access) -> Opening {
        self.begin(name, access, false)
    }

    fn begin(&self, name: &str, access: Access, take_over: bool) -> Opening {
        let (reply, answer) = channel();
        self.core.mail.send(Command::Open {
            name: name.to_owned(),
            access,
            take_over,
            reply,
        });
        Opening {
            answer,
            core: Arc::clone(&self.core),
        }
    }
}

/// A volume that is being opened. Given up when dropped.
#[derive(Debug)]
pub struct Opening {
    answer: Receiver<Result<Claim, OpenError>>,
    core: Arc<Core>,
}

impl Opening {
    /// Waits until it is open, or is not to be.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn wait(self) -> Result<Arc<RemoteVolume>, OpenError> {
        // The reopener enforces the limit. Twice the limit is for a reopener that nobody drives.
        let limit = self.core.options.open_limit.saturating_mul(2);
        match self.answer.recv_timeout(limit) {
            Ok(answer) => answer.map(|claim| self.volume(claim)),
            Err(RecvTimeoutError::Timeout) => Err(OpenError::TimedOut),
            Err(RecvTimeoutError::Disconnected) => Err(OpenError::Closed),
        }
    }

    /// How it went, if that is known already.
    pub fn poll(&self) -> Option<Result<Arc<RemoteVolume>, OpenError>> {
        match self.answer.try_recv() {
            Ok(answer) => Some(answer.map(|claim| self.volume(claim))),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(OpenError::Closed)),
        }
    }

    fn volume(&self, claim: Claim) -> Arc<RemoteVolume> {
        let core = Arc::clone(&self.core);
        let handle = Arc::new(Handle { claim, core });
        Arc::new(RemoteVolume { handle })
    }
}

/// A volume of a server. Closed when it and all its queues are dropped.
#[derive(Debug)]
pub struct RemoteVolume {
    handle: Arc<Handle>,
}

impl RemoteVolume {
    /// As it was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.remote().name
    }

    /// As it was opened.
    #[must_use]
    pub fn access(&self) -> Access {
        self.handle.remote().access
    }

    /// Is it open? If not, why not?
    #[must_use]
    pub fn status(&self) -> Status {
        self.handle.remote().status()
    }

    /// Another number after each change of its size or its status.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.handle.remote().changes()
    }

    /// How often writes that were acknowledged and not flushed were lost, because the server's machine started anew.
    #[must_use]
    pub fn losses(&self) -> u32 {
        self.handle.remote().durable.losses()
    }

    /// Does its server lend its memory, so that reads and writes are done in this process?
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.handle.remote().is_lent()
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> VolumeStats {
        self.handle.remote().counters.snapshot()
    }

    /// Asks the server anew, now: what is its size, may it be opened again?
    pub fn look_again(&self) {
        self.handle.core.mail.send(Command::Again {
            remote: Arc::clone(&self.handle.claim.remote),
        });
    }

    /// Closes it: what is asked of it from now on fails with `ENODEV`. Waits until the server has answered, but not
    /// for long: a server that does not is told when the session ends.
    pub fn close(&self) {
        let (reply, answer) = channel();
        self.handle.core.mail.send(Command::Close {
            remote: Arc::clone(&self.handle.claim.remote),
            reply: Some(reply),
        });
        let _ = answer.recv_timeout(CLOSE_LIMIT);
    }
}

impl Volume for RemoteVolume {
    fn info(&self) -> Info {
        self.handle.remote().info()
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        let port = self.handle.core.session.port()?;
        let queue = queue::RemoteQueue::new(Arc::clone(&self.handle), port)?;
        Ok(Box::new(queue))
    }
}
