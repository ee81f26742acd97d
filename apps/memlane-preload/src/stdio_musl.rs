//! A stdio stream over a connection on the memory lane, in a program with musl.
//!
//! A stream of musl holds the addresses of the functions that read, write and close for it. In a stream over such a
//! connection they are ours. They do what musl's do (`src/stdio/__stdio_*.c`), by the bodies of the hooks.

use core::ffi::{c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::iovec;
use memlane_socket::hooks::calls::{io, life, pass};
use memlane_socket::real;
use memlane_socket::state::process;

type Bytes = *mut u8;
type Read = unsafe extern "C" fn(*mut Stream, Bytes, usize) -> usize;
type Write = unsafe extern "C" fn(*mut Stream, Bytes, usize) -> usize;
type Close = unsafe extern "C" fn(*mut Stream) -> c_int;

/// `struct _IO_FILE` of musl's `src/internal/stdio_impl.h`, as far as it matters here. It is no part of musl's ABI, so it is
/// compared with a stream that musl has just made before anything in it is changed.
#[repr(C)]
struct Stream {
    flags: c_uint,
    read_at: Bytes,
    read_end: Bytes,
    close: Option<Close>,
    write_end: Bytes,
    write_at: Bytes,
    always_zero: Bytes,
    write_from: Bytes,
    read: Option<Read>,
    write: Option<Write>,
    seek: Option<unsafe extern "C" fn(*mut Stream, i64, c_int) -> i64>,
    buffer: Bytes,
    buffer_len: usize,
    previous: *mut Stream,
    next: *mut Stream,
    fd: c_int,
    pipe_pid: c_int,
    lock_count: c_long,
}

const PERMANENT: c_uint = 1;
const NO_READING: c_uint = 4;
const NO_WRITING: c_uint = 8;
const END: c_uint = 16;
const ERROR: c_uint = 32;
const APPENDING: c_uint = 128;
/// `BUFSIZ`.
const BUFFER: usize = 1024;

/// Is this musl's stream the one that is described here?
static KNOWN: AtomicBool = AtomicBool::new(false);

/// Compares the description with `stdin`, which nobody has used yet. If `covered`, makes it read through the library.
///
/// # Safety
/// musl's `stdin`, before `main`.
pub(crate) unsafe fn learn(stdin: *mut c_void, covered: bool) {
    // SAFETY: the caller's promise; a `FILE` of any musl is longer than what is described.
    let Some(stream) = (unsafe { stdin.cast::<Stream>().as_mut() }) else {
        return;
    };
    let known = stream.flags == PERMANENT | NO_WRITING
        && stream.write.is_none()
        && stream.previous.is_null()
        && is_fresh(stream, 0);
    KNOWN.store(known, Ordering::Relaxed);
    if known && covered {
        stream.read = Some(read);
        stream.close = Some(close);
    }
}

/// Can [`stream`] make a stream?
pub(crate) fn can_cover() -> bool {
    KNOWN.load(Ordering::Relaxed)
}

/// `fdopen`.
pub(crate) fn stream(fd: c_int, how: *const u8) -> *mut c_void {
    let Some(open) = real::fdopen() else {
        return core::ptr::null_mut();
    };
    // SAFETY: the program's own arguments.
    let made = unsafe { open(fd, how) };
    // SAFETY: null, or a stream that nobody else has yet.
    let Some(stream) = (unsafe { made.cast::<Stream>().as_mut() }) else {
        return made;
    };
    let can_do = stream.flags & !(NO_READING | NO_WRITING | APPENDING) == 0;
    if can_do && stream.write.is_some() && is_fresh(stream, fd) {
        stream.read = Some(read);
        stream.write = Some(write);
        stream.close = Some(close);
    } else if let Some(conn) = process::conn_of(fd) {
        pass::to_stdio(&conn);
    }
    made
}

/// Has `stream` what a stream has that nobody has used?
fn is_fresh(stream: &Stream, fd: c_int) -> bool {
    let unused = [
        stream.read_at,
        stream.read_end,
        stream.write_end,
        stream.write_at,
        stream.always_zero,
        stream.write_from,
    ];
    unused.iter().all(|at| at.is_null())
        && stream.read.is_some()
        && stream.seek.is_some()
        && stream.close.is_some()
        && !stream.buffer.is_null()
        && stream.buffer_len == BUFFER
        && (stream.fd, stream.pipe_pid, stream.lock_count) == (fd, 0, 0)
}

fn part(at: Bytes, len: usize) -> iovec {
    iovec {
        iov_base: at.cast(),
        iov_len: len,
    }
}

/// Reads into `buf`, and what comes beyond `len` bytes into the stream's buffer. The last of the `len` bytes is taken from
/// there, so that one can be put back.
unsafe extern "C" fn read(stream: *mut Stream, buf: Bytes, len: usize) -> usize {
    // SAFETY: musl calls it with its own stream, which it has locked.
    let s = unsafe { &mut *stream };
    let direct = len - usize::from(s.buffer_len > 0);
    let list = [part(buf, direct), part(s.buffer, s.buffer_len)];
    let got = match direct {
        0 => io::read(s.fd, s.buffer.cast(), s.buffer_len),
        _ => io::readv(s.fd, list.as_ptr(), 2),
    };
    let Some(got) = usize::try_from(got).ok().filter(|got| *got > 0) else {
        s.flags |= if got == 0 { END } else { ERROR };
        return 0;
    };
    if got <= direct {
        return got;
    }
    s.read_at = s.buffer;
    s.read_end = s.buffer.wrapping_add(got - direct);
    if s.buffer_len > 0 {
        // SAFETY: `buf` has room for `len` bytes, which is at least 1, and a byte has come into the stream's buffer.
        unsafe { *buf.add(len - 1) = *s.read_at };
        s.read_at = s.read_at.wrapping_add(1);
    }
    len
}

/// Writes what is in the stream's buffer, and then `len` bytes at `buf`.
unsafe extern "C" fn write(stream: *mut Stream, buf: Bytes, len: usize) -> usize {
    // SAFETY: musl calls it with its own stream, which it has locked.
    let s = unsafe { &mut *stream };
    let buffered = s.write_at as usize - s.write_from as usize;
    let mut done = 0;
    loop {
        let first = done.min(buffered);
        let second = done - first;
        let list = [
            part(s.write_from.wrapping_add(first), buffered - first),
            part(buf.wrapping_add(second), len - second),
        ];
        let Ok(n) = usize::try_from(io::writev(s.fd, list.as_ptr(), 2)) else {
            s.flags |= ERROR;
            let nowhere = core::ptr::null_mut();
            (s.write_at, s.write_from, s.write_end) = (nowhere, nowhere, nowhere);
            return second;
        };
        done += n;
        if done >= buffered + len {
            break;
        }
    }
    s.write_end = s.buffer.wrapping_add(s.buffer_len);
    (s.write_at, s.write_from) = (s.buffer, s.buffer);
    len
}

unsafe extern "C" fn close(stream: *mut Stream) -> c_int {
    // SAFETY: musl calls it with its own stream.
    life::close(unsafe { (*stream).fd })
}
