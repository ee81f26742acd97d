//! memlane for C: `libmemlane` and `include/memlane.h` (guide: `docs/guides/c.md`).
//!
//! A devmem stream puts payload straight into a region; its user gets fragments and gives their tokens back. This is the
//! device-memory lane (`memlane_devmem`), as C sees it. Beside it, the socket lane by name (`memlane_socket::native`).
//!
//! | room | what |
//! |---|---|
//! | `fault` | error numbers, the last error's words, panics that stay here |
//! | `pointer` | what can be seen of a program's pointers |
//! | `table` | handles: numbers that look like pointers, looked up each time |
//! | `types` | structures that both languages know, with their sizes |
//! | `region` | memory for payload |
//! | `stream` | TCP connections over memory, without a region |
//! | `devmem` | listeners, streams, fragments that have an owner |
//!
//! Nothing that a C program passes is believed: a handle is a number of a table, so NULL, a handle of another kind and
//! one that was destroyed before are errors. What cannot be seen are pointers to memory that is not there.

pub mod devmem;
mod fault;
mod pointer;
pub mod region;
pub mod stream;
mod table;
pub mod types;

use core::ffi::{c_char, c_int};
use fault::Code;

/// Of `include/memlane.h`: `MEMLANE_ABI`.
pub const ABI: u32 = 1;

/// The ABI that this library has: a program compares it with `MEMLANE_ABI`.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_abi() -> u32 {
    ABI
}

/// The version of this library; lives for ever.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// What went wrong last in this thread; lives until this thread's next failure. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_last_error() -> *const c_char {
    fault::last_words()
}

/// The kernel's number of the last failure in this thread, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_last_errno() -> c_int {
    fault::last_errno()
}

/// The name of an error number (`MEMLANE_AGAIN`); lives for ever. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn memlane_error_name(code: c_int) -> *const c_char {
    let named = Code::ALL.iter().find(|(known, _)| *known as c_int == code);
    named.map_or(c"?", |(_, name)| name).as_ptr()
}
