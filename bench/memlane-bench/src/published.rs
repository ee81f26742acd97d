//! Other people's figures and our own aims, to stand beside what was measured: what all benches have in common.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where a figure comes from.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Source {
    /// Title of the mail.
    pub(crate) title: String,
    /// List and date.
    #[serde(rename = "where")]
    pub(crate) place: String,
    /// What it was measured on.
    pub(crate) machine: String,
    /// With which commands.
    pub(crate) method: String,
}

/// Below the tables: whose figures stand beside ours.
pub(crate) fn cited(sources: &BTreeMap<String, Source>) -> impl Iterator<Item = String> {
    sources.iter().map(|(key, source)| {
        let (title, place, machine) = (&source.title, &source.place, &source.machine);
        format!("published {key}: {title}; {place}; {machine}")
    })
}

/// What a ratio memlane/TCP should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Aim {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Aim {
    /// Whether `ratio` reaches it.
    pub(crate) fn met(self, ratio: f64) -> bool {
        match self {
            Aim::AtLeast(bound) => ratio >= bound,
            Aim::AtMost(bound) => ratio <= bound,
        }
    }

    /// In a table, with the verdict: `≥3 +`.
    pub(crate) fn shown(self, met: Option<bool>) -> String {
        let bound = match self {
            Aim::AtLeast(bound) => format!("≥{bound}"),
            Aim::AtMost(bound) => format!("≤{bound}"),
        };
        let verdict = match met {
            Some(true) => '+',
            Some(false) => '-',
            None => '?',
        };
        format!("{bound} {verdict}")
    }
}
