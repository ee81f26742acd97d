//! One enum for each thing that can fail.

use core::fmt;
use memlane_sys::Errno;

/// Why there is no such region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegionError {
    /// This text names no region.
    Name(String),
    /// This machine has no such memory: what is missing, and what to do.
    Missing(String),
    /// The kernel refused: what was tried.
    Kernel(&'static str, Errno),
    /// A chunk must be a power of two, from a page to 64 MiB, and not larger than the region.
    Chunk(u32),
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegionError::Name(text) => write!(
                f,
                "{text}: a region is memfd:SIZE, hugetlb:SIZE, udmabuf:SIZE or dmaheap:NAME:SIZE (64M, 1G)"
            ),
            RegionError::Missing(what) => f.write_str(what),
            RegionError::Kernel(what, errno) => write!(f, "{what}: {errno}"),
            RegionError::Chunk(size) => write!(
                f,
                "chunks of {size} bytes: a power of two, from 4096 to 67108864, that is not larger than the region"
            ),
        }
    }
}

impl core::error::Error for RegionError {}

/// Why nothing was given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseError {
    /// One call takes 128 ranges (the kernel: EINVAL).
    TooManyRanges(usize),
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReleaseError::TooManyRanges(count) => {
                write!(f, "{count} ranges of tokens: at most 128 at a time")
            }
        }
    }
}

impl core::error::Error for ReleaseError {}

/// Why nothing was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveError {
    /// Nothing is there yet.
    WouldBlock,
    /// All chunks or tokens are out: give some back.
    NoRoom,
    /// The kernel refused.
    Kernel(Errno),
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReceiveError::WouldBlock => f.write_str("nothing is there yet"),
            ReceiveError::NoRoom => {
                f.write_str("all chunks of the region, or all tokens, are out: release some")
            }
            ReceiveError::Kernel(errno) => write!(f, "{errno}"),
        }
    }
}

impl core::error::Error for ReceiveError {}

/// Why bytes of a fragment, or of a region, cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// No fragment that is out has this token.
    NoSuchToken(u32),
    /// Beyond the fragment's, or the region's, end.
    Outside,
    /// The device refused.
    Device(Errno),
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessError::NoSuchToken(token) => {
                write!(f, "no fragment that is out has token {token}")
            }
            AccessError::Outside => f.write_str("beyond the end"),
            AccessError::Device(errno) => write!(f, "device: {errno}"),
        }
    }
}

impl core::error::Error for AccessError {}
