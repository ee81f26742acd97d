//! The helper: it traces the process, or a child that this makes, until that has executed the program, and puts the library
//! into it.

use crate::executor::Executor;
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
    if let Some(pid) = wait_for_exec(meeting) {
        let _ = enter(pid, meeting, &library);
        let _ = ptrace::detach(pid);
    }
    match meeting.executor {
        // SAFETY: the process runs the program, or has ended.
        Executor::Caller => unsafe { meeting::vanish(meeting) },
        // The process waits for this one.
        Executor::Child => proc::exit(0),
    }
}

fn prepare(meeting: &Meeting) -> Result<Library> {
    let file = fd::open_read(meeting.library())?;
    let size = fd::stat(file.raw())?.size;
    let view = View::of_code(&file, size)?;
    let library = Library::read(view.bytes()).ok_or(Errno(libc::ENOEXEC))?;
    match seize(meeting) {
        Err(Errno(libc::EPERM)) => {
            meeting.ask();
            seize(meeting)?;
        }
        other => other?,
    }
    Ok(library)
}

fn seize(meeting: &Meeting) -> Result<()> {
    match meeting.executor {
        Executor::Caller => ptrace::seize(meeting.process),
        Executor::Child => ptrace::seize_with_children(meeting.process),
    }
}

/// Waits until the process, or its child, has executed a program: its id. `None`: it has ended before.
fn wait_for_exec(meeting: &Meeting) -> Option<i32> {
    let who = match meeting.executor {
        Executor::Caller => ptrace::ANY,
        Executor::Child => wait_for_child(meeting)?,
    };
    wait_for(who, Stop::Exec)
}

/// Waits until the process has made a child, and traces only that from then on.
fn wait_for_child(meeting: &Meeting) -> Option<i32> {
    let process = wait_for(meeting.process, Stop::Vfork)?;
    let child = ptrace::child(process).ok()?;
    meeting.follow_child();
    ptrace::detach(process).ok()?;
    Some(child)
}

/// Passes on what happens to a process until it stops for this reason: its id. `None`: it has ended, or executed a program.
fn wait_for(who: i32, reason: Stop) -> Option<i32> {
    loop {
        let (pid, stop) = ptrace::wait(who).ok()?;
        let done = match stop {
            stop if stop == reason => return Some(pid),
            Stop::Exec | Stop::Ended => return None,
            Stop::Signal(signal) => ptrace::go_on(pid, signal),
            Stop::Group => ptrace::listen(pid),
            Stop::Vfork | Stop::Notified | Stop::Other => ptrace::go_on(pid, 0),
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
