//! A volume as a device of the kernel, by one frontend or the other.

use memlane_block::volume::Volume;
use memlane_block_frontends::{nbd_kernel, ublk};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Frontend {
    Nbd,
    Ublk,
}

#[derive(Debug)]
pub(crate) enum Device {
    Nbd(nbd_kernel::Attached),
    Ublk(Box<ublk::Attached>),
}

fn nbd_options() -> nbd_kernel::Options {
    nbd_kernel::Options {
        patience: Duration::from_secs(100),
        name: "memlane-test".into(),
        ..nbd_kernel::Options::default()
    }
}

fn ublk_options() -> ublk::Options {
    ublk::Options {
        queues: 1,
        name: "memlane-test".into(),
        ..ublk::Options::default()
    }
}

impl Frontend {
    pub(crate) fn of(name: &str) -> Frontend {
        match name {
            "Nbd" => Frontend::Nbd,
            "Ublk" => Frontend::Ublk,
            other => panic!("{other}"),
        }
    }

    pub(crate) fn attach(self, volume: Arc<dyn Volume>) -> Device {
        self.attach_with(volume, 1)
    }

    /// Attaches a volume with this number of the kernel's queues.
    pub(crate) fn attach_with(self, volume: Arc<dyn Volume>, queues: usize) -> Device {
        match self {
            Frontend::Nbd => {
                let options = nbd_kernel::Options {
                    connections: queues,
                    ..nbd_options()
                };
                Device::Nbd(nbd_kernel::attach(volume, &options).unwrap())
            }
            Frontend::Ublk => {
                let options = ublk::Options {
                    queues: queues.try_into().unwrap(),
                    ..ublk_options()
                };
                Device::Ublk(Box::new(ublk::attach(volume, &options).unwrap()))
            }
        }
    }

    pub(crate) fn recover(self, volume: Arc<dyn Volume>) -> Device {
        match self {
            Frontend::Nbd => {
                let options = nbd_options();
                let index = nbd_kernel::left(&options.name).expect("a device that is left");
                Device::Nbd(nbd_kernel::recover(volume, index, &options).unwrap())
            }
            Frontend::Ublk => {
                let options = ublk_options();
                let id = ublk::left(&options.name).expect("a device that is left");
                Device::Ublk(Box::new(ublk::recover(volume, id, &options).unwrap()))
            }
        }
    }

    /// Why a volume cannot be attached by this user.
    pub(crate) fn refusal(self, volume: Arc<dyn Volume>) -> String {
        match self {
            Frontend::Nbd => match nbd_kernel::attach(volume, &nbd_options()) {
                Err(error) => error.to_string(),
                Ok(_) => "attached".into(),
            },
            Frontend::Ublk => match ublk::attach(volume, &ublk_options()) {
                Err(error) => error.to_string(),
                Ok(_) => "attached".into(),
            },
        }
    }
}

impl Device {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Device::Nbd(device) => device.path(),
            Device::Ublk(device) => device.path(),
        }
    }

    /// Its folder in `/sys/block`.
    pub(crate) fn sys(&self) -> PathBuf {
        Path::new("/sys/block").join(self.path().file_name().unwrap())
    }

    /// `false`: this kernel cannot.
    pub(crate) fn resized(&mut self) -> bool {
        match self {
            Device::Nbd(device) => device.resized().unwrap(),
            Device::Ublk(device) => match device.resized() {
                Err(ublk::UblkError::CannotResize) => return false,
                told => told.unwrap(),
            },
        }
        true
    }

    /// What is wrong, if it stays.
    pub(crate) fn detach(&mut self, force: bool) -> Result<(), String> {
        match self {
            Device::Nbd(device) => device.detach(force).map_err(|error| error.to_string()),
            Device::Ublk(device) => device.detach(force).map_err(|error| error.to_string()),
        }
    }
}
