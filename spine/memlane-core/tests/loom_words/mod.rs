//! What the models share: a DMB's words as loom sees them, and fences that do nothing, for the canaries.

// Each model uses a part of it.
#![allow(dead_code)]

use loom::sync::atomic::{AtomicU32, AtomicU64};
use memlane_core::layout::{
    Aligned, DmbWords, Run, RxWords, SentWords, TxWords, WaitWords, Window,
};
use memlane_core::nap::Nap;
use memlane_core::sync::{Loom, Words};

/// loom's words with fences that do nothing.
pub(crate) struct NoFence;

impl Words for NoFence {
    type U64 = AtomicU64;
    type U32 = AtomicU32;
    fn full_fence() {}
    fn pause() {
        Loom::pause();
    }
}

/// The words of a fresh DMB.
pub(crate) fn fresh_words<W: Words<U64 = AtomicU64, U32 = AtomicU32>>() -> DmbWords<W> {
    let u64s = || AtomicU64::new(0);
    let u32s = || AtomicU32::new(0);
    DmbWords {
        consumed: Aligned(u64s()),
        rx: Aligned(RxWords {
            flags: u32s(),
            rx_cpu: u32s(),
            token: u64s(),
            nap: Nap(u32s()),
        }),
        sent: Aligned(SentWords {
            published: u64s(),
            runs_declared: u32s(),
            tx_cpu: u32s(),
            ready_since: u64s(),
        }),
        tx: Aligned(TxWords {
            writing: u32s(),
            active: u32s(),
        }),
        runs: std::array::from_fn(|_| Run {
            start: u64s(),
            end: u64s(),
        }),
        windows: Aligned(std::array::from_fn(|_| Window {
            len: u32s(),
            shift: u32s(),
        })),
        waits: Aligned(WaitWords {
            nap: Nap(u32s()),
            room_at: u64s(),
        }),
    }
}
