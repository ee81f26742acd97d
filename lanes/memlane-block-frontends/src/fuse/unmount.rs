//! Why a volume is not mounted, or not unmounted; and unmounting, which root does itself and others by a helper.

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why it is not mounted, or not unmounted.
#[derive(Debug)]
pub enum MountError {
    /// A mount is there whose server is gone.
    Stale(PathBuf),
    /// Something other than a regular file is there.
    NotAFile(PathBuf),
    /// A file with contents is there, which the mount would hide.
    NotEmpty(PathBuf),
    /// Programs have it open.
    InUse(PathBuf),
    /// It is not mounted here any more, and programs in another mount namespace have it open.
    InUseElsewhere(PathBuf),
    /// No `/dev/fuse`.
    NoFuse(io::Error),
    /// Users other than root need it.
    NoHelper,
    /// Anything else.
    Io(PathBuf, io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::Stale(path) => {
                let path = path.display();
                write!(
                    f,
                    "{path} is what is left of a mount whose process is gone: `fusermount3 -u {path}` (as root: `umount {path}`) clears it away"
                )
            }
            MountError::NotAFile(path) => {
                write!(f, "{} is there and not a regular file", path.display())
            }
            MountError::NotEmpty(path) => write!(
                f,
                "{} is a file with contents, which the mount would hide",
                path.display()
            ),
            MountError::InUse(path) => write!(f, "{} is in use", path.display()),
            MountError::InUseElsewhere(path) => {
                write!(f, "{} is in use in another mount namespace", path.display())
            }
            MountError::NoFuse(error) => {
                write!(f, "/dev/fuse: {error} (is the kernel module loaded?)")
            }
            MountError::NoHelper => {
                f.write_str("without root, mounting takes fusermount3 (Debian: fuse3)")
            }
            MountError::Io(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for MountError {}

/// Unmounts what no program has open.
pub(super) fn unmount_idle(path: &Path) -> Result<(), MountError> {
    match unmount(path, UnmountFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::InUse(path.to_owned())),
        Err(Errno::PERM) => fusermount(path, &["-u"]),
        // Another process has unmounted it, and perhaps removed its directory.
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(errno) => Err(MountError::Io(path.to_owned(), errno.into())),
    }
}

/// The way for those who are not root.
pub(super) fn fusermount(path: &Path, how: &[&str]) -> Result<(), MountError> {
    let output = Command::new("fusermount3")
        .args(how)
        .arg("--")
        .arg(path)
        .output()
        .map_err(|error| MountError::Io(path.to_owned(), error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") {
        return Err(MountError::InUse(path.to_owned()));
    }
    Err(MountError::Io(path.to_owned(), io::Error::other(said)))
}
