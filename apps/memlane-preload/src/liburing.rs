//! liburing: its functions that hand entries to the kernel, or register descriptors.
//!
//! liburing makes its system calls with instructions of its own, so no hook of `syscall` sees them. But programs call its
//! functions by name, and what its header has inline submits nothing. Each function here looks at what the kernel will get, and
//! calls liburing's.

use crate::ready::ready;
use crate::search::Late;
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU8, Ordering};
use libc::size_t;
use memlane_core::reason::Reason;
use memlane_socket::hooks::uring;
use memlane_socket::protocol::upgrade::freeze;
use memlane_socket::state::process;
use memlane_socket::state::uring::{Params, Prepared};

/// The only version whose structure is known.
const KNOWN: &[u8] = b"liburing.so.2";

/// What is known of the liburing of this process: any thread finds it out, and all find the same.
static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const VERSION_2: u8 = 1;
const ANOTHER: u8 = 2;

/// Looks for liburing among the libraries that the loader has brought with the program.
pub(crate) fn start() {
    look_for_it();
    match FOUND.load(Ordering::Relaxed) {
        VERSION_2 => memlane_socket::state::uring::is_loaded(),
        ANOTHER => freeze(Reason::IO_URING),
        _ => {}
    }
}

/// Does a function of liburing get a structure whose layout is known? If not, nobody can see what it hands over.
fn is_known() -> bool {
    if FOUND.load(Ordering::Relaxed) == UNKNOWN {
        look_for_it();
        // A library of another name has these functions.
        let _ = FOUND.compare_exchange(UNKNOWN, ANOTHER, Ordering::Relaxed, Ordering::Relaxed);
    }
    let known = FOUND.load(Ordering::Relaxed) == VERSION_2;
    if !known && process::PROCESS.frozen.load(Ordering::Relaxed) == 0 {
        freeze(Reason::IO_URING);
    }
    known
}

fn look_for_it() {
    // SAFETY: the callback has the type that the call expects.
    unsafe { libc::dl_iterate_phdr(Some(look_at), core::ptr::null_mut()) };
}

/// `dl_iterate_phdr` callback: notes which liburing is loaded.
unsafe extern "C" fn look_at(info: *mut libc::dl_phdr_info, _: size_t, _: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker's own structure.
    let name = unsafe { (*info).dlpi_name };
    if name.is_null() {
        return 0;
    }
    // SAFETY: the dynamic linker's names are NUL-terminated.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let has = |text: &[u8]| name.windows(text.len()).any(|part| part == text);
    if has(b"liburing.so") {
        // With two of them, nobody knows which structure a function gets.
        let found = if has(KNOWN) { VERSION_2 } else { ANOTHER };
        FOUND.fetch_max(found, Ordering::Relaxed);
    }
    0
}

fn is_on() -> bool {
    ready();
    process::enabled()
}

fn before_submit(ring: *const Prepared) {
    if is_on() && is_known() {
        // SAFETY: the program gives liburing its structure, and must not use it in another thread meanwhile.
        unsafe { uring::before_submit(ring) };
    }
}

fn before_files(files: *const c_int, count: c_uint) {
    if is_on() {
        uring::before_files(files, count);
    }
}

/// `fn name(args) -> type { what comes before } then what gets the result;`: a function of liburing between the two. Where
/// there is none, it fails with `ENOSYS`, as liburing's functions tell errors.
macro_rules! liburing {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty { $before:expr } $(then $after:expr;)?)+) => {
        $(
            /// # Safety
            /// As liburing's function of this name.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                const NAME: &[u8] = concat!(stringify!($name), "\0").as_bytes();
                static REAL: Late = Late::NEW;
                $before;
                let address = CStr::from_bytes_with_nul(NAME).map_or(0, |name| REAL.address(name));
                if address == 0 {
                    return (-libc::ENOSYS) as $ret;
                }
                // SAFETY: the address is that of liburing's function of this name, which has this prototype (liburing.h).
                let real = unsafe {
                    core::mem::transmute::<usize, unsafe extern "C" fn($($ty),*) -> $ret>(address)
                };
                // SAFETY: the program's own arguments.
                let result = unsafe { real($($arg),*) };
                $($after(result);)?
                result
            }
        )+
    };
}

type Ring = *mut Prepared;
type Out = *mut *mut c_void;
type In = *mut c_void;

liburing! {
    fn io_uring_submit(ring: Ring) -> c_int { before_submit(ring) }
    fn io_uring_submit_and_wait(ring: Ring, wait: c_uint) -> c_int { before_submit(ring) }
    fn io_uring_submit_and_wait_timeout(ring: Ring, cqe: Out, wait: c_uint, time: In, mask: In) -> c_int { before_submit(ring) }
    fn io_uring_submit_and_wait_min_timeout(ring: Ring, cqe: Out, wait: c_uint, time: In, least: c_uint, mask: In) -> c_int { before_submit(ring) }
    fn io_uring_submit_and_wait_reg(ring: Ring, cqe: Out, wait: c_uint, place: c_int) -> c_int { before_submit(ring) }
    fn io_uring_submit_and_get_events(ring: Ring) -> c_int { before_submit(ring) }
    fn io_uring_wait_cqes(ring: Ring, cqe: Out, wait: c_uint, time: In, mask: In) -> c_int { before_submit(ring) }
    fn io_uring_wait_cqes_min_timeout(ring: Ring, cqe: Out, wait: c_uint, time: In, least: c_uint, mask: In) -> c_int { before_submit(ring) }
    fn io_uring_wait_cqe_timeout(ring: Ring, cqe: Out, time: In) -> c_int { before_submit(ring) }
    fn __io_uring_flush_sq(ring: Ring) -> c_uint { before_submit(ring) }

    fn io_uring_register_files(ring: Ring, files: *const c_int, count: c_uint) -> c_int { before_files(files, count) }
    fn io_uring_register_files_tags(ring: Ring, files: *const c_int, tags: *const u64, count: c_uint) -> c_int { before_files(files, count) }
    fn io_uring_register_files_update(ring: Ring, from: c_uint, files: *const c_int, count: c_uint) -> c_int { before_files(files, count) }
    fn io_uring_register_files_update_tag(ring: Ring, from: c_uint, files: *const c_int, tags: *const u64, count: c_uint) -> c_int { before_files(files, count) }

    fn io_uring_setup(entries: c_uint, params: *mut Params) -> c_int { ready() } then |fd| after_setup(fd, params);
    fn io_uring_enter(fd: c_uint, count: c_uint, least: c_uint, flags: c_uint, mask: In) -> c_int { before_enter(fd, count, flags) }
    fn io_uring_enter2(fd: c_uint, count: c_uint, least: c_uint, flags: c_uint, arg: In, len: size_t) -> c_int { before_enter(fd, count, flags) }
    fn io_uring_register(fd: c_uint, operation: c_uint, arg: In, count: c_uint) -> c_int { before_register(operation, arg, count) }
}

fn before_enter(fd: c_uint, count: c_uint, flags: c_uint) {
    if is_on() {
        uring::before_enter(fd.cast_signed(), count, flags);
    }
}

fn before_register(operation: c_uint, arg: In, count: c_uint) {
    if is_on() {
        uring::before_register(operation, arg as usize, count);
    }
}

fn after_setup(fd: c_int, params: *const Params) {
    if fd >= 0 && is_on() {
        uring::set_up(fd, params);
    }
}
