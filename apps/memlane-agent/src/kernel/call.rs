//! Maps, links and iterators of the program that looks at other processes' sockets.
//!
//! Source of the commands and of the places in their arguments: `union bpf_attr` in `include/uapi/linux/bpf.h`.

use crate::bpf::assembler::Instruction;
use crate::bpf::call::{Argument, Map, Program, load, make_map, number};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io;

const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_LINK_CREATE: i32 = 28;
const BPF_ITER_CREATE: i32 = 33;

const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_PROG_TYPE_TRACING: u32 = 26;
const BPF_TRACE_ITER: u32 = 28;

/// `BPF_OBJ_NAME_LEN` without the terminator; what `bpftool` shows.
const NAME: &[u8; 15] = b"memlane_sockets";

/// Makes an array map of one value, two numbers of 4 bytes.
pub(super) fn make_window() -> io::Result<OwnedFd> {
    make_map(Map {
        kind: BPF_MAP_TYPE_ARRAY,
        key: 4,
        value: 8,
        entries: 1,
    })
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
    load(&Program {
        kind: BPF_PROG_TYPE_TRACING,
        attach: BPF_TRACE_ITER,
        function: iterator,
        name: NAME,
        code,
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
