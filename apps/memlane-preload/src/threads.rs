//! The program begins a thread: what has to be ready before the second one.

use crate::search::Late;
use core::ffi::{c_int, c_void};
use memlane_socket::state::process;

/// `thrd_error` (threads.h), as glibc and musl number it.
const THRD_ERROR: c_int = 2;

/// `pthread_create(3)`. It is looked up late: until glibc 2.34, it was in a library of its own.
pub(crate) fn create(
    thread: *mut c_void,
    attributes: *const c_void,
    start: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    type Create =
        unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, *mut c_void) -> c_int;
    static REAL: Late = Late::NEW;
    process::make_room();
    match REAL.address(c"pthread_create") {
        0 => libc::EAGAIN,
        // SAFETY: libc's function of this name, which has this prototype, and the program's own arguments.
        at => unsafe {
            core::mem::transmute::<usize, Create>(at)(thread, attributes, start, argument)
        },
    }
}

/// `thrd_create` of C11, which calls the other one where no hook sees it.
pub(crate) fn create_c11(thread: *mut c_void, start: *mut c_void, argument: *mut c_void) -> c_int {
    type Create = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> c_int;
    static REAL: Late = Late::NEW;
    process::make_room();
    match REAL.address(c"thrd_create") {
        0 => THRD_ERROR,
        // SAFETY: libc's function of this name, which has this prototype, and the program's own arguments.
        at => unsafe { core::mem::transmute::<usize, Create>(at)(thread, start, argument) },
    }
}
