//! The table of mounts, and how mounts come and go.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use tonic::Status;

use crate::command::run;

/// A mount, as `/proc/self/mountinfo` tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mount {
    /// The file system's device, as `stat` says it of its files.
    pub(super) device: u64,
    pub(super) point: PathBuf,
    /// This mount is for reading only.
    pub(super) read_only: bool,
    /// `ext4`, `devtmpfs`.
    pub(super) kind: String,
    /// `/dev/loop0`.
    pub(super) source: String,
    /// The file system itself is for reading only, as ext4 makes it after an error.
    pub(super) file_system_read_only: bool,
}

/// All mounts that this process sees. Of two at one place, the later one covers the earlier.
pub(super) fn all() -> Result<Vec<Mount>, Status> {
    let table = fs::read("/proc/self/mountinfo");
    let table = table.map_err(|error| Status::internal(format!("reading the mounts: {error}")))?;
    Ok(table
        .split(|byte| *byte == b'\n')
        .filter_map(parse)
        .collect())
}

/// The mount at this place.
pub(super) fn at(point: &Path) -> Result<Option<Mount>, Status> {
    Ok(all()?.into_iter().rfind(|mount| mount.point == point))
}

/// A line: `36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/sda rw,errors=continue`.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(words.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    let point = PathBuf::from(OsStr::from_bytes(&unescaped(words.nth(1)?)));
    let options = words.next()?;
    // Optional fields lie before a hyphen.
    words.by_ref().find(|word| *word == b"-")?;
    let text = |word: &[u8]| String::from_utf8_lossy(&unescaped(word)).into_owned();
    let (kind, source) = (text(words.next()?), text(words.next()?));
    Some(Mount {
        device,
        point,
        read_only: is_read_only(options),
        kind,
        source,
        file_system_read_only: is_read_only(words.next()?),
    })
}

fn is_read_only(options: &[u8]) -> bool {
    options.split(|byte| *byte == b',').any(|one| one == b"ro")
}

/// A word in which the kernel wrote blanks and backslashes as three octal digits.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .filter(|_| byte == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(octal) => {
                plain.push(octal);
                rest = &after[3..];
            }
            None => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

/// The number of a block device. `None`: there is no block device of this name.
pub(super) fn device_number(path: &Path) -> Option<u64> {
    let file = fs::metadata(path).ok()?;
    file.file_type().is_block_device().then(|| file.rdev())
}

/// The mounts through which this device's content is seen: as a file system, or as the device itself.
pub(super) fn of_device(device: u64) -> Result<Vec<Mount>, Status> {
    let mut found = all()?;
    found.retain(|mount| shows(mount, device));
    Ok(found)
}

/// Takes away the places where a device itself is shown, before it ends.
pub(super) fn hide_node(device: &Path) -> Result<(), Status> {
    let Some(device) = device_number(device) else {
        return Ok(());
    };
    let shown = of_device(device)?.into_iter();
    for mount in shown.filter(|mount| mount.kind == "devtmpfs") {
        unmount_dead(&mount.point)?;
    }
    Ok(())
}

/// Whether this mount shows the device: its file system, or the device itself.
pub(super) fn shows(mount: &Mount, device: u64) -> bool {
    mount.device == device
        || mount.kind == "devtmpfs" && device_number(&mount.point) == Some(device)
}

/// The devices that an array of md is made of; none, of another device.
pub(super) fn members(device: u64) -> Vec<u64> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let folder = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !folder.join("md").is_dir() {
        return Vec::new();
    }
    let slaves = fs::read_dir(folder.join("slaves"));
    let names = slaves.into_iter().flatten().flatten();
    let names = names.map(|entry| Path::new("/dev").join(entry.file_name()));
    names.filter_map(|path| device_number(&path)).collect()
}

/// Whether this is a device of the kinds that memlane shows: a loop device over its file, or over nothing any more; ublk;
/// nbd.
pub(super) fn is_of_memlane(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(folder) = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else {
        return false;
    };
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    match fs::read_to_string(folder.join("loop/backing_file")) {
        // A file whose file system was unmounted meanwhile has no path: the kernel says "/".
        Ok(file) => file.contains("/memlane-loop-") || file.trim_end() == "/",
        Err(_) => ["loop", "nbd", "ublkb"]
            .iter()
            .any(|kind| name.starts_with(kind)),
    }
}

/// Mounts a file system.
pub(super) fn mount(kind: &str, options: &str, from: &Path, to: &Path) -> Result<(), Status> {
    let words = [
        OsStr::new("-t"),
        kind.as_ref(),
        "-o".as_ref(),
        options.as_ref(),
    ];
    command("mount", &words, &[from, to])
}

/// Shows what is at `from` at `to` also.
pub(super) fn bind(from: &Path, to: &Path) -> Result<(), Status> {
    command("mount", &[OsStr::new("--bind")], &[from, to])
}

/// Makes a mount one for reading only, or for writing, too.
pub(super) fn set_read_only(point: &Path, read_only: bool) -> Result<(), Status> {
    let how = if read_only { "ro" } else { "rw" };
    let options = format!("remount,bind,{how}");
    command("mount", &["-o".as_ref(), OsStr::new(&options)], &[point])
}

/// Removes the mounts at this place, and those below them.
pub(super) fn unmount(point: &Path) -> Result<(), Status> {
    remove(point, "-R")
}

/// Takes the mounts of a dead device away from this place, also if something still uses them.
pub(super) fn unmount_dead(point: &Path) -> Result<(), Status> {
    remove(point, "-l")
}

fn remove(point: &Path, how: &str) -> Result<(), Status> {
    while at(point)?.is_some() {
        command("umount", &[OsStr::new(how)], &[point])?;
    }
    Ok(())
}

fn command(name: &str, words: &[&OsStr], paths: &[&Path]) -> Result<(), Status> {
    let mut all = words.to_vec();
    all.push("--".as_ref());
    all.extend(paths.iter().map(|path| path.as_os_str()));
    let said = run(Path::new(name), &all);
    said.map(drop).map_err(Status::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_read_with_its_blanks_and_both_kinds_of_read_only() {
        let line = b"36 35 7:3 / /a\\040b ro,noatime shared:7 master:1 - ext4 /dev/loop3 rw,x";
        let mount = parse(line).expect("a mount");
        assert_eq!(mount.point, Path::new("/a b"));
        assert_eq!(mount.device, rustix::fs::makedev(7, 3));
        assert!(mount.read_only && !mount.file_system_read_only);
        assert_eq!(
            (mount.kind.as_str(), mount.source.as_str()),
            ("ext4", "/dev/loop3")
        );
        for broken in [
            &b""[..],
            b"1 2 3",
            b"1 2 a:b / / rw - x y rw",
            b"1 2 3:4 / / rw x",
        ] {
            assert_eq!(parse(broken), None);
        }
    }

    #[test]
    fn the_root_is_mounted_and_no_device() {
        assert!(at(Path::new("/")).expect("a table").is_some());
        assert_eq!(device_number(Path::new("/")), None);
    }
}
