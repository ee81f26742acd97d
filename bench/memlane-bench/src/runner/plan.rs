//! What was asked for: rows in parts, each part with systems of its own. The same for all suites.

use std::time::Duration;

use crate::catalogue::System;
use crate::exit::{Exit, fail};

/// A part of a run: rows that have the same systems.
pub(crate) trait Part: Copy + PartialEq + 'static {
    /// In the order in which they are measured.
    const ALL: &'static [Self];
    /// For `--only`. Several parts may share one.
    fn word(self) -> &'static str;
    /// Who is measured, in the order of the columns.
    fn systems(self) -> Vec<System>;
    /// About how many seconds one figure takes.
    fn cost(self, seconds: f64) -> f64;
    /// About how many seconds a system takes before its first figure of a round.
    fn joining(self) -> f64 {
        0.0
    }
    /// Whether a system is started once for all rows.
    fn at_once(self) -> bool {
        false
    }
    /// A name for several systems, for `--only`.
    fn group(_: &System) -> Option<&'static str> {
        None
    }
    /// Whether a system that is not named is measured.
    fn has_by_default(self, _: &System, _quick: bool) -> bool {
        true
    }
    /// Whether the part is measured where neither it nor a row of it is named; `some_system`: but a system is.
    fn is_default(self, _quick: bool, _some_system: bool) -> bool {
        true
    }
}

/// A row of a table.
pub(crate) trait Row: Clone + PartialEq {
    type Part: Part;
    /// All that there are.
    fn all() -> Vec<Self>;
    /// Whether a short run has it if it is not named.
    fn is_quick(&self) -> bool;
    fn part(&self) -> Self::Part;
    /// As it stands in the record.
    fn id(&self) -> String;
    /// For `--only`. Several rows may share one.
    fn name(&self) -> String {
        self.id()
    }
}

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) quick: bool,
    /// Rows that a short run leaves out, and no others.
    pub(crate) rest: bool,
    /// Somebody else computes on one of the CPUs.
    pub(crate) stranger: bool,
    pub(crate) only: Vec<String>,
    pub(crate) rounds: usize,
    /// The number of rounds that are added to a row if its first rounds lie on both sides of an aim.
    pub(crate) more_rounds: usize,
    /// The length of each measurement.
    pub(crate) seconds: f64,
}

/// What is measured.
#[derive(Clone, Debug)]
pub(crate) struct Plan<R: Row> {
    pub(crate) rows: Vec<R>,
    /// By part.
    systems: Vec<(R::Part, Vec<System>)>,
    pub(crate) wish: Wish,
}

/// A system that cannot be measured here, in a part of a run.
#[derive(Clone, Debug)]
pub(crate) struct Missing<P> {
    pub(crate) part: P,
    pub(crate) system: System,
    pub(crate) why: String,
}

impl<R: Row> Plan<R> {
    /// Names narrow what they name: rows (by themselves or by their part), and systems. A system brings in the rows of its
    /// parts, unless a row that it has is named.
    ///
    /// # Errors
    /// A name is not known.
    pub(crate) fn new(wish: Wish) -> anyhow::Result<Self> {
        known(&wish.only, &names::<R>()).map_err(|text| fail(Exit::Usage, text))?;
        let named = |id: &str| wish.only.iter().any(|name| name == id);
        let named_system =
            |system: &System| named(system.id) || R::Part::group(system).is_some_and(&named);
        let all = R::all();
        let asks = |part: R::Part| {
            let mut rows = all.iter().filter(|row| row.part() == part);
            named(part.word()) || rows.any(|row| named(&row.name()))
        };
        let asked = R::Part::ALL.iter().filter(|part| asks(**part));
        let asked: Vec<&str> = asked
            .flat_map(|part| part.systems())
            .map(|system| system.id)
            .collect();
        let brings = |part: R::Part| {
            let mut systems = part.systems().into_iter();
            systems.any(|system| named_system(&system) && !asked.contains(&system.id))
        };
        let some_system = R::Part::ALL
            .iter()
            .any(|part| part.systems().iter().any(named_system));
        let by_default = |part: R::Part| {
            part.is_default(wish.quick, some_system) && (wish.only.is_empty() || brings(part))
        };
        let wanted = |row: &R| {
            let usual = match (wish.quick, wish.rest) {
                (true, _) => row.is_quick(),
                (false, true) => !(row.is_quick() && row.part().is_default(true, false)),
                (false, false) => true,
            };
            named(&row.name()) || usual && (named(row.part().word()) || by_default(row.part()))
        };
        let of = |part: &R::Part| {
            let systems = part.systems();
            let some = systems.iter().any(named_system);
            let wanted = |system: &System| {
                let usual = part.has_by_default(system, wish.quick);
                named(system.id) || usual && (!some || named_system(system))
            };
            (*part, systems.into_iter().filter(wanted).collect())
        };
        Ok(Plan {
            rows: all.iter().filter(|row| wanted(row)).cloned().collect(),
            systems: R::Part::ALL.iter().map(of).collect(),
            wish,
        })
    }

    pub(crate) fn rows_of(&self, part: R::Part) -> Vec<R> {
        let rows = self.rows.iter().filter(|row| row.part() == part);
        rows.cloned().collect()
    }

    pub(crate) fn systems_of(&self, part: R::Part) -> &[System] {
        let mut all = self.systems.iter();
        let found = all.find(|(known, _)| *known == part);
        found.map_or(&[], |(_, systems)| systems)
    }

    /// Figures of a part in one round.
    pub(crate) fn figures(&self, part: R::Part) -> usize {
        self.rows_of(part).len() * self.systems_of(part).len()
    }

    /// Whether any figure is of a part and a system for which this holds.
    pub(crate) fn measures(&self, is_such: impl Fn(R::Part, &System) -> bool) -> bool {
        R::Part::ALL.iter().any(|&part| {
            let mut systems = self.systems_of(part).iter();
            self.figures(part) > 0 && systems.any(|system| is_such(part, system))
        })
    }

    /// Leaves out what cannot be measured here; tells which and why, each once.
    pub(crate) fn without(
        &mut self,
        lacks: impl Fn(R::Part, &System) -> Option<String>,
    ) -> Vec<Missing<R::Part>> {
        let mut missing: Vec<Missing<R::Part>> = Vec::new();
        for (part, systems) in &mut self.systems {
            let part = *part;
            if !self.rows.iter().any(|row| row.part() == part) {
                continue;
            }
            systems.retain(|system| {
                let Some(why) = lacks(part, system) else {
                    return true;
                };
                let same = |known: &Missing<_>| known.system == *system && known.why == why;
                if !missing.iter().any(same) {
                    missing.push(Missing {
                        part,
                        system: *system,
                        why,
                    });
                }
                false
            });
        }
        missing
    }

    /// An estimate of the time that this number of rounds takes.
    pub(crate) fn time(&self, rounds: usize) -> Duration {
        let one = R::Part::ALL.iter().map(|part| {
            let figures = self.figures(*part);
            let systems = if figures > 0 {
                self.systems_of(*part).len()
            } else {
                0
            };
            figures as f64 * part.cost(self.wish.seconds) + systems as f64 * part.joining()
        });
        Duration::from_secs_f64(one.sum::<f64>() * rounds as f64)
    }
}

/// Whatever `--only` takes.
fn names<R: Row>() -> Vec<String> {
    let parts = R::Part::ALL.iter();
    let systems: Vec<System> = parts.clone().flat_map(|part| part.systems()).collect();
    let words = parts.map(|part| part.word());
    let words = words.chain(systems.iter().filter_map(R::Part::group));
    let words = words.chain(systems.iter().map(|system| system.id));
    let rows = R::all().into_iter().map(|row| row.name());
    distinct(words.map(str::to_owned).chain(rows))
}

/// Each once, in the order in which they come first.
fn distinct<T: PartialEq>(names: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut told = Vec::new();
    for name in names {
        if !told.contains(&name) {
            told.push(name);
        }
    }
    told
}

/// Whether all that `--only` names is known. `Err` is for the user.
fn known(only: &[String], known: &[String]) -> Result<(), String> {
    match only.iter().find(|name| !known.contains(name)) {
        Some(name) => Err(format!("--only {name}: not one of {}", known.join(", "))),
        None => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What a full or a short run measures if these are named.
    pub(crate) fn planned<R: Row>(only: &[&str], quick: bool) -> Plan<R> {
        Plan::new(wish(only, quick)).expect("known names")
    }

    fn wish(only: &[&str], quick: bool) -> Wish {
        Wish {
            quick,
            rest: false,
            stranger: false,
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            rounds: if quick { 2 } else { 5 },
            more_rounds: 0,
            seconds: if quick { 0.5 } else { 1.0 },
        }
    }

    /// A short run and one of the rest have each row once, together.
    pub(crate) fn halves_make_a_whole<R: Row>() {
        let rest = Wish {
            rest: true,
            ..wish(&[], false)
        };
        let names = |plan: Plan<R>| -> Vec<String> { plan.rows.iter().map(Row::name).collect() };
        let halves = [wish(&[], true), rest].map(|wish| names(Plan::new(wish).expect("no names")));
        assert!(halves.iter().all(|half| !half.is_empty()));
        let (mut both, mut all) = (halves.concat(), names(planned(&[], false)));
        both.sort();
        all.sort();
        assert_eq!(both, all);
    }

    /// Rows and systems of each part.
    pub(crate) fn counts<R: Row>(plan: &Plan<R>) -> Vec<(usize, usize)> {
        let of = |part: &R::Part| (plan.rows_of(*part).len(), plan.systems_of(*part).len());
        R::Part::ALL.iter().map(of).collect()
    }

    #[test]
    fn the_first_unknown_name_is_told_with_each_known_one_once() {
        let only = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let names = distinct(only(&["a", "b", "a"]));
        assert_eq!(known(&only(&["b"]), &names), Ok(()));
        let error = known(&only(&["b", "x", "y"]), &names).expect_err("unknown");
        assert_eq!(error, "--only x: not one of a, b");
    }
}
