//! What this node has of its volumes, read from what exists.
//!
//! A process behind a mapping that was killed leaves nothing that names its volume. So the plugin also remembers which volumes
//! it has seen; that memory only tells what to say of such a volume, and nothing is decided by it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tonic::Status;

use super::Node;
use super::array::Array;
use super::mapping::Mapped;
use super::mounts::device_number;
use crate::volume_id::VolumeId;

/// What this node has of a volume.
#[derive(Debug)]
pub(super) struct Present {
    /// The volume.
    pub(super) id: VolumeId,
    /// Its copies: two, if it is mirrored.
    pub(super) copies: Vec<Copy>,
    /// The mirror, if there is one.
    pub(super) array: Option<Array>,
}

/// What this node has of a copy.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) id: VolumeId,
    /// Its mapping; `None`: no process shows it.
    pub(super) mapped: Option<Mapped>,
}

impl Copy {
    pub(super) fn path(&self) -> Option<&Path> {
        self.mapped.as_ref().map(|one| one.shown_as.as_path())
    }

    /// Whether requests to it are answered.
    pub(super) fn works(&self) -> bool {
        self.mapped.as_ref().is_some_and(Mapped::works)
    }

    /// The number of its device.
    pub(super) fn device(&self) -> Option<u64> {
        self.path().and_then(device_number)
    }
}

impl Present {
    fn new(id: VolumeId, mappings: &mut BTreeMap<VolumeId, Mapped>) -> Present {
        let copies = id.copies().into_iter();
        let copies = copies.map(|id| Copy {
            mapped: mappings.remove(&id),
            id,
        });
        let mut present = Present {
            copies: copies.collect(),
            id,
            array: None,
        };
        present.look();
        present
    }

    pub(super) fn is_mirrored(&self) -> bool {
        self.id.beside().is_some()
    }

    /// Looks for the mirror.
    pub(super) fn look(&mut self) {
        if self.is_mirrored() {
            self.array = Array::find(&self.id.identity(), &self.devices());
        }
    }

    /// The numbers of the copies' devices.
    pub(super) fn devices(&self) -> Vec<u64> {
        self.copies.iter().filter_map(Copy::device).collect()
    }

    /// The mirror, if it runs.
    pub(super) fn running(&self) -> Option<&Array> {
        self.array.as_ref().filter(|array| array.runs)
    }

    /// What shows the volume.
    pub(super) fn device(&self) -> Option<&Path> {
        match self.is_mirrored() {
            true => self.running().map(|array| array.device.as_path()),
            false => self.copies.first().and_then(Copy::path),
        }
    }

    pub(super) fn is_read_only(&self) -> bool {
        let mapped = self.copies.iter().filter_map(|one| one.mapped.as_ref());
        mapped.into_iter().any(|one| one.read_only)
    }
}

/// Volumes that were mapped here, and not unstaged.
#[derive(Default)]
pub(super) struct Seen(Mutex<BTreeSet<VolumeId>>);

impl Seen {
    /// The volume was unstaged.
    pub(super) fn forget(&self, id: &VolumeId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<VolumeId>> {
        // A set has no half-done states.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    /// All volumes of this node.
    pub(super) fn all_present(&self) -> Result<Vec<Present>, Status> {
        let mut mappings = self.mappings()?;
        let mut seen = self.seen.lock();
        seen.extend(mappings.keys().map(VolumeId::whole));
        let all = seen.iter().cloned();
        Ok(all.map(|id| Present::new(id, &mut mappings)).collect())
    }

    /// One volume.
    pub(super) fn present(&self, id: &VolumeId) -> Result<Present, Status> {
        Ok(Present::new(id.clone(), &mut self.mappings()?))
    }

    /// Mappings of this node's volumes, by the identifier of the copy.
    fn mappings(&self) -> Result<BTreeMap<VolumeId, Mapped>, Status> {
        let all = self.memlane.list()?.into_iter();
        Ok(all
            .filter_map(|one| Some((one.id(&self.id)?, one)))
            .collect())
    }
}
