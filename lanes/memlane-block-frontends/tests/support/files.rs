//! Files of a file system on a volume: written, changed at random as fsx does, and compared with what they should hold.
#![allow(dead_code, reason = "each test program uses a part")]

use crate::support::Rng;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Most bytes of a file that is changed.
const MOST: u64 = 1 << 20;

pub(crate) struct Files(BTreeMap<PathBuf, Vec<u8>>);

impl Files {
    /// Makes `count` new files, of less than `most` bytes each.
    pub(crate) fn fill(folder: &Path, count: u32, most: u64, rng: &mut Rng) -> Files {
        let files = (0..count).map(|number| {
            let path = folder.join(format!("file-{number}"));
            let n = usize::try_from(rng.below(most)).unwrap();
            let bytes = rng.bytes(n);
            std::fs::write(&path, &bytes).unwrap();
            (path, bytes)
        });
        Files(files.collect())
    }

    pub(crate) fn check(&self) {
        for (path, bytes) in &self.0 {
            assert!(std::fs::read(path).unwrap() == *bytes, "{}", path.display());
        }
    }

    pub(crate) fn remove(self) {
        for path in self.0.keys() {
            std::fs::remove_file(path).unwrap();
        }
    }

    /// Writes, reads, cuts, lengthens, zeroes, maps and forgets the first file, compared with a copy at each look.
    pub(crate) fn shuffle(&mut self, steps: u32, rng: &mut Rng) {
        let (path, model) = self.0.iter_mut().next().unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        for step in 0..steps {
            let at = rng.below(MOST);
            let len = 1 + rng.below(60_000.min(MOST - at));
            change(&file, model, at, len, rng, step);
        }
        drop(file);
        assert!(std::fs::read(path).unwrap() == *model);
    }
}

fn change(file: &File, model: &mut Vec<u8>, at: u64, len: u64, rng: &mut Rng, step: u32) {
    let size = |n: u64| usize::try_from(n).unwrap();
    // What is there of the range.
    let end = (at + len).min(model.len() as u64).max(at);
    let inside = size(at)..size(end);
    match rng.below(9) {
        0..3 => {
            let bytes = rng.bytes(size(len));
            file.write_all_at(&bytes, at).unwrap();
            model.resize(model.len().max(size(at + len)), 0);
            model[size(at)..size(at + len)].copy_from_slice(&bytes);
        }
        3 => {
            file.set_len(at).unwrap();
            model.resize(size(at), 0);
        }
        4 => {
            file.sync_all().unwrap();
            // The next look is at the volume.
            fadvise(file, 0, None, Advice::DontNeed).unwrap();
        }
        // Nothing of it is there.
        _ if end == at => {}
        5 => {
            let hole = match rng.below(2) {
                0 => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                _ => FallocateFlags::ZERO_RANGE,
            };
            fallocate(file, hole, at, end - at).unwrap();
            model[inside].fill(0);
        }
        6 => {
            let bytes = rng.bytes(inside.len());
            mapped(file, model.len(), |map| {
                map[inside.clone()].copy_from_slice(&bytes)
            });
            model[inside].copy_from_slice(&bytes);
        }
        7 => mapped(file, model.len(), |map| {
            assert!(
                map[inside.clone()] == model[inside],
                "step {step}: {at}, {len}"
            );
        }),
        _ => {
            let mut bytes = vec![1; inside.len()];
            file.read_exact_at(&mut bytes, at).unwrap();
            assert!(bytes == model[inside], "step {step}: {at}, {len}");
        }
    }
}

/// Looks at a file's bytes by way of a mapping.
pub(crate) fn mapped(file: &File, len: usize, look: impl FnOnce(&mut [u8])) {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of as many bytes as the file has; nobody else changes it, and it keeps its length meanwhile.
    unsafe {
        let at = mmap(std::ptr::null_mut(), len, both, MapFlags::SHARED, file, 0).unwrap();
        look(std::slice::from_raw_parts_mut(at.cast(), len));
        munmap(at, len).unwrap();
    }
}
