//! What lies where in the memory that a server shares with other machines (`docs/formats/ivshmem-volumes.md`).

use std::sync::atomic::AtomicU64;

/// `MLVOLUME`.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"MLVOLUME");
/// The version of this layout.
pub(super) const VERSION: u64 = 1;
/// Extents that can be lent at a time.
pub(super) const EXTENTS: usize = 1024;
/// Where their entries begin.
pub(super) const EXTENTS_AT: usize = 4096;
/// Where the memory of extents begins.
pub(super) const MEMORY_AT: usize = EXTENTS_AT + EXTENTS * size_of::<Extent>();
/// Extents begin at a multiple of this, and are as long as a multiple of it.
pub(super) const PAGE: usize = 4096;

const _: () = assert!(MEMORY_AT.is_multiple_of(PAGE));
const _: () = assert!(size_of::<Extent>() == 128);

/// In a claim: the client does not use the extent any more.
pub(super) const LET_GO: u64 = 0;
/// In a claim: nor will it ever come back to its session. It has closed that, or its process is no more.
pub(super) const DEPARTED: u64 = 1;

/// Does somebody hold the extent? Claims are odd, and a server's offers are even.
pub(super) fn is_claim(word: u64) -> bool {
    word > DEPARTED && word % 2 == 1
}

/// What a region begins with. The server writes it; clients compare it.
#[repr(C)]
pub(super) struct Head {
    /// [`MAGIC`], written last (release).
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU64,
    /// Bytes of the region.
    pub(super) len: AtomicU64,
}

/// One extent's entry.
///
/// | word | written by | read by | ordered by |
/// |---|---|---|---|
/// | `server`, `at`, `len` | the server | the next server | `server` is stored last (release) |
/// | `claim` | the server, while nobody holds the extent; then the client, or a process of its machine | both | compare and exchange |
/// | the others | the client, while it holds the extent; zeroed by the server before it offers the extent | processes of the client's machine | `machine` is stored last (release) |
#[repr(C, align(128))]
pub(super) struct Extent {
    /// A random number of the server that lends it; 0: the entry is free.
    pub(super) server: AtomicU64,
    /// Where it begins in the region.
    pub(super) at: AtomicU64,
    /// Bytes.
    pub(super) len: AtomicU64,
    /// A random number: the server's offer, which is even, and then the client's claim, which is odd; or [`LET_GO`], or
    /// [`DEPARTED`].
    pub(super) claim: AtomicU64,
    /// Which machine the client is on; 0: nobody has signed.
    pub(super) machine: AtomicU64,
    /// Which boot of it.
    pub(super) boot: AtomicU64,
    /// The process, by its number in its namespace.
    pub(super) process: AtomicU64,
    /// When it began, in clock ticks since the machine's boot.
    pub(super) started: AtomicU64,
    /// The inode of its namespace of processes.
    pub(super) namespace: AtomicU64,
}
