//! What a run consists of, and how far it is.

use std::time::Duration;

use super::gap::{self, Scenario};
use super::systems::{self, System};
use super::work::{self, Row};
use crate::runner::plan::known;

/// What is measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) systems: Vec<System>,
    pub(super) rows: Vec<Row>,
    /// Of these, the systems that are swept.
    pub(super) swept: Vec<System>,
    pub(super) sweep: Vec<Row>,
    pub(super) gaps: Vec<Scenario>,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
}

impl std::fmt::Debug for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id)
    }
}

/// What was asked for.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) quick: bool,
    /// Only the sweep.
    pub(super) jobs: bool,
    pub(super) only: Vec<String>,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
}

/// Names for several systems.
const GROUPS: [&str; 2] = ["memlane", "peers"];
/// Names for a part of the run.
const PARTS: [&str; 3] = ["rows", "gap", "jobs"];

impl Plan {
    /// `Err` is for the user.
    pub(super) fn new(wish: &Wish) -> Result<Plan, String> {
        known(&wish.only, &names())?;
        let named = |id: &str| wish.only.iter().any(|name| name == id);
        let systems: Vec<System> = chosen(systems::all(), |system| {
            let group = GROUPS[usize::from(!systems::is_ours(system.id))];
            named(system.id) || named(group)
        });
        let short = |system: &System| !wish.quick || systems::is_quick(system) || named(system.id);
        let systems: Vec<System> = systems.into_iter().filter(short).collect();
        let rows_named = work::rows().iter().any(|row| named(row.id)) || named("rows");
        let sweep_named =
            wish.jobs || named("jobs") || work::sweep_rows().iter().any(|row| named(row.id));
        let gap_named = named("gap") || gap::all().iter().any(|scenario| named(scenario.id));
        // Naming systems alone means their rows.
        let nothing_named = !rows_named && !sweep_named && !gap_named;
        let all = wish.only.is_empty() && !wish.jobs;
        let mut plan = Plan {
            rounds: wish.rounds,
            seconds: wish.seconds,
            ..Plan::default()
        };
        let usual = |row: &&Row| !wish.quick || work::is_quick(row) || named(row.id);
        if rows_named || nothing_named {
            let rows = chosen(work::rows(), |row| named(row.id));
            plan.rows = rows.iter().filter(usual).copied().collect();
        }
        if sweep_named || (all && !wish.quick) {
            let rows = chosen(work::sweep_rows(), |row| named(row.id));
            plan.sweep = rows.iter().filter(usual).copied().collect();
            let by_name = wish.only.iter().any(|name| systems::known(name).is_some());
            let swept = systems.iter().filter(|system| system.in_sweep || by_name);
            plan.swept = swept.copied().collect();
        }
        if gap_named || all {
            plan.gaps = chosen(gap::all(), |scenario| named(scenario.id));
        }
        plan.systems = systems;
        Ok(plan)
    }

    /// Leaves out what cannot be measured here; says which and why.
    pub(super) fn without(&mut self, lacks: impl Fn(&System) -> Option<String>) -> Vec<Missing> {
        let mut missing = Vec::new();
        let used = |plan: &Plan, id: &str| {
            let table = !plan.rows.is_empty() && plan.systems.iter().any(|s| s.id == id);
            table || plan.swept.iter().any(|s| s.id == id)
        };
        for system in systems::all() {
            if let Some(why) = lacks(system).filter(|_| used(self, system.id)) {
                missing.push(Missing {
                    system: system.id,
                    why,
                });
            }
        }
        let there = |system: &System| !missing.iter().any(|absent| absent.system == system.id);
        self.systems.retain(there);
        self.swept.retain(there);
        missing
    }

    /// About how long it takes.
    pub(super) fn time(&self) -> Duration {
        let seconds = |systems: usize, rows: usize| {
            let row = self.seconds + BESIDES;
            systems as f64 * (START + rows as f64 * row)
        };
        let mut one = 0.0;
        if !self.rows.is_empty() {
            one += seconds(self.systems.len(), self.rows.len());
        }
        if !self.sweep.is_empty() {
            one += seconds(self.swept.len(), self.sweep.len());
        }
        one += self.gaps.iter().map(gap_cost).sum::<f64>();
        Duration::from_secs_f64(one * self.rounds as f64)
    }
}

/// Seconds to start a system and to fill its volume, about.
pub(super) const START: f64 = 1.6;
/// Seconds that a generator takes beyond its measurement, about.
pub(super) const BESIDES: f64 = 0.6;

/// Seconds that a scenario takes, about.
pub(super) fn gap_cost(scenario: &Scenario) -> f64 {
    scenario.seconds + 1.0
}

/// A system that cannot be measured here.
#[derive(Clone, Debug)]
pub(super) struct Missing {
    pub(super) system: &'static str,
    pub(super) why: String,
}

/// Those that were named; all if none was.
fn chosen<T: Copy>(all: &[T], named: impl Fn(&T) -> bool) -> Vec<T> {
    let some = all.iter().any(&named);
    all.iter()
        .filter(|one| !some || named(one))
        .copied()
        .collect()
}

/// Whatever `--only` takes.
fn names() -> Vec<&'static str> {
    let rows = work::rows().iter().chain(work::sweep_rows());
    let mut names: Vec<&str> = PARTS.to_vec();
    names.extend(GROUPS);
    names.extend(systems::all().iter().map(|system| system.id));
    names.extend(rows.map(|row| row.id));
    names.extend(gap::all().iter().map(|scenario| scenario.id));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(only: &[&str]) -> Wish {
        Wish {
            quick: false,
            jobs: false,
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            rounds: 5,
            seconds: 1.0,
        }
    }

    fn ids(plan: &Plan) -> (Vec<&str>, Vec<&str>, Vec<&str>, Vec<&str>) {
        let rows = |rows: &[Row]| rows.iter().map(|row| row.id).collect();
        (
            plan.systems.iter().map(|system| system.id).collect(),
            rows(&plan.rows),
            rows(&plan.sweep),
            plan.gaps.iter().map(|gap| gap.id).collect(),
        )
    }

    #[test]
    fn everything_is_measured_when_nothing_is_named() {
        let plan = Plan::new(&wish(&[])).expect("all");
        let (systems, rows, sweep, gaps) = ids(&plan);
        assert_eq!((systems.len(), rows.len()), (15, 10));
        assert_eq!((sweep.len(), gaps.len()), (18, 4));
        assert_eq!(plan.swept.len(), 5);
    }

    #[test]
    fn a_short_run_has_the_telling_rows_and_the_gap_and_takes_less_than_five_minutes() {
        let quick = Wish {
            quick: true,
            rounds: 2,
            ..wish(&[])
        };
        let plan = Plan::new(&quick).expect("quick");
        let (systems, rows, sweep, gaps) = ids(&plan);
        assert_eq!(systems.len(), 12);
        assert_eq!((rows.len(), sweep.len(), gaps.len()), (4, 0, 4));
        assert!(plan.time() < Duration::from_secs(240), "{:?}", plan.time());
        let mut named = quick.clone();
        named.only = vec!["qsd-tcp".into()];
        let plan = Plan::new(&named).expect("one");
        assert_eq!(ids(&plan).0, ["qsd-tcp"], "asked for, it is there");
        let jobs = Wish {
            jobs: true,
            ..quick
        };
        let plan = Plan::new(&jobs).expect("quick");
        let (_, rows, sweep, gaps) = ids(&plan);
        assert_eq!((rows.len(), sweep.len(), gaps.len()), (0, 6, 0));
    }

    #[test]
    fn names_narrow_what_they_name_and_nothing_else() {
        let plan = Plan::new(&wish(&["nbdkit", "seqread"])).expect("both");
        let expected = (vec!["nbdkit"], vec!["seqread"], vec![], vec![]);
        assert_eq!(ids(&plan), expected);
        let plan = Plan::new(&wish(&["peers"])).expect("a group");
        let (systems, rows, sweep, gaps) = ids(&plan);
        assert_eq!((systems.len(), rows.len()), (8, 10));
        assert!(sweep.is_empty() && gaps.is_empty());
        let plan = Plan::new(&wish(&["gap"])).expect("a part");
        assert_eq!(
            (plan.rows.len(), plan.sweep.len(), plan.gaps.len()),
            (0, 0, 4)
        );
        let plan = Plan::new(&wish(&["gap-cut-1", "rows", "fuse"])).expect("two parts");
        assert_eq!((plan.rows.len(), plan.gaps.len()), (10, 1));
        // A system that is not swept by itself is, when it is named.
        let plan = Plan::new(&wish(&["jobs", "fuse"])).expect("a part");
        assert_eq!(
            plan.swept.iter().map(|s| s.id).collect::<Vec<_>>(),
            ["fuse"]
        );
    }

    #[test]
    fn an_unknown_name_is_told_with_the_known_ones() {
        let error = Plan::new(&wish(&["nbdkat"])).expect_err("unknown");
        for name in [
            "nbdkat",
            "nbdkit-file",
            "gap-cut-1",
            "randread-x64",
            "peers",
        ] {
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn what_is_missing_is_left_out_and_named_once() {
        let mut plan = Plan::new(&wish(&[])).expect("all");
        let lacks = |system: &System| (system.id == "qsd").then(|| "not installed".to_owned());
        let missing = plan.without(lacks);
        assert_eq!(missing.len(), 1);
        assert_eq!((plan.systems.len(), plan.swept.len()), (14, 4));
        // Nobody asked for it.
        let mut plan = Plan::new(&wish(&["nbdkit"])).expect("one");
        assert!(plan.without(lacks).is_empty());
    }
}
