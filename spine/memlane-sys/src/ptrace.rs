//! Another process's registers, memory and stops (`ptrace(2)`).

use crate::errno::{Errno, Result};
use crate::fd::as_fd;
use crate::syscall;
use core::mem::MaybeUninit;

/// Why a process has stopped, or that it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It has begun another program.
    Exec,
    /// It has made a child, and waits until that has begun another program or has ended.
    Vfork,
    /// A signal is about to reach it.
    Signal(i32),
    /// Job control has stopped it.
    Group,
    /// It has done nothing: it was attached just now, or somebody continues it.
    Notified,
    /// One of its steps is done, or it stopped for another reason.
    Other,
    /// It has ended.
    Ended,
}

/// Makes the caller the tracer of `pid`, which goes on. It will stop after each exec.
///
/// # Errors
/// `EPERM`: the kernel does not allow it, or there is a tracer already.
pub fn seize(pid: i32) -> Result<()> {
    seize_with(pid, libc::PTRACE_O_TRACEEXEC)
}

/// The same for `pid` and the children that it makes with `CLONE_VFORK`. It will stop when it has made one. The child stops
/// before its first instruction.
///
/// # Errors
/// As for [`seize`].
pub fn seize_with_children(pid: i32) -> Result<()> {
    seize_with(pid, libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACEVFORK)
}

fn seize_with(pid: i32, options: libc::c_int) -> Result<()> {
    request(libc::PTRACE_SEIZE, pid, 0, options as usize)
}

/// Any process that the caller traces.
pub const ANY: i32 = -1;

/// Waits until a process that the caller traces, or [`ANY`], stops or ends: its id, and why.
pub fn wait(who: i32) -> Result<(i32, Stop)> {
    let mut status = 0i32;
    let pid = loop {
        // SAFETY: `status` is writable; no usage is asked for.
        match unsafe { syscall!(libc::SYS_wait4, who, &raw mut status, libc::__WALL, 0) } {
            Err(Errno::INTR) => {}
            other => break as_fd(other?),
        }
    };
    Ok((pid, told_by(status)))
}

fn told_by(status: i32) -> Stop {
    if !libc::WIFSTOPPED(status) {
        return Stop::Ended;
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        libc::PTRACE_EVENT_EXEC => Stop::Exec,
        libc::PTRACE_EVENT_VFORK => Stop::Vfork,
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Stop::Notified,
        libc::PTRACE_EVENT_STOP => Stop::Group,
        _ if signal == libc::SIGTRAP => Stop::Other,
        _ => Stop::Signal(signal),
    }
}

/// The child that a process has made, which has stopped for that.
pub fn child(pid: i32) -> Result<i32> {
    let mut child = 0usize;
    request(libc::PTRACE_GETEVENTMSG, pid, 0, (&raw mut child) as usize)?;
    Ok(as_fd(child))
}

/// Lets a stopped process go on; `signal`: what reaches it first, 0 for none.
pub fn go_on(pid: i32, signal: i32) -> Result<()> {
    request(libc::PTRACE_CONT, pid, 0, signal as usize)
}

/// Leaves a process stopped that job control has stopped, until something happens to it.
pub fn listen(pid: i32) -> Result<()> {
    request(libc::PTRACE_LISTEN, pid, 0, 0)
}

/// Lets a stopped process execute one instruction; `signal`: what reaches it before, 0 for none.
pub fn step(pid: i32, signal: i32) -> Result<()> {
    request(libc::PTRACE_SINGLESTEP, pid, 0, signal as usize)
}

/// Leaves a stopped process, which goes on.
pub fn detach(pid: i32) -> Result<()> {
    request(libc::PTRACE_DETACH, pid, 0, 0)
}

/// The registers of a stopped process.
#[cfg(target_arch = "x86_64")]
pub fn registers(pid: i32) -> Result<libc::user_regs_struct> {
    let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
    request(
        libc::PTRACE_GETREGS,
        pid,
        0,
        registers.as_mut_ptr() as usize,
    )?;
    // SAFETY: all-zero is a valid value, and the kernel has filled it.
    Ok(unsafe { registers.assume_init() })
}

/// Changes the registers of a stopped process.
#[cfg(target_arch = "x86_64")]
pub fn set_registers(pid: i32, registers: &libc::user_regs_struct) -> Result<()> {
    request(
        libc::PTRACE_SETREGS,
        pid,
        0,
        core::ptr::from_ref(registers) as usize,
    )
}

/// Blocks all signals of a stopped process but the one that tells of its steps; returns the mask to restore.
pub fn block_signals(pid: i32) -> Result<u64> {
    const STEPS: u64 = 1 << (libc::SIGTRAP - 1);
    let mut mask = 0u64;
    request(
        libc::PTRACE_GETSIGMASK,
        pid,
        size_of::<u64>(),
        (&raw mut mask) as usize,
    )?;
    set_blocked(pid, !STEPS)?;
    Ok(mask)
}

/// Sets which signals a stopped process blocks.
pub fn set_blocked(pid: i32, mask: u64) -> Result<()> {
    request(
        libc::PTRACE_SETSIGMASK,
        pid,
        size_of::<u64>(),
        (&raw const mask) as usize,
    )
}

/// Writes to the memory of a stopped process, also where the process itself may not write.
pub fn write(pid: i32, at: usize, bytes: &[u8]) -> Result<()> {
    const WORD: usize = size_of::<usize>();
    let mut done = 0;
    while done < bytes.len() {
        let place = at + done;
        let first = place % WORD;
        let len = (WORD - first).min(bytes.len() - done);
        let mut word = match len == WORD {
            true => [0; WORD],
            false => peek(pid, place - first)?,
        };
        word[first..first + len].copy_from_slice(&bytes[done..done + len]);
        request(
            libc::PTRACE_POKEDATA,
            pid,
            place - first,
            usize::from_ne_bytes(word),
        )?;
        done += len;
    }
    Ok(())
}

fn peek(pid: i32, at: usize) -> Result<[u8; size_of::<usize>()]> {
    let mut word = 0usize;
    // The system call itself, unlike libc's function, stores the word where its last argument points.
    request(libc::PTRACE_PEEKDATA, pid, at, (&raw mut word) as usize)?;
    Ok(word.to_ne_bytes())
}

fn request(what: libc::c_uint, pid: i32, at: usize, data: usize) -> Result<()> {
    // SAFETY: the callers of this function pass numbers, addresses in the other process, or pointers to what they own.
    unsafe { syscall!(libc::SYS_ptrace, what, pid, at, data) }.map(drop)
}
