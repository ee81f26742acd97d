//! A grant: memory of the front's that the back may reach, by a number in a table.

use crate::layout::{GTF_PERMIT_ACCESS, GTF_READONLY, GTF_TYPE, GrantEntry, ORDER_MAX, PAGE};
use core::fmt;
use memlane_core::access::SharedBytes;
use memlane_sys::Result;

/// What is to be done with granted memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Tx: the back reads.
    Read,
    /// Rx: the back writes.
    Write,
}

/// A region that the front handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes.
    pub len: usize,
    /// Did the front hand it over for writing too?
    pub writable: bool,
}

/// What is wrong with a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantError {
    /// The table has no such reference.
    NoEntry,
    /// The entry permits no access.
    NotGranted,
    /// The entry is for reading, and something was to be written.
    ReadOnly,
    /// The order is larger than there is.
    Order,
    /// There is no such region, or the pages lie beyond its end.
    Outside,
}

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GrantError::NoEntry => "no such reference",
            GrantError::NotGranted => "not granted",
            GrantError::ReadOnly => "for reading only",
            GrantError::Order => "too many pages",
            GrantError::Outside => "outside of the memory that was handed over",
        })
    }
}

/// A grant that was checked: `at..at + len` lies in the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Which of the regions that the front handed over.
    pub region: u16,
    /// First byte.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

impl Grant {
    /// Checks an entry, which must be a private copy. `regions` is what was handed over.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(
        word: u64,
        regions: &[Extent],
        access: Access,
    ) -> core::result::Result<Grant, GrantError> {
        let entry = GrantEntry::from_word(word);
        if entry.flags & GTF_TYPE != GTF_PERMIT_ACCESS {
            return Err(GrantError::NotGranted);
        }
        if access == Access::Write && entry.flags & GTF_READONLY != 0 {
            return Err(GrantError::ReadOnly);
        }
        let len = entry.bytes();
        if len > PAGE << ORDER_MAX {
            return Err(GrantError::Order);
        }
        let region = regions.get(usize::from(entry.region));
        let region = *region.ok_or(GrantError::Outside)?;
        if access == Access::Write && !region.writable {
            return Err(GrantError::ReadOnly);
        }
        // 2^32 pages are less than a usize holds.
        let at = entry.frame as usize * PAGE;
        if at.checked_add(len).is_none_or(|end| end > region.len) {
            return Err(GrantError::Outside);
        }
        Ok(Grant {
            region: entry.region,
            at,
            len,
        })
    }
}

/// How a back reaches granted memory. All three ways are needed: a table that is full falls back to copies.
pub trait Reach {
    /// The regions that the front handed over.
    fn regions(&self) -> &[Extent];

    /// Maps a grant.
    ///
    /// # Errors
    /// The kernel's.
    fn map(&mut self, grant: Grant, access: Access) -> Result<SharedBytes>;

    /// Unmaps what `map` gave; nobody uses it any more.
    fn unmap(&mut self, window: SharedBytes);

    /// Copies out of a grant, from `at` in it, without mapping it. The caller has seen that it lies inside.
    ///
    /// # Errors
    /// The kernel's.
    fn read(&mut self, grant: Grant, at: usize, into: &mut [u8]) -> Result<()>;

    /// Copies into a grant, by the kernel.
    ///
    /// # Errors
    /// The kernel's.
    fn write(&mut self, grant: Grant, at: usize, from: &[u8]) -> Result<()>;
}

/// How a back gets at packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Grants stay mapped, up to a limit; what does not fit is copied.
    Persistent,
    /// Each packet's grants are mapped and unmapped.
    Map,
    /// The kernel copies each packet.
    Copy,
}

impl Mode {
    /// All, the best first.
    pub const ALL: [Mode; 3] = [Mode::Persistent, Mode::Map, Mode::Copy];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Persistent => "persistent",
            Mode::Map => "map",
            Mode::Copy => "copy",
        }
    }
}
