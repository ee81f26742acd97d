//! What others published about many jobs on one volume, to stand beside ours.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::published::Source;

const TABLE: &str = include_str!("../../../published/blocks.json");

/// The table in bench/published.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Published {
    /// By key.
    pub(super) sources: BTreeMap<String, Source>,
    /// One line of a plot each.
    pub(super) series: Vec<Series>,
}

/// One system of one source.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Series {
    /// Key of the source.
    pub(super) source: String,
    /// `randread`, `randwrite`.
    pub(super) pattern: String,
    /// As published.
    pub(super) unit: String,
    /// As it was called.
    pub(super) system: String,
    /// Rate, by the number of jobs.
    pub(super) points: BTreeMap<u32, f64>,
}

impl Series {
    /// How many times the rate of one job.
    pub(super) fn to_one_job(&self, jobs: u32) -> Option<f64> {
        Some(self.points.get(&jobs)? / self.points.get(&1)?)
    }
}

impl Published {
    /// The table built into this program.
    pub(super) fn load() -> anyhow::Result<Self> {
        Ok(serde_json::from_str(TABLE)?)
    }

    /// What there is for a pattern.
    pub(super) fn of<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = &'a Series> {
        self.series
            .iter()
            .filter(move |series| series.pattern == pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::super::work;
    use super::*;

    #[test]
    fn every_series_names_a_source_that_exists_and_steps_of_our_own_sweep() {
        let table = Published::load().expect("the table parses");
        assert_eq!(table.series.len(), 10);
        for series in &table.series {
            assert!(table.sources.contains_key(&series.source), "{series:?}");
            assert_eq!(series.to_one_job(1), Some(1.0));
            for jobs in series.points.keys() {
                let id = format!("{}-x{jobs}", series.pattern);
                assert!(work::is_sweep(&id), "{id}");
            }
        }
    }

    /// The posting prints the change from IBNBD to NVMEoRDMA.
    #[test]
    fn the_figures_give_the_percentages_that_the_posting_prints() {
        let table = Published::load().expect("the table parses");
        let printed = [
            ("cx2", "randread", 1, 4.6),
            ("cx2", "randread", 64, -13.4),
            ("cx2", "randwrite", 40, -33.0),
            ("cx3", "randread", 8, 1.2),
            ("cx3", "randwrite", 1, -22.4),
            ("cx3", "randwrite", 64, -6.4),
        ];
        for (source, pattern, jobs, percent) in printed {
            let rate = |system: &str| {
                let mut found = table.of(pattern);
                let found = found.find(|s| s.source == source && s.system == system);
                found.expect("a series").points[&jobs]
            };
            let told = (rate("NVMEoRDMA") / rate("IBNBD") - 1.0) * 100.0;
            assert!((told - percent).abs() < 0.06, "{told} against {percent}");
        }
    }
}
