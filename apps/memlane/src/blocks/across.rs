//! Memory that the machines of a server and its clients share.

use std::sync::Arc;

use anyhow::Context as _;
use memlane_agent::across::participants::{Identity, firmware_id};
use memlane_agent::across::region::{self, Speed};
use memlane_transport::io::{Holder, SharedMemory};

use crate::cli::device::{self, Device, NAMELESS};
use crate::cli::exit::{Exit, fail};
use crate::cli::out;

/// A guest that others of its region could not tell from its clones.
const UNNAMED: &str = "this virtual machine has no UUID of its own: give it one (qemu -uuid; libvirt does so by itself)";

/// Maps the memory of a device, for this process.
pub(super) fn share(device: &Device) -> anyhow::Result<Arc<SharedMemory>> {
    let path = device.path()?;
    let file = region::open(&path).map_err(device::told)?;
    if let Ok(Speed::Uncached(times)) = region::measure(&file) {
        out::warn(&device::slow(times));
    }
    let memory = SharedMemory::map(file, this_machine()?)
        .with_context(|| format!("cannot use {}", path.display()))?;
    // Two guests with the same id would take each other's memory for that of a former boot. Clones of a disk have one
    // /etc/machine-id.
    if !memory.is_file() && firmware_id().is_none() {
        return Err(fail(Exit::Unsupported, UNNAMED));
    }
    Ok(Arc::new(memory))
}

/// This machine and its boot, as others that have the memory know them.
fn this_machine() -> anyhow::Result<Holder> {
    let here = Identity::here("volumes".as_ref(), None).context(NAMELESS)?;
    let [a, b, c, d, e, f, g, h, ..] = here.machine.to_le_bytes();
    Ok(Holder {
        machine: u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1),
        boot: here.boot,
    })
}
