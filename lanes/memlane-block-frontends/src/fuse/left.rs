//! What a process that was killed has left: a mount whose every call fails.
//!
//! A mount is taken away only if it is certainly ours and certainly dead: the kernel's table names it, and the kernel
//! answers `ENOTCONN`, which it does when the last descriptor of `/dev/fuse` of that mount is closed.

use super::unmount::{MountError, fusermount};
use crate::{kernel_path, loopdev};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

/// A mount that has not answered after so long may be alive.
const ANSWER: Duration = Duration::from_secs(1);

/// Mounts of this machine's memlane processes that were killed.
#[must_use]
pub fn left() -> Vec<PathBuf> {
    let mut mounts = ours();
    mounts.retain(|path| is_dead(path));
    mounts
}

/// Unmounts what a killed process has mounted at `path`, even while it is open, and detaches the loop devices over it.
/// `false`: there is nothing of this kind.
///
/// # Errors
/// The kernel does not let us.
pub fn clear(path: &Path) -> Result<bool, MountError> {
    let path = &kernel_path::of(path);
    if !ours().iter().any(|ours| ours == path) || !is_dead(path) {
        return Ok(false);
    }
    // Before the mount goes: afterwards the kernel does not tell the name of a device's file any more.
    loopdev::clear(path).map_err(|error| MountError::Io(path.to_owned(), error))?;
    match unmount(path, UnmountFlags::DETACH) {
        Ok(()) => Ok(true),
        Err(Errno::PERM) => fusermount(path, &["-u", "-z"]).map(|()| true),
        // Another process has unmounted it, and perhaps removed its directory.
        Err(Errno::INVAL | Errno::NOENT) => Ok(false),
        Err(errno) => Err(MountError::Io(path.to_owned(), errno.into())),
    }
}

fn ours() -> Vec<PathBuf> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    table
        .split(|byte| *byte == b'\n')
        .filter_map(mount)
        .collect()
}

/// The place of a mount of ours, from a line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn mount(line: &[u8]) -> Option<PathBuf> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    // Optional fields end with a hyphen.
    let end = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let (kind, source) = (fields.get(end + 1)?, fields.get(end + 2)?);
    let ours = *kind == b"fuse" && source.starts_with(b"memlane:");
    ours.then(|| PathBuf::from(OsString::from_vec(plain(fields[4]))))
}

/// Blanks and such are written as a backslash and three octal digits.
fn plain(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..3).filter(|_| *first == b'\\');
        let octal = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    bytes
}

/// A live one may take its time, if its server does.
fn is_dead(path: &Path) -> bool {
    let (tell, told) = channel();
    let path = path.to_owned();
    let asks = std::thread::Builder::new().name("memlane-stat".to_owned());
    let asked = asks.spawn(move || {
        let dead = std::fs::metadata(&path)
            .is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN));
        // Who has given up does not listen.
        let _ = tell.send(dead);
    });
    asked.is_ok() && told.recv_timeout(ANSWER).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mounts_are_told_from_others_and_their_names_may_have_blanks() {
        let table = [
            (
                "98 31 0:52 / /mnt/a\\040b\\134c rw,nosuid - fuse memlane:disk rw,user_id=0",
                Some("/mnt/a b\\c"),
            ),
            (
                "99 31 0:52 / /mnt/x rw shared:1 master:2 - fuse memlane:disk rw",
                Some("/mnt/x"),
            ),
            ("97 31 0:52 / /mnt/- rw - fuse sshfs rw", None),
            (
                "96 31 0:52 / /mnt/y rw - fuse.memlane memlane:disk rw",
                None,
            ),
            ("95 31 0:52 / /mnt/z rw - ext4 memlane:disk rw", None),
            ("94 31 0:52 / /mnt/z rw", None),
            ("- fuse memlane:", None),
            ("", None),
        ];
        for (line, path) in table {
            assert_eq!(mount(line.as_bytes()), path.map(PathBuf::from), "{line}");
        }
        assert_eq!(plain(b"\\9\\04\\777\\1011"), b"\\9\\04\\777A1");
    }

    #[test]
    fn nothing_is_cleared_that_is_not_a_dead_mount_of_ours() {
        for path in ["/", "/proc", "/tmp", "/nowhere"] {
            assert!(!clear(Path::new(path)).expect("left alone"));
        }
    }
}
