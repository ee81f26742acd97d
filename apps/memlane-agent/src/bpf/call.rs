//! The system call `bpf`, with the commands that make maps, and load and attach programs.
//!
//! Source of the commands and of the places in their arguments: `union bpf_attr` in `include/uapi/linux/bpf.h`.

use super::assembler::Instruction;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;

const BPF_MAP_CREATE: i32 = 0;
const BPF_PROG_LOAD: i32 = 5;
const BPF_PROG_ATTACH: i32 = 8;
const BPF_LINK_CREATE: i32 = 28;

/// The kernel lets only programs under a licence that it calls compatible with the GPL call most of its helpers.
const LICENCE: &std::ffi::CStr = c"Dual MIT/GPL";
/// Bytes of the verifier's report that are kept.
const REPORT: usize = 16 * 1024;

/// Bytes of the longest argument used here (`BPF_PROG_LOAD` up to `attach_btf_id`), in words.
const ARGUMENT: usize = 14;

/// An argument of the call: all zero but for what is put in.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct Argument([u64; ARGUMENT]);

impl Argument {
    /// Puts 4 bytes at offset `at`, a multiple of 4.
    pub(crate) fn word(mut self, at: usize, value: u32) -> Argument {
        let word = &mut self.0[at / 8];
        let mut bytes = word.to_ne_bytes();
        bytes[at % 8..at % 8 + 4].copy_from_slice(&value.to_ne_bytes());
        *word = u64::from_ne_bytes(bytes);
        self
    }

    /// Puts the address of `what` at offset `at`, a multiple of 8.
    pub(crate) fn address<T>(mut self, at: usize, what: *const T) -> Argument {
        self.0[at / 8] = what as u64;
        self
    }

    /// Makes the call.
    ///
    /// # Safety
    /// Every address in the argument points to what the command expects, for as long as the call lasts.
    pub(crate) unsafe fn call(&self, command: i32) -> io::Result<i32> {
        // SAFETY: the argument is as long as said; what it points to: the caller.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                self.0.as_ptr(),
                size_of::<Argument>(),
            )
        };
        if answer < 0 {
            return Err(io::Error::last_os_error());
        }
        i32::try_from(answer).map_err(io::Error::other)
    }

    /// Makes a call that answers with a new descriptor.
    ///
    /// # Safety
    /// As `call`.
    pub(crate) unsafe fn open(&self, command: i32) -> io::Result<OwnedFd> {
        // SAFETY: the caller's promise is `call`'s; the descriptor is new and nobody else's.
        unsafe { self.call(command).map(|fd| OwnedFd::from_raw_fd(fd)) }
    }
}

/// A descriptor's number, as arguments carry it.
pub(crate) fn number(fd: BorrowedFd<'_>) -> u32 {
    u32::try_from(fd.as_raw_fd()).unwrap_or(u32::MAX)
}

/// What a map is.
#[derive(Clone, Copy, Debug)]
pub struct Map {
    /// `BPF_MAP_TYPE_…`.
    pub kind: u32,
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value.
    pub value: u32,
    /// Entries, at most.
    pub entries: u32,
}

/// Makes a map.
///
/// # Errors
/// The kernel's.
pub fn make_map(map: Map) -> io::Result<OwnedFd> {
    let argument = Argument::default()
        .word(0, map.kind)
        .word(4, map.key)
        .word(8, map.value)
        .word(12, map.entries);
    // SAFETY: no addresses in it.
    unsafe { argument.open(BPF_MAP_CREATE) }
}

/// What a program is.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// `BPF_PROG_TYPE_…`.
    pub kind: u32,
    /// `BPF_…`: where it will be attached.
    pub attach: u32,
    /// The number of the kernel's function that it belongs to, by the kernel's type information; 0: to none.
    pub function: u32,
    /// What `bpftool` shows.
    pub name: &'a [u8; 15],
    /// Its instructions.
    pub code: &'a [Instruction],
}

/// Loads a program.
///
/// # Errors
/// The kernel's, with the end of the verifier's report if it refused the program.
pub fn load(program: &Program<'_>) -> io::Result<OwnedFd> {
    let report = vec![0u8; REPORT];
    let argument = |report: &[u8]| {
        let log_level = u32::from(!report.is_empty());
        let mut argument = Argument::default()
            .word(0, program.kind)
            .word(4, u32::try_from(program.code.len()).unwrap_or(0))
            .address(8, program.code.as_ptr())
            .address(16, LICENCE.as_ptr())
            .word(24, log_level)
            .word(28, u32::try_from(report.len()).unwrap_or(0))
            .word(68, program.attach)
            .word(108, program.function);
        if log_level != 0 {
            argument = argument.address(32, report.as_ptr());
        }
        for (i, letters) in program.name.chunks(4).enumerate() {
            let mut word = [0; 4];
            word[..letters.len()].copy_from_slice(letters);
            argument = argument.word(48 + 4 * i, u32::from_ne_bytes(word));
        }
        argument
    };
    // SAFETY: the program, the licence and the report live until the call is over, and are as long as said.
    let loaded = unsafe { argument(&[]).open(BPF_PROG_LOAD) };
    let Err(refused) = loaded else { return loaded };
    if refused.raw_os_error() == Some(libc::EPERM) {
        return Err(refused);
    }
    // Once more, for the verifier's report.
    // SAFETY: as above; the kernel writes into `report`, which nothing else reads before the call is over.
    let again = unsafe { argument(&report).open(BPF_PROG_LOAD) };
    again.map_err(|_| {
        let end = report.iter().position(|&b| b == 0).unwrap_or(report.len());
        let text = String::from_utf8_lossy(&report[..end]);
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        io::Error::new(refused.kind(), format!("{refused}: {}", last.join("; ")))
    })
}

/// Attaches a program to a map. It stays attached as long as the map is there.
///
/// # Errors
/// The kernel's.
pub fn attach_to_map(program: BorrowedFd<'_>, map: BorrowedFd<'_>, attach: u32) -> io::Result<()> {
    let argument = Argument::default()
        .word(0, number(map))
        .word(4, number(program))
        .word(8, attach);
    // SAFETY: no addresses in it.
    unsafe { argument.call(BPF_PROG_ATTACH).map(|_| ()) }
}

/// Attaches a program to a control group. It stays attached as long as the descriptor is open.
///
/// # Errors
/// The kernel's.
pub fn attach_to_group(
    program: BorrowedFd<'_>,
    group: BorrowedFd<'_>,
    attach: u32,
) -> io::Result<OwnedFd> {
    let argument = Argument::default()
        .word(0, number(program))
        .word(4, number(group))
        .word(8, attach);
    // SAFETY: no addresses in it.
    unsafe { argument.open(BPF_LINK_CREATE) }
}
