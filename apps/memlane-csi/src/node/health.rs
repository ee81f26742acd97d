//! What is wrong with the volumes on this node.

use tonic::Status;

use super::Node;
use super::array::State;
use super::mapping::{Mapped, SessionPath};
use super::mounts;
use super::present::{Copy, Present};
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
    /// A copy of a mirrored volume is not in the mirror.
    CopyMissing,
    /// A copy of a mirrored volume is being made up to date.
    CopyBehind,
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
            Reason::CopyMissing => "CopyMissing",
            Reason::CopyBehind => "CopyBehind",
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

impl Node {
    /// The health of all volumes that are staged on this node, in the order of their identifiers.
    ///
    /// # Errors
    /// `memlane` cannot be asked, or the table of mounts cannot be read.
    pub(crate) fn all_health(&self) -> Result<Vec<Health>, Status> {
        let all = self.all_present()?;
        all.iter().map(|present| self.health_of(present)).collect()
    }

    /// The health of one volume.
    pub(super) fn health_of(&self, present: &Present) -> Result<Health, Status> {
        let copies: Vec<Vec<Trouble>> = present.copies.iter().map(of_copy).collect();
        let is_well = |troubles: &[Trouble]| !troubles.iter().any(|one| one.inaccessible);
        let (mut troubles, in_sync) = match present.is_mirrored() {
            false => {
                let all = copies.concat();
                let in_sync = u32::from(is_well(&all));
                (all, in_sync)
            }
            true => {
                let all = present.copies.iter().zip(copies);
                let all = all.map(|(copy, own)| (copy, self.in_mirror(present, copy), own));
                of_mirror(all.collect())
            }
        };
        if turned_read_only(present)? {
            let text = "the file system met an error and can only be read; start the pod again to have it checked";
            troubles.push(Trouble::new(Reason::FileSystemReadOnly, false, text));
        }
        Ok(Health {
            volume: present.id.to_string(),
            troubles,
            copies: u32::try_from(present.copies.len()).unwrap_or(0),
            in_sync,
            resync_left: present.running().map_or(0, |array| array.left),
        })
    }

    /// What the mirror has to say of a copy; `None`: it is up to date.
    fn in_mirror(&self, present: &Present, copy: &Copy) -> Option<Trouble> {
        let array = present.running();
        let member = array.and_then(|array| array.member(copy.device()?));
        match member.map(|member| member.state) {
            Some(State::InSync) => None,
            Some(State::Behind) => {
                let left = array.map_or(0, |array| array.left);
                let text = format!("it is being made up to date; {left} bytes are left to look at");
                Some(Trouble::new(Reason::CopyBehind, false, &text))
            }
            _ => {
                let why = self.notes.why(&copy.id);
                let text = why.unwrap_or_else(|| {
                    "it was left behind, and is made up to date when its store is back".to_owned()
                });
                Some(Trouble::new(Reason::CopyMissing, false, &text))
            }
        }
    }
}

/// What is wrong with a copy, as far as its mapping knows.
fn of_copy(copy: &Copy) -> Vec<Trouble> {
    match &copy.mapped {
        None => {
            let text = "no process shows the volume on this node; it is mapped again when a pod is started with it";
            vec![Trouble::new(Reason::NotMapped, true, text)]
        }
        Some(mapped) => of_mapping(mapped),
    }
}

fn of_mapping(mapped: &Mapped) -> Vec<Trouble> {
    let paths = &mapped.paths;
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

/// What is wrong with a mirrored volume, of what is wrong with each copy: what the mirror says of it, and what its mapping
/// says. Also how many copies are up to date. As long as one is, pods are served.
fn of_mirror(copies: Vec<(&Copy, Option<Trouble>, Vec<Trouble>)>) -> (Vec<Trouble>, u32) {
    let is_good = |behind: &Option<Trouble>, own: &[Trouble]| {
        behind.is_none() && !own.iter().any(|one| one.inaccessible)
    };
    let good = copies
        .iter()
        .filter(|(_, behind, own)| is_good(behind, own));
    let in_sync = u32::try_from(good.count()).unwrap_or(0);
    let mut found: Vec<Trouble> = Vec::new();
    for (copy, behind, own) in copies {
        // The mirror has more to say of a copy that is not mapped.
        let own = own.into_iter();
        let own = own.filter(|one| in_sync == 0 || one.reason != Reason::NotMapped);
        for trouble in own.chain(behind) {
            let inaccessible = in_sync == 0 && trouble.inaccessible;
            let message = format!("copy in store {}: {}", copy.id.store(), trouble.message);
            // The orchestrator wants each reason once.
            match found
                .iter_mut()
                .find(|one| one.reason == trouble.reason && one.inaccessible == inaccessible)
            {
                Some(known) => known.message = format!("{}; {message}", known.message),
                None => found.push(Trouble::new(trouble.reason, inaccessible, &message)),
            }
        }
    }
    (found, in_sync)
}

/// ext4 and XFS stop writing after an error.
fn turned_read_only(present: &Present) -> Result<bool, Status> {
    let device = present.device().and_then(mounts::device_number);
    let Some(device) = device.filter(|_| !present.is_read_only()) else {
        return Ok(false);
    };
    let mounts = mounts::of_device(device)?;
    Ok(mounts
        .iter()
        .any(|mount| mount.file_system_read_only && !mount.read_only))
}
