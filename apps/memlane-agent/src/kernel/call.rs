//! The system call `bpf`.
//!
//! Source of the commands and of the places in their arguments: `union bpf_attr` in `include/uapi/linux/bpf.h`.

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;

use super::program::Instruction;

const BPF_MAP_CREATE: i32 = 0;
const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;
const BPF_ITER_CREATE: i32 = 33;

const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_PROG_TYPE_TRACING: u32 = 26;
const BPF_TRACE_ITER: u32 = 28;

/// `BPF_OBJ_NAME_LEN` without the terminator; what `bpftool` shows.
const NAME: &[u8; 15] = b"memlane_sockets";
/// The kernel lets only programs under a licence that it calls compatible with the GPL call `bpf_seq_write`.
const LICENCE: &std::ffi::CStr = c"Dual MIT/GPL";
/// Bytes of the verifier's report that are kept.
const REPORT: usize = 16 * 1024;

/// Bytes of the longest argument used here (`BPF_PROG_LOAD` up to `attach_btf_id`), in words.
const ARGUMENT: usize = 14;

/// An argument of the call: all zero but for what is put in.
#[repr(C, align(8))]
#[derive(Default)]
struct Argument([u64; ARGUMENT]);

impl Argument {
    /// Puts 4 bytes at offset `at`, a multiple of 4.
    fn word(mut self, at: usize, value: u32) -> Argument {
        let word = &mut self.0[at / 8];
        let mut bytes = word.to_ne_bytes();
        bytes[at % 8..at % 8 + 4].copy_from_slice(&value.to_ne_bytes());
        *word = u64::from_ne_bytes(bytes);
        self
    }

    /// Puts the address of `what` at offset `at`, a multiple of 8.
    fn address<T>(mut self, at: usize, what: *const T) -> Argument {
        self.0[at / 8] = what as u64;
        self
    }

    /// Makes the call.
    ///
    /// # Safety
    /// Every address in the argument points to what the command expects, for as long as the call lasts.
    unsafe fn call(&self, command: i32) -> io::Result<i32> {
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
    unsafe fn open(&self, command: i32) -> io::Result<OwnedFd> {
        // SAFETY: the caller's promise is `call`'s; the descriptor is new and nobody else's.
        unsafe { self.call(command).map(|fd| OwnedFd::from_raw_fd(fd)) }
    }
}

/// A descriptor's number, as arguments carry it.
fn number(fd: BorrowedFd<'_>) -> u32 {
    u32::try_from(fd.as_raw_fd()).unwrap_or(u32::MAX)
}

/// Makes an array map of one value, two numbers of 4 bytes.
pub(super) fn make_window() -> io::Result<OwnedFd> {
    let argument = Argument::default()
        .word(0, BPF_MAP_TYPE_ARRAY)
        .word(4, 4) // bytes of a key
        .word(8, 8) // bytes of a value
        .word(12, 1); // values
    // SAFETY: no addresses in it.
    unsafe { argument.open(BPF_MAP_CREATE) }
}

/// Sets the two numbers of the map.
pub(super) fn set_window(map: BorrowedFd<'_>, window: [u32; 2]) -> io::Result<()> {
    let key = 0u32;
    let argument = Argument::default()
        .word(0, number(map))
        .address(8, &raw const key)
        .address(16, window.as_ptr());
    // SAFETY: a key and a value of the map's sizes, alive until the call is over.
    unsafe { argument.call(BPF_MAP_UPDATE_ELEM).map(|_| ()) }
}

/// Loads a program that runs for each element of the iterator whose function has the number `iterator`.
///
/// # Errors
/// The kernel's, with the end of the verifier's report if it refused the program.
pub(super) fn load_program(code: &[Instruction], iterator: u32) -> io::Result<OwnedFd> {
    let report = vec![0u8; REPORT];
    let argument = |report: &[u8]| {
        let log_level = u32::from(!report.is_empty());
        let mut argument = Argument::default()
            .word(0, BPF_PROG_TYPE_TRACING)
            .word(4, u32::try_from(code.len()).unwrap_or(0))
            .address(8, code.as_ptr())
            .address(16, LICENCE.as_ptr())
            .word(24, log_level)
            .word(28, u32::try_from(report.len()).unwrap_or(0))
            .word(68, BPF_TRACE_ITER)
            .word(108, iterator);
        if log_level != 0 {
            argument = argument.address(32, report.as_ptr());
        }
        for (i, letters) in NAME.chunks(4).enumerate() {
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

/// Ties a loaded program to one process, named by a pidfd. The link ends with its descriptor.
pub(super) fn link(program: BorrowedFd<'_>, process: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // `union bpf_iter_link_info`, member `task`: tid, pid, pid_fd.
    let info = [0, 0, number(process), 0];
    let argument = Argument::default()
        .word(0, number(program))
        .word(8, BPF_TRACE_ITER)
        .address(16, info.as_ptr())
        .word(24, 16);
    // SAFETY: `info` lives until the call is over and has 16 bytes.
    unsafe { argument.open(BPF_LINK_CREATE) }
}

/// Makes a descriptor from which one run of the linked program is read.
pub(super) fn iterate(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let argument = Argument::default().word(0, number(link));
    // SAFETY: no addresses in it.
    unsafe { argument.open(BPF_ITER_CREATE) }
}
