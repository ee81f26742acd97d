//! The process that will execute the program, and its helper, agree here.

use crate::executor::Executor;
use crate::helper;
use crate::obstacle::Obstacle;
use crate::program;
use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use memlane_sys::fd::{self, Fd};
use memlane_sys::mem::{self, PAGE};
use memlane_sys::{Errno, futex, proc};

/// Memory of the helper: the meeting, and its stack above.
const MEMORY: usize = 64 * 1024;
const _: () = assert!(size_of::<Meeting>().next_multiple_of(PAGE) < MEMORY / 2);
/// The longest path of the library.
const PATH: usize = 4096;
/// `AT_HWCAP2`, and its bit for the instructions that read and write FS and GS (`asm/hwcap2.h`).
const AT_HWCAP2: u64 = 26;
const HWCAP2_FSGSBASE: u64 = 2;
/// How long the process sleeps before it looks whether the helper still lives.
const LOOK_AFTER_US: u64 = 50_000;

/// How often the helper looks for the process's answer.
const ASK_TIMES: u32 = 100;

/// Words that both write. Each waits for the other's.
pub(crate) struct Meeting {
    /// One of the states below. The process changes `FORBIDDEN` to `ALLOWED`, the helper makes all other changes; who changes
    /// it stores with release order, and who acts on it loads with acquire order.
    state: AtomicU32,
    /// Written by the helper before `REFUSED`.
    error: AtomicI32,
    /// The thread that calls. This and what is below is written before the helper starts, and by nobody after.
    pub(crate) process: i32,
    pub(crate) executor: Executor,
    program: Examined,
    library: [u8; PATH],
}

/// The helper is at work.
const STARTED: u32 = 0;
/// The process may execute the program.
const READY: u32 = 1;
/// The helper has ended, or is about to; `error` says why.
const REFUSED: u32 = 2;
/// The kernel does not let the helper trace the process, which may allow it.
const FORBIDDEN: u32 = 3;
/// The process has done so.
const ALLOWED: u32 = 4;
/// The process has made a child, and only that is traced.
const FOLLOWING: u32 = 5;

/// A helper that waits for the exec. Dropping this waits until it has put the library into a child that the process has
/// made. Otherwise, it ends the helper, and the process is no longer traced.
#[derive(Debug)]
pub struct Arranged {
    helper: i32,
    memory: NonNull<u8>,
}

impl Drop for Arranged {
    fn drop(&mut self) {
        // SAFETY: the mapping begins with the meeting, and stays until the helper has ended.
        let meeting = unsafe { self.memory.cast::<Meeting>().as_ref() };
        if meeting.state.load(Ordering::Acquire) != FOLLOWING {
            proc::kill(self.helper);
        }
        proc::reap(self.helper);
        // SAFETY: the whole mapping, whose only other user has ended.
        unsafe { mem::unmap(self.memory, MEMORY) };
    }
}

/// A program's file that was examined, and is one that can be entered.
#[derive(Clone, Copy, Debug)]
pub struct Examined {
    /// Address of a system call instruction.
    instruction: usize,
    identity: fd::Stat,
}

/// Looks whether a program can be entered, as far as its file and this machine tell.
///
/// # Errors
/// It cannot.
pub fn examine(program: &Fd) -> Result<Examined, Obstacle> {
    let identity = fd::stat(program.raw()).map_err(by_system)?;
    let gains_rights = identity.mode & (libc::S_ISUID | libc::S_ISGID) != 0
        || fd::has_attribute(program.raw(), c"security.capability");
    let file = View::of(program, identity.size).map_err(|_| Obstacle::Other)?;
    let instruction = program::system_call_of(file.bytes())?;
    if gains_rights {
        return Err(Obstacle::Privileged);
    }
    if !has_bases() {
        return Err(Obstacle::NoBases);
    }
    Ok(Examined {
        instruction,
        identity,
    })
}

/// Prepares for the exec of a program: the library at `library`, an absolute path, will be put into it.
///
/// The executor then executes the file that was examined. If it is the caller, and that fails, the result must be dropped; if
/// it is a child, the caller drops the result in the same thread when the child has executed it, or cannot.
///
/// # Errors
/// The program cannot be entered. It can be executed nevertheless.
pub fn arrange(
    program: Examined,
    library: &CStr,
    executor: Executor,
) -> Result<Arranged, Obstacle> {
    let library = copy(library).ok_or(Obstacle::Library)?;
    let memory = mem::map_anon(MEMORY, false).map_err(by_system)?;
    let at = memory.cast::<Meeting>();
    let meeting = Meeting {
        state: AtomicU32::new(STARTED),
        error: AtomicI32::new(0),
        process: proc::tid(),
        executor,
        program,
        library,
    };
    // SAFETY: fresh memory that is aligned and large enough (asserted above).
    unsafe { at.write(meeting) };
    let arranged = start(memory)?;
    // SAFETY: written above. Both processes only read it, but for its atomic words, and it stays until the helper has ended.
    let meeting = unsafe { at.as_ref() };
    agree(meeting, arranged.helper).map(|()| arranged)
}

fn copy(path: &CStr) -> Option<[u8; PATH]> {
    let mut copy = [0; PATH];
    let text = path.to_bytes_with_nul();
    copy.get_mut(..text.len())?.copy_from_slice(text);
    Some(copy)
}

/// Starts the helper with all signals blocked: it shares the terminal with the process, and must not be ended by what is
/// meant for that.
fn start(memory: NonNull<u8>) -> Result<Arranged, Obstacle> {
    let mask = proc::block_signals();
    // SAFETY: the memory is the helper's alone but for the meeting, and is unmapped after it has ended.
    let helper = unsafe {
        let stack_end = memory.as_ptr().add(MEMORY);
        proc::clone_sharing(stack_end, helper::run, memory.as_ptr().cast())
    };
    proc::restore_signals(mask);
    match helper {
        Ok(helper) => Ok(Arranged { helper, memory }),
        Err(error) => {
            // SAFETY: the whole mapping, which nobody uses.
            unsafe { mem::unmap(memory, MEMORY) };
            Err(by_system(error))
        }
    }
}

fn agree(meeting: &Meeting, helper: i32) -> Result<(), Obstacle> {
    loop {
        match meeting.state.load(Ordering::Acquire) {
            READY => return Ok(()),
            REFUSED => return Err(Obstacle::System(meeting.error.load(Ordering::Relaxed))),
            FORBIDDEN => {
                proc::allow_tracer(helper);
                meeting.tell(ALLOWED);
            }
            state if !proc::has_ended(helper) => {
                let _ = futex::wait(&meeting.state, state, LOOK_AFTER_US);
            }
            // It may have said so just before.
            _ if meeting.state.load(Ordering::Acquire) == READY => return Ok(()),
            _ => return Err(Obstacle::System(libc::ESRCH)),
        }
    }
}

impl Meeting {
    fn tell(&self, state: u32) {
        self.state.store(state, Ordering::Release);
        let _ = futex::wake(&self.state);
    }

    /// Says that the process may execute the program.
    pub(crate) fn be_ready(&self) {
        self.tell(READY);
    }

    /// Says that the process has made a child.
    pub(crate) fn follow_child(&self) {
        self.tell(FOLLOWING);
    }

    /// Says that it cannot be helped.
    pub(crate) fn refuse(&self, error: Errno) {
        self.error.store(error.0, Ordering::Relaxed);
        self.tell(REFUSED);
    }

    /// Asks to be allowed to trace the process, and waits for that for five seconds. A process that was killed meanwhile
    /// answers no more.
    pub(crate) fn ask(&self) {
        self.tell(FORBIDDEN);
        for _ in 0..ASK_TIMES {
            if self.state.load(Ordering::Acquire) != FORBIDDEN {
                return;
            }
            let _ = futex::wait(&self.state, FORBIDDEN, LOOK_AFTER_US);
        }
    }

    /// Is this the file that was examined?
    pub(crate) fn is_examined(&self, file: fd::Stat) -> bool {
        let it = &self.program.identity;
        (file.dev, file.ino, file.size) == (it.dev, it.ino, it.size)
    }

    /// The address of a system call instruction in the program.
    pub(crate) fn instruction(&self) -> usize {
        self.program.instruction
    }

    pub(crate) fn library(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.library).unwrap_or(c"")
    }
}

/// Ends the helper that runs on this memory.
///
/// # Safety
/// The process has executed the program or has ended, so nobody will look at the memory again.
pub(crate) unsafe fn vanish(meeting: &Meeting) -> ! {
    // SAFETY: the meeting lies at the beginning of the mapping, which is the caller's alone.
    unsafe { proc::unmap_and_exit(core::ptr::from_ref(meeting).cast_mut().cast(), MEMORY) }
}

fn by_system(error: Errno) -> Obstacle {
    Obstacle::System(error.0)
}

/// May programs read and write FS and GS?
fn has_bases() -> bool {
    let mut vector = [0u8; 1024];
    let len = fd::read_file(c"/proc/self/auxv", &mut vector).unwrap_or(0);
    let word = |pair: &[u8], at: usize| {
        let word = pair.get(at..at + 8).and_then(|word| word.try_into().ok());
        word.map(u64::from_ne_bytes)
    };
    let mut pairs = vector[..len].chunks_exact(16);
    pairs.any(|pair| {
        word(pair, 0) == Some(AT_HWCAP2)
            && word(pair, 8).is_some_and(|bits| bits & HWCAP2_FSGSBASE != 0)
    })
}

/// A file that is mapped for reading. Whoever writes to it meanwhile changes what is read: each fact is checked where it is
/// read, and a file that becomes shorter ends only the reader.
pub(crate) struct View {
    at: NonNull<u8>,
    len: usize,
}

impl View {
    pub(crate) fn of(file: &Fd, size: u64) -> Result<View, Errno> {
        View::map(file, size, false)
    }

    /// The same of a file whose code may be executed.
    pub(crate) fn of_code(file: &Fd, size: u64) -> Result<View, Errno> {
        View::map(file, size, true)
    }

    fn map(file: &Fd, size: u64, executable: bool) -> Result<View, Errno> {
        let len = usize::try_from(size).map_err(|_| Errno(libc::EFBIG))?;
        let at = mem::map_file(file.raw(), len, executable)?;
        Ok(View { at, len })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for this length as long as `self` lives. The kernel refuses to write to the file of a program that
        // runs; what else is written to it can only be read as other bytes.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the whole mapping; `bytes` borrows from `self`.
        unsafe { mem::unmap(self.at, self.len) };
    }
}
