//! Memory that two ends share, whatever it is made of.

use super::hold::Hold;
use super::lot::Lent;
use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use std::ptr::NonNull;

/// Mapped as long as it lives.
#[derive(Debug)]
pub(in crate::io) enum Mapped {
    /// A memory file of this host.
    Own(Region),
    /// An extent of this server's region.
    Lent(Lent),
    /// An extent of another machine's server.
    Held(Hold),
}

impl Mapped {
    /// All of it.
    pub(in crate::io) fn bytes(&self) -> SharedBytes {
        match self {
            Mapped::Own(region) => region.bytes(),
            Mapped::Lent(lent) => lent.bytes(),
            Mapped::Held(hold) => hold.bytes(),
        }
    }

    /// A structure of atomics at `offset`; `None` if it does not fit or is misaligned.
    ///
    /// # Safety
    /// `T` consists of atomics only, and `self` outlives the use of the pointer.
    pub(in crate::io) unsafe fn words<T>(&self, offset: usize) -> Option<NonNull<T>> {
        let place = self.bytes().part(offset, size_of::<T>())?.as_ptr();
        let aligned = place.addr().is_multiple_of(align_of::<T>());
        NonNull::new(place.cast()).filter(|_| aligned)
    }

    /// The descriptor to hand to a process of this host.
    pub(in crate::io) fn descriptor(&self) -> Option<i32> {
        match self {
            Mapped::Own(region) => region.fd(),
            Mapped::Lent(_) | Mapped::Held(_) => None,
        }
    }

    /// If it is an extent of this server's region.
    pub(in crate::io) fn as_lent(&self) -> Option<&Lent> {
        match self {
            Mapped::Lent(lent) => Some(lent),
            Mapped::Own(_) | Mapped::Held(_) => None,
        }
    }
}
