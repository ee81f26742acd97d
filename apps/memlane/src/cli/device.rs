//! `--device`: memory that this machine shares with others.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use memlane_agent::across::region::{self, RegionError};
use serde::{Deserialize, Serialize};

use super::exit::{Exit, fail};

/// Whom the machines of such memory have to trust.
pub(crate) const TRUST: &str = "every machine that has it can read and write all of it";

/// A machine that its fellows could not tell from another.
pub(crate) const NAMELESS: &str =
    "this machine has no id: give it a UUID (qemu -uuid), or an /etc/machine-id";

/// Which memory: `ivshmem:PATH` or `ivshmem:auto`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Device {
    /// The one device that this machine has.
    Auto,
    /// A file, or the memory of a device in sysfs.
    At(PathBuf),
}

impl Device {
    /// Where it is.
    pub(crate) fn path(&self) -> anyhow::Result<PathBuf> {
        match self {
            Device::Auto => region::find().map_err(told),
            Device::At(path) => Ok(path.clone()),
        }
    }
}

/// An error of such memory, with its exit code.
pub(crate) fn told(error: RegionError) -> anyhow::Error {
    match error {
        RegionError::NoDevice => fail(Exit::Unsupported, error.to_string()),
        _ => error.into(),
    }
}

/// What is said of memory that is not cached.
pub(crate) fn slow(times: u32) -> String {
    format!(
        "the region is mapped uncached, and {times} times slower than ordinary memory: use virtio-pmem where the hypervisor has it"
    )
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        match text.strip_prefix("ivshmem:") {
            Some("auto") => Ok(Device::Auto),
            Some(path) if path.starts_with('/') => Ok(Device::At(path.into())),
            _ => Err("expected ivshmem:auto, or ivshmem: and an absolute path".into()),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.write_str("ivshmem:auto"),
            Device::At(path) => write!(f, "ivshmem:{}", path.display()),
        }
    }
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(text: String) -> Result<Device, String> {
        text.parse()
    }
}

impl From<Device> for String {
    fn from(device: Device) -> String {
        device.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_kind_and_an_absolute_path() {
        let at = Device::At("/dev/shm/vms".into());
        for (text, device) in [("ivshmem:auto", Device::Auto), ("ivshmem:/dev/shm/vms", at)] {
            assert_eq!(text.parse(), Ok(device.clone()));
            assert_eq!(device.to_string(), text);
        }
        for wrong in [
            "",
            "auto",
            "ivshmem:",
            "ivshmem:vms",
            "/dev/shm/vms",
            "pmem:/x",
        ] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }
}
