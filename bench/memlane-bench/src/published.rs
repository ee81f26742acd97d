//! What others published, to stand beside what was measured: `bench/published/*.json`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The figures of one suite.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Published {
    /// By key.
    pub(crate) sources: BTreeMap<String, Source>,
    pub(crate) figures: Vec<Figure>,
}

/// Where a figure comes from.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Source {
    /// Title of the mail or page.
    pub(crate) title: String,
    /// List and date.
    #[serde(rename = "where")]
    pub(crate) place: String,
    /// What it was measured on.
    pub(crate) machine: String,
    /// With which commands.
    pub(crate) method: String,
}

/// One figure.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Figure {
    /// Key of the source.
    pub(crate) source: String,
    /// A row of ours; or in words, where none is like it.
    pub(crate) row: String,
    #[serde(default)]
    pub(crate) metric: String,
    /// As it was called.
    pub(crate) system: String,
    /// The system that the source compares it with; empty: it is that one, or there is none.
    #[serde(default)]
    pub(crate) base: String,
    pub(crate) value: f64,
    /// As published.
    pub(crate) unit: String,
}

impl Published {
    /// Reads a table.
    ///
    /// # Panics
    /// If the table, which is built in, is not one.
    pub(crate) fn parse(table: &str) -> Published {
        serde_json::from_str(table).expect("a table of bench/published")
    }

    /// Nobody has published anything like it.
    pub(crate) fn none() -> Published {
        Published {
            sources: BTreeMap::new(),
            figures: Vec::new(),
        }
    }

    /// Figures of a row and a metric.
    pub(crate) fn of<'a>(
        &'a self,
        row: &'a str,
        metric: &'a str,
    ) -> impl Iterator<Item = &'a Figure> {
        let figures = self.figures.iter();
        figures.filter(move |figure| figure.row == row && figure.metric == metric)
    }

    /// A figure against what its source compares it with.
    pub(crate) fn ratio(&self, figure: &Figure) -> Option<f64> {
        let base = self.of(&figure.row, &figure.metric);
        let mut base = base.filter(|f| f.source == figure.source && f.system == figure.base);
        Some(figure.value / base.next()?.value)
    }

    /// For tests: a figure without a source, or a source without one.
    #[cfg(test)]
    pub(crate) fn is_loose(&self) -> bool {
        let known = |figure: &Figure| self.sources.contains_key(&figure.source);
        let used = |source: &String| self.figures.iter().any(|f| f.source == *source);
        let based = |f: &Figure| f.base.is_empty() || self.ratio(f).is_some();
        !self.figures.iter().all(|f| known(f) && based(f)) || !self.sources.keys().all(used)
    }
}
