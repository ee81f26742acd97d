//! The program's libc.

use crate::search::Behind;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::NonNull;

unsafe extern "C" {
    fn memlane_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn memlane_is_musl() -> c_int;
}

/// Is the program's libc musl?
pub(crate) fn is_musl() -> bool {
    // SAFETY: compares an address.
    unsafe { memlane_is_musl() != 0 }
}

/// The next definition of a name, behind the library's own; 0: there is none.
pub(crate) fn find_next(name: &CStr) -> usize {
    // SAFETY: the name is NUL-terminated.
    unsafe { memlane_dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
}

/// The next definition of a name, behind the library's own: from the libraries that were noted or, where these do not tell, by
/// `dlsym`. 0: there is none.
pub(crate) fn find_behind(behind: &Behind, name: &CStr) -> usize {
    behind.find(name).unwrap_or_else(|| find_next(name))
}

/// A name that the program or one of its libraries defines.
pub(crate) fn find(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name is NUL-terminated.
    NonNull::new(unsafe { memlane_dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}
