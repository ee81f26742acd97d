//! A stdio stream over a connection on the memory lane.
//!
//! libc's own streams call the kernel from inside libc, past every hook. glibc's
//! `fopencookie` makes a stream that calls given functions instead. musl's would
//! do so without a descriptor number and with other rules for errors: see
//! `stdio_musl`.

use crate::c_library::is_musl;
use crate::stdio_musl;
use core::ffi::{c_char, c_int, c_void};
use libc::{size_t, ssize_t};
use memlane_socket::hooks::calls::{io, life};
use memlane_socket::real;
use memlane_socket::state::process;

/// `cookie_io_functions_t` of stdio.h.
#[repr(C)]
struct Functions {
    read: extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: Option<extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, how: *const u8, functions: Functions) -> *mut c_void;
    fn fileno(stream: *mut c_void) -> c_int;
}

/// Offset of `_fileno` in glibc's `struct _IO_FILE` on 64-bit machines
/// (bits/types/struct_FILE.h; part of its ABI since 2.1).
const FILENO_AT: usize = 112;

fn fd_of(cookie: *mut c_void) -> c_int {
    memlane_sys::fd::as_fd(cookie as usize)
}

extern "C" fn read(cookie: *mut c_void, buf: *mut c_char, len: size_t) -> ssize_t {
    io::read(fd_of(cookie), buf.cast(), len)
}

/// A cookie's write function returns 0 for an error.
extern "C" fn write(cookie: *mut c_void, buf: *const c_char, len: size_t) -> ssize_t {
    io::write(fd_of(cookie), buf.cast(), len).max(0)
}

extern "C" fn close(cookie: *mut c_void) -> c_int {
    life::close(fd_of(cookie))
}

/// Can a stream be made that reads and writes through the library?
pub(crate) fn can_cover() -> bool {
    !is_musl() || stdio_musl::can_cover()
}

/// `fdopen` for a connection on the memory lane.
pub(crate) fn stream(fd: c_int, how: *const u8) -> *mut c_void {
    if is_musl() {
        return stdio_musl::stream(fd, how);
    }
    let functions = Functions {
        read,
        write,
        seek: None,
        close,
    };
    // SAFETY: the program's mode string; the functions have the types that stdio.h states.
    let stream = unsafe { fopencookie(fd.cast_unsigned() as usize as *mut c_void, how, functions) };
    if !stream.is_null() {
        let keep = real::errno();
        // SAFETY: a stream that libc has just made; `fileno` of a cookie stream says −1.
        unsafe {
            let place = stream.cast::<u8>().add(FILENO_AT).cast::<c_int>();
            let before = *place;
            if fileno(stream) == -1 && before < 0 {
                *place = fd;
                if fileno(stream) != fd {
                    *place = before;
                }
            }
        }
        real::set_errno(keep);
    }
    stream
}

/// `freopen`. glibc cannot turn a stream of ours into a file's: that is refused. musl can; the connection ends here, because
/// musl replaces its descriptor past every hook.
pub(crate) fn reopen(path: *const u8, how: *const u8, stream: *mut c_void) -> *mut c_void {
    let fd = if stream.is_null() {
        -1
    } else {
        // SAFETY: the program's stream.
        unsafe { fileno(stream) }
    };
    if fd >= 0 && memlane_socket::state::process::conn_of(fd).is_some() {
        if !is_musl() {
            real::set_errno(libc::EOPNOTSUPP);
            return core::ptr::null_mut();
        }
        if !path.is_null() {
            end(fd, stream);
        }
    }
    match real::freopen() {
        // SAFETY: the program's own arguments.
        Some(f) => unsafe { f(path, how, stream) },
        None => core::ptr::null_mut(),
    }
}

/// Makes `stdin` read through the library, in a program that starts with a connection as
/// descriptor 0 whose unread bytes lie in a ring that the previous program left.
pub(crate) fn cover_stdin() {
    unsafe extern "C" {
        static mut stdin: *mut c_void;
    }
    let inherited = memlane_socket::state::process::known(0);
    if is_musl() {
        // SAFETY: libc's variable; nobody reads from the stream before `main`.
        unsafe { stdio_musl::learn(stdin, inherited) };
    } else if inherited {
        let stream = stream(0, c"r".as_ptr().cast());
        if !stream.is_null() {
            // SAFETY: libc's variable, which programs may set; nobody reads from it before `main`.
            unsafe { stdin = stream };
        }
    }
}

/// Ends a connection before stdio closes or replaces its descriptor.
pub(crate) fn end(fd: c_int, stream: *mut c_void) {
    unsafe extern "C" {
        fn fflush(stream: *mut c_void) -> c_int;
    }
    // SAFETY: the program's stream, open as `fileno` showed. Its buffer is flushed before the close is prepared.
    unsafe { fflush(stream) };
    life::before_close(fd);
    process::forget(fd);
}
