//! What a stream has handed out, by token.
//!
//! The kernel's semantics (`sock_devmem_dontneed` in `net/core/sock.c`): tokens come back in ranges; at most 128 ranges
//! a call; 1024 tokens are looked at, those behind them stay out; a token that names nothing is passed over, so that
//! nobody forges one or frees a fragment twice. One thing is better: the kernel gives the lowest free number out again
//! at once, by which a token that is given back twice can hit somebody else's fragment. Ours go round 2³¹ numbers.

use super::Fragment;
use crate::error::ReleaseError;

/// Ranges in one release, at most (`MAX_DONTNEED_TOKENS` in the kernel).
pub const RANGES_MAX: usize = 128;
/// Tokens that one release looks at, at most (`MAX_DONTNEED_FRAGS`).
pub const TOKENS_MAX: u32 = 1024;
/// Tokens are from 0 to below this (the kernel's `xa_limit_31b`).
const TOKEN_END: u32 = 1 << 31;

/// Tokens that follow one another: the kernel's `struct dmabuf_token`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first (`token_start`).
    pub start: u32,
    /// How many (`token_count`).
    pub count: u32,
}

impl From<Fragment> for Range {
    fn from(fragment: Fragment) -> Range {
        Range {
            start: fragment.token,
            count: 1,
        }
    }
}

/// Fragments as ranges of tokens, as few as they make in this order, into `ranges`.
pub fn ranges_of(fragments: &[Fragment], ranges: &mut Vec<Range>) {
    ranges.clear();
    for fragment in fragments {
        match ranges.last_mut() {
            Some(last) if last.start.checked_add(last.count) == Some(fragment.token) => {
                last.count += 1;
            }
            _ => ranges.push(Range::from(*fragment)),
        }
    }
}

/// Who has put a fragment's bytes where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// We, into a chunk of our pool.
    Pool,
    /// The path, by a name of its own (a token of the kernel's, say).
    Path(u64),
}

/// A fragment that is out.
#[derive(Clone, Copy, Debug)]
struct Given {
    fragment: Fragment,
    origin: Origin,
    /// Only [`Tokens::give_up`] takes it back.
    kept: bool,
}

/// The fragments that one stream has handed out.
///
/// A table of a power of two places; a token's place is its low bits. A token whose place is taken is skipped, so a
/// look-up is one comparison, whatever is held for how long.
#[derive(Debug)]
pub struct Tokens {
    places: Vec<Option<Given>>,
    most: u32,
    out: u32,
    next: u32,
}

impl Tokens {
    /// For at most `most` fragments at a time (at least 1, at most 2²⁴).
    pub fn new(most: u32) -> Tokens {
        let most = most.clamp(1, 1 << 24);
        // Twice as many places as fragments: a token is skipped for one that is out once on average, at most.
        let places = (most * 2).next_power_of_two() as usize;
        Tokens {
            places: vec![None; places],
            most,
            out: 0,
            next: 0,
        }
    }

    /// How many are out.
    pub fn out(&self) -> u32 {
        self.out
    }

    /// How many more can be handed out.
    pub fn room(&self) -> u32 {
        self.most - self.out
    }

    fn place(&self, token: u32) -> usize {
        token as usize & (self.places.len() - 1)
    }

    /// Names `len` bytes at `offset`, in our pool. `None`: too many are out.
    pub fn name(&mut self, offset: u64, len: u32) -> Option<Fragment> {
        self.name_of(offset, len, Origin::Pool)
    }

    /// Names `len` bytes at `offset` that `origin` has put there. `None`: too many tokens are out.
    pub fn name_of(&mut self, offset: u64, len: u32, origin: Origin) -> Option<Fragment> {
        if self.room() == 0 {
            return None;
        }
        // There are more places than fragments: one of them is free.
        while self.places[self.place(self.next)].is_some() {
            self.next = (self.next + 1) % TOKEN_END;
        }
        let token = self.next;
        self.next = (token + 1) % TOKEN_END;
        self.out += 1;
        let fragment = Fragment { offset, len, token };
        let place = self.place(token);
        self.places[place] = Some(Given {
            fragment,
            origin,
            kept: false,
        });
        Some(fragment)
    }

    fn given(&self, token: u32) -> Option<Given> {
        self.places[self.place(token)].filter(|given| given.fragment.token == token)
    }

    /// The fragment that a token names; `None`: none that is out.
    pub fn find(&self, token: u32) -> Option<Fragment> {
        self.given(token).map(|given| given.fragment)
    }

    /// From now on a release passes over this fragment: it has an owner. `false`: it is not out, or has one.
    pub fn keep(&mut self, fragment: Fragment) -> bool {
        let place = self.place(fragment.token);
        match &mut self.places[place] {
            Some(given) if given.fragment == fragment && !given.kept => {
                given.kept = true;
                true
            }
            _ => false,
        }
    }

    /// Its owner lets go of it: a release takes it back again.
    pub fn let_go(&mut self, fragment: Fragment) {
        let place = self.place(fragment.token);
        if let Some(given) = self.places[place].as_mut() {
            given.kept &= given.fragment != fragment;
        }
    }

    /// Takes a fragment back from its owner; `None`: it is not out.
    pub fn give_up(&mut self, token: u32) -> Option<(Fragment, Origin)> {
        let given = self.given(token)?;
        Some(self.take(given))
    }

    fn take(&mut self, given: Given) -> (Fragment, Origin) {
        let place = self.place(given.fragment.token);
        self.places[place] = None;
        self.out -= 1;
        (given.fragment, given.origin)
    }

    /// Takes ranges back; `freed` gets each fragment that was out. How many were.
    ///
    /// # Errors
    /// More than [`RANGES_MAX`] ranges: nothing is taken back.
    pub fn release(
        &mut self,
        ranges: &[Range],
        mut freed: impl FnMut(Fragment, Origin),
    ) -> Result<u32, ReleaseError> {
        if ranges.len() > RANGES_MAX {
            return Err(ReleaseError::TooManyRanges(ranges.len()));
        }
        let (mut looked, mut given) = (0, 0);
        for range in ranges {
            for n in 0..range.count {
                if looked == TOKENS_MAX {
                    return Ok(given);
                }
                looked += 1;
                let token = range.start.checked_add(n).filter(|t| *t < TOKEN_END);
                let found = token.and_then(|token| self.given(token));
                if let Some(found) = found.filter(|found| !found.kept) {
                    given += 1;
                    let (fragment, origin) = self.take(found);
                    freed(fragment, origin);
                }
            }
        }
        Ok(given)
    }

    /// Takes all back that have no owner, as the kernel does when a socket is closed.
    pub fn release_all(&mut self, mut freed: impl FnMut(Fragment, Origin)) {
        for place in &mut self.places {
            if let Some(given) = place.take_if(|given| !given.kept) {
                self.out -= 1;
                freed(given.fragment, given.origin);
            }
        }
    }

    /// For tests: the token that comes next.
    #[cfg(test)]
    fn at(mut self, next: u32) -> Tokens {
        self.next = next;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(start: u32) -> [Range; 1] {
        [Range { start, count: 1 }]
    }

    #[test]
    fn a_token_given_back_twice_hits_nothing() {
        let mut tokens = Tokens::new(4);
        let first = tokens.name(0, 10).unwrap();
        assert_eq!(tokens.release(&one(first.token), |_, _| {}), Ok(1));
        let second = tokens.name(0, 10).unwrap();
        assert_ne!(first.token, second.token);
        assert_eq!(
            tokens.release(&one(first.token), |_, _| panic!("freed")),
            Ok(0)
        );
        assert_eq!(tokens.out(), 1);
    }

    #[test]
    fn strange_tokens_are_passed_over() {
        let mut tokens = Tokens::new(4);
        tokens.name(0, 10).unwrap();
        for strange in [1, 8, 16, TOKEN_END, u32::MAX] {
            assert_eq!(tokens.release(&one(strange), |_, _| panic!("freed")), Ok(0));
        }
        let to_the_end = [Range {
            start: u32::MAX - 1,
            count: u32::MAX,
        }];
        assert_eq!(tokens.release(&to_the_end, |_, _| panic!("freed")), Ok(0));
    }

    #[test]
    fn more_than_128_ranges_free_nothing() {
        let mut tokens = Tokens::new(4);
        tokens.name(0, 10).unwrap();
        let ranges = [Range { start: 0, count: 1 }; RANGES_MAX + 1];
        let refused = tokens.release(&ranges, |_, _| panic!("freed"));
        assert_eq!(refused, Err(ReleaseError::TooManyRanges(RANGES_MAX + 1)));
        assert_eq!(tokens.release(&ranges[1..], |_, _| {}), Ok(1));
    }

    #[test]
    fn one_call_frees_1024_and_says_so() {
        let mut tokens = Tokens::new(3000);
        for n in 0..3000 {
            tokens.name(n, 1).unwrap();
        }
        let all = [Range {
            start: 0,
            count: 3000,
        }];
        assert_eq!(tokens.release(&all, |_, _| {}), Ok(TOKENS_MAX));
        assert_eq!(
            tokens.release(&all, |_, _| {}),
            Ok(0),
            "those were looked at first"
        );
        let rest = [Range {
            start: TOKENS_MAX,
            count: 3000,
        }];
        assert_eq!(tokens.release(&rest, |_, _| {}), Ok(TOKENS_MAX));
        assert_eq!(tokens.out(), 3000 - 2 * TOKENS_MAX);
    }

    #[test]
    fn numbers_go_round_and_skip_what_is_held() {
        let mut tokens = Tokens::new(3).at(TOKEN_END - 2);
        let held = tokens.name(7, 1).unwrap();
        let mut last = held;
        for n in 0..100 {
            last = tokens.name(n, 1).unwrap();
            assert!(last.token < TOKEN_END);
            assert_eq!(tokens.release(&one(last.token), |_, _| {}), Ok(1));
        }
        assert!(last.token < held.token, "it went round");
        assert_eq!(tokens.find(held.token), Some(held));
    }

    #[test]
    fn what_has_an_owner_comes_back_from_him_alone() {
        let mut tokens = Tokens::new(4);
        let mine = tokens.name(0, 1).unwrap();
        tokens.name(1, 1).unwrap();
        assert!(tokens.keep(mine));
        assert!(!tokens.keep(mine), "twice");
        assert!(!tokens.keep(Fragment { len: 2, ..mine }), "forged");
        assert_eq!(
            tokens.release(&one(mine.token), |_, _| panic!("freed")),
            Ok(0)
        );
        let mut freed = Vec::new();
        tokens.release_all(|fragment, _| freed.push(fragment.offset));
        assert_eq!((freed, tokens.out()), (vec![1], 1));
        assert_eq!(tokens.give_up(mine.token), Some((mine, Origin::Pool)));
        assert_eq!(tokens.give_up(mine.token), None);
        assert_eq!(tokens.out(), 0);
    }

    #[test]
    fn what_its_owner_lets_go_of_can_be_handed_back() {
        let mut tokens = Tokens::new(4);
        let mine = tokens.name(0, 1).unwrap();
        assert!(tokens.keep(mine));
        tokens.let_go(Fragment { len: 2, ..mine });
        assert!(!tokens.keep(mine), "that was another one");
        tokens.let_go(mine);
        assert_eq!(tokens.release(&one(mine.token), |_, _| {}), Ok(1));
        tokens.let_go(mine);
        assert_eq!(tokens.out(), 0);
    }

    #[test]
    fn what_the_path_calls_a_fragment_comes_back_with_it() {
        let mut tokens = Tokens::new(4);
        let theirs = tokens.name_of(0, 1, Origin::Path(77)).unwrap();
        tokens.name(1, 1).unwrap();
        let mut freed = Vec::new();
        tokens
            .release(&one(theirs.token), |_, origin| freed.push(origin))
            .unwrap();
        tokens.release_all(|_, origin| freed.push(origin));
        assert_eq!(freed, [Origin::Path(77), Origin::Pool]);
    }

    #[test]
    fn tokens_that_follow_one_another_are_one_range() {
        let of = |token| Fragment {
            offset: 0,
            len: 1,
            token,
        };
        let mut ranges = Vec::new();
        ranges_of(&[3, 4, 5, 9, 8, u32::MAX, 0].map(of), &mut ranges);
        let range = |start, count| Range { start, count };
        let expected = [
            range(3, 3),
            range(9, 1),
            range(8, 1),
            range(u32::MAX, 1),
            range(0, 1),
        ];
        assert_eq!(ranges, expected);
    }

    #[test]
    fn too_many_are_refused_until_one_is_back() {
        let mut tokens = Tokens::new(2);
        let first = tokens.name(0, 1).unwrap();
        tokens.name(1, 1).unwrap();
        assert_eq!(tokens.name(2, 1), None);
        tokens.release(&one(first.token), |_, _| {}).unwrap();
        assert!(tokens.name(2, 1).is_some());
    }
}
