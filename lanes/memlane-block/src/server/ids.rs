//! Device ids: 32 bits that nobody guesses, none of them twice.

use memlane_sys::Errno;
use std::io;

/// Rounds of the Feistel network; more than enough to look random to one who does not have the keys.
const ROUNDS: usize = 8;

/// The numbers from 0 on, in an order that differs for each start of a server: an id of an earlier one is most likely
/// nobody's now. The order needs no memory of what was given away.
#[derive(Debug)]
pub(super) struct Ids {
    keys: [u64; ROUNDS],
    next: u32,
    used_up: bool,
}

impl Ids {
    pub(super) fn new() -> io::Result<Ids> {
        let mut keys = [0; ROUNDS];
        for key in &mut keys {
            let random = memlane_sys::proc::random_u64();
            *key = random.map_err(|Errno(errno)| io::Error::from_raw_os_error(errno))?;
        }
        Ok(Ids {
            keys,
            next: 0,
            used_up: false,
        })
    }

    /// One that was not there before; `None` when there are no more.
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.used_up {
            return None;
        }
        let id = self.permute(self.next);
        (self.next, self.used_up) = self.next.overflowing_add(1);
        Some(id)
    }

    /// A permutation of 32 bits, as each Feistel network is.
    fn permute(&self, number: u32) -> u32 {
        let [a, b, c, d] = number.to_le_bytes();
        let (mut left, mut right) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        for key in self.keys {
            (left, right) = (right, left ^ mix(right, key));
        }
        let ([a, b], [c, d]) = (left.to_le_bytes(), right.to_le_bytes());
        u32::from_le_bytes([a, b, c, d])
    }
}

/// splitmix64's last steps.
fn mix(half: u16, key: u64) -> u16 {
    let mut z = key.wrapping_add(u64::from(half).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let [a, b, ..] = (z ^ (z >> 31)).to_le_bytes();
    u16::from_le_bytes([a, b])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_id_comes_twice_and_another_life_has_others() {
        const MANY: usize = 200_000;
        let (mut one, mut two) = (Ids::new().unwrap(), Ids::new().unwrap());
        let ids: HashSet<u32> = (0..MANY).map(|_| one.take().unwrap()).collect();
        assert_eq!(ids.len(), MANY);
        // By chance 200000 × 1000 / 2^32 is one in twenty.
        let met = (0..1000)
            .filter(|_| ids.contains(&two.take().unwrap()))
            .count();
        assert!(met < 10, "{met} of 1000 were the other start's");
        // Neighbours are far from each other.
        let (a, b) = (one.take().unwrap(), one.take().unwrap());
        assert!(a.abs_diff(b) > 1000, "{a} {b}");
    }

    #[test]
    fn when_all_are_used_up_there_are_no_more() {
        let mut ids = Ids::new().unwrap();
        ids.next = u32::MAX;
        assert!(ids.take().is_some());
        assert_eq!((ids.take(), ids.take()), (None, None));
    }
}
