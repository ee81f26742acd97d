//! What a run consists of.

use std::time::Duration;

use super::rows::{self, PARTS, Part, Row, systems};
use crate::bench::beside::System;

/// What was asked for.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) quick: bool,
    pub(super) only: Vec<String>,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
}

/// What is measured.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) rows: Vec<Row>,
    /// By [`PARTS`]' order.
    pub(super) systems: [Vec<System>; 3],
    pub(super) rounds: usize,
    pub(super) seconds: f64,
}

pub(super) type Missing = crate::bench::beside::Missing<Part>;

impl Plan {
    /// `Err` is for the user.
    pub(super) fn new(wish: &Wish) -> Result<Plan, String> {
        let known = names();
        if let Some(name) = wish.only.iter().find(|name| !known.contains(name)) {
            return Err(format!("--only {name}: not one of {}", known.join(", ")));
        }
        let named = |id: &str| wish.only.iter().any(|name| name == id);
        let all = rows::rows(false);
        let quick = rows::rows(wish.quick);
        let any_row = all
            .iter()
            .any(|row| named(&row.id()) || named(row.part.word()));
        let any_system = |part| systems(part).iter().any(|system| named(system.id));
        let wanted = |row: &&Row| match any_row {
            true => named(&row.id()) || (named(row.part.word()) && quick.contains(row)),
            // Systems alone: the rows of their parts.
            false if wish.only.is_empty() => quick.contains(row),
            false => quick.contains(row) && any_system(row.part),
        };
        let of = |part| {
            let some = any_system(part);
            let all = systems(part).iter();
            all.filter(|system| !some || named(system.id))
                .copied()
                .collect()
        };
        Ok(Plan {
            rows: all.iter().filter(wanted).copied().collect(),
            systems: PARTS.map(of),
            rounds: wish.rounds,
            seconds: wish.seconds,
        })
    }

    pub(super) fn rows_of(&self, part: Part) -> Vec<Row> {
        let rows = self.rows.iter().filter(|row| row.part == part);
        rows.copied().collect()
    }

    pub(super) fn systems_of(&self, part: Part) -> &[System] {
        &self.systems[place(part)]
    }

    /// Leaves out what cannot be measured here; says which and why.
    pub(super) fn without(
        &mut self,
        lacks: impl Fn(Part, &System) -> Option<String>,
    ) -> Vec<Missing> {
        let mut missing = Vec::new();
        for part in PARTS {
            if self.rows_of(part).is_empty() {
                continue;
            }
            self.systems[place(part)].retain(|system| {
                let why = lacks(part, system);
                missing.extend(why.clone().map(|why| Missing {
                    part,
                    system: system.id,
                    why,
                }));
                why.is_none()
            });
        }
        missing
    }

    /// About how long one figure takes.
    pub(super) fn cost(&self, part: Part) -> f64 {
        match part {
            Part::Table => self.seconds + 0.25,
            Part::Bulk => self.seconds.ceil() + 0.3,
            Part::Memif => self.seconds + 1.5,
        }
    }

    /// About how long all of it takes.
    pub(super) fn time(&self) -> Duration {
        let mut one = 0.0;
        for part in PARTS {
            let figures = self.rows_of(part).len() * self.systems_of(part).len();
            one += figures as f64 * self.cost(part);
            if part == Part::Bulk && figures > 0 {
                one += self.systems_of(part).len() as f64 * JOINING;
            }
        }
        Duration::from_secs_f64(one * self.rounds as f64)
    }
}

/// Seconds to make two namespaces and what joins them, about.
const JOINING: f64 = 0.6;

fn place(part: Part) -> usize {
    PARTS.iter().position(|known| *known == part).unwrap_or(0)
}

/// Whatever `--only` takes.
fn names() -> Vec<String> {
    let mut names: Vec<String> = PARTS.map(|part| part.word().to_owned()).to_vec();
    for part in PARTS {
        names.extend(systems(part).iter().map(|system| system.id.to_owned()));
    }
    names.extend(rows::rows(false).iter().map(Row::id));
    let mut told: Vec<String> = Vec::new();
    names.into_iter().for_each(|name| {
        if !told.contains(&name) {
            told.push(name);
        }
    });
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(only: &[&str], quick: bool) -> Wish {
        Wish {
            quick,
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            rounds: if quick { 2 } else { 5 },
            seconds: if quick { 0.5 } else { 1.0 },
        }
    }

    fn counts(plan: &Plan) -> [(usize, usize); 3] {
        PARTS.map(|part| (plan.rows_of(part).len(), plan.systems_of(part).len()))
    }

    #[test]
    fn everything_is_measured_when_nothing_is_named() {
        let plan = Plan::new(&wish(&[], false)).expect("all");
        assert_eq!(counts(&plan), [(30, 3), (8, 5), (4, 5)]);
    }

    #[test]
    fn a_short_run_takes_less_than_five_minutes() {
        let plan = Plan::new(&wish(&[], true)).expect("quick");
        assert_eq!(counts(&plan), [(16, 3), (3, 5), (2, 5)]);
        assert!(plan.time() < Duration::from_secs(240), "{:?}", plan.time());
    }

    #[test]
    fn names_narrow_what_they_name_and_nothing_else() {
        let of = |only: &[&str]| counts(&Plan::new(&wish(only, false)).expect("known names"));
        assert_eq!(of(&["bulk"]), [(0, 3), (8, 5), (0, 5)]);
        assert_eq!(of(&["table", "persistent"]), [(30, 1), (0, 1), (0, 5)]);
        assert_eq!(of(&["veth"]), [(0, 3), (8, 1), (0, 5)]);
        assert_eq!(of(&["tx-64-b1", "memif-rx-64"]), [(1, 3), (0, 5), (1, 5)]);
        // A row that a short run leaves out is there when it is named.
        let plan = Plan::new(&wish(&["tx-1496-b32-q3"], true)).expect("a row");
        assert_eq!(counts(&plan)[0], (1, 3));
    }

    #[test]
    fn an_unknown_name_is_told_with_the_known_ones() {
        let error = Plan::new(&wish(&["ovs"], false)).expect_err("unknown");
        for name in ["ovs", "table", "rx-65535-b1", "copier", "testpmd"] {
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn what_is_missing_is_left_out_and_told_if_it_was_wanted() {
        let lacks =
            |_: Part, system: &System| (system.id == "testpmd").then(|| "not installed".to_owned());
        let mut plan = Plan::new(&wish(&[], false)).expect("all");
        assert_eq!(plan.without(lacks).len(), 1);
        assert_eq!(plan.systems_of(Part::Memif).len(), 4);
        let mut plan = Plan::new(&wish(&["table"], false)).expect("a part");
        assert!(plan.without(lacks).is_empty());
    }
}
