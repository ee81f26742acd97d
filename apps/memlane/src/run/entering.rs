//! Static programs: no loader comes to them, so the library is put into them when they are executed.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use memlane_enter::{Arranged, Examined, Executor, Obstacle};
use memlane_sys::fd::Fd;

use super::program;
use crate::cli::out;

/// A static program that the library can be put into.
pub(crate) struct Entering {
    program: Examined,
    library: CString,
}

impl Entering {
    /// `None`: the command is another kind of program.
    pub(super) fn of(command: &OsStr, library: &Path) -> Option<Entering> {
        let path = program::without_loader(command)?;
        Some(Entering {
            program: memlane_enter::examine(&open(&path)?).ok()?,
            library: CString::new(library.as_os_str().as_bytes()).ok()?,
        })
    }

    /// Prepares for the exec, which must follow in this thread. If that cannot be, the program stays on TCP.
    pub(super) fn arrange(&self, command: &OsStr) -> Option<Arranged> {
        let arranged = memlane_enter::arrange(self.program, &self.library, Executor::Caller);
        arranged
            .map_err(|why| out::warn(&format!("{} stays on TCP: {why}", command.display())))
            .ok()
    }
}

/// What keeps the library out of a program without a loader. `is_go`: Go built it.
pub(super) fn obstacle(program: &Path, is_go: bool) -> Option<String> {
    match memlane_enter::examine(&open(program)?).err()? {
        Obstacle::Other if is_go => Some("a static Go program with C code in it".to_owned()),
        other => Some(other.to_string()),
    }
}

fn open(path: &Path) -> Option<Fd> {
    let file = File::open(path).ok()?;
    // SAFETY: the file's descriptor, which nobody else has any more.
    Some(unsafe { Fd::from_raw(file.into_raw_fd()) })
}
