//! Memory that a server shares with virtual machines, as QEMU gives it to them.

use std::fs::File;
use std::path::{Path, PathBuf};

/// A file in memory. Gone when dropped.
#[derive(Debug)]
pub struct Region(PathBuf);

impl Region {
    /// Of `bytes` zeros.
    ///
    /// # Panics
    /// If it can't be made.
    pub fn new(label: &str, bytes: u64) -> Region {
        let path = PathBuf::from(format!("/dev/shm/memlane-{label}-{}", std::process::id()));
        let file = File::create(&path).expect("memory");
        file.set_len(bytes).expect("memory");
        Region(path)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What `--device` takes.
    pub fn device(&self) -> String {
        format!("ivshmem:{}", self.0.display())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
