//! What a run consists of.

use std::time::Duration;

use super::rows::{PARTS, Part, ROWS, Row, rows, systems};
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
    /// By part.
    systems: Vec<(Part, Vec<System>)>,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
}

pub(super) type Missing = crate::bench::beside::Missing<Part>;

impl Plan {
    /// `Err` is for the user.
    pub(super) fn new(wish: &Wish) -> Result<Plan, String> {
        let known = names();
        if let Some(name) = wish
            .only
            .iter()
            .find(|name| !known.contains(&name.as_str()))
        {
            return Err(format!("--only {name}: not one of {}", known.join(", ")));
        }
        let named = |id: &str| wish.only.iter().any(|name| name == id);
        let any_system = |part| systems(part).iter().any(|system| named(system.id));
        let any_row = ROWS
            .iter()
            .any(|row| named(row.row) || named(row.part.word()));
        let usual = rows(wish.quick);
        let wanted = |row: &&Row| match any_row {
            true => named(row.row) || (named(row.part.word()) && usual.contains(row)),
            // Systems alone: the rows of their parts.
            false if wish.only.is_empty() => usual.contains(row),
            false => usual.contains(row) && any_system(row.part),
        };
        let of = |part| {
            let all = systems(part).iter();
            let wanted = all.filter(|system| !any_system(part) || named(system.id));
            (part, wanted.copied().collect())
        };
        Ok(Plan {
            rows: ROWS.iter().filter(wanted).copied().collect(),
            systems: PARTS.map(of).to_vec(),
            rounds: wish.rounds,
            seconds: wish.seconds,
        })
    }

    pub(super) fn systems_of(&self, part: Part) -> &[System] {
        let mut all = self.systems.iter();
        let found = all.find(|(known, _)| *known == part);
        found.map_or(&[], |(_, systems)| systems)
    }

    fn has(&self, part: Part) -> bool {
        self.rows.iter().any(|row| row.part == part)
    }

    /// Leaves out what cannot be measured here; says which and why.
    pub(super) fn without(
        &mut self,
        lacks: impl Fn(Part, &System) -> Option<String>,
    ) -> Vec<Missing> {
        let mut missing = Vec::new();
        for part in PARTS {
            if !self.has(part) {
                continue;
            }
            let there = self.systems_of(part).iter().filter(|system| {
                let why = lacks(part, system);
                missing.extend(why.clone().map(|why| Missing {
                    part,
                    system: system.id,
                    why,
                }));
                why.is_none()
            });
            let there = there.copied().collect();
            let mut all = self.systems.iter_mut();
            if let Some((_, systems)) = all.find(|(known, _)| *known == part) {
                *systems = there;
            }
        }
        missing
    }

    /// About how long one figure takes.
    pub(super) fn cost(&self, part: Part) -> f64 {
        match part {
            Part::Stream => self.seconds + 0.3,
            Part::Tokens => 1.0,
            Part::Python => self.seconds + 2.0,
        }
    }

    /// Figures of a round.
    pub(super) fn figures(&self, part: Part) -> usize {
        let rows = self.rows.iter().filter(|row| row.part == part);
        rows.count() * self.systems_of(part).len()
    }

    /// About how long all of it takes.
    pub(super) fn time(&self) -> Duration {
        let one: f64 = PARTS
            .iter()
            .map(|part| self.figures(*part) as f64 * self.cost(*part))
            .sum();
        Duration::from_secs_f64(one * self.rounds as f64)
    }
}

/// Whatever `--only` takes.
fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = PARTS.map(Part::word).to_vec();
    for part in PARTS {
        names.extend(systems(part).iter().map(|system| system.id));
    }
    names.extend(ROWS.iter().map(|row| row.row));
    let mut told: Vec<&str> = Vec::new();
    for name in names {
        if !told.contains(&name) {
            told.push(name);
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(only: &[&str], quick: bool) -> Wish {
        Wish {
            quick,
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            rounds: if quick { 5 } else { 9 },
            seconds: if quick { 0.5 } else { 1.0 },
        }
    }

    fn counts(plan: &Plan) -> [usize; 3] {
        PARTS.map(|part| plan.figures(part))
    }

    #[test]
    fn everything_is_measured_when_nothing_is_named_and_a_short_run_is_short() {
        let all = STREAMS;
        let plan = Plan::new(&wish(&[], false)).expect("all");
        assert_eq!(counts(&plan), [5 * all, 1, 4]);
        let plan = Plan::new(&wish(&[], true)).expect("quick");
        assert_eq!(counts(&plan), [3 * all, 1, 4]);
        assert!(plan.time() < Duration::from_secs(180), "{:?}", plan.time());
    }

    const STREAMS: usize = 5;

    #[test]
    fn names_narrow_what_they_name_and_nothing_else() {
        let of = |only: &[&str]| counts(&Plan::new(&wish(only, true)).expect("known names"));
        assert_eq!(of(&["stream"]), [3 * STREAMS, 0, 0]);
        assert_eq!(of(&["kept-1m", "mapped"]), [1, 0, 0]);
        assert_eq!(of(&["recv-into"]), [0, 0, 1]);
        // A row that a short run leaves out is there when it is named.
        assert_eq!(of(&["chunks-4k", "splice"]), [1, 0, 0]);
    }

    #[test]
    fn an_unknown_name_is_told_with_the_known_ones() {
        let error = Plan::new(&wish(&["netcat"], false)).expect_err("unknown");
        for name in ["netcat", "stream", "kept-32m", "splice", "recv-into"] {
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn what_is_missing_is_left_out_and_told_if_it_was_wanted() {
        let lacks = |part, _: &System| (part == Part::Python).then(|| "no wheel".to_owned());
        let mut plan = Plan::new(&wish(&[], true)).expect("all");
        assert_eq!(plan.without(lacks).len(), 4);
        assert_eq!(counts(&plan)[2], 0);
        let mut plan = Plan::new(&wish(&["tokens"], true)).expect("a part");
        assert!(plan.without(lacks).is_empty());
    }
}
