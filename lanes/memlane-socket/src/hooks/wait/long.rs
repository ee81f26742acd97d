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

/// Entries that the kernel is asked about by `poll`: on the stack, or in a mapping where there are many.
pub(super) struct Entries {
    /// Where there is no mapping, the first `many` are set.
    few: [MaybeUninit<pollfd>; ON_STACK],
    /// The mapping, and its length in bytes.
    long: Option<(NonNull<u8>, usize)>,
    many: usize,
}

/// The mapping for long lists of entries.
static SPARE: Spare = Spare::new();

impl Entries {
    /// This many entries, which the kernel passes over. `None`: there is no memory for them.
    pub(super) fn new(many: usize) -> Option<Entries> {
        let mut entries = Entries {
            few: [const { MaybeUninit::uninit() }; ON_STACK],
            long: None,
            many,
        };
        if many > ON_STACK {
            let long = SPARE.take(many.checked_mul(size_of::<pollfd>())?)?;
            for i in 0..many {
                // SAFETY: the mapping is long enough for `many` entries, page-aligned, and this thread's.
                unsafe { long.0.cast::<MaybeUninit<pollfd>>().add(i).as_mut() }.write(NONE);
            }
            entries.long = Some(long);
        } else {
            entries.few[..many].fill(MaybeUninit::new(NONE));
        }
        Some(entries)
    }

    pub(super) fn all(&mut self) -> &mut [pollfd] {
        match self.long {
            // SAFETY: `new` has written `many` entries there, and they are borrowed as `self` is.
            Some((at, _)) => unsafe {
                core::slice::from_raw_parts_mut(at.cast().as_ptr(), self.many)
            },
            None => {
                let few = self.few[..self.many].as_mut_ptr();
                // SAFETY: `new` has written the first `many`.
                unsafe { core::slice::from_raw_parts_mut(few.cast(), self.many) }
            }
        }
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        if let Some((block, len)) = self.long {
            SPARE.give(block, len);
        }
    }
}
