//! A virtqueue of the crate's that can neither make us wait nor end us: its descriptors must be eventfds and never
//! block, and its memory is checked before it is touched (see `memlane_virtio::memory`).

use memlane_virtio::memory::{Guarded, Memory, Snapshot};
use memlane_virtio::socket::eventfd;
use std::fs::File;
use std::io;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use vhost_user_backend::{VringMutex, VringState, VringStateGuard, VringStateMutGuard, VringT};
use virtio_queue::{DescriptorChain, Error, QueueT as _};

/// What a worker uses of it.
#[derive(Clone)]
pub(super) struct Virtqueue {
    state: VringMutex<Memory>,
    memory: Guarded,
}

/// What the crate uses of it. `SEALED`: see `memlane_virtio::memory::check`.
#[derive(Clone)]
pub(super) struct Ring<const SEALED: bool>(pub(super) Virtqueue);

impl Virtqueue {
    /// The guest's memory, if it may be touched.
    pub(super) fn memory(&self) -> Result<Snapshot, Error> {
        self.memory.now().ok_or(Error::FindMemoryRegion)
    }

    /// The next request, with the memory that it lies in.
    pub(super) fn pop(&self) -> Option<(DescriptorChain<Snapshot>, Snapshot)> {
        let memory = self.memory().ok()?;
        let mut state = self.state.get_mut();
        let chain = state.get_queue_mut().pop_descriptor_chain(memory.clone())?;
        Some((chain, memory))
    }

    pub(super) fn add_used(&self, head: u16, len: u32) -> Result<(), Error> {
        let memory = self.memory()?;
        let mut state = self.state.get_mut();
        state.get_queue_mut().add_used(&*memory, head, len)
    }

    pub(super) fn enable_notification(&self) -> Result<bool, Error> {
        let memory = self.memory()?;
        let mut state = self.state.get_mut();
        state.get_queue_mut().enable_notification(&*memory)
    }

    pub(super) fn disable_notification(&self) -> Result<(), Error> {
        let memory = self.memory()?;
        let mut state = self.state.get_mut();
        state.get_queue_mut().disable_notification(&*memory)
    }

    pub(super) fn needs_notification(&self) -> Result<bool, Error> {
        let memory = self.memory()?;
        let mut state = self.state.get_mut();
        state.get_queue_mut().needs_notification(&*memory)
    }

    pub(super) fn signal(&self) -> io::Result<()> {
        self.state.signal_used_queue()
    }
}

impl<'a, const SEALED: bool> VringStateGuard<'a, Memory> for Ring<SEALED> {
    type G = MutexGuard<'a, VringState<Memory>>;
}

impl<'a, const SEALED: bool> VringStateMutGuard<'a, Memory> for Ring<SEALED> {
    type G = MutexGuard<'a, VringState<Memory>>;
}

impl<const SEALED: bool> VringT<Memory> for Ring<SEALED> {
    fn new(memory: Memory, max_queue_size: u16) -> Result<Ring<SEALED>, Error> {
        Ok(Ring(Virtqueue {
            state: VringMutex::new(memory.clone(), max_queue_size)?,
            memory: Guarded::new(memory, SEALED),
        }))
    }

    fn get_ref(&self) -> MutexGuard<'_, VringState<Memory>> {
        self.0.state.get_ref()
    }

    fn get_mut(&self) -> MutexGuard<'_, VringState<Memory>> {
        self.0.state.get_mut()
    }

    fn add_used(&self, desc_index: u16, len: u32) -> Result<(), Error> {
        self.0.add_used(desc_index, len)
    }

    fn signal_used_queue(&self) -> io::Result<()> {
        self.0.signal()
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
        self.0.state.set_enabled(enabled);
    }

    fn set_queue_info(&self, desc: u64, avail: u64, used: u64) -> Result<(), Error> {
        self.0.state.set_queue_info(desc, avail, used)
    }

    fn queue_next_avail(&self) -> u16 {
        self.0.state.queue_next_avail()
    }

    fn set_queue_next_avail(&self, base: u16) {
        self.0.state.set_queue_next_avail(base);
    }

    fn set_queue_next_used(&self, idx: u16) {
        self.0.state.set_queue_next_used(idx);
    }

    fn queue_used_idx(&self) -> Result<u16, Error> {
        let memory = self.0.memory()?;
        let state = self.0.state.get_ref();
        let index = state.get_queue().used_idx(&*memory, Ordering::Relaxed)?;
        Ok(index.0)
    }

    fn set_queue_size(&self, num: u16) {
        self.0.state.set_queue_size(num);
    }

    fn set_queue_event_idx(&self, enabled: bool) {
        self.0.state.set_queue_event_idx(enabled);
    }

    fn set_queue_ready(&self, ready: bool) {
        self.0.state.set_queue_ready(ready);
    }

    fn set_kick(&self, file: Option<File>) {
        self.0.state.set_kick(file.and_then(eventfd));
    }

    /// An empty eventfd is not an error: another thread may read it too. Any other error would be reported again and
    /// again.
    fn read_kick(&self) -> io::Result<bool> {
        match self.0.state.read_kick() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Ok(self.0.state.get_ref().is_enabled())
            }
            other => other,
        }
    }

    fn set_call(&self, file: Option<File>) {
        self.0.state.set_call(file.and_then(eventfd));
    }

    fn set_err(&self, file: Option<File>) {
        self.0.state.set_err(file.and_then(eventfd));
    }
}
