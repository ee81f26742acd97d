//! One server and one client, with 1 to 10,000 connections between them: 100-byte requests go over all of them in turn,
//! up to 64 at a time.

use super::super::trial::{Place, Reading, Trial, Workload};
use super::embedded;

/// Row and connections.
pub(in super::super) const COUNTS: [(&str, u32); 5] = [
    ("connections-1", 1),
    ("connections-10", 10),
    ("connections-100", 100),
    ("connections-1000", 1_000),
    ("connections-10000", 10_000),
];

pub(super) struct Connections;

impl Workload for Connections {
    fn group(&self) -> &'static str {
        "connections"
    }

    fn rows(&self) -> Vec<&'static str> {
        COUNTS.iter().map(|(row, _)| *row).collect()
    }

    fn pinning(&self) -> &'static [bool] {
        &[true]
    }

    fn cost(&self, seconds: f64) -> f64 {
        // Ten thousand connections are opened first, and each is warm.
        seconds + 1.0
    }

    fn measure(&mut self, trial: &Trial<'_>, readings: &mut Vec<Reading>) -> anyhow::Result<()> {
        for (row, connections) in COUNTS {
            if trial.wants(row) {
                readings.push(one(trial, row, connections)?);
            }
        }
        Ok(())
    }
}

fn one(trial: &Trial<'_>, row: &'static str, connections: u32) -> anyhow::Result<Reading> {
    let at = trial.address()?;
    let text = at.text();
    let server = trial.embedded(trial.side, Place::Server, &["many-server", "--at", &text]);
    let server = trial.serve(server, &at)?;
    let (seconds, count) = (trial.setting.seconds, connections.to_string());
    let told = seconds.to_string();
    let args = ["many-client", "--at", &text, "--seconds", &told];
    let args = [&args[..], &["--connections", &count]].concat();
    let client = trial.embedded(trial.side, Place::Client, &args);
    // To open so many takes its time, too.
    let ran = trial.run_for(seconds + f64::from(connections) / 2000.0, &server, client)?;
    embedded::reading(row, "msg/s", ran)
}
