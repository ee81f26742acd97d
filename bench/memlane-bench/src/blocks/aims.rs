//! What a system should reach, in a row, against the best of the others.

use serde::Serialize;

use super::work::{self, Pattern, Row};
use crate::published::Aim;
use crate::spread::Spread;

/// "Flat", for the cost of a request from 1 to 64 jobs.
pub(super) const FLAT: f64 = 1.2;

/// Which of a line's ratios.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub(super) enum Of {
    /// Requests per second, to the best peer's.
    Rate,
    /// The median latency, to the best peer's.
    P50,
    /// Processor time for a request at 64 jobs, to that at one.
    Cost,
    /// Milliseconds.
    Gap,
}

/// An aim, and whether it was reached.
#[derive(Serialize, Clone, Copy, PartialEq, Debug)]
pub(super) struct Goal {
    pub(super) of: Of,
    pub(super) bound: Aim,
    /// Null if it was not measured.
    pub(super) met: Option<bool>,
}

impl Goal {
    /// The median decides.
    pub(super) fn new(of: Of, bound: Aim, seen: Option<&Spread>) -> Goal {
        Goal {
            of,
            bound,
            met: seen.map(|seen| bound.met(seen.median)),
        }
    }

    /// In a table: `≥3 +`.
    pub(super) fn shown(&self) -> String {
        let what = match self.of {
            Of::P50 => "p50 ",
            _ => "",
        };
        format!("{what}{}", self.bound.shown(self.met))
    }
}

/// The aim of a system in a row. The API's rows are judged by fio's, so that both sides of a ratio come from one tool.
pub(super) fn aim(system: &str, row: &Row) -> Option<(Of, Aim)> {
    if work::is_sweep(row.id) {
        return None;
    }
    let sequential = matches!(row.pattern, Pattern::Read | Pattern::Write);
    let depth = row.depth;
    Some(match system {
        "fio-tcp" if sequential => (Of::Rate, Aim::AtLeast(2.0)),
        "fio-tcp" if depth == 1 => (Of::P50, Aim::AtMost(0.6)),
        "fio-tcp" => (Of::Rate, Aim::AtLeast(3.0)),
        "fio-local" if sequential => return None,
        "fio-local" if depth == 1 => (Of::Rate, Aim::AtLeast(20.0)),
        "fio-local" => (Of::Rate, Aim::AtLeast(8.0)),
        "nbd-local" | "nbd-tcp" => (Of::Rate, Aim::AtLeast(1.2)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::systems;
    use super::*;

    fn of(system: &str, row: &str) -> Option<(Of, Aim)> {
        aim(system, &work::known(row).expect("a row"))
    }

    #[test]
    fn the_api_is_judged_by_fio_and_only_memlane_has_aims() {
        assert_eq!(
            of("fio-tcp", "randread-qd1"),
            Some((Of::P50, Aim::AtMost(0.6)))
        );
        assert_eq!(
            of("fio-tcp", "seqwrite"),
            Some((Of::Rate, Aim::AtLeast(2.0)))
        );
        assert_eq!(
            of("fio-local", "randwrite-qd32"),
            Some((Of::Rate, Aim::AtLeast(8.0)))
        );
        assert_eq!(of("fio-local", "seqread"), None);
        assert_eq!(of("fio-tcp", "randread-x8"), None);
        for system in systems::all() {
            let fio = system.tool == systems::Tool::Fio && systems::is_ours(system.id);
            let some = work::rows().iter().any(|row| aim(system.id, row).is_some());
            assert_eq!(some, fio && system.id != "fuse", "{}", system.id);
        }
    }

    #[test]
    fn the_median_decides_and_what_was_not_measured_is_neither() {
        let seen = |values: &[f64]| Spread::of(values);
        let goal = |aim, values: &[f64]| Goal::new(Of::Rate, aim, seen(values).as_ref());
        let reached = goal(Aim::AtLeast(3.0), &[2.0, 3.0, 9.0]);
        assert_eq!((reached.met, reached.shown()), (Some(true), "≥3 +".into()));
        let missed = goal(Aim::AtMost(0.6), &[0.5, 0.61, 0.7]);
        assert_eq!((missed.met, missed.shown()), (Some(false), "≤0.6 -".into()));
        let unknown = goal(Aim::AtLeast(3.0), &[]);
        assert_eq!((unknown.met, unknown.shown()), (None, "≥3 ?".into()));
        let latency = Goal::new(Of::P50, Aim::AtMost(0.6), seen(&[0.2]).as_ref());
        assert_eq!(latency.shown(), "p50 ≤0.6 +");
    }
}
