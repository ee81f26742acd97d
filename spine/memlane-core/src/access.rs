//! The one window on bytes that a peer can write.
//!
//! No `&[u8]` ever points into shared memory: a peer may change the bytes at
//! any time. Payload is copied in or out through [`SharedBytes`], by machine
//! code that the compiler cannot look into (so it can neither read a byte
//! twice nor assume that two reads agree); whoever needs to *believe* bytes
//! copies them out once and checks the copy.

pub use crate::copy::copy;
use crate::copy::{copy_past_caches, copy_to_peer};
use crate::stores::Stores;
use core::ptr::NonNull;

/// A bounded stretch of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: all access is by opaque byte copies; races on payload are the ring
// protocol's business and harmless to memory safety.
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// The window `base..base+len`.
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable while the window is used.
    #[inline]
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> SharedBytes {
        SharedBytes {
            base,
            len,
            writable: true,
        }
    }

    /// The window `base..base+len` on memory that may only be read: nothing is copied into it.
    ///
    /// # Safety
    /// The memory stays mapped and readable while the window is used.
    pub unsafe fn read_only(base: NonNull<u8>, len: usize) -> SharedBytes {
        SharedBytes {
            base,
            len,
            writable: false,
        }
    }

    /// Bytes in the window.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is the window empty?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of the window, or `None` if it would reach outside.
    #[inline]
    pub fn part(&self, at: usize, len: usize) -> Option<SharedBytes> {
        if at.checked_add(len)? > self.len {
            return None;
        }
        Some(SharedBytes {
            // SAFETY: inside the window, as just checked.
            base: unsafe { self.base.add(at) },
            len,
            writable: self.writable,
        })
    }

    /// Where the window starts, for system calls that read or write it.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Copies `n` bytes from `src` to offset `at`. Out of bounds, or read-only:
    /// copies nothing and returns false.
    ///
    /// # Safety
    /// `src` is readable for `n` bytes.
    #[inline]
    pub unsafe fn copy_in(&self, at: usize, src: *const u8, n: usize) -> bool {
        if !self.writable || at > self.len || n > self.len - at {
            return false;
        }
        // SAFETY: bounds checked; the source is the caller's promise.
        unsafe { copy_to_peer(self.base.as_ptr().add(at), src, n) };
        true
    }

    /// Copies `n` bytes from `src` to offset `at`, by these stores. Out of bounds, or read-only: copies nothing and returns
    /// false.
    ///
    /// # Safety
    /// `src` is readable for `n` bytes.
    #[inline]
    pub unsafe fn copy_in_by(&self, stores: Stores, at: usize, src: *const u8, n: usize) -> bool {
        if stores == Stores::Cached {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_in(at, src, n) };
        }
        if !self.writable || at > self.len || n > self.len - at {
            return false;
        }
        // SAFETY: bounds checked; the source is the caller's promise.
        unsafe { copy_past_caches(self.base.as_ptr().add(at), src, n) };
        true
    }

    /// Copies `n` bytes from offset `at` to `dst`. Out-of-bounds copies nothing
    /// and returns false.
    ///
    /// # Safety
    /// `dst` is writable for `n` bytes.
    #[inline]
    pub unsafe fn copy_out(&self, at: usize, dst: *mut u8, n: usize) -> bool {
        if at > self.len || n > self.len - at {
            return false;
        }
        // SAFETY: bounds checked; the destination is the caller's promise.
        unsafe { copy(dst, self.base.as_ptr().add(at), n) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_would_leave_the_window_is_refused() {
        let mut mem = [0u8; 64];
        let base = NonNull::new(mem.as_mut_ptr()).unwrap();
        // SAFETY: `mem` outlives the window.
        let w = unsafe { SharedBytes::new(base, 64) };
        let src = [1u8; 65];
        // SAFETY: the sources are long enough; the bounds are what is tested.
        unsafe {
            assert!(!w.copy_in(0, src.as_ptr(), 65));
            assert!(!w.copy_in(64, src.as_ptr(), 1));
            assert!(!w.copy_in(usize::MAX, src.as_ptr(), 2));
            assert!(w.copy_in(60, src.as_ptr(), 4));
        }
        assert!(w.part(60, 5).is_none() && w.part(usize::MAX, 2).is_none());
    }
}
