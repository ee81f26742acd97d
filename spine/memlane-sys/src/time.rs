//! Clocks. `ticks` is for spin loops (a few ns), `now_ns` for everything else.

use crate::elf::{self, Name};
use crate::syscall;
use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Monotonic time in nanoseconds: by system call (0.1 to 0.4 µs), or, after [`use_vdso`], without one (some 30 ns).
pub fn now_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Wall-clock time in nanoseconds since 1970.
pub fn wall_ns() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

/// `clock_gettime` of the kernel's own library (vDSO), or 0. Written by [`use_vdso`], always with the same value, and read
/// by all; it needs no order, because what it points to was there before the program began.
static CLOCK: AtomicUsize = AtomicUsize::new(0);

#[cfg(target_arch = "x86_64")]
const CLOCK_NAME: &core::ffi::CStr = c"__vdso_clock_gettime";
#[cfg(not(target_arch = "x86_64"))]
const CLOCK_NAME: &core::ffi::CStr = c"__kernel_clock_gettime";

/// From now on, clocks are read by the kernel's own library, which lies at `base` (`AT_SYSINFO_EHDR` of getauxval(3); 0: there
/// is none). libc's function would do so, too, but a program may have a `clock_gettime` of its own, whose time stands still.
///
/// # Safety
/// `base` is what the kernel said to this process.
pub unsafe fn use_vdso(base: usize) {
    if base == 0 {
        return;
    }
    // SAFETY: the caller's promise; the kernel's library has its first segment at address 0, and is never unmapped.
    let found = unsafe {
        match elf::dynamic_section(base) {
            0 => 0,
            dynamic => elf::define(base, dynamic, Name::new(CLOCK_NAME)),
        }
    };
    CLOCK.store(found, Ordering::Relaxed);
}

fn clock(id: c_int) -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let found = CLOCK.load(Ordering::Relaxed);
    let mut failed = found == 0;
    if found != 0 {
        type Clock = unsafe extern "C" fn(c_int, *mut libc::timespec) -> c_int;
        // SAFETY: the address of a function with this prototype (vdso(7)).
        let function = unsafe { core::mem::transmute::<usize, Clock>(found) };
        // SAFETY: `ts` is writable and of the size that the function fills.
        failed = unsafe { function(id, &raw mut ts) } != 0;
    }
    if failed {
        // SAFETY: `ts` is writable and of the size that the kernel fills.
        let _ = unsafe { syscall!(libc::SYS_clock_gettime, id, &raw mut ts) };
    }
    u64::try_from(ts.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(ts.tv_nsec).unwrap_or(0)
}

/// Sleeps for `ms` milliseconds, or until a signal comes.
pub fn nap_ms(ms: i64) {
    let ts = libc::timespec {
        tv_sec: ms / 1000,
        tv_nsec: ms % 1000 * 1_000_000,
    };
    // SAFETY: `ts` lives over the call.
    let _ = unsafe { syscall!(libc::SYS_nanosleep, &raw const ts, 0) };
}

/// The CPU's own counter: cheap, monotonic enough for spin budgets, in units
/// that `ticks_per_us` relates to time.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rdtsc exists on every x86-64.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let t: u64;
        // SAFETY: the virtual counter is readable from user space on Linux.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) t, options(nomem, nostack)) };
        t
    }
}

/// The shortest time between two moments that tell how many ticks make a microsecond.
const MEASURED_NS: u64 = 50_000;
/// The longest: a machine that has slept since may count its ticks anew.
const MEASURED_MOST_NS: u64 = 1_000_000_000;

/// One moment, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    ns: u64,
    ticks: u64,
    /// Ticks that went by while the nanoseconds were read. If they are many, the thread lost its CPU meanwhile, and the two times
    /// are not of one moment.
    doubt: u64,
}

impl Moment {
    /// A moment that lies too far back to measure anything from it.
    pub const NEVER: Moment = Moment {
        ns: 0,
        ticks: 0,
        doubt: 0,
    };

    /// This moment.
    pub fn now() -> Moment {
        certain_moment(this_moment)
    }
}

/// Measures how many `ticks` make a microsecond (spends 50 µs).
pub fn measure_ticks_per_us() -> u64 {
    ticks_per_us_since(Moment::now())
}

/// How many `ticks` have made a microsecond since `begin`. Waits until that is 50 µs ago; what lies more than a second back
/// does not count, and the measure begins now. A thread that loses its CPU meanwhile measures for longer, and as exactly.
pub fn ticks_per_us_since(begin: Moment) -> u64 {
    let age = now_ns().saturating_sub(begin.ns);
    let begin = if age <= MEASURED_MOST_NS {
        begin
    } else {
        Moment::now()
    };
    while now_ns().saturating_sub(begin.ns) < MEASURED_NS {}
    let end = Moment::now();
    let ns = end.ns.saturating_sub(begin.ns).max(1);
    (end.ticks.wrapping_sub(begin.ticks) * 1000 / ns).max(1)
}

fn this_moment() -> Moment {
    let before = ticks();
    let ns = now_ns();
    let doubt = ticks().wrapping_sub(before);
    let ticks = before.wrapping_add(doubt / 2);
    Moment { ns, ticks, doubt }
}

/// The most certain of a few moments.
fn certain_moment(mut look: impl FnMut() -> Moment) -> Moment {
    let mut best = look();
    for _ in 1..4 {
        let next = look();
        if next.doubt < best.doubt {
            best = next;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_library_and_its_system_call_tell_the_same_time() {
        let before = [now_ns(), wall_ns()];
        // SAFETY: no pointers; and the kernel's own answer.
        unsafe { use_vdso(libc::getauxval(libc::AT_SYSINFO_EHDR) as usize) };
        let between = [now_ns(), wall_ns()];
        CLOCK.store(0, Ordering::Relaxed);
        let after = [now_ns(), wall_ns()];
        for n in [0, 1] {
            assert!(before[n] <= between[n] && between[n] <= after[n]);
        }
    }

    #[test]
    fn a_moment_at_which_the_thread_lost_its_cpu_does_not_count() {
        for lost in 0..4 {
            let mut looks = 0;
            let moment = certain_moment(|| {
                let doubt = if looks == lost { 8_000_000 } else { 60 + looks };
                looks += 1;
                let (ns, ticks) = (looks, looks);
                Moment { ns, ticks, doubt }
            });
            assert!(moment.doubt < 100, "{moment:?}");
        }
    }
}
