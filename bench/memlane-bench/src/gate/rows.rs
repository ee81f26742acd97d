//! What is compared: figures that have an aim, in all suites.

use crate::catalogue::Catalogue;
use crate::sample::{Better, metric};

/// A row of a suite that has aims.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Row {
    pub(super) suite: &'static str,
    pub(super) id: String,
    pub(super) figures: Vec<Figure>,
}

/// A figure with an aim.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Figure {
    pub(super) system: &'static str,
    pub(super) metric: &'static str,
    pub(super) better: Better,
}

/// The suite that has a clock of its own.
pub(super) const COUNTED: &str = "counted";

/// What is compared where nothing is named: short rows that need neither root nor a guest.
const USUAL: [(&str, &[&str]); 4] = [
    (
        "sockets",
        &[
            "msg100",
            "sockperf-pp",
            "sockperf-tp",
            "iperf3",
            "nginx-1",
            "nginx-128",
            "redis-get-c1",
            "redis-get-c50",
            "short",
            "nginx-close",
            "pgbench-connect",
            "one-sided",
            "oversubscribed",
            "strangers",
            "paced-1k-c50",
            "connections-100",
            "handover-4096",
            "carried-65536",
        ],
    ),
    ("blocks", &["randread-qd1", "randread-qd32"]),
    ("packets", &["tx-64-b32", "tx-65535-b32"]),
    ("devmem", &["kept-1m"]),
];

impl Row {
    /// The systems of its figures, each once.
    pub(super) fn systems(&self) -> Vec<&'static str> {
        let mut systems = Vec::new();
        for figure in &self.figures {
            if !systems.contains(&figure.system) {
                systems.push(figure.system);
            }
        }
        systems
    }

    fn is_called(&self, name: &str) -> bool {
        match name.split_once('/') {
            Some((suite, row)) => suite == self.suite && row == self.id,
            None => name == self.suite || name == self.id,
        }
    }

    fn is_usual(&self) -> bool {
        let of =
            |(suite, rows): &(&str, &[&str])| *suite == self.suite && rows.contains(&&*self.id);
        self.suite == COUNTED || USUAL.iter().any(of)
    }
}

/// The rows that are named, or the usual ones: those on the counted clock, or all others. A name is a suite, a row, or
/// `SUITE/ROW`; the name of a row alone means the first suite that has it.
///
/// # Errors
/// A name is not known; the text is for the user.
pub(super) fn chosen(
    catalogues: &[Catalogue],
    only: &[String],
    counted: bool,
) -> Result<Vec<Row>, String> {
    let mut all = all(catalogues);
    all.retain(|row| (row.suite == COUNTED) == counted);
    if only.is_empty() {
        all.retain(Row::is_usual);
        return Ok(all);
    }
    let mut wanted = vec![false; all.len()];
    for name in only {
        let called = all
            .iter()
            .enumerate()
            .filter(|(_, row)| row.is_called(name));
        let called: Vec<usize> = called.map(|(at, _)| at).collect();
        let first = called.first().ok_or_else(|| unknown(name, &all))?;
        let is_suite = all[*first].suite == name;
        let count = if is_suite { called.len() } else { 1 };
        for at in &called[..count] {
            wanted[*at] = true;
        }
    }
    let mut wanted = wanted.into_iter();
    all.retain(|_| wanted.next() == Some(true));
    Ok(all)
}

fn unknown(name: &str, all: &[Row]) -> String {
    let names = all.iter().map(|row| format!("{}/{}", row.suite, row.id));
    let names: Vec<String> = names.collect();
    format!("--only {name}: not one of {}", names.join(", "))
}

/// All rows with an aim, in the order of the suites. What happens to a path and then takes long (`gap`) says nothing of
/// a build's speed; a row without pinned CPUs (`ROW/free`) spreads too much.
fn all(catalogues: &[Catalogue]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for catalogue in catalogues {
        for goal in &catalogue.goals {
            let Some((_, better)) = metric(goal.metric) else {
                continue;
            };
            if goal.row.contains('/') || goal.metric == "gap" {
                continue;
            }
            let figure = Figure {
                system: goal.of,
                metric: goal.metric,
                better,
            };
            let same = |row: &&mut Row| row.suite == catalogue.suite && row.id == goal.row;
            match rows.iter_mut().find(same) {
                Some(row) if row.figures.contains(&figure) => {}
                Some(row) => row.figures.push(figure),
                None => rows.push(Row {
                    suite: catalogue.suite,
                    id: goal.row.clone(),
                    figures: vec![figure],
                }),
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::catalogues;

    fn named(only: &[&str]) -> Vec<String> {
        let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
        let rows = chosen(&catalogues(), &only, false).expect("known names");
        rows.iter()
            .map(|row| format!("{}/{}", row.suite, row.id))
            .collect()
    }

    #[test]
    fn each_usual_row_has_an_aim_and_is_compared() {
        let usual = named(&[]);
        for (suite, rows) in USUAL {
            for row in rows {
                assert!(usual.contains(&format!("{suite}/{row}")), "{suite}/{row}");
            }
        }
        let count: usize = USUAL.iter().map(|(_, rows)| rows.len()).sum();
        assert_eq!(usual.len(), count);
    }

    #[test]
    fn a_name_is_a_row_a_suite_or_both() {
        assert_eq!(named(&["iperf3"]), ["sockets/iperf3"]);
        assert_eq!(named(&["containers/iperf3"]), ["containers/iperf3"]);
        assert_eq!(
            named(&["tx-64-b1", "msg100"]),
            ["sockets/msg100", "packets/tx-64-b1"]
        );
        let all = named(&["sockets"]);
        assert!(all.len() > 30 && all.iter().all(|row| row.starts_with("sockets/")));
        assert!(!named(&["blocks"]).iter().any(|row| row.contains("gap")));
        let error = chosen(&catalogues(), &["iperf4".into()], false).expect_err("unknown");
        assert!(error.starts_with("--only iperf4: not one of "), "{error}");
        assert!(error.contains("sockets/iperf3"), "{error}");
    }

    #[test]
    fn a_figure_with_two_aims_is_compared_once() {
        let rows = all(&catalogues());
        let of = |suite: &str, id: &str| {
            let mut rows = rows.iter().filter(|row| row.suite == suite && row.id == id);
            rows.next().expect("a row").clone()
        };
        assert_eq!(of("packets", "tx-64-b32").figures.len(), 1);
        let pp = of("sockets", "sockperf-pp");
        assert_eq!(pp.systems(), ["nocopy"]);
        let metrics: Vec<&str> = pp.figures.iter().map(|figure| figure.metric).collect();
        assert_eq!(metrics, ["p50", "p99"]);
        assert!(
            pp.figures
                .iter()
                .all(|figure| figure.better == Better::Lower)
        );
    }
}
