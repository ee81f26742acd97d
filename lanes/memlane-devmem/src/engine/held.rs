//! Stretches of a ring that a user has, each until he gives it back, in any order. The ring's sender may only write over
//! what lies before the first one that is out.

use std::collections::VecDeque;

/// One that was handed out.
#[derive(Clone, Copy, Debug)]
struct Out {
    /// Stream offset of its first byte.
    offset: u64,
    back: bool,
}

/// What is out of one ring, in the order of the stream.
#[derive(Debug, Default)]
pub struct Unreleased {
    out: VecDeque<Out>,
}

impl Unreleased {
    /// A stretch is handed out: it begins at this stream offset, behind all before it.
    pub fn hand_out(&mut self, offset: u64) {
        debug_assert!(self.out.back().is_none_or(|last| last.offset < offset));
        let back = false;
        self.out.push_back(Out { offset, back });
    }

    /// The stretch that begins there is back. `Some`: all below this offset is free by it (`u64::MAX`: nothing is out).
    /// What is not out is passed over.
    pub fn give_back(&mut self, offset: u64) -> Option<u64> {
        let at = self.out.partition_point(|out| out.offset < offset);
        let out = self.out.get_mut(at).filter(|out| out.offset == offset)?;
        out.back = true;
        if at > 0 {
            return None;
        }
        while self.out.front().is_some_and(|first| first.back) {
            self.out.pop_front();
        }
        Some(self.out.front().map_or(u64::MAX, |first| first.offset))
    }

    /// How many are out, or behind one that is.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Is nothing out?
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_before_the_first_that_is_out_is_free() {
        let mut held = Unreleased::default();
        for offset in [0, 10, 30, 31] {
            held.hand_out(offset);
        }
        assert_eq!(held.give_back(10), None);
        assert_eq!(held.give_back(10), None, "twice");
        assert_eq!(held.give_back(11), None, "never handed out");
        assert_eq!(held.give_back(0), Some(30), "the second came back before");
        assert_eq!(held.give_back(0), None, "not again");
        assert_eq!(held.give_back(31), None);
        assert_eq!(held.give_back(30), Some(u64::MAX));
        assert!(held.is_empty());
    }

    #[test]
    fn any_order_frees_everything_in_the_end_and_nothing_too_early() {
        let mut seed = 7_u64;
        for _ in 0..200 {
            let mut held = Unreleased::default();
            let mut out: Vec<u64> = (0..40).map(|n| n * 3).collect();
            out.iter().for_each(|offset| held.hand_out(*offset));
            let mut free = 0;
            while !out.is_empty() {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let nth = usize::try_from(seed >> 33).unwrap() % out.len();
                let offset = out.swap_remove(nth);
                free = held.give_back(offset).unwrap_or(free);
                let first = out.iter().min().copied();
                assert_eq!(free, first.map_or(u64::MAX, |f| f), "{out:?}");
            }
            assert!(held.is_empty());
        }
    }
}
