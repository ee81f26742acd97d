//! What was asked for: rows in parts, each part with systems of its own.

use std::time::Duration;

use super::Missing;
use crate::suites::System;

/// A part of a run, with a table of its own.
pub(crate) trait Part: Copy + PartialEq + 'static {
    /// In the order of the tables.
    const ALL: &'static [Self];
    /// For `--only`.
    fn word(self) -> &'static str;
    /// Who is measured, in the order of the columns.
    fn systems(self) -> &'static [System];
    /// About how many seconds one figure takes.
    fn cost(self, seconds: f64) -> f64;
    /// About how many seconds a system takes before its first figure of a round.
    fn joining(self) -> f64 {
        0.0
    }
}

/// A row of a table.
pub(crate) trait Row: Copy + PartialEq {
    type Part: Part;
    /// All of them, or those of a short run.
    fn all(quick: bool) -> Vec<Self>;
    fn part(&self) -> Self::Part;
    /// For `--only`.
    fn id(&self) -> String;
}

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) quick: bool,
    pub(crate) only: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
}

/// What is measured.
#[derive(Clone, Debug)]
pub(crate) struct Plan<R: Row> {
    pub(crate) rows: Vec<R>,
    /// By part.
    systems: Vec<(R::Part, Vec<System>)>,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
}

impl<R: Row> Plan<R> {
    /// `Err` is for the user.
    pub(crate) fn new(wish: &Wish) -> Result<Self, String> {
        known(&wish.only, &names::<R>())?;
        let named = |id: &str| wish.only.iter().any(|name| name == id);
        let (all, usual) = (R::all(false), R::all(wish.quick));
        let any_row = all
            .iter()
            .any(|row| named(&row.id()) || named(row.part().word()));
        let any_system = |part: R::Part| part.systems().iter().any(|system| named(system.id));
        let wanted = |row: &R| match any_row {
            true => named(&row.id()) || (named(row.part().word()) && usual.contains(row)),
            // Systems alone: the rows of their parts.
            false if wish.only.is_empty() => usual.contains(row),
            false => usual.contains(row) && any_system(row.part()),
        };
        let of = |part: &R::Part| {
            let some = any_system(*part);
            let systems = part.systems().iter().copied();
            let wanted = systems.filter(|system| !some || named(system.id));
            (*part, wanted.collect())
        };
        Ok(Plan {
            rows: all.into_iter().filter(wanted).collect(),
            systems: R::Part::ALL.iter().map(of).collect(),
            rounds: wish.rounds,
            seconds: wish.seconds,
        })
    }

    pub(crate) fn rows_of(&self, part: R::Part) -> Vec<R> {
        let rows = self.rows.iter().filter(|row| row.part() == part);
        rows.copied().collect()
    }

    pub(crate) fn systems_of(&self, part: R::Part) -> &[System] {
        let mut all = self.systems.iter();
        let found = all.find(|(known, _)| *known == part);
        found.map_or(&[], |(_, systems)| systems)
    }

    /// Of a round.
    pub(crate) fn figures(&self, part: R::Part) -> usize {
        self.rows_of(part).len() * self.systems_of(part).len()
    }

    /// Leaves out what cannot be measured here; says which and why.
    pub(crate) fn without(
        &mut self,
        lacks: impl Fn(R::Part, &System) -> Option<String>,
    ) -> Vec<Missing<R::Part>> {
        let mut missing = Vec::new();
        for (part, systems) in &mut self.systems {
            let part = *part;
            if !self.rows.iter().any(|row| row.part() == part) {
                continue;
            }
            systems.retain(|system| {
                let why = lacks(part, system);
                missing.extend(why.clone().map(|why| Missing {
                    part,
                    system: *system,
                    why,
                }));
                why.is_none()
            });
        }
        missing
    }

    /// About how long all of it takes.
    pub(crate) fn time(&self) -> Duration {
        let mut one = 0.0;
        for part in R::Part::ALL {
            let figures = self.figures(*part);
            one += figures as f64 * part.cost(self.seconds);
            if figures > 0 {
                one += self.systems_of(*part).len() as f64 * part.joining();
            }
        }
        Duration::from_secs_f64(one * self.rounds as f64)
    }
}

/// Whatever `--only` takes.
fn names<R: Row>() -> Vec<String> {
    let parts = R::Part::ALL.iter();
    let words = parts.clone().map(|part| part.word().to_owned());
    let systems = parts.flat_map(|part| part.systems().iter().map(|system| system.id.to_owned()));
    let rows = R::all(false).into_iter().map(|row| row.id());
    distinct(words.chain(systems).chain(rows))
}

/// Each once, in the order in which they come first.
pub(crate) fn distinct<T: PartialEq>(names: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut told = Vec::new();
    for name in names {
        if !told.contains(&name) {
            told.push(name);
        }
    }
    told
}

/// Whether all that `--only` names is known. `Err` is for the user.
pub(crate) fn known<T>(only: &[String], known: &[T]) -> Result<(), String>
where
    T: AsRef<str> + std::borrow::Borrow<str>,
{
    let is_known = |name: &String| known.iter().any(|known| known.as_ref() == name);
    match only.iter().find(|name| !is_known(name)) {
        Some(name) => Err(format!("--only {name}: not one of {}", known.join(", "))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_unknown_name_is_told_with_each_known_one_once() {
        let names = distinct(["a", "b", "a"]);
        let only = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert_eq!(known(&only(&["b"]), &names), Ok(()));
        let error = known(&only(&["b", "x", "y"]), &names).expect_err("unknown");
        assert_eq!(error, "--only x: not one of a, b");
    }
}
