//! What the calls of the service *Node* do.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tonic::Status;

use super::format::{ensure, grow, size, wait_for_size};
use super::health::Trouble;
use super::mapping::{Mapped, Wanted};
use super::present::Present;
use super::{Node, Use, lane, mirror, mounts};
use crate::busy::Working;
use crate::capability::{Capability, FileSystem, Sharing, Shown};
use crate::fault::step;
use crate::proto::volume_usage::Unit;
use crate::proto::{
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeHealth,
    VolumeUsage,
};
use crate::size::Range;
use crate::text::path;
use crate::volume_id::{Kind, VolumeId};

impl Node {
    /// Begins a call for a volume. If its mirror is looked after at this moment, that is waited for.
    fn begin(&self, named: &str) -> Result<[Working<'_>; 2], Status> {
        let call = self.busy.begin(named)?;
        let mirror = self.busy.wait(&mirror::mended(named), mirror::PATIENCE)?;
        Ok([call, mirror])
    }

    /// Makes a volume usable on this node.
    pub(super) fn stage(&self, request: &NodeStageVolumeRequest) -> Result<(), Status> {
        let id = volume_id(&request.volume_id)?;
        let staging = path("staging_target_path", &request.staging_target_path)?;
        let capability = Capability::read(request.volume_capability.as_ref())?;
        let id = id.ok_or_else(|| no_such(&request.volume_id))?;
        let wanted = Wanted::read(&id, &request.publish_context, &request.volume_context)?;
        let _working = self.begin(&request.volume_id)?;
        self.bring(&Use {
            id,
            wanted,
            capability,
            staging,
        })?;
        Ok(())
    }

    /// Maps the volume and mounts it at its staging place, as far as that is not done. Returns the device.
    fn bring(&self, used: &Use) -> Result<PathBuf, Status> {
        let device = match used.id.beside() {
            None => self.bring_mapping(used)?,
            Some(_) => self.bring_mirror(used)?,
        };
        step("stage: mapped");
        let Shown::Mounted { file_system, flags } = &used.capability.shown else {
            return match mounts::at(&used.staging)? {
                Some(mount) if is_ours(&mount, &device) => Err(Status::failed_precondition(
                    "the volume is staged as a file system, and a block device is wanted",
                )),
                _ => Ok(device),
            };
        };
        if self.is_mounted(&used.staging, &device)? {
            return Ok(device);
        }
        ensure(&device, *file_system, used.wanted.read_only)?;
        step("stage: formatted");
        let mut options = vec![if used.wanted.read_only { "ro" } else { "rw" }];
        if *file_system == FileSystem::Xfs {
            // A copy has its source's identity, and both may be mounted on one node.
            options.push("nouuid");
        }
        options.extend(flags.iter().map(String::as_str));
        mounts::mount(
            file_system.name(),
            &options.join(","),
            &device,
            &used.staging,
        )?;
        step("stage: mounted");
        if !used.wanted.read_only && *file_system == FileSystem::Xfs {
            // A copy may be larger than its source, and XFS grows only when it is mounted.
            grow(&device, &used.staging, file_system.name())?;
        }
        Ok(device)
    }

    /// Maps a volume that is not mirrored.
    fn bring_mapping(&self, used: &Use) -> Result<PathBuf, Status> {
        match self.memlane.find_tried(&self.id, &used.id)? {
            Some(mapped) if mapped.is_over() => {
                // It was taken from this node, and is published to it again. The number of its device will be another's.
                mounts::hide_node(&mapped.shown_as)?;
                self.memlane.unmap(&mapped, true)?;
                self.memlane.map(&self.id, &used.id, &used.wanted)
            }
            Some(mapped) => fits(&mapped, used),
            None => self.memlane.map(&self.id, &used.id, &used.wanted),
        }
    }

    /// Whether this device is mounted there. What is left there by a device that died is removed.
    fn is_mounted(&self, place: &Path, device: &Path) -> Result<bool, Status> {
        let Some(mount) = mounts::at(place)? else {
            return Ok(false);
        };
        if is_ours(&mount, device) {
            return Ok(true);
        }
        match self.remove_dead(place)? {
            true => Ok(false),
            false => Err(Status::failed_precondition(format!(
                "{} is mounted at {}",
                mount.source,
                place.display()
            ))),
        }
    }

    /// Removes what is mounted there if it is of a device that died. `false`: it is not, or there is nothing.
    fn remove_dead(&self, place: &Path) -> Result<bool, Status> {
        match mounts::at(place)? {
            Some(mount) if self.is_dead(&mount)? => mounts::unmount_dead(place).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Whether a mount is of a device that memlane showed, and shows no more.
    fn is_dead(&self, mount: &mounts::Mount) -> Result<bool, Status> {
        let shown = match mount.kind.as_str() {
            // A bind mount of a device's node.
            "devtmpfs" => mounts::device_number(&mount.point),
            _ => Some(mount.device),
        };
        let Some(shown) = shown else {
            return Ok(false);
        };
        // A mirror shows what its members show.
        let below = mounts::members(shown);
        let below = if below.is_empty() { vec![shown] } else { below };
        if !below.iter().all(|one| mounts::is_of_memlane(*one)) {
            return Ok(false);
        }
        let mut alive = self.memlane.shown()?.into_iter();
        Ok(!alive
            .any(|one| mounts::device_number(&one).is_some_and(|device| below.contains(&device))))
    }

    /// Ends what `stage` did.
    pub(super) fn unstage(&self, request: &NodeUnstageVolumeRequest) -> Result<(), Status> {
        let id = volume_id(&request.volume_id)?;
        let staging = path("staging_target_path", &request.staging_target_path)?;
        let Some(id) = id else { return Ok(()) };
        let _working = self.begin(&request.volume_id)?;
        let present = self.present(&id)?;
        if let Some(mount) = mounts::at(&staging)? {
            self.may_unmount(&mount, present.device())?;
            mounts::unmount(&staging)?;
        }
        step("unstage: unmounted");
        if present.is_mirrored() {
            self.end_mirror(&present)?;
        }
        match present.copies.first().and_then(|one| one.mapped.as_ref()) {
            Some(mapped) if !present.is_mirrored() => self.memlane.unmap(mapped, false)?,
            // If its process was killed, a dead mount may be left of it.
            _ => self.memlane.prune()?,
        }
        self.seen.forget(&id);
        Ok(())
    }

    /// A call that names a place where something else is mounted removes nothing.
    fn may_unmount(&self, mount: &mounts::Mount, device: Option<&Path>) -> Result<(), Status> {
        let is_its = device.is_some_and(|device| is_ours(mount, device));
        match is_its || self.is_dead(mount)? {
            true => Ok(()),
            false => Err(Status::failed_precondition(format!(
                "{}, which is mounted at {}, is not this volume",
                mount.source,
                mount.point.display()
            ))),
        }
    }

    /// Shows a volume to a pod.
    pub(super) fn publish(&self, request: &NodePublishVolumeRequest) -> Result<(), Status> {
        if lane::is_lane(&request.volume_context) {
            return self.publish_lane(request);
        }
        let id = volume_id(&request.volume_id)?;
        let target = path("target_path", &request.target_path)?;
        let capability = Capability::read(request.volume_capability.as_ref())?;
        if request.staging_target_path.is_empty() {
            let why = "staging_target_path is missing";
            return Err(Status::failed_precondition(why));
        }
        let staging = path("staging_target_path", &request.staging_target_path)?;
        let id = id.ok_or_else(|| no_such(&request.volume_id))?;
        let wanted = Wanted::read(&id, &request.publish_context, &request.volume_context)?;
        let _working = self.begin(&request.volume_id)?;
        let read_only = request.readonly || capability.read_only || wanted.read_only;
        let used = Use {
            id,
            wanted,
            capability,
            staging,
        };
        // Before the volume is mapped: the number of a dead device may then be another's.
        self.remove_dead(&target)?;
        let device = self.bring(&used)?;
        only_pod(&used, &device, &target)?;
        self.show(&used, &device, &target, read_only)
    }

    fn show(
        &self,
        used: &Use,
        device: &Path,
        target: &Path,
        read_only: bool,
    ) -> Result<(), Status> {
        if !self.is_mounted(target, device)? {
            let from = match used.capability.shown {
                Shown::Block => make_file(target).map(|()| device),
                Shown::Mounted { .. } => make_folder(target).map(|()| used.staging.as_path()),
            };
            mounts::bind(from?, target)?;
            step("publish: mounted");
        }
        let mount = mounts::at(target)?;
        if mount.is_some_and(|mount| mount.read_only != read_only) {
            mounts::set_read_only(target, read_only)?;
        }
        Ok(())
    }

    fn publish_lane(&self, request: &NodePublishVolumeRequest) -> Result<(), Status> {
        crate::text::required("volume_id", &request.volume_id, 256)?;
        let target = path("target_path", &request.target_path)?;
        let capability = Capability::read(request.volume_capability.as_ref())?;
        if capability.shown == Shown::Block {
            let why = "a lane volume is a folder, not a block device";
            return Err(Status::invalid_argument(why));
        }
        let _working = self.begin(&request.volume_id)?;
        self.lanes.publish(&target, &request.volume_context)
    }

    /// Takes a volume from a pod, also a lane volume.
    pub(super) fn unpublish(&self, request: &NodeUnpublishVolumeRequest) -> Result<(), Status> {
        // Names of lane volumes are the kubelet's.
        crate::text::required("volume_id", &request.volume_id, 256)?;
        let target = path("target_path", &request.target_path)?;
        let _working = self.begin(&request.volume_id)?;
        let mount = mounts::at(&target)?;
        let is_lane = mount
            .as_ref()
            .is_some_and(|mount| mount.source == lane::SOURCE);
        if let Some(mount) = mount.filter(|_| !is_lane) {
            let id = volume_id(&request.volume_id)?;
            let id = id.ok_or_else(|| no_such(&request.volume_id))?;
            let present = self.present(&id)?;
            self.may_unmount(&mount, present.device())?;
        }
        mounts::unmount(&target)?;
        step("unpublish: unmounted");
        remove_target(&target)?;
        if is_lane {
            self.lanes.tidy();
        }
        Ok(())
    }

    /// How full a volume is.
    pub(super) fn stats(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Result<Vec<VolumeUsage>, Status> {
        let id = volume_id(&request.volume_id)?;
        crate::text::required("volume_path", &request.volume_path, 4096)?;
        // Of a volume whose server is away, one call waits, not one a minute.
        let _working = self
            .busy
            .begin(&format!("the use of {}", request.volume_id))?;
        let (mount, present) = self.at(id.as_ref(), &request.volume_id, &request.volume_path)?;
        match (mount.kind.as_str(), present.device()) {
            ("devtmpfs", Some(device)) => Ok(vec![VolumeUsage {
                total: signed(size(device)?),
                unit: Unit::Bytes.into(),
                ..VolumeUsage::default()
            }]),
            _ => usage(&mount.point),
        }
    }

    /// The mount at a place, which must be of this volume.
    fn at(
        &self,
        id: Option<&VolumeId>,
        named: &str,
        place: &str,
    ) -> Result<(mounts::Mount, Present), Status> {
        let id = id.ok_or_else(|| no_such(named))?;
        let present = self.present(id)?;
        let device = present.device().ok_or_else(|| no_such(named))?;
        let mount = mounts::at(Path::new(place))?;
        match mount.filter(|mount| is_ours(mount, device)) {
            Some(mount) => Ok((mount, present)),
            None => Err(Status::not_found(format!(
                "volume {id} is not mounted at {place:?}"
            ))),
        }
    }

    /// Makes the file system of a volume that became larger as large as the volume. Returns the size of the device.
    pub(super) fn expand(&self, request: &NodeExpandVolumeRequest) -> Result<u64, Status> {
        let id = volume_id(&request.volume_id)?;
        crate::text::required("volume_path", &request.volume_path, 4096)?;
        let _working = self.begin(&request.volume_id)?;
        let (mount, present) = self.at(id.as_ref(), &request.volume_id, &request.volume_path)?;
        let least = match &request.capacity_range {
            Some(range) if range.required_bytes > 0 => Range::read(Some(range))?.chosen,
            _ => 0,
        };
        let device = present.device();
        let device = device.ok_or_else(|| no_such(&request.volume_id))?;
        let size = match present.is_mirrored() {
            true => self.grow_mirror(&present, least)?,
            false => wait_for_size(device, least)?,
        };
        if mount.kind != "devtmpfs" {
            grow(device, &mount.point, &mount.kind)?;
        }
        Ok(size)
    }

    /// What is wrong with a volume here.
    pub(super) fn health(&self, named: &str) -> Result<VolumeHealth, Status> {
        let id = volume_id(named)?;
        let id = id.ok_or_else(|| no_such(named))?;
        let health = self.health_of(&self.present(&id)?)?;
        Ok(VolumeHealth {
            volume_id: named.to_owned(),
            health_statuses: health.troubles.iter().map(Trouble::entry).collect(),
        })
    }
}

/// Reads the identifier of a volume. `None`: nothing has it.
fn volume_id(text: &str) -> Result<Option<VolumeId>, Status> {
    let id = VolumeId::parse(Kind::Volume, text)?;
    Ok(id.filter(|id| *id == id.whole()))
}

fn no_such(named: &str) -> Status {
    Status::not_found(format!("there is no volume {named:?} on this node"))
}

/// Whether a mount shows this device.
fn is_ours(mount: &mounts::Mount, device: &Path) -> bool {
    mounts::device_number(device).is_some_and(|device| mounts::shows(mount, device))
}

/// A volume that is mapped for reading does not become one for writing.
fn fits(mapped: &Mapped, used: &Use) -> Result<PathBuf, Status> {
    match mapped.read_only == used.wanted.read_only {
        true => Ok(mapped.shown_as.clone()),
        false => Err(Status::failed_precondition(format!(
            "volume {} is mapped here with another access: unstage it first",
            used.id
        ))),
    }
}

/// A volume for one pod has no second place.
fn only_pod(used: &Use, device: &Path, target: &Path) -> Result<(), Status> {
    let device = mounts::device_number(device);
    let Some(device) = device.filter(|_| used.capability.sharing == Sharing::OnePod) else {
        return Ok(());
    };
    let others = mounts::of_device(device)?;
    let mut others = others
        .iter()
        .filter(|one| one.point != target && one.point != used.staging);
    match others.next() {
        Some(other) => Err(Status::failed_precondition(format!(
            "volume {} is for one pod, and is published at {}",
            used.id,
            other.point.display()
        ))),
        None => Ok(()),
    }
}

fn usage(point: &Path) -> Result<Vec<VolumeUsage>, Status> {
    let stat = rustix::fs::statvfs(point)
        .map_err(|error| Status::internal(format!("{}: {error}", point.display())))?;
    let bytes = |blocks: u64| signed(blocks.saturating_mul(stat.f_frsize));
    Ok(vec![
        VolumeUsage {
            available: bytes(stat.f_bavail),
            total: bytes(stat.f_blocks),
            used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
            unit: Unit::Bytes.into(),
        },
        VolumeUsage {
            available: signed(stat.f_favail),
            total: signed(stat.f_files),
            used: signed(stat.f_files.saturating_sub(stat.f_ffree)),
            unit: Unit::Inodes.into(),
        },
    ])
}

pub(super) fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn make_folder(folder: &Path) -> Result<(), Status> {
    fs::create_dir_all(folder).map_err(|error| failed("making", folder, &error))
}

/// A device's node is shown at the place of a file.
fn make_file(file: &Path) -> Result<(), Status> {
    match File::options().append(true).create(true).open(file) {
        Ok(_) => Ok(()),
        Err(error) => Err(failed("making", file, &error)),
    }
}

fn remove_target(target: &Path) -> Result<(), Status> {
    let removed = match fs::symlink_metadata(target) {
        Ok(file) if file.is_dir() => fs::remove_dir(target),
        Ok(_) => fs::remove_file(target),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("removing", target, &error))
        }
        _ => Ok(()),
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Status {
    Status::internal(format!("{what} {}: {error}", path.display()))
}
