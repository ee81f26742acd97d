//! Permits: who may use which chunk of the server, and for the how-manieth time.

/// One use of one chunk: it names a request, now and on each path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    /// The chunk.
    pub permit: u16,
    /// Which use of it, from 1.
    pub generation: u64,
}

/// The permits of a session. The lowest free one goes first, so that few chunks stay warm.
#[derive(Clone, Debug, Default)]
pub struct Permits {
    generations: Vec<u64>,
    /// A bit for each that is free.
    free: Vec<u64>,
}

impl Permits {
    /// As many as there are chunks, all free.
    #[must_use]
    pub fn new(depth: u16) -> Self {
        let mut permits = Permits {
            generations: vec![0; usize::from(depth)],
            free: vec![0; usize::from(depth).div_ceil(64)],
        };
        (0..depth).for_each(|permit| permits.put(permit));
        permits
    }

    /// Takes one.
    pub fn take(&mut self) -> Option<Ticket> {
        let (at, word) = self
            .free
            .iter_mut()
            .enumerate()
            .find(|(_, word)| **word != 0)?;
        let index = at * 64 + word.trailing_zeros() as usize;
        *word &= *word - 1;
        self.generations[index] += 1;
        Some(Ticket {
            permit: u16::try_from(index).ok()?,
            generation: self.generations[index],
        })
    }

    /// Gives one back.
    pub fn put(&mut self, permit: u16) {
        self.free[usize::from(permit) / 64] |= 1 << (permit % 64);
    }

    /// How many are free.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free.iter().map(|word| word.count_ones()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_that_comes_back_goes_out_as_another_generation() {
        let mut permits = Permits::new(70);
        let taken: Vec<_> = std::iter::from_fn(|| permits.take()).collect();
        assert_eq!(taken.len(), 70);
        assert!((0..70).all(|n| taken[usize::from(n)].permit == n));
        permits.put(69);
        permits.put(3);
        assert_eq!(permits.free(), 2);
        let again = permits.take().expect("two are free");
        assert_eq!((again.permit, again.generation), (3, 2));
    }
}
