//! The library in a program without libc and without a loader.
//!
//! `memlane-enter` has mapped the file into a static Go program and lets that begin here. The library loads itself (load.c):
//! it applies its own relocations, and stands in for the names that libc would give it. Then it
//! opens the door for Go and begins the program as the kernel would have.

mod kernel;
mod stack;
pub(crate) mod thread;

use crate::{golang, ready};
use core::sync::atomic::{AtomicPtr, Ordering};
use memlane_sys::proc;
use stack::Stack;
use thread::{FIRST, TCB_AT, TLS_ROOM};

unsafe extern "C" {
    /// The environment, for load.c.
    static memlane_alone_environ: AtomicPtr<*const u8>;
}

/// Where `memlane-enter` lets the program begin, with the helper's process id in R12. It is the entry of the library's file.
/// RSP is what the kernel gave the program; nothing above it changes, and the program gets it back. The kernel begins a
/// program with zeros in all other registers.
///
/// # Safety
/// Nobody may call this.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn memlane_begin() {
    core::arch::naked_asm!(
        "mov rbx, rsp",
        "and rsp, -16",
        "lea rdi, [rip + __ehdr_start]",
        "lea rsi, [rip + _DYNAMIC]",
        "mov edx, {room}",
        "call memlane_load",
        // Thread-local memory for the time until the program begins.
        "lea rax, [rip + {first}]",
        "add rax, {tcb}",
        "mov qword ptr [rax], rax",
        "wrfsbase rax",
        "mov rdi, rbx",
        "mov rsi, r12",
        "call {begin}",
        "xor ecx, ecx",
        "wrfsbase rcx",
        "mov rsp, rbx",
        "xor ebx, ebx",
        "xor edx, edx",
        "xor esi, esi",
        "xor edi, edi",
        "xor ebp, ebp",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "xor r10d, r10d",
        "xor r11d, r11d",
        "xor r12d, r12d",
        "xor r13d, r13d",
        "xor r14d, r14d",
        "xor r15d, r15d",
        "jmp rax",
        room = const TLS_ROOM,
        first = sym FIRST,
        tcb = const TCB_AT,
        begin = sym begin,
    )
}

/// Returns the address of the program's first instruction.
///
/// # Safety
/// `stack` is the stack as the kernel made it. The library is relocated, and FS points to thread-local memory.
unsafe extern "C" fn begin(stack: *const usize, helper: i32) -> usize {
    // SAFETY: the caller's promise.
    let stack = unsafe { Stack::read(stack) };
    proc::reap(helper);
    // SAFETY: a pointer of load.c, which reads it only.
    let environ = unsafe { &memlane_alone_environ };
    environ.store(stack.environment.cast_mut(), Ordering::Relaxed);
    ready::initialise_alone(kernel::find, stack.vdso);
    golang::start_alone(&stack.program());
    stack.entry
}
