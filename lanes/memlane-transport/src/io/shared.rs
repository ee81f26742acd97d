//! A connection between two processes that share the session's chunks: of one host (`docs/formats/loopback-device.md`), or of
//! two machines that have the same memory (`docs/formats/ivshmem-volumes.md`).
//!
//! What is written, a client writes into the chunk itself; what is read, it takes out of it. Between the two go only
//! immediates, by a pair of queues in memory that both have mapped. The socket by which they met is the bell, and the
//! life line: when it ends, so does the connection.

use super::across::Mapped;
use super::chunks::Chunks;
use super::frame::WriteTarget;
use memlane_core::access::SharedBytes;
use memlane_core::queue::{Consumer, Misbehaved, Producer, QueueWords};
use memlane_core::sync::Cpu;
use memlane_sys::{Errno, Result};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Where the second queue's words begin; the first one's are at 0.
const SECOND: usize = 512;
/// Where the slots begin.
const SLOTS: usize = 4096;
/// Most slots of a queue: twice what the largest session has chunks.
const MOST_SLOTS: usize = 1 << 17;

const _: () = assert!(size_of::<QueueWords<Cpu>>() <= SECOND);
const _: () = assert!(std::mem::offset_of!(QueueWords<Cpu>, consumed) == 128);
const _: () = assert!(std::mem::offset_of!(QueueWords<Cpu>, naps) == 256);
const _: () = assert!(SECOND + size_of::<QueueWords<Cpu>>() <= SLOTS);

/// Slots of each queue for a session of this many chunks. All requests and as many answers to heartbeats fit: it is full only if
/// nobody takes anything.
pub(super) fn slots_for(depth: u16) -> usize {
    (2 * usize::from(depth) + 64).next_power_of_two()
}

/// Bytes of the memory of a pair of queues.
pub(super) fn len_of(slots: usize) -> usize {
    (SLOTS + 2 * slots * size_of::<u32>()).next_multiple_of(4096)
}

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Server,
    Client,
}

/// One queue, as it lies in the memory.
#[derive(Clone, Copy, Debug)]
struct Queue {
    words: NonNull<QueueWords<Cpu>>,
    slots: NonNull<AtomicU32>,
    len: usize,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Shared {
    /// Keeps what `to_peer` and `from_peer` point into.
    memory: Mapped,
    to_peer: Queue,
    from_peer: Queue,
    producer: Producer,
    consumer: Consumer,
    /// At the client: the chunks, and how the server counts their bytes.
    chunks: Option<(Arc<Chunks>, u64)>,
    /// The peer does not take what it is told, or misbehaves.
    broken: bool,
}

// SAFETY: the pointers lead into `memory`, which goes where this goes; behind them are atomics only.
unsafe impl Send for Shared {}

impl Shared {
    /// At the server, in memory of `len_of(slots)` zeros, which the client gets.
    pub(super) fn offer(memory: Mapped, slots: usize) -> Result<Shared> {
        Shared::new(memory, slots, End::Server, None)
    }

    /// At the client: what the server has shared, which `attach` maps.
    pub(super) fn join<E: From<Errno>>(
        slots: usize,
        (chunks, base): (Arc<Chunks>, u64),
        attach: impl FnOnce(usize) -> std::result::Result<Mapped, E>,
    ) -> std::result::Result<Shared, E> {
        if !slots.is_power_of_two() || slots > MOST_SLOTS {
            return Err(Errno::INVAL.into());
        }
        let memory = attach(len_of(slots))?;
        Ok(Shared::new(
            memory,
            slots,
            End::Client,
            Some((chunks, base)),
        )?)
    }

    fn new(
        memory: Mapped,
        slots: usize,
        end: End,
        chunks: Option<(Arc<Chunks>, u64)>,
    ) -> Result<Shared> {
        let queue = |words: usize, at: usize| -> Option<Queue> {
            // SAFETY: atomics only, in the region that is kept beside the pointers.
            let words = unsafe { memory.words::<QueueWords<Cpu>>(words)? };
            // SAFETY: as above; the last slot is looked for, so that all of them lie inside.
            let (slots_at, _) = unsafe {
                (
                    memory.words::<AtomicU32>(at)?,
                    memory.words::<AtomicU32>(at + (slots - 1) * size_of::<u32>())?,
                )
            };
            Some(Queue {
                words,
                slots: slots_at,
                len: slots,
            })
        };
        let to_server = queue(0, SLOTS).ok_or(Errno::INVAL)?;
        let to_client = queue(SECOND, SLOTS + slots * size_of::<u32>()).ok_or(Errno::INVAL)?;
        let (to_peer, from_peer) = match end {
            End::Server => (to_client, to_server),
            End::Client => (to_server, to_client),
        };
        Ok(Shared {
            memory,
            to_peer,
            from_peer,
            producer: Producer::default(),
            consumer: Consumer::default(),
            chunks,
            broken: false,
        })
    }

    /// The queues' memory, to hand over.
    pub(super) fn descriptor(&self) -> Option<i32> {
        self.memory.descriptor()
    }

    fn parts(queue: &Queue) -> (&QueueWords<Cpu>, &[AtomicU32]) {
        // SAFETY: both lie in `memory`, which lives as long as `self`; they are atomics, which any end may change.
        unsafe {
            let slots = std::slice::from_raw_parts(queue.slots.as_ptr(), queue.len);
            (queue.words.as_ref(), slots)
        }
    }

    /// Tells an immediate, with the next `publish`.
    pub(super) fn immediate(&mut self, imm: u32) {
        let (words, slots) = Self::parts(&self.to_peer);
        if self.producer.put(words, slots, imm) != Ok(true) {
            self.broken = true;
        }
    }

    /// At the client: data and a tail into a chunk, then the immediate.
    pub(super) fn write(
        &mut self,
        place: WriteTarget,
        data: Option<SharedBytes>,
        tail: &[u8],
        imm: u32,
    ) {
        let placed = self.place(place, data, tail);
        self.broken |= placed.is_none();
        self.immediate(imm);
    }

    fn place(&self, place: WriteTarget, data: Option<SharedBytes>, tail: &[u8]) -> Option<()> {
        let (chunks, base) = self.chunks.as_ref()?;
        let at = usize::try_from(place.addr.checked_sub(*base)?).ok()?;
        let span = usize::try_from(place.span()).ok()?;
        let window = chunks.bytes().part(at, span)?;
        let copied = match data {
            Some(data) => copy(&data.part(0, place.len as usize)?, &window),
            None => place.len == 0,
        };
        // SAFETY: `tail` is readable for its length.
        let tail = unsafe { window.copy_in(place.tail_at as usize, tail.as_ptr(), tail.len()) };
        (copied && tail).then_some(())
    }

    /// At the client: the chunks.
    pub(super) fn chunks(&self) -> Option<&Arc<Chunks>> {
        self.chunks.as_ref().map(|(chunks, _)| chunks)
    }

    /// At the client: is this where the chunk of a permit lies?
    pub(super) fn is_at(&self, addr: u64, permit: u16) -> bool {
        let ours = self.chunks.as_ref();
        ours.is_some_and(|(chunks, base)| {
            addr.checked_sub(*base) == u64::try_from(chunks.offset(permit)).ok()
        })
    }

    /// At the client: what a read has brought, out of its chunk.
    pub(super) fn pull(&self, at: usize, into: &SharedBytes) -> bool {
        let chunks = self.chunks.as_ref();
        let from = chunks.and_then(|(chunks, _)| chunks.bytes().part(at, into.len()));
        from.is_some_and(|from| copy(&from, into))
    }

    /// What was told can be seen. Is the bell to be rung?
    pub(super) fn publish(&mut self) -> std::result::Result<bool, Misbehaved> {
        if self.broken {
            return Err(Misbehaved);
        }
        let (words, _) = Self::parts(&self.to_peer);
        Ok(self.producer.publish(words))
    }

    /// The next immediate.
    pub(super) fn take(&mut self) -> std::result::Result<Option<u32>, Misbehaved> {
        let (words, slots) = Self::parts(&self.from_peer);
        self.consumer.take(words, slots)
    }

    /// Has something come? A look that changes nothing.
    pub(super) fn has_some(&self) -> bool {
        let (words, _) = Self::parts(&self.from_peer);
        self.consumer.has_some(words)
    }

    /// Parks: from now on the peer makes the socket readable when it publishes. `false`: there is something already.
    pub(super) fn park(&mut self) -> bool {
        let (words, _) = Self::parts(&self.from_peer);
        self.consumer.is_napping() || self.consumer.naps(words)
    }

    /// The socket need not be made readable.
    pub(super) fn unpark(&mut self) {
        let (words, _) = Self::parts(&self.from_peer);
        self.consumer.wakes(words);
    }
}

/// As many bytes as `from` has.
fn copy(from: &SharedBytes, into: &SharedBytes) -> bool {
    // SAFETY: both are mapped for their lengths. They are no parts of one chunk: a lease that lies in the chunk of its
    // own request is not copied.
    unsafe { into.copy_in(0, from.as_ptr(), from.len()) }
}
