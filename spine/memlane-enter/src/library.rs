//! How the library's file is laid out in memory.

use crate::elf::{ET_DYN, Elf, Segment};
use memlane_sys::mem::PAGE;

/// The most segments that are mapped.
pub(crate) const SEGMENTS: usize = 8;

/// The library as it will be mapped.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    /// Where it begins, from its first byte in memory on.
    pub(crate) entry: usize,
    /// The address space that it takes.
    pub(crate) span: usize,
    segments: [Option<Segment>; SEGMENTS],
}

impl Library {
    /// `None`: the file is no library that can begin by itself.
    pub(crate) fn read(file: &[u8]) -> Option<Library> {
        let elf = Elf::read(file).filter(|elf| elf.kind == ET_DYN && elf.entry != 0)?;
        let mut library = Library {
            entry: elf.entry,
            span: 0,
            segments: [None; SEGMENTS],
        };
        for (i, segment) in elf.loaded().enumerate() {
            elf.contents(segment)?;
            let addresses = segment.addresses()?;
            let is_possible = segment.in_file <= segment.in_memory
                && segment.address % PAGE == segment.offset % PAGE
                && addresses.start >= library.span;
            if !is_possible {
                return None;
            }
            *library.segments.get_mut(i)? = Some(segment);
            library.span = addresses.end.checked_next_multiple_of(PAGE)?;
        }
        (library.entry < library.span).then_some(library)
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment> {
        self.segments.iter().flatten().copied()
    }
}
