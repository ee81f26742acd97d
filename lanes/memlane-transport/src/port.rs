//! What the users of a session see, whatever device carries it: ports on the client's side, a service on the server's.
//!
//! A port is one thread's: it puts requests in and takes results out, without a callback, and drives the session
//! itself while it waits, so that a request alone in the world costs no change of threads. No call but
//! [`Port::wait`] ever waits.

use crate::engine::Direction;
use crate::engine::path::PathId;
use crate::engine::server::{Job, SessionId};
use crate::error::{PathError, RequestError};
use crate::lease::{Lease, Memory};
use crate::message::Message;
use crate::wire::Geometry;
use memlane_core::access::SharedBytes;
use memlane_sys::fd::Fd;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// A request, as a port takes it.
#[derive(Debug)]
pub struct Submission {
    /// Comes back with the result.
    pub tag: u64,
    /// Which way the data goes.
    pub direction: Direction,
    /// The message beside the data.
    pub usr: Message,
    /// Bytes of data: the lease's first.
    pub len: u32,
    /// Where they are; none if `len` is 0.
    pub lease: Option<Lease>,
}

/// A result.
#[derive(Debug)]
pub struct Completion {
    /// Whose.
    pub tag: u64,
    /// How it went. The server's errors are in [`RequestError`].
    pub result: Result<(), RequestError>,
    /// Its lease.
    pub lease: Option<Lease>,
}

/// One thread's way into a session.
pub trait Port: Send {
    /// Memory for `len` bytes of data. `None`: all of it is lent; ask again when something was reaped, or when
    /// [`fd`](Self::fd) has been readable.
    ///
    /// # Errors
    /// [`LeaseError`].
    fn lease(&mut self, len: u32) -> Result<Option<Lease>, LeaseError>;

    /// A lease whose data lies in `memory`, from this offset on for this many bytes. The session knows that memory, and
    /// keeps it, until its end.
    ///
    /// # Errors
    /// [`LeaseError`]; [`LeaseError::Elsewhere`] by a port whose leases lie in memory of its own.
    fn lease_in(
        &mut self,
        memory: &Arc<dyn Memory>,
        place: (usize, u32),
    ) -> Result<Option<Lease>, LeaseError> {
        let _ = (memory, place);
        Err(LeaseError::Elsewhere)
    }

    /// The chunks of a server of this host, in which leases lie (`Lease::in_chunks`); `None`: it is not on this host,
    /// or not reached that way now.
    ///
    /// # Errors
    /// Descriptors are used up.
    fn chunk_file(&self) -> std::io::Result<Option<ChunkFile>> {
        Ok(None)
    }

    /// Takes a request. It goes out with the next call of any method but `lease`, at the latest.
    fn submit(&mut self, submission: Submission);

    /// Sends what was submitted.
    fn push(&mut self);

    /// Appends what is done, and says how much.
    fn reap(&mut self, into: &mut Vec<Completion>) -> usize;

    /// Is there something to reap (or a lease to be had that was refused before)? If not, `fd` becomes readable
    /// when there is. To be asked before each sleep on `fd`.
    fn arm(&mut self) -> bool;

    /// For epoll, between an `arm` that said no and the next `reap`.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Waits until there is something to reap, but not longer than `limit`.
    fn wait(&mut self, limit: Option<Duration>);

    /// Drives the session without sleeping, as long as that has paid lately but not longer than `limit`; is there
    /// something to reap? For a thread that has requests under way and would sleep on `fd` next.
    fn linger(&mut self, limit: Duration) -> bool {
        let _ = limit;
        false
    }
}

/// Why there is no memory for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseError {
    /// More than the server takes at a time.
    TooLong,
    /// The session is closed.
    Closed,
    /// Beyond the end of its user's memory.
    Outside,
    /// The session knows as many memories of its users as it keeps.
    TooManyMemories,
    /// This session's leases lie in its own memory.
    Elsewhere,
}

/// The memory of a server's chunks: a memory file, sealed against another size, and its bytes.
#[derive(Debug)]
pub struct ChunkFile {
    /// A descriptor of one's own.
    pub fd: Fd,
    /// Bytes.
    pub len: usize,
    /// As [`InChunks::file`](crate::lease::InChunks::file) has it.
    pub file: (u64, u64),
}

/// What happened to a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// A path is up.
    PathUp(PathId),
    /// A path is down.
    PathDown(PathId, PathError),
    /// The server has forgotten what it was told: open devices anew. Requests that were meant for it ended with
    /// [`RequestError::OutcomeUnknown`] if the session was told so (`AfterRestart::Fail`).
    ServerRestarted,
    /// The server's service calls (see [`Service::notices`]).
    Notice(u32),
}

/// A client's session.
pub trait Session: Send + Sync {
    /// A port for one thread.
    ///
    /// # Errors
    /// Descriptors or memory are used up.
    fn port(&self) -> std::io::Result<Box<dyn Port>>;

    /// Chunks and their size; `None` until a path was up.
    fn geometry(&self) -> Option<Geometry>;

    /// What happened, oldest first, each told once; for one listener.
    fn news(&self) -> Option<News>;

    /// Readable while there is news.
    fn news_fd(&self) -> BorrowedFd<'_>;
}

/// Who a client is, as the kernel or a certificate says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Identity {
    /// A process of this host.
    Local {
        /// Its user.
        uid: u32,
        /// Its process.
        pid: u32,
    },
    /// The names in a verified certificate.
    Certificate(Vec<String>),
    /// Nobody knows (`--insecure`).
    Unknown,
}

/// A job that is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    /// Whose.
    pub session: SessionId,
    /// From the job.
    pub permit: u16,
    /// From the job.
    pub generation: u64,
    /// A Linux error number; 0: none.
    pub errno: u16,
}

/// What a server does with requests. One of them to each thread that serves; all of a session's requests come to
/// the same one.
pub trait Service {
    /// A session has a path; tells whether this client may have a session of this name.
    fn opened(&mut self, session: SessionId, name: &str, who: &Identity) -> bool;

    /// The number of paths of a session that are up, after one came up or went down.
    fn reached(&mut self, _session: SessionId, _paths: usize) {}

    /// Do this, with the data in (or to be put into) the first `job.len` bytes of `chunk`. The chunk stays mapped
    /// until the job is finished, even if its session is gone; its client may write to it at any time.
    fn execute(&mut self, job: Job, chunk: SharedBytes);

    /// Starts what was handed over (one system call for many jobs), and appends what is finished.
    fn finished(&mut self, into: &mut Vec<Finished>);

    /// Appends what clients are to be told: a [`News::Notice`] to a session.
    fn notices(&mut self, into: &mut Vec<(SessionId, u32)>);

    /// A session is over. Jobs that still run are finished nevertheless.
    fn gone(&mut self, session: SessionId);

    /// Readable when there is something in `finished` or `notices`, if something is still under way.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}
