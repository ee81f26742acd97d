//! An interface of the kernel.

use crate::error::KernelError;
use crate::wire::ethtool::{self, Split};
use crate::wire::netdev::{self, RxQueue, command};
use memlane_netlink::{Family, Refused};

/// An interface of the kernel, in this network namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number (`ifindex`).
    pub index: u32,
}

impl Interface {
    /// Finds it by its name.
    ///
    /// # Errors
    /// [`KernelError::NoInterface`].
    pub fn find(name: &str) -> Result<Interface, KernelError> {
        let none = || KernelError::NoInterface(name.to_owned());
        // No name of an interface leaves its directory.
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(none());
        }
        let text = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
        let index = text.ok().and_then(|text| text.trim().parse().ok());
        Ok(Interface {
            name: name.to_owned(),
            index: index.ok_or_else(none)?,
        })
    }

    /// All that there are.
    pub fn all() -> Vec<Interface> {
        let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten();
        let names = entries
            .flatten()
            .filter_map(|e| e.file_name().into_string().ok());
        let mut all: Vec<_> = names
            .filter_map(|name| Interface::find(&name).ok())
            .collect();
        all.sort_by_key(|interface| interface.index);
        all
    }

    /// Its receive queues.
    ///
    /// # Errors
    /// The kernel's.
    pub fn queues(&self) -> Result<Vec<RxQueue>, Refused> {
        let (name, version) = netdev::FAMILY;
        let mut family = Family::open(name, version)?;
        let parts = family.list(command::QUEUE_GET, &netdev::queues(self.index))?;
        Ok(parts
            .iter()
            .filter_map(|part| netdev::rx_queue(part))
            .collect())
    }

    /// Does it split headers off?
    ///
    /// # Errors
    /// The kernel's: EOPNOTSUPP, it has no rings.
    pub fn split(&self) -> Result<Split, Refused> {
        let (name, version) = ethtool::FAMILY;
        let mut family = Family::open(name, version)?;
        let told = family.ask(ethtool::RINGS_GET, &ethtool::rings(self.index))?;
        Ok(ethtool::split(&told))
    }
}
