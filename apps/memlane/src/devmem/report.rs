//! What `memlane nc` says at its end, for people and for programs.

use std::time::Duration;

use memlane_devmem::io::{BindingCounts, Path, StreamCounts};
use serde::Serialize;

use crate::out;

/// Of a receiver.
pub(super) struct Received {
    pub(super) region: String,
    pub(super) path: Path,
    pub(super) counts: StreamCounts,
    pub(super) pool: BindingCounts,
    pub(super) smallest: u32,
    pub(super) largest: u32,
    pub(super) took: Duration,
    pub(super) validated: bool,
}

/// Of a sender.
pub(super) struct Sent {
    pub(super) region: String,
    pub(super) sent: u64,
    pub(super) took: Duration,
}

pub(super) trait Report {
    fn text(&self) -> String;
    fn json(&self) -> anyhow::Result<String>;
}

pub(super) fn say(report: &impl Report, json: bool) -> anyhow::Result<()> {
    match json {
        true => out::print(&report.json()?),
        false => out::print(&report.text()),
    }
}

#[derive(Serialize)]
struct ReceivedDocument<'a> {
    schema: &'static str,
    direction: &'static str,
    region: &'a str,
    path: &'static str,
    seconds: f64,
    bytes: u64,
    fragments: u64,
    smallest_fragment: u32,
    largest_fragment: u32,
    tokens_released: u64,
    tokens_out: u32,
    /// Bytes that were copied between two places of host memory, for each byte of payload.
    bounced_per_byte: f64,
    chunks: u32,
    chunk_bytes: u32,
    chunks_free: u32,
    validated: bool,
}

#[derive(Serialize)]
struct SentDocument<'a> {
    schema: &'static str,
    direction: &'static str,
    region: &'a str,
    seconds: f64,
    bytes: u64,
}

const SCHEMA: &str = "memlane.nc/1";

/// Gb/s.
fn rate(bytes: u64, took: Duration) -> f64 {
    bytes as f64 * 8e-9 / took.as_secs_f64().max(1e-9)
}

impl Received {
    fn bounced_per_byte(&self) -> f64 {
        self.counts.bounced as f64 / self.counts.received.max(1) as f64
    }
}

impl Report for Received {
    fn text(&self) -> String {
        let counts = &self.counts;
        let rows = [
            ("path", self.path.to_string()),
            (
                "region",
                format!(
                    "{}, {} chunks of {}",
                    self.region,
                    self.pool.chunks,
                    out::human(self.pool.chunk.into())
                ),
            ),
            (
                "received",
                format!(
                    "{} bytes in {:.2} s: {:.1} Gb/s",
                    counts.received,
                    self.took.as_secs_f64(),
                    rate(counts.received, self.took)
                ),
            ),
            (
                "fragments",
                format!(
                    "{} of {} to {} bytes",
                    counts.fragments, self.smallest, self.largest
                ),
            ),
            (
                "tokens",
                format!("{} handed back, {} out", counts.released, counts.out),
            ),
            (
                "bounced",
                format!(
                    "{:.2} bytes through host memory for each byte",
                    self.bounced_per_byte()
                ),
            ),
            (
                "chunks free",
                format!("{} of {}", self.pool.free, self.pool.chunks),
            ),
            (
                "validated",
                if self.validated { "every byte" } else { "no" }.into(),
            ),
        ];
        let line = |(name, value): (&str, String)| format!("{name:<12} {value}\n");
        rows.into_iter().map(line).collect()
    }

    fn json(&self) -> anyhow::Result<String> {
        let counts = &self.counts;
        out::json(&ReceivedDocument {
            schema: SCHEMA,
            direction: "into",
            region: &self.region,
            path: self.path.name(),
            seconds: self.took.as_secs_f64(),
            bytes: counts.received,
            fragments: counts.fragments,
            smallest_fragment: self.smallest,
            largest_fragment: self.largest,
            tokens_released: counts.released,
            tokens_out: counts.out,
            bounced_per_byte: self.bounced_per_byte(),
            chunks: self.pool.chunks,
            chunk_bytes: self.pool.chunk,
            chunks_free: self.pool.free,
            validated: self.validated,
        })
    }
}

impl Report for Sent {
    fn text(&self) -> String {
        let (bytes, took) = (self.sent, self.took);
        let region = &self.region;
        let (seconds, rate) = (took.as_secs_f64(), rate(bytes, took));
        format!("sent         {bytes} bytes from {region} in {seconds:.2} s: {rate:.1} Gb/s\n")
    }

    fn json(&self) -> anyhow::Result<String> {
        out::json(&SentDocument {
            schema: SCHEMA,
            direction: "from",
            region: &self.region,
            seconds: self.took.as_secs_f64(),
            bytes: self.sent,
        })
    }
}
