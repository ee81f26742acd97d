//! The door: what a Go program's `Syscall6` jumps to.
//!
//! It makes most system calls itself, at once. Those that may concern a connection go to the bodies of libc's names, on the
//! thread's second [stack](super::stack).

use super::served::{NUMBERS, SERVED};
use super::stack::{BLOCK_AT, DEPTH, GUARD, ROOM, SIZE, Stack};
use crate::{bodies, numbers};
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use memlane_core::golang::SYSCALL6_HEAD;
use memlane_socket::hooks::calls::pass;
use memlane_socket::real;
use memlane_sys::{Errno, fd, mem};

/// `jmp` to the address behind it.
const JUMP: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];
const PATCH: usize = JUMP.len() + size_of::<usize>();
/// The patch ends where the function's head ends, into which nothing jumps.
const _: () = assert!(PATCH == SYSCALL6_HEAD.len());

/// Makes the function at `at` jump here; `false`: the system does not allow it, and nothing has changed.
///
/// The program's one thread is this one, and it has not begun to run Go.
pub(super) fn open(at: usize) -> bool {
    lead(at, door)
}

/// Makes the function at `at` jump to `door`; otherwise as [`open`].
pub(super) fn lead(at: usize, door: unsafe extern "C" fn()) -> bool {
    let mut patch = [0; PATCH];
    patch[..JUMP.len()].copy_from_slice(&JUMP);
    patch[JUMP.len()..].copy_from_slice(&(door as *const () as usize).to_ne_bytes());
    // SAFETY: `at` is the beginning of a function that is longer than the patch. No thread is in it, and no reference to its
    // bytes exists any more.
    unsafe { mem::patch_text(at, &patch) }.is_ok()
}

/// Serves one call; the answer is the kernel's: a negative error number, or a result.
pub(super) extern "C" fn serve(number: usize, arguments: &[usize; 6], stack: &Stack) -> isize {
    stack.register();
    let keep = real::errno();
    let answer = match number as i64 {
        libc::SYS_splice if would_leave_lane(arguments) => -(Errno::INVAL.0 as isize),
        libc::SYS_execve => by_errno(execve(arguments, stack)),
        _ => by_errno(numbers::call(number, *arguments)),
    };
    real::set_errno(keep);
    answer
}

fn by_errno(result: isize) -> isize {
    if result == -1 {
        -(real::errno() as isize)
    } else {
        result
    }
}

/// Go moves bytes from a connection to another by splice, and by read and write where the kernel refuses the first splice.
/// A lane serves the latter.
fn would_leave_lane(arguments: &[usize; 6]) -> bool {
    pass::may_have_lane(fd::as_fd(arguments[0]))
}

/// If it succeeds in a child that shares this memory, the parent's thread must not seem to be in a call for ever.
fn execve(arguments: &[usize; 6], stack: &Stack) -> isize {
    let [path, argv, envp, ..] = *arguments;
    stack.depth.fetch_sub(1, Ordering::Relaxed);
    let result = bodies::execve_body(
        path as *const u8,
        argv as *const *const u8,
        envp as *const *const u8,
    );
    stack.depth.fetch_add(1, Ordering::Relaxed);
    result as isize
}

/// Answers like `Syscall6`, with its registers. R14, RBP, RSP and X15 must be on return what they were; no other register is
/// the caller's. The stack must not be used, beyond what a call instruction takes.
#[unsafe(naked)]
unsafe extern "C" fn door() {
    core::arch::naked_asm!(
        "cmp rax, {numbers}",
        "jae 3f",
        "lea r10, [rip + {served}]",
        "cmp byte ptr [r10 + rax], 0",
        "je 3f",
        // The thread's second stack.
        "mov r11, qword ptr [rip + memlane_go_stack@GOTTPOFF]",
        "mov r10, qword ptr fs:[r11]",
        "test r10, r10",
        "jz 5f",
        "2:",
        "mov r11, qword ptr [r10 + {depth}]",
        "cmp r11, {most}",
        "jae 7f",
        "inc qword ptr [r10 + {depth}]",
        "mov r13, rsp",
        "imul r11, r11, {room}",
        "mov r12, r10",
        "sub r12, r11",
        "mov rsp, r12",
        "sub rsp, {arguments}",
        "mov qword ptr [rsp], rbx",
        "mov qword ptr [rsp + 8], rcx",
        "mov qword ptr [rsp + 16], rdi",
        "mov qword ptr [rsp + 24], rsi",
        "mov qword ptr [rsp + 32], r8",
        "mov qword ptr [rsp + 40], r9",
        "mov rdi, rax",
        "mov rsi, rsp",
        "mov rdx, r10",
        // The C ABI preserves RBX and R13.
        "mov rbx, r10",
        "call {serve}",
        "mov rsp, r13",
        "dec qword ptr [rbx + {depth}]",
        "xorps xmm15, xmm15",
        "xor edx, edx",
        "jmp 4f",
        // The call itself, as Go's function makes it.
        "3:",
        "mov r10, rsi",
        "mov rdx, rdi",
        "mov rsi, rcx",
        "mov rdi, rbx",
        "syscall",
        "4:",
        "cmp rax, -4095",
        "ja 6f",
        "mov rbx, rdx",
        "xor ecx, ecx",
        "ret",
        "6:",
        "neg rax",
        "mov rcx, rax",
        "mov rax, -1",
        "xor ebx, ebx",
        "ret",
        // The first call of this thread: a stack is made, without using one. The kernel preserves all registers but three.
        "5:",
        "mov r12, rax",
        "mov r13, rcx",
        "movq xmm0, rdi",
        "movq xmm1, rsi",
        "movq xmm2, r8",
        "movq xmm3, r9",
        "mov eax, {mmap}",
        "xor edi, edi",
        "mov esi, {size}",
        "mov edx, {rights}",
        "mov r10d, {kind}",
        "mov r8, -1",
        "xor r9d, r9d",
        "syscall",
        "cmp rax, -4095",
        "jae 4b",
        "mov r15, rax",
        "mov eax, {mprotect}",
        "mov rdi, r15",
        "mov esi, {guard}",
        "xor edx, edx",
        "syscall",
        "lea r10, [r15 + {block}]",
        "mov r11, qword ptr [rip + memlane_go_stack@GOTTPOFF]",
        "mov qword ptr fs:[r11], r10",
        "mov rax, r12",
        "mov rcx, r13",
        "movq rdi, xmm0",
        "movq rsi, xmm1",
        "movq r8, xmm2",
        "movq r9, xmm3",
        "jmp 2b",
        // No stack is left.
        "7:",
        "mov rax, {no_memory}",
        "jmp 4b",
        numbers = const NUMBERS,
        served = sym SERVED,
        depth = const offset_of!(Stack, depth),
        most = const DEPTH,
        room = const ROOM,
        arguments = const size_of::<[usize; 6]>(),
        serve = sym serve,
        mmap = const libc::SYS_mmap,
        size = const SIZE,
        rights = const libc::PROT_READ | libc::PROT_WRITE,
        kind = const libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
        mprotect = const libc::SYS_mprotect,
        guard = const GUARD,
        block = const BLOCK_AT,
        no_memory = const -libc::ENOMEM,
    )
}

/// The kernel's and C's rules for the stack: it is aligned to 16 before a call.
const _: () = assert!(
    BLOCK_AT.is_multiple_of(16)
        && ROOM.is_multiple_of(16)
        && size_of::<[usize; 6]>().is_multiple_of(16)
);
const _: () = assert!(BLOCK_AT + size_of::<Stack>() <= SIZE);
