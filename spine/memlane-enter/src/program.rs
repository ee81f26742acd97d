//! What a static Go program must be like to be entered.

use crate::elf::{ET_EXEC, Elf, PF_W, PF_X};
use crate::obstacle::Obstacle;
use memlane_core::golang::{self, SYSCALL6_HEAD, Syscall6};

/// The record of Go's linker lies no further from the beginning of its segment.
const RECORD_WITHIN: usize = 16 << 20;

/// The address of the system call instruction in `Syscall6`, in a static program that the library can serve.
pub(crate) fn system_call_of(file: &[u8]) -> Result<usize, Obstacle> {
    let elf = Elf::read(file).ok_or(Obstacle::Other)?;
    if elf.kind != ET_EXEC || elf.is_dynamic() {
        return Err(Obstacle::Other);
    }
    // C code that begins in a Go program has threads of its own.
    if !golang::begins(elf.entry, |at| elf.at(at)) {
        return Err(Obstacle::Other);
    }
    let data = elf.loaded().filter(|s| s.rights & PF_W != 0);
    let mut records = data.filter_map(|s| {
        let bytes = elf.contents(s)?;
        golang::version(&bytes[..bytes.len().min(RECORD_WITHIN)])
    });
    let version = records.next().ok_or(Obstacle::NoRecord)?;
    let function = Syscall6::of(version).ok_or(Obstacle::Release)?;
    let mut code = elf.loaded().filter(|s| s.rights & PF_X != 0);
    let at = code.find_map(|segment| {
        let at = function.find(elf.contents(segment)?)?;
        Some(segment.address.wrapping_add(at))
    });
    // The head ends with the instruction.
    at.map(|at| at.wrapping_add(SYSCALL6_HEAD.len() - 2))
        .ok_or(Obstacle::NoFunction)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// A file with one segment that may be executed and one that may be written, and Go's first instructions.
    fn file(version: &str, functions: usize) -> Vec<u8> {
        const TEXT: usize = 0x1000;
        const DATA: usize = 0x2000;
        const REST: &[u8] = b"\x48\x3d\x01\xf0\xff\xff\x76\x15\x48\xf7\xd8\x48\x89\xc1\x48\xc7\xc0\xff\xff\xff\xff\x48\xc7\xc3\
            \x00\x00\x00\x00\xc3\x48\x89\xd3\x48\xc7\xc1\x00\x00\x00\x00\xc3";
        let mut bytes = std::vec![0u8; 0x3000];
        let put = |bytes: &mut Vec<u8>, at: usize, what: &[u8]| {
            bytes[at..at + what.len()].copy_from_slice(what);
        };
        put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
        put(&mut bytes, 16, &[2, 0, 62, 0]);
        put(&mut bytes, 24, &0x40_1000u64.to_le_bytes());
        put(&mut bytes, 32, &64u64.to_le_bytes());
        put(&mut bytes, 54, &[56, 0, 2, 0]);
        for (i, (rights, at)) in [(5u32, TEXT), (6, DATA)].into_iter().enumerate() {
            let header = 64 + 56 * i;
            put(&mut bytes, header, &1u32.to_le_bytes());
            put(&mut bytes, header + 4, &rights.to_le_bytes());
            put(&mut bytes, header + 8, &(at as u64).to_le_bytes());
            put(
                &mut bytes,
                header + 16,
                &(0x40_0000 + at as u64).to_le_bytes(),
            );
            put(&mut bytes, header + 32, &0x1000u64.to_le_bytes());
            put(&mut bytes, header + 40, &0x1000u64.to_le_bytes());
        }
        put(&mut bytes, TEXT, b"\xe9\x0b\0\0\0");
        put(
            &mut bytes,
            TEXT + 16,
            b"\x48\x8b\x3c\x24\x48\x8d\x74\x24\x08\xe9",
        );
        for i in 0..functions {
            put(&mut bytes, TEXT + 64 * (1 + i), &SYSCALL6_HEAD);
            put(&mut bytes, TEXT + 64 * (1 + i) + SYSCALL6_HEAD.len(), REST);
        }
        put(&mut bytes, DATA, b"\xff Go buildinf:\x08\x02");
        bytes[DATA + 32] = u8::try_from(version.len()).expect("short");
        put(&mut bytes, DATA + 33, version.as_bytes());
        bytes
    }

    #[test]
    fn the_system_call_of_the_first_function_is_found() {
        let at = 0x40_1000 + 64 + SYSCALL6_HEAD.len() - 2;
        for functions in [1, 2] {
            assert_eq!(system_call_of(&file("go1.26.8", functions)), Ok(at));
        }
    }

    #[test]
    fn a_program_that_differs_in_one_thing_is_refused_for_that() {
        let with = |at: usize, byte: u8| {
            let mut bytes = file("go1.26.8", 1);
            bytes[at] = byte;
            system_call_of(&bytes)
        };
        assert_eq!(with(4, 1), Err(Obstacle::Other), "32 bits");
        assert_eq!(with(16, 3), Err(Obstacle::Other), "position independent");
        assert_eq!(with(18, 183), Err(Obstacle::Other), "arm64");
        assert_eq!(with(64, 3), Err(Obstacle::Other), "asks for a loader");
        assert_eq!(with(64 + 56, 2), Err(Obstacle::Other), "dynamic");
        assert_eq!(with(0x1000, 0xf3), Err(Obstacle::Other), "begins with C");
        assert_eq!(with(0x1010, 0x49), Err(Obstacle::Other), "begins otherwise");
        assert_eq!(with(0x2000, 0), Err(Obstacle::NoRecord));
        assert_eq!(with(0x1040, 0x48), Err(Obstacle::NoFunction));
        assert_eq!(
            system_call_of(&file("go1.19.13", 1)),
            Err(Obstacle::Release)
        );
    }

    proptest! {
        #[test]
        fn no_bytes_can_upset_it(changes in proptest::collection::vec((0usize..0x3000, any::<u8>()), 0..40), len in 0usize..0x3001) {
            let mut bytes = file("go1.26.8", 1);
            for (at, byte) in changes {
                bytes[if at < 0x200 { at } else { at % 180 }] = byte;
            }
            bytes.truncate(len);
            let _ = system_call_of(&bytes);
            let _ = crate::library::Library::read(&bytes);
        }
    }
}
