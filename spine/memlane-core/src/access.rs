//! The one window on bytes that a peer can write.
//!
//! No `&[u8]` ever points into shared memory: a peer may change the bytes at
//! any time. Payload is copied in or out through [`SharedBytes`], by machine
//! code that the compiler cannot look into (so it can neither read a byte
//! twice nor assume that two reads agree); whoever needs to *believe* bytes
//! copies them out once and checks the copy.

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
        unsafe { copy(self.base.as_ptr().add(at), src, n) };
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

/// Copies without overlap, opaque to the compiler.
///
/// # Safety
/// `src` readable and `dst` writable for `n` bytes, not overlapping.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; every branch touches exactly n bytes.
    unsafe {
        if n > 32 {
            copy_blocks_x86(dst, src, n);
        } else {
            copy_small(dst, src, n);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        copy_words(dst, src, n);
    }
}

/// 33 bytes and more: 64-byte blocks through four vector registers, then a tail
/// of one or two 32-byte moves that may overlap what is already copied.
///
/// # Safety
/// As `copy`; `n` > 32.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_blocks_x86(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: the loop moves n/64 whole blocks; the tail moves the last 32 bytes
    // and, if more than 32 remain, the 32 before them; all inside 0..n because n > 32.
    unsafe {
        core::arch::asm!(
            "mov {left}, {n}",
            "cmp {left}, 64",
            "jb 3f",
            "2:",
            "movups xmm0, [{s}]",
            "movups xmm1, [{s} + 16]",
            "movups xmm2, [{s} + 32]",
            "movups xmm3, [{s} + 48]",
            "movups [{d}], xmm0",
            "movups [{d} + 16], xmm1",
            "movups [{d} + 32], xmm2",
            "movups [{d} + 48], xmm3",
            "add {s}, 64",
            "add {d}, 64",
            "sub {left}, 64",
            "cmp {left}, 64",
            "jae 2b",
            "3:",
            "test {left}, {left}",
            "jz 5f",
            "movups xmm2, [{s} + {left} - 32]",
            "movups xmm3, [{s} + {left} - 16]",
            "cmp {left}, 32",
            "jbe 4f",
            "movups xmm0, [{s}]",
            "movups xmm1, [{s} + 16]",
            "movups [{d}], xmm0",
            "movups [{d} + 16], xmm1",
            "4:",
            "movups [{d} + {left} - 32], xmm2",
            "movups [{d} + {left} - 16], xmm3",
            "5:",
            n = in(reg) n,
            left = out(reg) _,
            s = inout(reg) src => _,
            d = inout(reg) dst => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack)
        );
    }
}

/// Up to 32 bytes: two moves of 16, 8 or 4 that may overlap, or single bytes.
///
/// # Safety
/// As `copy`.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_small(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: moves exactly n bytes upwards; the direction flag is clear by the ABI.
    unsafe {
        core::arch::asm!(
            "cmp {n}, 16",
            "jb 2f",
            "movups xmm0, [{s}]",
            "movups xmm1, [{s} + {n} - 16]",
            "movups [{d}], xmm0",
            "movups [{d} + {n} - 16], xmm1",
            "jmp 6f",
            "2:",
            "cmp {n}, 8",
            "jb 3f",
            "mov {t}, [{s}]",
            "mov {u}, [{s} + {n} - 8]",
            "mov [{d}], {t}",
            "mov [{d} + {n} - 8], {u}",
            "jmp 6f",
            "3:",
            "cmp {n}, 4",
            "jb 4f",
            "mov {t:e}, [{s}]",
            "mov {u:e}, [{s} + {n} - 4]",
            "mov [{d}], {t:e}",
            "mov [{d} + {n} - 4], {u:e}",
            "jmp 6f",
            "4:",
            "test {n}, {n}",
            "jz 6f",
            "5:",
            "mov {t:l}, [{s} + {n} - 1]",
            "mov [{d} + {n} - 1], {t:l}",
            "dec {n}",
            "jnz 5b",
            "6:",
            n = inout(reg) n => _,
            s = in(reg) src,
            d = in(reg) dst,
            t = out(reg) _,
            u = out(reg) _,
            out("xmm0") _, out("xmm1") _,
            options(nostack)
        );
    }
}

/// Portable: volatile bytes and words.
///
/// # Safety
/// As `copy`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_words(dst: *mut u8, src: *const u8, n: usize) {
    let mut i = 0;
    if (dst as usize | src as usize) % 8 == 0 {
        while i + 8 <= n {
            // SAFETY: inside 0..n and aligned.
            unsafe {
                let w = src.add(i).cast::<u64>().read_volatile();
                dst.add(i).cast::<u64>().write_volatile(w);
            }
            i += 8;
        }
    }
    while i < n {
        // SAFETY: inside 0..n.
        unsafe { dst.add(i).write_volatile(src.add(i).read_volatile()) };
        i += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_copies_exactly_its_bytes() {
        let src: Vec<u8> = (0..2000u32).map(|i| (i * 7 + 3).to_le_bytes()[0]).collect();
        for n in (0..300).chain([511, 512, 513, 1000, 1024, 1500]) {
            for (so, d_o) in [(0, 0), (1, 3), (5, 0), (0, 9), (13, 31)] {
                let mut dst = vec![0xAAu8; 2000];
                // SAFETY: both vectors are longer than offset + n.
                unsafe { copy(dst.as_mut_ptr().add(d_o), src.as_ptr().add(so), n) };
                assert_eq!(&dst[d_o..d_o + n], &src[so..so + n], "n {n}");
                assert!(dst[..d_o].iter().all(|&b| b == 0xAA));
                assert!(dst[d_o + n..].iter().all(|&b| b == 0xAA), "n {n}");
            }
        }
    }

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
