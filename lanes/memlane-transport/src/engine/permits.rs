//! Permits: who may use which chunk of the server, and for the how-manieth time.
//!
//! A permit is taken for one request, or it is *reserved*: then it is its holder's for any number of requests, one after
//! the other, and for what the holder does with the chunk's memory between them. So that those who reserve nothing get
//! on, too, a quarter of all permits cannot be reserved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// One use of one chunk: it names a request, now and on each path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    /// The chunk.
    pub permit: u16,
    /// Which use of it, from 1.
    pub generation: u64,
}

/// Which permits are free; for any thread. The lowest goes first, so that few chunks stay warm.
#[derive(Debug, Default)]
pub struct Free {
    /// A bit for each free permit. The thread that clears a bit has the permit, and the chunk's memory as its last user
    /// left it.
    words: Vec<AtomicU64>,
    /// How many are reserved, or are just being.
    reserved: AtomicU32,
    /// As many may be.
    most: u32,
}

impl Free {
    fn new(depth: u16) -> Free {
        let words = 0..u32::from(depth).div_ceil(64);
        let word = |n: u32| match u32::from(depth) - n * 64 {
            left @ 0..64 => (1 << left) - 1,
            _ => u64::MAX,
        };
        Free {
            words: words.map(|n| AtomicU64::new(word(n))).collect(),
            reserved: AtomicU32::new(0),
            most: u32::from(depth) * 3 / 4,
        }
    }

    fn take(&self) -> Option<u16> {
        for (at, word) in (0..).zip(&self.words) {
            let mut seen = word.load(Ordering::Acquire);
            while seen != 0 {
                let less = seen & (seen - 1);
                match word.compare_exchange_weak(seen, less, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return u16::try_from(at * 64 + seen.trailing_zeros()).ok(),
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    fn put(&self, permit: u16) {
        if let Some(word) = self.words.get(usize::from(permit) / 64) {
            word.fetch_or(1 << (permit % 64), Ordering::AcqRel);
        }
    }

    /// Reserves one; `None`: there is none, or no more may be.
    pub fn reserve(&self) -> Option<u16> {
        let permit = match self.reserved.fetch_add(1, Ordering::Relaxed) < self.most {
            true => self.take(),
            false => None,
        };
        if permit.is_none() {
            self.reserved.fetch_sub(1, Ordering::Relaxed);
        }
        permit
    }

    /// Gives a reserved one back, which no request has.
    pub fn give_back(&self, permit: u16) {
        self.put(permit);
        self.hand_over();
    }

    /// A reserved one is the engine's from now on: its request is not over for the server.
    pub fn hand_over(&self) {
        self.reserved.fetch_sub(1, Ordering::Relaxed);
    }

    fn count(&self) -> u32 {
        let ones = |word: &AtomicU64| word.load(Ordering::Relaxed).count_ones();
        self.words.iter().map(ones).sum()
    }
}

/// The permits of a session, as its engine has them.
#[derive(Debug, Default)]
pub struct Permits {
    generations: Vec<u64>,
    free: Arc<Free>,
}

impl Permits {
    /// As many as there are chunks, all free.
    #[must_use]
    pub fn new(depth: u16) -> Self {
        Permits {
            generations: vec![0; usize::from(depth)],
            free: Arc::new(Free::new(depth)),
        }
    }

    /// Takes one.
    pub fn take(&mut self) -> Option<Ticket> {
        let permit = self.free.take()?;
        self.again(permit)
    }

    /// The next use of one that is reserved.
    pub fn again(&mut self, permit: u16) -> Option<Ticket> {
        let generation = self.generations.get_mut(usize::from(permit))?;
        *generation += 1;
        Some(Ticket {
            permit,
            generation: *generation,
        })
    }

    /// Gives one back that was taken.
    pub fn put(&mut self, permit: u16) {
        self.free.put(permit);
    }

    /// How many are free.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free.count()
    }

    /// Where permits are reserved.
    #[must_use]
    pub fn shared(&self) -> &Arc<Free> {
        &self.free
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

    #[test]
    fn a_quarter_of_all_permits_is_for_those_who_reserve_none() {
        for depth in [1, 4, 70, 512] {
            let mut permits = Permits::new(depth);
            let free = Arc::clone(permits.shared());
            let reserved: Vec<_> = std::iter::from_fn(|| free.reserve()).collect();
            assert_eq!(reserved.len(), usize::from(depth) * 3 / 4);
            let taken: Vec<_> = std::iter::from_fn(|| permits.take()).collect();
            assert_eq!(taken.len() + reserved.len(), usize::from(depth));
            assert!(
                taken
                    .iter()
                    .all(|ticket| !reserved.contains(&ticket.permit))
            );
            // One that the engine has taken over is none of those, whenever it comes back.
            for permit in reserved {
                free.hand_over();
                permits.put(permit);
            }
            let again = std::iter::from_fn(|| free.reserve()).count();
            assert_eq!(again, usize::from(depth) * 3 / 4);
        }
    }

    #[test]
    fn threads_that_reserve_never_have_the_same_permit() {
        let permits = Permits::new(100);
        let used: Arc<Vec<AtomicU32>> = Arc::new((0..100).map(|_| AtomicU32::new(0)).collect());
        let threads = (0..4).map(|_| {
            let (free, used) = (Arc::clone(permits.shared()), Arc::clone(&used));
            std::thread::spawn(move || {
                for _ in 0..20_000 {
                    let Some(permit) = free.reserve() else {
                        continue;
                    };
                    let users = used[usize::from(permit)].fetch_add(1, Ordering::SeqCst);
                    assert_eq!(users, 0, "permit {permit}");
                    used[usize::from(permit)].fetch_sub(1, Ordering::SeqCst);
                    free.give_back(permit);
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|t| t.join().expect("it ran"));
        assert_eq!(permits.free(), 100);
    }
}
