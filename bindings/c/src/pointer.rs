//! What a C program's pointers point to, as far as one can see: not NULL where something must be, aligned, not longer
//! than memory. That it is there is the program's promise.

use crate::fault::{Code, Fault, Result};
use core::ffi::{CStr, c_char};

/// Longer than any name that we take.
const TEXT_MAX: usize = 4096;

fn invalid(what: &str, why: &str) -> Fault {
    Fault::new(Code::Invalid, format!("{what}: {why}"))
}

fn look<T>(what: &str, pointer: *const T, count: usize) -> Result<()> {
    if pointer.is_null() {
        return Err(invalid(what, "NULL"));
    }
    if !pointer.is_aligned() {
        return Err(invalid(what, "not aligned"));
    }
    let bytes = count.checked_mul(size_of::<T>());
    match bytes.filter(|bytes| *bytes <= isize::MAX.unsigned_abs()) {
        Some(_) => Ok(()),
        None => Err(invalid(what, "more than there is memory")),
    }
}

/// A string.
///
/// # Safety
/// Not null: it ends, and nobody changes it meanwhile.
pub(crate) unsafe fn text<'a>(what: &str, pointer: *const c_char) -> Result<&'a str> {
    look(what, pointer, 1)?;
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    match text.to_str() {
        Ok(text) if text.len() <= TEXT_MAX => Ok(text),
        Ok(_) => Err(invalid(what, "too long")),
        Err(_) => Err(invalid(what, "no UTF-8")),
    }
}

/// An array that is read.
///
/// # Safety
/// Not null: it has `count` elements, and nobody changes them meanwhile.
pub(crate) unsafe fn array<'a, T>(what: &str, pointer: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    look(what, pointer, count)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(pointer, count) })
}

/// Bytes that are written, of which the program says that they are memory of its own.
///
/// # Safety
/// Not null: it points to `count` bytes, which nobody else uses meanwhile.
pub(crate) unsafe fn room<'a>(what: &str, pointer: *mut u8, count: usize) -> Result<&'a mut [u8]> {
    if count == 0 {
        return Ok(&mut []);
    }
    look(what, pointer, count)?;
    // SAFETY: they may never have been written, so that is done here first.
    unsafe { pointer.write_bytes(0, count) };
    // SAFETY: the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts_mut(pointer, count) })
}

/// A place for results; checked before anything is done, written when it is.
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// # Safety
    /// Not null: room for `count` elements, which nobody else uses meanwhile.
    pub(crate) unsafe fn new(what: &str, pointer: *mut T, count: usize) -> Result<Out<T>> {
        look(what, pointer, count)?;
        Ok(Out(pointer))
    }

    /// Element `at`, one of those that there is room for.
    pub(crate) fn put(&self, at: usize, value: T) {
        // SAFETY: room was promised to `new`.
        unsafe { self.0.add(at).write(value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_seen_is_seen() {
        let null: *const u32 = core::ptr::null();
        let there = 7;
        // SAFETY: nothing is read through any of these.
        unsafe {
            assert!(array("x", null, 1).is_err());
            assert!(array("x", null, 0).is_ok_and(<[u32]>::is_empty));
            let odd = core::ptr::without_provenance::<u32>(102);
            assert!(array("x", odd, 1).is_err(), "not aligned");
            assert!(array("x", &raw const there, usize::MAX / 2).is_err());
            assert!(Out::<u64>::new("x", core::ptr::null_mut(), 1).is_err());
            assert!(text("x", core::ptr::null()).is_err());
            assert!(text("x", c"\xff".as_ptr()).is_err());
        }
        let long = std::ffi::CString::new(vec![b'a'; TEXT_MAX + 1]).unwrap();
        // SAFETY: it ends.
        assert!(unsafe { text("x", long.as_ptr()) }.is_err());
    }
}
