//! libc's functions that only make a system call, for a program without libc.
//!
//! Where libc's function and the system call differ, the call is as libc makes it.

use core::ffi::{CStr, c_int, c_void};
use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};
use memlane_socket::real;
use memlane_sys::{Result, syscall};

/// Length of the kernel's signal sets.
const SIGSET: usize = 8;

/// The answer as libc's function gives it.
trait Answer {
    fn of(result: Result<usize>) -> Self;
}

impl Answer for c_int {
    fn of(result: Result<usize>) -> c_int {
        result.map_or_else(|e| real::fail(e) as c_int, memlane_sys::fd::as_fd)
    }
}

impl Answer for isize {
    fn of(result: Result<usize>) -> isize {
        result.map_or_else(real::fail, usize::cast_signed)
    }
}

/// `fn name(args) -> ret = NUMBER(arguments of the system call);`
macro_rules! calls {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $number:ident($($given:expr),*);)+) => {
        $(
            unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                // SAFETY: the program's own arguments, or what the library has made of them.
                Answer::of(unsafe { syscall!(libc::$number $(, $given)*) })
            }
        )+

        /// The address of the function of this name; 0: there is none.
        pub(super) fn find(name: &CStr) -> usize {
            match name.to_bytes() {
                $(bytes if bytes == stringify!($name).as_bytes() => $name as *const c_void as usize,)+
                b"syscall" => syscall as *const c_void as usize,
                _ => 0,
            }
        }
    };
}

calls! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = SYS_socket(domain, kind, protocol);
    fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int = SYS_connect(fd, to, len);
    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = SYS_accept(fd, addr, len);
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int = SYS_accept4(fd, addr, len, flags);
    fn listen(fd: c_int, backlog: c_int) -> c_int = SYS_listen(fd, backlog);
    fn shutdown(fd: c_int, how: c_int) -> c_int = SYS_shutdown(fd, how);
    fn close(fd: c_int) -> c_int = SYS_close(fd);
    fn dup(fd: c_int) -> c_int = SYS_dup(fd);
    fn dup2(old: c_int, new: c_int) -> c_int = SYS_dup2(old, new);
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int = SYS_dup3(old, new, flags);
    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = SYS_read(fd, buf, len);
    fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t = SYS_readv(fd, list, count);
    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t = SYS_recvfrom(fd, buf, len, flags, 0, 0);
    fn recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t = SYS_recvfrom(fd, buf, len, flags, from, from_len);
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t = SYS_recvmsg(fd, msg, flags);
    fn recvmmsg(fd: c_int, list: *mut mmsghdr, count: u32, flags: c_int, timeout: *mut timespec) -> c_int = SYS_recvmmsg(fd, list, count, flags, timeout);
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = SYS_write(fd, buf, len);
    fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t = SYS_writev(fd, list, count);
    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t = SYS_sendto(fd, buf, len, flags, 0, 0);
    fn sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t = SYS_sendto(fd, buf, len, flags, to, to_len);
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t = SYS_sendmsg(fd, msg, flags);
    fn sendmmsg(fd: c_int, list: *mut mmsghdr, count: u32, flags: c_int) -> c_int = SYS_sendmmsg(fd, list, count, flags);
    fn sendfile(to: c_int, from: c_int, offset: *mut i64, count: size_t) -> ssize_t = SYS_sendfile(to, from, offset, count);
    fn splice(from: c_int, off_in: *mut i64, to: c_int, off_out: *mut i64, len: size_t, flags: u32) -> ssize_t = SYS_splice(from, off_in, to, off_out, len, flags);
    fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int = SYS_poll(fds, n, timeout);
    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = SYS_ppoll(fds, n, timeout, mask, SIGSET);
    fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int = SYS_select(n, r, w, e, timeout);
    fn epoll_create(size: c_int) -> c_int = SYS_epoll_create(size);
    fn epoll_create1(flags: c_int) -> c_int = SYS_epoll_create1(flags);
    fn epoll_ctl(ep: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int = SYS_epoll_ctl(ep, op, fd, event);
    fn epoll_wait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int = SYS_epoll_wait(ep, events, max, timeout);
    fn epoll_pwait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int = SYS_epoll_pwait(ep, events, max, timeout, mask, SIGSET);
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int = SYS_getsockopt(fd, level, name, value, len);
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int = SYS_setsockopt(fd, level, name, value, len);
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int = SYS_fcntl(fd, command, argument);
    fn ioctl(fd: c_int, request: u64, argument: usize) -> c_int = SYS_ioctl(fd, request, argument);
    fn execve(path: *const u8, argv: *const *const u8, envp: *const *const u8) -> c_int = SYS_execve(path, argv, envp);
    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int = SYS_prctl(option, a, b, c, d);
}

unsafe extern "C" fn syscall(
    number: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    // SAFETY: the program's own arguments.
    Answer::of(unsafe { syscall!(number, a, b, c, d, e, f) })
}
