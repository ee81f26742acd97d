//! What decides: a queue's front and back, and the table of grants that stay mapped.
//!
//! No descriptors, no threads, no clock. Rings lie in memory that both have mapped ([`QueueMemory`]); granted memory
//! is reached through [`grant::Reach`], which the `io` room implements with mmap and pread, and tests with a model.

pub mod back;
pub mod cache;
pub mod chain;
pub mod front;
pub mod grant;

use crate::error::Detach;
use crate::layout::{QueueLayout, RX_WORDS, RingWords, TX_WORDS};
use crate::port::More;
use crate::ring;
use memlane_core::region::Region;
use memlane_core::sync::Cpu;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A queue's part of the control memory: two rings and the grant table.
#[derive(Clone, Debug)]
pub struct QueueMemory {
    control: Arc<Region>,
    layout: QueueLayout,
    grants: NonNull<AtomicU64>,
    tx: RingMemory<TX_WORDS>,
    rx: RingMemory<RX_WORDS>,
}

// SAFETY: pointers into `control`, which lives as long; all that lies there is atomic.
unsafe impl Send for QueueMemory {}
// SAFETY: as above.
unsafe impl Sync for QueueMemory {}

/// A ring in mapped memory, whose slots have `WORDS` words.
#[derive(Clone, Copy, Debug)]
struct RingMemory<const WORDS: usize> {
    words: NonNull<RingWords<Cpu>>,
    slots: NonNull<AtomicU32>,
    count: u32,
}

impl<const WORDS: usize> RingMemory<WORDS> {
    fn find(control: &Region, at: usize, count: u32) -> Option<Self> {
        let slots_at = at.checked_add(crate::layout::RING_HEADER)?;
        // SAFETY: atomics only; `QueueMemory` keeps the region.
        let words = unsafe { control.words::<RingWords<Cpu>>(at)? };
        let last = slots_at.checked_add((count as usize * WORDS - 1) * 4)?;
        // SAFETY: as above; the last slot's last word lies inside, so all do.
        let slots = unsafe {
            control.words::<AtomicU32>(last)?;
            control.words::<AtomicU32>(slots_at)?
        };
        Some(RingMemory {
            words,
            slots,
            count,
        })
    }

    #[inline]
    fn words(&self) -> &RingWords<Cpu> {
        // SAFETY: inside the region, which the `QueueMemory` around us keeps; atomics, so that a peer may write them.
        unsafe { self.words.as_ref() }
    }

    #[inline]
    fn slots(&self) -> &[AtomicU32] {
        // SAFETY: as above; `find` has checked that this many words lie inside.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr(), self.count as usize * WORDS) }
    }

    #[inline]
    fn write<const N: usize>(&self, index: u32, words: [u32; N]) {
        ring::write::<Cpu, WORDS, N>(self.slots(), self.count - 1, index, words);
    }

    #[inline]
    fn read<const N: usize>(&self, index: u32) -> [u32; N] {
        ring::read::<Cpu, WORDS, N>(self.slots(), self.count - 1, index)
    }
}

impl QueueMemory {
    /// Queue number `queue` of a control memory; `None` if it does not lie inside.
    pub fn new(control: &Arc<Region>, layout: QueueLayout, queue: u16) -> Option<QueueMemory> {
        let at = usize::from(queue).checked_mul(layout.len)?;
        if at.checked_add(layout.len)? > control.len() {
            return None;
        }
        // SAFETY: atomics only; we keep the region. The table ends before the tx ring, which lies inside.
        let grants = unsafe { control.words::<AtomicU64>(at)? };
        Some(QueueMemory {
            control: Arc::clone(control),
            layout,
            grants,
            tx: RingMemory::find(control, at + layout.tx_at, layout.slots)?,
            rx: RingMemory::find(control, at + layout.rx_at, layout.slots)?,
        })
    }

    /// Sizes.
    pub fn layout(&self) -> QueueLayout {
        self.layout
    }

    /// The control memory, for who writes what an engine would not (tests).
    pub fn control(&self) -> &Arc<Region> {
        &self.control
    }

    #[inline]
    fn table(&self) -> &[AtomicU64] {
        // SAFETY: inside the region, which we keep; `new` has seen that the table ends inside; atomics only.
        unsafe { std::slice::from_raw_parts(self.grants.as_ptr(), self.layout.grants as usize) }
    }

    /// A grant's entry, copied once. `None`: the table has no such reference.
    #[inline]
    pub fn grant(&self, gref: u32) -> Option<u64> {
        let entry = self.table().get(gref as usize)?;
        Some(entry.load(Ordering::Acquire))
    }

    /// Writes a grant's entry (the front does); `false` if there is none.
    pub fn set_grant(&self, gref: u32, word: u64) -> bool {
        let entry = self.table().get(gref as usize);
        entry
            .inspect(|e| e.store(word, Ordering::Release))
            .is_some()
    }
}

/// Answers (of a back) and buffers (of a front) that are given back together, at most, as long as a receiver that takes
/// few frames at a time finds more. Each time costs a fence, and cache lines that the sender is about to write.
const TOGETHER: u32 = 16;

/// How many slots are given back at a time in a ring of this many slots: few enough that the sender never waits for
/// them.
fn together(slots: u32) -> u32 {
    TOGETHER.min(slots / 4)
}

/// How many frames a receiver was lent.
struct Lent {
    frames: usize,
    /// It took all that it asked for and wants more: it is about to come again.
    comes_again: bool,
}

/// Lends up to `most` frames, one after another. `lend_one` lends one to a receiver and keeps in the cell whether that
/// wants more; it says whether there was a frame, and its error ends the queue.
#[inline(always)]
fn lend_while(
    most: usize,
    mut lend_one: impl FnMut(&Cell<More>) -> Result<bool, Detach>,
) -> Result<Lent, Detach> {
    let more = Cell::new(More::Yes);
    let mut frames = 0;
    while frames < most && more.get() == More::Yes && lend_one(&more)? {
        frames += 1;
    }
    let comes_again = frames == most && more.get() == More::Yes;
    Ok(Lent {
        frames,
        comes_again,
    })
}

/// What one call of an engine did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Burst {
    /// Frames.
    pub frames: usize,
    /// The other side asked for a doorbell.
    pub ring: bool,
}
