//! What others published about packets between two parties of one machine, to stand beside ours.

use super::rows::{Part, Row};
use crate::beside::plan::Row as _;
use crate::beside::{Figure, Published};

const TABLE: &str = include_str!("../../../published/packets.json");
/// The seed's: the series of 2015.
const SEED: &str = "pgnt";

/// The table built into this program.
pub(super) fn load() -> anyhow::Result<Published> {
    Published::parse(TABLE)
}

/// What the series of 2015 printed for a row of ours: grants copied or mapped, persistent grants.
pub(super) fn seed<'a>(table: &'a Published, row: &Row) -> Option<[&'a Figure; 2]> {
    let id = match row.part {
        Part::Table if row.burst == 1 => format!("{}-{}", row.way.word(), row.bytes),
        Part::Bulk => row.id(),
        _ => return None,
    };
    let find = |system: &str| {
        let mut figures = table.figures.iter();
        figures.find(|f| f.source == SEED && f.row == id && f.system == system)
    };
    Some([find("baseline")?, find("persistent grants")?])
}

/// Those that stand in no line of our tables.
pub(super) fn others(table: &Published) -> impl Iterator<Item = &Figure> {
    table.figures.iter().filter(|figure| figure.source != SEED)
}

#[cfg(test)]
mod tests {
    use super::super::rows::rows;
    use super::*;

    #[test]
    fn every_figure_names_a_source_that_exists_and_every_source_has_one() {
        let table = load().expect("the table parses");
        assert!(!table.is_loose());
        assert!(others(&table).count() > 10);
    }

    /// The posting prints the gain in per cent.
    #[test]
    fn the_seed_stands_beside_each_row_that_it_has_and_gives_the_percentages_that_it_prints() {
        let table = load().expect("the table parses");
        let all = rows(false);
        let beside = all.iter().filter_map(|row| seed(&table, row));
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
            let [baseline, persistent] = seed(&table, row).expect("figures");
            assert_eq!(baseline.unit, persistent.unit);
            let told = (persistent.value / baseline.value - 1.0) * 100.0;
            assert!(
                (told - percent).abs() < 1.5,
                "{id}: {told} against {percent}"
            );
        }
    }
}
