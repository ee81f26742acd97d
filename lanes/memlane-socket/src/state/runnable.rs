//! How many threads of this machine want to run?
//!
//! The kernel counts the threads that run or wait for a CPU, in `/proc/loadavg`. A thread that spins is one of them. If there are
//! more of them than CPUs, a thread that spins keeps another one from its work, perhaps one that holds a lock which the
//! awaited peer wants.

use crate::state::process::{self, PROCESS};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memlane_sys::fd;
use memlane_sys::time::ticks;

/// How long the threads of a process use an answer, in microseconds. Asking costs 1 to 2 µs.
const FRESH_US: u64 = 20;

/// The number of CPUs that are switched on; 0: not known yet.
static CPUS: AtomicU32 = AtomicU32::new(0);
/// When the kernel was last asked, in `ticks`, and its answer. Any thread writes both, relaxed: an answer is a hint.
static ASKED: AtomicU64 = AtomicU64::new(0);
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// For tests: the number of runnable threads; 0: as the kernel says.
#[cfg(test)]
pub static PRETENDED: AtomicU32 = AtomicU32::new(0);

/// For tests: the number of CPUs; 0: as the kernel says.
#[cfg(test)]
pub static PRETENDED_CPUS: AtomicU32 = AtomicU32::new(0);

/// Are there more runnable threads than CPUs? `false` if the kernel does not say.
pub fn are_more_than_cpus() -> bool {
    running() > cpus()
}

/// Has this machine only one CPU? Then nothing that a spin waits for can come while it spins.
pub fn is_cpu_the_only_one() -> bool {
    cpus() == 1
}

/// The number of runnable threads of this machine, as asked lately; 0 if the kernel does not say.
fn running() -> u32 {
    #[cfg(test)]
    if PRETENDED.load(Ordering::Relaxed) != 0 {
        return PRETENDED.load(Ordering::Relaxed);
    }
    let now = ticks();
    let age = now.wrapping_sub(ASKED.load(Ordering::Relaxed));
    if age < FRESH_US * PROCESS.ticks_per_us.load(Ordering::Relaxed) {
        return RUNNING.load(Ordering::Relaxed);
    }
    ASKED.store(now, Ordering::Relaxed);
    let running = ask().unwrap_or(0);
    RUNNING.store(running, Ordering::Relaxed);
    running
}

/// Asks the kernel for the number of runnable threads.
fn ask() -> Option<u32> {
    let mut text = [0u8; 64];
    let n = fd::read_at(loadavg()?, &mut text, 0).ok()?;
    parse_running(text.get(..n)?)
}

/// The descriptor of `/proc/loadavg`, which the first thread that asks opens.
fn loadavg() -> Option<i32> {
    let have = PROCESS.loadavg.load(Ordering::Acquire);
    if have != -1 {
        return (have >= 0).then_some(have);
    }
    let opened = fd::open_read(c"/proc/loadavg").map_or(-1, process::hide);
    let raw = if opened < 0 { -2 } else { opened };
    match PROCESS
        .loadavg
        .compare_exchange(-1, raw, Ordering::AcqRel, Ordering::Acquire)
    {
        Ok(_) => (raw >= 0).then_some(raw),
        Err(first) => {
            process::unhide(raw); // another thread was first
            (first >= 0).then_some(first)
        }
    }
}

/// The number of runnable threads in a text like `0.20 0.18 0.12 1/80 11206`.
fn parse_running(text: &[u8]) -> Option<u32> {
    let field = text.split(|&b| b == b' ').nth(3)?;
    number(field.split(|&b| b == b'/').next()?)
}

/// The number of CPUs that are switched on.
fn cpus() -> u32 {
    #[cfg(test)]
    if PRETENDED_CPUS.load(Ordering::Relaxed) != 0 {
        return PRETENDED_CPUS.load(Ordering::Relaxed);
    }
    let have = CPUS.load(Ordering::Relaxed);
    if have != 0 {
        return have;
    }
    let mut text = [0u8; 256];
    let read = fd::read_file(c"/sys/devices/system/cpu/online", &mut text);
    let online = read.ok().and_then(|n| parse_cpus(text.get(..n)?));
    let cpus = online.unwrap_or(u32::MAX);
    CPUS.store(cpus, Ordering::Relaxed);
    cpus
}

/// The number of CPUs in a list like `0-3,8\n`.
fn parse_cpus(text: &[u8]) -> Option<u32> {
    let list = text.strip_suffix(b"\n").unwrap_or(text);
    let mut sum = 0u32;
    for range in list.split(|&b| b == b',') {
        let mut ends = range.split(|&b| b == b'-');
        let first = number(ends.next()?)?;
        let last = ends.next().map_or(Some(first), number)?;
        sum = sum.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(sum)
}

fn number(digits: &[u8]) -> Option<u32> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_texts_are_understood() {
        assert_eq!(parse_running(b"0.20 0.18 0.12 17/80 11206\n"), Some(17));
        assert_eq!(parse_running(b"0.20 0.18"), None);
        assert_eq!(parse_running(b""), None);
        assert_eq!(parse_cpus(b"0\n"), Some(1));
        assert_eq!(parse_cpus(b"0-1\n"), Some(2));
        assert_eq!(parse_cpus(b"0-3,8,10-11\n"), Some(7));
        assert_eq!(parse_cpus(b"3-1\n"), None);
        assert_eq!(parse_cpus(b"\n"), None);
    }
}
