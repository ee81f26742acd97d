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
    /// Has the lock until it is closed. Nothing is read or written by it: `io_uring` keeps the files of a killed process
    /// open for a while.
    _file: OwnedFd,
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
        let locked = Locked {
            _file: file,
            claims: 1,
        };
        all.insert(key.clone(), locked);
        Ok(Claim(key.clone()))
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
            all.remove(&self.0);
        }
    }
}
