//! A chain of descriptors, copied once from the guest's memory. Whether the pieces lie in the guest's memory is checked when
//! they are touched ([`memory::each_window`](crate::memory::each_window)).

use std::ops::Deref;
use virtio_queue::DescriptorChain;
use vm_memory::{GuestAddress, GuestMemory};

/// A piece of the guest's memory, as the guest claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its address, as the guest claims.
    pub at: GuestAddress,
    /// Its length in bytes.
    pub len: u32,
    /// May the device write it?
    pub writable: bool,
}

/// Appends at most `most` pieces of a chain. Returns whether these are all of them. A chain that breaks off (outside of
/// memory, in a circle, too long) is not whole.
pub fn pieces_of<M>(chain: DescriptorChain<M>, most: usize, into: &mut Vec<Piece>) -> bool
where
    M: Deref,
    M::Target: GuestMemory,
{
    let mut whole = false;
    let pieces = chain.take(most).map(|descriptor| {
        whole = !descriptor.has_next();
        Piece {
            at: descriptor.addr(),
            len: descriptor.len(),
            writable: descriptor.is_write_only(),
        }
    });
    into.extend(pieces);
    whole
}
