//! The initramfs: a folder tree in the format of cpio's "newc" (the kernel's `driver-api/early-userspace/buffer-format`).

use std::collections::BTreeSet;

/// An archive that grows.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    number: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    pub(crate) fn folder(&mut self, name: &str) {
        if self.folders.insert(name.to_owned()) {
            self.entry(name, 0o040_755, &[]);
        }
    }

    pub(crate) fn file(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entry(name, 0o100_000 | mode, contents);
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.number += 1;
        let (number, length, name_length) = (self.number, contents.len(), name.len() + 1);
        // Magic, inode, mode, uid, gid, links, time, size, device and special device (two each), length of the name, sum.
        let header = format!(
            "070701{number:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{length:08x}{0:08x}{0:08x}{0:08x}{0:08x}{name_length:08x}{0:08x}",
            0, 1
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(contents);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The whole archive.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}
