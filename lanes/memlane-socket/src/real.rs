//! The next definitions of the hooked names: libc's own.
//!
//! Whatever may *block* goes through these (not through a raw system call):
//! libc's versions are cancellation points, and a thread that the program
//! cancels must be cancellable inside them. The table is filled once, by the
//! preload library, before any hook runs. Only names that every glibc since 2.17
//! has are in it: `dlsym` of an unknown name allocates, and the first hook may
//! run inside an allocator's own initialisation. Younger calls (`close_range`,
//! `epoll_pwait2`) go to the kernel directly.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

macro_rules! table {
    ($($name:ident: fn($($arg:ty),*) -> $ret:ty;)+) => {
        /// One address per name; 0 = libc has no such name.
        #[derive(Debug)]
        pub struct Table { $(#[doc = stringify!($name)] pub $name: AtomicUsize,)+ }

        /// The table.
        pub static TABLE: Table = Table { $($name: AtomicUsize::new(0),)+ };

        impl Table {
            /// Fills every entry through `find` (`dlsym(RTLD_NEXT, name)`).
            pub fn fill(&self, find: impl Fn(&core::ffi::CStr) -> usize) {
                $({
                    const NAME: &[u8] = concat!(stringify!($name), "\0").as_bytes();
                    if let Ok(name) = core::ffi::CStr::from_bytes_with_nul(NAME) {
                        self.$name.store(find(name), Ordering::Relaxed);
                    }
                })+
            }
        }

        $(
            /// libc's own function of this name; `None` if libc has none.
            #[inline(always)]
            pub fn $name() -> Option<unsafe extern "C" fn($($arg),*) -> $ret> {
                let at = TABLE.$name.load(Ordering::Relaxed);
                if at == 0 {
                    return None;
                }
                // SAFETY: the address is libc's function of this name, whose
                // C prototype is the one written in the table.
                Some(unsafe { core::mem::transmute::<usize, unsafe extern "C" fn($($arg),*) -> $ret>(at) })
            }
        )+
    };
}

table! {
    socket: fn(c_int, c_int, c_int) -> c_int;
    connect: fn(c_int, *const sockaddr, socklen_t) -> c_int;
    accept: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    accept4: fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
    listen: fn(c_int, c_int) -> c_int;
    shutdown: fn(c_int, c_int) -> c_int;
    close: fn(c_int) -> c_int;
    dup: fn(c_int) -> c_int;
    dup2: fn(c_int, c_int) -> c_int;
    dup3: fn(c_int, c_int, c_int) -> c_int;
    read: fn(c_int, *mut c_void, size_t) -> ssize_t;
    readv: fn(c_int, *const iovec, c_int) -> ssize_t;
    recv: fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;
    recvfrom: fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    recvmsg: fn(c_int, *mut msghdr, c_int) -> ssize_t;
    recvmmsg: fn(c_int, *mut mmsghdr, u32, c_int, *mut timespec) -> c_int;
    write: fn(c_int, *const c_void, size_t) -> ssize_t;
    writev: fn(c_int, *const iovec, c_int) -> ssize_t;
    send: fn(c_int, *const c_void, size_t, c_int) -> ssize_t;
    sendto: fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
    sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t;
    sendmmsg: fn(c_int, *mut mmsghdr, u32, c_int) -> c_int;
    sendfile: fn(c_int, c_int, *mut i64, size_t) -> ssize_t;
    splice: fn(c_int, *mut i64, c_int, *mut i64, size_t, u32) -> ssize_t;
    poll: fn(*mut pollfd, nfds_t, c_int) -> c_int;
    ppoll: fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    select: fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
    pselect: fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int;
    epoll_create: fn(c_int) -> c_int;
    epoll_create1: fn(c_int) -> c_int;
    epoll_ctl: fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    epoll_wait: fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
    epoll_pwait: fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
    getsockopt: fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    setsockopt: fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    fcntl: fn(c_int, c_int, usize) -> c_int;
    ioctl: fn(c_int, u64, usize) -> c_int;
    fdopen: fn(c_int, *const u8) -> *mut c_void;
    fclose: fn(*mut c_void) -> c_int;
    freopen: fn(*const u8, *const u8, *mut c_void) -> *mut c_void;
    system: fn(*const u8) -> c_int;
    popen: fn(*const u8, *const u8) -> *mut c_void;
    aio_read: fn(*mut c_void) -> c_int;
    aio_write: fn(*mut c_void) -> c_int;
    lio_listio: fn(c_int, *const *mut c_void, c_int, *mut c_void) -> c_int;
    sigaction: fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    signal: fn(c_int, usize) -> usize;
    siginterrupt: fn(c_int, c_int) -> c_int;
    execve: fn(*const u8, *const *const u8, *const *const u8) -> c_int;
    execvpe: fn(*const u8, *const *const u8, *const *const u8) -> c_int;
    fexecve: fn(c_int, *const *const u8, *const *const u8) -> c_int;
    posix_spawn: fn(*mut c_int, *const u8, *const c_void, *const c_void, *const *const u8, *const *const u8) -> c_int;
    posix_spawnp: fn(*mut c_int, *const u8, *const c_void, *const c_void, *const *const u8, *const *const u8) -> c_int;
    posix_spawn_file_actions_adddup2: fn(*mut c_void, c_int, c_int) -> c_int;
    _exit: fn(c_int) -> ();
    syscall: fn(usize, usize, usize, usize, usize, usize, usize) -> isize;
    prctl: fn(c_int, usize, usize, usize, usize) -> c_int;
}

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// This thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: libc gives a valid address per thread.
    unsafe { *__errno_location() }
}

/// Sets this thread's `errno`.
pub fn set_errno(e: c_int) {
    // SAFETY: as above.
    unsafe { *__errno_location() = e };
}

/// Sets `errno` and returns −1, as a C function does.
pub fn fail(e: memlane_sys::Errno) -> ssize_t {
    set_errno(e.0);
    -1
}

/// Calls libc's function of this name; −1 with `ENOSYS` where libc has none.
#[macro_export]
macro_rules! real {
    ($name:ident($($arg:expr),* $(,)?)) => {
        match $crate::real::$name() {
            // SAFETY: the arguments are the program's own, passed on unchanged
            // or replaced by valid ones of the same meaning.
            #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe)]
            Some(f) => unsafe { f($($arg),*) },
            None => {
                $crate::real::set_errno(libc::ENOSYS);
                -1
            }
        }
    };
}
