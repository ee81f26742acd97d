//! Figures as they come in, and what rounds of them say: spreads, and ratios of the same round.

use super::spread::Spread;

/// What was seen of one system in one row and one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<R, O> {
    pub(crate) row: R,
    pub(crate) system: &'static str,
    pub(crate) round: usize,
    pub(crate) seen: O,
}

/// All readings of one row.
pub(crate) struct Seen<'a, R, O> {
    all: Vec<&'a Reading<R, O>>,
}

impl<'a, R: PartialEq, O> Seen<'a, R, O> {
    pub(crate) fn of(readings: &'a [Reading<R, O>], row: &R) -> Self {
        let all = readings.iter().filter(|reading| reading.row == *row);
        Seen { all: all.collect() }
    }

    /// What was seen of one system, round by round.
    pub(crate) fn by(&self, system: &str) -> impl Iterator<Item = &'a Reading<R, O>> {
        let all = self.all.iter().copied();
        all.filter(move |reading| reading.system == system)
    }

    /// What was seen in one round, of all.
    pub(crate) fn in_round(&self, round: usize) -> impl Iterator<Item = &'a Reading<R, O>> {
        let all = self.all.iter().copied();
        all.filter(move |reading| reading.round == round)
    }

    /// One figure of one system, over the rounds.
    pub(crate) fn spread(&self, system: &str, get: impl Fn(&O) -> Option<f64>) -> Option<Spread> {
        let values: Vec<f64> = self.by(system).filter_map(|r| get(&r.seen)).collect();
        Spread::of(&values)
    }

    /// One figure of one system in one round.
    pub(crate) fn value(
        &self,
        system: &str,
        round: usize,
        get: impl Fn(&O) -> Option<f64>,
    ) -> Option<f64> {
        let mut found = self.by(system).filter(|reading| reading.round == round);
        found.next().and_then(|reading| get(&reading.seen))
    }

    /// A figure of one system against another figure of the same round.
    pub(crate) fn ratio(
        &self,
        system: &str,
        get: impl Fn(&O) -> Option<f64>,
        other: impl Fn(usize) -> Option<f64>,
    ) -> Option<Spread> {
        let rounds = self.by(system).map(|r| (other(r.round), get(&r.seen)));
        Spread::of_ratios(&rounds.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_one_row_and_of_the_same_round() {
        let reading = |row, system, round, seen| Reading {
            row,
            system,
            round,
            seen,
        };
        let readings = [
            reading("a", "new", 0, 6.0),
            reading("a", "old", 0, 3.0),
            reading("b", "old", 1, 1.0),
            reading("a", "new", 1, 8.0),
            reading("a", "new", 2, 9.0),
            reading("a", "old", 2, 1.0),
        ];
        let seen = Seen::of(&readings, &"a");
        let get = |value: &f64| Some(*value);
        let all = seen.spread("new", get).expect("three");
        assert_eq!(all.values, [6.0, 8.0, 9.0]);
        assert_eq!(seen.in_round(2).count(), 2);
        let other = |round| seen.value("old", round, get);
        let ratio = seen.ratio("new", get, other).expect("two");
        assert_eq!(ratio.values, [2.0, 9.0], "the second round has none of old");
        assert!(seen.spread("nobody", get).is_none());
    }
}
