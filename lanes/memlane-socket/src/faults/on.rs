//! The same with faults: only tests are built with this.

use super::{STEPS, Step};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use memlane_sys::proc;

const KILL: u32 = 1;
const STOP: u32 = 2;
const DELAY: u32 = 3;

/// The step (its number + 1; 0: none), what happens there, and at which time (counts down). Written by `read`, before
/// the program runs; `LEFT` by every thread that gets to the step.
static STEP: AtomicU32 = AtomicU32::new(0);
static ACTION: AtomicU32 = AtomicU32::new(0);
static LEFT: AtomicI32 = AtomicI32::new(0);

/// Bits of `VERSIONS`: another version of the handshake, of the chunk, the first of either.
const WIRE: u32 = 1;
const CHUNK: u32 = 2;
const FIRST: u32 = 4;
/// Written by `read`.
static VERSIONS: AtomicU32 = AtomicU32::new(0);

/// Written by `read`; negative: as many as ever.
static GROUPS: AtomicI32 = AtomicI32::new(-1);

/// Takes `MEMLANE_FAULT`. What it does not understand is reported: a test that asks for nothing would show nothing.
pub fn read(text: Option<&[u8]>) {
    for fault in text.unwrap_or_default().split(|&b| b == b',') {
        if !fault.is_empty() && !one(fault) {
            proc::write_stderr(b"memlane: MEMLANE_FAULT names no such fault: ");
            proc::write_stderr(fault);
            proc::write_stderr(b"\n");
        }
    }
}

fn one(fault: &[u8]) -> bool {
    let mut parts = fault.split(|&b| b == b':');
    let (name, action) = (parts.next().unwrap_or_default(), parts.next());
    if name == b"version" {
        let bit = match action {
            Some(b"wire") => WIRE,
            Some(b"chunk") => CHUNK,
            Some(b"first") => FIRST,
            _ => return false,
        };
        VERSIONS.fetch_or(bit, Ordering::Relaxed);
        return true;
    }
    if name == b"groups" {
        let count = action.and_then(number);
        GROUPS.store(count.unwrap_or(-1), Ordering::Relaxed);
        return count.is_some();
    }
    let action = match action {
        Some(b"kill") => KILL,
        Some(b"stop") => STOP,
        Some(b"delay") => DELAY,
        _ => return false,
    };
    let times = parts.next().map_or(Some(1), number);
    let step = STEPS.iter().position(|(n, ..)| n.as_bytes() == name);
    let (Some(step), Some(times)) = (step, times) else {
        return false;
    };
    ACTION.store(action, Ordering::Relaxed);
    LEFT.store(times, Ordering::Relaxed);
    STEP.store(u32::try_from(step + 1).unwrap_or(0), Ordering::Release);
    true
}

fn number(text: &[u8]) -> Option<i32> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// The process is at this step.
pub fn at(step: Step) {
    if STEP.load(Ordering::Acquire) == step as u32 + 1 && LEFT.fetch_sub(1, Ordering::AcqRel) == 1 {
        act();
    }
}

/// How many of `len` bytes are to be done before the process is at this step, if it is to fail there.
pub fn half(step: Step, len: usize) -> usize {
    let due = STEP.load(Ordering::Acquire) == step as u32 + 1 && LEFT.load(Ordering::Acquire) == 1;
    if due { len / 2 } else { len }
}

fn act() {
    let signal = match ACTION.load(Ordering::Relaxed) {
        KILL => libc::SIGKILL,
        STOP => libc::SIGSTOP,
        _ => return dawdle(),
    };
    // SAFETY: no pointers are passed.
    let _ = unsafe { memlane_sys::syscall!(libc::SYS_kill, proc::pid(), signal) };
}

fn dawdle() {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    // SAFETY: the time lives over the call, and the rest is not asked for.
    let _ = unsafe { memlane_sys::syscall!(libc::SYS_nanosleep, &raw const time, 0) };
}

fn is_set(bit: u32) -> bool {
    VERSIONS.load(Ordering::Relaxed) & bit != 0
}

/// The version that is said.
pub fn wire_version(own: u8) -> u8 {
    if is_set(WIRE) { own + 1 } else { own }
}

/// The version of the chunk that this process claims.
pub fn chunk_version(own: u32) -> u32 {
    if is_set(CHUNK) { own + 1 } else { own }
}

/// How many link groups there may be.
pub fn groups(own: usize) -> usize {
    usize::try_from(GROUPS.load(Ordering::Relaxed)).map_or(own, |n| n.min(own))
}

/// What is said that this release can do.
pub fn features(own: u8) -> u8 {
    if is_set(FIRST) { 0 } else { own }
}
