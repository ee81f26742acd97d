//! POSIX aio: libc's threads read and write without calling a hook, so the lane ends. This module reads what is still
//! in the ring.

use super::{io, pass};
use crate::real::{self, errno};
use crate::state::process::conn_of;
use core::ffi::{c_int, c_void};
use memlane_sys::{Errno, proc};

/// `struct aiocb`, as far as it matters here (glibc, rt/aio.h; the layout is part of
/// its ABI on 64-bit machines, and musl's has the same).
#[repr(C)]
#[derive(Debug)]
struct Control {
    fd: c_int,
    opcode: c_int,
    priority: c_int,
    buf: *mut c_void,
    len: usize,
    event: libc::sigevent,
    next: *mut c_void,
    private: [c_int; 2],
    error: c_int,
    result: isize,
}
const _: () = assert!(size_of::<libc::sigevent>() == 64);
const _: () = assert!(core::mem::offset_of!(Control, error) == 112);
const _: () = assert!(core::mem::offset_of!(Control, result) == 120);
const _: () = assert!(core::mem::offset_of!(Control, result) < size_of::<libc::aiocb>());

/// The program's control block, if it is for a tracked connection.
fn concerning<'a>(
    control: *mut c_void,
) -> Option<(&'a mut Control, crate::state::process::ConnRef)> {
    // SAFETY: null, or the program's aiocb, as it promised its call.
    let control = unsafe { control.cast::<Control>().as_mut() }?;
    let conn = conn_of(control.fd)?;
    Some((control, conn))
}

/// `aio_read(3)`. `None`: libc may make the call.
pub fn read(control: *mut c_void) -> Option<c_int> {
    let (control, conn) = concerning(control)?;
    if !pass::to_stdio(&conn) {
        return None;
    }
    // The bytes in the ring are there already: the request is done at once.
    if control.event.sigev_notify == libc::SIGEV_THREAD {
        return Some(again());
    }
    let n = io::recv(control.fd, control.buf, control.len, libc::MSG_DONTWAIT);
    if n < 0 && errno() == libc::EAGAIN {
        return Some(again());
    }
    control.error = if n < 0 { errno() } else { 0 };
    control.result = n;
    if control.event.sigev_notify == libc::SIGEV_SIGNAL {
        let value = control.event.sigev_value.sival_ptr as usize;
        proc::queue_signal(control.event.sigev_signo, libc::SI_ASYNCIO, value);
    }
    Some(0)
}

/// `aio_write(3)`: ends the lane, so that libc writes by TCP.
pub fn write(control: *mut c_void) {
    if let Some((_, conn)) = concerning(control) {
        pass::to_stdio(&conn);
    }
}

/// `lio_listio(3)`. `None`: libc may make the call.
pub fn list(list: *const *mut c_void, count: c_int) -> Option<c_int> {
    let mut unread = false;
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the program's array of `count` entries.
        let entry = unsafe { *list.add(i) };
        if let Some((control, conn)) = concerning(entry) {
            unread |= pass::to_stdio(&conn) && control.opcode == libc::LIO_READ;
        }
    }
    unread.then(again)
}

/// Fails with `EAGAIN`, "not queued for want of resources", which callers of aio know. The program's own read, or a
/// later try, gets what is in the ring.
fn again() -> c_int {
    real::fail(Errno::AGAIN);
    -1
}
