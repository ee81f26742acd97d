//! The helper: it traces the process until that has executed the program, and puts the library into it.

use crate::library::Library;
use crate::meeting::{self, Meeting, View};
use crate::remote::Remote;
use core::ffi::c_void;
use memlane_sys::fd::{self, Fd};
use memlane_sys::ptrace::{self, Stop};
use memlane_sys::{Errno, Result, proc};

/// What runs in the helper's process.
///
/// # Safety
/// `meeting` is a [`Meeting`] that the caller of `clone_sharing` has written and keeps.
pub(crate) unsafe extern "C" fn run(meeting: *mut c_void) -> ! {
    // SAFETY: the caller's promise.
    let meeting = unsafe { &*meeting.cast::<Meeting>() };
    // The descriptors are copies. A connection must not stay open because of them.
    // SAFETY: nothing runs in this process but this function, which has opened none yet.
    unsafe { proc::close_all() };
    let library = match prepare(meeting) {
        Ok(library) => library,
        Err(error) => {
            meeting.refuse(error);
            proc::exit(0);
        }
    };
    meeting.be_ready();
    if let Some(pid) = wait_for_exec() {
        let _ = enter(pid, meeting, &library);
        let _ = ptrace::detach(pid);
    }
    // SAFETY: the process runs the program, or has ended.
    unsafe { meeting::vanish(meeting) }
}

fn prepare(meeting: &Meeting) -> Result<Library> {
    let file = fd::open_read(meeting.library())?;
    let size = fd::stat(file.raw())?.size;
    let view = View::of_code(&file, size)?;
    let library = Library::read(view.bytes()).ok_or(Errno(libc::ENOEXEC))?;
    match ptrace::seize(meeting.process) {
        Err(Errno(libc::EPERM)) => {
            meeting.ask();
            ptrace::seize(meeting.process)?;
        }
        other => other?,
    }
    Ok(library)
}

/// Passes on what happens to the process until it executes a program; `None`: it has ended.
fn wait_for_exec() -> Option<i32> {
    loop {
        let (pid, stop) = ptrace::wait().ok()?;
        let done = match stop {
            Stop::Exec => return Some(pid),
            Stop::Ended => return None,
            Stop::Signal(signal) => ptrace::go_on(pid, signal),
            Stop::Group => ptrace::listen(pid),
            Stop::Other => ptrace::go_on(pid, 0),
        };
        // A process that was killed meanwhile is told of by the next wait.
        let _ = done;
    }
}

/// Puts the library into the program, if it is the one that was examined.
fn enter(pid: i32, meeting: &Meeting, library: &Library) -> Result<()> {
    let program = open_program(pid)?;
    if !meeting.is_examined(fd::stat(program.raw())?) {
        return Ok(());
    }
    let mask = ptrace::block_signals(pid)?;
    let done = put(pid, meeting, library);
    ptrace::set_blocked(pid, mask)?;
    done
}

fn put(pid: i32, meeting: &Meeting, library: &Library) -> Result<()> {
    let remote = Remote::new(pid, meeting.instruction())?;
    let done = remote.enter(library, meeting.library(), proc::pid());
    if done.is_err() {
        remote.leave_alone()?;
    }
    done
}

fn open_program(pid: i32) -> Result<Fd> {
    const BEFORE: &[u8] = b"/proc/";
    const BEHIND: &[u8] = b"/exe";
    let mut path = [0u8; 32];
    path[..BEFORE.len()].copy_from_slice(BEFORE);
    let digits = fd::write_decimal(&mut path[BEFORE.len()..], pid.cast_unsigned());
    let end = BEFORE.len() + digits;
    path[end..end + BEHIND.len()].copy_from_slice(BEHIND);
    fd::open_read(core::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno::INVAL)?)
}
