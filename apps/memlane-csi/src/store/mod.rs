//! Volumes and snapshots in the folder that `memlane serve` serves.
//!
//! ```text
//! ROOT/volumes/KEY/about.json     what was asked for; with files, the data beside it: ROOT/volumes/KEY/data
//! ROOT/snapshots/KEY/…            the same of a snapshot
//! ROOT/nodes/NODE@STORE/KEY       a volume that a node may use: another name of its data. KEY.ro: only for reading
//! ROOT/nodes/NODE@STORE@OTHER/KEY the same of a mirrored volume, whose other copy is in the store OTHER
//! ROOT/making/KEY, ROOT/gone/KEY  what is not a volume yet, or not any more
//! ```
//!
//! The server gives each session the folder below `nodes` that has the session's name, and a node's certificate names only
//! its own sessions. So a volume's name in a node's folder is what publishes it, and a node can open no other volume.
//!
//! A volume is made below `making` and moved to its place as the last step; it is moved to `gone` as the first step of its
//! end. A call that was cut short is repeated from the beginning, and what lies in these two folders is removed.

mod about;
mod backing;
mod copy;
mod fence;
mod files;
mod folders;
mod nodes;
mod thin;

use std::path::{Path, PathBuf};

use tonic::Status;

use self::about::About;
pub use self::about::Source;
pub use self::backing::{Backing, Capacity};
pub use self::fence::Server;
pub use self::files::Files;
use self::folders::Folders;
pub use self::folders::Taken;
use self::nodes::Nodes;
pub use self::nodes::Publication;
pub use self::thin::{Pool, Thin};
use crate::busy::{Busy, Working};
use crate::fault::step;
use crate::parameters::Parameters;
use crate::size::Range;
use crate::volume_id::{Kind, VolumeId};

/// A volume.
#[derive(Clone, PartialEq, Debug)]
pub struct Volume {
    /// Its identifier.
    pub id: VolumeId,
    /// Its size in bytes.
    pub size: u64,
    /// What it is a copy of.
    pub source: Option<Source>,
    /// What was asked for.
    pub parameters: Parameters,
}

/// A snapshot.
#[derive(Clone, PartialEq, Debug)]
pub struct Snapshot {
    /// Its identifier.
    pub id: VolumeId,
    /// The volume of which it was taken, which may be gone.
    pub of: String,
    /// Its size in bytes.
    pub size: u64,
    /// When it was taken, in seconds since 1970.
    pub taken: u64,
}

/// A folder with volumes.
pub struct Store {
    name: String,
    folders: Folders,
    nodes: Nodes,
    backing: Box<dyn Backing>,
    server: Server,
    busy: Busy,
}

impl Store {
    /// Opens the store in `root`, and removes what a killed plugin has left half done.
    ///
    /// # Errors
    /// Another plugin has the folder, or it cannot be written.
    pub fn open(
        name: &str,
        root: &Path,
        backing: Box<dyn Backing>,
        server: Server,
    ) -> anyhow::Result<Store> {
        let folders = Folders::open(root)?;
        backing.activate()?;
        folders.sweep(|folder| backing.discard(folder))?;
        let store = Store {
            name: name.to_owned(),
            nodes: Nodes::new(folders.nodes()),
            folders,
            backing,
            server,
            busy: Busy::default(),
        };
        store.renew()?;
        Ok(store)
    }

    /// Makes the names of published volumes anew, as far as they lead nowhere since the machine was restarted.
    fn renew(&self) -> anyhow::Result<()> {
        for key in self.folders.list(Kind::Volume, &self.name)? {
            let Some(Volume { id, .. }) = self.find(&key)? else {
                continue;
            };
            for published in self.nodes.of(&id)? {
                let link = self.nodes.prepare(&id, &published)?;
                self.backing.give(&self.folders.place(&id), &link)?;
            }
        }
        Ok(())
    }

    /// The size that a volume gets for which this range is wanted.
    fn size_for(&self, range: Range) -> Result<u64, Status> {
        let size = self.backing.rounded(range.chosen);
        match range.has(size) {
            true => Ok(size),
            false => Err(Status::out_of_range(format!(
                "a volume here would get {size} bytes, more than limit_bytes allows"
            ))),
        }
    }

    /// The store's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes a volume, or finds the one that this call made before.
    ///
    /// # Errors
    /// `AlreadyExists`: there is another volume of this name. `NotFound`: the source is not there.
    pub fn create(
        &self,
        name: &str,
        range: Range,
        parameters: &Parameters,
        source: Option<&Source>,
    ) -> Result<Volume, Status> {
        let id = VolumeId::of_volume(name, &self.name)?;
        let _working = self.busy.begin(id.key())?;
        if let Some(found) = self.find(&id)? {
            return fits(found, range, parameters, source);
        }
        let about = About::of_volume(name, parameters, source);
        match source {
            None => {
                let size = self.size_for(range)?;
                self.folders
                    .make(&id, &about, |folder| self.backing.make(folder, size))?;
            }
            Some(source) => {
                let (from, _source_working) = self.source(source)?;
                let size = self.size_for(range.of_copy(self.backing.size(&from)?)?)?;
                let in_use = self.is_in_use(source)?;
                self.folders.make(&id, &about, |folder| {
                    self.backing.copy(&from, folder, size, in_use)
                })?;
            }
        }
        self.named(&id)
    }

    /// The folder of a source, which nobody else changes meanwhile.
    fn source(&self, source: &Source) -> Result<(PathBuf, Working<'_>), Status> {
        let (kind, text) = match source {
            Source::Volume(id) => (Kind::Volume, id),
            Source::Snapshot(id) => (Kind::Snapshot, id),
        };
        let id = VolumeId::parse(kind, text)?;
        let id = id.filter(|id| id.store() == self.name);
        let id = id.ok_or_else(|| no_such(kind, text))?;
        let working = self.busy.begin(id.key())?;
        let folder = self.folders.find(&id).ok_or_else(|| no_such(kind, text))?;
        Ok((folder, working))
    }

    fn is_in_use(&self, source: &Source) -> Result<bool, Status> {
        match source {
            Source::Snapshot(_) => Ok(false),
            Source::Volume(text) => match VolumeId::parse(Kind::Volume, text)? {
                Some(id) => Ok(!self.nodes.of(&id)?.is_empty()),
                None => Ok(false),
            },
        }
    }

    /// Removes a volume. One that is not there is removed.
    ///
    /// # Errors
    /// `FailedPrecondition`: a node may still use it.
    pub fn delete(&self, id: &VolumeId) -> Result<(), Status> {
        let _working = self.busy.begin(id.key())?;
        if self.find(id)?.is_some_and(|found| found.id != *id) {
            // A volume of another identifier has this key.
            return Ok(());
        }
        if let Some(one) = self.nodes.of(id)?.first() {
            let why = format!("volume {id} is published to node {}", one.node);
            return Err(Status::failed_precondition(why));
        }
        self.folders
            .remove(id, |folder| self.backing.discard(folder))
    }

    /// The volume with this identifier.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn get(&self, id: &VolumeId) -> Result<Volume, Status> {
        let found = self.find(id)?.filter(|found| found.id == *id);
        found.ok_or_else(|| no_such(Kind::Volume, &id.to_string()))
    }

    /// The volume with the key of this identifier, also if it is a copy of a mirrored volume and the identifier does not say so.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn named(&self, id: &VolumeId) -> Result<Volume, Status> {
        self.find(id)?
            .ok_or_else(|| no_such(Kind::Volume, &id.to_string()))
    }

    /// The volume with the key of this identifier. Its own identifier says whether it is mirrored.
    fn find(&self, id: &VolumeId) -> Result<Option<Volume>, Status> {
        let Some(folder) = self.folders.find(id) else {
            return Ok(None);
        };
        let about = About::read(&folder)?;
        Ok(Some(Volume {
            id: id.clone().with(about.parameters.beside.as_deref()),
            size: self.backing.size(&folder)?,
            source: about.source,
            parameters: about.parameters,
        }))
    }

    /// Makes a volume larger. Returns its size, which is in the range.
    ///
    /// # Errors
    /// `NotFound`; `OutOfRange`: it is larger than the range allows.
    pub fn expand(&self, id: &VolumeId, range: Range) -> Result<u64, Status> {
        let _working = self.busy.begin(id.key())?;
        let volume = self.get(id)?;
        if range.has(volume.size) {
            return Ok(volume.size);
        }
        if range.chosen < volume.size {
            let size = volume.size;
            let why = format!("volume {id} has {size} bytes, and volumes do not shrink");
            return Err(Status::out_of_range(why));
        }
        let size = self.size_for(range)?;
        self.backing.grow(&self.folders.place(id), size)?;
        Ok(size)
    }

    /// Volumes behind `after`, in the order of their identifiers, and whether that were all.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(
        &self,
        after: Option<&VolumeId>,
        most: usize,
    ) -> Result<(Vec<Volume>, bool), Status> {
        let mut ids = self.folders.list(Kind::Volume, &self.name)?;
        ids.retain(|id| after.is_none_or(|after| id > after));
        let all = ids.len() <= most;
        ids.truncate(most);
        let mut found = Vec::new();
        for id in ids {
            // One that is removed at this moment is not there.
            found.extend(self.find(&id)?);
        }
        Ok((found, all))
    }

    /// The nodes that may use a volume.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn published(&self, id: &VolumeId) -> Result<Vec<Publication>, Status> {
        self.nodes.of(id)
    }

    /// Lets a node use a volume.
    ///
    /// # Errors
    /// `NotFound`; `AlreadyExists`: it is published to this node in another way; `FailedPrecondition`: another node has it.
    pub fn publish(&self, id: &VolumeId, wanted: &Publication, shared: bool) -> Result<(), Status> {
        let _working = self.busy.begin(id.key())?;
        self.get(id)?;
        let folder = self.folders.place(id);
        for other in self.nodes.of(id)? {
            if other == *wanted {
                continue;
            }
            if other.node == wanted.node {
                let how = if other.read_only {
                    "reading"
                } else {
                    "writing"
                };
                let why = format!("volume {id} is published to this node for {how}");
                return Err(Status::already_exists(why));
            }
            if !(shared && wanted.read_only && other.read_only) {
                let why = format!("volume {id} is published to node {}", other.node);
                return Err(Status::failed_precondition(why));
            }
        }
        let link = self.nodes.prepare(id, wanted)?;
        self.backing.give(&folder, &link)?;
        Nodes::settle(&link)
    }

    /// Takes a volume from a node, or from all nodes: whatever they ask of it from now on is refused. A volume that is not
    /// there is taken.
    ///
    /// # Errors
    /// The node's session has the volume open, and the server did not take it.
    pub fn unpublish(&self, id: &VolumeId, node: Option<&str>) -> Result<(), Status> {
        let _working = self.busy.begin(id.key())?;
        for one in self.nodes.of(id)? {
            if node.is_none_or(|node| node == one.node) {
                // First the name, so that the session cannot open the volume again.
                self.nodes.remove(id, &one)?;
                step("unpublish: name removed");
            }
        }
        self.server.release(id, node)
    }

    /// Takes a snapshot, or finds the one that this call took before.
    ///
    /// # Errors
    /// `AlreadyExists`: there is one of another volume. `NotFound`: the volume is not there. `FailedPrecondition`: the volume
    /// is in use, and its file system cannot share blocks.
    pub fn snapshot(&self, name: &str, of: &str) -> Result<Snapshot, Status> {
        let id = VolumeId::of_snapshot(name, &self.name)?;
        let _working = self.busy.begin(id.key())?;
        if let Some(found) = self.find_snapshot(&id)? {
            return match found.of == of {
                true => Ok(found),
                false => Err(Status::already_exists(format!(
                    "snapshot {id} is one of volume {}",
                    found.of
                ))),
            };
        }
        let source = Source::Volume(of.to_owned());
        let (from, _source_working) = self.source(&source)?;
        let (size, in_use) = (self.backing.size(&from)?, self.is_in_use(&source)?);
        let about = About::of_snapshot(name, of);
        self.folders.make(&id, &about, |folder| {
            self.backing.copy(&from, folder, size, in_use)
        })?;
        self.find_snapshot(&id)?
            .ok_or_else(|| no_such(Kind::Snapshot, &id.to_string()))
    }

    /// The snapshot with this identifier.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn find_snapshot(&self, id: &VolumeId) -> Result<Option<Snapshot>, Status> {
        let Some(folder) = self.folders.find(id) else {
            return Ok(None);
        };
        let about = About::read(&folder)?;
        let Some(Source::Volume(of)) = about.source else {
            return Err(Status::internal(format!("snapshot {id} has no source")));
        };
        Ok(Some(Snapshot {
            id: id.clone(),
            of,
            size: self.backing.size(&folder)?,
            taken: about.made,
        }))
    }

    /// Removes a snapshot. One that is not there is removed.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn delete_snapshot(&self, id: &VolumeId) -> Result<(), Status> {
        let _working = self.busy.begin(id.key())?;
        self.folders
            .remove(id, |folder| self.backing.discard(folder))
    }

    /// Snapshots behind `after` that `wanted` picks, in the order of their identifiers, and whether that were all.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list_snapshots(
        &self,
        after: Option<&VolumeId>,
        most: usize,
        wanted: impl Fn(&Snapshot) -> bool,
    ) -> Result<(Vec<Snapshot>, bool), Status> {
        let mut found = Vec::new();
        for id in self.folders.list(Kind::Snapshot, &self.name)? {
            if after.is_some_and(|after| id <= *after) {
                continue;
            }
            if let Some(snapshot) = self.find_snapshot(&id)?.filter(|one| wanted(one)) {
                if found.len() == most {
                    return Ok((found, false));
                }
                found.push(snapshot);
            }
        }
        Ok((found, true))
    }

    /// How much room there is.
    ///
    /// # Errors
    /// It cannot be found out.
    pub fn capacity(&self) -> Result<Capacity, Status> {
        self.backing.capacity()
    }
}

/// Is a volume that was found what a call wants?
fn fits(
    found: Volume,
    range: Range,
    parameters: &Parameters,
    source: Option<&Source>,
) -> Result<Volume, Status> {
    let why = if !range.has(found.size) {
        format!("of {} bytes", found.size)
    } else if found.source.as_ref() != source {
        "with another source".to_owned()
    } else if found.parameters != *parameters {
        "with other parameters".to_owned()
    } else {
        return Ok(found);
    };
    let id = found.id;
    Err(Status::already_exists(format!("volume {id} exists, {why}")))
}

fn no_such(kind: Kind, id: &str) -> Status {
    let what = match kind {
        Kind::Volume => "volume",
        Kind::Snapshot => "snapshot",
    };
    Status::not_found(format!("there is no {what} {id:?} here"))
}

/// What a failed call to the kernel means to the orchestrator.
fn failed(what: &str, path: &Path, error: &std::io::Error) -> Status {
    let text = format!("{what} {}: {error}", path.display());
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            Status::resource_exhausted(text)
        }
        std::io::ErrorKind::FileTooLarge => Status::out_of_range(text),
        _ => Status::internal(text),
    }
}
