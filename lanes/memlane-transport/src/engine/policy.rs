//! Which path takes the next request.

use std::time::Duration;

/// How a path is chosen among those that are up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// One after the other.
    RoundRobin,
    /// Where the fewest requests are under way: a path that stalls fills up and is left alone.
    #[default]
    MinInflight,
    /// Where requests, by what was measured of late, take the least time.
    MinLatency,
}

/// A path that is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate<Id> {
    /// Its name.
    pub id: Id,
    /// Requests under way.
    pub inflight: u32,
    /// What one takes; `None` if none was measured yet.
    pub latency: Option<Duration>,
}

/// One choice in this many goes round robin, so that a path that was slow once is measured again.
const LOOK_AGAIN: usize = 64;

/// The path for the next request. `turn` is the caller's counter, for whom it only has to live long enough.
pub fn pick<Id, C>(policy: Policy, candidates: C, turn: &mut usize) -> Option<Id>
where
    C: Iterator<Item = Candidate<Id>> + Clone,
{
    let mut few = candidates.clone();
    let (first, second) = (few.next()?, few.next());
    if second.is_none() {
        return Some(first.id);
    }
    let count = candidates.clone().count();
    let now = *turn;
    *turn = turn.wrapping_add(1);
    let first = now % count;
    let in_turn = |at: usize| (at + count - first) % count;
    let mut numbered = candidates.enumerate();
    let chosen = match policy {
        Policy::MinInflight => numbered.min_by_key(|(at, path)| (path.inflight, in_turn(*at))),
        Policy::MinLatency if !now.is_multiple_of(LOOK_AGAIN) => {
            numbered.min_by_key(|(at, path)| {
                let latency = path.latency.unwrap_or_default();
                (latency.saturating_mul(path.inflight + 1), in_turn(*at))
            })
        }
        _ => numbered.nth(first),
    };
    chosen.map(|(_, path)| path.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picks(policy: Policy, paths: &[(u32, u64)]) -> Vec<usize> {
        let candidates = paths
            .iter()
            .enumerate()
            .map(|(id, (inflight, ms))| Candidate {
                id,
                inflight: *inflight,
                latency: Some(Duration::from_millis(*ms)),
            });
        let mut turn = 1;
        let next = |_| pick(policy, candidates.clone(), &mut turn).expect("some are up");
        (0..6).map(next).collect()
    }

    #[test]
    fn each_policy_takes_the_path_that_it_promises() {
        assert_eq!(picks(Policy::RoundRobin, &[(9, 1); 3]), [1, 2, 0, 1, 2, 0]);
        assert_eq!(
            picks(Policy::MinInflight, &[(3, 1), (2, 9), (4, 1)]),
            [1; 6]
        );
        assert_eq!(picks(Policy::MinLatency, &[(0, 5), (9, 1), (1, 2)]), [2; 6]);
        assert_eq!(
            picks(Policy::MinInflight, &[(2, 1), (2, 1), (5, 1)]),
            [1, 0, 0, 1, 0, 0]
        );
        let none = std::iter::empty::<Candidate<u8>>();
        assert_eq!(pick(Policy::RoundRobin, none, &mut 0), None);
    }

    #[test]
    fn a_path_that_was_slow_once_is_measured_again() {
        let slow = [(0, 900), (0, 1)];
        let candidates = slow
            .iter()
            .enumerate()
            .map(|(id, (inflight, ms))| Candidate {
                id,
                inflight: *inflight,
                latency: Some(Duration::from_millis(*ms)),
            });
        let mut turn = 0;
        let picked = (0..200).map(|_| pick(Policy::MinLatency, candidates.clone(), &mut turn));
        assert!(picked.filter(|id| *id == Some(0)).count() > 1);
    }
}
