//! Is there memory for more of a ring?
//!
//! TCP's buffers shrink where memory is scarce; a ring does not. Its pages are
//! charged to whoever touches them first: a memory cgroup that is full ends one
//! of its processes then, and a kernel that counts every page
//! (`vm.overcommit_memory` 2) sends SIGBUS. So who is about to use more of a ring
//! asks here, and where little is left, everything goes by TCP: receivers park,
//! their rings are given back ([`crate::protocol::lane::trim`]), and what the program needs
//! is there again.
//!
//! Asked about are the limits of the process's own cgroup and of those above it,
//! as far as they can be seen. An answer is good for so many bytes and for so
//! long. It is no promise: others in the group allocate too.

use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memlane_core::access::SharedBytes;
use memlane_core::stats::Counter;
use memlane_sys::{Errno, fd, mem, time};

/// How long an answer is good: there is a limit …
const LIMITED_NS: u64 = 100_000_000;
/// … or none.
const FREE_NS: u64 = 1_000_000_000;
/// Most bytes that one answer is good for …
const GRANT: u64 = 16 << 20;
/// … and this part of what is left: there are other processes in the group, and they ask too.
const GRANT_OF: u64 = 8;
/// What is left to the program: this part of the limit …
const RESERVE_OF: u64 = 16;
/// … but no more than this.
const RESERVE_MOST: u64 = 16 << 20;
/// Room in which a connection can begin: words, first pages of its rings.
pub const BEGINNING: usize = 32 * 1024;

/// What the last look has found.
struct Answer {
    /// Bytes that may still be used, until … Written by whoever looks, taken from by all.
    left: AtomicU64,
    /// … this time (monotonic, ns). Stored after the others, with release.
    again: AtomicU64,
    /// 1 = there was too little. Written by whoever looks, read by every send.
    scarce: AtomicU32,
    /// 1 = there is a limit. Likewise; read by who grows.
    limited: AtomicU32,
    /// 1 = somebody is looking.
    looking: AtomicU32,
}

static ANSWER: Answer = Answer::NONE;

/// May so many bytes more be touched?
pub fn allows(bytes: usize) -> bool {
    ANSWER.allows(bytes as u64, time::now_ns(), || usable(&Places::HOST))
}

/// May `len` bytes of the ring, from `at` on, be used that were not in use? Where there is a limit, they are there
/// when this returns: what was granted and is touched much later would be missing in what the next look finds.
pub fn allows_part(ring: &SharedBytes, at: usize, len: usize) -> bool {
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
    // SAFETY: a part of a ring that is mapped for writing, as long as it can be named.
    match unsafe { mem::populate(part, len) } {
        Ok(()) | Err(Errno::INVAL) => true,
        Err(_) => false,
    }
}

/// Is there so little that everything should go by TCP?
#[inline(always)]
pub fn is_scarce() -> bool {
    ANSWER.scarce.load(Ordering::Relaxed) != 0 && is_still_scarce()
}

#[cold]
fn is_still_scarce() -> bool {
    allows(BEGINNING);
    ANSWER.scarce.load(Ordering::Relaxed) != 0
}

/// In the child of a fork, which has one thread: nobody looks.
pub fn forget() {
    ANSWER.looking.store(0, Ordering::Relaxed);
    ANSWER.again.store(0, Ordering::Relaxed);
}

impl Answer {
    #[allow(clippy::declare_interior_mutable_const)] // each use is one of its own
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
            // Somebody else is looking just now: what was known before counts.
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

    /// Notes what a look has found; `None`: no limit.
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

/// Where it says so.
struct Places<'a> {
    groups: &'a CStr,
    meminfo: &'a CStr,
    overcommit: &'a CStr,
    /// Of cgroup 2 …
    unified: &'a [u8],
    /// … and of version 1.
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

/// Bytes that may be used before any limit is near. `None`: none is known.
fn usable(places: &Places<'_>) -> Option<u64> {
    let committed = by_commitment(places);
    let mut text = [0u8; 4096];
    let n = fd::read_file(places.groups, &mut text).unwrap_or(0);
    let mut least = committed;
    for line in text[..n].split(|&b| b == b'\n') {
        let found = match group_of(line) {
            Some((Kind::Unified, path)) => by_groups(&UNIFIED, places.unified, path),
            Some((Kind::Legacy, path)) => by_groups(&LEGACY, places.legacy, path),
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
enum Kind {
    Unified,
    Legacy,
}

/// A line of `/proc/self/cgroup` about memory, and the group's path.
fn group_of(line: &[u8]) -> Option<(Kind, &[u8])> {
    let mut parts = line.splitn(3, |&b| b == b':');
    let (number, names, path) = (parts.next()?, parts.next()?, parts.next()?);
    if names.is_empty() && number == b"0" {
        return Some((Kind::Unified, path));
    }
    let is_memory = names.split(|&b| b == b',').any(|name| name == b"memory");
    is_memory.then_some((Kind::Legacy, path))
}

/// The files of a group.
struct Files {
    limits: &'static [&'static [u8]],
    usage: &'static [u8],
    /// Lines of `memory.stat`: what the kernel can take back.
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
/// Version 1 says so where there is no limit.
const NO_LIMIT: u64 = 1 << 62;

/// The least of this group and those above it. In a container, `path` may be the host's: then only the last is there.
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
        return Some(room - reserve); // without asking what else there is
    }
    let mut text = [0u8; 8192];
    let stat = read(base, path, b"memory.stat", &mut text).unwrap_or_default();
    let cached: u64 = files
        .reclaimable
        .iter()
        .filter_map(|name| field(stat, name))
        .sum();
    // Half of it: some is in use, some has to be written first.
    Some((room + cached / 2).saturating_sub(reserve))
}

/// Where the kernel counts every page: what may still be promised.
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

/// Reads file `name` of the group; `None`: it is not there, or cannot be named here.
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

/// The number that `text` begins with.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    core::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// The number behind a name, in a text of lines "name number".
fn field(text: &[u8], name: &[u8]) -> Option<u64> {
    let line = text.split(|&b| b == b'\n').find_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(b" ").then_some(rest)
    })?;
    number(line.trim_ascii_start())
}

#[cfg(test)]
mod tests;
