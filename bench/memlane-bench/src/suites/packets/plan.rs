//! What a run consists of.

use super::rows::Row;
use crate::runner::plan;

pub(super) use plan::Wish;
pub(super) type Plan = plan::Plan<Row>;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::rows::Part;
    use super::plan::Part as _;
    use super::*;
    use crate::suites::System;

    fn wish(only: &[&str], quick: bool) -> Wish {
        Wish {
            quick,
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            rounds: if quick { 2 } else { 5 },
            seconds: if quick { 0.5 } else { 1.0 },
        }
    }

    fn counts(plan: &Plan) -> Vec<(usize, usize)> {
        let of = |part: &Part| (plan.rows_of(*part).len(), plan.systems_of(*part).len());
        Part::ALL.iter().map(of).collect()
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
