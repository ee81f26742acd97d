//! Which process writes a file: the one that has it locked.
//!
//! Block devices have `O_EXCL` for that. A file has `flock(2)`, which every process of memlane that writes it takes and the
//! kernel frees when the process ends. Who may write it within a process is decided there: a server knows its sessions.

use super::backing::Key;
use memlane_wait::mutex::lock;
use rustix::fs::{FlockOperation, flock};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{LazyLock, Mutex};

/// The files that this process writes.
static LOCKED: LazyLock<Mutex<HashMap<Key, Locked>>> = LazyLock::new(Mutex::default);

#[derive(Debug)]
struct Locked {
    /// Has the lock. This process reads and writes nothing by it: `io_uring` keeps the files of a killed process
    /// open for a while.
    file: OwnedFd,
    claims: usize,
}

/// One part of this process that has a file open for writing. The last one frees the lock.
#[derive(Debug)]
pub(super) struct Claim(Key);

impl Claim {
    /// Locks the file that `key` names, opened anew by `open`, unless this process has it locked.
    ///
    /// # Errors
    /// `EBUSY`: another process has it. A file system without locks gives none, and no error. What `open` says.
    pub(super) fn of(key: &Key, open: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<Claim> {
        let mut all = lock(&LOCKED);
        if let Some(locked) = all.get_mut(key) {
            locked.claims += 1;
            return Ok(Claim(key.clone()));
        }
        let file = open()?;
        let refused = flock(&file, FlockOperation::NonBlockingLockExclusive).err();
        if refused == Some(rustix::io::Errno::WOULDBLOCK) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let locked = Locked { file, claims: 1 };
        all.insert(key.clone(), locked);
        Ok(Claim(key.clone()))
    }

    /// The locked file, for a process that reads and writes it in this one's place. It has the lock, too: should this process
    /// end first, the file is free when the other one has closed it. While this process lives, the last claim frees it: so
    /// that is kept until the other process is done.
    ///
    /// # Errors
    /// Descriptors are used up.
    pub(super) fn lend(&self) -> io::Result<OwnedFd> {
        let all = lock(&LOCKED);
        let locked = all.get(&self.0).ok_or(io::ErrorKind::NotFound)?;
        locked.file.try_clone()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut all = lock(&LOCKED);
        let Some(locked) = all.get_mut(&self.0) else {
            return;
        };
        locked.claims -= 1;
        if locked.claims == 0 {
            // To close it would not be enough: a child between fork and exec has the descriptor, and the lock with it.
            let _ = flock(&locked.file, FlockOperation::Unlock);
            all.remove(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_has_inherited_the_descriptor_keeps_no_lock() {
        let path = std::env::temp_dir().join(format!("memlane-claim-{}", std::process::id()));
        std::fs::write(&path, "a volume").expect("written");
        let key = Key::Test(path.display().to_string());
        let open = || Ok(OwnedFd::from(std::fs::File::open(&path)?));
        let claim = Claim::of(&key, open).expect("nobody has it");
        let inherited = lock(&LOCKED)[&key].file.try_clone().expect("another one");
        drop(claim);
        let again = Claim::of(&key, open).map_err(|error| error.raw_os_error());
        assert!(again.is_ok(), "{again:?}");
        drop(inherited);
        let _ = std::fs::remove_file(&path);
    }
}
