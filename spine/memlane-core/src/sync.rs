//! The atomics behind the ring and park protocol.
//!
//! The protocol ([`crate::ring`]) is written over [`Words`], so that the same
//! code runs on words that lie in mapped memory ([`Cpu`]) and in loom's model
//! checker (`Loom`, feature `loom`), which cannot see mapped bytes.

use core::sync::atomic::Ordering;

/// The word types and fences that the protocol uses.
pub trait Words {
    /// 64-bit word.
    type U64: Word<u64>;
    /// 32-bit word.
    type U32: Word<u32>;
    /// A full fence: orders an earlier store before a later load.
    fn full_fence();
    /// A full fence behind an [`Exchange`]. Exchanges are sequentially consistent, so a sequentially consistent load may
    /// follow without a fence; loom takes both for weaker than they are, and needs one.
    #[inline(always)]
    fn fence_after_exchange() {
        Self::full_fence();
    }
    /// One turn of a wait loop.
    fn pause();
}

/// One shared word.
pub trait Word<T> {
    /// Loads.
    fn load(&self, order: Ordering) -> T;
    /// Stores.
    fn store(&self, value: T, order: Ordering);
}

/// A shared word that several change: each change is one step, which sees the latest value.
pub trait Exchange<T>: Word<T> {
    /// Stores `new` if the word is `old`; `Err`: what it is instead.
    ///
    /// # Errors
    /// The word's value, which is not `old`.
    fn compare_exchange(&self, old: T, new: T) -> Result<T, T>;
    /// Adds; what was there before.
    fn fetch_add(&self, n: T) -> T;
    /// Subtracts; what was there before.
    fn fetch_sub(&self, n: T) -> T;
}

/// A shared word whose bits several set.
pub trait Bits<T>: Exchange<T> {
    /// Sets bits in one step; what was there before.
    fn fetch_or(&self, bits: T) -> T;
}

/// The CPU's own atomics; their layout is a plain integer's.
#[derive(Debug)]
pub struct Cpu;

impl Words for Cpu {
    type U64 = core::sync::atomic::AtomicU64;
    type U32 = core::sync::atomic::AtomicU32;

    /// On x86-64 by a locked instruction, as the kernel's `smp_mb()`: for memory like ours as strong as the `mfence` that
    /// the compiler would take, at an eighth of its time (2 ns, not 16, on an EPYC, with nothing else to store).
    #[inline(always)]
    fn full_fence() {
        #[cfg(target_arch = "x86_64")]
        {
            let mut word = 0_u32;
            // SAFETY: adds nothing to a word of our own. Not `nomem`: the compiler moves no access across it either.
            unsafe {
                core::arch::asm!("lock add dword ptr [{}], 0", in(reg) &raw mut word, options(nostack));
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    #[inline(always)]
    fn fence_after_exchange() {}

    #[inline(always)]
    fn pause() {
        core::hint::spin_loop();
    }
}

macro_rules! impl_word {
    ($atomic:ty, $int:ty) => {
        impl Word<$int> for $atomic {
            #[inline(always)]
            fn load(&self, order: Ordering) -> $int {
                <$atomic>::load(self, order)
            }
            #[inline(always)]
            fn store(&self, value: $int, order: Ordering) {
                <$atomic>::store(self, value, order);
            }
        }
    };
}

/// Sequentially consistent: on a CPU such a step costs no more than a weaker one does on x86-64.
macro_rules! impl_exchange {
    ($atomic:ty, $int:ty) => {
        impl Exchange<$int> for $atomic {
            #[inline(always)]
            fn compare_exchange(&self, old: $int, new: $int) -> Result<$int, $int> {
                <$atomic>::compare_exchange(self, old, new, Ordering::SeqCst, Ordering::SeqCst)
            }
            #[inline(always)]
            fn fetch_add(&self, n: $int) -> $int {
                <$atomic>::fetch_add(self, n, Ordering::SeqCst)
            }
            #[inline(always)]
            fn fetch_sub(&self, n: $int) -> $int {
                <$atomic>::fetch_sub(self, n, Ordering::SeqCst)
            }
        }

        impl Bits<$int> for $atomic {
            #[inline(always)]
            fn fetch_or(&self, bits: $int) -> $int {
                <$atomic>::fetch_or(self, bits, Ordering::SeqCst)
            }
        }
    };
}

impl_word!(core::sync::atomic::AtomicU64, u64);
impl_exchange!(core::sync::atomic::AtomicU64, u64);
impl_word!(core::sync::atomic::AtomicU32, u32);
impl_exchange!(core::sync::atomic::AtomicU32, u32);

/// loom's atomics, for model checks.
#[cfg(feature = "loom")]
#[derive(Debug)]
pub struct Loom;

#[cfg(feature = "loom")]
impl Words for Loom {
    type U64 = loom::sync::atomic::AtomicU64;
    type U32 = loom::sync::atomic::AtomicU32;

    fn full_fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    fn pause() {
        loom::thread::yield_now();
    }
}

#[cfg(feature = "loom")]
impl_word!(loom::sync::atomic::AtomicU64, u64);
#[cfg(feature = "loom")]
impl_exchange!(loom::sync::atomic::AtomicU64, u64);
#[cfg(feature = "loom")]
impl_word!(loom::sync::atomic::AtomicU32, u32);
#[cfg(feature = "loom")]
impl_exchange!(loom::sync::atomic::AtomicU32, u32);
