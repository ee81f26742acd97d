//! As much of an ELF file as it takes to see whether a preloaded library will get into it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// Type of the note that holds a Go build id.
const GO_BUILD_ID: u32 = 4;
/// No more program headers, and no longer notes or names, than any real program has.
const MAX_HEADERS: usize = 128;
const MAX_BLOB: usize = 64 * 1024;

/// Class, byte order and machine: what the running kernel and loader must agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    pub(crate) wide: bool,
    little: bool,
    pub(crate) machine: u16,
}

/// What an ELF program is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    pub(crate) target: Target,
    /// The dynamic loader it asks for.
    pub(crate) interp: Option<String>,
    pub(crate) go: bool,
}

impl Elf {
    /// `None`: not an ELF file, or not one that can be made sense of.
    pub(crate) fn read(path: &Path) -> Option<Elf> {
        let file = File::open(path).ok()?;
        Elf::parse(&|buffer, offset| file.read_at(buffer, offset))
    }

    /// The same of bytes that `read` gives: at an offset, as many as it likes.
    pub(crate) fn parse(read: &dyn Fn(&mut [u8], u64) -> io::Result<usize>) -> Option<Elf> {
        let head = blob(read, 0, 64)?;
        if !head.starts_with(b"\x7fELF") {
            return None;
        }
        let target = Target {
            wide: *head.get(4)? == 2,
            little: *head.get(5)? == 1,
            machine: 0,
        };
        let mut elf = Elf {
            target: Target {
                machine: target.u16(&head, 18)?,
                ..target
            },
            interp: None,
            go: false,
        };
        elf.walk_segments(read, &head)?;
        elf.go = elf.go || elf.has_go_section(read, &head).unwrap_or(false);
        Some(elf)
    }

    fn walk_segments(
        &mut self,
        read: &dyn Fn(&mut [u8], u64) -> io::Result<usize>,
        head: &[u8],
    ) -> Option<()> {
        let t = self.target;
        let (table, size, count) = match t.wide {
            true => (t.u64(head, 32)?, t.u16(head, 54)?, t.u16(head, 56)?),
            false => (t.u32(head, 28)?.into(), t.u16(head, 42)?, t.u16(head, 44)?),
        };
        for index in 0..usize::from(count).min(MAX_HEADERS) {
            let at = table.checked_add(index as u64 * u64::from(size))?;
            let entry = blob(read, at, if t.wide { 56 } else { 32 })?;
            let (offset, len) = match t.wide {
                true => (t.u64(&entry, 8)?, t.u64(&entry, 32)?),
                false => (t.u32(&entry, 4)?.into(), t.u32(&entry, 16)?.into()),
            };
            let len = usize::try_from(len).ok()?.min(MAX_BLOB);
            match t.u32(&entry, 0)? {
                PT_INTERP => {
                    let name = blob(read, offset, len)?;
                    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
                    self.interp = Some(String::from_utf8_lossy(&name[..end]).into_owned());
                }
                PT_NOTE => self.go |= is_go(t, &blob(read, offset, len)?),
                _ => {}
            }
        }
        Some(())
    }

    /// Go linked by an outside linker keeps the note in a section only.
    fn has_go_section(
        &self,
        read: &dyn Fn(&mut [u8], u64) -> io::Result<usize>,
        head: &[u8],
    ) -> Option<bool> {
        let t = self.target;
        let (table, size, index) = match t.wide {
            true => (t.u64(head, 40)?, t.u16(head, 58)?, t.u16(head, 62)?),
            false => (t.u32(head, 32)?.into(), t.u16(head, 46)?, t.u16(head, 50)?),
        };
        let at = table.checked_add(u64::from(size) * u64::from(index))?;
        let entry = blob(read, at, if t.wide { 64 } else { 40 })?;
        let (offset, len) = match t.wide {
            true => (t.u64(&entry, 24)?, t.u64(&entry, 32)?),
            false => (t.u32(&entry, 16)?.into(), t.u32(&entry, 20)?.into()),
        };
        let names = blob(read, offset, usize::try_from(len).ok()?.min(MAX_BLOB))?;
        Some(
            names
                .split(|&b| b == 0)
                .any(|name| name == b".note.go.buildid"),
        )
    }
}

impl Target {
    fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let raw = bytes.get(at..at + 2)?.try_into().ok()?;
        Some(if self.little {
            u16::from_le_bytes(raw)
        } else {
            u16::from_be_bytes(raw)
        })
    }

    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let raw = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(if self.little {
            u32::from_le_bytes(raw)
        } else {
            u32::from_be_bytes(raw)
        })
    }

    fn u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let raw = bytes.get(at..at + 8)?.try_into().ok()?;
        Some(if self.little {
            u64::from_le_bytes(raw)
        } else {
            u64::from_be_bytes(raw)
        })
    }
}

/// Up to `len` bytes from `offset`; a file that ends earlier gives fewer.
fn blob(
    read: &dyn Fn(&mut [u8], u64) -> io::Result<usize>,
    offset: u64,
    len: usize,
) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match read(&mut bytes[done..], offset.checked_add(done as u64)?) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    bytes.truncate(done);
    Some(bytes)
}

/// Is there a note of the owner "Go" that holds a build id?
fn is_go(target: Target, mut notes: &[u8]) -> bool {
    let padded = |len: u32| {
        usize::try_from(len)
            .unwrap_or(MAX_BLOB)
            .min(MAX_BLOB)
            .next_multiple_of(4)
    };
    while let (Some(name), Some(desc), Some(kind)) = (
        target.u32(notes, 0),
        target.u32(notes, 4),
        target.u32(notes, 8),
    ) {
        if kind == GO_BUILD_ID && notes.get(12..16) == Some(b"Go\0\0") {
            return true;
        }
        let Some(rest) = notes.get(12 + padded(name) + padded(desc)..) else {
            return false;
        };
        notes = rest;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(bytes: &[u8]) -> Option<Elf> {
        Elf::parse(&|buffer, offset| {
            let rest = usize::try_from(offset)
                .ok()
                .and_then(|at| bytes.get(at..))
                .unwrap_or(&[]);
            let n = rest.len().min(buffer.len());
            buffer[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        })
    }

    #[test]
    fn this_program_is_dynamic_and_not_go() {
        let elf = Elf::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(elf.interp.is_some());
        assert!(!elf.go);
    }

    #[test]
    fn what_is_not_elf_is_nothing() {
        assert_eq!(parse(b"#!/bin/sh\n"), None);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"\x7fELF"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_after_the_magic_can_upset_it(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), wide in 1u8..3) {
            bytes.splice(0..0, [0x7f, b'E', b'L', b'F', wide, 1]);
            let _ = parse(&bytes);
        }
    }
}
