//! One connection, messages and writes from 1 byte to 4 MiB in steps of four: netperf's TCP_RR and TCP_STREAM, so to
//! speak, by the embedded pair.

use anyhow::Context as _;

use super::super::peer::Sized;
use super::super::trial::{Metric, Place, Reading, Trial, Workload, cpu_of_bytes, cpu_of_requests};

/// Rows of both kinds, and bytes.
pub(in super::super) const SIZES: [(&str, &str, u64); 12] = [
    ("rr-1", "stream-1", 1),
    ("rr-4", "stream-4", 4),
    ("rr-16", "stream-16", 16),
    ("rr-64", "stream-64", 64),
    ("rr-256", "stream-256", 256),
    ("rr-1k", "stream-1k", 1 << 10),
    ("rr-4k", "stream-4k", 1 << 12),
    ("rr-16k", "stream-16k", 1 << 14),
    ("rr-64k", "stream-64k", 1 << 16),
    ("rr-256k", "stream-256k", 1 << 18),
    ("rr-1m", "stream-1m", 1 << 20),
    ("rr-4m", "stream-4m", 1 << 22),
];

/// One way to go through the sizes.
pub(super) struct Sizes {
    group: &'static str,
    /// What the embedded client calls it.
    kind: &'static str,
    /// Row and bytes.
    rows: [(&'static str, u64); 12],
}

/// Messages that are answered with as many bytes.
pub(super) fn echo() -> Sizes {
    Sizes {
        group: "rr",
        kind: "echo",
        rows: SIZES.map(|(row, _, bytes)| (row, bytes)),
    }
}

/// Writes of so many bytes, one way.
pub(super) fn stream() -> Sizes {
    Sizes {
        group: "stream",
        kind: "stream",
        rows: SIZES.map(|(_, row, bytes)| (row, bytes)),
    }
}

impl Workload for Sizes {
    fn group(&self) -> &'static str {
        self.group
    }

    fn rows(&self) -> Vec<&'static str> {
        self.rows.map(|(row, _)| row).to_vec()
    }

    fn pinning(&self) -> &'static [bool] {
        &[true]
    }

    fn cost(&self, seconds: f64) -> f64 {
        each(seconds) + 0.07
    }

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        let at = trial.address()?;
        let text = at.text();
        let server = trial.embedded(trial.side, Place::Server, &["sizes-server", "--at", &text]);
        let server = trial.serve(server, &at)?;
        let seconds = each(trial.setting.seconds).to_string();
        // A run for each size: so each tells by itself which lane it took.
        for (row, bytes) in self.rows.iter().filter(|(row, _)| trial.wants(row)) {
            let bytes = bytes.to_string();
            let mut args = vec!["sizes-client", "--at", &text, "--seconds", &seconds];
            args.extend(["--kind", self.kind, "--bytes", &bytes]);
            let ran = trial.run(&server, trial.embedded(trial.side, Place::Client, &args))?;
            let told: Vec<Sized> = serde_json::from_str(ran.text.trim())
                .with_context(|| format!("the embedded client said {:?}", ran.text))?;
            let told = told.first().context("the embedded client told nothing")?;
            readings.push(ran.reading(row, values(told)));
        }
        Ok(())
    }
}

/// Seconds for each size: there are many.
fn each(seconds: f64) -> f64 {
    (seconds / 4.0).clamp(0.05, 1.0)
}

fn values(told: &Sized) -> Vec<(Metric, f64)> {
    let carried = told.bytes_per_second * told.seconds;
    let cpu = told.cpu_seconds.unwrap_or_default();
    let mut values = Vec::new();
    match (told.p50_ns, told.p99_ns) {
        (Some(p50), Some(p99)) => {
            values.push((Metric::latency("p50"), p50 / 1e3));
            values.push((Metric::latency("p99"), p99 / 1e3));
            values.extend(cpu_of_requests(cpu, carried / told.bytes as f64));
        }
        _ => {
            let rate = told.bytes_per_second / 1e6;
            values.push((Metric::throughput("MB/s"), rate));
            values.extend(cpu_of_bytes(cpu, carried));
        }
    }
    values
}
