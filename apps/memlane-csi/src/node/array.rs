//! Arrays of md: read from `/sys/block/md*`, changed by mdadm(8).

use std::fs;
use std::path::{Path, PathBuf};

use tonic::Status;

use super::mounts::device_number;
use crate::command::run;

/// Bytes of a sector, as the kernel counts.
const SECTOR: u64 = 512;
/// Bytes that one bit of the bitmap stands for: what is looked at again after a copy was away is a multiple of it.
const CHUNK: &str = "4M";

/// A mirror that the kernel knows.
#[derive(Clone, Debug)]
pub(super) struct Array {
    /// Its device.
    pub(super) device: PathBuf,
    /// It can be read and written.
    pub(super) runs: bool,
    pub(super) members: Vec<Member>,
    /// What the kernel still has to look at to make a member up to date, in bytes.
    pub(super) left: u64,
}

/// A device in a mirror.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Member {
    pub(super) path: PathBuf,
    /// Its number; `None`: the device is gone.
    pub(super) device: Option<u64>,
    pub(super) state: State,
}

/// How far a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Up to date.
    InSync,
    /// Being made up to date, or to be.
    Behind,
    /// Given up after an error.
    Faulty,
}

impl Array {
    /// Whether there is any array on this machine.
    pub(super) fn is_any() -> bool {
        let folders = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        folders
            .into_iter()
            .any(|folder| folder.path().join("md").is_dir())
    }

    /// The mirror with this identity, or the one that has one of these devices.
    pub(super) fn find(uuid: &[u8; 16], devices: &[u64]) -> Option<Array> {
        let folders = fs::read_dir("/sys/block").ok()?.flatten();
        let mut all = folders.filter_map(|folder| Array::read(&folder.path(), uuid));
        all.find(|(array, is_it)| {
            let has = |device: &u64| array.members.iter().any(|one| one.device == Some(*device));
            *is_it || devices.iter().any(has)
        })
        .map(|(array, _)| array)
    }

    /// Reads what `/sys` says of an array, and whether it has this identity.
    fn read(folder: &Path, uuid: &[u8; 16]) -> Option<(Array, bool)> {
        let name = folder.file_name()?.to_str()?;
        let md = folder.join("md");
        let said = |file: &str| fs::read_to_string(md.join(file)).unwrap_or_default();
        let state = said("array_state");
        let members = fs::read_dir(&md).ok()?.flatten();
        let members = members.filter_map(|entry| Member::read(&entry.path()));
        let array = Array {
            device: Path::new("/dev").join(name),
            runs: !["clear", "inactive", ""].contains(&state.trim()),
            members: members.collect(),
            left: left(&said("sync_completed")),
        };
        // Older kernels do not tell it.
        let is_it = said("uuid").trim().replace('-', "") == hexadecimal(uuid);
        Some((array, is_it))
    }

    pub(super) fn member(&self, device: u64) -> Option<&Member> {
        self.members.iter().find(|one| one.device == Some(device))
    }

    /// Makes a new mirror of two blank devices. It is stopped, and is to be started as any other.
    pub(super) fn create(uuid: &[u8; 16], devices: &[&Path]) -> Result<(), Status> {
        let place = name(uuid);
        let offset = format!("--data-offset={}K", crate::size::MIRROR >> 10);
        let identity = format!("--uuid={}", text(uuid));
        let chunk = format!("--bitmap-chunk={CHUNK}");
        let words = [
            "--create",
            &place,
            "--run",
            "--level=1",
            "--raid-devices=2",
            "--metadata=1.2",
            "--bitmap=internal",
            &chunk,
            &offset,
            &identity,
            "--homehost=any",
            "--name=memlane",
            "--assume-clean",
            "--failfast",
        ];
        mdadm(&words, devices)?;
        mdadm(&["--stop"], &[Path::new(&place)])
    }

    /// Starts the mirror of these devices, of all or none. The caller knows that no other device has something newer.
    pub(super) fn start(uuid: &[u8; 16], devices: &[&Path]) -> Result<(), Status> {
        let identity = format!("--uuid={}", text(uuid));
        // Of two devices, mdadm starts no fewer than were in the mirror at the end, unless it is told to run what there is.
        let how = (devices.len() == 1).then_some("--run");
        // Without a log of bad blocks: a device that cannot be written is given up as a whole, and made up to date later.
        let place = name(uuid);
        let mut words = vec!["--assemble", &place, "--config=none", "--update=no-bbl"];
        words.push(&identity);
        words.extend(how);
        mdadm(&words, devices)
    }

    pub(super) fn stop(&self) -> Result<(), Status> {
        mdadm(&["--stop"], &[&self.device])
    }

    /// Gives a member up. The other one is told so before anything that only it has counts as written.
    pub(super) fn fail(&self, member: &Path) -> Result<(), Status> {
        self.manage("--fail", member)
    }

    pub(super) fn remove(&self, member: &Path) -> Result<(), Status> {
        self.manage("--remove", member)
    }

    /// Gives a member up, and takes it out.
    pub(super) fn expel(&self, member: &Member) -> Result<(), Status> {
        if member.state != State::Faulty {
            self.fail(&member.path)?;
        }
        self.remove(&member.path)
    }

    /// Takes a device back that was a member. Only what has changed since is copied.
    pub(super) fn add_again(&self, member: &Path) -> Result<(), Status> {
        self.manage("--re-add", member)
    }

    /// Takes a blank device. Everything is copied.
    pub(super) fn add(&self, member: &Path) -> Result<(), Status> {
        let add = Path::new("--add");
        mdadm(&["--manage", "--failfast"], &[&self.device, add, member])
    }

    /// Makes the mirror as large as its members, which are zero there.
    pub(super) fn grow(&self) -> Result<(), Status> {
        let words = ["--grow", "--size=max", "--assume-clean"];
        mdadm(&words, &[&self.device])
    }

    /// Makes a device forget that it was a member.
    pub(super) fn forget(member: &Path) -> Result<(), Status> {
        mdadm(&["--zero-superblock"], &[member])
    }

    fn manage(&self, what: &str, member: &Path) -> Result<(), Status> {
        let what = Path::new(what);
        mdadm(&["--manage"], &[&self.device, what, member])
    }
}

impl Member {
    /// Reads `md/dev-NAME`.
    fn read(folder: &Path) -> Option<Member> {
        let name = folder.file_name()?.to_str()?.strip_prefix("dev-")?;
        let said = fs::read_to_string(folder.join("state")).unwrap_or_default();
        let is = |word: &str| said.trim().split(',').any(|one| one == word);
        let state = match (is("faulty"), is("in_sync")) {
            (true, _) => State::Faulty,
            (_, true) => State::InSync,
            _ => State::Behind,
        };
        let path = Path::new("/dev").join(name.replace('!', "/"));
        Some(Member {
            device: device_number(&path),
            path,
            state,
        })
    }
}

/// Reads `sync_completed`: `12288 / 155648`, or `none`.
fn left(said: &str) -> u64 {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let parts = said.split_once('/');
    let parts = parts.and_then(|(done, all)| number(all)?.checked_sub(number(done)?));
    parts.map_or(0, |sectors| sectors.saturating_mul(SECTOR))
}

/// What the mirror's device is called.
fn name(uuid: &[u8; 16]) -> String {
    format!("/dev/md/memlane-{}", &hexadecimal(uuid)[..12])
}

fn hexadecimal(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As mdadm takes it.
fn text(uuid: &[u8; 16]) -> String {
    let all = hexadecimal(uuid);
    [&all[..8], &all[8..16], &all[16..24], &all[24..]].join(":")
}

fn mdadm(words: &[&str], devices: &[&Path]) -> Result<(), Status> {
    let mut all: Vec<&Path> = words.iter().map(Path::new).collect();
    all.extend(devices);
    run(Path::new("mdadm"), &all)
        .map(drop)
        .map_err(Status::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_resync_is_read() {
        assert_eq!(left("none\n"), 0);
        assert_eq!(left("12288 / 155648\n"), 143_360 * 512);
        for strange in ["", "1 / x", "3 / 2", "delayed"] {
            assert_eq!(left(strange), 0, "{strange}");
        }
    }

    #[test]
    fn an_identity_is_written_as_mdadm_reads_it() {
        let uuid = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        assert_eq!(text(&uuid), "01020304:05060708:090a0b0c:0d0e0f10");
        assert_eq!(name(&uuid), "/dev/md/memlane-010203040506");
    }
}
