//! Is there memory for more of a ring?
//!
//! TCP's buffers shrink where memory is scarce; a ring does not. The kernel charges a ring's pages to the process that
//! touches them first. A memory cgroup that is full then kills one of its processes, and a kernel that counts every
//! page (`vm.overcommit_memory` 2) sends SIGBUS. So a sender asks here before it uses more of a ring. Where little
//! memory is left, everything goes by TCP: receivers park, their rings give their pages back
//! ([`crate::protocol::lane::trim`]), and the program has this memory again.
//!
//! The answer takes into account the limits of the process's own cgroup and of those above it, as far as they can be
//! seen. An answer is good for a number of bytes and for some time. It is no promise: other processes of the group
//! allocate too.

use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memlane_core::access::SharedBytes;
use memlane_core::stats::Counter;
use memlane_sys::{Errno, fd, mem, time};

/// How long an answer is good where there is a limit, in ns …
const LIMITED_NS: u64 = 100_000_000;
/// … and where there is none.
const FREE_NS: u64 = 1_000_000_000;
/// The most bytes that one answer is good for …
const GRANT: u64 = 16 << 20;
/// … and the fraction of what is left that it is good for: other processes of the group ask too.
const GRANT_OF: u64 = 8;
/// The fraction of the limit that is left to the program …
const RESERVE_OF: u64 = 16;
/// … which is no more than this many bytes.
const RESERVE_MOST: u64 = 16 << 20;
/// The memory with which a connection can begin, in bytes: words and the first pages of its rings.
pub const BEGINNING: usize = 32 * 1024;

/// The result of the last look.
struct Answer {
    /// Bytes that may still be used before the time in `again`. The thread that looks writes it; all threads take from
    /// it.
    left: AtomicU64,
    /// When the answer expires (monotonic, ns). Stored after the other words, with release.
    again: AtomicU64,
    /// 1: there was too little memory. The thread that looks writes it; every send reads it.
    scarce: AtomicU32,
    /// 1: there is a limit. The thread that looks writes it; a sender whose window grows reads it.
    limited: AtomicU32,
    /// 1: a thread is looking.
    looking: AtomicU32,
}

static ANSWER: Answer = Answer::NONE;

/// May the library touch `bytes` more bytes?
pub fn allows(bytes: usize) -> bool {
    ANSWER.allows(bytes as u64, time::now_ns(), || usable(&Places::HOST))
}

/// May the library use `len` bytes of the ring, from `at` on, that were not in use? Where there is a limit, this
/// touches them: the next look would not see memory that was granted but not touched yet.
pub fn allows_window(ring: &SharedBytes, at: usize, len: usize) -> bool {
    if !allows(len) {
        return false;
    }
    if ANSWER.limited.load(Ordering::Relaxed) == 0 {
        return true;
    }
    let part = ring.part(at, len).map(|part| NonNull::new(part.as_ptr()));
    let Some(Some(part)) = part else {
        return false;
    };
    // SAFETY: a part of a ring, which is mapped for writing for as long as a view of it exists.
    match unsafe { mem::populate(part, len) } {
        Ok(()) | Err(Errno::INVAL) => true,
        Err(_) => false,
    }
}

/// Is so little memory left that everything should go by TCP?
#[inline(always)]
pub fn is_scarce() -> bool {
    ANSWER.scarce.load(Ordering::Relaxed) != 0 && is_still_scarce()
}

#[cold]
fn is_still_scarce() -> bool {
    allows(BEGINNING);
    ANSWER.scarce.load(Ordering::Relaxed) != 0
}

/// Forgets the answer in the child of a fork. The child has one thread, and that thread is not looking.
pub fn forget() {
    // A write would give the child a page of its own.
    if ANSWER.again.load(Ordering::Relaxed) != 0 || ANSWER.looking.load(Ordering::Relaxed) != 0 {
        ANSWER.looking.store(0, Ordering::Relaxed);
        ANSWER.again.store(0, Ordering::Relaxed);
    }
}

impl Answer {
    #[allow(clippy::declare_interior_mutable_const)] // each use makes a value of its own
    const NONE: Answer = Answer {
        left: AtomicU64::new(0),
        again: AtomicU64::new(0),
        scarce: AtomicU32::new(0),
        limited: AtomicU32::new(0),
        looking: AtomicU32::new(0),
    };

    fn allows(&self, bytes: u64, now: u64, look: impl FnOnce() -> Option<u64>) -> bool {
        if now < self.again.load(Ordering::Acquire) {
            if self.scarce.load(Ordering::Relaxed) != 0 {
                return false;
            }
            if self.take(bytes) {
                return true;
            }
        }
        let mine = self
            .looking
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        if mine.is_err() {
            // Another thread is looking: the last answer counts.
            return self.scarce.load(Ordering::Relaxed) == 0;
        }
        let yes = self.note(bytes, look(), now);
        self.looking.store(0, Ordering::Release);
        yes
    }

    fn take(&self, bytes: u64) -> bool {
        let taken = self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |left| {
                left.checked_sub(bytes)
            });
        taken.is_ok()
    }

    /// Notes the result of a look, and returns whether `bytes` may be used. `None`: there is no limit.
    fn note(&self, bytes: u64, usable: Option<u64>, now: u64) -> bool {
        let (left, good_for) = match usable {
            None => (u64::MAX, FREE_NS),
            Some(n) => {
                let grant = (n / GRANT_OF).min(GRANT).max(bytes);
                (n.min(grant), LIMITED_NS)
            }
        };
        self.limited
            .store(u32::from(usable.is_some()), Ordering::Relaxed);
        let yes = left >= bytes;
        self.left
            .store(if yes { left - bytes } else { 0 }, Ordering::Relaxed);
        let was = self.scarce.swap(u32::from(!yes), Ordering::Relaxed);
        if !yes && was == 0 {
            super::count(Counter::Scarce, 1);
        }
        self.again.store(now + good_for, Ordering::Release);
        yes
    }
}

// --- what the kernel says -----------------------------------------------------

/// The files and groups that are read.
struct Places<'a> {
    groups: &'a CStr,
    meminfo: &'a CStr,
    overcommit: &'a CStr,
    /// The process's group in cgroup version 2 …
    unified: &'a [u8],
    /// … and in version 1.
    legacy: &'a [u8],
}

impl Places<'static> {
    const HOST: Places<'static> = Places {
        groups: c"/proc/self/cgroup",
        meminfo: c"/proc/meminfo",
        overcommit: c"/proc/sys/vm/overcommit_memory",
        unified: b"/sys/fs/cgroup",
        legacy: b"/sys/fs/cgroup/memory",
    };
}

/// The number of bytes that may be used before any limit is near. `None`: no limit is known.
fn usable(places: &Places<'_>) -> Option<u64> {
    let committed = by_commitment(places);
    let mut text = [0u8; 4096];
    let n = fd::read_file(places.groups, &mut text).unwrap_or(0);
    let mut least = committed;
    for line in text[..n].split(|&b| b == b'\n') {
        let found = match group_of(line) {
            Some((CgroupKind::Unified, path)) => by_groups(&UNIFIED, places.unified, path),
            Some((CgroupKind::Legacy, path)) => by_groups(&LEGACY, places.legacy, path),
            None => None,
        };
        least = match (least, found) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
    least
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CgroupKind {
    Unified,
    Legacy,
}

/// The kind and the path of the group, from a line of `/proc/self/cgroup` that is about memory.
fn group_of(line: &[u8]) -> Option<(CgroupKind, &[u8])> {
    let mut parts = line.splitn(3, |&b| b == b':');
    let (number, names, path) = (parts.next()?, parts.next()?, parts.next()?);
    if names.is_empty() && number == b"0" {
        return Some((CgroupKind::Unified, path));
    }
    let is_memory = names.split(|&b| b == b',').any(|name| name == b"memory");
    is_memory.then_some((CgroupKind::Legacy, path))
}

/// The names of a group's files.
struct Files {
    limits: &'static [&'static [u8]],
    usage: &'static [u8],
    /// Names in `memory.stat` of memory that the kernel can take back.
    reclaimable: [&'static [u8]; 2],
}

const UNIFIED: Files = Files {
    limits: &[b"memory.max", b"memory.high"],
    usage: b"memory.current",
    reclaimable: [b"inactive_file", b"active_file"],
};
const LEGACY: Files = Files {
    limits: &[b"memory.limit_in_bytes"],
    usage: b"memory.usage_in_bytes",
    reclaimable: [b"total_inactive_file", b"total_active_file"],
};
/// cgroup version 1 shows a number above this where there is no limit.
const NO_LIMIT: u64 = 1 << 62;

/// The least of what this group and those above it leave. In a container, `path` may be the host's; then only the
/// outermost group is there.
fn by_groups(files: &Files, base: &[u8], path: &[u8]) -> Option<u64> {
    let mut path = path.strip_suffix(b"/").unwrap_or(path);
    let mut least = None;
    loop {
        if let Some(usable) = in_group(files, base, path) {
            least = Some(least.map_or(usable, |least: u64| least.min(usable)));
        }
        if path.is_empty() {
            return least;
        }
        let up = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
        path = &path[..up];
    }
}

fn in_group(files: &Files, base: &[u8], path: &[u8]) -> Option<u64> {
    let limits = files.limits.iter().filter_map(|name| {
        let mut text = [0u8; 32];
        number(read(base, path, name, &mut text)?)
    });
    let limit = limits.min().filter(|limit| *limit < NO_LIMIT)?;
    let mut text = [0u8; 32];
    let used = number(read(base, path, files.usage, &mut text)?)?;
    let room = limit.saturating_sub(used);
    let reserve = (limit / RESERVE_OF).min(RESERVE_MOST);
    if room >= reserve + 2 * GRANT {
        return Some(room - reserve); // there is enough, even without what the kernel can take back
    }
    let mut text = [0u8; 8192];
    let stat = read(base, path, b"memory.stat", &mut text).unwrap_or_default();
    let cached: u64 = files
        .reclaimable
        .iter()
        .filter_map(|name| field(stat, name))
        .sum();
    // Half of what the kernel can take back: some of it is in use, some must be written to disk first.
    Some((room + cached / 2).saturating_sub(reserve))
}

/// What may still be promised where the kernel counts every page.
fn by_commitment(places: &Places<'_>) -> Option<u64> {
    let mut mode = [0u8; 2];
    let n = fd::read_file(places.overcommit, &mut mode).unwrap_or(0);
    if mode[..n].first() != Some(&b'2') {
        return None;
    }
    let mut text = [0u8; 4096];
    let n = fd::read_file(places.meminfo, &mut text).ok()?;
    let kib = |name| field(&text[..n], name);
    let limit = kib(b"CommitLimit:")?.saturating_mul(1024);
    let promised = kib(b"Committed_AS:")?.saturating_mul(1024);
    let reserve = (limit / RESERVE_OF).min(4 * RESERVE_MOST);
    Some(limit.saturating_sub(promised).saturating_sub(reserve))
}

/// Reads file `name` of the group. `None`: it does not exist, or its path is too long.
fn read<'a>(base: &[u8], path: &[u8], name: &[u8], into: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut whole = [0u8; 512];
    let mut at = 0;
    for piece in [base, path, b"/", name, b"\0"] {
        whole.get_mut(at..at + piece.len())?.copy_from_slice(piece);
        at += piece.len();
    }
    let whole = CStr::from_bytes_until_nul(&whole[..at]).ok()?;
    let n = fd::read_file(whole, into).ok()?;
    Some(&into[..n])
}

/// The number at the start of `text`.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    core::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// The number that follows a name, in a text with lines "name number".
fn field(text: &[u8], name: &[u8]) -> Option<u64> {
    let line = text.split(|&b| b == b'\n').find_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(b" ").then_some(rest)
    })?;
    number(line.trim_ascii_start())
}

#[cfg(test)]
mod tests;
