//! The yardstick: a ring in shared memory with nothing else to it. One writes and publishes, the other copies out and
//! gives back; both look without ever sleeping. No file descriptor wakes anybody, nobody may die, nothing is checked.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::turns::End;
use crate::runner::proc::appears;

/// As large as memlane's rings are where nobody has said anything.
pub(super) const SIZE: usize = memlane_socket::config::RING_DEFAULT as usize;
/// Published at a time, at most: both ends are to be busy.
pub(super) const PIECE: usize = SIZE / 4;
const LINE: usize = 128;
/// Writer's word, reader's word, "no more": a line each; then the bytes.
const BYTES_AT: usize = 3 * LINE;
const LEN: usize = BYTES_AT + SIZE;
const PATIENCE: Duration = Duration::from_secs(10);
/// One ring each way.
const PAIR: usize = 2 * LEN.next_multiple_of(4096);

struct Half {
    base: NonNull<u8>,
    /// Our own word, and the other's as last seen.
    mine: u64,
    theirs: u64,
}

impl Half {
    fn word(&self, line: usize) -> &AtomicU64 {
        // SAFETY: the word is in the mapping, at a multiple of 128, and only ever used as an atomic.
        unsafe { self.base.add(line * LINE).cast::<AtomicU64>().as_ref() }
    }

    fn at(&self, offset: u64) -> *mut u8 {
        let place = usize::try_from(offset).unwrap_or_default() % SIZE;
        self.base.as_ptr().wrapping_add(BYTES_AT + place)
    }

    /// Of a writer.
    fn wait_for_room(&mut self, bytes: u64) {
        while SIZE as u64 - (self.mine - self.theirs) < bytes {
            self.theirs = self.word(1).load(Ordering::Acquire);
            std::hint::spin_loop();
        }
    }

    /// Of a reader. `false`: the end.
    fn wait_for_bytes(&mut self) -> bool {
        while self.theirs == self.mine {
            let over = self.word(2).load(Ordering::Acquire) != 0;
            self.theirs = self.word(0).load(Ordering::Acquire);
            if over && self.theirs == self.mine {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }

    fn write(&mut self, from: &[u8]) {
        let mut left = from;
        while !left.is_empty() {
            let at = usize::try_from(self.mine).unwrap_or_default() % SIZE;
            let n = left.len().min(PIECE).min(SIZE - at);
            self.wait_for_room(n as u64);
            // SAFETY: `n` bytes are free, do not wrap, and are the writer's until it publishes them.
            unsafe { std::ptr::copy_nonoverlapping(left.as_ptr(), self.at(self.mine), n) };
            self.mine += n as u64;
            self.word(0).store(self.mine, Ordering::Release);
            left = &left[n..];
        }
    }

    /// `false`: the end.
    fn read(&mut self, into: &mut [u8]) -> bool {
        let mut done = 0;
        while done < into.len() {
            if !self.wait_for_bytes() {
                return false;
            }
            let at = usize::try_from(self.mine).unwrap_or_default() % SIZE;
            let there = usize::try_from(self.theirs - self.mine).unwrap_or(SIZE);
            let n = (into.len() - done).min(there).min(SIZE - at);
            // SAFETY: `n` bytes are published, do not wrap, and are the reader's until it gives them back.
            unsafe {
                std::ptr::copy_nonoverlapping(self.at(self.mine), into.as_mut_ptr().add(done), n);
            }
            self.mine += n as u64;
            self.word(1).store(self.mine, Ordering::Release);
            done += n;
        }
        true
    }
}

/// In memory, where there is a file system for it: a disk would have to be written.
fn place(folder: &Path, number: u32) -> PathBuf {
    let shared = Path::new("/dev/shm");
    match (shared.is_dir(), folder.to_str()) {
        (true, Some(name)) => shared.join(format!("{}-{number}", name.replace('/', "-"))),
        _ => folder.join(format!("ring-{number}")),
    }
}

/// It is open before it has its name: whoever finds it takes the name away.
fn make(file: &Path) -> anyhow::Result<OwnedFd> {
    let new = file.with_extension("new");
    let mut how = std::fs::File::options();
    let made = how.read(true).write(true).create(true).truncate(true);
    let made = made.open(&new)?;
    made.set_len(PAIR as u64)?;
    std::fs::rename(&new, file)?;
    Ok(made.into())
}

/// Made by the other end; now both have it.
fn find(file: &Path) -> anyhow::Result<OwnedFd> {
    ensure!(appears(file, PATIENCE), "nobody serves");
    let fd = rustix::fs::openat(CWD, file, OFlags::RDWR, Mode::empty())?;
    std::fs::remove_file(file)?;
    Ok(fd)
}

/// A ring each way.
pub(super) struct Pair {
    out: Half,
    come: Half,
    base: NonNull<u8>,
}

impl Pair {
    /// The one with that number: made by whoever serves.
    pub(super) fn open(folder: &Path, number: u32, serves: bool) -> anyhow::Result<Pair> {
        let file = place(folder, number);
        let fd = match serves {
            true => make(&file)?,
            false => find(&file)?,
        };
        let how = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, of a file of this length.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAIR, how.0, how.1, &fd, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).context("no mapping")?;
        let half = |second: bool| Half {
            // SAFETY: within the mapping.
            base: unsafe { base.add(if second { PAIR / 2 } else { 0 }) },
            mine: 0,
            theirs: 0,
        };
        Ok(Pair {
            out: half(serves),
            come: half(!serves),
            base,
        })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, of which nobody has a reference any more. It cannot fail.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), PAIR) };
    }
}

impl End for Pair {
    fn give(&mut self, bytes: usize) -> anyhow::Result<()> {
        // A ring's memory is handed over in turns of what is free: only what fits can be given at once.
        let mut left = bytes;
        while left > 0 {
            let n = left.min(PIECE);
            self.out.wait_for_room(n as u64);
            self.out.mine += n as u64;
            self.out.word(0).store(self.out.mine, Ordering::Release);
            left -= n;
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> anyhow::Result<bool> {
        let mut left = bytes as u64;
        while left > 0 {
            if !self.come.wait_for_bytes() {
                return Ok(false);
            }
            let n = left.min(self.come.theirs - self.come.mine);
            self.come.mine += n;
            self.come.word(1).store(self.come.mine, Ordering::Release);
            left -= n;
        }
        Ok(true)
    }

    fn send(&mut self, from: &[u8]) -> anyhow::Result<()> {
        self.out.write(from);
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8]) -> anyhow::Result<bool> {
        Ok(self.come.read(into))
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.out.word(2).store(1, Ordering::Release);
        ensure!(self.out.mine >= self.out.theirs, "the ring is broken");
        Ok(())
    }
}
