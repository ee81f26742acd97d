//! Socket options, fcntl and ioctl: calls that the lane must know of, and those that it answers itself.

use crate::protocol::lane::tune;
use crate::real;
use crate::state::process::{self, conn_of};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use libc::socklen_t;
use memlane_core::reason::Reason;
use memlane_core::stats::Counter;

fn int_at(value: *const c_void, len: socklen_t) -> c_int {
    if value.is_null() || (len as usize) < 4 {
        return 0;
    }
    // SAFETY: the program's value of at least four bytes.
    unsafe { value.cast::<c_int>().read_unaligned() }
}

/// Is this an option whose effect only TCP can have?
fn ends_lane(level: c_int, name: c_int, value: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => match name {
            libc::SO_RCVLOWAT => value > 1,
            libc::SO_TIMESTAMPING | libc::SO_OOBINLINE => value != 0,
            _ => false,
        },
        libc::IPPROTO_TCP => {
            matches!(
                name,
                libc::TCP_ULP | libc::TCP_REPAIR | libc::TCP_MD5SIG | libc::TCP_ZEROCOPY_RECEIVE
            )
        }
        _ => false,
    }
}

/// `setsockopt(2)`.
pub fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let Some(conn) = conn_of(fd) else {
        return real!(setsockopt(fd, level, name, value, len));
    };
    super::touch(&conn);
    let number = int_at(value, len);
    if ends_lane(level, name, number) {
        crate::protocol::upgrade::bar(&conn, Reason::OPTION);
    }
    if level == libc::IPPROTO_TCP && name == libc::TCP_NODELAY {
        process::count(Counter::NoDelay, 1);
    }
    if level == libc::IPPROTO_TCP && len >= 4 && tune::set_by_program(&conn, name, number) {
        return 0;
    }
    if level == libc::IPPROTO_TCP && name == libc::TCP_CORK {
        process::count(Counter::Cork, 1);
    }
    let r = real!(setsockopt(fd, level, name, value, len));
    if r == 0 {
        super::control::note(&conn, level, name, number != 0);
    }
    r
}

/// `getsockopt(2)`.
pub fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let r = real!(getsockopt(fd, level, name, value, len));
    if r == 0
        && level == libc::IPPROTO_TCP
        && let Some(conn) = conn_of(fd)
        && let Some(own) = tune::shown_to_program(&conn, name)
        // SAFETY: the kernel has just written it.
        && unsafe { *len } >= 4
    {
        // SAFETY: the kernel has just written four bytes there.
        unsafe { value.cast::<c_int>().write_unaligned(own) };
    }
    r
}

/// `fcntl(2)`.
pub fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    let r = real!(fcntl(fd, cmd, arg));
    if r < 0 {
        return r;
    }
    match cmd {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => super::life::duplicated(fd, r),
        libc::F_SETFL => {
            if let Some(conn) = conn_of(fd) {
                let flags = memlane_sys::fd::as_fd(arg);
                conn.shared()
                    .nonblock
                    .store(u32::from(flags & libc::O_NONBLOCK != 0), Ordering::Relaxed);
                if flags & libc::O_ASYNC != 0 {
                    crate::protocol::upgrade::bar(&conn, Reason::WAIT_KIND);
                }
            }
        }
        _ => {}
    }
    r
}

/// `ioctl(2)`.
pub fn ioctl(fd: c_int, request: u64, arg: usize) -> c_int {
    let r = real!(ioctl(fd, request, arg));
    if r != 0 {
        return r;
    }
    // The upper half of the word does not belong to a request.
    let request = request & 0xffff_ffff;
    if !matches!(request, libc::FIONBIO | libc::FIONREAD | libc::FIOASYNC) {
        return r;
    }
    let Some(conn) = conn_of(fd) else { return r };
    super::touch(&conn);
    let word = arg as *mut c_int;
    match request {
        // SAFETY: the kernel has just read the program's word.
        libc::FIONBIO => conn
            .shared()
            .nonblock
            .store(u32::from(unsafe { *word } != 0), Ordering::Relaxed),
        // SAFETY: the kernel has just read the program's word.
        libc::FIOASYNC if unsafe { *word } != 0 => {
            crate::protocol::upgrade::bar(&conn, Reason::WAIT_KIND)
        }
        libc::FIONREAD => {
            // SAFETY: the kernel has just written the program's word.
            let by_tcp = u64::try_from(unsafe { *word }).unwrap_or(0);
            let sum = crate::protocol::lane::readable_now(&conn, by_tcp);
            // SAFETY: the kernel has just written the program's word.
            unsafe { *word = c_int::try_from(sum).unwrap_or(c_int::MAX) };
        }
        _ => {}
    }
    r
}
