//! Calls of `run` that std lacks: exec that searches PATH, and what the kernel will do with a program's privileges.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::entering::Entering;

/// Whether SIGPIPE was ignored when this process started. std ignores it before `main`.
static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_sigpipe() {
    // SAFETY: `sigaction` with a null new action only fills `old`.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut old) == 0 {
            SIGPIPE_WAS_IGNORED.store(old.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
        }
    }
}

// SAFETY: an entry of `.init_array` is a C function without arguments that it needs;
// this one runs before std's start-up and touches one atomic.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_SIGPIPE: extern "C" fn() = note_sigpipe;

/// Replaces this process by `command`, which is searched in PATH as the shell does. Returns only an error.
pub(crate) fn exec(
    command: &[OsString],
    environment: &[(OsString, OsString)],
    entering: Option<&Entering>,
) -> io::Error {
    match prepare(command, environment) {
        Ok((argv, envp)) => {
            let _arranged = entering.and_then(|entering| entering.arrange(&command[0]));
            exec_now(&argv, &envp)
        }
        Err(e) => e,
    }
}

type Strings = Vec<CString>;

fn prepare(
    command: &[OsString],
    environment: &[(OsString, OsString)],
) -> io::Result<(Strings, Strings)> {
    let argv = command
        .iter()
        .map(|arg| CString::new(arg.as_bytes()))
        .collect::<Result<Strings, _>>()?;
    let envp = environment
        .iter()
        .map(|(key, value)| {
            let mut pair = key.as_bytes().to_vec();
            pair.push(b'=');
            pair.extend_from_slice(value.as_bytes());
            CString::new(pair)
        })
        .collect::<Result<Strings, _>>()?;
    Ok((argv, envp))
}

fn exec_now(argv: &[CString], envp: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings
            .iter()
            .map(|s| s.as_ptr())
            .chain([std::ptr::null()])
            .collect()
    };
    let (argv_ptrs, envp_ptrs) = (pointers(argv), pointers(envp));
    let Some(file) = argv.first() else {
        return io::ErrorKind::NotFound.into();
    };
    // SAFETY: both arrays end with null and point to strings that outlive the call;
    // SIG_DFL is a valid disposition.
    unsafe {
        if !SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed) {
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        }
        libc::execvpe(file.as_ptr(), argv_ptrs.as_ptr(), envp_ptrs.as_ptr());
    }
    let error = io::Error::last_os_error();
    // SAFETY: SIG_IGN is a valid disposition; std expects it while this process still prints.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    error
}

/// Whether exec will ignore setuid bits and file capabilities of `path`.
pub(crate) fn privileges_are_off(path: &Path) -> bool {
    // SAFETY: PR_GET_NO_NEW_PRIVS takes no pointers.
    if unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) } == 1 {
        return true;
    }
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: `path` is a C string and `fs` a buffer of the size the call fills.
    unsafe {
        let mut fs: libc::statvfs = std::mem::zeroed();
        libc::statvfs(path.as_ptr(), &raw mut fs) == 0 && fs.f_flag & libc::ST_NOSUID != 0
    }
}

/// Whether the file has the extended attribute `name`.
pub(crate) fn has_xattr(path: &Path, name: &CStr) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: two C strings; with a null buffer of size 0 the call only reports a length.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) >= 0 }
}

/// Whether this process may execute the file.
pub(crate) fn executable(path: &OsStr) -> bool {
    let Ok(path) = CString::new(path.as_bytes()) else {
        return false;
    };
    // SAFETY: `path` is a C string.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
}
