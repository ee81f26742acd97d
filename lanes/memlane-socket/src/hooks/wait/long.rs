//! Long lists of descriptors: what a call needs for each of them does not fit on the stack of every thread.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::pollfd;
use memlane_sys::mem;

/// The longest list that is short: what belongs to it lies on the stack.
pub(super) const FEW: usize = 64;
/// The most entries of [`Entries`] that lie on the stack.
const ON_STACK: usize = FEW + super::relied::MOST;
/// An entry that the kernel passes over.
const NONE: pollfd = pollfd {
    fd: -1,
    events: 0,
    revents: 0,
};

/// A mapping that no call uses at the moment, so that a program that waits on a long list does not make one each time; 0:
/// none. Its first word is its length in bytes. The thread that swaps it out owns it.
pub(super) struct Spare(AtomicUsize);

impl Spare {
    pub(super) const fn new() -> Spare {
        Spare(AtomicUsize::new(0))
    }

    /// A mapping of at least this many bytes, with its length. What it holds is undefined.
    pub(super) fn take(&self, least: usize) -> Option<(NonNull<u8>, usize)> {
        if let Some(spare) = NonNull::new(self.0.swap(0, Ordering::AcqRel) as *mut u8) {
            // SAFETY: this thread owns it since the swap; `give` has written its length there.
            let len = unsafe { spare.cast::<usize>().read() };
            if len >= least {
                return Some((spare, len));
            }
            // SAFETY: the whole mapping.
            unsafe { mem::unmap(spare, len) };
        }
        let len = least.checked_next_power_of_two()?.max(mem::PAGE);
        Some((mem::map_anon(len, false).ok()?, len))
    }

    /// Gives back what `take` has returned.
    pub(super) fn give(&self, block: NonNull<u8>, len: usize) {
        // SAFETY: this thread owns it; it is longer than a word and page-aligned.
        unsafe { block.cast::<usize>().write(len) };
        let spare = self.0.compare_exchange(
            0,
            block.as_ptr() as usize,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if spare.is_err() {
            // SAFETY: the whole mapping, which no other thread has.
            unsafe { mem::unmap(block, len) };
        }
    }
}

/// Room for entries that the kernel is asked about by `poll`: on the stack, or in a mapping where there are many. It is made where
/// it stays, since to move it would cost more than most calls do with it.
pub(super) struct Entries {
    few: [MaybeUninit<pollfd>; ON_STACK],
    /// The mapping, and its length in bytes.
    long: Option<(NonNull<u8>, usize)>,
}

/// The mapping for long lists of entries.
static SPARE: Spare = Spare::new();

impl Entries {
    /// Room for as many as lie on the stack.
    #[inline(always)]
    pub(super) fn room() -> Entries {
        Entries {
            few: [const { MaybeUninit::uninit() }; ON_STACK],
            long: None,
        }
    }

    /// This many entries, which the kernel passes over. `None`: there is no memory for them.
    pub(super) fn take(&mut self, many: usize) -> Option<&mut [pollfd]> {
        let places = if many > ON_STACK {
            self.take_long(many)?
        } else {
            &mut self.few[..many]
        };
        places.fill(MaybeUninit::new(NONE));
        let entries = core::ptr::from_mut(places) as *mut [pollfd];
        // SAFETY: all of them have been written just now, and they are borrowed as `self` is.
        Some(unsafe { &mut *entries })
    }

    #[cold]
    fn take_long(&mut self, many: usize) -> Option<&mut [MaybeUninit<pollfd>]> {
        self.give_back();
        let (at, _) = *self
            .long
            .insert(SPARE.take(many.checked_mul(size_of::<pollfd>())?)?);
        // SAFETY: the mapping is long enough for `many` entries, page-aligned, and this thread's; it is borrowed as `self` is.
        Some(unsafe { core::slice::from_raw_parts_mut(at.cast().as_ptr(), many) })
    }

    fn give_back(&mut self) {
        if let Some((block, len)) = self.long.take() {
            SPARE.give(block, len);
        }
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        self.give_back();
    }
}
