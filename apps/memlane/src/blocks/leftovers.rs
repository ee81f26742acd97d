//! What processes behind sessions leave when they are killed, and what may be taken away of it.
//!
//! Only what is provably nobody's: a mount of which the kernel says that its server is gone, and a folder whose lock
//! is free, which the kernel frees when its owner dies. Sockets are replaced by whoever wants their name next.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use memlane_block_frontends::fuse;
use rustix::fs::{FlockOperation, flock};

/// Where folders of `--as loop` are.
const RUN: &str = "/run";
/// How their names begin.
const LOOP: &str = "memlane-loop-";

/// A folder for one mount that nobody else is to see. Gone when dropped, if it is empty.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Locked as long as this process lives.
    _lock: File,
}

impl Folder {
    /// One whose name ends so.
    pub(super) fn new(name: &str) -> anyhow::Result<Folder> {
        Folder::below(Path::new(RUN), name)
    }

    fn below(run: &Path, name: &str) -> anyhow::Result<Folder> {
        let path = run.join(format!("{LOOP}{name}"));
        let made = || -> std::io::Result<File> {
            DirBuilder::new().mode(0o700).create(&path)?;
            let folder = File::open(&path)?;
            flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
            // Who tidies up may have been here between two of these.
            std::fs::metadata(&path)?;
            Ok(folder)
        };
        let lock = made().with_context(|| path.display().to_string())?;
        Ok(Folder { path, _lock: lock })
    }

    /// Where the volume is mounted.
    pub(super) fn volume(&self) -> PathBuf {
        self.path.join("volume")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Takes away the folders of dead processes, and what is mounted in them. Which?
pub(super) fn clear_folders() -> Vec<PathBuf> {
    clear_folders_below(Path::new(RUN))
}

fn clear_folders_below(run: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
    let named = entries.filter(|entry| {
        entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(LOOP.as_bytes())
    });
    let mut cleared: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    cleared.retain(|folder| clear_folder(folder).is_some());
    cleared
}

fn clear_folder(path: &Path) -> Option<()> {
    let folder = File::open(path)
        .ok()
        .filter(|folder| folder.metadata().is_ok_and(|m| m.is_dir()))?;
    flock(&folder, FlockOperation::NonBlockingLockExclusive).ok()?;
    let volume = path.join("volume");
    while fuse::clear(&volume).ok()? {}
    // What is not an empty file there is not ours.
    if std::fs::metadata(&volume).is_ok_and(|there| there.is_file() && there.len() == 0) {
        std::fs::remove_file(&volume).ok()?;
    }
    std::fs::remove_dir(path).ok()
}

/// Takes away all that dead processes have left, and tells what.
pub(super) fn prune() -> anyhow::Result<Vec<String>> {
    let mut told: Vec<String> = clear_folders()
        .iter()
        .map(|folder| format!("{}: the folder of a loop device", folder.display()))
        .collect();
    for path in fuse::left() {
        if fuse::clear(&path)? {
            told.push(format!("{}: the mount of a volume", path.display()));
        }
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_cleared_when_its_owner_is_dead_and_not_before() {
        let run = std::env::temp_dir().join(format!("memlane-leftovers-{}", std::process::id()));
        std::fs::create_dir_all(&run).expect("a folder");
        let folder = Folder::below(&run, "1-a").expect("a folder");
        std::fs::write(folder.volume(), "").expect("a file");
        assert_eq!(clear_folders_below(&run), [] as [PathBuf; 0]);
        // As if it were killed: the lock goes, the folder stays.
        drop(folder);
        let left = run.join("memlane-loop-1-a");
        assert!(left.exists());
        // Somebody's own things stay.
        let other = run.join("memlane-loop-other");
        std::fs::create_dir(&other).expect("a folder");
        std::fs::write(other.join("volume"), "mine").expect("a file");
        assert_eq!(clear_folders_below(&run), std::slice::from_ref(&left));
        assert!(!left.exists() && other.join("volume").exists());
        std::fs::remove_dir_all(&run).expect("removed");
    }
}
