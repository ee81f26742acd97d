//! The LD_PRELOAD library: the table of hooked calls and nothing else.
//!
//! Each line of the table is one libc name and the body that answers it
//! (`memlane-socket::hooks`). It does not allocate, lock or call
//! hooked names; a test checks the built file for that (`nm -D`).
#![no_std]
// Arguments are passed on as the ABI has them.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]
#![allow(missing_docs)] // the names are libc's: their manual pages document them

#[cfg(target_arch = "x86_64")]
mod alone;
mod bodies;
mod c_library;
mod golang;
mod liburing;
mod numbers;
mod ready;
mod search;
mod stdio;
mod stdio_musl;
mod threads;

use bodies::*;
use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};
use memlane_socket::hooks::calls::{aio, io, life, opts, signals};
use memlane_socket::hooks::fork;
use memlane_socket::hooks::handoff::target::Program;
use memlane_socket::hooks::wait::{self as polls, epoll};
use memlane_socket::state::process;
use ready::ready;

/// The version text that `memlane` searches for in the file. It does not preload a library of another version.
#[used]
static VERSION: [u8; 31 + VERSION_TEXT.len()] = version_mark();
const VERSION_TEXT: &[u8] = env!("CARGO_PKG_VERSION").as_bytes();

const fn version_mark() -> [u8; 31 + VERSION_TEXT.len()] {
    let mut mark = [0u8; 31 + VERSION_TEXT.len()];
    let name = b"\0memlane-preload of version: <";
    let mut i = 0;
    while i < name.len() {
        mark[i] = name[i];
        i += 1;
    }
    let mut j = 0;
    while j < VERSION_TEXT.len() {
        mark[i + j] = VERSION_TEXT[j];
        j += 1;
    }
    mark[i + j] = b'>';
    mark
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    memlane_sys::proc::write_stderr(
        b"memlane: internal error; please report it. MEMLANE_DISABLE=1 switches memlane off.\n",
    );
    // SAFETY: ends the process; there is no state that could be trusted any more.
    unsafe { libc::abort() }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn start() {
    ready();
}

extern "C" fn end() {
    fork::at_exit();
}

/// `fn name(args) -> ret => body;` — one hooked call.
macro_rules! hooks {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty => $body:expr;)+) => {
        $(
            /// # Safety
            /// As libc's function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                ready();
                $body
            }
        )+
    };
}

/// `name => target;` — a name whose arguments the C shim has to unpack first.
macro_rules! shims {
    ($($name:ident => $target:literal;)+) => {
        $(
            /// # Safety
            /// As libc's function of this name.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(concat!("jmp ", $target));
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(concat!("b ", $target));
            }
        )+
    };
}

hooks! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int => life::socket(domain, kind, protocol);
    fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int => life::connect(fd, to, len);
    fn listen(fd: c_int, backlog: c_int) -> c_int => life::listen(fd, backlog);
    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int => life::accept(fd, addr, len);
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int => life::accept4(fd, addr, len, flags);
    fn shutdown(fd: c_int, how: c_int) -> c_int => life::shutdown(fd, how);
    fn close(fd: c_int) -> c_int => life::close(fd);
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int => life::close_range(first, last, flags);
    fn closefrom(first: c_int) -> () => life::closefrom(first);
    fn dup(fd: c_int) -> c_int => life::dup(fd);
    fn dup2(old: c_int, new: c_int) -> c_int => life::dup2(old, new);
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int => life::dup3(old, new, flags);

    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t => io::read(fd, buf, len);
    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t => { fits(len, room); io::read(fd, buf, len) };
    fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t => io::readv(fd, list, count);
    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t => io::recv(fd, buf, len, flags);
    fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t => { fits(len, room); io::recv(fd, buf, len, flags) };
    fn recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t => io::recvfrom(fd, buf, len, flags, from, from_len);
    fn __recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t => { fits(len, room); io::recvfrom(fd, buf, len, flags, from, from_len) };
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t => io::recvmsg(fd, msg, flags);
    fn recvmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int => io::recvmmsg(fd, list, count, flags, timeout);
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t => io::write(fd, buf, len);
    fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t => io::writev(fd, list, count);
    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t => io::send(fd, buf, len, flags);
    fn sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t => io::sendto(fd, buf, len, flags, to, to_len);
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t => io::sendmsg(fd, msg, flags);
    fn sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int => io::sendmmsg(fd, list, count, flags);
    fn sendfile(to: c_int, from: c_int, offset: *mut i64, count: size_t) -> ssize_t => io::sendfile(to, from, offset, count);
    fn sendfile64(to: c_int, from: c_int, offset: *mut i64, count: size_t) -> ssize_t => io::sendfile(to, from, offset, count);
    fn splice(from: c_int, off_in: *mut i64, to: c_int, off_out: *mut i64, len: size_t, flags: c_uint) -> ssize_t => io::splice(from, off_in, to, off_out, len, flags);

    fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int => polls::poll(fds, n, polls::limit_ms(timeout), false, || memlane_socket::real!(poll(fds, n, timeout)));
    fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, room: size_t) -> c_int => { fits(n as usize * size_of::<pollfd>(), room); polls::poll(fds, n, polls::limit_ms(timeout), false, || memlane_socket::real!(poll(fds, n, timeout))) };
    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int => ppoll_body(fds, n, timeout, mask);
    fn __ppoll_chk(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int => { fits(n as usize * size_of::<pollfd>(), room); ppoll_body(fds, n, timeout, mask) };
    fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int => select_body(n, r, w, e, timeout);
    fn pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int => pselect_body(n, r, w, e, timeout, mask);
    fn epoll_create(size: c_int) -> c_int => new_epoll(memlane_socket::real!(epoll_create(size)));
    fn epoll_create1(flags: c_int) -> c_int => new_epoll(memlane_socket::real!(epoll_create1(flags)));
    fn epoll_ctl(ep: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int => epoll::ctl(ep, op, fd, event);
    fn epoll_wait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int => epoll::wait(ep, events, max, timeout, false, &|e, m, t| memlane_socket::real!(epoll_wait(ep, e, m, t)));
    fn epoll_pwait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int => epoll::wait(ep, events, max, timeout, !mask.is_null(), &|e, m, t| memlane_socket::real!(epoll_pwait(ep, e, m, t, mask)));
    fn epoll_pwait2(ep: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int => pwait2_body(ep, events, max, timeout, mask);

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int => opts::getsockopt(fd, level, name, value, len);
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int => opts::setsockopt(fd, level, name, value, len);

    fn fdopen(fd: c_int, how: *const u8) -> *mut c_void => fdopen_body(fd, how);
    fn fclose(stream: *mut c_void) -> c_int => fclose_body(stream);
    fn freopen(path: *const u8, how: *const u8, stream: *mut c_void) -> *mut c_void => stdio::reopen(path, how, stream);
    fn freopen64(path: *const u8, how: *const u8, stream: *mut c_void) -> *mut c_void => stdio::reopen(path, how, stream);
    fn system(command: *const u8) -> c_int => system_body(command);
    fn popen(command: *const u8, how: *const u8) -> *mut c_void => popen_body(command, how);
    fn aio_read(control: *mut c_void) -> c_int => aio::read(control).unwrap_or_else(|| memlane_socket::real!(aio_read(control)));
    fn aio_write(control: *mut c_void) -> c_int => { aio::write(control); memlane_socket::real!(aio_write(control)) };
    fn aio_read64(control: *mut c_void) -> c_int => aio::read(control).unwrap_or_else(|| memlane_socket::real!(aio_read(control)));
    fn aio_write64(control: *mut c_void) -> c_int => { aio::write(control); memlane_socket::real!(aio_write(control)) };
    fn lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int => aio::list(list, count).unwrap_or_else(|| memlane_socket::real!(lio_listio(mode, list, count, event)));
    fn lio_listio64(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int => aio::list(list, count).unwrap_or_else(|| memlane_socket::real!(lio_listio(mode, list, count, event)));
    fn preadv2(fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> ssize_t => preadv2_body(fd, list, count, offset, flags);
    fn preadv64v2(fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> ssize_t => preadv2_body(fd, list, count, offset, flags);
    fn pwritev2(fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> ssize_t => pwritev2_body(fd, list, count, offset, flags);
    fn pwritev64v2(fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> ssize_t => pwritev2_body(fd, list, count, offset, flags);
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int => signals::sigaction(signal, new, old);
    fn signal(number: c_int, handler: usize) -> usize => signals::signal(number, handler);
    fn pthread_create(thread: *mut c_void, attributes: *const c_void, start: *mut c_void, argument: *mut c_void) -> c_int => threads::create(thread, attributes, start, argument);
    fn thrd_create(thread: *mut c_void, start: *mut c_void, argument: *mut c_void) -> c_int => threads::create_c11(thread, start, argument);
    fn siginterrupt(number: c_int, interrupts: c_int) -> c_int => signals::siginterrupt(number, interrupts);
    fn bsd_signal(number: c_int, handler: usize) -> usize => signals::signal(number, handler);
    fn execve(path: *const u8, argv: *const *const u8, envp: *const *const u8) -> c_int => execve_body(path, argv, envp);
    fn execv(path: *const u8, argv: *const *const u8) -> c_int => execve_body(path, argv, environment());
    fn execvp(file: *const u8, argv: *const *const u8) -> c_int => execvpe_body(file, argv, environment());
    fn execvpe(file: *const u8, argv: *const *const u8, envp: *const *const u8) -> c_int => execvpe_body(file, argv, envp);
    fn fexecve(fd: c_int, argv: *const *const u8, envp: *const *const u8) -> c_int => exec(Program::Open(fd), envp, || memlane_socket::real!(fexecve(fd, argv, envp)));
    fn posix_spawn(pid: *mut c_int, path: *const u8, actions: *const c_void, attr: *const c_void, argv: *const *const u8, envp: *const *const u8) -> c_int => spawn(Program::Path(path), envp, || memlane_socket::real!(posix_spawn(pid, path, actions, attr, argv, envp)));
    fn posix_spawnp(pid: *mut c_int, file: *const u8, actions: *const c_void, attr: *const c_void, argv: *const *const u8, envp: *const *const u8) -> c_int => spawn(Program::Search(file), envp, || memlane_socket::real!(posix_spawnp(pid, file, actions, attr, argv, envp)));
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int => spawn_dup2(actions, fd, new);
    fn _exit(code: c_int) -> () => leave(code);
    fn _Exit(code: c_int) -> () => leave(code);
    fn vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int => unsafe_vdprintf(fd, format, args);
    fn __vdprintf_chk(fd: c_int, _flag: c_int, format: *const c_char, args: *mut c_void) -> c_int => unsafe_vdprintf(fd, format, args);

    fn memlane_fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int => opts::fcntl(fd, cmd, arg);
    fn memlane_ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int => opts::ioctl(fd, request, arg);
    fn memlane_prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int => prctl_body(option, a, b, c, d);
    fn memlane_syscall(nr: usize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize => numbers::call(nr, [a, b, c, d, e, f]);
    fn memlane_execve(path: *const u8, argv: *const *const u8, envp: *const *const u8) -> c_int => execve_body(path, argv, envp);
    fn memlane_execvpe(file: *const u8, argv: *const *const u8, envp: *const *const u8) -> c_int => execvpe_body(file, argv, envp);
    fn memlane_is_conn(fd: c_int) -> c_int => c_int::from(process::conn_of(fd).is_some());
    fn memlane_write_all(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t => write_all(fd, buf.cast(), len);
}

shims! {
    fcntl => "memlane_c_fcntl";
    fcntl64 => "memlane_c_fcntl";
    ioctl => "memlane_c_ioctl";
    prctl => "memlane_c_prctl";
    syscall => "memlane_c_syscall";
    dprintf => "memlane_c_dprintf";
    __dprintf_chk => "memlane_c_dprintf_chk";
    execl => "memlane_c_execl";
    execlp => "memlane_c_execlp";
    execle => "memlane_c_execle";
}
