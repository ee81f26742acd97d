//! Structures that both languages know. The header has the same sizes and offsets as static assertions.

use core::ffi::c_char;
use core::mem::{offset_of, size_of};

/// Payload in a region (`memlane_fragment`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CFragment {
    /// From the region's beginning.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// To give back.
    pub token: u32,
}

/// Tokens that follow one another (`memlane_range`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CRange {
    /// The first.
    pub start: u32,
    /// How many.
    pub count: u32,
}

/// What a stream's user asks for (`memlane_terms`). Zero: as memlane likes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CTerms {
    /// `sizeof(memlane_terms)` where the program was compiled.
    pub size: u32,
    /// Fragments that may be out.
    pub fragments: u32,
    /// Bytes of a receive, at most.
    pub burst: u32,
    /// 0.
    pub reserved: u32,
    /// This path or none; null: the best.
    pub require: *const c_char,
}

/// What was counted (`memlane_counts`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CCounts {
    /// Bytes that came.
    pub received: u64,
    /// Fragments in which they came.
    pub fragments: u64,
    /// Of these, given back.
    pub released: u64,
    /// Bytes that went through host memory.
    pub bounced: u64,
    /// Receives without room.
    pub no_room: u64,
    /// Bytes that were sent.
    pub sent: u64,
    /// Fragments that are out.
    pub out: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Chunks of the region.
    pub chunks: u32,
    /// Those that nobody has.
    pub chunks_free: u32,
}

/// Bytes, by the way that they went (`memlane_stream_counted`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CStreamCounts {
    /// Into the peer's memory.
    pub sent_in_memory: u64,
    /// By TCP.
    pub sent_by_tcp: u64,
    /// In memory.
    pub received_in_memory: u64,
    /// By TCP.
    pub received_by_tcp: u64,
}

const _: () = assert!(size_of::<CStreamCounts>() == 32);
const _: () = assert!(size_of::<CFragment>() == 16 && offset_of!(CFragment, token) == 12);
const _: () = assert!(size_of::<CRange>() == 8 && offset_of!(CRange, count) == 4);
const _: () = assert!(size_of::<CTerms>() == 24 && offset_of!(CTerms, require) == 16);
const _: () = assert!(size_of::<CCounts>() == 64 && offset_of!(CCounts, out) == 48);
