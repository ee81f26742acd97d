//! Bytes that show whether they are where they belong: ncdevmem's, 1 to N-1 and then 0, again and again.

/// A pattern that repeats, and the place in it that a stream has reached.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    /// The pattern, again and again, and once more.
    tile: Vec<u8>,
    period: usize,
    /// Where in the tile's first period the stream is.
    at: usize,
}

/// The first byte that is another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wrong {
    /// How many were right before it.
    pub(crate) after: u64,
    pub(crate) expected: u8,
    pub(crate) found: u8,
}

/// Bytes that are compared at a time, at least.
const TILE: usize = 64 << 10;

impl Pattern {
    pub(crate) fn new(period: u8) -> Pattern {
        let once = (1..period).chain([0]);
        let period = usize::from(period.max(1));
        Pattern {
            tile: once.cycle().take(TILE + period).collect(),
            period,
            at: 0,
        }
    }

    /// The next bytes of the pattern, at most as many as a tile has.
    fn next(&mut self, most: usize) -> &[u8] {
        let (at, len) = (self.at, most.min(TILE));
        self.at = (at + len) % self.period;
        &self.tile[at..at + len]
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(TILE) {
            let len = piece.len();
            piece.copy_from_slice(self.next(len));
        }
    }

    pub(crate) fn check(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        for (nth, piece) in bytes.chunks(TILE).enumerate() {
            let expected = self.next(piece.len());
            if piece != expected {
                let right = piece.iter().zip(expected).take_while(|(a, b)| a == b);
                let right = right.count();
                return Err(Wrong {
                    after: (nth * TILE + right) as u64,
                    expected: expected[right],
                    found: piece[right],
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_ncdevmem_s_and_goes_on_where_it_stopped() {
        let mut bytes = [9; 9];
        let mut pattern = Pattern::new(4);
        pattern.fill(&mut bytes[..5]);
        pattern.fill(&mut bytes[5..]);
        assert_eq!(bytes, [1, 2, 3, 0, 1, 2, 3, 0, 1]);
        let mut pattern = Pattern::new(4);
        assert_eq!(pattern.check(&bytes[..3]), Ok(()));
        assert_eq!(pattern.check(&bytes[3..]), Ok(()));
    }

    #[test]
    fn long_stretches_are_as_short_ones() {
        let mut whole = vec![9; 3 * TILE + 77];
        Pattern::new(7).fill(&mut whole);
        let mut bit_by_bit = Pattern::new(7);
        for piece in whole.chunks(1001) {
            assert_eq!(bit_by_bit.check(piece), Ok(()));
        }
        whole[2 * TILE + 5] ^= 0x80;
        let wrong = Pattern::new(7).check(&whole).unwrap_err();
        assert_eq!(wrong.after, 2 * TILE as u64 + 5);
    }

    #[test]
    fn the_first_wrong_byte_is_told() {
        let wrong = Wrong {
            after: 2,
            expected: 3,
            found: 7,
        };
        assert_eq!(Pattern::new(4).check(&[1, 2, 7, 9]), Err(wrong));
    }
}
