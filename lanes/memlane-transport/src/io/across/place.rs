//! How a server tells a client where in the region something lies.

use super::layout::{EXTENTS, MEMORY_AT, PAGE};
use crate::wire::CONN_LEN;

/// One extent, as a server names it to its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::io) struct Place {
    /// The number of its entry.
    pub(in crate::io) number: usize,
    /// Where it begins in the region.
    pub(in crate::io) at: usize,
    /// What its entry says while nobody has claimed it.
    pub(in crate::io) offer: u64,
}

/// What a connection shares: its queues, and the session's chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::io) struct Sharing {
    /// Bytes of the server's region.
    pub(in crate::io) region: u64,
    pub(in crate::io) queues: Place,
    pub(in crate::io) chunks: Place,
}

impl Sharing {
    /// The bytes behind the header.
    pub(in crate::io) fn encode(&self) -> [u8; CONN_LEN] {
        let place = |place: &Place| [place.number as u64, place.at as u64, place.offer];
        let ([a, b, c], [d, e, f]) = (place(&self.queues), place(&self.chunks));
        let mut bytes = [0; CONN_LEN];
        for (at, word) in [self.region, a, b, c, d, e, f].iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What the bytes say; `None` if no region has such places.
    pub(in crate::io) fn decode(bytes: &[u8; CONN_LEN]) -> Option<Sharing> {
        let word = |at: usize| {
            let bytes = bytes[at * 8..].first_chunk();
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let place = |at: usize| {
            let number = usize::try_from(word(at)).ok();
            let begin = usize::try_from(word(at + 1)).ok();
            Some(Place {
                number: number.filter(|number| *number < EXTENTS)?,
                at: begin.filter(|at| *at >= MEMORY_AT && at.is_multiple_of(PAGE))?,
                offer: Some(word(at + 2)).filter(|offer| *offer != 0)?,
            })
        };
        Some(Sharing {
            region: word(0),
            queues: place(1)?,
            chunks: place(4)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARING: Sharing = Sharing {
        region: 1 << 28,
        queues: Place {
            number: 3,
            at: MEMORY_AT,
            offer: 7,
        },
        chunks: Place {
            number: EXTENTS - 1,
            at: MEMORY_AT + PAGE,
            offer: u64::MAX,
        },
    };

    #[test]
    fn what_is_told_of_places_is_what_was_said() {
        assert_eq!(Sharing::decode(&SHARING.encode()), Some(SHARING));
    }

    #[test]
    fn places_that_no_region_has_are_none() {
        let changed = |at: usize, word: u64| {
            let mut bytes = SHARING.encode();
            bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
            Sharing::decode(&bytes)
        };
        for (at, word) in [
            (1, EXTENTS as u64),
            (4, u64::MAX),
            (2, 0),
            (2, MEMORY_AT as u64 + 8),
            (5, MEMORY_AT as u64 - PAGE as u64),
            (3, 0),
            (6, 0),
        ] {
            assert_eq!(changed(at, word), None, "{word} in word {at}");
        }
    }
}
