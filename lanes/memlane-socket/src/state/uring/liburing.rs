//! The entries that a program has prepared by liburing, where they lie before a function of liburing hands them over.

use super::entry::{self, Entry};
use super::{ANY, SETUP_HARMLESS, SETUP_NO_SQARRAY, SETUP_SQE128, SETUP_SQPOLL};
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

/// `struct io_uring` of liburing 2 (`liburing.h`), as far as it matters here. Its layout is the ABI of `liburing.so.2`. The
/// program's thread that hands entries over is the only one that may use it meanwhile.
#[repr(C)]
#[derive(Debug)]
pub struct Prepared {
    _kernels: [usize; 2],
    mask: *const u32,
    _words: [usize; 4],
    entries: *mut u8,
    head: u32,
    tail: u32,
    _rest: [usize; 4],
    _completions: [usize; 11],
    flags: u32,
}
const _: () = assert!(core::mem::offset_of!(Prepared, entries) == 56);
const _: () = assert!(core::mem::offset_of!(Prepared, head) == 64);
const _: () = assert!(core::mem::offset_of!(Prepared, flags) == 192);

/// Flags of instances whose entries lie as they do here. A thread of the kernel (`IORING_SETUP_SQPOLL`) sees entries only after
/// the call that hands them over.
const KNOWN: u32 = SETUP_HARMLESS | SETUP_SQE128 | SETUP_NO_SQARRAY | SETUP_SQPOLL;

/// Notes that the program has loaded liburing: it may use an instance at any time.
pub fn is_loaded() {
    ANY.store(true, Ordering::Relaxed);
}

/// Calls `look` with each entry that is prepared and not yet handed over. `None`: where they lie is not known.
///
/// # Safety
/// `ring` is a `struct io_uring` of `liburing.so.2` that the program has set up, and no other thread uses it.
pub unsafe fn each_prepared(ring: *const Prepared, mut look: impl FnMut(Entry)) -> Option<()> {
    // SAFETY: the caller's promise.
    let ring = unsafe { ring.as_ref() }?;
    if ring.flags & !KNOWN != 0 {
        return None;
    }
    let entries = NonNull::new(ring.entries)?;
    // SAFETY: liburing keeps a pointer to this word of the mapped queue here.
    let mask = unsafe { ring.mask.as_ref() }?;
    let stride = entry::LEN << u32::from(ring.flags & SETUP_SQE128 != 0);
    let count = ring.tail.wrapping_sub(ring.head);
    for i in 0..count.min(mask.wrapping_add(1)) {
        let place = (ring.head.wrapping_add(i) & mask) as usize;
        // SAFETY: below the number of entries, all of which liburing has mapped, aligned to 64 bytes.
        look(unsafe { Entry::at(entries.add(place * stride)) });
    }
    Some(())
}
