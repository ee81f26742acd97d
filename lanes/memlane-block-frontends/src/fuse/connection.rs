//! The kernel's end of a mount: the connection, which lives as long as any mount namespace has a copy of the mount.
//!
//! `unmount` takes away the mount that this process sees. A process that has made a mount namespace of its own keeps a
//! copy, unless mounts propagate from here to there (`mount_namespaces(7)`). The kernel ends a connection by itself when
//! the last copy goes, and at once when root asks by the control file system `fusectl`
//! (`Documentation/filesystems/fuse.rst`, "FUSE control filesystem").

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::{Errno, write};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::path::Path;

/// The inode number of a FUSE file system's root (`FUSE_ROOT_ID` of `include/uapi/linux/fuse.h`).
const ROOT: u64 = 1;

/// The device number by which the kernel knows a file system without a disk. Its major number is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Connection {
    minor: u32,
}

impl Connection {
    /// That of the mount at `path`, whose root is a file. `None`: somebody has unmounted it already, and what is there belongs to
    /// another file system. The server is not asked.
    pub(super) fn of(path: &Path) -> Option<Connection> {
        let wanted = StatxFlags::TYPE | StatxFlags::INO;
        let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
        let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
        let is_ours = is_file && found.stx_ino == ROOT && found.stx_dev_major == 0;
        is_ours.then_some(Connection {
            minor: found.stx_dev_minor,
        })
    }

    /// Its number, as `stat` tells it for the file: major and minor.
    pub(super) fn device(self) -> (u32, u32) {
        (0, self.minor)
    }

    /// Ends it: who has the file open gets errors, in every mount namespace. For root only.
    ///
    /// The control file system need not be mounted: this opens one that nobody else sees.
    pub(super) fn end(self) -> Result<(), Errno> {
        let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let control = fsmount(
            &context,
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::empty(),
        )?;
        let file = format!("{}/abort", self.minor);
        let abort = openat(
            control,
            file,
            OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        write(abort, b"1").map(drop)
    }
}
