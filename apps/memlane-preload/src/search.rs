//! The search for a name among the libraries of this process, where there is no `dlsym`.
//!
//! Before glibc 2.34, `dlsym` was in a library of its own, which not every program loads and not every image has. The
//! library that is preloaded must not want it: a program whose loader misses a library does not start.

use core::ffi::{CStr, c_char, c_int, c_void};
use memlane_sys::elf::{self, Name, PT_DYNAMIC};

/// A segment that is loaded (`elf.h`).
const PT_LOAD: u32 = 1;

/// What is looked for.
struct Search<'a> {
    name: Name<'a>,
    /// Only libraries behind this one count (as with `RTLD_NEXT`).
    behind_us: bool,
    found: usize,
}

/// The address of the first definition of `name`, among all libraries or those behind this one. Null: there is none.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memlane_search(
    behind_us: c_int,
    name: *const c_char,
) -> *mut c_void {
    let mut search = Search {
        // SAFETY: the caller's promise.
        name: Name::new(unsafe { CStr::from_ptr(name) }),
        behind_us: behind_us != 0,
        found: 0,
    };
    // SAFETY: the callback has the type that the call expects, and gets a pointer to the search while that lives.
    unsafe { libc::dl_iterate_phdr(Some(look_into), (&raw mut search).cast()) };
    search.found as *mut c_void
}

/// `dl_iterate_phdr` callback: ends the walk when the name is found.
unsafe extern "C" fn look_into(
    info: *mut libc::dl_phdr_info,
    _: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker passes a valid record, and what `memlane_search` gave it.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    // SAFETY: the linker's own table of this library's segments.
    let segments =
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr as usize;
    if search.behind_us {
        // From here on all are behind us.
        search.behind_us = !is_ours(base, segments);
        return 0;
    }
    let dynamic = segments.iter().find(|s| s.p_type == PT_DYNAMIC);
    if let Some(dynamic) = dynamic {
        // SAFETY: a library's dynamic section lies there, and ends with an entry of zeros.
        search.found = unsafe {
            elf::define(
                base,
                base.wrapping_add(dynamic.p_vaddr as usize),
                search.name,
            )
        };
    }
    c_int::from(search.found != 0)
}

fn is_ours(base: usize, segments: &[libc::Elf64_Phdr]) -> bool {
    let here = memlane_search as *const () as usize;
    segments
        .iter()
        .filter(|s| s.p_type == PT_LOAD)
        .any(|s| here.wrapping_sub(base.wrapping_add(s.p_vaddr as usize)) < s.p_memsz as usize)
}
