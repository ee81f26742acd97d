//! What is wrong with the volumes on this node.

use std::collections::BTreeMap;
use std::path::Path;

use tonic::Status;

use super::Node;
use super::mapping::{Mapped, SessionPath};
use super::mounts;
use super::present::Present;
use crate::proto::VolumeHealthErrorType::{Degraded, Inaccessible};
use crate::proto::volume_health::VolumeHealthEntry;

/// How a volume on this node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Health {
    /// The volume's identifier.
    pub(crate) volume: String,
    /// Everything that is wrong; nothing, if all is well.
    pub(crate) troubles: Vec<Trouble>,
    /// How many copies there are to be: 2, if the volume is mirrored.
    pub(crate) copies: u32,
    /// How many of them can be read here, and are up to date.
    pub(crate) in_sync: u32,
    /// Bytes that have to be looked at until a copy that was away is up to date.
    pub(crate) resync_left: u64,
}

/// Something that is wrong with a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Trouble {
    /// What.
    pub(crate) reason: Reason,
    /// The pod's requests wait or fail. Otherwise they are served, with less than there should be.
    pub(crate) inaccessible: bool,
    /// A sentence for people.
    pub(crate) message: String,
}

/// What can be wrong with a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Reason {
    /// No process shows the volume.
    NotMapped,
    /// Another node has it, or it was taken away.
    Lost,
    /// Its server is back, and has not opened it again yet.
    BeingOpenedAgain,
    /// No path to its server is up.
    ServerUnreachable,
    /// Some paths to its server are down.
    PathDown,
    /// Its file system met an error.
    FileSystemReadOnly,
}

impl Reason {
    /// Its name, as an orchestrator is told it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Reason::NotMapped => "NotMapped",
            Reason::Lost => "Lost",
            Reason::BeingOpenedAgain => "BeingOpenedAgain",
            Reason::ServerUnreachable => "ServerUnreachable",
            Reason::PathDown => "PathDown",
            Reason::FileSystemReadOnly => "FileSystemReadOnly",
        }
    }
}

impl Trouble {
    fn new(reason: Reason, inaccessible: bool, message: &str) -> Trouble {
        Trouble {
            reason,
            inaccessible,
            message: message.to_owned(),
        }
    }

    /// As the orchestrator is told it.
    pub(super) fn entry(&self) -> VolumeHealthEntry {
        let status = match self.inaccessible {
            true => Inaccessible,
            false => Degraded,
        };
        VolumeHealthEntry {
            status: status.into(),
            reason: self.reason.name().to_owned(),
            message: self.message.clone(),
        }
    }
}

/// Paths of the sessions that volumes are mapped by, asked for once each.
type Paths = BTreeMap<String, Vec<SessionPath>>;

impl Node {
    /// The health of all volumes that are staged on this node, in the order of their identifiers.
    ///
    /// # Errors
    /// `memlane` cannot be asked, or the table of mounts cannot be read.
    pub(crate) fn all_health(&self) -> Result<Vec<Health>, Status> {
        let mut paths = Paths::new();
        let all = self.all_present()?;
        all.iter()
            .map(|present| self.health_of(present, &mut paths))
            .collect()
    }

    /// The health of one volume.
    pub(super) fn one_health(&self, present: &Present) -> Result<Health, Status> {
        self.health_of(present, &mut Paths::new())
    }

    fn health_of(&self, present: &Present, paths: &mut Paths) -> Result<Health, Status> {
        let troubles = match &present.mapped {
            None => {
                let text = "no process shows the volume on this node; it is mapped again when a pod is started with it";
                vec![Trouble::new(Reason::NotMapped, true, text)]
            }
            Some(mapped) => {
                let mut found = of_mapping(mapped, self.paths_of(mapped, paths)?);
                if turned_read_only(mapped)? {
                    let text = "the file system met an error and can only be read; start the pod again to have it checked";
                    found.push(Trouble::new(Reason::FileSystemReadOnly, false, text));
                }
                found
            }
        };
        Ok(Health {
            volume: present.id.to_string(),
            in_sync: troubles.iter().all(|one| !one.inaccessible).into(),
            troubles,
            copies: 1,
            resync_left: 0,
        })
    }

    fn paths_of<'a>(
        &self,
        mapped: &Mapped,
        known: &'a mut Paths,
    ) -> Result<&'a [SessionPath], Status> {
        if !known.contains_key(&mapped.session) {
            known.insert(mapped.session.clone(), self.memlane.paths(mapped)?);
        }
        Ok(&known[&mapped.session])
    }
}

fn of_mapping(mapped: &Mapped, paths: &[SessionPath]) -> Vec<Trouble> {
    let mut found = Vec::new();
    if mapped.is_over() {
        found.push(Trouble::new(Reason::Lost, true, &mapped.state));
    } else if mapped.state != "ok" {
        found.push(Trouble::new(Reason::BeingOpenedAgain, true, &mapped.state));
    }
    let down: Vec<&SessionPath> = paths
        .iter()
        .filter(|one| one.state != "connected")
        .collect();
    let said = down.iter().map(|one| match &one.last_error {
        Some(error) => format!("{}: {error}", one.path),
        None => format!("{}: {}", one.path, one.state),
    });
    let said = said.collect::<Vec<_>>().join("; ");
    if !down.is_empty() {
        found.push(match down.len() == paths.len() {
            true => Trouble::new(Reason::ServerUnreachable, true, &said),
            false => Trouble::new(Reason::PathDown, false, &said),
        });
    }
    found
}

/// ext4 and XFS stop writing after an error.
fn turned_read_only(mapped: &Mapped) -> Result<bool, Status> {
    let device = mounts::device_number(Path::new(&mapped.shown_as));
    let Some(device) = device.filter(|_| !mapped.read_only) else {
        return Ok(false);
    };
    let mounts = mounts::of_device(device)?;
    Ok(mounts
        .iter()
        .any(|mount| mount.file_system_read_only && !mount.read_only))
}
