//! libc's `syscall`: the calls that are hooked by name are hooked by number too.
//!
//! Each number goes to the body of the function of its name. Where that body may
//! have to sleep, it sleeps in the very call that the program made.

use crate::bodies;
use core::ffi::{c_int, c_uint, c_void};
use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, sockaddr, socklen_t,
    timespec,
};
use memlane_core::reason::Reason;
use memlane_socket::hooks::calls::{io, life, opts};
use memlane_socket::hooks::uring;
use memlane_socket::hooks::wait::{self as polls, epoll};
use memlane_socket::state::uring::Params;
use memlane_sys::fd::as_fd;

/// `seccomp(2)`: the operations that install a filter (linux/seccomp.h).
const SECCOMP_SET_MODE_STRICT: usize = 0;
const SECCOMP_SET_MODE_FILTER: usize = 1;

/// A call's arguments, as registers.
type Args = [usize; 6];

/// `syscall(2)`.
pub(crate) fn call(nr: usize, a: Args) -> isize {
    let number = nr as i64;
    bytes(number, a)
        .or_else(|| messages(number, a))
        .or_else(|| lives(number, a).map(|r| r as isize))
        .or_else(|| options(number, a).map(|r| r as isize))
        .or_else(|| polled(nr, a).map(|r| r as isize))
        .or_else(|| sets(nr, a).map(|r| r as isize))
        .unwrap_or_else(|| other(nr, a))
}

/// Makes the system call itself.
fn real(nr: usize, a: Args) -> isize {
    memlane_socket::real!(syscall(nr, a[0], a[1], a[2], a[3], a[4], a[5]))
}

/// System calls without a hook. Some of them announce I/O that no hook will see.
fn other(nr: usize, a: Args) -> isize {
    match nr as i64 {
        // Other operations only query.
        libc::SYS_seccomp if matches!(a[0], SECCOMP_SET_MODE_STRICT | SECCOMP_SET_MODE_FILTER) => {
            memlane_socket::protocol::upgrade::freeze(Reason::SANDBOXED);
        }
        libc::SYS_prctl if as_fd(a[0]) == libc::PR_SET_SECCOMP => {
            memlane_socket::protocol::upgrade::freeze(Reason::SANDBOXED);
        }
        libc::SYS_io_uring_setup => return io_uring_setup(nr, a),
        libc::SYS_io_uring_enter => uring::before_enter(as_fd(a[0]), a[1] as u32, a[3] as u32),
        libc::SYS_io_uring_register => uring::before_register(a[1] as u32, a[2], a[3] as u32),
        _ => {}
    }
    real(nr, a)
}

/// Before the call, nobody has submitted anything; after it, the kernel has said where entries lie.
fn io_uring_setup(nr: usize, a: Args) -> isize {
    let fd = real(nr, a);
    if let Ok(fd @ 0..) = c_int::try_from(fd) {
        uring::set_up(fd, a[1] as *const Params);
    }
    fd
}

fn bytes(number: i64, a: Args) -> Option<isize> {
    let fd = as_fd(a[0]);
    let (into, from) = (a[1] as *mut c_void, a[1] as *const c_void);
    let (list, count) = (a[1] as *const iovec, as_fd(a[2]));
    Some(match number {
        libc::SYS_read => io::read(fd, into, a[2]),
        libc::SYS_write => io::write(fd, from, a[2]),
        libc::SYS_readv => io::readv(fd, list, count),
        libc::SYS_writev => io::writev(fd, list, count),
        libc::SYS_preadv2 => bodies::preadv2_body(fd, list, count, a[3] as i64, as_fd(a[5])),
        libc::SYS_pwritev2 => bodies::pwritev2_body(fd, list, count, a[3] as i64, as_fd(a[5])),
        libc::SYS_recvfrom => {
            let (addr, len) = (a[4] as *mut sockaddr, a[5] as *mut socklen_t);
            io::recvfrom(fd, into, a[2], as_fd(a[3]), addr, len)
        }
        libc::SYS_sendto => {
            let (addr, len) = (a[4] as *const sockaddr, a[5] as socklen_t);
            io::sendto(fd, from, a[2], as_fd(a[3]), addr, len)
        }
        libc::SYS_sendfile => io::sendfile(fd, as_fd(a[1]), a[2] as *mut i64, a[3]),
        libc::SYS_splice => {
            let (off_in, off_out) = (a[1] as *mut i64, a[3] as *mut i64);
            io::splice(fd, off_in, as_fd(a[2]), off_out, a[4], a[5] as c_uint)
        }
        _ => return None,
    })
}

fn messages(number: i64, a: Args) -> Option<isize> {
    let (fd, list, count, flags) = (
        as_fd(a[0]),
        a[1] as *mut mmsghdr,
        a[2] as c_uint,
        as_fd(a[3]),
    );
    Some(match number {
        libc::SYS_recvmsg => io::recvmsg(fd, a[1] as *mut msghdr, as_fd(a[2])),
        libc::SYS_sendmsg => io::sendmsg(fd, a[1] as *const msghdr, as_fd(a[2])),
        libc::SYS_recvmmsg => io::recvmmsg(fd, list, count, flags, a[4] as *mut timespec) as isize,
        libc::SYS_sendmmsg => io::sendmmsg(fd, list, count, flags) as isize,
        _ => return None,
    })
}

fn lives(number: i64, a: Args) -> Option<c_int> {
    let (fd, second, third) = (as_fd(a[0]), as_fd(a[1]), as_fd(a[2]));
    let (addr, len) = (a[1] as *mut sockaddr, a[2] as *mut socklen_t);
    Some(match number {
        libc::SYS_socket => life::socket(fd, second, third),
        libc::SYS_connect => life::connect(fd, addr, a[2] as socklen_t),
        libc::SYS_listen => life::listen(fd, second),
        libc::SYS_accept => life::accept(fd, addr, len),
        libc::SYS_accept4 => life::accept4(fd, addr, len, as_fd(a[3])),
        libc::SYS_shutdown => life::shutdown(fd, second),
        libc::SYS_close => life::close(fd),
        libc::SYS_close_range => life::close_range(a[0] as c_uint, a[1] as c_uint, third),
        libc::SYS_dup => life::dup(fd),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => life::dup2(fd, second),
        libc::SYS_dup3 => life::dup3(fd, second, third),
        _ => return None,
    })
}

fn options(number: i64, a: Args) -> Option<c_int> {
    let (fd, level, name) = (as_fd(a[0]), as_fd(a[1]), as_fd(a[2]));
    Some(match number {
        libc::SYS_fcntl => opts::fcntl(fd, as_fd(a[1]), a[2]),
        libc::SYS_ioctl => opts::ioctl(fd, a[1] as u64, a[2]),
        libc::SYS_setsockopt => {
            opts::setsockopt(fd, level, name, a[3] as *const c_void, a[4] as socklen_t)
        }
        libc::SYS_getsockopt => {
            opts::getsockopt(fd, level, name, a[3] as *mut c_void, a[4] as *mut socklen_t)
        }
        _ => return None,
    })
}

fn polled(nr: usize, a: Args) -> Option<c_int> {
    let sleep = || real(nr, a) as c_int;
    let (fds, n) = (a[0] as *mut pollfd, a[1] as nfds_t);
    let three = [a[1], a[2], a[3]].map(|set| set as *mut fd_set);
    Some(match nr as i64 {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => polls::poll(fds, n, polls::limit_ms(as_fd(a[2])), false, sleep),
        libc::SYS_ppoll => {
            let limit = polls::limit_ts(a[2] as *const timespec);
            polls::poll(fds, n, limit, a[3] != 0, sleep)
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => {
            let limit = polls::limit_tv(a[4] as *const libc::timeval);
            let tell = |left| polls::tell_left(a[4], left, 1);
            polls::select(as_fd(a[0]), three, limit, false, tell, sleep)
        }
        libc::SYS_pselect6 => {
            // SAFETY: null, or the program's pair of a mask's address and its length.
            let masked = unsafe { (a[5] as *const usize).as_ref() }.is_some_and(|mask| *mask != 0);
            let limit = polls::limit_ts(a[4] as *const timespec);
            let tell = |left| polls::tell_left(a[4], left, 1000);
            polls::select(as_fd(a[0]), three, limit, masked, tell, sleep)
        }
        _ => return None,
    })
}

fn sets(nr: usize, a: Args) -> Option<c_int> {
    let ep = as_fd(a[0]);
    let (events, max) = (a[1] as *mut epoll_event, as_fd(a[2]));
    let wait = |mask: *const sigset_t| {
        epoll::wait(ep, events, max, as_fd(a[3]), !mask.is_null(), &|e, m, t| {
            memlane_socket::real!(epoll_pwait(ep, e, m, t, mask))
        })
    };
    Some(match nr as i64 {
        libc::SYS_epoll_create1 => bodies::new_epoll(real(nr, a) as c_int),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_create => bodies::new_epoll(real(nr, a) as c_int),
        libc::SYS_epoll_ctl => epoll::ctl(ep, as_fd(a[1]), max, a[3] as *mut epoll_event),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => wait(core::ptr::null()),
        libc::SYS_epoll_pwait => wait(a[4] as *const sigset_t),
        libc::SYS_epoll_pwait2 => {
            let (limit, mask) = (a[3] as *const timespec, a[4] as *const sigset_t);
            bodies::pwait2_body(ep, events, max, limit, mask)
        }
        _ => return None,
    })
}
