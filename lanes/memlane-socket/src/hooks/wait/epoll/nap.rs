//! A short sleep on a set, while connections wait for room in their rings.

use super::*;

/// Sleeps for at most `us` microseconds, or for a millisecond where the kernel counts only these (before 5.11).
pub(super) fn nap(ep: &Ep, out: &mut [epoll_event], us: u64) -> c_int {
    let ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: (us * 1000).cast_signed(),
    };
    let (epfd, at, max) = (ep.fd.load(Ordering::Relaxed), out.as_mut_ptr(), out.len());
    // SAFETY: the program's array; `ts` lives until the call returns.
    let r = unsafe {
        memlane_sys::syscall!(libc::SYS_epoll_pwait2, epfd, at, max, &raw const ts, 0, 0)
    };
    let r = match r {
        // SAFETY: the program's array.
        Err(memlane_sys::Errno(libc::ENOSYS)) => unsafe {
            memlane_sys::syscall!(libc::SYS_epoll_pwait, epfd, at, max, 1, 0, 0)
        },
        other => other,
    };
    match r {
        Ok(n) => n as c_int,
        Err(e) => {
            real::set_errno(e.0);
            -1
        }
    }
}
