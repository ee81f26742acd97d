//! Sets up what the preload library sets up for its program, for a program that calls this library by name.

use crate::config::{self, Config, Upgrade};
use crate::real;
use crate::state::thread::{self, Thread};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

/// 0: nothing is set up; 1: a thread is doing it; 2: done. The first thread writes it (acquire/release), all read it.
static STAGE: AtomicU32 = AtomicU32::new(0);
/// The number of forks that led to this process. Streams of an earlier process belong to that one. Written in a child
/// that has one thread.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// The key of each thread's state. Written before `STAGE` is 2.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Sets the process up, once. After this, `real` has functions, threads have their state, and `process` has its
/// settings.
pub(super) fn start() {
    if STAGE.load(Ordering::Acquire) == 2 {
        return;
    }
    if STAGE
        .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        while STAGE.load(Ordering::Acquire) != 2 {
            memlane_sys::proc::yield_now();
        }
        return;
    }
    find_functions();
    let has_threads = make_key();
    let mut settings = Config::read(config::env);
    if config::env(c"MEMLANE_UPGRADE").is_none() {
        // A program that calls this library by name wants the upgrade.
        settings.upgrade = Upgrade::Eager;
    }
    settings.disabled |= !has_threads;
    crate::hooks::start::start_by_name(settings);
    // SAFETY: plain functions of this library, which is part of the program.
    unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child));
        libc::atexit(at_exit);
    }
    STAGE.store(2, Ordering::Release);
}

/// The number of this process in a chain of forks.
pub(super) fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Finds libc's own functions, also in a program that is preloaded: its hooks would take this library's calls for the
/// program's, and do the same work once more.
fn find_functions() {
    // SAFETY: a name; the library is there already, or is not loaded by this.
    let libc_itself =
        unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    real::TABLE.fill(|name| {
        // SAFETY: the handle of libc, or null, which is `RTLD_DEFAULT`; `name` is NUL-terminated.
        unsafe { libc::dlsym(libc_itself, name.as_ptr()) as usize }
    });
}

/// The user of a stream closes it, and never under a sleeper, so sleeps may be split.
static ALONE: u8 = 1;

fn make_key() -> bool {
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: `key` is writable; `free` takes what `calloc` gave.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(libc::free)) } == 0;
    KEY.store(key, Ordering::Relaxed);
    thread::set_locator(own_state);
    thread::set_alone(Some(NonNull::from(&ALONE)));
    made
}

unsafe extern "C" fn own_state() -> *mut Thread {
    let key = KEY.load(Ordering::Relaxed);
    // SAFETY: the key that `make_key` made.
    let state = unsafe { libc::pthread_getspecific(key) };
    if state.is_null() {
        new_state(key)
    } else {
        state.cast()
    }
}

#[cold]
fn new_state(key: libc::pthread_key_t) -> *mut Thread {
    // SAFETY: all-zero is a thread's initial value, and calloc aligns for any type.
    let state: *mut c_void = unsafe { libc::calloc(1, size_of::<Thread>()) };
    if state.is_null() {
        // SAFETY: ends the process, as a failed allocation of the program does.
        unsafe { libc::abort() }
    }
    // SAFETY: the key that `make_key` made; freed when the thread ends.
    unsafe { libc::pthread_setspecific(key, state) };
    state.cast()
}

const _: () = assert!(align_of::<Thread>() <= 16); // calloc's

unsafe extern "C" fn before_fork() {
    crate::hooks::fork::before_fork_alone();
}

unsafe extern "C" fn after_fork() {
    crate::hooks::fork::after_fork_parent();
}

unsafe extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    crate::hooks::fork::in_child_alone();
}

extern "C" fn at_exit() {
    crate::hooks::fork::at_exit();
}
