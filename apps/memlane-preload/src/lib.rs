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
mod golang;
mod numbers;
mod search;
mod stdio;
mod stdio_musl;

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};
use memlane_core::reason::Reason;
use memlane_socket::hooks::calls::{aio, io, life, opts, pass, signals};
use memlane_socket::hooks::fork;
use memlane_socket::hooks::handoff::Handoff;
use memlane_socket::hooks::handoff::target::{Program, Target};
use memlane_socket::hooks::start;
use memlane_socket::hooks::wait::{epoll, poll as polls};
use memlane_socket::real;
use memlane_socket::state::process;
use memlane_socket::state::thread::{self, Thread};

const _: () = assert!(size_of::<Thread>() <= 2048 && align_of::<Thread>() <= 64); // see shim.c

static READY: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn memlane_thread() -> *mut Thread;
    fn memlane_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn memlane_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> c_int;
    fn memlane_is_musl() -> c_int;
    fn memlane_is_alone_in_musl() -> c_int;
    static environ: *const *const u8;
}

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

/// Constructors of other libraries may call hooks before ours has run.
#[inline(always)]
fn ready() {
    if !READY.load(Ordering::Acquire) {
        initialise();
    }
}

#[cold]
fn initialise() {
    // Idempotent: two threads that arrive here at once store the same values.
    real::TABLE.fill(|name| {
        // SAFETY: `name` is NUL-terminated.
        unsafe { memlane_dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
    });
    // SAFETY: libc passes on what the kernel told this process.
    unsafe { memlane_sys::time::use_vdso(vdso()) };
    thread::set_locator(memlane_thread);
    learn_who_is_alone();
    memlane_socket::message::set_padded(is_musl());
    // Under a libc that is neither of the two, every call is passed on.
    let is_known = is_musl() || find(c"gnu_get_libc_version").is_some();
    start::start(is_known);
    if !READY.swap(true, Ordering::AcqRel) && is_known {
        // SAFETY: the handlers live as long as the process: a preloaded library is never unloaded.
        unsafe { memlane_atfork(before_fork, after_fork_parent, after_fork_child) };
        // SAFETY: the callback has the type that the call expects.
        unsafe { libc::dl_iterate_phdr(Some(look_for_io_uring), core::ptr::null_mut()) };
        stdio::cover_stdin();
        if process::enabled() {
            golang::start();
        }
    }
}

/// Makes the library ready in a program without libc. `find` gives the address of what stands in for a function of libc's, or
/// 0; `vdso` is where the kernel's own library lies, or 0.
#[cfg(target_arch = "x86_64")]
pub(crate) fn initialise_alone(find: fn(&core::ffi::CStr) -> usize, vdso: usize) {
    real::TABLE.fill(find);
    // SAFETY: the kernel has told this process.
    unsafe { memlane_sys::time::use_vdso(vdso) };
    thread::set_locator(memlane_thread);
    start::start(true);
    READY.store(true, Ordering::Release);
}

/// Finds out how this libc tells whether a process has a second thread.
fn learn_who_is_alone() {
    if !is_musl() {
        return thread::set_alone(find(c"__libc_single_threaded").map(NonNull::cast));
    }
    // SAFETY: compares words of this thread's own block.
    if unsafe { memlane_is_alone_in_musl() } != 0 {
        thread::set_asked_alone(memlane_is_alone_in_musl);
    }
}

/// Is the program's libc musl?
fn is_musl() -> bool {
    // SAFETY: compares an address.
    unsafe { memlane_is_musl() != 0 }
}

/// Where the kernel's own library (vDSO) lies; 0: there is none, or no way to ask. `getauxval` is younger (glibc 2.16) than
/// the oldest libc that this library runs with, so it is looked up: in libc, as a program may have one of its own.
fn vdso() -> usize {
    type GetAuxVal = unsafe extern "C" fn(c_ulong) -> c_ulong;
    // SAFETY: the name is NUL-terminated.
    let found = unsafe { memlane_dlsym(libc::RTLD_NEXT, c"getauxval".as_ptr()) };
    if found.is_null() {
        return 0;
    }
    // SAFETY: libc's function of this name, which has this prototype (getauxval(3)).
    let function = unsafe { core::mem::transmute::<*mut c_void, GetAuxVal>(found) };
    // SAFETY: the function takes any number.
    unsafe { function(libc::AT_SYSINFO_EHDR) as usize }
}

/// A name that the program or one of its libraries defines.
fn find(name: &core::ffi::CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name is NUL-terminated.
    NonNull::new(unsafe { memlane_dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// `dl_iterate_phdr` callback: notes that the program is linked with liburing, whose I/O no hook sees.
unsafe extern "C" fn look_for_io_uring(
    info: *mut libc::dl_phdr_info,
    _: size_t,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker's own structure; the name is NUL-terminated or null.
    let name = unsafe {
        let name = (*info).dlpi_name;
        if name.is_null() {
            c""
        } else {
            core::ffi::CStr::from_ptr(name)
        }
    };
    if name.to_bytes().windows(11).any(|w| w == b"liburing.so") {
        memlane_socket::protocol::upgrade::freeze(Reason::IO_URING);
    }
    0
}

extern "C" fn before_fork() {
    fork::before_fork();
}
extern "C" fn after_fork_parent() {
    fork::after_fork_parent();
}
extern "C" fn after_fork_child() {
    fork::after_fork_child();
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

// --- bodies that only rearrange arguments ------------------------------------

fn environment() -> *const *const u8 {
    // SAFETY: libc's variable; read, as execv does.
    unsafe { environ }
}

/// `_FORTIFY_SOURCE`: ends the program if it gives a length that its buffer does not have.
fn fits(len: usize, room: usize) {
    if len > room {
        unsafe extern "C" {
            fn memlane_chk_fail() -> !;
        }
        // SAFETY: libc's own answer to this.
        unsafe { memlane_chk_fail() }
    }
}

fn ppoll_body(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    polls::poll(fds, n, polls::limit_ts(timeout), !mask.is_null(), || {
        memlane_socket::real!(ppoll(fds, n, timeout, mask))
    })
}

fn select_body(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    polls::select(n, [r, w, e], polls::limit_tv(timeout), false, || {
        memlane_socket::real!(select(n, r, w, e, timeout))
    })
}

fn pselect_body(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    polls::select(
        n,
        [r, w, e],
        polls::limit_ts(timeout),
        !mask.is_null(),
        || memlane_socket::real!(pselect(n, r, w, e, timeout, mask)),
    )
}

fn new_epoll(fd: c_int) -> c_int {
    if fd >= 0 && process::enabled() {
        let keep = real::errno();
        process::open_ep(fd);
        real::set_errno(keep);
    }
    fd
}

/// Nanoseconds where the timeout is finer than `epoll_wait`'s: rounded up to ms
/// for our own sleeps, as given for the program's.
fn pwait2_body(
    ep: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null, or the program's structure.
    let ms = match unsafe { timeout.as_ref() } {
        None => -1,
        Some(t) => c_int::try_from(
            t.tv_sec
                .saturating_mul(1000)
                .saturating_add((t.tv_nsec + 999_999) / 1_000_000),
        )
        .unwrap_or(c_int::MAX),
    };
    let fine = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    epoll::wait(ep, events, max, ms, !mask.is_null(), &|e, m, t| {
        let given = if t == ms { timeout } else { &raw const fine };
        let short = timespec {
            tv_sec: i64::from(t) / 1000,
            tv_nsec: i64::from(t) % 1000 * 1_000_000,
        };
        let given = if t > 0 && t != ms {
            &raw const short
        } else {
            given
        };
        // SAFETY: the program's own arguments, or our own timeout.
        let r = unsafe { memlane_sys::syscall!(libc::SYS_epoll_pwait2, ep, e, m, given, mask, 8) };
        r.map_or_else(|e| real::fail(e) as c_int, memlane_sys::fd::as_fd)
    })
}

/// `fdopen`: stdio reads and writes past every hook. A connection on the memory lane
/// gets a stream whose reads and writes come to us; any other stays on TCP.
fn fdopen_body(fd: c_int, how: *const u8) -> *mut c_void {
    if let Some(conn) = process::conn_of(fd) {
        if conn.upgraded() && stdio::can_cover() {
            return stdio::stream(fd, how);
        }
        if pass::to_stdio(&conn) {
            real::set_errno(libc::EBUSY);
            return core::ptr::null_mut();
        }
        drop(conn);
        process::forget(fd);
    }
    match real::fdopen() {
        // SAFETY: the program's own arguments.
        Some(open) => unsafe { open(fd, how) },
        None => core::ptr::null_mut(),
    }
}

/// `fclose`: stdio closes the descriptor past every hook, so the connection ends here first.
fn fclose_body(stream: *mut c_void) -> c_int {
    unsafe extern "C" {
        fn fileno(stream: *mut c_void) -> c_int;
    }
    if !stream.is_null() && process::fd_high() > 0 {
        // SAFETY: the program's stream.
        let fd = unsafe { fileno(stream) };
        if fd >= 0 && process::known(fd) && !process::is_borrowed() {
            end_stream(fd, stream);
        }
    }
    memlane_socket::real!(fclose(stream))
}

/// Ends a connection before stdio closes or replaces its descriptor.
fn end_stream(fd: c_int, stream: *mut c_void) {
    unsafe extern "C" {
        fn fflush(stream: *mut c_void) -> c_int;
    }
    // SAFETY: the program's stream, open as `fileno` showed. Its buffer is flushed before the close is prepared.
    unsafe { fflush(stream) };
    life::before_close(fd);
    process::forget(fd);
}

fn preadv2_body(fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> ssize_t {
    if offset == -1 && flags & !libc::RWF_NOWAIT == 0 && process::known(fd) {
        return io::readv_flags(fd, list, count, flags != 0);
    }
    if let Some(conn) = process::conn_of(fd) {
        pass::to_stdio(&conn);
    }
    // SAFETY: the program's own arguments.
    let r = unsafe { memlane_sys::syscall!(libc::SYS_preadv2, fd, list, count, offset, 0, flags) };
    r.map_or_else(real::fail, usize::cast_signed)
}

fn pwritev2_body(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> ssize_t {
    if offset == -1 && flags & !libc::RWF_NOWAIT == 0 && process::known(fd) {
        return io::writev_flags(fd, list, count, flags != 0);
    }
    if let Some(conn) = process::conn_of(fd) {
        pass::to_stdio(&conn);
    }
    // SAFETY: the program's own arguments.
    let r = unsafe { memlane_sys::syscall!(libc::SYS_pwritev2, fd, list, count, offset, 0, flags) };
    r.map_or_else(real::fail, usize::cast_signed)
}

/// Prepares for libc's `system` and `popen`, which start a shell without calling a hooked name.
fn before_shell() -> Option<Option<Handoff>> {
    let target = Target {
        program: Program::Shell,
        envp: environment(),
    };
    let carried = pass::before_exec(target, false);
    if carried.is_err() {
        real::set_errno(libc::EBUSY);
    }
    carried.ok()
}

fn system_body(command: *const u8) -> c_int {
    let Some(_carried) = (if command.is_null() {
        Some(None)
    } else {
        before_shell()
    }) else {
        return -1;
    };
    memlane_socket::real!(system(command))
}

fn popen_body(command: *const u8, how: *const u8) -> *mut c_void {
    match (real::popen(), before_shell()) {
        // SAFETY: the program's own arguments.
        (Some(f), Some(_carried)) => unsafe { f(command, how) },
        _ => core::ptr::null_mut(),
    }
}

fn execve_body(path: *const u8, argv: *const *const u8, envp: *const *const u8) -> c_int {
    exec(Program::Path(path), envp, || {
        memlane_socket::real!(execve(path, argv, envp))
    })
}

fn execvpe_body(file: *const u8, argv: *const *const u8, envp: *const *const u8) -> c_int {
    exec(Program::Search(file), envp, || {
        memlane_socket::real!(execvpe(file, argv, envp))
    })
}

fn exec(program: Program, envp: *const *const u8, call: impl Fn() -> c_int) -> c_int {
    let target = Target { program, envp };
    // If the exec fails, dropping this takes it back.
    let entered = target
        .without_loader()
        .and_then(|(file, library)| memlane_enter::arrange(&file, library.as_c_str()).ok());
    let Ok(_carried) = pass::before_exec(target, entered.is_some()) else {
        real::set_errno(libc::EBUSY);
        return -1;
    };
    pass::leaving();
    let r = call();
    let keep = real::errno();
    pass::stayed();
    real::set_errno(keep);
    r
}

fn spawn(program: Program, envp: *const *const u8, call: impl Fn() -> c_int) -> c_int {
    match pass::before_exec(Target { program, envp }, false) {
        Ok(_carried) => call(),
        Err(_) => libc::EBUSY,
    }
}

fn spawn_dup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
    pass::to_child(fd);
    memlane_socket::real!(posix_spawn_file_actions_adddup2(actions, fd, new))
}

fn leave(code: c_int) {
    fork::at_exit();
    // SAFETY: ends the process.
    let _ = unsafe { memlane_sys::syscall!(libc::SYS_exit_group, code) };
}

fn write_all(fd: c_int, buf: *const u8, len: usize) -> ssize_t {
    let mut done = 0;
    while done < len {
        let n = io::write(fd, buf.wrapping_add(done).cast(), len - done);
        if n <= 0 {
            return -1;
        }
        done += n.cast_unsigned();
    }
    done.cast_signed()
}

fn unsafe_vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int {
    unsafe extern "C" {
        fn memlane_vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int;
    }
    // SAFETY: on both supported ABIs a `va_list` argument is passed as a pointer.
    unsafe { memlane_vdprintf(fd, format, args) }
}

/// # Safety
/// As vdprintf.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlane_real_vdprintf(
    fd: c_int,
    format: *const c_char,
    args: *mut c_void,
) -> c_int {
    // SAFETY: the name is NUL-terminated.
    let at = unsafe { memlane_dlsym(libc::RTLD_NEXT, c"vdprintf".as_ptr()) };
    if at.is_null() {
        return -1;
    }
    // SAFETY: libc's vdprintf; a `va_list` argument is passed as a pointer on both supported ABIs.
    let f = unsafe {
        core::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(c_int, *const c_char, *mut c_void) -> c_int,
        >(at)
    };
    // SAFETY: the program's own arguments.
    unsafe { f(fd, format, args) }
}

fn prctl_body(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        memlane_socket::protocol::upgrade::freeze(Reason::SANDBOXED);
    }
    memlane_socket::real!(prctl(option, a, b, c, d))
}
