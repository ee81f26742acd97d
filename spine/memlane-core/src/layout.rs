//! Every structure of the spine that lies in shared memory.
//!
//! A **chunk** is one sealed memfd with room for [`SLOTS`] DMBs of one receiver
//! for one sender process:
//!
//! ```text
//! 0      ChunkHeader (one page)
//! 4096   SLOTS × DmbWords (1 KiB each)
//! 69632  SLOTS × ring bytes (ring size: a power of two, ≥ 16 KiB)
//! ```
//!
//! A **DMB** (direct memory buffer, SMC's term) carries one direction of one
//! stream. Its words, who writes them and who reads them:
//!
//! | word | written by | read by | ordering |
//! |---|---|---|---|
//! | `consumed` | receiver | sender | release/acquire: the sender may overwrite what is below it + ring size |
//! | `flags` (`PARKED`, `TCP_ONLY`, `WANT_READY`, `TRIMMED`, `WANT_BELL`) | receiver | sender | see [`crate::ring`]: fence against `writing` |
//! | `rx_cpu` | receiver | sender | hint |
//! | `token` | receiver | sender, once, at attach | written before the sender knows the token |
//! | `rx.nap`, `waits.nap` | both | both | see [`crate::nap`]: fence against `writing` |
//! | `published` | sender | receiver | release/acquire: payload and runs below it are visible |
//! | `writing` | sender | receiver, when it parks | fence against `flags` |
//! | `active` | sender | receiver | release/acquire: 1 = runs valid; 2 = the sender has detached |
//! | `runs_declared`, `runs`, `windows` | sender | receiver | before `published` |
//! | `tx_cpu`, `ready_since`, `room_at` | sender | receiver | hint |
//!
//! Both sides can *physically* write all of it. Neither believes a word that it wrote itself: it keeps its own copy in
//! private memory. What it reads of the other side's words it checks against private state.

use crate::nap::Nap;
use crate::sync::{Cpu, Words};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// The number of DMBs in one chunk: one 64-bit ready word covers them.
pub const SLOTS: usize = 64;
/// The number of TCP runs that a sender can have outstanding.
pub const RUNS: usize = 16;
/// The size of one `DmbWords`, in bytes.
pub const DMB_WORDS_LEN: usize = 1024;
/// Offset of the first `DmbWords` in a chunk.
pub const DMBS_AT: usize = 4096;
/// Offset of the first ring in a chunk.
pub const RINGS_AT: usize = DMBS_AT + SLOTS * DMB_WORDS_LEN;
/// The window of a ring that a sender begins with: one page. See [`crate::ring`].
pub const WINDOW_LEAST: u32 = 4096;
/// Smallest ring: SMC_BUF_MIN_SIZE (net/smc/smc_core.h).
pub const RING_MIN: usize = 16 * 1024;
/// Largest ring: 64 MiB (×64 slots stays far below the address space).
pub const RING_MAX: usize = 64 * 1024 * 1024;

/// `DmbWords::flags`: the receiver sleeps, or is about to: the next bytes must come by TCP.
pub const PARKED: u32 = 1;
/// `DmbWords::flags`: the receiver will never read the ring again.
pub const TCP_ONLY: u32 = 2;
/// `DmbWords::flags`: set this DMB's bit in the chunk's ready word after publishing.
pub const WANT_READY: u32 = 4;
/// `DmbWords::flags`, beside `PARKED`: the ring's pages have been given back, and a sender should begin with a small
/// window again.
pub const TRIMMED: u32 = 8;
/// `DmbWords::flags`: after publishing, ring the chunk's bell if the receiver sleeps ([`crate::bell`]). Unlike
/// `WANT_READY`, it asks for no ready bit: a thread that polls looks at the rings themselves.
pub const WANT_BELL: u32 = 16;

/// `DmbWords::active`: the sender has declared where its stream stands.
pub const ACTIVE: u32 = 1;
/// `DmbWords::active`: the sender has unmapped or forgotten this DMB, so it may serve another stream.
pub const DETACHED: u32 = 2;

/// A stretch of stream offsets that went, or will go, by TCP.
#[repr(C)]
pub struct Run<W: Words> {
    /// First stream offset.
    pub start: W::U64,
    /// One past the last; `u64::MAX`: everything from `start` on.
    pub end: W::U64,
}

/// A window of a ring, from its first byte on. Stream offset `o` lies at `(o + shift) % len`.
#[repr(C)]
pub struct Window<W: Words> {
    /// Size in bytes, a power of two; 0: the whole ring.
    pub len: W::U32,
    /// What is added to a stream offset to get its position.
    pub shift: W::U32,
}

/// The words of one DMB. Each group has 128 bytes to itself, because adjacent-line prefetch moves pairs of 64-byte
/// lines together.
#[repr(C, align(128))]
pub struct DmbWords<W: Words> {
    /// Stream offset below which the receiver has taken everything.
    pub consumed: Aligned<W::U64>,
    /// Words that the receiver writes rarely.
    pub rx: Aligned<RxWords<W>>,
    /// Words that the sender writes with each message.
    pub sent: Aligned<SentWords<W>>,
    /// Words of the sender that the receiver reads when it parks.
    pub tx: Aligned<TxWords<W>>,
    /// Declared TCP runs; run `k` lies at `k % RUNS`.
    pub runs: [Run<W>; RUNS],
    /// The window of the ring that is in use from the end of `runs[k]` on.
    pub windows: Aligned<[Window<W>; RUNS]>,
    /// Words of a sender that waits for room.
    pub waits: Aligned<WaitWords<W>>,
}

/// A value with 128 bytes to itself.
#[repr(C, align(128))]
pub struct Aligned<T>(pub T);

/// Words that the receiver writes rarely. The sender reads `flags` with every message, so both CPUs keep this cache
/// line.
#[repr(C)]
pub struct RxWords<W: Words> {
    /// `PARKED | TCP_ONLY | WANT_READY | TRIMMED | WANT_BELL`.
    pub flags: W::U32,
    /// CPU that the receiver last waited on, +1; 0 = not known.
    pub rx_cpu: W::U32,
    /// The DMB's token; 0 = free.
    pub token: W::U64,
    /// Does the receiver sleep until the sender wakes it? Written by both sides: see [`crate::nap`].
    pub nap: Nap<W>,
}

/// What an awake receiver reads. All that the sender has to say with a message lies in one cache line, which moves from
/// one CPU to the other once for each message.
#[repr(C)]
pub struct SentWords<W: Words> {
    /// Stream offset up to which the sender has declared everything.
    pub published: W::U64,
    /// Number of runs ever declared; run `k` lies in `runs[k % RUNS]`.
    pub runs_declared: W::U32,
    /// CPU that the sender last sent from, +1; 0 = not known.
    pub tx_cpu: W::U32,
    /// `ticks` at which the sender set this DMB's bit in the ready word; 0: the sender does not write it. Receivers
    /// report connections in this order.
    pub ready_since: W::U64,
}

/// Words of the sender that the receiver reads only when it parks. `writing` changes twice with each message, so this
/// cache line should stay with the sender.
#[repr(C)]
pub struct TxWords<W: Words> {
    /// 1 while the sender may be writing into the ring.
    pub writing: W::U32,
    /// 0, `ACTIVE` or `DETACHED`.
    pub active: W::U32,
}

/// Words that the sender writes only while it waits for room. The receiver reads them whenever it has made some, so they
/// have a cache line that both CPUs keep.
#[repr(C)]
pub struct WaitWords<W: Words> {
    /// Does the sender sleep until the receiver wakes it? Written by both sides: see [`crate::nap`].
    pub nap: Nap<W>,
    /// The value of `consumed` from which on the receiver should wake it. Written before `nap`.
    pub room_at: W::U64,
}

/// First page of a chunk.
#[repr(C)]
pub struct ChunkHeader {
    /// `CHUNK_MAGIC`; written by the owner before the memfd is sent.
    pub magic: AtomicU64,
    /// Size of each ring, in bytes.
    pub ring_size: AtomicU32,
    /// `LAYOUT_VERSION`.
    pub version: AtomicU32,
    /// Padding: the ready words have cache lines of their own.
    pub reserved: [AtomicU64; 14],
    /// Which DMBs have news, and when the receiver last looked.
    pub ready: ReadyWords,
}

/// The words of a chunk by which a receiver learns which of its DMBs have news.
#[repr(C)]
pub struct ReadyWords<W: Words = Cpu> {
    /// Bit n: the sender published into DMB n since the receiver last looked.
    /// Set by the sender (after `published`), cleared by the receiver (before it reads `published`).
    pub bits: W::U64,
    /// `ticks` at which the receiver last looked at its rings, to within 200 µs; 0: the receiver does not write it.
    /// Written by the receiver, read by the sender, a hint.
    pub looked: W::U64,
    /// Does the receiver sleep until the chunk's bell rings? `AWAKE`, `ASLEEP`, `ASLEEP_AT_EDGE` or `RUNG`. Written by both
    /// sides: see [`crate::bell`].
    pub asleep: W::U32,
    /// 1: the sender can ring the chunk's bell. Written by the sender, read by the receiver before it relies on the bell.
    pub rings: W::U32,
    /// The newest of the marks; 0: there is none. Written by the sender (compare and exchange) before it writes the mark
    /// itself, read by both, a hint. On the line of `bits`, so that a receiver which finds it old need not look at `marks`.
    pub marked: W::U64,
    /// The places of rings' news in the kernel's list.
    pub marks: Marks<W>,
}

/// The number of marks in [`Marks`]: one cache line of them.
pub const MARKS: usize = 8;

/// When senders sent a message by TCP to mark its place, and for which DMB; 0: no mark. Written by the sender, while the
/// receiver does not look at its rings; read by both, a hint. See [`crate::marks`].
#[repr(C, align(64))]
pub struct Marks<W: Words>(pub [W::U64; MARKS]);

/// `ReadyWords::asleep`: the receiver looks at `bits` by itself. [`Nap`]: nobody sleeps on the word.
pub const AWAKE: u32 = 0;
/// `ReadyWords::asleep`: the receiver sleeps, or is about to: whoever has news rings the bell. [`Nap`]: whoever has news
/// wakes the sleeper.
pub const ASLEEP: u32 = 1;
/// `ReadyWords::asleep`: a sender rings the bell, or has rung it. [`Nap`]: the sleeper is woken, or has been.
pub const RUNG: u32 = 2;
/// `ReadyWords::asleep`: the receiver sleeps, or is about to, and hears edges of its bell: whoever has news rings without a byte.
pub const ASLEEP_AT_EDGE: u32 = 3;

/// "MLCHUNK1", little endian.
pub const CHUNK_MAGIC: u64 = u64::from_le_bytes(*b"MLCHUNK1");
/// The version of everything in this file.
pub const LAYOUT_VERSION: u32 = 7;

/// The size of a chunk whose rings have `ring_size` bytes, in bytes.
pub const fn chunk_len(ring_size: usize) -> usize {
    RINGS_AT + SLOTS * ring_size
}

/// Is this a ring size that the layout allows?
pub const fn ring_size_ok(ring_size: usize) -> bool {
    ring_size.is_power_of_two() && ring_size >= RING_MIN && ring_size <= RING_MAX
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<DmbWords<Cpu>>() == DMB_WORDS_LEN);
    assert!(offset_of!(DmbWords<Cpu>, rx) == 128);
    assert!(offset_of!(DmbWords<Cpu>, sent) == 256);
    assert!(offset_of!(DmbWords<Cpu>, tx) == 384);
    assert!(offset_of!(DmbWords<Cpu>, runs) == 512);
    assert!(offset_of!(DmbWords<Cpu>, windows) == 768);
    assert!(offset_of!(DmbWords<Cpu>, waits) == 896);
    assert!(offset_of!(RxWords<Cpu>, nap) == 16);
    assert!(offset_of!(WaitWords<Cpu>, room_at) == 8);
    assert!(size_of::<Run<Cpu>>() == 16);
    assert!(size_of::<Window<Cpu>>() == 8);
    assert!(offset_of!(SentWords<Cpu>, ready_since) == 16);
    assert!(offset_of!(ChunkHeader, ready) == 128);
    assert!(offset_of!(ReadyWords, looked) == 8);
    assert!(offset_of!(ReadyWords, asleep) == 16);
    assert!(offset_of!(ReadyWords, rings) == 20);
    assert!(offset_of!(ReadyWords, marked) == 24);
    assert!(offset_of!(ReadyWords, marks) == 64);
    assert!(size_of::<ReadyWords>() == 128);
    assert!(size_of::<ChunkHeader>() <= DMBS_AT);
    assert!(RINGS_AT.is_multiple_of(4096));
};
