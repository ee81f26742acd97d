//! Frames in pieces: what users of an engine see of memory that the other side can write.

use crate::layout::PACKET_MAX;
use crate::offload::Meta;
use memlane_core::access::SharedBytes;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A stretch of a frame. The other side may change its bytes while it is read: copy once, then look.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a>(SharedBytes, PhantomData<&'a ()>);

impl Part<'_> {
    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// None? (Never in a frame.)
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where it begins, for system calls; not for references.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// A stretch of it; `None` if that would reach outside.
    pub fn part(&self, at: usize, len: usize) -> Option<Self> {
        Some(Part(self.0.part(at, len)?, PhantomData))
    }

    /// Copies out from `at`, as much as both have; how much.
    #[inline]
    pub fn copy_out(&self, at: usize, into: &mut [u8]) -> usize {
        let n = self.0.len().saturating_sub(at).min(into.len());
        // SAFETY: `into` has n bytes; the window is alive for 'a, which its maker has seen to.
        unsafe { self.0.copy_out(at, into.as_mut_ptr(), n) };
        n
    }

    #[inline]
    fn copy_in(&self, at: usize, from: &[u8]) -> usize {
        let n = self.0.len().saturating_sub(at).min(from.len());
        // SAFETY: `from` has n bytes; the window is alive for 'a, which its maker has seen to.
        unsafe { self.0.copy_in(at, from.as_ptr(), n) };
        n
    }
}

/// A frame that was received, lent until its user is back.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    parts: &'a [SharedBytes],
    len: usize,
    meta: Meta,
}

/// Room for a frame that is to be sent, in its place.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    parts: &'a [SharedBytes],
    len: usize,
}

impl<'a> Frame<'a> {
    /// The windows must be alive for 'a, and together have `len` bytes.
    #[inline]
    pub fn new(parts: &'a [SharedBytes], len: usize, meta: Meta) -> Frame<'a> {
        Frame { parts, len, meta }
    }

    /// Bytes, from the Ethernet header on.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// None? (Never.)
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What it says of itself.
    pub fn meta(&self) -> Meta {
        self.meta
    }

    /// Its stretches, in order.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = Part<'a>> {
        self.parts.iter().map(|part| Part(*part, PhantomData))
    }

    /// Copies out from `at`, as much as there is and `into` takes; how much.
    #[inline]
    pub fn copy_out(&self, at: usize, into: &mut [u8]) -> usize {
        if let [part] = self.parts {
            return Part(*part, PhantomData).copy_out(at, into);
        }
        let mut done = 0;
        each(self.parts, at, into.len(), |part, at, n| {
            done += part.copy_out(at, &mut into[done..done + n]);
        });
        done
    }
}

impl<'a> Room<'a> {
    /// The windows must be alive for 'a, and together have `len` bytes.
    #[inline]
    pub fn new(parts: &'a [SharedBytes], len: usize) -> Room<'a> {
        Room { parts, len }
    }

    /// Bytes: all of them go, filled or not (what is not filled has what lay there before, which the other side had seen).
    pub fn len(&self) -> usize {
        self.len
    }

    /// None? (Never.)
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its stretches, in order.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = Part<'a>> {
        self.parts.iter().map(|part| Part(*part, PhantomData))
    }

    /// Copies out what was put there, from `at`, as much as there is room and `into` takes; how much. The other side
    /// may have changed it meanwhile.
    #[inline]
    pub fn copy_out(&self, at: usize, into: &mut [u8]) -> usize {
        Frame::new(self.parts, self.len, Meta::default()).copy_out(at, into)
    }

    /// Copies in from `at`, as much as there is room for; how much.
    #[inline]
    pub fn copy_in(&self, at: usize, from: &[u8]) -> usize {
        if let [part] = self.parts {
            return Part(*part, PhantomData).copy_in(at, from);
        }
        let mut done = 0;
        each(self.parts, at, from.len(), |part, at, n| {
            done += part.copy_in(at, &from[done..done + n]);
        });
        done
    }
}

impl Room<'_> {
    /// Copies a stretch of another frame in from `at`, as much as there is room for; how much.
    #[inline]
    pub fn copy_from(&self, at: usize, from: &Part<'_>) -> usize {
        let mut done = 0;
        each(self.parts, at, from.len(), |part, at, n| {
            // SAFETY: `from` has n bytes from `done` on, and both windows are alive, which their makers have seen to.
            // Should a peer have granted one memory twice, so that they overlap, it garbles its own bytes.
            unsafe { part.0.copy_in(at, from.as_ptr().add(done), n) };
            done += n;
        });
        done
    }
}

/// Walks over `want` bytes from `at`.
#[inline]
fn each(
    parts: &[SharedBytes],
    mut at: usize,
    mut want: usize,
    mut step: impl FnMut(Part<'_>, usize, usize),
) {
    for part in parts {
        if want == 0 {
            break;
        }
        if at >= part.len() {
            at -= part.len();
            continue;
        }
        let n = want.min(part.len() - at);
        step(Part(*part, PhantomData), at, n);
        at = 0;
        want -= n;
    }
}

/// Leaves the first `len` bytes of what was laid out.
#[inline]
pub(super) fn trim(parts: &mut Vec<SharedBytes>, len: usize) {
    let (mut left, mut kept) = (len, 0);
    while left > 0 && kept < parts.len() {
        let part = &mut parts[kept];
        if let Some(shorter) = part.part(0, left.min(part.len())) {
            *part = shorter;
        }
        left -= part.len().min(left);
        kept += 1;
    }
    parts.truncate(kept);
}

/// Memory of our own of one packet's size, for the modes and moments in which the kernel copies.
#[derive(Debug)]
pub(super) struct Staging(NonNull<[u8; PACKET_MAX]>);

// SAFETY: an allocation of its own.
unsafe impl Send for Staging {}

impl Staging {
    pub(super) fn new() -> Staging {
        let bytes: Box<[u8; PACKET_MAX]> = vec![0; PACKET_MAX]
            .into_boxed_slice()
            .try_into()
            .unwrap_or_else(|_| unreachable!("made of that length"));
        Staging(NonNull::from(Box::leak(bytes)))
    }

    /// All of it.
    pub(super) fn whole(&self) -> SharedBytes {
        // SAFETY: the whole allocation, which lives as long as `self`; windows are lent for the time of a call only.
        unsafe { SharedBytes::new(self.0.cast(), PACKET_MAX) }
    }

    /// A stretch of it, as a window; `None` beyond its end.
    pub(super) fn window(&self, at: usize, len: usize) -> Option<SharedBytes> {
        self.whole().part(at, len)
    }

    /// The bytes of a window of ours.
    ///
    /// # Safety
    /// `window` is one of ours, and nobody uses it while the slice lives.
    #[allow(clippy::mut_from_ref)] // raw memory; exclusive by the caller's promise
    pub(super) unsafe fn bytes(&self, window: SharedBytes) -> &mut [u8] {
        // SAFETY: inside the allocation; the caller's promise for the rest.
        unsafe { std::slice::from_raw_parts_mut(window.as_ptr(), window.len()) }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: leaked in `new`, and nobody has it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Small frames begin at different places of their pages: lines at the same place of all pages share one set of a cache.
#[inline]
pub(super) fn colour(buffer: u16, room: usize, len: usize) -> u16 {
    let at = (buffer % 32) * 64;
    if usize::from(at) + len <= room { at } else { 0 }
}
