//! Which node may use which volume: the names in the nodes' folders.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tonic::Status;

use super::failed;
use super::folders::sync;
use crate::volume_id::VolumeId;

/// What a name ends with that is for reading.
const READ_ONLY: &str = ".ro";

/// A node that may use a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Publication {
    /// The node.
    pub node: String,
    /// It may only read.
    pub read_only: bool,
}

impl Publication {
    /// What the volume is called in the node's folder, and so in its session.
    #[must_use]
    pub fn name(&self, id: &VolumeId) -> String {
        let end = if self.read_only { READ_ONLY } else { "" };
        format!("{}{end}", id.key())
    }
}

pub(super) struct Nodes {
    folder: PathBuf,
}

impl Nodes {
    pub(super) fn new(folder: PathBuf) -> Nodes {
        Nodes { folder }
    }

    /// The nodes that may use a volume, in order.
    pub(super) fn of(&self, id: &VolumeId) -> Result<Vec<Publication>, Status> {
        let fail = |error: io::Error| failed("listing", &self.folder, &error);
        // What the folder of a node ends with.
        let end = id.session("");
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(fail)? {
            let folder = entry.map_err(fail)?.file_name();
            let folder = folder.to_string_lossy();
            let node = folder.strip_suffix(end.as_str());
            let Some(node) = node.filter(|node| !node.contains('@')) else {
                continue;
            };
            let both = [false, true].map(|read_only| Publication {
                node: node.to_owned(),
                read_only,
            });
            found.extend(both.into_iter().filter(|one| self.link(id, one).exists()));
        }
        found.sort_by(|a, b| a.node.cmp(&b.node));
        Ok(found)
    }

    fn link(&self, id: &VolumeId, publication: &Publication) -> PathBuf {
        let folder = id.session(&publication.node);
        self.folder.join(folder).join(publication.name(id))
    }

    /// Makes the node's folder. Returns what the volume is to be called.
    pub(super) fn prepare(&self, id: &VolumeId, wanted: &Publication) -> Result<PathBuf, Status> {
        let link = self.link(id, wanted);
        if let Some(folder) = link.parent() {
            let mut builder = DirBuilder::new();
            let made = builder.recursive(true).mode(0o700).create(folder);
            made.map_err(|error| failed("making", folder, &error))?;
            sync(&self.folder)?;
        }
        Ok(link)
    }

    /// Makes a name last.
    pub(super) fn settle(link: &Path) -> Result<(), Status> {
        link.parent().map_or(Ok(()), sync)
    }

    pub(super) fn remove(&self, id: &VolumeId, publication: &Publication) -> Result<(), Status> {
        let link = self.link(id, publication);
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("removing", &link, &error))
            }
            _ => Nodes::settle(&link),
        }
    }
}
