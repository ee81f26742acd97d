//! Bytes that have come and that nobody has taken yet, against a list of bytes; names of elements.

#[path = "../src/pending.rs"]
#[allow(dead_code, unreachable_pub, reason = "what Python alone uses")]
mod pending;

#[path = "../src/dtype.rs"]
#[allow(dead_code, unreachable_pub, reason = "what Python alone uses")]
mod dtype;

use dtype::{Dtype, bytes_of, strides_of};
use pending::{Pending, Stretch};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::rc::Rc;

#[derive(Clone, Debug)]
enum Step {
    /// A fragment comes: behind the last one (`true`), or elsewhere.
    Push(bool, u32),
    Take(u64),
    First(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<bool>(), 1..50_u32).prop_map(|(behind, len)| Step::Push(behind, len)),
        (0..80_u64).prop_map(Step::Take),
        (1..80_u64).prop_map(Step::First),
    ]
}

/// Where each byte is that has come and was not taken, and of which fragment it is.
#[derive(Default)]
struct World {
    bytes: VecDeque<(u64, usize)>,
    owners: Vec<Rc<usize>>,
    end: u64,
}

impl World {
    fn push(&mut self, pending: &mut Pending<Rc<usize>>, behind: bool, len: u32) {
        // A gap of one byte is enough to be elsewhere.
        let offset = self.end + u64::from(!behind);
        let number = self.owners.len();
        let owner = Rc::new(number);
        pending.push(Rc::clone(&owner), offset, len);
        self.owners.push(owner);
        self.end = offset + u64::from(len);
        self.bytes.extend((offset..self.end).map(|at| (at, number)));
    }

    fn taken(&mut self, stretches: &[Stretch], owners: &[Rc<usize>]) {
        for pair in stretches.windows(2) {
            assert_ne!(pair[0].offset + pair[0].len, pair[1].offset, "one stretch");
        }
        let flat = stretches.iter().flat_map(|s| s.offset..s.offset + s.len);
        let mut fragments = Vec::new();
        for at in flat {
            let (right, fragment) = self.bytes.pop_front().expect("bytes that came");
            assert_eq!(at, right, "in order");
            fragments.push(fragment);
        }
        fragments.dedup();
        let owners: Vec<usize> = owners.iter().map(|owner| **owner).collect();
        assert_eq!(owners, fragments, "whose bytes they are");
    }
}

proptest! {
    #[test]
    fn what_is_taken_is_what_came_and_each_fragment_has_its_owners(
        steps in prop::collection::vec(step(), 1..100)
    ) {
        let (mut pending, mut world) = (Pending::new(), World::default());
        for step in steps {
            let there = world.bytes.len() as u64;
            prop_assert_eq!(pending.bytes(), there);
            match step {
                Step::Push(behind, len) => world.push(&mut pending, behind, len),
                Step::Take(bytes) => match pending.take(bytes) {
                    Some(piece) => {
                        let len: u64 = piece.stretches.iter().map(|s| s.len).sum();
                        prop_assert_eq!(len, bytes);
                        world.taken(&piece.stretches, &piece.owners);
                    }
                    None => prop_assert!(bytes > there, "there were enough"),
                },
                Step::First(most) => match pending.take_first(most) {
                    Some(piece) => {
                        prop_assert_eq!((piece.stretches.len(), piece.owners.len()), (1, 1));
                        prop_assert!(piece.stretches[0].len <= most);
                        world.taken(&piece.stretches, &piece.owners);
                    }
                    None => prop_assert_eq!(there, 0),
                },
            }
        }
        // A fragment whose bytes are all taken is nobody's any more.
        for (number, owner) in world.owners.iter().enumerate() {
            let left = world.bytes.iter().any(|(_, fragment)| *fragment == number);
            prop_assert_eq!(Rc::strong_count(owner), 1 + usize::from(left));
        }
    }
}

#[test]
fn elements_by_their_names() {
    assert_eq!(Dtype::named("torch.float16"), Dtype::named("float16"));
    assert_eq!(Dtype::named("complex128").map(Dtype::size), Some(16));
    for wrong in [
        "",
        "torch.",
        "Float32",
        "float32 ",
        "object",
        "torch.torch.int8",
    ] {
        assert_eq!(Dtype::named(wrong), None, "{wrong}");
    }
}

#[test]
fn lengths_that_no_memory_has_are_no_tensor() {
    let double = Dtype::named("float64").unwrap();
    assert_eq!(bytes_of(&[], double), Some(8));
    assert_eq!(bytes_of(&[2, 0, i64::MAX], double), Some(0));
    for wrong in [
        vec![-1],
        vec![i64::MAX],
        vec![1 << 31, 1 << 31],
        vec![1 << 60],
    ] {
        assert_eq!(bytes_of(&wrong, double), None, "{wrong:?}");
    }
    assert_eq!(strides_of(&[2, 3, 4], 8), [96, 32, 8]);
    assert_eq!(strides_of(&[], 8), [0; 0]);
    assert_eq!(strides_of(&[0, i64::MAX, i64::MAX], 8).len(), 3);
}
