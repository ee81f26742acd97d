//! Memory that payloads land in, and its chunks.

use memlane_core::region::Region;
use memlane_packet::engine::chain::Part;
use memlane_sys::{Errno, Result};
use std::sync::Arc;

/// Memory of a device, or of this machine as long as there is none.
pub trait DeviceMemory {
    /// Bytes.
    fn len(&self) -> usize;

    /// None? (Never.)
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies a stretch of a frame to `at`: from where it lies, which the other side can write, and only once. It fits.
    ///
    /// # Errors
    /// The device's; the frame goes to host memory then.
    fn write(&mut self, at: usize, from: &Part<'_>) -> Result<()>;
}

impl DeviceMemory for Arc<Region> {
    fn len(&self) -> usize {
        Region::len(self)
    }

    fn write(&mut self, at: usize, from: &Part<'_>) -> Result<()> {
        // SAFETY: the maker of the stretch guarantees its length and that its memory stays mapped.
        let fits = unsafe { self.bytes().copy_in(at, from.as_ptr(), from.len()) };
        // EFAULT: beyond the end, or a region that may only be read.
        fits.then_some(()).ok_or(Errno(14))
    }
}

/// Who has it may use a chunk until it is given back. A number that was not given out, or was given back before, is
/// nobody's: giving it back does nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u32);

/// Chunks of one size, with a list of those that are free.
#[derive(Debug)]
pub(super) struct Chunks {
    size: usize,
    /// Bits of a token that are the chunk's number; those above are its use's.
    bits: u32,
    /// Of each chunk: the token of its use, if it is out.
    out: Vec<Option<Token>>,
    /// The use that was last.
    uses: Vec<u32>,
    free: Vec<u32>,
}

impl Chunks {
    /// As many as fit into `len` bytes; `None`: none, or more than tokens can name.
    pub(super) fn new(len: usize, size: usize) -> Option<Chunks> {
        let count = len.checked_div(size)?;
        // At least eight bits are left for uses.
        let many = u32::try_from(count).ok().filter(|n| *n <= 1 << 24)?;
        (many > 0).then(|| Chunks {
            size,
            bits: many.next_power_of_two().trailing_zeros(),
            out: vec![None; count],
            uses: vec![0; count],
            // The first ones first.
            free: (0..many).rev().collect(),
        })
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn outstanding(&self) -> usize {
        self.out.len() - self.free.len()
    }

    /// Takes a chunk: where it begins, and its token.
    pub(super) fn take(&mut self) -> Option<(usize, Token)> {
        let number = self.free.pop()?;
        let n = number as usize;
        self.uses[n] = self.uses[n].wrapping_add(1);
        // With one chunk all bits are the use's.
        let token = Token(number | self.uses[n].checked_shl(self.bits).unwrap_or(0));
        self.out[n] = Some(token);
        Some((n * self.size, token))
    }

    /// `false`: nobody has such a chunk.
    pub(super) fn give_back(&mut self, token: Token) -> bool {
        let number = token.0 & ((1 << self.bits) - 1);
        let Some(out) = self.out.get_mut(number as usize) else {
            return false;
        };
        if *out != Some(token) {
            return false;
        }
        *out = None;
        self.free.push(number);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_given_out_once_and_taken_back_once() {
        for (len, count) in [(4096, 1), (4096 * 5 + 1, 5), (4096 * 8, 8)] {
            let mut chunks = Chunks::new(len, 4096).unwrap();
            let taken: Vec<_> = std::iter::from_fn(|| chunks.take()).collect();
            let places: Vec<_> = taken.iter().map(|(at, _)| *at).collect();
            assert_eq!(places, (0..count).map(|n| n * 4096).collect::<Vec<_>>());
            assert_eq!((chunks.free(), chunks.outstanding()), (0, count));
            for (_, token) in &taken {
                assert!(chunks.give_back(*token));
                assert!(!chunks.give_back(*token), "twice");
            }
            // The same chunk again has another token: the old one is worth nothing.
            let (_, token) = chunks.take().unwrap();
            assert!(!taken.iter().any(|(_, old)| *old == token));
            assert!(taken.iter().all(|(_, old)| !chunks.give_back(*old)));
            assert_eq!(chunks.outstanding(), 1);
            for forged in [0, 1, 7, u32::MAX, token.0 ^ 1, token.0 ^ 0x8000_0000] {
                assert!(!chunks.give_back(Token(forged)), "{forged}");
            }
            assert!(chunks.give_back(token));
        }
    }

    #[test]
    fn there_are_no_chunks_where_none_fit() {
        assert!(Chunks::new(4095, 4096).is_none());
        assert!(Chunks::new(0, 4096).is_none());
        assert!(Chunks::new(4096, 0).is_none());
        assert!(Chunks::new(usize::MAX, 1).is_none());
    }
}
