//! What `memlane nc` says at its end, for people and for programs.

use std::time::Duration;

use memlane_devmem::io::path::{Choice, Passed};
use memlane_devmem::io::{BindingCounts, StreamCounts};
use serde::Serialize;

use crate::cli::out;

/// Of a receiver.
pub(super) struct Received<'a> {
    pub(super) region: String,
    pub(super) choice: &'a Choice,
    /// Of the interface, in words.
    pub(super) changed: Vec<String>,
    pub(super) counts: StreamCounts,
    pub(super) pool: BindingCounts,
    pub(super) smallest: u32,
    pub(super) largest: u32,
    pub(super) took: Duration,
    pub(super) validated: bool,
}

/// Of a sender.
pub(super) struct Sent<'a> {
    pub(super) choice: &'a Choice,
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
    /// Better paths, and what speaks against each.
    passed: Vec<PassedDocument<'a>>,
    /// What was changed of the interface, and put back.
    changed: &'a [String],
    seconds: f64,
    bytes: u64,
    fragments: u64,
    smallest_fragment: u32,
    largest_fragment: u32,
    tokens_released: u64,
    tokens_out: u32,
    /// Bytes that were copied between two places of host memory, for each byte of payload.
    bounced_per_byte: f64,
    /// Of an interface that writes to the device: bytes that it did not put there.
    beside: u64,
    chunks: u32,
    chunk_bytes: u32,
    chunks_free: u32,
    validated: bool,
}

#[derive(Serialize)]
struct PassedDocument<'a> {
    path: &'static str,
    lacks: &'a [String],
}

fn passed(choice: &Choice) -> Vec<PassedDocument<'_>> {
    choice.passed.iter().map(PassedDocument::new).collect()
}

impl<'a> PassedDocument<'a> {
    fn new(passed: &'a Passed) -> PassedDocument<'a> {
        PassedDocument {
            path: passed.path.name(),
            lacks: &passed.lacks,
        }
    }
}

/// The path, and a line for each reason against a better one.
fn path_rows(choice: &Choice) -> Vec<(&'static str, String)> {
    let mut rows = vec![("path", choice.path.to_string())];
    for passed in &choice.passed {
        let line = |lack: &String| ("", format!("not {}: {lack}", passed.path));
        rows.extend(passed.lacks.iter().map(line));
    }
    rows
}

#[derive(Serialize)]
struct SentDocument<'a> {
    schema: &'static str,
    direction: &'static str,
    region: &'a str,
    path: &'static str,
    passed: Vec<PassedDocument<'a>>,
    seconds: f64,
    bytes: u64,
}

const SCHEMA: &str = "memlane.nc/1";

fn lines(rows: Vec<(&str, String)>) -> String {
    let line = |(name, value): (&str, String)| format!("{name:<12} {value}\n");
    rows.into_iter().map(line).collect()
}

/// Gb/s.
fn rate(bytes: u64, took: Duration) -> f64 {
    bytes as f64 * 8e-9 / took.as_secs_f64().max(1e-9)
}

impl Received<'_> {
    fn bounced_per_byte(&self) -> f64 {
        self.counts.bounced as f64 / self.counts.received.max(1) as f64
    }
}

impl Report for Received<'_> {
    fn text(&self) -> String {
        let counts = &self.counts;
        let mut rows = path_rows(self.choice);
        rows.extend(self.changed.iter().map(|what| ("changed", what.clone())));
        rows.extend([
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
        ]);
        lines(rows)
    }

    fn json(&self) -> anyhow::Result<String> {
        let counts = &self.counts;
        out::json(&ReceivedDocument {
            schema: SCHEMA,
            direction: "into",
            region: &self.region,
            path: self.choice.path.name(),
            passed: passed(self.choice),
            changed: &self.changed,
            seconds: self.took.as_secs_f64(),
            bytes: counts.received,
            fragments: counts.fragments,
            smallest_fragment: self.smallest,
            largest_fragment: self.largest,
            tokens_released: counts.released,
            tokens_out: counts.out,
            bounced_per_byte: self.bounced_per_byte(),
            beside: counts.beside,
            chunks: self.pool.chunks,
            chunk_bytes: self.pool.chunk,
            chunks_free: self.pool.free,
            validated: self.validated,
        })
    }
}

impl Report for Sent<'_> {
    fn text(&self) -> String {
        let (bytes, took) = (self.sent, self.took);
        let region = &self.region;
        let (seconds, rate) = (took.as_secs_f64(), rate(bytes, took));
        let sent = format!("{bytes} bytes from {region} in {seconds:.2} s: {rate:.1} Gb/s");
        let mut rows = path_rows(self.choice);
        rows.push(("sent", sent));
        lines(rows)
    }

    fn json(&self) -> anyhow::Result<String> {
        out::json(&SentDocument {
            schema: SCHEMA,
            direction: "from",
            region: &self.region,
            path: self.choice.path.name(),
            passed: passed(self.choice),
            seconds: self.took.as_secs_f64(),
            bytes: self.sent,
        })
    }
}
