//! A virtqueue of the crate's, whose descriptors cannot make us wait: a front end may give us any file as its
//! "eventfd", also one that blocks.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io;
use std::sync::MutexGuard;
use vhost_user_backend::{VringMutex, VringState, VringStateGuard, VringStateMutGuard, VringT};
use virtio_queue::Error;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

/// A guest's memory, as it is now: it may be exchanged while requests are under way.
pub(super) type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

#[derive(Clone)]
pub(super) struct Ring(VringMutex<Memory>);

impl<'a> VringStateGuard<'a, Memory> for Ring {
    type G = MutexGuard<'a, VringState<Memory>>;
}

impl<'a> VringStateMutGuard<'a, Memory> for Ring {
    type G = MutexGuard<'a, VringState<Memory>>;
}

impl VringT<Memory> for Ring {
    fn new(mem: Memory, max_queue_size: u16) -> Result<Ring, Error> {
        VringMutex::new(mem, max_queue_size).map(Ring)
    }

    fn get_ref(&self) -> MutexGuard<'_, VringState<Memory>> {
        self.0.get_ref()
    }

    fn get_mut(&self) -> MutexGuard<'_, VringState<Memory>> {
        self.0.get_mut()
    }

    fn add_used(&self, desc_index: u16, len: u32) -> Result<(), Error> {
        self.0.add_used(desc_index, len)
    }

    fn signal_used_queue(&self) -> io::Result<()> {
        self.0.signal_used_queue()
    }

    fn enable_notification(&self) -> Result<bool, Error> {
        self.0.enable_notification()
    }

    fn disable_notification(&self) -> Result<(), Error> {
        self.0.disable_notification()
    }

    fn needs_notification(&self) -> Result<bool, Error> {
        self.0.needs_notification()
    }

    fn set_enabled(&self, enabled: bool) {
        self.0.set_enabled(enabled);
    }

    fn set_queue_info(&self, desc: u64, avail: u64, used: u64) -> Result<(), Error> {
        self.0.set_queue_info(desc, avail, used)
    }

    fn queue_next_avail(&self) -> u16 {
        self.0.queue_next_avail()
    }

    fn set_queue_next_avail(&self, base: u16) {
        self.0.set_queue_next_avail(base);
    }

    fn set_queue_next_used(&self, idx: u16) {
        self.0.set_queue_next_used(idx);
    }

    fn queue_used_idx(&self) -> Result<u16, Error> {
        self.0.queue_used_idx()
    }

    fn set_queue_size(&self, num: u16) {
        self.0.set_queue_size(num);
    }

    fn set_queue_event_idx(&self, enabled: bool) {
        self.0.set_queue_event_idx(enabled);
    }

    fn set_queue_ready(&self, ready: bool) {
        self.0.set_queue_ready(ready);
    }

    fn set_kick(&self, file: Option<File>) {
        self.0.set_kick(file.and_then(unblocked));
    }

    /// Nothing there is no error: somebody else may read it too. Anything else would be told again and again.
    fn read_kick(&self) -> io::Result<bool> {
        match self.0.read_kick() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Ok(self.0.get_ref().is_enabled())
            }
            other => other,
        }
    }

    fn set_call(&self, file: Option<File>) {
        self.0.set_call(file.and_then(unblocked));
    }

    fn set_err(&self, file: Option<File>) {
        self.0.set_err(file);
    }
}

/// Makes it one that never waits; none if that cannot be.
fn unblocked(file: File) -> Option<File> {
    let flags = fcntl_getfl(&file).ok()?;
    fcntl_setfl(&file, flags | OFlags::NONBLOCK).ok()?;
    Some(file)
}
