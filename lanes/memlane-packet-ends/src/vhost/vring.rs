//! One virtqueue (VIRTIO 1.2, 2.7 "Split Virtqueues"): what the front end has said of it, and how far we are.
//!
//! Chains are read by the crate. Answers are written here: those of a frame that lies in several buffers must be shown
//! at once, and the crate shows each for itself. They go back in the order in which the chains came.
//!
//! | word | written by | read by | ordering |
//! |---|---|---|---|
//! | available ring: index, heads | guest | us | acquire: chains below it can be read |
//! | used ring: elements, index | us | guest | release: what was written into their buffers can be read |
//! | used event, flags (available ring) | guest | us | full fence after our index |
//! | available event, flags (used ring) | us | guest | full fence before we look at its index once more |
//!
//! The guest can write all of it. We believe nothing back that we wrote ourselves, but for the used index when a ring
//! starts, which says where an earlier process was.

use crate::peer_event::PeerEventFd;
use memlane_packet::error::{Detach, Ring};
use memlane_packet::ring::Misbehaved;
use memlane_virtio::chain::{Piece, pieces_of};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use virtio_bindings::bindings::virtio_ring::{VRING_AVAIL_F_NO_INTERRUPT, VRING_USED_F_NO_NOTIFY};
use virtio_queue::{Error, Queue, QueueOwnedT as _, QueueT as _};
use vm_memory::{Address as _, Bytes as _, GuestAddress, GuestMemoryMmap};

/// Descriptors of a ring, at most: as many as QEMU allows.
pub(super) const SIZE_MAX: u16 = 1024;
/// The most descriptors of one chain that are read.
const LONGEST: usize = 1024;
/// Bytes of a used element, of both rings' headers, and of an available element.
const USED: u64 = 8;
const HEADER: u64 = 4;
const AVAILABLE: u64 = 2;

/// A virtqueue.
#[derive(Debug)]
pub(super) struct Vring {
    kind: Ring,
    queue: Queue,
    memory: Option<Arc<GuestMemoryMmap>>,
    /// Has addresses.
    placed: bool,
    started: bool,
    enabled: bool,
    /// The used index as the guest was shown it last.
    shown: u16,
    kick: Option<Arc<PeerEventFd>>,
    call: Option<PeerEventFd>,
}

/// Addresses in the guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Addresses {
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
}

impl Vring {
    /// `None`: never, as the size is the crate's own limit.
    pub(super) fn new(kind: Ring) -> Option<Vring> {
        Some(Vring {
            kind,
            queue: Queue::new(SIZE_MAX).ok()?,
            memory: None,
            placed: false,
            started: false,
            enabled: false,
            shown: 0,
            kick: None,
            call: None,
        })
    }

    // ---- the front end's ----------------------------------------------------

    /// Forgets everything that a front end has said.
    pub(super) fn clear(&mut self) {
        self.queue.reset();
        self.memory = None;
        (self.placed, self.started, self.enabled) = (false, false, false);
        (self.kick, self.call) = (None, None);
    }

    pub(super) fn set_memory(&mut self, memory: &Arc<GuestMemoryMmap>) {
        self.memory = Some(Arc::clone(memory));
    }

    /// `false`: no power of two, or too many.
    pub(super) fn set_size(&mut self, size: u32) -> bool {
        let size = u16::try_from(size).ok();
        !self.started && size.is_some_and(|size| self.queue.try_set_size(size).is_ok())
    }

    /// `false`: not aligned.
    pub(super) fn place(&mut self, at: Addresses) -> bool {
        let queue = &mut self.queue;
        let placed = queue.try_set_desc_table_address(GuestAddress(at.descriptors));
        let placed = placed.and(queue.try_set_avail_ring_address(GuestAddress(at.available)));
        let placed = placed.and(queue.try_set_used_ring_address(GuestAddress(at.used)));
        self.placed = placed.is_ok();
        self.placed
    }

    /// The next chain to be taken: of an earlier process, or of none.
    pub(super) fn set_base(&mut self, base: u32) -> bool {
        let base = u16::try_from(base).ok();
        base.is_some_and(|base| {
            self.queue.set_next_avail(base);
            !self.started
        })
    }

    pub(super) fn set_event_idx(&mut self, on: bool) {
        self.queue.set_event_idx(on);
    }

    pub(super) fn set_call(&mut self, call: Option<PeerEventFd>) {
        self.call = call;
    }

    pub(super) fn set_enabled(&mut self, on: bool) {
        self.enabled = on;
    }

    /// Starts, or changes the doorbell of a ring that has started. `false`: it does not lie in the memory.
    pub(super) fn start(&mut self, kick: Option<PeerEventFd>) -> bool {
        self.kick = kick.map(Arc::new);
        if self.started {
            return true;
        }
        let Some(memory) = self.memory.clone().filter(|_| self.placed) else {
            return false;
        };
        self.queue.set_ready(true);
        let there = self.queue.is_valid(&*memory);
        let used = self.queue.used_idx(&*memory, Ordering::Acquire);
        if let (true, Ok(used)) = (there, used) {
            self.queue.set_next_used(used.0);
            self.shown = used.0;
            self.started = true;
        }
        self.started
    }

    /// Stops; where the next one is to go on.
    pub(super) fn stop(&mut self) -> u16 {
        // What was written for a guest that is stopped in the middle of a burst is shown, or nobody ever frees it.
        if let Some(memory) = self.running() {
            let _ = self.show(&memory);
        }
        self.started = false;
        self.queue.set_ready(false);
        (self.kick, self.call) = (None, None);
        self.queue.next_avail()
    }

    // ---- ours ---------------------------------------------------------------

    /// May it be used? Then with this memory, as long as the lock is held.
    pub(super) fn running(&self) -> Option<Arc<GuestMemoryMmap>> {
        let runs = self.started && self.enabled;
        self.memory.clone().filter(|_| runs)
    }

    pub(super) fn is_running(&self) -> bool {
        self.started && self.enabled
    }

    pub(super) fn kick(&self) -> Option<Arc<PeerEventFd>> {
        self.kick.clone()
    }

    pub(super) fn size(&self) -> u16 {
        self.queue.size()
    }

    pub(super) fn wrong(&self, what: &'static str) -> Detach {
        Detach::Slot(self.kind, what)
    }

    fn outside<E>(&self) -> impl FnOnce(E) -> Detach + use<E> {
        let kind = self.kind;
        move |_| Detach::Slot(kind, "lies outside of the guest's memory")
    }

    /// Chains that can be taken.
    pub(super) fn waiting(&self, memory: &GuestMemoryMmap) -> Result<u16, Detach> {
        let index = self.queue.avail_idx(memory, Ordering::Acquire);
        let index = index.map_err(self.outside())?.0;
        let from = self.queue.next_avail();
        let far = index.wrapping_sub(from);
        if far <= self.queue.size() {
            return Ok(far);
        }
        let wrong = Misbehaved {
            index: index.into(),
            from: from.into(),
            to: from.wrapping_add(self.queue.size()).into(),
        };
        Err(Detach::Index(self.kind, wrong))
    }

    /// Takes a chain: its head, with its pieces; `None`: there is none.
    pub(super) fn pop(
        &mut self,
        memory: &GuestMemoryMmap,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<u16>, Detach> {
        pieces.clear();
        if self.waiting(memory)? == 0 {
            return Ok(None);
        }
        let (kind, size) = (self.kind, self.queue.size());
        let chain = self.queue.iter(memory).map(|mut chains| chains.next());
        let chain = match chain {
            Ok(Some(chain)) => chain,
            Ok(None) | Err(Error::GuestMemory(_)) => return Err(self.outside()(())),
            // Its index again: it has changed meanwhile.
            Err(_) => return Err(self.wrong("an index that is none")),
        };
        let head = chain.head_index();
        let whole = head < size && pieces_of(chain, LONGEST, pieces);
        whole.then_some(Some(head)).ok_or(Detach::Chain(
            kind,
            "descriptors that are none, lie outside of the guest's memory, or lead in a circle",
        ))
    }

    /// The last `chains` were not taken.
    pub(super) fn put_back(&mut self, chains: u16) {
        let next = self.queue.next_avail().wrapping_sub(chains);
        self.queue.set_next_avail(next);
    }

    /// Returns a chain with this many bytes for the guest. The guest does not see it yet.
    pub(super) fn answer(
        &mut self,
        memory: &GuestMemoryMmap,
        head: u16,
        bytes: u32,
    ) -> Result<(), Detach> {
        let next = self.queue.next_used();
        let slot = u64::from(next % self.queue.size().max(1));
        let element = u64::from(head) | u64::from(bytes) << 32;
        self.store(self.queue.used_ring(), HEADER + slot * USED, |at| {
            memory.write_obj(element.to_le(), at)
        })?;
        self.queue.set_next_used(next.wrapping_add(1));
        Ok(())
    }

    fn store<E>(
        &self,
        ring: u64,
        offset: u64,
        write: impl FnOnce(GuestAddress) -> Result<(), E>,
    ) -> Result<(), Detach> {
        let at = GuestAddress(ring).checked_add(offset);
        let at = at.ok_or(()).map_err(self.outside())?;
        write(at).map_err(self.outside())
    }

    fn load(&self, memory: &GuestMemoryMmap, ring: u64, offset: u64) -> Result<u16, Detach> {
        let at = GuestAddress(ring).checked_add(offset);
        let at = at.ok_or(()).map_err(self.outside())?;
        let word = memory.load(at, Ordering::Relaxed).map_err(self.outside())?;
        Ok(u16::from_le(word))
    }

    /// Shows what was answered, and rings the doorbell if the guest wants it; `true`: it did.
    pub(super) fn show(&mut self, memory: &GuestMemoryMmap) -> Result<bool, Detach> {
        let (old, new) = (self.shown, self.queue.next_used());
        if old == new {
            return Ok(false);
        }
        self.store(self.queue.used_ring(), 2, |at| {
            memory.store(new.to_le(), at, Ordering::Release)
        })?;
        self.shown = new;
        fence(Ordering::SeqCst);
        let available = self.queue.avail_ring();
        let due = if self.queue.event_idx_enabled() {
            let offset = HEADER + u64::from(self.queue.size()) * AVAILABLE;
            let event = self.load(memory, available, offset)?;
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            let flags = self.load(memory, available, 0)?;
            u32::from(flags) & VRING_AVAIL_F_NO_INTERRUPT == 0
        };
        if let Some(call) = self.call.as_ref().filter(|_| due) {
            call.signal();
        }
        Ok(due)
    }

    /// Asks for a kick when there are this many chains; `false`: there are that many now.
    pub(super) fn ask(&mut self, memory: &GuestMemoryMmap, chains: u16) -> Result<bool, Detach> {
        let used = self.queue.used_ring();
        if self.queue.event_idx_enabled() {
            let last = self.queue.next_avail().wrapping_add(chains).wrapping_sub(1);
            let offset = HEADER + u64::from(self.queue.size()) * USED;
            self.store(used, offset, |at| {
                memory.store(last.to_le(), at, Ordering::Relaxed)
            })?;
        } else {
            self.store(used, 0, |at| memory.store(0_u16, at, Ordering::Relaxed))?;
        }
        fence(Ordering::SeqCst);
        Ok(self.waiting(memory)? < chains)
    }

    /// Asks not to be kicked. With event indices that is so: the one that was named is past.
    pub(super) fn drain(&mut self, memory: &GuestMemoryMmap) -> Result<(), Detach> {
        if self.queue.event_idx_enabled() {
            return Ok(());
        }
        let flags = u16::try_from(VRING_USED_F_NO_NOTIFY).unwrap_or(1);
        self.store(self.queue.used_ring(), 0, |at| {
            memory.store(flags.to_le(), at, Ordering::Relaxed)
        })
    }
}
