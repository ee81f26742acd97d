//! The library becomes ready: before the program's first instruction, or with the first hook that another library's
//! constructor calls.

use crate::c_library::{find, find_behind, is_musl};
use crate::search::Behind;
use crate::{golang, liburing, stdio};
use core::ffi::{c_int, c_ulong};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use memlane_socket::hooks::fork;
use memlane_socket::hooks::start;
use memlane_socket::real;
use memlane_socket::state::process;
use memlane_socket::state::thread::{self, Thread};

const _: () = assert!(size_of::<Thread>() <= 2048 && align_of::<Thread>() <= 64); // see shim.c

static READY: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn memlane_thread() -> *mut Thread;
    fn memlane_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> c_int;
    fn memlane_is_alone_in_musl() -> c_int;
}

/// Constructors of other libraries may call hooks before ours has run.
#[inline(always)]
pub(crate) fn ready() {
    if !READY.load(Ordering::Acquire) {
        initialise();
    }
}

#[cold]
fn initialise() {
    // Idempotent: two threads that arrive here at once store the same values.
    let behind = Behind::note();
    real::TABLE.fill(|name| find_behind(&behind, name));
    // SAFETY: libc passes on what the kernel told this process.
    unsafe { memlane_sys::time::use_vdso(vdso(&behind)) };
    thread::set_locator(memlane_thread);
    learn_who_is_alone();
    memlane_socket::message::set_padded(is_musl());
    // Under a libc that is neither of the two, every call is passed on.
    let is_known = is_musl() || find(c"gnu_get_libc_version").is_some();
    start::start(is_known);
    if !READY.swap(true, Ordering::AcqRel) && is_known {
        // SAFETY: the handlers live as long as the process: a preloaded library is never unloaded.
        unsafe { memlane_atfork(before_fork, after_fork_parent, after_fork_child) };
        liburing::start();
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

/// Where the kernel's own library (vDSO) lies; 0: there is none, or no way to ask. `getauxval` is younger (glibc 2.16) than
/// the oldest libc that this library runs with, so it is looked up: in libc, as a program may have one of its own.
fn vdso(behind: &Behind) -> usize {
    type GetAuxVal = unsafe extern "C" fn(c_ulong) -> c_ulong;
    let found = find_behind(behind, c"getauxval");
    if found == 0 {
        return 0;
    }
    // SAFETY: libc's function of this name, which has this prototype (getauxval(3)).
    let function = unsafe { core::mem::transmute::<usize, GetAuxVal>(found) };
    // SAFETY: the function takes any number.
    unsafe { function(libc::AT_SYSINFO_EHDR) as usize }
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
