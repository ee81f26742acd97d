//! Bodies that only rearrange a hook's arguments, or ask more than one module.

use crate::c_library::is_musl;
use crate::{c_library, stdio};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicI32, Ordering};
use libc::{epoll_event, fd_set, iovec, nfds_t, pollfd, sigset_t, ssize_t, timespec, timeval};
use memlane_core::reason::Reason;
use memlane_enter::{Arranged, Executor};
use memlane_socket::hooks::calls::{io, pass};
use memlane_socket::hooks::fork;
use memlane_socket::hooks::handoff::Handoff;
use memlane_socket::hooks::handoff::target::{Program, Target};
use memlane_socket::hooks::wait::{self as polls, epoll};
use memlane_socket::real;
use memlane_socket::state::process;
use memlane_sys::proc;

unsafe extern "C" {
    static environ: *const *const u8;
}

pub(crate) fn environment() -> *const *const u8 {
    // SAFETY: libc's variable; read, as execv does.
    unsafe { environ }
}

/// `_FORTIFY_SOURCE`: ends the program if it gives a length that its buffer does not have.
pub(crate) fn fits(len: usize, room: usize) {
    if len > room {
        unsafe extern "C" {
            fn memlane_chk_fail() -> !;
        }
        // SAFETY: libc's own answer to this.
        unsafe { memlane_chk_fail() }
    }
}

pub(crate) fn ppoll_body(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    polls::poll(fds, n, polls::limit_ts(timeout), !mask.is_null(), || {
        memlane_socket::real!(ppoll(fds, n, timeout, mask))
    })
}

pub(crate) fn select_body(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    polls::select(
        n,
        [r, w, e],
        polls::limit_tv(timeout),
        false,
        |left| {
            // musl's function gives the kernel a copy of the limit.
            if !is_musl() {
                polls::tell_left(timeout as usize, left, 1);
            }
        },
        || memlane_socket::real!(select(n, r, w, e, timeout)),
    )
}

pub(crate) fn pselect_body(
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
        |_| {}, // libc's function leaves the limit as it is
        || memlane_socket::real!(pselect(n, r, w, e, timeout, mask)),
    )
}

pub(crate) fn new_epoll(fd: c_int) -> c_int {
    if fd >= 0 && process::enabled() {
        let keep = real::errno();
        process::open_ep(fd);
        real::set_errno(keep);
    }
    fd
}

/// Nanoseconds where the timeout is finer than `epoll_wait`'s: rounded up to ms
/// for our own sleeps, as given for the program's.
pub(crate) fn pwait2_body(
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
pub(crate) fn fdopen_body(fd: c_int, how: *const u8) -> *mut c_void {
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
pub(crate) fn fclose_body(stream: *mut c_void) -> c_int {
    unsafe extern "C" {
        fn fileno(stream: *mut c_void) -> c_int;
    }
    if !stream.is_null() && process::fd_high() > 0 {
        // SAFETY: the program's stream.
        let fd = unsafe { fileno(stream) };
        if fd >= 0 && process::known(fd) && !process::is_borrowed() {
            stdio::end(fd, stream);
        }
        process::will_close(fd);
    }
    memlane_socket::real!(fclose(stream))
}

pub(crate) fn preadv2_body(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> ssize_t {
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

pub(crate) fn pwritev2_body(
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

pub(crate) fn system_body(command: *const u8) -> c_int {
    let Some(_carried) = (if command.is_null() {
        Some(None)
    } else {
        before_shell()
    }) else {
        return -1;
    };
    memlane_socket::real!(system(command))
}

pub(crate) fn popen_body(command: *const u8, how: *const u8) -> *mut c_void {
    match (real::popen(), before_shell()) {
        // SAFETY: the program's own arguments.
        (Some(f), Some(_carried)) => unsafe { f(command, how) },
        _ => core::ptr::null_mut(),
    }
}

pub(crate) fn execve_body(
    path: *const u8,
    argv: *const *const u8,
    envp: *const *const u8,
) -> c_int {
    exec(Program::Path(path), envp, || {
        memlane_socket::real!(execve(path, argv, envp))
    })
}

pub(crate) fn execvpe_body(
    file: *const u8,
    argv: *const *const u8,
    envp: *const *const u8,
) -> c_int {
    exec(Program::Search(file), envp, || {
        memlane_socket::real!(execvpe(file, argv, envp))
    })
}

pub(crate) fn exec(program: Program, envp: *const *const u8, call: impl Fn() -> c_int) -> c_int {
    let target = Target { program, envp };
    // If the exec fails, dropping this takes it back.
    let entered = enter(target, Executor::Caller);
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

/// Prepares for putting this library into a static program.
fn enter(target: Target, executor: Executor) -> Option<Arranged> {
    let (file, library) = target.without_loader()?;
    let program = memlane_enter::examine(&file).ok()?;
    memlane_enter::arrange(program, library.as_c_str(), executor).ok()
}

/// libc executes the program in a child that no hook sees. The library is put into a static program from here.
pub(crate) fn spawn(program: Program, envp: *const *const u8, call: impl Fn() -> c_int) -> c_int {
    let target = Target { program, envp };
    let entered = enter(target, Executor::Child);
    let Ok(_carried) = pass::before_exec(target, entered.is_some()) else {
        return libc::EBUSY;
    };
    let result = call();
    let Some(entered) = entered else {
        return result;
    };
    drop(entered);
    restore_tracer();
    match result {
        // The helper may have been one process too many.
        libc::EAGAIN => call(),
        result => result,
    }
}

pub(crate) fn spawn_dup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
    pass::to_child(fd);
    memlane_socket::real!(posix_spawn_file_actions_adddup2(actions, fd, new))
}

pub(crate) fn leave(code: c_int) {
    fork::at_exit();
    // SAFETY: ends the process.
    let _ = unsafe { memlane_sys::syscall!(libc::SYS_exit_group, code) };
}

pub(crate) fn write_all(fd: c_int, buf: *const u8, len: usize) -> ssize_t {
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

pub(crate) fn unsafe_vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int {
    unsafe extern "C" {
        fn memlane_vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int;
    }
    // SAFETY: on both supported ABIs a `va_list` argument is passed as a pointer.
    unsafe { memlane_vdprintf(fd, format, args) }
}

/// # Safety
/// As vdprintf.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memlane_real_vdprintf(
    fd: c_int,
    format: *const c_char,
    args: *mut c_void,
) -> c_int {
    let at = c_library::find_next(c"vdprintf");
    if at == 0 {
        return -1;
    }
    // SAFETY: libc's vdprintf; a `va_list` argument is passed as a pointer on both supported ABIs.
    let f = unsafe {
        core::mem::transmute::<
            usize,
            unsafe extern "C" fn(c_int, *const c_char, *mut c_void) -> c_int,
        >(at)
    };
    // SAFETY: the program's own arguments.
    unsafe { f(fd, format, args) }
}

/// Who may trace this process, as the program has last said (`PR_SET_PTRACER`); 0: it has not.
static TRACER: AtomicI32 = AtomicI32::new(0);

/// The process may have allowed `memlane-enter`'s helper to trace it, instead of whom the program chose.
fn restore_tracer() {
    let tracer = TRACER.load(Ordering::Relaxed);
    if tracer != 0 {
        proc::allow_tracer(tracer);
    }
}

pub(crate) fn prctl_body(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        memlane_socket::protocol::upgrade::freeze(Reason::SANDBOXED);
    }
    if option == libc::PR_SET_PTRACER {
        TRACER.store(a as i32, Ordering::Relaxed);
    }
    memlane_socket::real!(prctl(option, a, b, c, d))
}
