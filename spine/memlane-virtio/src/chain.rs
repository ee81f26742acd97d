//! A chain of descriptors, as a guest has written it: each is copied once. That it lies in the guest's memory is seen
//! when that is touched ([`memory::each_window`](crate::memory::each_window)).

use std::ops::Deref;
use virtio_queue::DescriptorChain;
use vm_memory::{GuestAddress, GuestMemory};

/// A piece of the guest's memory; perhaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where, it says.
    pub at: GuestAddress,
    /// Bytes.
    pub len: u32,
    /// For us to write.
    pub writable: bool,
}

/// Appends a chain's pieces, `most` at most; is the last one the last? A list that breaks off in the middle (outside of
/// memory, in a circle, too long) ends, too, and is not whole.
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
