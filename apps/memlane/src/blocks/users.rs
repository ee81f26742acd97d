//! Who uses a device or a file system, as `/proc` tells: an error that says "in use" names them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

/// How many are named.
const NAMED: usize = 4;

/// Major and minor number of a block device, or of a file system without one.
pub(super) type Device = (u32, u32);

/// The number of the block device at `path`.
pub(super) fn device(path: &Path) -> Option<Device> {
    // A server that does not answer is not asked.
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    let is_device = FileType::from_raw_mode(found.stx_mode.into()) == FileType::BlockDevice;
    is_device.then_some((found.stx_rdev_major, found.stx_rdev_minor))
}

/// The places where a device is mounted, and the processes that have it or a file on it open: `mounted at /mnt, open in
/// process 7 (dd)`. Empty: none that this process may look at.
pub(super) fn of(device: Device) -> String {
    let processes = processes();
    let mut users = mounts(&processes, device);
    users.extend(openers(&processes, device));
    listed(&users)
}

/// The processes that have a file of a file system open: `open in process 7 (dd)`.
pub(super) fn open(device: Device) -> String {
    listed(&openers(&processes(), device))
}

fn listed(users: &[String]) -> String {
    let more = users.len().saturating_sub(NAMED);
    // Anybody may choose the name of a process or of a folder.
    let plain = |c: char| if c.is_control() { '?' } else { c };
    let mut said: String = users[..users.len() - more]
        .join(", ")
        .chars()
        .map(plain)
        .collect();
    if more > 0 {
        said += &format!(", and {more} more");
    }
    said
}

/// The folders of all processes in `/proc` but our own.
fn processes() -> Vec<PathBuf> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.bytes().all(|byte| byte.is_ascii_digit()) && name != own
    });
    numbers.map(|entry| entry.path()).collect()
}

/// A process's number and name.
fn described(process: &Path) -> String {
    let number = process.file_name().unwrap_or_default().to_string_lossy();
    let name = fs::read(process.join("comm")).unwrap_or_default();
    format!("{number} ({})", String::from_utf8_lossy(&name).trim_end())
}

/// Where it is mounted. Of the processes that share a mount namespace, the first is named, and none for our own.
fn mounts(processes: &[PathBuf], device: Device) -> Vec<String> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let own = Path::new("/proc/self");
    let mut namespaces = BTreeMap::new();
    for process in processes {
        if let Some(namespace) = namespace(process) {
            namespaces.entry(namespace).or_insert(process.as_path());
        }
    }
    if let Some(ours) = namespace(own) {
        namespaces.insert(ours, own);
    }
    let mut said = Vec::new();
    for process in namespaces.into_values() {
        let table = fs::read(process.join("mountinfo")).unwrap_or_default();
        let table = String::from_utf8_lossy(&table);
        let points = table.lines().filter_map(|line| point(line, device));
        said.extend(points.map(|point| match process == own {
            true => format!("mounted at {point}"),
            false => format!(
                "mounted at {point} in the mount namespace of process {}",
                described(process)
            ),
        }));
    }
    said
}

/// The place of a mount of `device`, from a line of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
fn point(line: &str, (major, minor): Device) -> Option<&str> {
    let mut fields = line.split(' ').skip(2);
    let same = fields.next()? == format!("{major}:{minor}");
    fields.nth(1).filter(|_| same)
}

fn openers(processes: &[PathBuf], device: Device) -> Vec<String> {
    let open = processes.iter().filter(|it| has_open(it, device));
    open.map(|process| format!("open in process {}", described(process)))
        .collect()
}

fn has_open(process: &Path, device: Device) -> bool {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten();
    files.flatten().any(|file| {
        let found = statx(CWD, file.path(), AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
        found.is_ok_and(|found| {
            let of_device = (found.stx_rdev_major, found.stx_rdev_minor);
            let kind = FileType::from_raw_mode(found.stx_mode.into());
            (kind == FileType::BlockDevice && of_device == device)
                || (found.stx_dev_major, found.stx_dev_minor) == device
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;
    use std::process::{Command, Stdio};

    #[test]
    fn a_mount_is_found_by_its_device() {
        let line = "36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(point(line, (98, 0)), Some("/mnt/a\\040b"));
        assert_eq!(point(line, (9, 80)), None);
        for line in ["", "36 35", "36 35 98:0", "36 35 98:0 /mnt1"] {
            assert_eq!(point(line, (98, 0)), None, "{line}");
        }
    }

    #[test]
    fn few_users_are_named_and_none_of_them_writes_to_the_terminal() {
        let users: Vec<String> = (0..6).map(|n| format!("user\x1b[{n}")).collect();
        assert_eq!(listed(&users[..2]), "user?[0, user?[1");
        assert!(listed(&users).ends_with("user?[3, and 2 more"));
        assert_eq!(listed(&[]), "");
    }

    #[test]
    fn a_process_that_has_a_file_open_is_named() {
        let path = std::env::temp_dir().join(format!("memlane-users-{}", std::process::id()));
        fs::write(&path, "").expect("written");
        let file = fs::File::open(&path).expect("opened");
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::from(file))
            .spawn()
            .expect("sleep");
        let device = fs::metadata(&path).expect("there").dev();
        let device = (rustix::fs::major(device), rustix::fs::minor(device));
        let process = PathBuf::from(format!("/proc/{}", child.id()));
        let (found, other) = (
            has_open(&process, device),
            has_open(&process, (0, u32::MAX)),
        );
        let said = described(&process);
        child.kill().expect("killed");
        child.wait().expect("ended");
        fs::remove_file(&path).expect("removed");
        assert!(found && !other);
        assert!(said.ends_with(" (sleep)"), "{said}");
    }
}
