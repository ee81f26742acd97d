//! System calls that a stopped process makes for its tracer, and the library's way into it.

use crate::elf::{PF_R, PF_W, PF_X, Segment};
use crate::library::Library;
use core::ffi::CStr;
use memlane_sys::mem::PAGE;
use memlane_sys::ptrace::{self, Stop};
use memlane_sys::{Errno, Result, raw};

/// Below the stack that the kernel has made for a new program, where it has mapped 128 KiB more (`setup_arg_pages`).
const BELOW: usize = 16 * 1024;

/// Length of a system call instruction.
const SYSCALL_LEN: u64 = 2;

/// A process that has just begun a program and is stopped at its first instruction.
pub(crate) struct Remote {
    pid: i32,
    /// Its registers, as the kernel has set them.
    first: libc::user_regs_struct,
    /// A system call instruction of the program.
    instruction: usize,
}

impl Remote {
    /// The process has just executed the program.
    pub(crate) fn new(pid: i32, instruction: usize) -> Result<Remote> {
        let remote = Remote {
            pid,
            first: ptrace::registers(pid)?,
            instruction,
        };
        // It is still within the exec. Its first step ends that.
        remote.step()?;
        Ok(remote)
    }

    /// Lets the process execute one instruction, however often somebody stops and continues it meanwhile.
    fn step(&self) -> Result<()> {
        let mut signal = 0;
        loop {
            ptrace::step(self.pid, signal)?;
            signal = match self.wait()? {
                Stop::Signal(signal) => signal,
                Stop::Notified => 0,
                _ => return Ok(()),
            };
        }
    }

    /// Waits for the end of a step, or for what came before it.
    fn wait(&self) -> Result<Stop> {
        loop {
            match ptrace::wait(self.pid)?.1 {
                // All other signals are blocked.
                stop @ (Stop::Other | Stop::Notified | Stop::Signal(libc::SIGSTOP)) => {
                    return Ok(stop);
                }
                // It stays stopped until somebody continues it.
                Stop::Group => ptrace::listen(self.pid)?,
                // It has been killed.
                _ => return Err(Errno(libc::ESRCH)),
            }
        }
    }

    /// Lets the process make a system call.
    fn call(&self, number: i64, arguments: [usize; 6]) -> Result<usize> {
        let [a, b, c, d, e, f] = arguments.map(|argument| argument as u64);
        let registers = libc::user_regs_struct {
            rip: self.instruction as u64,
            rax: number.cast_unsigned(),
            // No call is under way that the kernel could want to begin again.
            orig_rax: u64::MAX,
            rdi: a,
            rsi: b,
            rdx: c,
            r10: d,
            r8: e,
            r9: f,
            ..self.first
        };
        ptrace::set_registers(self.pid, &registers)?;
        self.step()?;
        let registers = ptrace::registers(self.pid)?;
        if registers.rip != self.instruction as u64 + SYSCALL_LEN {
            return Err(Errno::PROTO);
        }
        raw::check(registers.rax.cast_signed() as isize)
    }

    /// Maps the library, and lets the process begin in it. The helper's id is `helper`.
    pub(crate) fn enter(&self, library: &Library, path: &CStr, helper: i32) -> Result<()> {
        let base = self.map(library, path)?;
        let registers = libc::user_regs_struct {
            rip: (base + library.entry) as u64,
            r12: u64::from(helper.cast_unsigned()),
            ..self.first
        };
        ptrace::set_registers(self.pid, &registers)
    }

    /// Leaves the process to begin as if nobody had been there.
    pub(crate) fn leave_alone(&self) -> Result<()> {
        ptrace::set_registers(self.pid, &self.first)
    }

    fn map(&self, library: &Library, path: &CStr) -> Result<usize> {
        let file = self.open(path)?;
        let base = self.map_at(0, library.span, 0, None)?;
        let done = library
            .segments()
            .try_for_each(|segment| self.map_segment(base, segment, file));
        self.call(libc::SYS_close, [file, 0, 0, 0, 0, 0])?;
        if let Err(error) = done {
            self.call(libc::SYS_munmap, [base, library.span, 0, 0, 0, 0])?;
            return Err(error);
        }
        Ok(base)
    }

    fn open(&self, path: &CStr) -> Result<usize> {
        let place = self.first.rsp as usize - BELOW;
        ptrace::write(self.pid, place, path.to_bytes_with_nul())?;
        let how = libc::O_RDONLY | libc::O_CLOEXEC;
        let file = self.call(libc::SYS_open, [place, how as usize, 0, 0, 0, 0]);
        wipe(self.pid, place, path.to_bytes_with_nul().len())?;
        file
    }

    fn map_segment(&self, base: usize, segment: Segment, file: usize) -> Result<()> {
        let within = segment.address % PAGE;
        let start = base + segment.address - within;
        let from_file = (within + segment.in_file).next_multiple_of(PAGE);
        let whole = (within + segment.in_memory).next_multiple_of(PAGE);
        let rights = rights(segment);
        if segment.in_file > 0 {
            let place = Some((file, segment.offset - within));
            self.map_at(start, from_file, rights, place)?;
        }
        let zeros_from = if segment.in_file > 0 { from_file } else { 0 };
        if whole > zeros_from {
            self.map_at(start + zeros_from, whole - zeros_from, rights, None)?;
        }
        // What the file has behind the segment, in its last page.
        let end = base + segment.address + segment.in_file;
        let rest = end.next_multiple_of(PAGE) - end;
        match segment.rights & PF_W != 0 && segment.in_file > 0 {
            true => wipe(self.pid, end, rest),
            false => Ok(()),
        }
    }

    /// Maps `len` bytes at `at`, or anywhere if that is 0: of a file from an offset, or zeros.
    fn map_at(
        &self,
        at: usize,
        len: usize,
        rights: i32,
        of: Option<(usize, usize)>,
    ) -> Result<usize> {
        let mut flags = libc::MAP_PRIVATE;
        if at != 0 {
            flags |= libc::MAP_FIXED;
        }
        let (file, offset) = of.unwrap_or((usize::MAX, 0));
        if of.is_none() {
            flags |= libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        }
        let arguments = [at, len, rights as usize, flags as usize, file, offset];
        self.call(libc::SYS_mmap, arguments)
    }
}

fn wipe(pid: i32, at: usize, len: usize) -> Result<()> {
    const ZEROS: [u8; PAGE] = [0; PAGE];
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(PAGE);
        ptrace::write(pid, at + done, &ZEROS[..piece])?;
        done += piece;
    }
    Ok(())
}

fn rights(segment: Segment) -> i32 {
    let pairs = [
        (PF_R, libc::PROT_READ),
        (PF_W, libc::PROT_WRITE),
        (PF_X, libc::PROT_EXEC),
    ];
    let given = pairs.iter().filter(|(flag, _)| segment.rights & flag != 0);
    given.fold(0, |rights, (_, right)| rights | right)
}
