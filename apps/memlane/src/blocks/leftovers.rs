//! What processes behind sessions leave when they are killed, and what may be taken away of it.
//!
//! Only what is provably nobody's: a mount of which the kernel says that its server is gone, and a folder whose lock
//! is free, which the kernel frees when its owner dies. Sockets are replaced by whoever wants their name next.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use memlane_block_frontends::fuse;
use rustix::fs::{FlockOperation, flock};

/// Where folders of `--as loop` are.
const RUN: &str = "/run";
/// How their names begin.
const LOOP: &str = "memlane-loop-";

/// How long to try to make a folder that others clear away, and how long to wait before the next try. Clearing an empty
/// folder away takes microseconds.
const TAKEN_AWAY: Duration = Duration::from_secs(1);
const TURN: Duration = Duration::from_millis(1);

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
        let begin = Instant::now();
        let lock = loop {
            match make_locked(&path) {
                Ok(lock) => break lock,
                // Another process took it for a dead one's before it was locked.
                Err(_) if begin.elapsed() < TAKEN_AWAY => std::thread::sleep(TURN),
                Err(error) => return Err(error).with_context(|| path.display().to_string()),
            }
        };
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

/// A new folder, locked.
fn make_locked(path: &Path) -> io::Result<File> {
    DirBuilder::new().mode(0o700).create(path)?;
    lock(path)
}

/// The folder at this path, locked. While it is locked, nobody else removes it.
fn lock(path: &Path) -> io::Result<File> {
    let folder = File::open(path)?;
    flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    let (locked, named) = (folder.metadata()?, std::fs::symlink_metadata(path)?);
    // It may have been removed, and made anew, before it was locked.
    match named.is_dir() && (locked.dev(), locked.ino()) == (named.dev(), named.ino()) {
        true => Ok(folder),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Takes away the folders of dead processes, with the loop devices and mounts over them. Returns those folders.
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
    let _lock = lock(path).ok()?;
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
    use std::sync::atomic::{AtomicBool, Ordering};

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

    #[test]
    fn a_folder_is_made_while_others_clear_away() {
        let run = std::env::temp_dir().join(format!("memlane-beside-{}", std::process::id()));
        std::fs::create_dir_all(&run).expect("a folder");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        clear_folders_below(&run);
                    }
                });
            }
            let failed = (0..2000).find_map(|number| {
                let folder = match Folder::below(&run, &number.to_string()) {
                    Ok(folder) => folder,
                    Err(error) => return Some(format!("{error:#}")),
                };
                let kept = folder.path.exists();
                (!kept).then(|| format!("{number} was cleared away"))
            });
            over.store(true, Ordering::Relaxed);
            assert_eq!(failed, None);
        });
        std::fs::remove_dir_all(&run).expect("removed");
    }
}
