//! A control group of the unified hierarchy, made for programs that the bench starts, and removed after them.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Our groups' names begin so; then comes the process.
const STEM: &str = "memlane-bench-";
/// For its last programs to be gone.
const PATIENCE: Duration = Duration::from_secs(1);

/// The group; gone when dropped. Whatever runs in it must have been ended before.
pub(super) struct Group {
    /// The hierarchy, mounted for this process alone: a path to it need not be anywhere.
    root: OwnedFd,
    folder: OwnedFd,
    name: String,
}

impl Group {
    /// Makes it.
    ///
    /// # Errors
    /// Not root, or no control groups of version 2.
    pub(super) fn new() -> anyhow::Result<Group> {
        let root = mounted().context("no control groups of version 2 here")?;
        clear_away(&root);
        let name = format!("{STEM}{}", std::process::id());
        mkdirat(&root, &name, Mode::from_bits_truncate(0o755)).context("no control group")?;
        let folder = openat(
            &root,
            &name,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Group { root, folder, name })
    }

    /// Makes `command` start in it.
    pub(super) fn confine(&self, command: &mut Command) {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let procs = openat(&self.folder, "cgroup.procs", flags, Mode::empty());
        let procs = procs.map(std::fs::File::from).map_err(std::io::Error::from);
        // SAFETY: between fork and exec the closure makes one write of a constant to a descriptor that it owns, and
        // allocates nothing: the error is made of a number.
        unsafe {
            command.pre_exec(move || match &procs {
                // 0 is whoever writes.
                Ok(procs) => (&mut &*procs).write_all(b"0"),
                Err(error) => Err(std::io::Error::from_raw_os_error(
                    error.raw_os_error().unwrap_or(libc::EIO),
                )),
            });
        }
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let begin = Instant::now();
        while unlinkat(&self.root, &self.name, AtFlags::REMOVEDIR).is_err()
            && begin.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn mounted() -> rustix::io::Result<OwnedFd> {
    let kind = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&kind)?;
    fsmount(
        &kind,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
}

/// Removes what runs that were killed have left.
fn clear_away(root: &OwnedFd) {
    let folder = format!("/proc/self/fd/{}", root.as_raw_fd());
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    for name in names {
        let owner = name
            .strip_prefix(STEM)
            .and_then(|pid| pid.parse::<u32>().ok());
        let dead = |pid: u32| !std::path::Path::new(&format!("/proc/{pid}")).exists();
        if owner.is_some_and(dead) {
            let _ = unlinkat(root, &name, AtFlags::REMOVEDIR);
        }
    }
}
