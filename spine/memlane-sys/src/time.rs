//! Clocks. `ticks` is for spin loops (a few ns), `now_ns` for everything else.

use crate::syscall;

/// Monotonic time in nanoseconds, by system call (~130 ns: not for spin loops).
pub fn now_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Wall-clock time in nanoseconds since 1970.
pub fn wall_ns() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

fn clock(id: i32) -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `ts` is writable and of the size that the kernel fills.
    let _ = unsafe { syscall!(libc::SYS_clock_gettime, id, &raw mut ts) };
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

/// Measures how many `ticks` make a microsecond (spends ~50 µs).
pub fn measure_ticks_per_us() -> u64 {
    let (n0, t0) = (now_ns(), ticks());
    loop {
        let n = now_ns();
        if n.saturating_sub(n0) >= 50_000 {
            let per_us = ticks().wrapping_sub(t0) * 1000 / (n - n0).max(1);
            return per_us.max(1);
        }
    }
}
