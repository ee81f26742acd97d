//! A writer that flushes and remembers what was acknowledged: what must be there after a power cut, and what may be.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Rng;

/// Bytes of a block; a write is of some whole ones.
pub const BLOCK: u64 = 4096;

/// What a kill takes with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loses {
    /// Only processes: what was acknowledged is there.
    Nothing,
    /// The server's machine, with its page cache: what was flushed is there.
    Unflushed,
}

/// One writer and the blocks that are its own. Versions count its writes; 0 is what it found.
#[derive(Debug)]
pub struct Writer {
    number: u64,
    rng: Rng,
    version: u64,
    acknowledged: Vec<u64>,
    /// What the next flush covers: acknowledged, and since the last one that failed.
    covered: Vec<u64>,
    flushed: Vec<u64>,
    /// Written last; whether it is there nobody may have said.
    tried: Vec<u64>,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Flushes that did not.
    pub failed_flushes: u64,
}

impl Writer {
    /// The writer `number`, with `blocks` blocks behind those of the writers before it.
    pub fn new(number: u64, blocks: usize, seed: u64) -> Writer {
        Writer {
            number,
            rng: Rng(seed << 8 | number),
            version: 0,
            acknowledged: vec![0; blocks],
            covered: vec![0; blocks],
            flushed: vec![0; blocks],
            tried: vec![0; blocks],
            writes: 0,
            flushes: 0,
            failed_flushes: 0,
        }
    }

    fn at(&self, block: usize) -> u64 {
        (self.number * self.tried.len() as u64 + block as u64) * BLOCK
    }

    /// What a version of a block looks like: each word says where it is, and which.
    fn block(&self, block: usize, version: u64) -> Vec<u8> {
        let word = match version {
            0 => 0,
            _ => self.at(block) << 32 | version,
        };
        word.to_le_bytes().repeat(512)
    }

    /// Did a write fail?
    pub fn is_unsure(&self) -> bool {
        self.tried != self.acknowledged
    }

    /// Writes and flushes until it is over, or a write fails.
    ///
    /// A flush that fails takes with it what it would have covered.
    pub fn work(&mut self, file: &File, over: &AtomicBool) {
        while !over.load(Ordering::SeqCst) {
            if self.rng.below(8) == 0 {
                self.flush(file);
            } else if !self.write(file) {
                return;
            }
        }
    }

    /// Flushes; did it succeed?
    pub fn flush(&mut self, file: &File) -> bool {
        let flushed = file.sync_data().is_ok();
        if flushed {
            self.flushes += 1;
            self.flushed.clone_from(&self.covered);
        } else {
            self.failed_flushes += 1;
            self.covered.clone_from(&self.flushed);
        }
        flushed
    }

    fn write(&mut self, file: &File) -> bool {
        let most = self.tried.len() as u64;
        let first = self.rng.below(most);
        let count = 1 + self.rng.below(8.min(most - first));
        let small = |n| usize::try_from(n).expect("few blocks");
        let blocks = small(first)..small(first + count);
        self.version += 1;
        let data: Vec<u8> = blocks
            .clone()
            .flat_map(|block| self.block(block, self.version))
            .collect();
        let written = file.write_all_at(&data, self.at(blocks.start)).is_ok();
        for block in blocks {
            self.tried[block] = self.version;
            if written {
                self.acknowledged[block] = self.version;
                self.covered[block] = self.version;
            }
        }
        self.writes += u64::from(written);
        written
    }

    /// Compares its blocks of a volume's bytes with what it was told. What it finds is what it starts from.
    ///
    /// # Panics
    /// If a block is older than it may be, or never was so, or torn.
    pub fn check(&mut self, volume: &[u8], loses: Loses, when: &str) {
        for block in 0..self.tried.len() {
            let at = usize::try_from(self.at(block)).expect("small");
            let found = &volume[at..at + 4096];
            let first = u64::from_le_bytes(found[..8].try_into().expect("eight"));
            let version = first & 0xffff_ffff;
            let least = match loses {
                Loses::Nothing => self.acknowledged[block],
                Loses::Unflushed => self.flushed[block],
            };
            let may = (least..=self.tried[block]).contains(&version);
            assert!(
                may && found == self.block(block, version),
                "{when}: block {block} of writer {}: version {version} of {least} to {}, {first:#x}",
                self.number,
                self.tried[block]
            );
            self.acknowledged[block] = version;
            self.covered[block] = version;
            self.tried[block] = version;
        }
    }
}
