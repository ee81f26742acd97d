//! What others published about packets between two parties of one machine, to stand beside ours.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::rows::{Part, Row};
use crate::bench::published::Source;

const TABLE: &str = include_str!("../../../../../bench/published/packets.json");

/// The table in bench/published.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Published {
    /// By key.
    pub(super) sources: BTreeMap<String, Source>,
    pub(super) figures: Vec<Figure>,
}

/// One figure.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Figure {
    /// Key of the source.
    pub(super) source: String,
    /// What was measured: `tx-64`, `tcp-rx-2`; or in words, where no row of ours is like it.
    pub(super) row: String,
    /// As it was called.
    pub(super) system: String,
    pub(super) value: f64,
    /// As published.
    pub(super) unit: String,
}

/// The seed's: the series of 2015.
const SEED: &str = "pgnt";

impl Published {
    /// The table built into this program.
    pub(super) fn load() -> anyhow::Result<Self> {
        Ok(serde_json::from_str(TABLE)?)
    }

    /// What the series of 2015 printed for a row of ours: grants copied or mapped, persistent grants.
    pub(super) fn seed(&self, row: &Row) -> Option<[&Figure; 2]> {
        let id = match row.part {
            Part::Table if row.burst == 1 => format!("{}-{}", row.way.word(), row.bytes),
            Part::Bulk => row.id(),
            _ => return None,
        };
        let find = |system: &str| {
            let mut figures = self.figures.iter();
            figures.find(|f| f.source == SEED && f.row == id && f.system == system)
        };
        Some([find("baseline")?, find("persistent grants")?])
    }

    /// Those that stand in no line of our tables.
    pub(super) fn others(&self) -> impl Iterator<Item = &Figure> {
        self.figures.iter().filter(|figure| figure.source != SEED)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::rows;
    use super::*;

    #[test]
    fn every_figure_names_a_source_that_exists_and_every_source_has_one() {
        let table = Published::load().expect("the table parses");
        for figure in &table.figures {
            assert!(table.sources.contains_key(&figure.source), "{figure:?}");
        }
        for source in table.sources.keys() {
            assert!(
                table.figures.iter().any(|f| f.source == *source),
                "{source}"
            );
        }
        assert!(table.others().count() > 10);
    }

    /// The posting prints the gain in per cent.
    #[test]
    fn the_seed_stands_beside_each_row_that_it_has_and_gives_the_percentages_that_it_prints() {
        let table = Published::load().expect("the table parses");
        let all = rows(false);
        let beside = all.iter().filter_map(|row| table.seed(row));
        assert_eq!(beside.count(), 12, "6 rows of packets, 6 of TCP");
        for (id, percent) in [
            ("tx-64-b1", 46.0),
            ("rx-64-b1", 109.0),
            ("rx-1496-b1", 60.0),
            ("tcp-tx-1", 48.0),
            ("tcp-rx-1", -15.0),
            ("tcp-rx-3", 40.0),
        ] {
            let row = all.iter().find(|row| row.id() == id).expect("a row");
            let [baseline, persistent] = table.seed(row).expect("figures");
            assert_eq!(baseline.unit, persistent.unit);
            let told = (persistent.value / baseline.value - 1.0) * 100.0;
            assert!(
                (told - percent).abs() < 1.5,
                "{id}: {told} against {percent}"
            );
        }
    }
}
