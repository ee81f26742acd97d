//! `SEEK_DATA` and `SEEK_HOLE`, out of a volume's extents. What a volume says comes from another machine: each answer
//! is checked, and each leads on.

use memlane_block::volume::{EXTENT_LEN, Errno, Info, Lease};

/// Records for one answer.
const RECORDS: usize = 64;
/// The bytes that one request for extents covers.
const ASKED: u32 = 1 << 30;
/// A record's state: nothing is there.
const HOLE: u32 = 1;

/// A search that goes on.
#[derive(Debug)]
pub(super) struct Seek {
    hole: bool,
    /// Where it began: a block may begin before it.
    from: u64,
    /// What is asked about next; a whole block.
    at: u64,
    end: u64,
    room: u32,
    found: Option<u64>,
    lied: bool,
}

impl Seek {
    /// From byte `from` of a volume; `from` is less than its size.
    pub(super) fn new(hole: bool, from: u64, info: &Info) -> Seek {
        Seek {
            hole,
            from,
            at: from - from % u64::from(info.block),
            end: info.size,
            room: info.max_io.min(4096),
            found: None,
            lied: false,
        }
    }

    /// Memory that an answer takes.
    pub(super) fn lease_len(&self) -> u32 {
        self.room
    }

    /// What is asked next: from where, how many bytes.
    pub(super) fn asks(&self) -> (u64, u32) {
        let left = u32::try_from(self.end - self.at).unwrap_or(u32::MAX);
        (self.at, left.min(ASKED))
    }

    /// Reads an answer; what to ask next, if the search goes on.
    pub(super) fn step(&mut self, lease: Lease) -> Option<(u64, u32, Lease)> {
        let mut records = [0; RECORDS * EXTENT_LEN];
        let room = records.len().min(lease.bytes().len()) / EXTENT_LEN * EXTENT_LEN;
        lease.take(0, &mut records[..room]);
        self.hears(&records[..room]).then(|| {
            clear(&lease);
            let (at, len) = self.asks();
            (at, len, lease)
        })
    }

    /// Takes an answer; `true`: there is more to ask.
    pub(super) fn hears(&mut self, records: &[u8]) -> bool {
        self.believe(records);
        !(self.lied || self.found.is_some() || self.at >= self.end)
    }

    fn believe(&mut self, records: &[u8]) {
        let asked = self.at;
        let (_, len) = self.asks();
        let limit = asked + u64::from(len);
        for record in records.as_chunks::<EXTENT_LEN>().0 {
            let len = u64::from_le_bytes(record[..8].try_into().unwrap_or_default());
            let state = u32::from_le_bytes(record[8..12].try_into().unwrap_or_default());
            if len == 0 || self.at >= limit {
                break;
            }
            if (state & HOLE != 0) == self.hole {
                self.found = Some(self.at.max(self.from));
                return;
            }
            self.at = self.at.saturating_add(len).min(limit);
        }
        self.lied = self.at == asked;
    }

    /// Where it is. The end of a file counts as a hole.
    pub(super) fn found(&self) -> Result<i64, Errno> {
        let at = match self.found {
            _ if self.lied => return Err(Errno(libc::EIO)),
            Some(at) => at,
            None if self.hole => self.end,
            None => return Err(Errno(libc::ENXIO)),
        };
        i64::try_from(at).map_err(|_| Errno(libc::EOVERFLOW))
    }
}

/// Before a question: what lies there from earlier must not be taken for its answer.
pub(super) fn clear(lease: &Lease) {
    let nothing = [0; RECORDS * EXTENT_LEN];
    lease.fill(0, &nothing[..nothing.len().min(lease.bytes().len())]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(of: &[(u64, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (len, state) in of {
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(&state.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
        }
        bytes
    }

    fn search(hole: bool, from: u64, size: u64) -> Seek {
        let volume = memlane_block::volume::mem::MemVolume::new(size).unwrap();
        Seek::new(hole, from, &memlane_block::volume::Volume::info(&volume))
    }

    fn after(mut seek: Seek, of: &[(u64, u32)]) -> Seek {
        seek.believe(&records(of));
        seek
    }

    #[test]
    fn data_and_holes_are_found_where_they_are() {
        let extents = [(4096, 3), (8192, 0), (4096, 3)];
        let found = |hole, from| after(search(hole, from, 16384), &extents).found();
        assert_eq!(found(false, 0), Ok(4096));
        assert_eq!(found(true, 0), Ok(0));
        // From the middle of a block: not before it.
        assert_eq!(
            after(search(true, 700, 16384), &[(512, 1)]).found(),
            Ok(700)
        );
    }

    #[test]
    fn the_end_is_a_hole_and_no_data() {
        assert_eq!(after(search(true, 0, 8192), &[(8192, 0)]).found(), Ok(8192));
        let nothing = after(search(false, 0, 8192), &[(8192, 1)]);
        assert_eq!(nothing.found(), Err(Errno(libc::ENXIO)));
    }

    #[test]
    fn a_volume_that_says_nothing_or_far_too_much_ends_the_search() {
        for lie in [&[][..], &[(0, 1)]] {
            let seek = after(search(false, 0, 8192), lie);
            assert_eq!(seek.found(), Err(Errno(libc::EIO)));
        }
        let seek = after(search(false, 0, 8192), &[(u64::MAX, 1), (u64::MAX, 0)]);
        assert_eq!(seek.found(), Err(Errno(libc::ENXIO)));
    }
}
