//! Volumes as sparse files.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tonic::Status;

use super::backing::{Backing, Capacity};
use super::copy::{copy_blocks, share_blocks};
use super::failed;

/// A volume is a sparse file `data` in its folder. Copies share blocks where the file system can (XFS, btrfs, bcachefs).
pub struct Files {
    root: PathBuf,
}

impl Files {
    /// Volumes below `root`.
    #[must_use]
    pub fn new(root: &Path) -> Files {
        let root = root.to_path_buf();
        Files { root }
    }
}

fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

fn resize(file: &File, size: u64) -> io::Result<()> {
    file.set_len(size)?;
    file.sync_all()
}

impl Backing for Files {
    fn rounded(&self, size: u64) -> u64 {
        size
    }

    fn activate(&self) -> Result<(), Status> {
        Ok(())
    }

    fn make(&self, folder: &Path, size: u64) -> Result<(), Status> {
        let path = data(folder);
        File::create(&path)
            .and_then(|file| resize(&file, size))
            .map_err(|error| failed("making", &path, &error))
    }

    fn copy(&self, from: &Path, folder: &Path, size: u64, in_use: bool) -> Result<(), Status> {
        let (source, copy) = (data(from), data(folder));
        let fail = |error: &io::Error| failed("copying", &source, error);
        let old = File::open(&source).map_err(|error| fail(&error))?;
        let new = File::create(&copy).map_err(|error| fail(&error))?;
        let shared = share_blocks(&old, &new).map_err(|error| fail(&error))?;
        if !shared {
            if in_use {
                return Err(Status::failed_precondition(
                    "the volume is published to a node, and the store's file system cannot share blocks between files (XFS and \
                     btrfs can): unpublish the volume before it is copied",
                ));
            }
            copy_blocks(&old, &new).map_err(|error| fail(&error))?;
        }
        resize(&new, size).map_err(|error| fail(&error))
    }

    fn grow(&self, folder: &Path, size: u64) -> Result<(), Status> {
        let path = data(folder);
        OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| resize(&file, size))
            .map_err(|error| failed("growing", &path, &error))
    }

    fn size(&self, folder: &Path) -> Result<u64, Status> {
        let path = data(folder);
        fs::metadata(&path)
            .map(|file| file.len())
            .map_err(|error| failed("looking at", &path, &error))
    }

    fn give(&self, folder: &Path, name: &Path) -> Result<(), Status> {
        let path = data(folder);
        match fs::hard_link(&path, name) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => same_file(&path, name),
            Err(error) => Err(failed("publishing", &path, &error)),
        }
    }

    fn discard(&self, _folder: &Path) -> Result<(), Status> {
        Ok(())
    }

    fn capacity(&self) -> Result<Capacity, Status> {
        let stat = rustix::fs::statvfs(&self.root)
            .map_err(|error| failed("looking at", &self.root, &error.into()))?;
        Ok(Capacity {
            available: stat.f_bavail.saturating_mul(stat.f_frsize),
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
        })
    }
}

/// A name that is there already must be one of the same data.
fn same_file(path: &Path, name: &Path) -> Result<(), Status> {
    let look = |path: &Path| {
        let file = fs::symlink_metadata(path);
        let file = file.map_err(|error| failed("looking at", path, &error))?;
        Ok::<_, Status>((file.dev(), file.ino()))
    };
    match look(path)? == look(name)? {
        true => Ok(()),
        false => Err(Status::internal(format!(
            "{} is not a name of {}",
            name.display(),
            path.display()
        ))),
    }
}
