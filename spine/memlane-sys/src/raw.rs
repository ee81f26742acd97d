//! The system call instruction itself.

use crate::errno::{Errno, Result};

/// Makes system call `nr` with six arguments; returns the kernel's raw answer.
///
/// # Safety
/// As the system call itself: every pointer among the arguments must be valid
/// for what the kernel does with it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn syscall6(nr: i64, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the x86-64 Linux convention: number in rax, arguments in rdi,
    // rsi, rdx, r10, r8, r9; rcx and r11 are clobbered; the caller vouches for
    // the arguments.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    ret
}

/// Makes system call `nr` with six arguments; returns the kernel's raw answer.
///
/// # Safety
/// As the system call itself: every pointer among the arguments must be valid
/// for what the kernel does with it.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub unsafe fn syscall6(nr: i64, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the arm64 Linux convention: number in x8, arguments in x0..x5,
    // answer in x0; the caller vouches for the arguments.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") nr,
            inlateout("x0") a[0] => ret,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack)
        );
    }
    ret
}

/// Turns the kernel's raw answer into a result.
#[inline(always)]
pub fn check(ret: isize) -> Result<usize> {
    if (-4095..0).contains(&ret) {
        #[allow(clippy::cast_possible_truncation)] // -4095..0 fits
        Err(Errno(-(ret as i32)))
    } else {
        #[allow(clippy::cast_sign_loss)] // addresses come back as negative numbers too
        Ok(ret as usize)
    }
}

/// `syscall!(NR, a, b, …)`: makes the call and returns `Result<usize>`.
/// Arguments are cast to `usize`. An unsafe operation, as the call itself.
#[macro_export]
macro_rules! syscall {
    ($nr:expr $(, $a:expr)* $(,)?) => {{
        #[allow(
            unused_mut,
            unused_assignments,
            clippy::cast_sign_loss,
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            clippy::macro_metavars_in_unsafe
        )]
        let mut args = [0usize; 6];
        let mut _i = 0;
        $( args[_i] = $a as usize; _i += 1; )*
        $crate::raw::check($crate::raw::syscall6($nr as i64, args))
    }};
}
