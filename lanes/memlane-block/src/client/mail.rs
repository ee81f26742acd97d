//! How others tell the reopener what they want.

use super::error::OpenError;
use super::remote::Remote;
use crate::wire::Access;
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

/// What others want of a reopener.
#[derive(Debug)]
pub(super) enum Command {
    Open {
        name: String,
        access: Access,
        /// From a client that is not there.
        take_over: bool,
        reply: Sender<Result<Claim, OpenError>>,
    },
    Close {
        remote: Arc<Remote>,
        reply: Option<Sender<()>>,
    },
    /// Open it again now.
    Again {
        remote: Arc<Remote>,
    },
    Stop,
}

/// Where they put it.
#[derive(Debug)]
pub(super) struct Mail {
    commands: Mutex<Vec<Command>>,
    event: EventFd,
}

impl Mail {
    pub(super) fn new() -> io::Result<Mail> {
        Ok(Mail {
            commands: Mutex::default(),
            event: EventFd::new()?,
        })
    }

    pub(super) fn send(&self, command: Command) {
        lock(&self.commands).push(command);
        self.kick();
    }

    pub(super) fn kick(&self) {
        self.event.signal();
    }

    pub(super) fn take(&self) -> Vec<Command> {
        self.event.drain();
        std::mem::take(&mut lock(&self.commands))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// An open volume. Dropping this closes it, on any thread.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) remote: Arc<Remote>,
    pub(super) mail: Arc<Mail>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.mail.send(Command::Close {
            remote: Arc::clone(&self.remote),
            reply: None,
        });
    }
}
