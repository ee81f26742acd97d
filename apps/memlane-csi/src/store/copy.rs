//! Copies of files that stay sparse.

use std::fs::File;
use std::io;

use rustix::fs::{SeekFrom, copy_file_range, ioctl_ficlone, seek};
use rustix::io::Errno;

/// Makes `new` share all blocks of `old`, as they are at one moment. Returns whether the file system can.
pub(super) fn share_blocks(old: &File, new: &File) -> io::Result<bool> {
    match ioctl_ficlone(new, old) {
        Ok(()) => Ok(true),
        // What the different file systems say that cannot.
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV | Errno::NOSYS) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Copies what is not a hole.
pub(super) fn copy_blocks(old: &File, new: &File) -> io::Result<()> {
    let mut at = 0;
    loop {
        let begin = match seek(old, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // Only a hole is left.
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = seek(old, SeekFrom::Hole(begin))?;
        copy_range(old, new, begin, end)?;
        at = end;
    }
}

fn copy_range(old: &File, new: &File, begin: u64, end: u64) -> io::Result<()> {
    let mut at = begin;
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX);
        let (mut from, mut to) = (at, at);
        match copy_file_range(old, Some(&mut from), new, Some(&mut to), length)? {
            // The file became shorter.
            0 => return Ok(()),
            copied => at += copied as u64,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    #[test]
    fn a_copy_has_the_bytes_and_the_holes() {
        let folder = std::env::temp_dir().join(format!("memlane-csi-copy-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let open = |name| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(true);
            options.open(folder.join(name)).expect("a file")
        };
        let (old, new) = (open("old"), open("new"));
        old.set_len(64 << 20).expect("a size");
        old.write_all_at(&[7; 4096], 32 << 20).expect("bytes");
        copy_blocks(&old, &new).expect("a copy");
        new.set_len(64 << 20).expect("a size");
        let mut read = [0; 8192];
        new.read_exact_at(&mut read, (32 << 20) - 4096)
            .expect("bytes");
        assert!(read[..4096].iter().all(|byte| *byte == 0));
        assert!(read[4096..].iter().all(|byte| *byte == 7));
        let blocks = new.metadata().expect("metadata").blocks();
        assert!(
            blocks * 512 < 1 << 20,
            "{blocks} blocks: the holes are gone"
        );
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
