//! Enums in atomics.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

/// An enum that a shared word can hold.
pub trait Bits: Copy {
    /// The number that stands for it.
    fn bits(self) -> u32;
    /// The value that a number stands for. The enum decides what an unused number means.
    fn from_bits(bits: u32) -> Self;
}

/// Declares an enum with [`Bits`]. Unused numbers are read as the last variant.
macro_rules! bits_enum {
    ($(#[$about:meta])* $see:vis enum $name:ident {
        $($(#[$of:meta])* $variant:ident = $bits:literal,)*
        ; $(#[$of_last:meta])* $last:ident = $bits_last:literal,
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        $see enum $name {
            $($(#[$of])* $variant = $bits,)*
            $(#[$of_last])* $last = $bits_last,
        }

        impl $crate::state::typed::Bits for $name {
            #[inline(always)]
            fn bits(self) -> u32 {
                self as u32
            }
            #[inline(always)]
            fn from_bits(bits: u32) -> $name {
                match bits {
                    $($bits => $name::$variant,)*
                    _ => $name::$last,
                }
            }
        }
    };
}
pub(crate) use bits_enum;

/// An atomic word that holds an enum. All-zero is the variant whose number is 0.
#[derive(Debug)]
#[repr(transparent)]
pub struct Typed<E>(AtomicU32, PhantomData<E>);

impl<E: Bits> Typed<E> {
    /// A word with the variant whose number is `bits`.
    pub const fn new(bits: u32) -> Typed<E> {
        Typed(AtomicU32::new(bits), PhantomData)
    }

    /// Loads the variant.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> E {
        E::from_bits(self.0.load(order))
    }

    /// Stores a variant.
    #[inline(always)]
    pub fn store(&self, value: E, order: Ordering) {
        self.0.store(value.bits(), order);
    }

    /// Stores `new` if the word holds `old`, and returns whether it did.
    pub fn replace(&self, old: E, new: E) -> bool {
        let (old, new) = (old.bits(), new.bits());
        self.0
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}
