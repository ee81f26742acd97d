//! Traces a process: reads the [records](memlane_core::trace) of what its connections carry.
//!
//! A user may trace a process if the kernel lets the user open `/proc/PID/fd/N` for writing; this is the rule for
//! debuggers. A process has one tracer at a time: the one that holds the lock of the file. The kernel releases the lock
//! when the tracer dies.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use memlane_core::access::SharedBytes;
use memlane_core::trace::{
    Garbled, MAGIC, PAGE_LEN, Page, RING_AT, Reader, Record, Ring, SEGMENT, VERSION,
};
use memlane_sys::mem;

use crate::processes;

/// What `/proc/PID/fd/N` of the memfd links to.
const LINK: &str = "/memfd:memlane-trace (deleted)";
/// Times that the lock is tried: the traced process itself tests it now and then, for a moment.
const LOCK_TRIES: u32 = 20;
/// How long to wait for threads that are writing a record. It takes them microseconds, unless they have no CPU.
const QUIET_WITHIN: Duration = Duration::from_secs(1);

/// What to record.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of the ring in the process; [`ring_size_ok`](memlane_core::trace::ring_size_ok) must hold.
    pub ring: u64,
    /// Most bytes of a record's payload.
    pub snaplen: u32,
    /// Record connections with this port at either end; 0: all connections.
    pub port: u16,
}

/// Identity of a memfd: device and inode.
pub type Id = (u64, u64);

/// Why a process cannot be traced.
#[derive(Debug)]
pub enum TraceError {
    /// No process has this id.
    NoProcess(u32),
    /// Another user's process.
    Forbidden(u32),
    /// It has no trace page.
    NoPage(u32),
    /// It runs under a release of memlane with another format.
    Incompatible(u32),
    /// Another process traces it.
    Busy {
        /// The process.
        pid: u32,
        /// Its tracer.
        tracer: u32,
    },
    /// Something failed; the text says what.
    Io(String, io::Error),
}

impl std::fmt::Display for TraceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TraceError::NoProcess(pid) => write!(f, "no process {pid}"),
            TraceError::Forbidden(pid) => {
                write!(f, "process {pid} belongs to another user: try as root")
            }
            TraceError::NoPage(pid) => write!(
                f,
                "process {pid} cannot be traced: it was not started with `memlane run`, \
                 or has done little by TCP so far"
            ),
            TraceError::Incompatible(pid) => write!(
                f,
                "process {pid} runs under a version of memlane that this one cannot trace"
            ),
            TraceError::Busy { pid, tracer } => write!(
                f,
                "process {pid} is being traced already, by process {tracer}: one tracer at a time"
            ),
            TraceError::Io(what, error) => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for TraceError {}

/// Names what failed.
fn failed<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> TraceError {
    |error| TraceError::Io(what.into(), error.into())
}

fn from_errno(error: memlane_sys::Errno) -> io::Error {
    io::Error::from_raw_os_error(error.0)
}

/// A process that is traced.
#[derive(Debug)]
pub struct Target {
    /// Its process id.
    pub pid: u32,
    /// A pidfd, readable when the process has ended.
    life: Option<OwnedFd>,
    file: File,
    page: Mapping,
    memory: Mapping,
    reader: Reader,
    options: Options,
    /// Records and bytes dropped before this tracer began.
    dropped: [u64; 2],
    /// Since when a thread has had room in the ring and not finished its record.
    stuck: Option<Instant>,
    /// Times that the ring was started again, because a thread never finished a record or wrote an impossible one.
    pub restarts: u64,
}

/// A mapping, unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn of(file: &File, at: usize, len: usize) -> io::Result<Mapping> {
        let base = mem::map_shared(file.as_raw_fd(), at, len, true).map_err(from_errno)?;
        Ok(Mapping { base, len })
    }

    /// The words of the file's first page.
    fn words(&self) -> &Page {
        assert!(self.len >= PAGE_LEN);
        // SAFETY: mapped for PAGE_LEN bytes as long as `self` lives, page aligned, and the file cannot shrink; `Page`
        // consists of atomics.
        unsafe { self.base.cast().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `of` made this whole mapping, and every reference into it borrows `self`.
        unsafe { mem::unmap(self.base, self.len) };
    }
}

/// The trace memfds that process `pid` has open, as paths below `/proc/PID/fd`.
///
/// # Errors
///
/// Those of reading that folder.
pub fn of_process(pid: u32) -> io::Result<Vec<PathBuf>> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd"))?;
    let paths = fds.flatten().map(|entry| entry.path());
    let ours = |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.as_os_str() == LINK);
    Ok(paths.filter(ours).collect())
}

/// The identity of the file at `path`; `None` if it is no regular file.
pub fn id_of(path: &Path) -> Option<Id> {
    let meta = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((meta.dev(), meta.ino()))
}

impl Target {
    /// Begins to trace process `pid` through its memfd at `path`. This opens the file again, so the lock is the
    /// tracer's own.
    ///
    /// # Errors
    ///
    /// [`TraceError`], if this user may not open the file, another process traces it, or its format is another one.
    pub fn begin(pid: u32, path: &Path, options: Options) -> Result<Target, TraceError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(failed(format!("this user may not trace process {pid}")))?;
        let cannot = || format!("cannot map the trace ring of process {pid}");
        let meta = file.metadata().map_err(failed(cannot()))?;
        // A process that shortened the file would take mapped memory away.
        let seals = mem::seals(file.as_raw_fd()).unwrap_or(0);
        if seals & libc::F_SEAL_SHRINK == 0 || meta.len() < RING_AT as u64 {
            return Err(TraceError::Incompatible(pid));
        }
        let page = Mapping::of(&file, 0, PAGE_LEN).map_err(failed(cannot()))?;
        let ring = usize::try_from(options.ring).map_err(|_| io::ErrorKind::OutOfMemory);
        let ring = ring.map_err(failed(cannot()))?;
        let memory = Mapping::of(&file, RING_AT, ring).map_err(failed(cannot()))?;
        let mut target = Target {
            pid,
            life: life(pid),
            file,
            page,
            memory,
            reader: Reader { tail: 0 },
            options,
            dropped: [0; 2],
            stuck: None,
            restarts: 0,
        };
        let page = target.page();
        let ready = page.magic.load(Ordering::Acquire) == MAGIC
            && page.version.load(Ordering::Relaxed) == VERSION
            && page.ring_at.load(Ordering::Relaxed) as usize == RING_AT;
        if !ready {
            return Err(TraceError::Incompatible(pid));
        }
        target.lock()?;
        target.dropped = target.dropped_now();
        target.switch_on()?;
        Ok(target)
    }

    fn page(&self) -> &Page {
        self.page.words()
    }

    fn lock(&self) -> Result<(), TraceError> {
        for _ in 0..LOCK_TRIES {
            if memlane_sys::fd::try_lock(self.file.as_raw_fd()).is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(10));
        }
        Err(TraceError::Busy {
            pid: self.pid,
            tracer: self.page().tracer.load(Ordering::Relaxed),
        })
    }

    /// Starts with an empty ring, from the place that the process has reached.
    fn switch_on(&mut self) -> Result<(), TraceError> {
        self.switch_off();
        self.clear_ring().map_err(failed(format!(
            "cannot make the ring of process {}",
            self.pid
        )))?;
        let tail = self.page().head.load(Ordering::Acquire);
        self.reader.tail = tail;
        self.stuck = None;
        let page = self.page();
        page.tail.store(tail, Ordering::Release);
        page.ring_size.store(self.options.ring, Ordering::Relaxed);
        page.snaplen.store(self.options.snaplen, Ordering::Relaxed);
        page.port
            .store(u32::from(self.options.port), Ordering::Relaxed);
        page.tracer.store(std::process::id(), Ordering::Relaxed);
        page.error.store(0, Ordering::Relaxed);
        page.on.store(1, Ordering::SeqCst);
        Ok(())
    }

    /// Makes the file long enough for the ring, and its pages empty.
    fn clear_ring(&self) -> io::Result<()> {
        let end = RING_AT as u64 + self.options.ring;
        if self.file.metadata()?.len() < end {
            self.file.set_len(end)?;
        }
        memlane_sys::fd::punch(self.file.as_raw_fd(), RING_AT as u64, self.options.ring)
            .map_err(from_errno)
    }

    /// Stops new records, and waits for those that are being written (up to [`QUIET_WITHIN`]).
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

    /// Takes the next record; its payload goes to `payload`. `None`: there is none now. An impossible record restarts the
    /// ring.
    pub fn next(&mut self, payload: &mut [u8; SEGMENT]) -> Option<Record> {
        // SAFETY: the mapping lives as long as `self`; the file is at least as long as the mapping and is sealed against
        // shrinking.
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

    /// Whether the process still runs.
    pub fn is_alive(&self) -> bool {
        let Some(life) = &self.life else {
            return fs::exists(format!("/proc/{}", self.pid)).unwrap_or(false);
        };
        let mut end = [rustix::event::PollFd::new(
            life,
            rustix::event::PollFlags::IN,
        )];
        !matches!(rustix::event::poll(&mut end, Some(&NOW)), Ok(n) if n > 0)
    }

    /// A descriptor that becomes readable when the process ends.
    pub fn life(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.life.as_ref().map(AsFd::as_fd)
    }

    /// Ends the trace. Records written so far can still be taken with [`next`](Target::next); no others follow.
    pub fn end(&mut self) {
        self.switch_off();
    }

    fn dropped_now(&self) -> [u64; 2] {
        let page = self.page();
        [&page.dropped_records, &page.dropped_bytes].map(|w| w.load(Ordering::Relaxed))
    }

    /// Records, and bytes of streams, that were dropped because the ring was full.
    pub fn dropped(&self) -> [u64; 2] {
        let now = self.dropped_now();
        [0, 1].map(|i| now[i].saturating_sub(self.dropped[i]))
    }

    /// Why the process could not map its ring, if it could not.
    pub fn complaint(&self) -> Option<String> {
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
        // This gives the memory back; closing the file releases the lock.
        let _ = memlane_sys::fd::punch(self.file.as_raw_fd(), RING_AT as u64, self.options.ring);
    }
}

const NOW: rustix::event::Timespec = rustix::event::Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

fn life(pid: u32) -> Option<OwnedFd> {
    let raw = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(raw, rustix::process::PidfdFlags::empty()).ok()
}

/// The trace memfds of process `pid`, at least one.
///
/// # Errors
///
/// [`TraceError`], if the process is not there, belongs to another user, or has none.
pub fn find(pid: u32) -> Result<Vec<PathBuf>, TraceError> {
    let cannot = || format!("process {pid}");
    if !fs::exists(format!("/proc/{pid}")).map_err(failed(cannot()))? {
        return Err(TraceError::NoProcess(pid));
    }
    match of_process(pid) {
        Ok(paths) if paths.is_empty() => Err(TraceError::NoPage(pid)),
        Ok(paths) => Ok(paths),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(TraceError::Forbidden(pid)),
        Err(e) => Err(failed(cannot())(e)),
    }
}

/// The trace memfds of all processes that this user may trace, with their process ids; not those of this process.
pub fn everybody() -> Vec<(u32, PathBuf)> {
    let pids = processes::pids().unwrap_or_default();
    let others = pids.into_iter().filter(|pid| *pid != std::process::id());
    others
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
