//! What a volume is to be used as: a file system or a block device, by whom, and whether for writing.

use tonic::Status;

use crate::proto::VolumeCapability;
use crate::proto::volume_capability::AccessType;
use crate::proto::volume_capability::access_mode::Mode;
use crate::text::{is_plain, optional};

/// Longest list of mount options, in bytes.
const FLAGS_LIMIT: usize = 4096;

/// A file system that volumes can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileSystem {
    /// ext4, the default.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// Its name, as mount(8) and blkid(8) say it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
        }
    }
}

/// How a volume is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shown {
    /// As a block device.
    Block,
    /// As a mounted file system.
    Mounted {
        /// Which.
        file_system: FileSystem,
        /// Options of the mount.
        flags: Vec<String>,
    },
}

/// Who may use a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Pods of one node.
    OneNode,
    /// One pod.
    OnePod,
    /// Pods of several nodes, all of them readers.
    Readers,
}

/// A checked capability.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capability {
    /// As what.
    pub shown: Shown,
    /// By whom.
    pub sharing: Sharing,
    /// Only for reading.
    pub read_only: bool,
}

impl Capability {
    /// Checks a capability that must be there.
    ///
    /// # Errors
    /// `InvalidArgument` says what is missing or not offered.
    pub fn read(capability: Option<&VolumeCapability>) -> Result<Capability, Status> {
        let missing = |what| Status::invalid_argument(format!("{what} is missing"));
        let capability = capability.ok_or_else(|| missing("volume_capability"))?;
        let mode = capability.access_mode.as_ref();
        let mode = mode.ok_or_else(|| missing("access_mode"))?.mode;
        let (sharing, read_only) = sharing(mode)?;
        let shown = match &capability.access_type {
            None => return Err(missing("access_type")),
            Some(AccessType::Block(_)) => Shown::Block,
            Some(AccessType::Mount(mount)) => {
                let group = &mount.volume_mount_group;
                if !group.is_empty() {
                    let why = "volume_mount_group is not offered";
                    return Err(Status::invalid_argument(why));
                }
                Shown::Mounted {
                    file_system: file_system(&mount.fs_type)?,
                    flags: flags(&mount.mount_flags)?,
                }
            }
        };
        Ok(Capability {
            shown,
            sharing,
            read_only,
        })
    }

    /// Checks a list of capabilities, all of which one volume must have.
    ///
    /// # Errors
    /// `InvalidArgument`: the list is empty, or one of them is not offered.
    pub fn read_all(all: &[VolumeCapability]) -> Result<Vec<Capability>, Status> {
        if all.is_empty() {
            let why = "volume_capabilities are missing";
            return Err(Status::invalid_argument(why));
        }
        all.iter().map(|one| Capability::read(Some(one))).collect()
    }
}

fn sharing(mode: i32) -> Result<(Sharing, bool), Status> {
    let refuse = |what: &str| Err(Status::invalid_argument(format!("access mode {what}")));
    match Mode::try_from(mode) {
        Ok(Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter) => Ok((Sharing::OneNode, false)),
        Ok(Mode::SingleNodeSingleWriter) => Ok((Sharing::OnePod, false)),
        Ok(Mode::SingleNodeReaderOnly) => Ok((Sharing::OneNode, true)),
        Ok(Mode::MultiNodeReaderOnly) => Ok((Sharing::Readers, true)),
        Ok(Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter) => {
            refuse("is not offered: a volume has one node that writes, or only readers")
        }
        Ok(Mode::Unknown) => refuse("is missing"),
        Err(_) => refuse("is unknown"),
    }
}

fn file_system(name: &str) -> Result<FileSystem, Status> {
    match name {
        "" | "ext4" => Ok(FileSystem::Ext4),
        "xfs" => Ok(FileSystem::Xfs),
        _ => {
            optional("fs_type", name, 128)?;
            let why = format!("fs_type {name:?} is not offered: ext4 and xfs are");
            Err(Status::invalid_argument(why))
        }
    }
}

/// Mount options become one word of a command, so that none can be anything else.
fn flags(flags: &[String]) -> Result<Vec<String>, Status> {
    let length: usize = flags.iter().map(String::len).sum();
    if length > FLAGS_LIMIT {
        let why = format!("mount_flags have more than {FLAGS_LIMIT} bytes");
        return Err(Status::invalid_argument(why));
    }
    for flag in flags {
        let fits = is_plain(flag, "-_=.,:/@%+") && flag.starts_with(|c: char| c.is_alphabetic());
        if !fits {
            let why = format!("mount flag {flag:?} is none of mount(8)");
            return Err(Status::invalid_argument(why));
        }
    }
    Ok(flags.to_vec())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::proto::volume_capability::{AccessMode, BlockVolume, MountVolume};
    use proptest::prelude::*;
    use tonic::Code;

    pub(crate) fn mounted(mode: i32, fs_type: &str, flags: &[&str]) -> VolumeCapability {
        VolumeCapability {
            access_mode: Some(AccessMode { mode }),
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: fs_type.into(),
                mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
                volume_mount_group: String::new(),
            })),
        }
    }

    #[test]
    fn a_capability_with_a_part_missing_is_refused_and_the_part_is_named() {
        let whole = mounted(1, "", &[]);
        let without_mode = VolumeCapability {
            access_mode: None,
            ..whole.clone()
        };
        let without_type = VolumeCapability {
            access_type: None,
            ..whole.clone()
        };
        for (wrong, name) in [
            (None, "volume_capability"),
            (Some(without_mode), "access_mode"),
            (Some(without_type), "access_type"),
            (Some(mounted(0, "", &[])), "access mode"),
            (Some(mounted(99, "", &[])), "unknown"),
            (Some(mounted(5, "", &[])), "not offered"),
            (Some(mounted(1, "vfat", &[])), "vfat"),
            (Some(mounted(1, "", &["-o"])), "-o"),
            (Some(mounted(1, "", &["ro;reboot"])), "reboot"),
        ] {
            let error = Capability::read(wrong.as_ref()).expect_err(name);
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(error.message().contains(name), "{error}");
        }
        assert!(Capability::read_all(&[]).is_err());
        assert!(Capability::read(Some(&whole)).is_ok());
    }

    proptest! {
        #[test]
        fn only_modes_with_one_writer_or_none_are_accepted(mode in 0..12i32) {
            let capability = VolumeCapability {
                access_mode: Some(AccessMode { mode }),
                access_type: Some(AccessType::Block(BlockVolume {})),
            };
            let accepted = matches!(mode, 1..=3 | 6 | 7);
            prop_assert_eq!(Capability::read(Some(&capability)).is_ok(), accepted);
        }

        #[test]
        fn a_mount_flag_never_is_an_option_of_the_command(flag in "\\PC{0,20}") {
            if Capability::read(Some(&mounted(1, "", &[&flag]))).is_ok() {
                prop_assert!(flag.starts_with(|c: char| c.is_ascii_alphabetic()));
                prop_assert!(!flag.contains(char::is_whitespace));
            }
        }
    }
}
