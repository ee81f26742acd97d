//! A cursor over the program's buffers.

use libc::iovec;
use memlane_core::access::SharedBytes;
use memlane_core::ring::Stretch;
use memlane_core::stores::Stores;

/// Most `iovec`s in one call (`IOV_MAX`).
pub const IOV_MAX: usize = 1024;

/// Addresses that can't be a program's buffer: the first page (and its
/// neighbours, `vm.mmap_min_addr`), and the kernel's half. The kernel would say
/// `EFAULT`; we would fault ourselves.
const LOWEST: usize = 64 * 1024;
const HIGHEST: usize = 0x7fff_ffff_f000;

/// Is `len` bytes at `base` certainly no memory of the program's?
#[inline]
pub fn is_nowhere(base: *const u8, len: usize) -> bool {
    len > 0 && ((base as usize) < LOWEST || (base as usize).saturating_add(len) > HIGHEST)
}

/// Is one of the buffers certainly no memory of the program's?
#[inline]
pub fn implausible(list: &[iovec]) -> bool {
    list.iter()
        .any(|v| is_nowhere(v.iov_base.cast(), v.iov_len))
}

/// Buffers of the program, and how far they have been used.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    list: &'a [iovec],
    at: usize,
    offset: usize,
    left: usize,
}

impl<'a> Cursor<'a> {
    /// Over `list`; the lengths are added up (saturating: the kernel would refuse such a sum).
    pub fn new(list: &'a [iovec]) -> Cursor<'a> {
        let left = list.iter().fold(0usize, |n, v| n.saturating_add(v.iov_len));
        Cursor {
            list,
            at: 0,
            offset: 0,
            left,
        }
    }

    /// Bytes left.
    pub fn left(&self) -> usize {
        self.left
    }

    /// The rest of the current buffer: address and length (0 only at the end).
    pub fn piece(&mut self) -> (*mut u8, usize) {
        while let Some(v) = self.list.get(self.at) {
            if self.offset < v.iov_len {
                return (
                    v.iov_base.cast::<u8>().wrapping_add(self.offset),
                    v.iov_len - self.offset,
                );
            }
            self.at += 1;
            self.offset = 0;
        }
        (core::ptr::null_mut(), 0)
    }

    /// `n` bytes are done (`n` ≤ the current piece).
    pub fn advance(&mut self, n: usize) {
        self.offset += n;
        self.left = self.left.saturating_sub(n);
    }

    /// Skips `n` bytes over any number of pieces.
    pub fn skip(&mut self, mut n: usize) {
        while n > 0 {
            let (_, len) = self.piece();
            if len == 0 {
                return;
            }
            let step = len.min(n);
            self.advance(step);
            n -= step;
        }
    }

    /// The number of bytes, at most `limit`, that [`rest`](Cursor::rest) takes.
    pub fn rest_len(&self, limit: usize) -> usize {
        let mut entries = [iovec {
            iov_base: core::ptr::null_mut(),
            iov_len: 0,
        }; 16];
        let n = self.rest(&mut entries, limit);
        entries[..n].iter().map(|e| e.iov_len).sum()
    }

    /// Fills `out` with the rest of the list, at most `limit` bytes and as many entries as fit; returns the number of
    /// entries.
    pub fn rest(&self, out: &mut [iovec; 16], limit: usize) -> usize {
        let mut copy = self.clone();
        let (mut n, mut room) = (0, limit);
        while n < out.len() && room > 0 {
            let (base, len) = copy.piece();
            if len == 0 {
                break;
            }
            let take = len.min(room);
            out[n] = iovec {
                iov_base: base.cast(),
                iov_len: take,
            };
            copy.advance(take);
            room -= take;
            n += 1;
        }
        n
    }

    /// Copies a ring stretch to the program's buffers.
    ///
    /// # Safety
    /// The buffers are writable as the program promised its call.
    pub unsafe fn fill_from(&mut self, ring: &SharedBytes, s: Stretch) {
        let (mut at, mut left) = (s.at, s.len);
        while left > 0 {
            let (dst, len) = self.piece();
            let n = len.min(left);
            if n == 0 {
                return;
            }
            // SAFETY: `dst` is writable for `n` bytes (caller); the window checks its bounds.
            unsafe { ring.copy_out(at, dst, n) };
            copied(n);
            self.advance(n);
            at += n;
            left -= n;
        }
    }

    /// Copies the program's buffers to a ring stretch, by these stores.
    ///
    /// # Safety
    /// The buffers are readable as the program promised its call.
    pub unsafe fn drain_to(&mut self, ring: &SharedBytes, s: Stretch, stores: Stores) {
        let (mut at, mut left) = (s.at, s.len);
        while left > 0 {
            let (src, len) = self.piece();
            let n = len.min(left);
            if n == 0 {
                return;
            }
            // SAFETY: `src` is readable for `n` bytes (caller); the window checks its bounds.
            unsafe { ring.copy_in_by(stores, at, src, n) };
            copied(n);
            self.advance(n);
            at += n;
            left -= n;
        }
    }
}

/// Told of every copy of the program's bytes; the unit tests count them (invariant 5).
#[inline(always)]
pub fn copied(_bytes: usize) {
    #[cfg(test)]
    count::COPIED.with(|sum| sum.set(sum.get() + _bytes));
}

/// What this thread has copied.
#[cfg(test)]
pub mod count {
    std::thread_local!(
        /// Bytes.
        pub static COPIED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });
}
