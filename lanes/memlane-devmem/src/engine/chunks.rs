//! A region in chunks of one size, as a page pool has pages: each is free, or has as many holders as fragments lie in it
//! (and one more while it is being filled).

/// Which chunks of a region are free. Whoever has one by [`take`](Chunks::take) or [`hold`](Chunks::hold) gives it back
/// once by [`give`](Chunks::give).
#[derive(Debug)]
pub struct Chunks {
    size: u32,
    /// Where the first one begins in the region.
    base: u64,
    /// The last one given back is the first one taken: it is the likeliest to be in a cache.
    free: Vec<u32>,
    holders: Vec<u32>,
}

/// Bytes of a chunk, at least: a page, which is what the kernel's pools have.
pub const CHUNK_MIN: u32 = 4096;
/// And at most.
pub const CHUNK_MAX: u32 = 64 << 20;

/// Most chunks of a region: 1 TiB in the usual ones. Tables of them take 8 bytes each.
pub const COUNT_MAX: u32 = 1 << 24;

impl Chunks {
    /// A region of `bytes` in chunks of `size`; what is left behind the last whole one is not used. `None`: the size is
    /// no power of two from [`CHUNK_MIN`] to [`CHUNK_MAX`], or there is no chunk, or there are more than [`COUNT_MAX`].
    pub fn new(bytes: u64, size: u32) -> Option<Chunks> {
        Chunks::within(0..bytes, size).filter(|chunks| chunks.count() > 0)
    }

    /// A part of a region in chunks of `size`; it may have no chunk at all.
    pub fn within(part: core::ops::Range<u64>, size: u32) -> Option<Chunks> {
        if !size.is_power_of_two() || !(CHUNK_MIN..=CHUNK_MAX).contains(&size) {
            return None;
        }
        let bytes = part.end.checked_sub(part.start)?;
        let count = u32::try_from(bytes / u64::from(size)).ok()?;
        if count > COUNT_MAX {
            return None;
        }
        Some(Chunks {
            size,
            base: part.start,
            free: (0..count).rev().collect(),
            holders: vec![0; count as usize],
        })
    }

    /// Bytes of a chunk.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// All of them.
    pub fn count(&self) -> u32 {
        u32::try_from(self.holders.len()).unwrap_or(u32::MAX)
    }

    /// How many nobody has.
    pub fn free(&self) -> u32 {
        u32::try_from(self.free.len()).unwrap_or(u32::MAX)
    }

    /// Where a chunk begins in the region.
    pub fn offset(&self, chunk: u32) -> u64 {
        self.base + u64::from(chunk) * u64::from(self.size)
    }

    /// The chunk that a place of the region lies in, which is of one of ours.
    pub fn at(&self, offset: u64) -> u32 {
        let nth = offset.saturating_sub(self.base) / u64::from(self.size);
        u32::try_from(nth).unwrap_or(u32::MAX)
    }

    /// A free chunk, which has one holder now. `None`: there is none until one is given back.
    pub fn take(&mut self) -> Option<u32> {
        let chunk = self.free.pop()?;
        self.holders[chunk as usize] = 1;
        Some(chunk)
    }

    /// Takes `count` free chunks that follow one another, and gives each one holder. Returns the first of them. `None`: there
    /// are none.
    pub fn take_row(&mut self, count: u32) -> Option<u32> {
        let count = usize::try_from(count).ok().filter(|count| *count > 0)?;
        let mut row = 0;
        let last = self.holders.iter().position(|holders| {
            row = if *holders == 0 { row + 1 } else { 0 };
            row == count
        })?;
        let first = last + 1 - count;
        self.holders[first..=last].fill(1);
        self.free
            .retain(|n| !(first..=last).contains(&(*n as usize)));
        u32::try_from(first).ok()
    }

    /// One more holder of a chunk that has some.
    ///
    /// # Panics
    /// If nobody has it: our own mistake, by which memory would be used twice.
    pub fn hold(&mut self, chunk: u32) {
        let holders = &mut self.holders[chunk as usize];
        assert!(*holders > 0, "a chunk that nobody has cannot be held");
        *holders += 1;
    }

    /// One holder less; `true`: it was the last one, the chunk is free.
    ///
    /// # Panics
    /// If nobody has it: as above.
    pub fn give(&mut self, chunk: u32) -> bool {
        let holders = &mut self.holders[chunk as usize];
        assert!(*holders > 0, "a chunk that nobody has cannot be given back");
        *holders -= 1;
        let last = *holders == 0;
        if last {
            self.free.push(chunk);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_of_more_chunks_than_there_may_be_has_no_tables() {
        let most = u64::from(COUNT_MAX) * 4096;
        assert!(Chunks::new(most + 4096, 4096).is_none());
        assert!(Chunks::new(most + 4096, 8192).is_some());
        assert!(Chunks::new(u64::MAX, CHUNK_MAX).is_none());
    }

    #[test]
    fn sizes_are_powers_of_two_within_bounds() {
        for (bytes, size) in [
            (0, 4096),
            (4095, 4096),
            (8192, 4095),
            (8192, 2048),
            (8192, 6000),
        ] {
            assert!(Chunks::new(bytes, size).is_none(), "{bytes}/{size}");
        }
        assert!(Chunks::new(1 << 60, CHUNK_MIN).is_none());
        assert!(Chunks::new(u64::from(CHUNK_MAX), CHUNK_MAX * 2).is_none());
        let chunks = Chunks::new(8192 + 5, 4096).unwrap();
        assert_eq!(
            (chunks.count(), chunks.free(), chunks.offset(1)),
            (2, 2, 4096)
        );
    }

    #[test]
    fn a_part_of_a_region_has_chunks_of_its_own_or_none() {
        let chunks = Chunks::within(8192..16_384, 4096).unwrap();
        assert_eq!((chunks.count(), chunks.offset(1)), (2, 12_288));
        assert_eq!((chunks.at(8192), chunks.at(16_383)), (0, 1));
        assert_eq!(Chunks::within(8192..8192, 4096).unwrap().count(), 0);
        let (end, start) = (8191, 8192);
        assert!(Chunks::within(start..end, 4096).is_none());
    }

    #[test]
    fn a_chunk_is_free_when_its_last_holder_gives_it_back() {
        let mut chunks = Chunks::new(8192, 4096).unwrap();
        let one = chunks.take().unwrap();
        chunks.hold(one);
        let two = chunks.take().unwrap();
        assert_ne!(one, two);
        assert_eq!(chunks.take(), None);
        assert!(!chunks.give(one));
        assert_eq!(chunks.take(), None);
        assert!(chunks.give(one));
        assert_eq!(chunks.take(), Some(one));
    }

    #[test]
    fn chunks_in_a_row_follow_one_another_and_are_free() {
        let mut chunks = Chunks::new(8 * 4096, 4096).unwrap();
        let taken: Vec<u32> = (0..3).map(|_| chunks.take().unwrap()).collect();
        chunks.give(taken[1]);
        let (free, first) = (chunks.free(), chunks.take_row(4).unwrap());
        assert_eq!(chunks.free(), free - 4);
        assert!((first..first + 4).all(|n| !taken.contains(&n) || n == taken[1]));
        assert_eq!(chunks.take_row(4), None);
        assert_eq!(chunks.take_row(0), None);
        let mut left = Vec::new();
        while let Some(one) = chunks.take() {
            assert!(!(first..first + 4).contains(&one), "{one} was in the row");
            left.push(one);
        }
        for one in first..first + 4 {
            assert!(chunks.give(one));
        }
        assert_eq!(chunks.take_row(4), Some(first));
    }

    #[test]
    #[should_panic(expected = "nobody has")]
    fn a_chunk_is_not_given_back_twice() {
        let mut chunks = Chunks::new(8192, 4096).unwrap();
        let chunk = chunks.take().unwrap();
        chunks.give(chunk);
        chunks.give(chunk);
    }
}
