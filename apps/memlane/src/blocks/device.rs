//! Volumes as devices of the kernel: nbd and ublk.
//!
//! A device outlives the process behind its session. Who maps the same volume in a session of the same name goes on
//! with it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memlane_block::nbd_kernel::{self, NbdError};
use memlane_block::ublk::{self, UblkError};
use memlane_block::volume::Volume;

use super::face::Shown;
use crate::exit::{Exit, fail};

/// `/dev/nbdN`; `owner` is what it is found by after its process has died.
pub(super) fn nbd(volume: Arc<dyn Volume>, owner: &str) -> anyhow::Result<Box<dyn Shown>> {
    let options = nbd_kernel::Options {
        name: owner.to_owned(),
        ..nbd_kernel::Options::default()
    };
    let attached = match nbd_kernel::left(owner) {
        Some(index) => nbd_kernel::recover(volume, index, &options),
        None => nbd_kernel::attach(volume, &options),
    };
    let attached = attached.map_err(|error| {
        let exit = match error {
            NbdError::NoDriver | NbdError::NotPermitted | NbdError::NoNetlink(_) => {
                Exit::Unsupported
            }
            NbdError::NoFile(_) => Exit::Unsupported,
            _ => Exit::Failed,
        };
        fail(exit, error.to_string())
    })?;
    Ok(Box::new(Device {
        path: attached.path().to_owned(),
        attached: Mutex::new(attached),
    }))
}

/// `/dev/ublkbN`.
pub(super) fn ublk(volume: Arc<dyn Volume>, owner: &str) -> anyhow::Result<Box<dyn Shown>> {
    let options = ublk::Options {
        name: owner.to_owned(),
        ..ublk::Options::default()
    };
    let attached = match ublk::left(owner) {
        Some(id) => ublk::recover(volume, id, &options),
        None => ublk::attach(volume, &options),
    };
    let attached = attached.map_err(|error| {
        let exit = match error {
            UblkError::Server(_)
            | UblkError::Kernel(..)
            | UblkError::InUse(_)
            | UblkError::NotWaiting(_) => Exit::Failed,
            _ => Exit::Unsupported,
        };
        fail(exit, error.to_string())
    })?;
    Ok(Box::new(Device {
        path: attached.path().to_owned(),
        attached: Mutex::new(attached),
    }))
}

struct Device<T> {
    path: PathBuf,
    attached: Mutex<T>,
}

impl<T> Device<T> {
    fn attached(&self) -> MutexGuard<'_, T> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What both have.
trait Attached: Send {
    fn resized(&mut self) -> Result<(), String>;
    fn detach(&mut self, force: bool) -> Result<(), String>;
}

impl Attached for nbd_kernel::Attached {
    fn resized(&mut self) -> Result<(), String> {
        nbd_kernel::Attached::resized(self).map_err(|error| error.to_string())
    }

    fn detach(&mut self, force: bool) -> Result<(), String> {
        nbd_kernel::Attached::detach(self, force).map_err(|error| error.to_string())
    }
}

impl Attached for ublk::Attached {
    fn resized(&mut self) -> Result<(), String> {
        ublk::Attached::resized(self).map_err(|error| error.to_string())
    }

    fn detach(&mut self, force: bool) -> Result<(), String> {
        ublk::Attached::detach(self, force).map_err(|error| error.to_string())
    }
}

impl<T: Attached> Shown for Device<T> {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn users(&self) -> usize {
        0 // the kernel knows, and says so when it is to be taken away
    }

    fn resized(&self) {
        if let Err(why) = self.attached().resized() {
            eprintln!("{}: the new size is not shown: {why}", self.path.display());
        }
    }

    fn end(&mut self, force: bool) -> anyhow::Result<()> {
        self.attached().detach(force).map_err(anyhow::Error::msg)
    }
}
