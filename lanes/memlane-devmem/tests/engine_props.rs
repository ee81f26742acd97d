//! Receives and releases in any order, against a model that only remembers which bytes lie where.

use memlane_devmem::engine::inflow::Room;
use memlane_devmem::engine::{Chunks, Inflow, Origin, Tokens};
use memlane_devmem::{Fragment, Range};
use proptest::prelude::*;

const CHUNK: u32 = 4096;

#[derive(Clone, Debug)]
enum Step {
    /// Room for `ask` bytes is asked for, and `part` 256ths of it are filled.
    Receive { ask: u64, part: u64 },
    /// The nth of those that are out comes back; or a token that is none, near it.
    Release { nth: usize, off: u32, count: u32 },
    /// From here on, records have `unit` bytes.
    Whole { unit: u32 },
    /// It gets an owner, and comes back from him at the next release of it.
    Own { nth: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..40_000_u64, 0..=256_u64).prop_map(|(ask, part)| Step::Receive { ask, part }),
        (any::<usize>(), 0..3_u32, 1..5_u32).prop_map(|(nth, off, count)| Step::Release {
            nth,
            off,
            count
        }),
        any::<usize>().prop_map(|nth| Step::Own { nth }),
        (1..CHUNK + 2).prop_map(|unit| Step::Whole { unit }),
    ]
}

struct World {
    chunks: Chunks,
    tokens: Tokens,
    inflow: Inflow,
    out: Vec<Fragment>,
    owned: Vec<Fragment>,
    records: Records,
}

/// What a stream's user makes of it: records of one length since some byte.
struct Records {
    unit: u32,
    /// Bytes of the present one that are there, and where it began and goes on.
    have: u32,
    goes_on: u64,
    first: bool,
}

impl Records {
    fn new(unit: u32) -> Records {
        Records {
            unit,
            have: 0,
            goes_on: 0,
            first: true,
        }
    }

    /// Each lies in one piece, and the first one of them well.
    fn came(&mut self, fragment: Fragment) {
        let mut at = fragment.offset;
        let end = at + u64::from(fragment.len);
        while at < end {
            if self.have == 0 && std::mem::take(&mut self.first) && self.unit > 1 {
                assert_eq!(at % 64, 0, "the first record is aligned");
            }
            assert!(self.have == 0 || at == self.goes_on, "in one piece");
            let more = u64::from(self.unit - self.have).min(end - at);
            self.have = (self.have + u32::try_from(more).unwrap()) % self.unit;
            at += more;
            self.goes_on = at;
        }
    }
}

impl World {
    fn whole(&mut self, unit: u32) {
        let taken = self.inflow.whole(unit, &mut self.chunks);
        assert_eq!(taken, unit <= CHUNK, "one that fits a chunk");
        if taken {
            self.records = Records::new(unit);
        }
    }

    fn receive(&mut self, ask: u64, part: u64) {
        let mut rooms: Vec<Room> = Vec::new();
        self.inflow
            .room(&mut self.chunks, &self.tokens, (8, ask), &mut rooms);
        let there: u64 = rooms.iter().map(|room| u64::from(room.len)).sum();
        assert!(there <= ask, "not more than was asked for");
        let bytes = there * part / 256;
        let mut fragments = Vec::new();
        self.inflow
            .landed(bytes, &mut self.chunks, &mut self.tokens, &mut fragments);
        let came: u64 = fragments.iter().map(|f| u64::from(f.len)).sum();
        assert_eq!(came, bytes);
        for (fragment, room) in fragments.iter().zip(&rooms) {
            assert_eq!(fragment.offset, room.offset, "where it was put");
            assert!(fragment.len <= room.len && fragment.len > 0);
        }
        for fragment in &fragments {
            self.records.came(*fragment);
        }
        self.out.extend(fragments);
    }

    fn release(&mut self, nth: usize, off: u32, count: u32) {
        let Some(first) = self.out.get(nth % self.out.len().max(1)).copied() else {
            return;
        };
        let range = Range {
            start: first.token.wrapping_add(off),
            count,
        };
        let named = |f: &Fragment| f.token.wrapping_sub(range.start) < count;
        let expected: Vec<_> = self.out.iter().copied().filter(named).collect();
        let mut freed = Vec::new();
        let given = self.tokens.release(&[range], |f, _| freed.push(f)).unwrap();
        for fragment in &freed {
            let chunk = u32::try_from(fragment.offset / u64::from(CHUNK)).unwrap();
            self.chunks.give(chunk);
        }
        freed.sort_by_key(|f| f.offset);
        let mut sorted = expected.clone();
        sorted.sort_by_key(|f| f.offset);
        assert_eq!(freed, sorted);
        assert_eq!(given as usize, expected.len());
        self.out.retain(|f| !named(f));
    }

    fn own(&mut self, nth: usize) {
        if self.out.is_empty() {
            return;
        }
        let fragment = self.out.swap_remove(nth % self.out.len());
        assert!(self.tokens.keep(fragment));
        self.owned.push(fragment);
    }

    /// No byte has two names, and each chunk is free, or has a reason not to be.
    fn check(&self) {
        let mut all: Vec<_> = self.out.iter().chain(&self.owned).collect();
        all.sort_by_key(|f| f.offset);
        for pair in all.windows(2) {
            assert!(pair[0].offset + u64::from(pair[0].len) <= pair[1].offset);
        }
        let mut used: Vec<_> = all.iter().map(|f| f.offset / u64::from(CHUNK)).collect();
        used.dedup();
        let held = self.chunks.count() - self.chunks.free();
        let open = self.inflow.open();
        assert!(held as usize >= used.len() && held as usize <= used.len() + open);
        assert_eq!(self.tokens.out() as usize, all.len());
    }
}

proptest! {
    #[test]
    fn no_byte_has_two_names_and_nothing_is_lost(steps in prop::collection::vec(step(), 1..200)) {
        let mut world = World {
            chunks: Chunks::new(12 * u64::from(CHUNK), CHUNK).unwrap(),
            tokens: Tokens::new(9),
            inflow: Inflow::new(),
            out: Vec::new(),
            owned: Vec::new(),
            records: Records::new(1),
        };
        for step in steps {
            match step {
                Step::Receive { ask, part } => world.receive(ask, part),
                Step::Release { nth, off, count } => world.release(nth, off, count),
                Step::Own { nth } => world.own(nth),
                Step::Whole { unit } => world.whole(unit),
            }
            world.check();
        }
        world.inflow.close(&mut world.chunks);
        for fragment in world.owned.drain(..) {
            assert_eq!(world.tokens.give_up(fragment.token), Some((fragment, Origin::Pool)));
            world.out.push(fragment);
        }
        for fragment in world.out {
            world.chunks.give(u32::try_from(fragment.offset / u64::from(CHUNK)).unwrap());
        }
        prop_assert_eq!(world.chunks.free(), world.chunks.count(), "no chunk is lost");
    }
}
