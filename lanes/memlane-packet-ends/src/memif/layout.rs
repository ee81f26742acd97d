//! Rings and descriptors of memif 2.0, as they lie in regions (docs/formats/memif.md).
//!
//! | word | who writes it | who reads it | what orders it |
//! |---|---|---|---|
//! | `cookie` | the client, before it hands the region over | the server, once | the socket |
//! | `flags` | who takes frames from the ring (S2M: the server, M2S: the client) | who puts them there | a full fence on both sides, between own index and flags |
//! | `head` | the client | the server | release, acquire |
//! | `tail` | the server | the client | release, acquire |
//! | descriptors | S2M: the client; M2S: the client, then the server | the other | head and tail |

use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use memlane_packet::error::Ring as Direction;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// `MEMIF_COOKIE`.
pub const COOKIE: u32 = 0x3E3_1F20;
/// `MEMIF_RING_FLAG_MASK_INT`: do not ring.
pub const MASK_INT: u16 = 1;
/// `MEMIF_DESC_FLAG_NEXT`: the frame goes on in the next slot.
pub const NEXT: u16 = 1;
/// Rings have at most 2^this slots: DPDK's `ETH_MEMIF_MAX_LOG2_RING_SIZE`.
pub const LOG2_MAX: u8 = 14;
/// Bytes before a ring's descriptors: two cache lines of 64 bytes, which `memif.h` assumes.
pub const RING_HEADER: usize = 128;
/// Bytes of a descriptor.
pub const DESC: usize = 16;

/// `memif_ring_t`.
#[repr(C)]
#[derive(Debug)]
pub struct RingWords {
    cookie: AtomicU32,
    flags: AtomicU16,
    head: AtomicU16,
    line: [AtomicU16; 28],
    tail: AtomicU16,
    rest: [AtomicU16; 31],
}

const _: () = {
    assert!(size_of::<RingWords>() == RING_HEADER);
    assert!(offset_of!(RingWords, flags) == 4);
    assert!(offset_of!(RingWords, head) == 6);
    assert!(offset_of!(RingWords, tail) == 64);
};

/// `memif_desc_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Desc {
    /// [`NEXT`].
    pub flags: u16,
    /// Which region.
    pub region: u16,
    /// Bytes: of the buffer, while it is empty; of what lies there, once it is filled.
    pub length: u32,
    /// From which byte of the region on.
    pub offset: u32,
    /// Nobody's.
    pub metadata: u32,
}

impl Desc {
    /// As it lies there: flags, region and length; offset and metadata.
    #[inline]
    pub fn words(self) -> [u64; 2] {
        [
            u64::from(self.flags) | u64::from(self.region) << 16 | u64::from(self.length) << 32,
            u64::from(self.offset) | u64::from(self.metadata) << 32,
        ]
    }

    /// Back.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // that is how words are taken apart
    pub fn from_words([first, second]: [u64; 2]) -> Desc {
        Desc {
            flags: first as u16,
            region: (first >> 16) as u16,
            length: (first >> 32) as u32,
            offset: second as u32,
            metadata: (second >> 32) as u32,
        }
    }
}

/// Bytes of a ring of 2^`log2` slots.
pub fn ring_len(log2: u8) -> usize {
    RING_HEADER + (DESC << log2)
}

/// A client's regions, mapped, with their windows.
#[derive(Debug)]
pub struct Memory {
    regions: Vec<Arc<Region>>,
    windows: Vec<SharedBytes>,
}

impl Memory {
    /// Of these, by their numbers.
    pub fn new(regions: Vec<Arc<Region>>) -> Memory {
        let windows = regions.iter().map(|region| region.bytes()).collect();
        Memory { regions, windows }
    }

    /// A stretch of a region; `None`: there is none there. For who keeps `self` while it is used.
    #[inline]
    pub(super) fn window(&self, region: u16, offset: u32, length: u32) -> Option<SharedBytes> {
        // A u32 is no more than a usize holds.
        self.windows
            .get(usize::from(region))?
            .part(offset as usize, length as usize)
    }

    /// A ring in a region. `None`: it would reach outside, or its words would not be aligned.
    pub fn ring(
        self: &Arc<Memory>,
        direction: Direction,
        region: u16,
        offset: u32,
        log2: u8,
    ) -> Option<RingMemory> {
        if log2 > LOG2_MAX {
            return None;
        }
        let held = self.regions.get(usize::from(region))?;
        let at = offset as usize;
        let last = at.checked_add(ring_len(log2) - DESC)?;
        // SAFETY: atomics only; `RingMemory` keeps the memory. The last descriptor lies inside, so all do.
        let (words, descs) = unsafe {
            held.words::<[AtomicU64; 2]>(last)?;
            (
                held.words::<RingWords>(at)?,
                held.words::<[AtomicU64; 2]>(at + RING_HEADER)?,
            )
        };
        Some(RingMemory {
            words,
            descs,
            mask: (1 << log2) - 1,
            direction,
            memory: Arc::clone(self),
        })
    }
}

/// A ring in mapped memory.
#[derive(Clone, Debug)]
pub struct RingMemory {
    words: NonNull<RingWords>,
    descs: NonNull<[AtomicU64; 2]>,
    mask: u16,
    direction: Direction,
    memory: Arc<Memory>,
}

// SAFETY: pointers into `memory`, which lives as long; all that lies there is atomic.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Slots.
    #[inline]
    pub fn size(&self) -> u16 {
        self.mask + 1
    }

    /// S2M is `tx`, as the client sees it; M2S is `rx`.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Where frames lie.
    #[inline]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    #[inline]
    fn words(&self) -> &RingWords {
        // SAFETY: inside the memory that `self` keeps; atomics, so that a peer may write them.
        unsafe { self.words.as_ref() }
    }

    #[inline]
    fn desc(&self, index: u16) -> &[AtomicU64; 2] {
        // SAFETY: masked, so one of the ring's; `ring` has seen that all lie inside, aligned; atomics.
        unsafe { self.descs.add(usize::from(index & self.mask)).as_ref() }
    }

    /// The client's, before it hands the region over: an empty ring.
    pub fn init(&self) {
        self.words().cookie.store(COOKIE, Ordering::Relaxed);
        self.set_flags(0);
        self.set_head(0);
        self.set_tail(0);
    }

    /// Is this a ring?
    pub fn has_cookie(&self) -> bool {
        self.words().cookie.load(Ordering::Relaxed) == COOKIE
    }

    /// The client's index.
    #[inline]
    pub fn head(&self) -> u16 {
        self.words().head.load(Ordering::Acquire)
    }

    /// Shows what lies before it.
    #[inline]
    pub fn set_head(&self, head: u16) {
        self.words().head.store(head, Ordering::Release);
    }

    /// The server's index.
    #[inline]
    pub fn tail(&self) -> u16 {
        self.words().tail.load(Ordering::Acquire)
    }

    /// Shows what lies before it.
    #[inline]
    pub fn set_tail(&self, tail: u16) {
        self.words().tail.store(tail, Ordering::Release);
    }

    /// Does who takes frames want to be rung for?
    #[inline]
    pub fn wants_bell(&self) -> bool {
        self.words().flags.load(Ordering::Relaxed) & MASK_INT == 0
    }

    /// Says whether.
    #[inline]
    pub fn set_flags(&self, flags: u16) {
        self.words().flags.store(flags, Ordering::Relaxed);
    }

    /// A descriptor, copied once. Which of the two words changed while it was read does not matter: both are checked.
    #[inline]
    pub fn load(&self, index: u16) -> Desc {
        let [first, second] = self.desc(index);
        Desc::from_words([
            first.load(Ordering::Relaxed),
            second.load(Ordering::Relaxed),
        ])
    }

    /// Writes a descriptor.
    #[inline]
    pub fn store(&self, index: u16, desc: Desc) {
        let [first, second] = self.desc(index);
        let words = desc.words();
        first.store(words[0], Ordering::Relaxed);
        second.store(words[1], Ordering::Relaxed);
    }

    /// Writes its flags, region and length.
    #[inline]
    pub fn store_first(&self, index: u16, desc: Desc) {
        self.desc(index)[0].store(desc.words()[0], Ordering::Relaxed);
    }
}
