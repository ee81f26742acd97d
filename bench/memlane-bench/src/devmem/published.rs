//! What others published about payload into device memory, to stand beside ours.

use crate::beside::Published;

const TABLE: &str = include_str!("../../../published/devmem.json");

/// The table built into this program.
pub(super) fn load() -> anyhow::Result<Published> {
    Published::parse(TABLE)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_figure_names_a_source_that_exists_and_every_source_has_one() {
        let table = super::load().expect("the table parses");
        assert!(!table.is_loose());
        let seed = table.figures.iter().find(|figure| figure.value == 96.6);
        assert_eq!(seed.expect("the claim").unit, "% of line rate");
    }
}
