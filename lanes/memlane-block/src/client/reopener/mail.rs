//! How others tell the reopener what they want.

use super::super::error::OpenError;
use super::super::remote::Remote;
use super::super::{Access, Claim};
use memlane_wait::event::EventFd;
use memlane_wait::mutex::lock;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

/// What others want of a reopener.
#[derive(Debug)]
pub(in crate::client) enum Command {
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
pub(in crate::client) struct Mail {
    commands: Mutex<Vec<Command>>,
    event: EventFd,
}

impl Mail {
    pub(in crate::client) fn new() -> io::Result<Mail> {
        Ok(Mail {
            commands: Mutex::default(),
            event: EventFd::new()?,
        })
    }

    pub(in crate::client) fn send(&self, command: Command) {
        lock(&self.commands).push(command);
        self.kick();
    }

    pub(in crate::client) fn kick(&self) {
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
