//! What volumes consist of, on the machine that has them: files, block devices, and for tests memory and nothing.
//!
//! ```text
//!   Engine ── one thread's ──► Backing (file, device: by a Store)     a request's bytes go straight from the chunk
//!          └─ at once ───────► Backing (memory, nothing, tmpfs)       to the file, and back
//! ```
//!
//! A [`Backing`] is opened once and used by any number of threads; each has an [`Engine`] of its own. A [`Store`] is
//! how an engine reaches files: [`ring`] by `io_uring`, one system call for many requests; [`pool`] by plain calls on
//! a few threads, where a sandbox forbids `io_uring`. Both do with [`plain`] what has several steps. `claim` keeps the
//! writers of several processes apart. Large reads of a file in memory are copies from a mapping (`mapped`), if the process
//! allows it ([`allow_mappings`]).

pub mod backing;
mod claim;
mod guard;
mod mapped;
mod memory;
pub mod plain;
pub mod pool;
pub mod request;
pub mod ring;
pub mod wakeup;

pub use backing::{Backing, Direct, Failure, Key, Mode};
pub use guard::allow_mappings;
pub use request::{Store, StoreRequest};
pub use wakeup::Completion;

use crate::volume::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use wakeup::Wakeup;

/// Which store an engine has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum StoreKind {
    /// A ring where that is permitted, threads elsewhere.
    #[default]
    Auto,
    /// A ring or an error.
    Ring,
    /// Threads.
    Threads,
}

/// One thread's way to every kind of backing. Ends only when all that it began has ended.
pub struct Engine {
    store: Box<dyn Store>,
    done: Vec<Completion>,
    /// Requests that the store has.
    in_store: usize,
    kind: StoreKind,
}

impl Engine {
    /// One.
    ///
    /// # Errors
    /// Descriptors are used up; no `io_uring` where one was asked for.
    pub fn new(kind: StoreKind) -> io::Result<Engine> {
        let (store, kind): (Box<dyn Store>, StoreKind) = match kind {
            StoreKind::Ring => (Box::new(ring::Ring::new()?), StoreKind::Ring),
            StoreKind::Threads => (Box::new(pool::Pool::new()?), StoreKind::Threads),
            StoreKind::Auto => match ring::Ring::new() {
                Ok(ring) => (Box::new(ring), StoreKind::Ring),
                Err(_) => (Box::new(pool::Pool::new()?), StoreKind::Threads),
            },
        };
        Ok(Engine {
            store,
            done: Vec::new(),
            in_store: 0,
            kind,
        })
    }

    /// Which store it has: never `Auto`.
    #[must_use]
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Takes a request; it begins with the next [`complete`](Self::complete), at the latest.
    pub fn submit(&mut self, request: StoreRequest) {
        match at_once(&request) {
            Some(result) => self.done.push(Completion {
                id: request.id,
                result,
            }),
            None => {
                self.in_store += 1;
                self.store.submit(request);
            }
        }
    }

    /// Begins what was submitted, and appends what is done. Never waits.
    pub fn complete(&mut self, into: &mut Vec<Completion>) {
        // What is done at once needs no store. Its wake-ups are looked at as soon as there is nothing of this kind.
        let at_once = !self.done.is_empty();
        into.append(&mut self.done);
        if self.in_store > 0 || !at_once {
            let before = into.len();
            self.store.complete(into);
            self.in_store = self.in_store.saturating_sub(into.len() - before);
        }
    }

    /// Readable when a result is there that `complete` has not returned, or another thread has signalled.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.store.fd()
    }

    /// What makes `fd` readable from another thread.
    #[must_use]
    pub fn wakeup(&self) -> Arc<Wakeup> {
        self.store.wakeup()
    }
}

/// Does what needs no disk; `None`: it needs one.
pub(crate) fn at_once(request: &StoreRequest) -> Option<Result<(), Errno>> {
    let (op, at, len, data) = (request.op, request.at, request.len, request.data);
    let done = request.backing.at_once(op, at, len, data);
    done.or_else(|| plain::at_once(request))
}
