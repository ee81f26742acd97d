//! An ELF file of 64 bits that lies in memory. Nothing in it is believed: each range is checked.
//!
//! Source of the layouts and constants: the System V gABI, chapters 4 and 5.

use core::ops::Range;

pub(crate) const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
pub(crate) const PF_X: u32 = 1;
pub(crate) const PF_W: u32 = 2;
pub(crate) const PF_R: u32 = 4;
pub(crate) const ET_EXEC: u16 = 2;
pub(crate) const ET_DYN: u16 = 3;
const EM_X86_64: u16 = 62;
/// Length of the header, and of a program header.
const HEADER: usize = 64;
const SEGMENT: usize = 56;
/// The most program headers that are read.
const SEGMENTS: usize = 64;

/// The file.
#[derive(Clone, Copy)]
pub(crate) struct Elf<'a> {
    bytes: &'a [u8],
    /// `ET_EXEC` or `ET_DYN`.
    pub(crate) kind: u16,
    /// Address at which the program begins.
    pub(crate) entry: usize,
    table: &'a [u8],
}

/// A program header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) kind: u32,
    pub(crate) rights: u32,
    pub(crate) offset: usize,
    pub(crate) address: usize,
    pub(crate) in_file: usize,
    pub(crate) in_memory: usize,
}

impl<'a> Elf<'a> {
    /// `None`: not a program or library of 64 bits for amd64, or its headers lie outside of the file.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Elf<'a>> {
        // 64-bit, little-endian, version 1 (Elf64_Ehdr).
        if !bytes.starts_with(b"\x7fELF\x02\x01\x01") || short(bytes, 18)? != EM_X86_64 {
            return None;
        }
        let (from, size, count) = (word(bytes, 32)?, short(bytes, 54)?, short(bytes, 56)?);
        let len = usize::from(count) * SEGMENT;
        let is_usual = usize::from(size) == SEGMENT && usize::from(count) <= SEGMENTS;
        if !is_usual || from < HEADER {
            return None;
        }
        Some(Elf {
            bytes,
            kind: short(bytes, 16)?,
            entry: word(bytes, 24)?,
            table: bytes.get(from..from.checked_add(len)?)?,
        })
    }

    pub(crate) fn segments(self) -> impl Iterator<Item = Segment> {
        let headers = self.table.chunks_exact(SEGMENT);
        headers.filter_map(|h| {
            Some(Segment {
                kind: long(h, 0)?,
                rights: long(h, 4)?,
                offset: word(h, 8)?,
                address: word(h, 16)?,
                in_file: word(h, 32)?,
                in_memory: word(h, 40)?,
            })
        })
    }

    /// The segments that are loaded.
    pub(crate) fn loaded(self) -> impl Iterator<Item = Segment> {
        self.segments().filter(|s| s.kind == PT_LOAD)
    }

    /// Does the file ask for a dynamic loader, or for one's work?
    pub(crate) fn is_dynamic(self) -> bool {
        self.segments()
            .any(|s| matches!(s.kind, PT_INTERP | PT_DYNAMIC))
    }

    /// What the file has for a segment.
    pub(crate) fn contents(self, segment: Segment) -> Option<&'a [u8]> {
        let end = segment.offset.checked_add(segment.in_file)?;
        self.bytes.get(segment.offset..end)
    }

    /// The file's bytes from an address on, to the end of the segment.
    pub(crate) fn at(self, address: usize) -> Option<&'a [u8]> {
        self.loaded().find_map(|segment| {
            let within = address.checked_sub(segment.address)?;
            self.contents(segment)?.get(within..)
        })
    }
}

impl Segment {
    /// The addresses that it has in memory.
    pub(crate) fn addresses(self) -> Option<Range<usize>> {
        Some(self.address..self.address.checked_add(self.in_memory)?)
    }
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?);
    usize::try_from(word).ok()
}
