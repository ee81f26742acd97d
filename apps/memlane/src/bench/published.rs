//! Other people's figures and our own aims, to stand beside what was measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

const TABLE: &str = include_str!("../../../../bench/published/sockets.json");

/// The table in bench/published.
#[derive(Debug, Deserialize)]
pub(crate) struct Published {
    /// By key.
    pub(crate) sources: BTreeMap<String, Source>,
    rows: Vec<Figure>,
}

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

/// One published figure, in its own unit.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Figure {
    row: String,
    metric: String,
    /// As published.
    pub(crate) unit: String,
    /// Key of the source.
    pub(crate) source: String,
    /// TCP loopback there.
    pub(crate) tcp: f64,
    /// SMC-D loopback with a send buffer.
    pub(crate) smc_lo: Option<f64>,
    /// SMC-D loopback, sender writes into the receiver's buffer.
    pub(crate) smc_lo_nocopy: Option<f64>,
}

impl Figure {
    /// SMC-lo against TCP.
    pub(crate) fn copy_ratio(&self) -> Option<f64> {
        self.smc_lo.map(|value| value / self.tcp)
    }

    /// SMC-lo-nocpy against TCP.
    pub(crate) fn nocopy_ratio(&self) -> Option<f64> {
        self.smc_lo_nocopy.map(|value| value / self.tcp)
    }
}

impl Published {
    /// The table built into this program.
    pub(crate) fn load() -> anyhow::Result<Self> {
        Ok(serde_json::from_str(TABLE)?)
    }

    /// All figures for one measured line.
    pub(crate) fn of(&self, row: &str, metric: &str) -> Vec<Figure> {
        self.rows
            .iter()
            .filter(|figure| figure.row == row && figure.metric == metric)
            .cloned()
            .collect()
    }
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

/// The project's aim for a line, if it has one; some are for pinned runs only.
pub(crate) fn aim(row: &str, metric: &str, pinned: bool) -> Option<Aim> {
    use Aim::{AtLeast, AtMost};
    Some(match (row, metric) {
        ("sockperf-pp", _) if pinned => AtMost(0.01),
        ("sockperf-tp" | "iperf3", _) => AtLeast(3.0),
        ("msg100", "rate") if pinned => AtLeast(50.0),
        ("nginx-1", "rate") => AtLeast(20.0),
        ("nginx-16" | "nginx-64" | "nginx-128", "rate") => AtLeast(4.0),
        ("redis-get-c50" | "redis-set-c50", "rate") => AtLeast(3.0),
        ("redis-get-c50" | "redis-set-c50", "p99") => AtMost(1.0),
        ("short", "rate") => AtLeast(0.97),
        ("one-sided", "rate") => AtLeast(0.98),
        ("oversubscribed", "rate") => AtLeast(1.0),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_figure_names_a_source_that_exists() {
        let table = Published::load().expect("the table parses");
        for figure in &table.rows {
            assert!(table.sources.contains_key(&figure.source), "{figure:?}");
        }
        assert!(table.rows.len() >= 14);
    }

    #[test]
    fn ratios_are_the_percentages_that_the_mails_print() {
        let table = Published::load().expect("the table parses");
        let found = |row, metric, source: &str| {
            let figures = table.of(row, metric);
            figures
                .into_iter()
                .find(|figure| figure.source == source)
                .expect("a figure")
        };
        let near = |ratio: Option<f64>, percent: f64| {
            let told = (ratio.expect("a ratio") - 1.0) * 100.0;
            assert!((told - percent).abs() < 0.02, "{told} against {percent}");
        };
        near(found("msg100", "rate", "rfc-v2").copy_ratio(), 102.64);
        near(
            found("sockperf-tp", "throughput", "rfc-v2").nocopy_ratio(),
            66.68,
        );
        near(found("sockperf-pp", "p50", "rfc-v4").nocopy_ratio(), -46.81);
        near(
            found("iperf3", "throughput", "rfc-v2").nocopy_ratio(),
            88.64,
        );
        near(found("nginx-128", "rate", "lo-v3").nocopy_ratio(), 51.10);
        near(
            found("redis-get-c50", "rate", "lo-v3").nocopy_ratio(),
            32.31,
        );
        near(
            found("redis-set-c50", "rate", "lo-v3").nocopy_ratio(),
            35.56,
        );
    }

    #[test]
    fn an_aim_for_latency_is_an_upper_bound() {
        assert!(aim("sockperf-pp", "p50", true).expect("an aim").met(0.009));
        assert!(!aim("sockperf-pp", "p99", true).expect("an aim").met(0.02));
        assert!(aim("sockperf-pp", "p50", false).is_none());
        assert!(aim("short", "rate", false).expect("an aim").met(0.97));
    }
}
