//! A process that is traced: its page of words, its ring.
//!
//! Whoever may open `/proc/PID/fd/N` of a process for writing may trace it, which is the kernel's rule for debuggers.
//! One tracer at a time: it has the file's lock, which the kernel takes back when it dies.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use memlane_core::access::SharedBytes;
use memlane_core::trace::{
    Garbled, MAGIC, PAGE_LEN, Page, RING_AT, Reader, Record, Ring, SEGMENT, VERSION,
};
use memlane_sys::mem;

use crate::exit::{Exit, fail};
use crate::procs;

/// What `/proc/PID/fd/N` of the memfd links to.
const LINK: &str = "/memfd:memlane-trace (deleted)";
/// The process looks at the lock itself, for a moment.
const LOCK_TRIES: u32 = 20;
/// A thread that is writing a record is at it for microseconds, unless it has no CPU.
const QUIET_WITHIN: Duration = Duration::from_secs(1);

/// What a tracer wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) ring: u64,
    pub(super) snaplen: u32,
    pub(super) port: u16,
}

/// Which memfd it is: device and inode.
pub(super) type Id = (u64, u64);

/// A process that is traced.
pub(super) struct Target {
    pub(super) pid: u32,
    /// Ends with the process.
    life: Option<OwnedFd>,
    file: File,
    page: Mapping,
    memory: Mapping,
    reader: Reader,
    wish: Wish,
    dropped: [u64; 2],
    /// Since when there is room that was given away and no record in it.
    stuck: Option<Instant>,
    /// Records that a thread began and never finished, or that were no records: so often was all begun anew.
    pub(super) restarts: u64,
}

/// A mapping of ours, unmapped when dropped.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn of(file: &File, at: usize, len: usize) -> anyhow::Result<Mapping> {
        let base = mem::map_shared(file.as_raw_fd(), at, len, true)
            .map_err(|e| io::Error::from_raw_os_error(e.0))?;
        Ok(Mapping { base, len })
    }

    /// Of the file's first page.
    fn words(&self) -> &Page {
        assert!(self.len >= PAGE_LEN);
        // SAFETY: mapped for PAGE_LEN bytes as long as `self` lives, page aligned, and the file cannot shrink; `Page`
        // consists of atomics.
        unsafe { self.base.cast().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: a whole mapping, made above; whoever looks at it borrows this.
        unsafe { mem::unmap(self.base, self.len) };
    }
}

/// The memfds in which processes may be traced, that are `pid`'s.
pub(super) fn of_process(pid: u32) -> io::Result<Vec<PathBuf>> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd"))?;
    let paths = fds.flatten().map(|entry| entry.path());
    let ours = |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.as_os_str() == LINK);
    Ok(paths.filter(ours).collect())
}

/// Each process's parent.
pub(super) fn parents() -> HashMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let with_parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may contain anything: state, parent.
        let (_, rest) = stat.rsplit_once(") ")?;
        Some((pid, rest.split(' ').nth(1)?.parse().ok()?))
    };
    numbers.filter_map(with_parent).collect()
}

/// Which file it is.
pub(super) fn id_of(path: &Path) -> Option<Id> {
    let meta = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((meta.dev(), meta.ino()))
}

impl Target {
    /// Begins to trace process `pid` by its memfd at `path`; the opening of it, with its lock, is ours alone.
    pub(super) fn begin(pid: u32, path: &Path, wish: Wish) -> anyhow::Result<Target> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .with_context(|| format!("process {pid} may not be looked at by this user"))?;
        let meta = file.metadata()?;
        // One that can be cut short would pull memory from under us.
        let seals = mem::seals(file.as_raw_fd()).unwrap_or(0);
        if seals & libc::F_SEAL_SHRINK == 0 || meta.len() < RING_AT as u64 {
            return Err(incompatible(pid));
        }
        let page = Mapping::of(&file, 0, PAGE_LEN)?;
        let memory = Mapping::of(&file, RING_AT, usize::try_from(wish.ring)?)?;
        let mut target = Target {
            pid,
            life: life(pid),
            file,
            page,
            memory,
            reader: Reader { tail: 0 },
            wish,
            dropped: [0; 2],
            stuck: None,
            restarts: 0,
        };
        let page = target.page();
        let ready = page.magic.load(Ordering::Acquire) == MAGIC
            && page.version.load(Ordering::Relaxed) == VERSION
            && page.ring_at.load(Ordering::Relaxed) as usize == RING_AT;
        if !ready {
            return Err(incompatible(pid));
        }
        target.lock()?;
        target.dropped = target.dropped_now();
        target.switch_on()?;
        Ok(target)
    }

    fn page(&self) -> &Page {
        self.page.words()
    }

    fn lock(&self) -> anyhow::Result<()> {
        for _ in 0..LOCK_TRIES {
            if memlane_sys::fd::try_lock(self.file.as_raw_fd()).is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(10));
        }
        let other = self.page().tracer.load(Ordering::Relaxed);
        Err(fail(
            Exit::PeerRefused,
            format!(
                "process {} is being traced already, by process {other}: one tracer at a time",
                self.pid
            ),
        ))
    }

    /// Begins anew: an empty ring, from where the process is now.
    fn switch_on(&mut self) -> anyhow::Result<()> {
        self.switch_off();
        let end = RING_AT as u64 + self.wish.ring;
        if self.file.metadata()?.len() < end {
            self.file
                .set_len(end)
                .with_context(|| format!("cannot make the ring of process {} longer", self.pid))?;
        }
        memlane_sys::fd::punch(self.file.as_raw_fd(), RING_AT as u64, self.wish.ring)
            .map_err(|e| io::Error::from_raw_os_error(e.0))?;
        let tail = self.page().head.load(Ordering::Acquire);
        self.reader.tail = tail;
        self.stuck = None;
        let page = self.page();
        page.tail.store(tail, Ordering::Release);
        page.ring_size.store(self.wish.ring, Ordering::Relaxed);
        page.snaplen.store(self.wish.snaplen, Ordering::Relaxed);
        page.port
            .store(u32::from(self.wish.port), Ordering::Relaxed);
        page.tracer.store(std::process::id(), Ordering::Relaxed);
        page.error.store(0, Ordering::Relaxed);
        page.on.store(1, Ordering::SeqCst);
        Ok(())
    }

    /// Nobody begins a record any more, and those that were begun are done (or their threads will never do it).
    fn switch_off(&self) {
        let page = self.page();
        page.on.store(0, Ordering::SeqCst);
        let begin = Instant::now();
        while page.writers.load(Ordering::SeqCst) != 0
            && begin.elapsed() < QUIET_WITHIN
            && self.is_alive()
        {
            sleep(Duration::from_millis(1));
        }
    }

    /// The next record. One that is none begins the ring anew.
    pub(super) fn next(&mut self, payload: &mut [u8; SEGMENT]) -> Option<Record> {
        // SAFETY: mapped as long as `self` lives, and the file, which is at least that long, cannot shrink.
        let bytes = unsafe { SharedBytes::new(self.memory.base, self.memory.len) };
        let ring = Ring::new(bytes)?;
        match self.reader.next(&ring, &self.page.words().tail, payload) {
            Ok(Some(record)) => {
                self.stuck = None;
                Some(record)
            }
            Ok(None) => {
                self.look_for_stuck();
                None
            }
            Err(Garbled) => {
                self.restart();
                None
            }
        }
    }

    fn look_for_stuck(&mut self) {
        if self.page().head.load(Ordering::Acquire) == self.reader.tail {
            self.stuck = None;
        } else if self.stuck.get_or_insert_with(Instant::now).elapsed() > 2 * QUIET_WITHIN {
            self.restart();
        }
    }

    fn restart(&mut self) {
        self.restarts += 1;
        if self.is_alive() {
            let _ = self.switch_on();
        }
    }

    /// Does the process still run?
    pub(super) fn is_alive(&self) -> bool {
        let Some(life) = &self.life else {
            return fs::exists(format!("/proc/{}", self.pid)).unwrap_or(false);
        };
        let mut end = [rustix::event::PollFd::new(
            life,
            rustix::event::PollFlags::IN,
        )];
        !matches!(rustix::event::poll(&mut end, Some(&NOW)), Ok(n) if n > 0)
    }

    /// Its end, to wait for.
    pub(super) fn life(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.life.as_ref().map(AsFd::as_fd)
    }

    /// Ends it: what was begun is still to be read by `next`, and nothing follows.
    pub(super) fn end(&mut self) {
        self.switch_off();
    }

    fn dropped_now(&self) -> [u64; 2] {
        let page = self.page();
        [&page.dropped_records, &page.dropped_bytes].map(|w| w.load(Ordering::Relaxed))
    }

    /// Records, and stream bytes, for which there was no room.
    pub(super) fn dropped(&self) -> [u64; 2] {
        let now = self.dropped_now();
        [0, 1].map(|i| now[i].saturating_sub(self.dropped[i]))
    }

    /// Why the process could not make its ring, if it could not.
    pub(super) fn complaint(&self) -> Option<String> {
        let error = i32::try_from(self.page().error.load(Ordering::Relaxed)).ok()?;
        (error > 0).then(|| {
            let error = io::Error::from_raw_os_error(error);
            format!("process {} could not map its ring: {error}", self.pid)
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.page().on.store(0, Ordering::SeqCst);
        // The memory goes back, and with the file the lock.
        let _ = memlane_sys::fd::punch(self.file.as_raw_fd(), RING_AT as u64, self.wish.ring);
    }
}

const NOW: rustix::event::Timespec = rustix::event::Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

fn incompatible(pid: u32) -> anyhow::Error {
    let text = format!("process {pid} runs under a version of memlane that this one cannot trace");
    fail(Exit::PeerRefused, text)
}

fn life(pid: u32) -> Option<OwnedFd> {
    let raw = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(raw, rustix::process::PidfdFlags::empty()).ok()
}

/// The memfd of a process that was asked for by name.
pub(super) fn find(pid: u32) -> anyhow::Result<Vec<PathBuf>> {
    if !fs::exists(format!("/proc/{pid}"))? {
        bail!("no process {pid}");
    }
    let paths = match of_process(pid) {
        Ok(paths) => paths,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            bail!("process {pid} belongs to somebody else: try as root")
        }
        Err(e) => return Err(e.into()),
    };
    if paths.is_empty() {
        bail!(
            "process {pid} cannot be traced: it was not started with `memlane run`, \
             or has not made a TCP socket yet"
        );
    }
    Ok(paths)
}

/// Every process with such a memfd that we may look at.
pub(super) fn everybody() -> Vec<(u32, PathBuf)> {
    let pids = procs::pids().unwrap_or_default();
    pids.into_iter()
        .filter(|pid| *pid != std::process::id())
        .flat_map(|pid| {
            let paths = of_process(pid).unwrap_or_default();
            paths.into_iter().map(move |path| (pid, path))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_is_that_of_the_memfd_that_the_library_makes() {
        let name = memlane_core::trace::MEMFD_NAME.to_str().unwrap();
        assert_eq!(LINK, format!("/memfd:{name} (deleted)"));
    }
}
