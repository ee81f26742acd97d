//! The folders of a store: how a volume appears and disappears in one step.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};
use tonic::Status;

use super::about::About;
use super::failed;
use crate::fault::step;
use crate::volume_id::{Kind, VolumeId};

/// Another plugin works on the store in this folder.
#[derive(Debug)]
pub struct Taken(PathBuf);

impl std::fmt::Display for Taken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let root = self.0.display();
        write!(f, "another memlane-csi works on the store in {root}")
    }
}

impl std::error::Error for Taken {}

/// A store's folders, which one process has.
pub(super) struct Folders {
    root: PathBuf,
    /// Held as long as the store is open.
    _lock: File,
}

impl Folders {
    pub(super) fn open(root: &Path) -> anyhow::Result<Folders> {
        let root = root
            .canonicalize()
            .with_context(|| format!("the store's folder {}", root.display()))?;
        for name in ["volumes", "snapshots", "nodes", "making", "gone"] {
            let folder = root.join(name);
            make_folder(&folder).with_context(|| format!("making {}", folder.display()))?;
        }
        let file = root.join("lock");
        let lock = File::create(&file).with_context(|| format!("making {}", file.display()))?;
        let taken = flock(&lock, FlockOperation::NonBlockingLockExclusive);
        taken.map_err(|_| Taken(root.clone()))?;
        Ok(Folders { root, _lock: lock })
    }

    pub(super) fn nodes(&self) -> PathBuf {
        self.root.join("nodes")
    }

    fn parent(&self, id: &VolumeId) -> PathBuf {
        self.root.join(kind(id.key()).1)
    }

    /// Where a volume or snapshot lies if it is there.
    pub(super) fn place(&self, id: &VolumeId) -> PathBuf {
        self.parent(id).join(id.key())
    }

    /// Where it lies; `None`: it is not there.
    pub(super) fn find(&self, id: &VolumeId) -> Option<PathBuf> {
        let place = self.place(id);
        place.is_dir().then_some(place)
    }

    /// Makes a folder, has it filled, and moves it to its place.
    pub(super) fn make(
        &self,
        id: &VolumeId,
        about: &About,
        fill: impl FnOnce(&Path) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let folder = self.root.join("making").join(id.key());
        remove_folder(&folder)?;
        make_folder(&folder).map_err(|error| failed("making", &folder, &error))?;
        step("make: folder made");
        fill(&folder)?;
        step("make: filled");
        about.write(&folder)?;
        sync(&folder)?;
        step("make: written");
        let (place, parent) = (self.place(id), self.parent(id));
        fs::rename(&folder, &place).map_err(|error| failed("moving", &folder, &error))?;
        sync(&parent)?;
        step("make: moved");
        Ok(())
    }

    /// Moves a folder out of its place, and removes it with what lies elsewhere.
    pub(super) fn remove(
        &self,
        id: &VolumeId,
        discard: impl FnOnce(&Path) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let (place, gone) = (self.place(id), self.root.join("gone").join(id.key()));
        if place.is_dir() {
            remove_folder(&gone)?;
            fs::rename(&place, &gone).map_err(|error| failed("moving", &place, &error))?;
            sync(&self.parent(id))?;
            step("remove: moved");
        }
        if gone.is_dir() {
            discard(&gone)?;
            step("remove: discarded");
            remove_folder(&gone)?;
        }
        Ok(())
    }

    /// Removes what calls that were cut short have left.
    pub(super) fn sweep(
        &self,
        discard: impl Fn(&Path) -> Result<(), Status>,
    ) -> anyhow::Result<()> {
        for name in ["making", "gone"] {
            for entry in fs::read_dir(self.root.join(name))? {
                let folder = entry?.path();
                discard(&folder)?;
                remove_folder(&folder)?;
            }
        }
        Ok(())
    }

    /// All volumes, or all snapshots, in order. `store` is this store's name.
    pub(super) fn list(&self, wanted: Kind, store: &str) -> Result<Vec<VolumeId>, Status> {
        let folder = self.root.join(match wanted {
            Kind::Volume => "volumes",
            Kind::Snapshot => "snapshots",
        });
        let fail = |error: io::Error| failed("listing", &folder, &error);
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            let text = format!("{}@{store}", name.to_string_lossy());
            // Whatever somebody else has put here is no volume.
            found.extend(VolumeId::parse(wanted, &text).ok().flatten());
        }
        found.sort();
        Ok(found)
    }
}

fn kind(key: &str) -> (Kind, &'static str) {
    match key.starts_with(['s', 't']) {
        true => (Kind::Snapshot, "snapshots"),
        false => (Kind::Volume, "volumes"),
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder)
}

fn remove_folder(folder: &Path) -> Result<(), Status> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("removing", folder, &error))
        }
        _ => Ok(()),
    }
}

/// Makes the names in a folder last.
pub(super) fn sync(folder: &Path) -> Result<(), Status> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| failed("writing", folder, &error))
}
