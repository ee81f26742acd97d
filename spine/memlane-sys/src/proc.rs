//! Who we are and who is alive.

use crate::errno::{Errno, Result};
use crate::fd::{Fd, as_fd};
use crate::syscall;

/// This process's id (by system call: right even in the child of a raw clone).
pub fn pid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(libc::SYS_getpid) }.map_or(0, as_fd)
}

/// This thread's id.
pub fn tid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(libc::SYS_gettid) }.map_or(0, as_fd)
}

/// The name of the calling thread, padded with zeros; that of its process, if the process has no other thread.
pub fn thread_name() -> [u8; 16] {
    let mut name = [0u8; 16];
    // SAFETY: the kernel writes at most 16 bytes (TASK_COMM_LEN), the last of them 0.
    let _ = unsafe { syscall!(libc::SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// Effective user id.
pub fn euid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(libc::SYS_geteuid) }
        .map_or(u32::MAX, |u| u32::try_from(u).unwrap_or(u32::MAX))
}

/// The process's own limit of this kind (`RLIMIT_*`); `u64::MAX`: none, or it may not be asked for.
pub fn limit(what: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is writable and of the size that the kernel fills.
    let _ = unsafe { syscall!(libc::SYS_prlimit64, 0, what, 0, &raw mut limit) };
    limit.rlim_cur
}

/// The machine's memory, in bytes; 0: the kernel does not tell.
pub fn memory() -> u64 {
    // SAFETY: an all-zero structure is a valid value.
    let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
    // SAFETY: `info` is writable and of the size that the kernel fills.
    let _ = unsafe { syscall!(libc::SYS_sysinfo, &raw mut info) };
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// A duplicate of descriptor `number` of the process that `pidfd` names. Linux 5.6 or later.
///
/// # Errors
/// `EPERM`: this process may not trace that one, so the kernel refuses. `EBADF`: that process has no such descriptor.
pub fn descriptor_of(pidfd: i32, number: i32) -> Result<Fd> {
    // SAFETY: three numbers.
    let fd = unsafe { syscall!(libc::SYS_pidfd_getfd, pidfd, number, 0) }?;
    // SAFETY: a new descriptor, nobody else's.
    Ok(unsafe { Fd::from_raw(as_fd(fd)) })
}

/// Is there a task (thread or process) of this id? (`kill` promises that for processes only.)
pub fn alive(tid: i32) -> bool {
    // SAFETY: signal 0 only asks.
    match unsafe { syscall!(libc::SYS_tkill, tid, 0) } {
        Ok(_) => true,
        Err(e) => e != Errno(libc::ESRCH),
    }
}

/// When process `pid` began, in clock ticks since the machine's boot: tells it from a later one with the same number. `None`: there
/// is no such process.
pub fn started(pid: u32) -> Option<u64> {
    let mut path = *b"/proc/\0\0\0\0\0\0\0\0\0\0/stat\0";
    const NUMBER_AT: usize = 6;
    let end = NUMBER_AT + crate::fd::write_decimal(&mut path[NUMBER_AT..], pid);
    path[end..end + 6].copy_from_slice(b"/stat\0");
    let path = core::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    // The line has 52 numbers at most, and a name of 15 bytes or, for a kernel's thread, 63.
    let mut line = [0; 1536];
    let len = crate::fd::read_file(path, &mut line).ok()?;
    start_time(&line[..len])
}

/// Field 22 of a line of `/proc/PID/stat`, counted behind the name, which may have spaces and parentheses in it.
fn start_time(line: &[u8]) -> Option<u64> {
    let name_ends = line.iter().rposition(|byte| *byte == b')')?;
    let fields = core::str::from_utf8(&line[name_ends + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Fills `buf` with random bytes fit for tokens.
pub fn random(buf: &mut [u8]) -> Result<()> {
    // SAFETY: `buf` is writable for its length. 256 bytes or less are never cut short.
    let n = unsafe { syscall!(libc::SYS_getrandom, buf.as_mut_ptr(), buf.len(), 0) }?;
    if n == buf.len() {
        Ok(())
    } else {
        Err(Errno(libc::EIO))
    }
}

/// 64 random bits.
pub fn random_u64() -> Result<u64> {
    let mut b = [0u8; 8];
    random(&mut b)?;
    Ok(u64::from_le_bytes(b))
}

/// Lets another runnable thread have the CPU.
pub fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { syscall!(libc::SYS_sched_yield) };
}

/// The CPU that this thread runs on.
pub fn cpu() -> u32 {
    let mut c: u32 = 0;
    // SAFETY: `c` is writable; the other two pointers may be null.
    let _ = unsafe { syscall!(libc::SYS_getcpu, &raw mut c, 0, 0) };
    c
}

/// Writes to descriptor 2, unless that is a connection, as with programs that inetd starts; for last words and
/// `--stats-on-exit`.
pub fn write_stderr(bytes: &[u8]) {
    if crate::sock::is_internet(libc::STDERR_FILENO) {
        return;
    }
    // SAFETY: `bytes` is readable for its length.
    let _ = unsafe { syscall!(libc::SYS_write, 2, bytes.as_ptr(), bytes.len()) };
}

/// Blocks all signals of this thread; returns the mask to restore.
pub fn block_signals() -> u64 {
    let (all, mut old) = (u64::MAX, 0u64);
    // SAFETY: both masks are 8 bytes, as the last argument says.
    let _ = unsafe {
        syscall!(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            &raw mut old,
            8
        )
    };
    old
}

/// Restores what `block_signals` returned.
pub fn restore_signals(old: u64) {
    // SAFETY: the mask is 8 bytes, as the last argument says.
    let _ = unsafe {
        syscall!(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const old,
            0,
            8
        )
    };
}

/// Starts a process that shares this memory. It runs `run(argument)` on a stack that ends at `stack_end`. Its end sends no
/// signal to this process, and only a wait with `__WALL` or `__WCLONE` sees it.
///
/// # Safety
/// The stack is `run`'s alone until the process has ended. `run` makes system calls directly; it uses neither locks nor
/// thread-local memory, which are the calling thread's. What it refers to lives as long as the process.
#[cfg(target_arch = "x86_64")]
pub unsafe fn clone_sharing(
    stack_end: *mut u8,
    run: unsafe extern "C" fn(*mut core::ffi::c_void) -> !,
    argument: *mut core::ffi::c_void,
) -> Result<i32> {
    let answer: isize;
    // SAFETY: the kernel starts the new process behind the system call, with the same registers but for RAX and RSP. There it
    // calls `run` on its own stack and never comes back here. For the caller this is a system call like any other.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => answer,
            in("rdi") libc::CLONE_VM,
            in("rsi") stack_end,
            in("rdx") 0, in("r10") 0, in("r8") 0,
            in("r12") argument,
            in("r13") run,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    crate::raw::check(answer).map(as_fd)
}

/// Unmaps `len` bytes at `at` and ends this process. It may stand on them.
///
/// # Safety
/// Nobody else uses that memory.
#[cfg(target_arch = "x86_64")]
pub unsafe fn unmap_and_exit(at: *mut u8, len: usize) -> ! {
    // SAFETY: after the first system call, no instruction here uses the stack.
    unsafe {
        core::arch::asm!(
            "syscall",
            "mov eax, {exit}",
            "xor edi, edi",
            "syscall",
            "ud2",
            exit = const libc::SYS_exit_group,
            in("rax") libc::SYS_munmap,
            in("rdi") at,
            in("rsi") len,
            options(noreturn, nostack)
        );
    }
}

/// Ends this process.
pub fn exit(code: i32) -> ! {
    loop {
        // SAFETY: no pointers.
        let _ = unsafe { syscall!(libc::SYS_exit_group, code) };
    }
}

/// Waits until a child has ended that [`clone_sharing`] started.
pub fn reap(pid: i32) {
    // SAFETY: neither a status nor the usage is asked for.
    while unsafe { syscall!(libc::SYS_wait4, pid, 0, libc::__WALL, 0) } == Err(Errno::INTR) {}
}

/// Has a child ended that [`clone_sharing`] started? It stays to be waited for.
pub fn has_ended(pid: i32) -> bool {
    const WORDS: usize = 128 / size_of::<u64>();
    let mut info = [0u64; WORDS];
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: `info` has the 128 bytes of a `siginfo_t`; the usage is not asked for.
    let asked = unsafe {
        syscall!(
            libc::SYS_waitid,
            libc::P_PID,
            pid,
            info.as_mut_ptr(),
            how,
            0
        )
    };
    // The first word holds the signal's number: 0 if nothing has happened.
    asked.is_err() || info[0] != 0
}

/// Closes all descriptors of this process.
///
/// # Safety
/// Nobody in this process uses any of them, nor an owner of one.
pub unsafe fn close_all() {
    // SAFETY: no pointers; the caller's promise.
    let _ = unsafe { syscall!(libc::SYS_close_range, 0, u32::MAX, 0) };
}

/// Ends a process.
pub fn kill(pid: i32) {
    // SAFETY: no pointers.
    let _ = unsafe { syscall!(libc::SYS_kill, pid, libc::SIGKILL) };
}

/// Lets `pid` trace this process, where the kernel (Yama) allows that to ancestors only.
pub fn allow_tracer(pid: i32) {
    // SAFETY: no pointers.
    let _ = unsafe { syscall!(libc::SYS_prctl, libc::PR_SET_PTRACER, pid, 0, 0, 0) };
}

/// Queues a signal to this process, with a code and a value (as `sigqueue(3)` does).
pub fn queue_signal(signal: i32, code: i32, value: usize) {
    // siginfo_t on 64-bit Linux: signo, errno, code, padding, pid, uid, value, to 128 bytes.
    #[repr(C, align(8))]
    struct Info {
        signo: i32,
        errno: i32,
        code: i32,
        pad: i32,
        pid: i32,
        uid: u32,
        value: usize,
        rest: [u64; 12],
    }
    const _: () = assert!(size_of::<Info>() == 128);
    let info = Info {
        signo: signal,
        errno: 0,
        code,
        pad: 0,
        pid: pid(),
        uid: euid(),
        value,
        rest: [0; 12],
    };
    // SAFETY: `info` is as long as the kernel reads.
    let _ = unsafe { syscall!(libc::SYS_rt_sigqueueinfo, pid(), signal, &raw const info) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_began_when_the_kernel_says_so_whatever_its_name_is() {
        let line = b"7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 10 11\n";
        assert_eq!(start_time(line), Some(987_654));
        assert_eq!(start_time(b"7 (a) S 1"), None);
        assert_eq!(start_time(b""), None);
    }

    #[test]
    fn this_process_has_begun_and_one_that_cannot_be_has_not() {
        let pid = u32::try_from(pid()).unwrap();
        assert!(started(pid).unwrap() > 0);
        assert_eq!(started(pid), started(pid));
        // More than `/proc/sys/kernel/pid_max` can say (4194304).
        assert_eq!(started(u32::MAX), None);
    }
}
