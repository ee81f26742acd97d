//! What others published for the kernel's SMC-D loopback device, and our own aims.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::published::{Aim, Source};

const TABLE: &str = include_str!("../../../published/sockets.json");

/// The table in bench/published.
#[derive(Debug, Deserialize)]
pub(super) struct Published {
    /// By key.
    pub(super) sources: BTreeMap<String, Source>,
    rows: Vec<Figure>,
}

/// One published figure, in its own unit.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Figure {
    row: String,
    metric: String,
    /// As published.
    pub(super) unit: String,
    /// Key of the source.
    pub(super) source: String,
    /// TCP loopback there.
    pub(super) tcp: f64,
    /// UNIX domain sockets there.
    pub(super) domain: Option<f64>,
    /// SMC-D loopback with a send buffer.
    pub(super) smc_lo: Option<f64>,
    /// SMC-D loopback, sender writes into the receiver's buffer.
    pub(super) smc_lo_nocopy: Option<f64>,
}

impl Figure {
    /// In the order of our columns.
    pub(super) fn columns(&self) -> [Option<f64>; 4] {
        [Some(self.tcp), self.domain, self.smc_lo, self.smc_lo_nocopy]
    }

    /// A column against TCP.
    pub(super) fn ratio(&self, column: usize) -> Option<f64> {
        Some(self.columns().get(column).copied().flatten()? / self.tcp)
    }
}

impl Published {
    /// The table built into this program.
    pub(super) fn load() -> anyhow::Result<Self> {
        Ok(serde_json::from_str(TABLE)?)
    }

    /// All figures for one measured line.
    pub(super) fn of(&self, row: &str, metric: &str) -> Vec<Figure> {
        self.rows
            .iter()
            .filter(|figure| figure.row == row && figure.metric == metric)
            .cloned()
            .collect()
    }
}

/// The project's aim for a line, nocopy against TCP, if it has one; some are for pinned runs only.
pub(super) fn aim(row: &str, metric: &str, pinned: bool) -> Option<Aim> {
    use Aim::{AtLeast, AtMost};
    let (group, _) = row.rsplit_once('-').unwrap_or((row, ""));
    Some(match (row, group, metric) {
        ("sockperf-pp", _, "p50" | "p99") if pinned => AtMost(0.01),
        ("sockperf-tp" | "iperf3", _, "throughput") => AtLeast(3.0),
        ("msg100", _, "rate") if pinned => AtLeast(50.0),
        ("nginx-1" | "connections-1", _, "rate") => AtLeast(20.0),
        // Whatever their number.
        (_, "nginx" | "connections", "rate") => AtLeast(4.0),
        (_, "redis-get" | "redis-set", "rate") => AtLeast(3.0),
        (_, "redis-get" | "redis-set", "p99") => AtMost(1.0),
        ("short", _, "rate") => AtLeast(0.97),
        ("one-sided", _, "rate") => AtLeast(0.98),
        ("strangers", _, "rate") | (_, "oversubscribed", "rate") => AtLeast(1.0),
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
        near(found("msg100", "rate", "rfc-v2").ratio(2), 102.64);
        near(found("sockperf-tp", "throughput", "rfc-v2").ratio(3), 66.68);
        near(found("sockperf-pp", "p50", "rfc-v4").ratio(3), -46.81);
        near(found("iperf3", "throughput", "rfc-v2").ratio(3), 88.64);
        near(found("msg100", "rate", "rfc-v4").ratio(1), 46.45);
        near(found("nginx-500", "rate", "rfc-v4").ratio(2), 37.53);
        near(found("nginx-1000", "rate", "lo-v3").ratio(3), 51.10);
        near(found("redis-get-c200", "rate", "lo-v3").ratio(3), 32.31);
        near(found("redis-set-c200", "rate", "lo-v3").ratio(3), 35.56);
    }

    #[test]
    fn an_aim_for_latency_is_an_upper_bound() {
        assert!(aim("sockperf-pp", "p50", true).expect("an aim").met(0.009));
        assert!(!aim("sockperf-pp", "p99", true).expect("an aim").met(0.02));
        assert!(aim("sockperf-pp", "p50", false).is_none());
        assert_eq!(
            aim("connections-10000", "rate", true),
            aim("nginx-128", "rate", true)
        );
        assert_eq!(aim("nginx-memory-1", "rate", true), None);
        assert!(aim("short", "rate", false).expect("an aim").met(0.97));
    }
}
