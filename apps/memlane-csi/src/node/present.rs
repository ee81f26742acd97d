//! What this node has of its volumes, read from what exists.
//!
//! A process behind a mapping that was killed leaves nothing that names its volume. So the plugin also remembers which volumes
//! it has seen; that memory only tells what to say of such a volume, and nothing is decided by it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tonic::Status;

use super::Node;
use super::mapping::Mapped;
use crate::volume_id::VolumeId;

/// What this node has of a volume.
#[derive(Debug)]
pub(super) struct Present {
    /// The volume.
    pub(super) id: VolumeId,
    /// Its mapping; `None`: no process shows it.
    pub(super) mapped: Option<Mapped>,
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
        let mut found = BTreeMap::new();
        for mapped in self.memlane.list()? {
            if let Some(id) = mapped.id(&self.id) {
                found.insert(id, Some(mapped));
            }
        }
        let mut seen = self.seen.lock();
        seen.extend(found.keys().cloned());
        for id in seen.iter() {
            found.entry(id.clone()).or_default();
        }
        let all = found.into_iter();
        Ok(all.map(|(id, mapped)| Present { id, mapped }).collect())
    }

    /// One volume.
    pub(super) fn present(&self, id: &VolumeId) -> Result<Present, Status> {
        Ok(Present {
            id: id.clone(),
            mapped: self.memlane.find(&self.id, id)?,
        })
    }
}
