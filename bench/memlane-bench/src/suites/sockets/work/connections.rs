//! One server and one client, with 1 to 10,000 connections between them: 100-byte requests go over all of them in turn,
//! up to 64 at a time.

use anyhow::Context as _;

use super::super::trial::{Place, Reading, Trial};
use super::super::works::Line;
use super::embedded;

pub(super) fn measure(trial: &Trial<'_>, line: &Line) -> anyhow::Result<Reading> {
    let connections = line.at.context("a row without its number")?;
    let (server, text) = trial.serve_embedded("many-server")?;
    let (seconds, count) = (trial.bench.seconds, connections.to_string());
    let told = seconds.to_string();
    let args = ["many-client", "--at", &text, "--seconds", &told];
    let args = [&args[..], &["--connections", &count]].concat();
    let client = trial.embedded(trial.side, Place::CLIENT, &args);
    // Opening the connections takes time, too.
    let ran = trial.run_for(seconds + connections as f64 / 2000.0, &server, client)?;
    embedded::reading(line.id, "msg/s", ran)
}
