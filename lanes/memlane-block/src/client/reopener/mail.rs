//! How others tell the reopener what they want.

use super::super::error::OpenError;
use super::super::remote::{Remote, lock};
use super::super::{Access, Claim};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
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
    bell: OwnedFd,
}

impl Mail {
    pub(in crate::client) fn new() -> io::Result<Mail> {
        Ok(Mail {
            commands: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(in crate::client) fn send(&self, command: Command) {
        lock(&self.commands).push(command);
        self.kick();
    }

    pub(in crate::client) fn kick(&self) {
        // It cannot fail but for a count that is full, and then it rings.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    pub(super) fn take(&self) -> Vec<Command> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
        std::mem::take(&mut lock(&self.commands))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
