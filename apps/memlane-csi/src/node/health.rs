//! What is wrong with a volume on this node.

use std::path::Path;

use tonic::Status;

use super::mapping::{Mapped, Memlane, SessionPath};
use super::mounts;
use crate::proto::VolumeHealthErrorType::{self, Degraded, Inaccessible};
use crate::proto::volume_health::VolumeHealthEntry;

/// Everything that is wrong; nothing, if all is well.
pub(super) fn of(
    memlane: &Memlane,
    mapped: Option<&Mapped>,
) -> Result<Vec<VolumeHealthEntry>, Status> {
    let Some(mapped) = mapped else {
        let text = "no process shows the volume on this node; it is mapped again when a pod is started with it";
        return Ok(vec![entry(Inaccessible, "NotMapped", text)]);
    };
    let mut found = of_mapping(mapped, &memlane.paths(mapped)?);
    if turned_read_only(mapped)? {
        let text = "the file system met an error and can only be read; start the pod again to have it checked";
        found.push(entry(Degraded, "FileSystemReadOnly", text));
    }
    Ok(found)
}

fn of_mapping(mapped: &Mapped, paths: &[SessionPath]) -> Vec<VolumeHealthEntry> {
    let mut found = Vec::new();
    if mapped.is_over() {
        found.push(entry(Inaccessible, "Lost", &mapped.state));
    } else if mapped.state != "ok" {
        found.push(entry(Inaccessible, "BeingOpenedAgain", &mapped.state));
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
            true => entry(Inaccessible, "ServerUnreachable", &said),
            false => entry(Degraded, "PathDown", &said),
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

fn entry(status: VolumeHealthErrorType, reason: &str, message: &str) -> VolumeHealthEntry {
    VolumeHealthEntry {
        status: status.into(),
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}
