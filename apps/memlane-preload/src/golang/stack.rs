//! The stack on which a thread of a Go program serves its system calls.
//!
//! A goroutine's own stack has a few hundred bytes to spare. So each thread gets another one with its first call. It is given
//! back when the thread ends.

use crate::c_library;
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Room for one call.
pub(super) const ROOM: usize = 128 * 1024;
/// Calls that a thread may have under way at once. There is more than one only if a signal handler interrupts a call, or if a
/// child that shares the memory was killed within one.
pub(super) const DEPTH: usize = 4;
/// What lies below, and has no rights: a stack that is too small must not damage anything.
pub(super) const GUARD: usize = 4096;
/// What is mapped.
pub(crate) const SIZE: usize = GUARD + DEPTH * ROOM + 4096;
/// Where the [`Stack`] lies in it.
pub(crate) const BLOCK_AT: usize = GUARD + DEPTH * ROOM;

/// What is known of a thread's stack. It lies above the stack, and the thread's `memlane_go_stack` has its address. All-zero
/// is the initial value.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Stack {
    /// Calls under way. The door counts here.
    pub(super) depth: AtomicUsize,
    /// 1: libc gives the stack back when the thread ends.
    registered: AtomicU32,
}

impl Stack {
    /// One that is never given back.
    pub(crate) const fn given() -> Stack {
        Stack {
            depth: AtomicUsize::new(0),
            registered: AtomicU32::new(1),
        }
    }

    /// Makes it the stack of a new thread, which keeps it.
    pub(crate) fn begin(&self) {
        self.depth.store(0, Ordering::Relaxed);
        self.registered.store(1, Ordering::Relaxed);
    }
}

type KeyCreate = unsafe extern "C" fn(*mut u32, extern "C" fn(*mut c_void)) -> c_int;
type SetSpecific = unsafe extern "C" fn(u32, *const c_void) -> c_int;

static KEY: AtomicU32 = AtomicU32::new(0);
/// libc's `pthread_setspecific`. Before glibc 2.34 it is in a library of its own, so it is looked up.
static SET: AtomicUsize = AtomicUsize::new(0);

/// Prepares the giving back; `false`: this process has no threads of libc.
pub(super) fn prepare() -> bool {
    let names = (c"pthread_key_create", c"pthread_setspecific");
    let (Some(create), Some(set)) = (c_library::find(names.0), c_library::find(names.1)) else {
        return false;
    };
    // SAFETY: libc's function of this name, which has this prototype (pthread_key_create(3)).
    let create = unsafe { core::mem::transmute::<NonNull<c_void>, KeyCreate>(create) };
    let mut key = 0;
    // SAFETY: `key` is writable; the destructor lives as long as the process: a preloaded library is never unloaded.
    if unsafe { create(&raw mut key, give_back) } != 0 {
        return false;
    }
    KEY.store(key, Ordering::Relaxed);
    SET.store(set.as_ptr() as usize, Ordering::Relaxed);
    true
}

impl Stack {
    /// Tells libc of this stack, which is the calling thread's.
    pub(super) fn register(&self) {
        if self.registered.load(Ordering::Relaxed) == 0 {
            self.register_now();
        }
    }

    #[cold]
    fn register_now(&self) {
        self.registered.store(1, Ordering::Relaxed);
        let set = SET.load(Ordering::Relaxed);
        // SAFETY: the address is that of libc's function of this name, which has this prototype: `prepare` stored it, or no
        // door was opened.
        let set = unsafe { core::mem::transmute::<usize, SetSpecific>(set) };
        // SAFETY: a key that libc has made. If it has no memory for this, the stack stays until the process ends.
        unsafe {
            set(
                KEY.load(Ordering::Relaxed),
                core::ptr::from_ref(self).cast(),
            )
        };
    }
}

/// libc calls this in a thread that ends, on the thread's own stack.
extern "C" fn give_back(stack: *mut c_void) {
    unsafe extern "C" {
        fn memlane_forget_go_stack();
    }
    // SAFETY: the shim's function, which takes nothing. The next call of this thread, if there is one, makes another stack.
    unsafe { memlane_forget_go_stack() };
    let Some(base) = NonNull::new(stack.cast::<u8>().wrapping_sub(BLOCK_AT)) else {
        return;
    };
    // SAFETY: the whole mapping that the door made for this thread, which is outside the door.
    unsafe { memlane_sys::mem::unmap(base, SIZE) };
}
