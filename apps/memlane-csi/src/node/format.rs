//! File systems on devices: found, made, checked and grown by the system's own tools.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use tonic::Status;

use crate::capability::FileSystem;
use crate::command::{complaint, output, run};

/// How long a device may take to show its new size: servers notice it within a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// What blkid(8) returns when it finds nothing at all.
const NOTHING: i32 = 2;

/// Bytes at the beginning of a device in which its file system would be recognised.
const BEGINNING: u64 = 1 << 20;

/// What is on a device: the name of a file system or of something else; `None`: nothing.
pub(super) fn found(device: &Path) -> Result<Option<String>, Status> {
    if let Some(what) = probe(device)? {
        return Ok(Some(what));
    }
    // blkid also finds nothing on a device that it cannot read. Such a one must not be formatted: it is read here, and looked
    // at again.
    File::open(device)
        .and_then(|file| file.take(BEGINNING).read_to_end(&mut Vec::new()))
        .map_err(|error| Status::unavailable(format!("{}: {error}", device.display())))?;
    probe(device)
}

fn probe(device: &Path) -> Result<Option<String>, Status> {
    let blkid = Path::new("blkid");
    let mut words = vec!["-p", "-o", "export", "--"];
    let path = device.to_string_lossy();
    words.push(&path);
    let said = output(blkid, &words).map_err(Status::internal)?;
    if said.status.code() == Some(NOTHING) {
        return Ok(None);
    }
    if !said.status.success() {
        return Err(Status::internal(complaint(blkid, &said)));
    }
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let what = value("TYPE=").or_else(|| value("PTTYPE="));
    Ok(Some(what.unwrap_or("something").to_owned()))
}

/// Sees to it that the device has this file system. One that has nothing on it gets a new one; whatever else is there stays.
pub(super) fn ensure(device: &Path, wanted: FileSystem, read_only: bool) -> Result<(), Status> {
    let name = wanted.name();
    match found(device)? {
        Some(found) if found != name => Err(Status::failed_precondition(format!(
            "the volume has {found} on it, and {name} is wanted"
        ))),
        Some(_) if read_only => Ok(()),
        Some(_) => prepare(device, wanted),
        None if read_only => Err(Status::failed_precondition(
            "the volume is empty, and is to be mounted for reading only",
        )),
        None => make(device, wanted),
    }
}

fn make(device: &Path, wanted: FileSystem) -> Result<(), Status> {
    let device = device.to_string_lossy();
    let (tool, words) = match wanted {
        // A volume begins as zeros, so nothing needs to be discarded first.
        FileSystem::Ext4 => (
            "mkfs.ext4",
            ["-q", "-E", "nodiscard", "-m0", &device].to_vec(),
        ),
        FileSystem::Xfs => ("mkfs.xfs", ["-q", "-K", &device].to_vec()),
    };
    run(Path::new(tool), &words)
        .map(drop)
        .map_err(Status::internal)
}

/// Repairs what can be repaired without a question, and grows a file system that is smaller than its device, as a copy may
/// be. XFS repairs itself when it is mounted, and grows only then.
fn prepare(device: &Path, wanted: FileSystem) -> Result<(), Status> {
    if wanted == FileSystem::Xfs {
        return Ok(());
    }
    check(device, "-p")?;
    // Less than a block at the end is nothing.
    if ext4_size(device)? + 4096 <= size(device)? {
        // resize2fs insists on a complete check.
        check(device, "-pf")?;
        grow(device, device, wanted.name())?;
    }
    Ok(())
}

/// The size of an ext4 in bytes.
fn ext4_size(device: &Path) -> Result<u64, Status> {
    let said = run(Path::new("dumpe2fs"), &["-h".as_ref(), device]).map_err(Status::internal)?;
    let number = |name: &str| {
        let value = said.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse::<u64>().ok())
    };
    let (count, size) = (number("Block count:"), number("Block size:"));
    count
        .and_then(|count| count.checked_mul(size?))
        .ok_or_else(|| {
            Status::internal(format!(
                "dumpe2fs does not tell how large {} is",
                device.display()
            ))
        })
}

fn check(device: &Path, how: &str) -> Result<(), Status> {
    let fsck = Path::new("fsck.ext4");
    let path = device.to_string_lossy();
    let said = output(fsck, &[how, &path]).map_err(Status::internal)?;
    match said.status.code() {
        // 1: errors were corrected.
        Some(0 | 1) => Ok(()),
        _ => {
            let text = String::from_utf8_lossy(&said.stdout).replace('\n', "; ");
            let why = complaint(fsck, &said);
            Err(Status::internal(format!("{why} {text}")))
        }
    }
}

/// Makes the file system as large as its device.
pub(super) fn grow(device: &Path, point: &Path, kind: &str) -> Result<(), Status> {
    let said = match kind {
        "ext4" => run(Path::new("resize2fs"), &[device]),
        "xfs" => run(Path::new("xfs_growfs"), &["-d".as_ref(), point]),
        _ => Err(format!("a file system {kind} is not grown")),
    };
    said.map(drop).map_err(Status::internal)
}

/// The size of a device in bytes.
pub(super) fn size(device: &Path) -> Result<u64, Status> {
    File::open(device)
        .and_then(|mut file| file.seek(SeekFrom::End(0)))
        .map_err(|error| Status::internal(format!("{}: {error}", device.display())))
}

/// Waits until a device is this large. Returns its size.
pub(super) fn wait_for_size(device: &Path, least: u64) -> Result<u64, Status> {
    let begin = Instant::now();
    loop {
        let size = size(device)?;
        if size >= least {
            return Ok(size);
        }
        if begin.elapsed() > PATIENCE {
            let why = format!("the device has {size} bytes yet; {least} are wanted");
            return Err(Status::unavailable(why));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_cannot_be_read_is_not_taken_for_an_empty_one() {
        let error = found(Path::new("/nowhere")).expect_err("nothing can be said of it");
        assert_eq!(error.code(), tonic::Code::Unavailable, "{error}");
        let empty = std::env::temp_dir().join(format!("memlane-csi-empty-{}", std::process::id()));
        File::create(&empty)
            .and_then(|file| file.set_len(1 << 20))
            .expect("a file");
        assert!(matches!(found(&empty), Ok(None)));
        std::fs::remove_file(&empty).expect("removed");
    }
}
