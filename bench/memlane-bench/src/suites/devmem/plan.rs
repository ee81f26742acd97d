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
            rounds: if quick { 5 } else { 9 },
            seconds: if quick { 0.5 } else { 1.0 },
        }
    }

    fn counts(plan: &Plan) -> Vec<usize> {
        Part::ALL.iter().map(|part| plan.figures(*part)).collect()
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
